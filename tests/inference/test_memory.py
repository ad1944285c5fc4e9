"""Memory that does not grow with what it must not grow with, measured in a process of its own."""

import subprocess
import sys
import textwrap

import pytest

HEAD = """
    import sys, torch
    from hmmlm import inference
    from hmmlm.hmm import HMM
    from hmmlm.support import Support
    from hmmlm.transitions import Factored
    from hmmlm.inference import smoothing

    def peak():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024

    def blocked(states, block, words):
        generator = torch.Generator().manual_seed(0)
        support = Support.from_clusters(torch.arange(words) % (states // block), block)
        factors = torch.randn(2, states, 16, generator=generator) * 0.3
        share = torch.bincount(support.row_of_word)[support.row_of_word].float()
        emit = (-share.log())[:, None].expand(words, block).contiguous()
        init = torch.full((states,), -torch.log(torch.tensor(float(states))))
        return HMM(init, Factored.normalise(*factors), emit, support)

    def dense(states, words):
        generator = torch.Generator().manual_seed(0)
        noise = lambda *size: torch.randn(*size, generator=generator)
        return HMM.from_tables(
            noise(states).log_softmax(0), noise(states, states).log_softmax(1),
            noise(states, words).log_softmax(1))

    def warm(hmm):
        inference.counts(hmm, torch.zeros(1, 5, dtype=torch.long))
        inference.smooth(hmm, torch.zeros(1, 5, dtype=torch.long))
"""


def megabytes(body: str) -> float:
    """How far the peak of resident memory rises while `body` runs."""
    script = textwrap.dedent(HEAD) + textwrap.dedent(body)
    script += "\nbefore = peak(); run(); print(peak() - before)\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


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


def test_a_belief_from_dropped_states_enters_in_tiles() -> None:
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
