"""Inference on many states, as the whole process sees it."""

import pytest

from peaks import megabytes


@pytest.mark.parametrize("function", ["smooth", "viterbi", "counts", "filter"])
def test_missing_tokens_of_8192_states_are_streamed(function: str) -> None:
    """One table of 8,192 x 8,192 would take 256 MiB."""
    rise = megabytes(f"""
        hmm = blocked(8192, 64, 512)
        warm(hmm)
        tokens = torch.tensor([[3, -1, 5, 7, -1, -1, 2]])
        run = lambda: inference.{function}(hmm, tokens)
    """)
    assert rise < 160


def test_counts_over_many_missing_tokens() -> None:
    """Each of 200 wide steps makes tiles of 16 MiB; the messages of all take 13 MiB."""
    rise = megabytes("""
        hmm = blocked(2048, 4, 1024)
        warm(hmm)
        inference.counts(hmm, torch.full((8, 3), -1))
        tokens = torch.full((8, 200), -1)
        run = lambda: inference.counts(hmm, tokens)
    """)
    assert rise < 120


def test_a_belief_from_8191_of_8192_states_enters_in_tiles() -> None:
    """Between 8,192 carried states and 8,191 kept ones lie 256 MiB for each row."""
    rise = megabytes("""
        whole = blocked(8192, 64, 512)
        hmm = whole.restrict(torch.arange(1, 8192), carried=torch.arange(8192))
        warm(hmm)
        belief = inference.log_prob(whole, torch.full((2, 1), -1)).belief
        tokens = torch.tensor([[-1, 3], [5, -1]])
        run = lambda: inference.counts(hmm, tokens, belief=belief)
    """)
    assert rise < 160
