"""A model with topics reads texts as the sum over all topics of all lines says."""

from dataclasses import replace

import pytest
import torch

from enumeration import enumerate_row
from hmmlm.errors import InputError
from hmmlm.evaluate import evaluate
from hmmlm.topics import TopicLM, line_topics
from hmmlm.topics import lm as reading
from hmmlm.topics.lm import cut_rows, mix_topics
from models import SUPPORTS, TRANSITIONS, with_holes
from topical import EOS, explicit_part, make_topics, text_prob, token_log_probs

TEXTS = ([0, 2, 1, 4, 1, 1, 3, 0], [3, 0, 4, 1, 2], [1], [2, 2, 2, 2, 1, 0])


def padded(texts: list[list[int]] | tuple[list[int], ...]) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = [len(text) for text in texts]
    rows = [text + [0] * (max(lengths) - len(text)) for text in texts]
    return torch.tensor(rows), torch.tensor(lengths)


@pytest.mark.parametrize("transitions", TRANSITIONS)
@pytest.mark.parametrize("support", SUPPORTS)
@pytest.mark.parametrize("cold", [False, True])
def test_scores_are_those_of_all_topics(support: str, transitions: str, cold: bool) -> None:
    topics = make_topics(support, transitions)
    tokens, lengths = padded(TEXTS)
    lm = TopicLM(topics, EOS)
    scores = lm.score_tokens(tokens, lengths=lengths, reset_id=EOS if cold else None)
    for text, row in zip(TEXTS, scores.token_log_probs, strict=True):
        torch.testing.assert_close(row[: len(text)], token_log_probs(topics, text, cold=cold))
        assert not row[len(text) :].any()


@pytest.mark.parametrize("stretch", [1, 3, 64])
@pytest.mark.parametrize("cold", [False, True])
def test_a_text_in_pieces_scores_as_one(cold: bool, stretch: int, monkeypatch) -> None:
    monkeypatch.setattr(reading, "STRETCH", stretch)
    lm = TopicLM(make_topics(), EOS)
    text = torch.tensor([TEXTS[0], [4, 4, 1, 0, 0, 1, 1, 2]])
    reset = EOS if cold else None
    whole = lm.score_tokens(text, reset_id=reset)
    for cut in range(1, text.shape[1]):
        first = lm.score_tokens(text[:, :cut], reset_id=reset)
        rest = lm.score_tokens(text[:, cut:], reset_id=reset, carry=first.carry, ends=True)
        scores = torch.cat([first.token_log_probs, rest.token_log_probs], 1)
        torch.testing.assert_close(scores, whole.token_log_probs)
        assert rest.carry is None
    torch.testing.assert_close(
        lm.score_tokens(text[:, 3:], carry=lm.score_tokens(text[:, :3]).carry).carry.log_topics,
        lm.score_tokens(text).carry.log_topics,
    )


def test_rows_are_cut_where_sentences_begin(monkeypatch) -> None:
    monkeypatch.setattr(reading, "STRETCH", 2)
    tokens = torch.tensor([[0, EOS, 2, 0, EOS, 3, EOS], [4, 2, EOS, EOS, 0, EOS, EOS]])
    sizes = torch.tensor([7, 4])
    inside = torch.arange(7) < sizes[:, None]
    pieces = cut_rows((tokens == EOS) & inside, sizes)
    found = [row[:size].tolist() for row, size in zip(pieces.of(tokens), pieces.sizes, strict=True)]
    assert found == [[0, EOS, 2, 0, EOS], [3, EOS], [4, 2, EOS], [EOS]]
    assert pieces.rows.tolist() == [0, 0, 1, 1] and pieces.lasts.tolist() == [1, 3]
    assert pieces.is_first.tolist() == [True, False, True, False]
    whole = pieces.join(pieces.of(tokens)[:, :, None])[:, :, 0]
    assert torch.equal(whole, tokens.masked_fill(~inside, 0))


@pytest.mark.parametrize("stretch", [1, 3])
@pytest.mark.parametrize("support", SUPPORTS)
def test_pieces_side_by_side_are_read_as_the_row_is(
    support: str, stretch: int, monkeypatch
) -> None:
    lm = TopicLM(make_topics(support), EOS)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 5, (3, 40), generator=generator)
    lengths = torch.tensor([40, 1, 33])
    start = lm.score_tokens(torch.tensor([[2, 0], [0, EOS], [EOS, 4]])).carry
    found = []
    for each in (10**9, stretch):
        monkeypatch.setattr(reading, "STRETCH", each)
        found.append(lm.score_tokens(tokens, lengths=lengths, carry=start))
    (whole, carry), (cut_up, last) = found
    assert cut_up.shape == tokens.shape and not cut_up[1, 1:].any()
    torch.testing.assert_close(cut_up, whole)
    torch.testing.assert_close(last.log_topics, carry.log_topics)
    go_on = torch.tensor([[3, 0], [2, 4], [0, 0]])
    torch.testing.assert_close(
        lm.score_tokens(go_on, carry=last).token_log_probs,
        lm.score_tokens(go_on, carry=carry).token_log_probs,
    )


