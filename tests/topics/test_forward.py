"""Reading in all topics at once says what reading by the HMM of each topic says."""

import pytest
import torch

from hmmlm.errors import InputError
from hmmlm.hmm import HMM
from hmmlm.inference import log_prob
from hmmlm.topics import TopicHMM, TopicLM, forward
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


@pytest.mark.parametrize(
    ("support", "transitions", "scale"),
    [
        ("dense", "dense", 150.0),
        ("dense", "factored", 90.0),
        ("blocks", "dense", 200.0),
        ("blocks", "factored", 90.0),
        ("ragged", "factored", 90.0),
    ],
)
def test_rows_that_lose_digits_are_read_again(
    support: str, transitions: str, scale: float, monkeypatch
) -> None:
    """Transitions that are hundreds of nats apart: only such rows, and then exactly."""
    lm = TopicLM(make_topics(base=make_hmm(support, transitions, scale=scale)), EOS)
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
    torch.testing.assert_close(
        known.where(inside, 0), wanted.where(inside, 0), rtol=1e-9, atol=1e-12
    )
    going = ~last.fresh
    probs = (belief.log_probs.exp()[going], last.log_probs.exp()[going])
    torch.testing.assert_close(*probs)


def untilted(hmm: HMM) -> TopicLM:
    """One topic that is the HMM itself."""
    words, states = torch.zeros(1, hmm.vocab_size), torch.zeros(1, hmm.num_states)
    return TopicLM(TopicHMM.make(hmm, words, states, torch.zeros(1), torch.zeros(1, 1)), 2)


def logs(table: list) -> torch.Tensor:
    return torch.tensor(table, dtype=torch.float64).log()


def test_a_state_that_falls_behind_step_by_step_is_not_lost() -> None:
    """It explains the second half, and no single step tells."""
    faint = 1e-10
    rows = [[1 - 1.1 * faint, faint, 0.1 * faint], [faint, 1 - 1.1 * faint, 0.1 * faint]]
    hmm = HMM.from_tables(logs([0.5, 0.5]), logs([[1, 0], [0, 1]]), logs(rows))
    text = torch.tensor([[0] * 40 + [1] * 60])
    found = untilted(hmm).score_tokens(text).token_log_probs
    torch.testing.assert_close(found, log_prob(hmm, text).token_log_probs)
    assert found.sum() > -950


def test_what_is_carried_on_has_lost_no_digits() -> None:
    words = torch.tensor([[0, -1, -900, -1000], [-400, -1, 0, -1]], dtype=torch.float64)
    start = torch.tensor([0, -460.5], dtype=torch.float64).log_softmax(0)
    hmm = HMM.from_tables(start, logs([[1, 0], [0, 1]]), words.log_softmax(1))
    lm, text = untilted(hmm), torch.tensor([[0, 2]])
    first = lm.score_tokens(text[:, :1])
    rest = lm.score_tokens(text[:, 1:], carry=first.carry)
    whole = log_prob(hmm, text).token_log_probs
    torch.testing.assert_close(first.token_log_probs, whole[:, :1])
    torch.testing.assert_close(rest.token_log_probs, whole[:, 1:])


def test_words_that_only_a_tilt_makes_probable() -> None:
    """Under what float32 holds as a probability."""
    words = torch.tensor([[0, -120.0, -1]], dtype=torch.float64).log_softmax(1)
    hmm = HMM.from_tables(logs([1.0]), logs([[1.0]]), words).to(dtype=torch.float32)
    for tilt in (99.0, 125.0):  # the second is too steep for weights
        tilts = (torch.tensor([[0, tilt, 0]]), torch.zeros(1, 1))
        topics = TopicHMM.make(hmm, *tilts, torch.zeros(1), torch.zeros(1, 1))
        lm = TopicLM(topics, 2)
        wanted = log_prob(topics.part(0), torch.tensor([[1, 0, 2]])).token_log_probs
        torch.testing.assert_close(lm.score_tokens(torch.tensor([[1, 0, 2]]))[0], wanted)
        assert lm.row_error(5, 0) < 1e-6


@pytest.mark.parametrize("tilt", [-800.0, 800.0])
def test_tilts_that_all_words_and_states_share_change_nothing(tilt: float) -> None:
    topics = make_topics()
    hmm, (words, states, *_) = topics.hmm, topics.topics()
    start, moves = topics.log_start, topics.log_moves
    far = TopicLM(TopicHMM.make(hmm, words + tilt, states + tilt, start, moves), EOS)
    scores = far.score_tokens(some_text()).token_log_probs
    torch.testing.assert_close(scores, TopicLM(topics, EOS).score_tokens(some_text())[0])
    assert far.row_error(5, 0) < 1e-9


def test_what_cannot_be_read_is_refused() -> None:
    lm, text = TopicLM(make_topics(), EOS), some_text()
    carry = lm.score_tokens(text).carry
    with pytest.raises(InputError, match="The carry is of 4 rows but tokens has 1 row"):
        lm.score_tokens(text[:1], carry=carry)
    with pytest.raises(InputError, match="lengths has 10 but every length must lie between 1"):
        lm.score_tokens(text[:1], lengths=torch.tensor([10]))
    with pytest.raises(InputError, match="tokens has id 9 but this vocabulary ends at 4"):
        lm.score_tokens(torch.tensor([[9]]))
    padded = lm.score_tokens(
        torch.tensor([[0, 2], [0, -100], [0, 9]]), lengths=torch.tensor([2, 1, 1])
    )
    wanted = lm.score_tokens(torch.tensor([[0, 2]]))[0]
    torch.testing.assert_close(padded[0][:1], wanted)
    torch.testing.assert_close(padded[0][1:, 0], wanted[:, 0].expand(2))


def test_missing_tokens_are_refused() -> None:
    with pytest.raises(InputError, match=r"tokens has a missing one \(-1\)"):
        TopicLM(make_topics(), EOS).score_tokens(torch.tensor([[0, -1, 2]]))
