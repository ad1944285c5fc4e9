"""Guiding: factors against p(met) before and after a token, and a language model that is guided."""

import pytest
import torch

from generate.random_constraints import WORDS, make_model, random_constraint
from hmmlm import inference
from hmmlm.data.spelling import Spelling
from hmmlm.errors import InputError
from hmmlm.generate import Guide, Lookahead, anything, contains, regex, tokens, words
from hmmlm.generate.emissions import Words
from hmmlm.generate.lookahead import Place, weigh_next
from hmmlm.hmm import HMM
from hmmlm.inference.streaming import next_state_log_probs
from hmmlm.support import Support
from models import make_hmm

BUDGET = 9
TOKENIZER, SMALL = make_model(torch.float64)
SPELLING = Spelling.of(TOKENIZER)
EOS = TOKENIZER.eos_id
BLOCKED = make_hmm(Support.from_clusters(torch.arange(TOKENIZER.vocab_size) % 3, 4), "factored")


def look_for(wanted, hmm: HMM = SMALL, **how) -> Lookahead:
    how = {"eos_id": EOS, "budget": BUDGET} | how
    return Lookahead.build(hmm, wanted.compile(SPELLING), **how)


def log_met(look: Lookahead, prompt: list[int], text: list[int]) -> float:
    """log p(met | prompt, text), by itself."""
    state = inference.start(look.hmm, reset_id=EOS)
    if prompt or text:
        state = inference.advance(state, torch.tensor([[*prompt, *text]]))
    place = torch.tensor([look.automaton.run(text)])
    return float(look.log_met(next_state_log_probs(state), place, BUDGET - len(text)))


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text)


@pytest.mark.parametrize("hmm", [SMALL, BLOCKED], ids=["dense", "blocks"])
@pytest.mark.parametrize(("strength", "kept"), [(1.0, None), (0.3, True), (1.0, False)])
def test_factors_are_what_a_token_does_to_the_probability(strength, kept, hmm):
    wanted = contains("rain", "park") & words(2, 6), ~contains("the")
    looks = [look_for(one, hmm) for one in wanted]
    guide = Guide(looks, strength=strength, keep_table=kept)
    assert hmm is SMALL or guide._start.table.is_resident == (kept is not False)
    prompts = [encode("the sun was"), encode(""), encode("a")]
    texts = [encode("the rain"), encode("a sun"), encode("")]
    which = [0, 1, 0]
    factors = guide.log_factors(prompts, texts, which)
    for row in range(3):
        look, prompt, text = looks[which[row]], prompts[row], texts[row]
        before = log_met(look, prompt, text)
        for token in range(TOKENIZER.vocab_size):
            after = [*text, token]
            if token == EOS:
                ends = look.automaton.accepts(text)
                expected = strength * (0.0 - before) if ends else -torch.inf
            elif look.automaton.distance[look.automaton.run(after)] + 1 > BUDGET - len(after):
                expected = -torch.inf
            else:
                expected = strength * (log_met(look, prompt, after) - before)
            assert float(factors[row, token]) == pytest.approx(expected, abs=1e-9)


def test_texts_may_come_in_any_order_and_nothing_grows():
    look = look_for(contains("rain"))
    guide = Guide([look])
    prompts = [encode("the sun"), encode("a park")]
    guide.log_factors(prompts, [[], []], [0, 0])
    one, two = encode("the"), encode("rain")
    turned = guide.log_factors([prompts[1], prompts[0], prompts[1]], [one, two, two], [0] * 3)
    assert len(guide._known) == 3 and len(guide._state.belief.fresh) == 3
    again = Guide([look]).log_factors(
        [prompts[1], prompts[0], prompts[1]], [one, two, two], [0] * 3
    )
    torch.testing.assert_close(turned, again, rtol=0, atol=1e-9)
    jumped = guide.log_factors([prompts[0]], [encode("was in the park")], [0])
    torch.testing.assert_close(
        jumped, Guide([look]).log_factors([prompts[0]], [encode("was in the park")], [0])
    )