def test_what_stands_past_the_end_of_a_row_does_not_matter() -> None:
    lm = TopicLM(make_topics(), EOS)
    found = lm.score_tokens(
        torch.tensor([[0, 2, 4, 0], [0, 2, EOS, EOS], [0, 2, 1, 2]]),
        lengths=torch.tensor([2, 2, 4]),
    )
    alone = lm.score_tokens(torch.tensor([[0, 2]]))
    for row in (0, 1):
        torch.testing.assert_close(found.token_log_probs[row, :2], alone.token_log_probs[0])
        torch.testing.assert_close(found.carry.log_topics[row], alone.carry.log_topics[0])


def test_perplexities_in_all_modes() -> None:
    topics = make_topics()
    lm, text = TopicLM(topics, EOS), [0, 2, 1, 4, 1, 3, 0, 1, 2, 2, 1]
    wanted = {
        "streaming": token_log_probs(topics, text, cold=False).sum(),
        "sentence": token_log_probs(topics, text, cold=True).sum(),
        "window 4": sum(
            token_log_probs(topics, text[a : a + 4], cold=False).sum() for a in range(0, 11, 4)
        ),
    }
    for mode, total in wanted.items():
        for batch in (4, 1 << 14):
            found = evaluate(lm, torch.tensor(text), mode=mode, eos_id=EOS, batch_tokens=batch)
            assert abs(found.nats + float(total)) < 1e-9
            assert found.max_row_error < 1e-12


@pytest.mark.parametrize("wrong", ["log_norms", "log_start", "log_moves"])
def test_rows_that_do_not_sum_to_one_are_seen(wrong: str) -> None:
    topics = make_topics()
    off = replace(topics, **{wrong: getattr(topics, wrong) + 0.1})
    assert TopicLM(topics, EOS).row_error(5, 0) < 1e-12
    assert 0.09 < TopicLM(off, EOS).row_error(5, 0) < 0.11
    nan = replace(topics, **{wrong: getattr(topics, wrong) * torch.nan})
    assert TopicLM(nan, EOS).row_error(5, 0) != TopicLM(nan, EOS).row_error(5, 0)
    more = replace(topics, hmm=replace(topics.hmm, log_emit=topics.hmm.log_emit + 0.1))
    assert TopicLM(more, EOS).row_error(5, 0) > 0.09


def test_texts_that_are_impossible() -> None:
    """In all topics: -inf until a line begins anew, or for good; in one topic, which is out."""
    topics = make_topics("dense", "dense")
    hmm = with_holes(topics.hmm)
    emit = hmm.log_emit.clone()
    emit[2] = -torch.inf
    emit = emit - torch.logsumexp(emit, 0)
    base = replace(hmm, log_emit=emit)
    lm = TopicLM(make_topics(base=base), EOS)
    text = torch.tensor([[0, 2, 3, 1, 0]])
    cold = lm.score_tokens(text, reset_id=EOS).token_log_probs[0]
    on = lm.score_tokens(text)
    assert cold.isneginf().tolist() == [False, True, True, True, False]
    assert on.token_log_probs[0].isneginf().tolist() == [False, True, True, True, True]
    assert on.carry.log_topics.isneginf().all()
    known = torch.tensor([[[-1.0, -torch.inf], [-1.0, -1.0], [-2.0, -1.0]]], dtype=torch.float64)
    halves = torch.full((1, 2), 0.5, dtype=torch.float64).log()
    ends = torch.tensor([[False, True, False]])
    swap = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64).log()
    scores, last = mix_topics(known, ends, halves, swap)
    log_half = float(halves[0, 0])
    torch.testing.assert_close(scores[0], torch.tensor([log_half - 1, -1, -1]).double())
    assert last.exp().tolist() == [[0.0, 1.0]]


def test_a_long_text_loses_no_digits() -> None:
    topics = make_topics()
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(0, 5, (1, 3000), generator=generator)
    lm = TopicLM(topics, EOS)
    whole = lm.score_tokens(text).token_log_probs
    carry, parts = None, []
    for piece in text.split(50, 1):
        scores = lm.score_tokens(piece, carry=carry)
        parts.append(scores.token_log_probs)
        carry = scores.carry
    torch.testing.assert_close(whole, torch.cat(parts, 1), rtol=0, atol=1e-10)


def test_topics_of_a_line() -> None:
    topics = make_topics("ragged")
    moves = topics.log_moves.exp()
    lines = torch.tensor([[0, 2, 4], [3, 1, 1]])
    found = line_topics(topics, lines[:1]).exp()[0]
    each = [enumerate_row(explicit_part(topics, g), [0, 2, 4]).log_evidence for g in range(3)]
    wanted = (topics.log_start + torch.tensor(each, dtype=torch.float64)).exp()
    whole = torch.tensor(text_prob(topics, [0, 2, 4], moves=moves), dtype=torch.float64)
    torch.testing.assert_close(wanted.sum(), whole)
    torch.testing.assert_close(found, wanted / wanted.sum())
    nothing = line_topics(topics, lines[:1, :0])
    torch.testing.assert_close(nothing[0], topics.log_start)


def test_sentences_end_with_the_models_own_token() -> None:
    with pytest.raises(InputError, match="reset_id is 2 but sentences of this model end with 1"):
        TopicLM(make_topics(), EOS).score_tokens(torch.tensor([[0]]), reset_id=2)
