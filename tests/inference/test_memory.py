"""Memory that does not grow with what it must not grow with."""

import pytest
import torch

from hmmlm import inference
from hmmlm.hmm import HMM
from hmmlm.support import Support
from memory import Held
from models import make_hmm
from peaks import megabytes


def many_states(states: int, block: int) -> HMM:
    """Blocks that two words share, and factored transitions."""
    support = Support.from_clusters(torch.arange(states // block * 2) % (states // block), block)
    return make_hmm(support, "factored", dtype=torch.float32, scale=0.3)


def held_megabytes(function: str, *arguments: object, **options: object) -> float:
    with Held() as held:
        getattr(inference, function)(*arguments, **options)
    return held.peak / (1 << 20)


@pytest.mark.parametrize("function", ["smooth", "viterbi", "counts", "filter"])
def test_missing_tokens_of_4096_states_are_streamed(function: str) -> None:
    """One table of 4,096 x 4,096 would take 64 MiB."""
    tokens = torch.tensor([[3, -1, 5, 7, -1, -1, 2]])
    assert held_megabytes(function, many_states(4096, 64), tokens) < 32


def test_a_belief_from_dropped_states_enters_in_tiles() -> None:
    """Between 4,096 carried states and 4,095 kept ones lie 64 MiB for each row."""
    whole = many_states(4096, 64)
    hmm = whole.restrict(torch.arange(1, 4096), carried=torch.arange(4096))
    belief = inference.log_prob(whole, torch.full((2, 1), -1)).belief
    tokens = torch.tensor([[-1, 3], [5, -1]])
    assert held_megabytes("counts", hmm, tokens, belief=belief) < 32


def test_beliefs_of_many_streams_do_not_stream_the_table(monkeypatch) -> None:
    """Between two words lie 128 x 128 cells for each of 100 rows, in the table 16 million."""
    hmm, tokens = many_states(4096, 128), torch.randint(0, 64, (100, 4))
    whole = inference.log_prob(hmm, tokens)
    belief = inference.log_prob(hmm, tokens[:, :2]).belief
    monkeypatch.setattr("hmmlm.transitions.Factored.rows", None)  # what would be streamed
    after = inference.log_prob(hmm, tokens[:, 2:], belief=belief)
    torch.testing.assert_close(after.token_log_probs, whole.token_log_probs[:, 2:])


def test_tiles_of_many_missing_tokens_are_not_kept() -> None:
    """Each of 20 wide steps makes tiles of 16 MiB."""
    assert held_megabytes("counts", many_states(2048, 4), torch.full((8, 20), -1)) < 40


def test_scoring_and_filtering_keep_no_history() -> None:
    """200,000 steps of 64 states: all messages would take 49 MiB, all states' emissions as much."""
    rise = megabytes("""
        hmm = dense(64, 50)
        warm(hmm)
        tokens = torch.randint(0, 50, (1, 200_000))
        run = lambda: inference.log_prob(hmm, tokens)
    """)
    assert rise < 35


def test_counts_keep_checkpoints_only() -> None:
    """65,536 steps of 512 states: one array over all of them takes 128 MiB, and there are five."""
    rise = megabytes("""
        hmm = dense(512, 50)
        warm(hmm)
        inference.counts(hmm, torch.zeros(1, 10_000, dtype=torch.long))  # compiles for long texts
        smoothing.KEPT = 1 << 20
        tokens = torch.randint(0, 50, (1, 65_536))
        run = lambda: inference.counts(hmm, tokens)
    """)
    assert rise < 120


def test_smoothing_is_linear_in_time() -> None:
    """Smoothing may keep a few arrays over all steps, but nothing with K x K in it."""
    rise = megabytes("""
        hmm = dense(512, 50)
        warm(hmm)
        tokens = torch.randint(0, 50, (1, 8192))
        run = lambda: inference.smooth(hmm, tokens)
    """)
    assert rise < 16 * 8
