"""Reading in all topics at once says what reading by the HMM of each topic says."""

import pytest
import torch

from hmmlm.errors import InputError
from hmmlm.topics import TopicLM, forward
from hmmlm.topics.forward import TopicBelief
from models import SUPPORTS, TRANSITIONS, make_hmm
from topical import EOS, make_topics

LENGTHS = torch.tensor([9, 1, 6, 9])


def some_text(seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 5, (4, 9), generator=torch.Generator().manual_seed(seed))


def assert_same(found: TopicBelief, wanted: TopicBelief) -> None:
    assert torch.equal(found.fresh, wanted.fresh)
    going = ~found.fresh
    assert torch.equal(found.states[going], wanted.states[going])
    here = (found.states >= 0)[:, :, None] & going[:, None, None]
    torch.testing.assert_close(
        found.log_probs.masked_fill(~here, 0), wanted.log_probs.masked_fill(~here, 0)
    )


@pytest.mark.parametrize("cells", [1, 1 << 22])
@pytest.mark.parametrize("is_begun", [False, True])
@pytest.mark.parametrize("transitions", TRANSITIONS)
@pytest.mark.parametrize("support", SUPPORTS)
def test_all_topics_at_once(
    support: str, transitions: str, is_begun: bool, cells: int, monkeypatch
) -> None:
    monkeypatch.setitem(forward.CELLS, "cpu", cells)
    lm, text = TopicLM(make_topics(support, transitions), EOS), some_text()
    begin = None
    if is_begun:  # one row begins afresh, one after a state that its word does not tell
        _, begin = lm._read_apart(torch.tensor([[0], [EOS], [2], [4]]), LENGTHS.clamp(max=1), None)
    found = forward.forward(lm.topics, lm.weights, text, LENGTHS, EOS, begin)
    known, belief = lm._read_apart(text, LENGTHS, begin)
    assert not found.is_low.any()
    inside = (torch.arange(9) < LENGTHS[:, None])[:, :, None]
    torch.testing.assert_close(found.log_probs * inside, known * inside)
    assert_same(found.belief, belief)


def test_in_float32() -> None:
    topics = make_topics(base=make_hmm("uneven", "factored", dtype=torch.float32))
    lm, exact = TopicLM(topics, EOS), TopicLM(make_topics("uneven", "factored"), EOS)
    scores = lm.score_tokens(some_text()).token_log_probs
    assert scores.dtype == torch.float32
    wanted = exact.score_tokens(some_text()).token_log_probs.float()
    torch.testing.assert_close(scores, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("transitions", TRANSITIONS)
@pytest.mark.parametrize("support", ["dense", "blocks", "ragged"])
def test_rows_that_lose_digits_are_read_again(support: str, transitions: str, monkeypatch) -> None:
    """Transitions that are a thousand nats apart: only such rows, and then exactly."""
    lm = TopicLM(make_topics(base=make_hmm(support, transitions, scale=400.0)), EOS)
    text = some_text(3)
    found = forward.forward(lm.topics, lm.weights, text, LENGTHS, EOS)
    low = found.is_low.nonzero()[:, 0]
    assert 0 < len(low) < 4
    read, apart = [], lm._read_apart

    def count(tokens: torch.Tensor, *rest):
        read.append(tokens)
        return apart(tokens, *rest)

    monkeypatch.setattr(lm, "_read_apart", count)
    known, belief = lm._read(text, LENGTHS, None)
    assert len(read) == 1 and torch.equal(read[0], text[low])
    wanted, last = apart(text, LENGTHS, None)
    inside = (torch.arange(9) < LENGTHS[:, None])[:, :, None]
    torch.testing.assert_close(known.where(inside, 0), wanted.where(inside, 0), rtol=1e-9, atol=0)
    going = ~last.fresh
    probs = (belief.log_probs.exp()[going], last.log_probs.exp()[going])
    torch.testing.assert_close(*probs)


def test_missing_tokens_are_refused() -> None:
    with pytest.raises(InputError, match=r"tokens has a missing one \(-1\)"):
        TopicLM(make_topics(), EOS).score_tokens(torch.tensor([[0, -1, 2]]))
