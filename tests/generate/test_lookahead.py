"""p(met) against the sum over all texts, and draws that meet what was asked."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from generate.random_constraints import make_model, random_constraint
from hmmlm import inference
from hmmlm.data.spelling import Spelling
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError
from hmmlm.generate import (
    Lookahead,
    anything,
    blocks,
    contains,
    ends_with,
    sample_met,
    tokens,
    words,
)
from hmmlm.generate.automata import Automaton
from hmmlm.generate.emissions import Words
from hmmlm.generate.lookahead import Place, weigh_next
from hmmlm.hmm import HMM
from hmmlm.inference.streaming import next_state_log_probs
from models import SUPPORTS, TRANSITIONS, make_hmm

EOS, WORDS, BUDGET = 1, (0, 2, 3, 4), 4


def draw_automaton(seed: int) -> Automaton:
    """One that accepts something within the budget, and nothing with `<eos>` in it."""
    random = np.random.default_rng(seed)
    is_eos = (np.arange(5) == EOS).astype(int)
    written = Automaton(is_eos, np.array([[0, 1], [1, 1]]), np.array([True, False]))
    while True:
        used, column = np.unique(random.integers(0, 3, 5), return_inverse=True)
        made = Automaton(column, random.integers(0, 4, (4, len(used))), random.random(4) < 0.3)
        made = made & written
        if made.distance[0] < BUDGET:
            return made


def read(hmm: HMM, text: list[int]) -> inference.State:
    state = inference.start(hmm, reset_id=EOS)
    return inference.advance(state, torch.tensor([text])) if text else state


def log_p(hmm: HMM, text: list[int]) -> float:
    return float(read(hmm, text).log_evidence)


class Texts:
    """log p of texts after a prefix, those of one length at once and once."""

    def __init__(self, hmm: HMM, prefix: list[int]) -> None:
        self.hmm, self.prefix = hmm, prefix
        self.log_p = {(): log_p(hmm, prefix)}

    def __call__(self, texts: list[tuple[int, ...]]) -> list[float]:
        """log p(text | prefix) of each text; all have one length."""
        new = [text for text in texts if text not in self.log_p]
        if new:
            state = inference.start(self.hmm, len(new), reset_id=EOS)
            state = inference.advance(state, torch.tensor([[*self.prefix, *text] for text in new]))
            self.log_p |= zip(new, state.log_evidence.tolist(), strict=True)
        return [self.log_p[text] - self.log_p[()] for text in texts]


def sum_over_texts(
    texts: Texts,
    automaton: Automaton,
    left: int,
    open_ended: bool,
    log_weights: torch.Tensor | None,
) -> np.ndarray:
    """p(next = w, met | prefix) for each w."""
    found = np.zeros(texts.hmm.vocab_size)
    for size in range(left + open_ended):
        met = [t for t in product(WORDS, repeat=size) if automaton.accepts([*texts.prefix, *t])]
        whole = [(*text, EOS) if size < left else text for text in met]
        for text, score in zip(whole, texts(whole), strict=True):
            if log_weights is not None:
                score += float(log_weights[list(text)].sum())
            found[text[0]] += math.exp(score)
    return found


def can_follow(automaton: Automaton, prefix: list[int], left: int, open_ended: bool) -> list[bool]:
    """Whether some text that is met has each word first, whatever an HMM thinks of it."""
    texts = [text for size in range(left + 1) for text in product(WORDS, repeat=size)]
    found = [False] * 5
    for text in texts:
        if automaton.accepts([*prefix, *text]) and (len(text) < left or open_ended):
            found[text[0] if text else EOS] = True
    return found


@pytest.mark.parametrize("transitions", TRANSITIONS)
@pytest.mark.parametrize("support", SUPPORTS)
@pytest.mark.parametrize(("open_ended", "weighted"), [(False, False), (True, False), (False, True)])
def test_against_all_texts(support, transitions, open_ended, weighted):
    for seed in range(3):
        hmm = make_hmm(support, transitions, seed=seed)
        automaton = draw_automaton(seed)
        weights = torch.randn(5, generator=torch.Generator().manual_seed(seed)).double()
        weights = weights if weighted else None
        look = Lookahead.build(
            hmm, automaton, eos_id=EOS, budget=BUDGET, open_ended=open_ended, log_weights=weights
        )
        for prefix in ([], [0], [4, 2]):
            state = read(hmm, prefix)
            if torch.isneginf(state.log_evidence).any():
                continue
            ahead, place = next_state_log_probs(state), torch.tensor([automaton.run(prefix)])
            texts = Texts(hmm, prefix)
            for left in range(1, BUDGET + 1):
                truth = sum_over_texts(texts, automaton, left, open_ended, weights)
                met = float(look.log_met(ahead, place, left).exp())
                following = look.next_log_met(ahead, place, left)[0].exp().numpy()
                assert met == pytest.approx(truth.sum(), rel=1e-10, abs=1e-300)
                assert following == pytest.approx(truth, rel=1e-10, abs=1e-300)
                assert weighted or met <= 1 + 1e-12
                legal = weigh_next(ahead, [Place(look, int(place), left)]).legal[0].tolist()
                assert legal == can_follow(automaton, prefix, left, open_ended)


def test_rows_of_several_constraints_at_once(monkeypatch):
    hmm = make_hmm("ragged")
    looks = [
        Lookahead.build(hmm, draw_automaton(seed), eos_id=EOS, budget=BUDGET, log_weights=weights)
        for seed, weights in ((3, None), (5, torch.randn(5).double()), (6, None))
    ]
    ahead = torch.randn(5, hmm.num_states, dtype=torch.float64).log_softmax(1)
    at = [(0, 0, 3), (1, 1, 4), (2, 0, 1), (0, 1, 2), (1, 0, 2)]
    places = [Place(looks[number], state, left) for number, state, left in at]
    for cells in (1 << 24, 1):  # words that are weighed one by one, at once and each alone
        monkeypatch.setattr("hmmlm.generate.emissions.REDONE", cells)
        found = weigh_next(ahead, places)
        for row, place in enumerate(places):
            alone = weigh_next(ahead[row : row + 1], [place])
            for one, other in zip(found, alone, strict=True):
                torch.testing.assert_close(one[row], other[0], rtol=1e-12, atol=0)


def test_rows_of_several_states_at_once():
    hmm, automaton = make_hmm("blocks"), draw_automaton(3)
    look = Lookahead.build(hmm, automaton, eos_id=EOS, budget=BUDGET)
    ahead = torch.randn(4, hmm.num_states, dtype=torch.float64).log_softmax(1)
    places = torch.tensor([0, 2, 0, 1])
    met, following = look.log_met(ahead, places, 3), look.next_log_met(ahead, places, 3)
    for row in range(4):
        one = slice(row, row + 1)
        assert torch.equal(met[one], look.log_met(ahead[one], places[one], 3))
        torch.testing.assert_close(
            following[one], look.next_log_met(ahead[one], places[one], 3), rtol=1e-12, atol=0
        )


@pytest.mark.parametrize("support", ["dense", "ragged"])
@pytest.mark.parametrize("share", [1, 10**9])
def test_kinds_of_words_together_or_one_by_one(share, support, monkeypatch):
    hmm, automaton = make_hmm(support), draw_automaton(5)
    look = Lookahead.build(hmm, automaton, eos_id=EOS, budget=BUDGET)
    ahead, place = hmm.log_init[None], torch.tensor([0])
    truth = look.next_log_met(ahead, place, 4)
    monkeypatch.setattr("hmmlm.generate.plans.SHARE", share)
    again = Lookahead.build(hmm, automaton, eos_id=EOS, budget=BUDGET)  # without plans
    torch.testing.assert_close(again.next_log_met(ahead, place, 4), truth, rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_words_of_rows(dtype):
    """log sum_z of some rows and words against numpy, where every term is under 1e-38 too."""
    hmm = make_hmm("dense").to(dtype=dtype)
    ahead = torch.randn(4, hmm.num_states, dtype=dtype)
    ahead[1] -= 500
    emit = hmm.log_emit.clone()
    emit[3] -= 300
    ahead[2], ahead[3, 1:] = -torch.inf, -torch.inf
    rows, chosen = torch.arange(4).repeat_interleave(5), torch.arange(5).repeat(4)
    found = Words(replace(hmm, log_emit=emit)).log_pairs(ahead, rows, chosen)
    terms = (ahead.double()[rows] + emit.double()[chosen]).numpy()
    truth = np.logaddexp.reduce(terms, axis=1)
    np.testing.assert_allclose(found.numpy(), truth, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("cells", [1, 1 << 20])
def test_sums_in_blocks(cells, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 3)
    monkeypatch.setattr(blocks, "pieces", lambda device: cells)
    random = np.random.default_rng(0)
    goals = random.integers(0, 4, (7, 5))
    total, probs, shares = (torch.from_numpy(random.random((n, 6))) for n in (7, 4, 5))
    factors = torch.from_numpy(random.random((7, 5)))
    truth = total + (factors[:, :, None] * probs[goals] * shares).sum(1)
    made = blocks.make_blocks(goals, torch.device("cpu"))
    torch.testing.assert_close(blocks.add_up(total, probs, shares, factors, made), truth)


def test_lengths_exclude_each_other():
    """Ctrl-G adds up p(met so far) for every length that is allowed: 5.0 for 1 to 5 tokens."""
    hmm = make_hmm("dense")
    states = hmm.log_init
    ctrl_g = 0.0
    for _ in range(5):  # all texts of any length are accepted, so each adds one
        ctrl_g += float(states.exp().sum())
        states = torch.logsumexp(states[:, None] + hmm.transitions.rows(0, hmm.num_states), 0)
    assert ctrl_g == pytest.approx(5.0)
    all_texts = anything().compile(Spelling(tuple(None if w == EOS else b" w" for w in range(5))))
    look = Lookahead.build(hmm, all_texts, eos_id=EOS, budget=5, open_ended=True)
    assert float(look.log_met(hmm.log_init[None], torch.tensor([0]), 5)) == pytest.approx(0.0)
    ends = Lookahead.build(hmm, all_texts, eos_id=EOS, budget=5)
    met = float(ends.log_met(hmm.log_init[None], torch.tensor([0]), 5).exp())
    truth = sum(
        math.exp(log_p(hmm, [*text, EOS]))
        for size in range(5)
        for text in product(WORDS, repeat=size)
    )
    assert met == pytest.approx(truth) and 0 < met < 1


def with_rare_word(share: float, dtype: torch.dtype) -> HMM:
    """Word 2 has this probability in every state, and the states are hard to leave."""
    generator = torch.Generator().manual_seed(0)
    emit = torch.rand(6, 5, generator=generator, dtype=torch.float64) + 0.1
    emit[:, 2] = 0
    emit = (1 - share) * emit / emit.sum(1, keepdim=True)
    emit[:, 2] = share
    trans = torch.full((6, 6), 1e-9, dtype=torch.float64)
    trans += torch.eye(6, dtype=torch.float64).roll(1, 0)
    start = torch.rand(6, generator=generator, dtype=torch.float64)
    tables = (start / start.sum(), trans / trans.sum(1, keepdim=True), emit)
    return HMM.from_tables(*(table.log() for table in tables)).to(dtype=dtype)


@pytest.mark.parametrize("many", [1, 16])  # words that are weighed one by one, or together
@pytest.mark.parametrize("share", [1e-3, 1e-10, 1e-25])
def test_small_probabilities_keep_their_digits(share, many, monkeypatch):
    """p(met) of three rare words down to 1e-75, in float32: the sum over next tokens to 1e-5."""
    monkeypatch.setattr("hmmlm.generate.plans.SHARE", many)
    spelling = Spelling((b" a", None, b" rare", b" b", b" c"))
    wanted = contains("rare").then(contains("rare").then(contains("rare"))).compile(spelling)
    exact, rough = with_rare_word(share, torch.float64), with_rare_word(share, torch.float32)
    looks = [Lookahead.build(h, wanted, eos_id=EOS, budget=8) for h in (exact, rough)]
    for prefix in ([], [0, 3], [2, 0], [2, 2]):
        found = []
        for look in looks:
            ahead = next_state_log_probs(read(look.hmm, prefix))
            place, left = torch.tensor([wanted.run(prefix)]), 8 - len(prefix)
            met = float(look.log_met(ahead, place, left))
            following = float(torch.logsumexp(look.next_log_met(ahead, place, left), 1))
            assert following == pytest.approx(met, abs=1e-5)
            found.append(met)
        assert found[1] == pytest.approx(found[0], abs=1e-5)
        assert found[0] == pytest.approx((3 - prefix.count(2)) * math.log(share), abs=8)


@pytest.mark.parametrize("many", [1, 16])
def test_a_gap_that_float32_cannot_hold(many, monkeypatch):
    """One way through has 1e-87 of the other: it is not lost where it is the only one."""
    monkeypatch.setattr("hmmlm.generate.plans.SHARE", many)
    log_trans = torch.tensor([[0.0, -200.0], [-torch.inf, 0.0]], dtype=torch.float64)
    log_trans = log_trans.log_softmax(1)
    log_emit = torch.full((2, 5), -torch.inf, dtype=torch.float64)
    log_emit[0, [0, 1]] = math.log(0.5)
    log_emit[1, [1, 2]] = math.log(0.5)
    log_init = torch.tensor([0.0, -torch.inf], dtype=torch.float64)
    spelling = Spelling((b" a", None, b" b", b" c", b" d"))
    wanted = contains("b").compile(spelling)
    found = []
    for dtype in (torch.float64, torch.float32):
        hmm = HMM.from_tables(log_init, log_trans, log_emit).to(dtype=dtype)
        look = Lookahead.build(hmm, wanted, eos_id=EOS, budget=4)
        ahead = hmm.log_init[None]
        found.append(float(look.log_met(ahead, torch.tensor([0]), 4)))
        following = look.next_log_met(ahead, torch.tensor([0]), 4)
        assert float(torch.logsumexp(following, 1)) == pytest.approx(found[-1], abs=1e-4)
    texts = Texts(HMM.from_tables(log_init, log_trans, log_emit), [])
    truth = sum_over_texts(texts, wanted, 4, False, None).sum()
    assert found == pytest.approx([math.log(truth)] * 2, abs=1e-4)


def test_draws_are_as_frequent_as_they_should_be():
    hmm, automaton = make_hmm("blocks"), draw_automaton(11)
    look = Lookahead.build(hmm, automaton, eos_id=EOS, budget=BUDGET)
    generator = torch.Generator().manual_seed(0)
    drawn = sample_met(look, read(hmm, []), num_samples=4000, generator=generator)
    truth = {}
    for size in range(BUDGET):
        for text in product(WORDS, repeat=size):
            if automaton.accepts(text):
                truth[(*text, EOS)] = math.exp(log_p(hmm, [*text, EOS]))
    total = sum(truth.values())
    assert math.exp(drawn.log_met) == pytest.approx(total)
    rows = zip(drawn.tokens.tolist(), drawn.lengths.tolist(), strict=True)
    texts = [tuple(row[:length]) for row, length in rows]
    assert set(texts) <= set(truth)
    for text, prob in truth.items():
        share = prob / total
        error = 5 * math.sqrt(share * (1 - share) / 4000)
        assert abs(texts.count(text) / 4000 - share) <= error + 1e-9
    told = [math.log(truth[text] / total) for text in texts]
    assert drawn.log_probs.tolist() == pytest.approx(told, abs=1e-9)


def test_random_constraints_are_met():
    check_random_constraints(range(60))


def check_random_constraints(seeds: range) -> None:
    tokenizer, hmm = make_model()
    spelling = Spelling.of(tokenizer)
    met = 0
    for seed in seeds:
        wanted = random_constraint(seed)
        automaton, budget = (wanted.read(spelling) & anything().compile(spelling)), 9
        if automaton.distance[0] + 1 > budget:
            continue
        met += 1
        look = Lookahead.build(hmm, automaton, eos_id=tokenizer.eos_id, budget=budget)
        state = inference.start(hmm, reset_id=tokenizer.eos_id)
        drawn = sample_met(
            look, state, num_samples=3, generator=torch.Generator().manual_seed(seed)
        )
        for row, length in zip(drawn.tokens.tolist(), drawn.lengths.tolist(), strict=True):
            text = row[:length]
            assert text[-1] == tokenizer.eos_id and automaton.accepts(text[:-1]), str(wanted)
            if wanted.letters is not None:
                assert wanted.accepts(tokenizer.decode(text)), (str(wanted), text)
            place = 0
            for step, token in enumerate(text):
                ahead, where = (
                    next_state_log_probs(state_of(hmm, text[:step])),
                    torch.tensor([place]),
                )
                now = float(look.log_met(ahead, where, budget - step))
                following = look.next_log_met(ahead, where, budget - step)
                assert float(torch.logsumexp(following, 1)) == pytest.approx(now, abs=1e-5)
                assert now <= 1e-9
                place = automaton.run([token], place)
            break  # the first of them step by step
    assert met > len(seeds) // 2


def state_of(hmm: HMM, text: list[int]) -> inference.State:
    return read(hmm, text)


def test_bad_input():
    hmm = make_hmm("dense")
    spelling = Spelling((b" a", None, b" b", b" c", b" d"))

    def build(wanted, hmm=hmm, **changes):
        how = {"eos_id": EOS, "budget": 4} | changes
        return Lookahead.build(hmm, wanted.compile(spelling), **how)

    for wanted, changes, message in (
        (words(4), {}, "has 4 tokens and <eos> but there is room for 4; allow more"),
        (tokens(5), {"open_ended": True}, "has 5 tokens but there is room for 4; allow more"),
        (anything(), {"budget": 0}, "budget is 0 but must be at least 1"),
        (anything(), {"eos_id": 5}, "eos_id is 5 but this vocabulary has ids 0 to 4"),
        (anything(), {"most_bytes": 10}, "through 2 x 3 states takes 0.0 GiB, over the limit"),
        (anything(), {"log_weights": torch.zeros(4)}, r"log_weights is \(4,\) but must be \(5,\)"),
    ):
        with pytest.raises(InputError, match=message):
            build(wanted, **changes)
    nothing = Automaton(np.zeros(5, int), np.zeros((1, 1), int), np.array([False]))
    with pytest.raises(InputError, match=r"No text meets the constraint, however long\."):
        Lookahead.build(hmm, nothing, eos_id=EOS, budget=4)
    other = anything().compile(Spelling((b"a", None)))
    with pytest.raises(InputError, match="reads 2 tokens but the HMM emits 5; compile it for"):
        Lookahead.build(hmm, other, eos_id=EOS, budget=4)
    with pytest.raises(InputError, match="some states of a larger one"):
        build(anything(), hmm=hmm.restrict(torch.tensor([0, 2])))
    look = build(ends_with("a"))
    with pytest.raises(InputError, match="There are 5 tokens left but this looks at most 4 ahead"):
        look.log_met(hmm.log_init[None], torch.tensor([0]), 5)
    with pytest.raises(InputError, match="num_samples is 0"):
        sample_met(look, read(hmm, []), num_samples=0)
    with pytest.raises(InputError, match="The state has 2 rows; give one with one"):
        sample_met(look, inference.start(hmm, 2))
    never = make_hmm("dense")
    emit = never.log_emit.clone()
    emit[0] = -torch.inf
    never = HMM(never.log_init, never.transitions, emit.log_softmax(0), never.support)
    with pytest.raises(InputError, match="gives every text that meets the constraint probability"):
        sample_met(build(contains("a"), hmm=never), read(never, []))


def test_words_of_a_text_are_those_of_its_tokenizer():
    tokenizer = Tokenizer.words(["the rain fell", "the sun shone"])
    spelling = Spelling.of(tokenizer)
    wanted = (contains("rain") & ~contains("sun")).compile(spelling)
    assert wanted.accepts(tokenizer.encode("the rain fell"))
    assert not wanted.accepts(tokenizer.encode("the rain and the sun"))