def test_what_cannot_end_in_time_is_not_weighed(monkeypatch):
    """Where only the keyword may come, no other word's goal is: it would be redone in log space."""
    look, weighed = look_for(contains("rain"), BLOCKED), []
    log_probs = Words.log_probs
    monkeypatch.setattr(
        Words, "log_probs", lambda self, rows: weighed.append(len(rows)) or log_probs(self, rows)
    )
    ahead = torch.randn(2, BLOCKED.num_states, dtype=torch.float64).log_softmax(1)
    for left, rows in ((3, 2 + 2 * 2), (2, 2 + 2)):
        found = weigh_next(ahead, [Place(look, 0, left)] * 2)
        assert weighed.pop() == rows
        assert bool(found.legal[0, TOKENIZER.id("sun")]) == (left == 3)
        assert found.legal[0, TOKENIZER.id("rain")]


def test_only_the_last_tokens_of_a_prompt_are_read():
    look, prompt = look_for(contains("rain")), encode("the sun was bright and a park")
    short = Guide([look], context=2).log_factors([prompt], [[]], [0])
    torch.testing.assert_close(short, Guide([look]).log_factors([prompt[-2:]], [[]], [0]))
    none = Guide([look], context=0).log_factors([prompt], [[]], [0])
    torch.testing.assert_close(none, Guide([look]).log_factors([[]], [[]], [0]))


def without(word: str, hmm: HMM = SMALL) -> HMM:
    emit = hmm.log_emit.clone()
    emit[TOKENIZER.id(word)] = -torch.inf
    return HMM(hmm.log_init, hmm.transitions, emit.log_softmax(0), hmm.support)


def test_the_guarantee_is_the_automatons_alone():
    """An HMM that never writes the keyword weighs nothing, and the text has it in time."""
    look = look_for(contains("rain"), without("rain"))
    guide = Guide([look])
    text: list[int] = []
    while EOS not in text:
        factors = guide.log_factors([[]], [text], [0])[0]
        allowed = torch.isfinite(factors).nonzero()[:, 0].tolist()
        assert TOKENIZER.id("rain") in text or (factors[allowed] == 0).all()
        unwanted = [token for token in allowed if token not in (TOKENIZER.id("rain"), EOS)]
        text = [*text, (unwanted or allowed)[0]]  # as late as may be
    assert len(text) == BUDGET and look.automaton.accepts(text[:-1])


def llm(padding: int = 3, seed: int = 0):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(
        vocab_size=TOKENIZER.vocab_size + padding, pad_token_id=0, bos_token_id=None,
        eos_token_id=EOS, initializer_range=0.7, **sizes, **heads,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def new_texts(out: torch.Tensor, prompt: int) -> list[list[int]]:
    texts = []
    for row in out[:, prompt:].tolist():
        assert EOS in row
        texts.append(row[: row.index(EOS)])
    return texts


MANNERS = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "temperature": 1.3},
    "beams": {"do_sample": False, "num_beams": 4},
    "several": {"do_sample": True, "num_return_sequences": 3},
    "sampled beams": {"do_sample": True, "num_beams": 3, "num_return_sequences": 3},
}


@pytest.mark.parametrize("manner", MANNERS)
def test_a_language_model_is_guided(manner):
    """A constraint for each row, prompts of different lengths, two generations in a row."""
    from hmmlm.hf.guiding import GuidedLogits

    wanted = [contains("rain", "park"), tokens(3, 4) & ~contains("the"), contains("sun") & words(5)]
    model, guide = llm(), Guide([look_for(one) for one in wanted])
    processor = GuidedLogits(guide, pad_id=0)
    how = {"max_new_tokens": BUDGET, "logits_processor": [processor], **MANNERS[manner]}
    copies = how.get("num_return_sequences", 1)
    for prompt in ("the sun", "a park was in the rain"):
        ids = [encode(prompt), encode(f"{prompt} and"), encode("the")]
        size = max(map(len, ids))
        padded = torch.tensor([[0] * (size - len(row)) + row for row in ids])
        mask = torch.tensor([[0] * (size - len(row)) + [1] * len(row) for row in ids])
        torch.manual_seed(1)
        out = model.generate(input_ids=padded, attention_mask=mask, **how)
        texts = new_texts(out, size)
        assert len(texts) == 3 * copies
        for row, text in enumerate(texts):
            look = guide.looks[row // copies]
            assert look.automaton.accepts(text), TOKENIZER.decode(text)


def test_probabilities_of_guided_tokens():
    from hmmlm.hf.guiding import GuidedLogits

    guide = Guide([look_for(contains("rain") & ~contains("park"))])
    processor = GuidedLogits(guide)
    ids, scores = torch.tensor([encode("the sun")]), torch.randn(1, TOKENIZER.vocab_size + 3)
    guided = processor(ids, scores)[0]
    factors = guide.log_factors([encode("the sun")], [[]], [0])[0]
    expected = scores[0, : TOKENIZER.vocab_size].softmax(0).double() * factors.exp()
    expected = expected / expected.sum()
    torch.testing.assert_close(guided.exp()[:-3].double(), expected, rtol=1e-4, atol=1e-7)
    assert torch.isneginf(guided[-3:]).all() and torch.isneginf(guided[TOKENIZER.id("park")])


def test_a_language_model_that_rules_out_what_is_legal_is_not_heard():
    from hmmlm.hf.guiding import GuidedLogits

    guide = Guide([look_for(contains("rain") & tokens(1, 1))])
    scores = torch.zeros(1, TOKENIZER.vocab_size)
    scores[0, TOKENIZER.id("rain")] = -torch.inf
    guided = GuidedLogits(guide)(torch.tensor([encode("the")]), scores)
    assert int(guided.argmax()) == TOKENIZER.id("rain") and not guided.isnan().any()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_scores_that_are_no_numbers_are_refused(bad):
    from hmmlm.hf.guiding import GuidedLogits

    guide = Guide([look_for(contains("rain"))])
    ids, scores = torch.tensor([encode("the")] * 2), torch.zeros(2, TOKENIZER.vocab_size + 1)
    scores[1, 3] = bad
    words = rf"gave a score that is not a number in row 1 \({bad} for token 3\); load it in float32"
    with pytest.raises(InputError, match=words):
        GuidedLogits(guide)(ids, scores)
    scores[1, 3] = 0.0
    plain = GuidedLogits(guide)(ids, scores)
    scores[1, -1], scores[0] = bad, -torch.inf  # an id that never comes; a row that is masked
    masked = GuidedLogits(guide)(ids, scores)
    torch.testing.assert_close(masked, plain)


def test_a_prompt_that_looks_like_going_on():
    from hmmlm.hf.guiding import GuidedLogits

    guide = Guide([look_for(contains("rain"))])
    processor, scores = GuidedLogits(guide), torch.zeros(1, TOKENIZER.vocab_size)
    ids = encode("the sun was")
    processor(torch.tensor([ids[:-1]]), scores)
    going = processor(torch.tensor([ids]), scores)
    processor.begin()
    anew = processor(torch.tensor([ids]), scores)
    assert not torch.allclose(going.exp(), anew.exp())
    fresh = GuidedLogits(guide)(torch.tensor([ids]), scores)
    torch.testing.assert_close(anew, fresh)


def test_random_constraints_are_met_by_a_language_model():
    check_guided(range(12))


def check_guided(seeds: range) -> None:
    from hmmlm.hf.guiding import GuidedLogits

    model, number = llm(), 0
    hmm = SMALL.to(dtype=torch.float32)
    for seed in seeds:
        automaton = random_constraint(seed).read(SPELLING) & anything().compile(SPELLING)
        if automaton.distance[0] + 1 > BUDGET:
            continue
        number += 1
        guide = Guide([Lookahead.build(hmm, automaton, eos_id=EOS, budget=BUDGET)])
        torch.manual_seed(seed)
        out = model.generate(
            input_ids=torch.tensor([encode("the sun")]), do_sample=True, num_return_sequences=2,
            max_new_tokens=BUDGET, logits_processor=[GuidedLogits(guide)],
        )  # fmt: skip
        for text in new_texts(out, 2):
            assert automaton.accepts(text), (seed, TOKENIZER.decode(text))
    assert number > len(seeds) // 2


def test_without_strength_all_that_is_legal_is_equal():
    look = look_for(contains("rain"), without("sun"))
    factors = Guide([look], strength=0.0).log_factors([[]], [encode("the") * 6], [0])[0]
    place = Place(look, look.automaton.run(encode("the") * 6), 3)
    legal = weigh_next(look.hmm.log_init[None], [place]).legal[0]
    assert torch.equal(factors == 0, legal) and bool(legal[TOKENIZER.id("sun")])
    assert torch.isneginf(factors[~legal]).all()


def test_weights_of_words_move_a_text():
    weights = torch.zeros(TOKENIZER.vocab_size, dtype=torch.float64)
    weights[TOKENIZER.id("bright")] = 3.0
    plain = Guide([look_for(anything())]).log_factors([[]], [[]], [0])[0]
    moved = Guide([look_for(anything(), log_weights=weights)]).log_factors([[]], [[]], [0])[0]
    assert len(WORDS) == TOKENIZER.vocab_size - 2
    bright = TOKENIZER.id("bright")
    assert float(moved[bright]) > float(plain[bright]) + 0.1


def test_tokens_that_the_hmm_does_not_know():
    """An id past its vocabulary, or a word that it never emits, is missing to it."""
    look = look_for(contains("rain"), without("sun"))
    known = encode("the")
    strange = [[*known, TOKENIZER.vocab_size + 5], [*known, TOKENIZER.id("sun")]]
    factors = Guide([look]).log_factors([*strange, []], [[], [], []], [0, 0, 0])
    state = inference.advance(inference.start(look.hmm, reset_id=EOS), torch.tensor([[*known, -1]]))
    truth = look.next_log_met(next_state_log_probs(state), torch.tensor([0]), BUDGET)
    words = inference.next_log_probs(state)
    expected = (truth - words - torch.logsumexp(truth, 1, keepdim=True))[0]
    finite = torch.isfinite(expected)
    for row in range(2):
        torch.testing.assert_close(factors[row][finite], expected[finite], rtol=0, atol=1e-9)
    alone = Guide([look]).log_factors([[]], [[]], [0])  # an empty prompt beside others
    torch.testing.assert_close(factors[2:], alone)


def test_a_token_at_a_time_is_what_reading_anew_is():
    look = look_for(contains("rain"), without("sun"))
    text, guide = encode("the sun was in"), Guide([look])
    assert look.hmm.support.is_dense
    for size in range(len(text) + 1):
        factors = guide.log_factors([[]], [text[:size]], [0])[0]
        read = [-1 if id == TOKENIZER.id("sun") else id for id in text[:size]]
        state = inference.start(look.hmm, reset_id=EOS)
        state = inference.advance(state, torch.tensor([read])) if read else state
        place = torch.tensor([look.automaton.run(text[:size])])
        truth = look.next_log_met(next_state_log_probs(state), place, BUDGET - size)
        expected = truth - inference.next_log_probs(state) - torch.logsumexp(truth, 1, keepdim=True)
        finite = torch.isfinite(expected[0])
        torch.testing.assert_close(factors[finite], expected[0][finite], rtol=0, atol=1e-9)


def test_after_its_end_a_text_has_no_more():
    guide = Guide([look_for(contains("rain"))])
    texts = [[*encode("rain"), EOS, 99, 0], encode("the")]
    factors = guide.log_factors([[], []], texts, [0, 0])
    assert torch.isfinite(factors[0]).nonzero()[:, 0].tolist() == [EOS]
    again = guide.log_factors([[], []], [[*texts[0], 0], encode("the rain")], [0, 0])
    torch.testing.assert_close(
        again[1:], Guide([guide.looks[0]]).log_factors([[]], [encode("the rain")], [0])
    )


def test_a_call_that_is_repeated_and_tokens_that_come_by_two():
    from hmmlm.hf.guiding import GuidedLogits

    guide = Guide([look_for(contains("rain") & tokens(1, 4))])
    scores, prompt = torch.zeros(1, TOKENIZER.vocab_size), encode("the sun")
    processor = GuidedLogits(guide)
    processor(torch.tensor([prompt]), scores)
    ids = torch.tensor([[*prompt, *encode("the rain")]])
    once, twice = processor(ids, scores), processor(ids, scores)
    truth = guide.log_factors([prompt], [encode("the rain")], [0]).log_softmax(1)
    for found in (once, twice):
        torch.testing.assert_close(found.double().exp(), truth.exp(), rtol=0, atol=1e-6)
    assert torch.isfinite(once[0, EOS])


def test_padding_is_not_read():
    from hmmlm.hf.guiding import GuidedLogits

    guide, scores = Guide([look_for(contains("rain"))]), torch.zeros(1, TOKENIZER.vocab_size)
    prompt = encode("the sun")
    padded = GuidedLogits(guide, pad_id=0)(torch.tensor([[0, 0, *prompt]]), scores)
    torch.testing.assert_close(padded, GuidedLogits(guide)(torch.tensor([prompt]), scores))
    read = GuidedLogits(guide)(torch.tensor([[0, 0, *prompt]]), scores)
    assert not torch.allclose(padded.exp(), read.exp())


def test_what_is_longer_than_the_budget_is_a_new_prompt():
    from hmmlm.hf.guiding import GuidedLogits

    guide, scores = Guide([look_for(contains("rain"))]), torch.zeros(1, TOKENIZER.vocab_size)
    processor, prompt = GuidedLogits(guide), encode("the sun")
    processor(torch.tensor([prompt]), scores)
    longer = torch.tensor([[*prompt, *encode("rain") * BUDGET]])
    torch.testing.assert_close(processor(longer, scores), GuidedLogits(guide)(longer, scores))


def test_ends_of_beams_are_legal_where_few_texts_are():
    from hmmlm.hf.guiding import GuidedLogits

    look = look_for(regex("the|a rain fell in"))
    out = llm().generate(
        input_ids=torch.tensor([encode("the sun")]), num_beams=4, num_return_sequences=2,
        max_new_tokens=BUDGET, logits_processor=[GuidedLogits(Guide([look]))], do_sample=False,
        pad_token_id=TOKENIZER.vocab_size,
    )  # fmt: skip
    for text in new_texts(out, 2):
        assert look.automaton.accepts(text)


def test_bad_input():
    look = look_for(contains("rain"))
    with pytest.raises(InputError, match="There is no constraint; give at least one"):
        Guide([])
    with pytest.raises(InputError, match="one HMM, one <eos> and one budget"):
        Guide([look, look_for(contains("sun"), budget=4)])
    with pytest.raises(InputError, match=r"strength is -1\.0 but must be a number from 0 up"):
        Guide([look], strength=-1.0)
    with pytest.raises(InputError, match="context is -1 but must be at least 0"):
        Guide([look], context=-1)
    guide = Guide([look])
    with pytest.raises(InputError, match="A row has constraint 7 but the guide has 1, from 0 on"):
        guide.log_factors([[]], [[]], [7])
    with pytest.raises(InputError, match="has 9 tokens without <eos> but the guide was made for 9"):
        guide.log_factors([[]], [encode("the") * 9], [0])
    with pytest.raises(InputError, match="text of row 0 cannot meet its constraint any more: a"):
        guide.log_factors([[]], [encode("the") * 8], [0])
    from hmmlm.hf.guiding import GuidedLogits

    with pytest.raises(InputError, match="has 5 tokens but the guide 14; use a guide that was"):
        GuidedLogits(guide)(torch.tensor([[1]]), torch.zeros(1, 5))
    two = GuidedLogits(Guide([look, look]))
    with pytest.raises(InputError, match="has 2 constraints but there are 3 rows"):
        two(torch.tensor([[2]] * 3), torch.zeros(3, 14))


def test_a_prompt_with_a_text_that_has_ended_begins_anew():
    from hmmlm.hf.guiding import GuidedLogits

    guide, scores = Guide([look_for(contains("rain"))]), torch.zeros(1, TOKENIZER.vocab_size)
    processor, prompt = GuidedLogits(guide), encode("the sun")
    processor(torch.tensor([prompt]), scores)
    talk = torch.tensor([[*prompt, *encode("rain"), EOS, *encode("and the")]])
    anew = processor(talk, scores)
    assert torch.isneginf(anew[0, EOS]) and torch.isfinite(anew[0, TOKENIZER.id("rain")])
    torch.testing.assert_close(anew, GuidedLogits(guide)(talk, scores))
