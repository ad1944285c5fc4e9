"""The checks that come before a number on a GPU accept what is right, and refuse what is not."""

import sys
from pathlib import Path

import pytest
import torch

from hmmlm.hmm import HMM
from hmmlm.inference import counts, log_prob, sample_paths, smooth, viterbi
from hmmlm.params import features
from hmmlm.products import BF16
from hmmlm.results import PathSamples
from hmmlm.transitions import Factored
from models import make_hmm

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # benchmarks/ is no part of the wheel

from benchmarks.gpu import answers, inference, rows, steps  # noqa: E402
from benchmarks.gpu.clock import Bench  # noqa: E402

TOKENS = torch.tensor([[0, 1, 3, 2, 4, 0], [4, 4, 1, 0, 2, 3]])
DRAWS = 5000
MODELS = [("dense", "dense"), ("blocks", "factored"), ("uneven", "dense")]


@pytest.fixture(params=MODELS, ids=["-".join(kinds) for kinds in MODELS])
def exact(request: pytest.FixtureRequest) -> HMM:
    return make_hmm(*request.param)


def test_evidence_and_counts(exact: HMM) -> None:
    scored, counted = log_prob(exact, TOKENS), counts(exact, TOKENS)
    assert answers.logprob_error(scored, exact, TOKENS) < 1e-9
    off = scored._replace(log_evidence=scored.log_evidence * torch.tensor([1.0, 1.001]))
    assert answers.logprob_error(off, exact, TOKENS) == pytest.approx(1e-3, rel=1e-3)
    assert answers.counts_error(counted, exact, TOKENS) < 1e-9
    assert answers.counts_error(counted._replace(emit=counted.emit * 1.01), exact, TOKENS) > 9e-3
    nothing = counted._replace(init=counted.init * torch.nan)
    assert not answers.counts_error(nothing, exact, TOKENS) <= 1e-4


def test_best_paths(exact: HMM) -> None:
    best = viterbi(exact, TOKENS)
    assert answers.viterbi_error(best, exact, TOKENS) < 1e-9
    # The number alone does not show that the states are others.
    other = viterbi(make_hmm(exact.support, seed=5), TOKENS).states
    assert (other != best.states).any()
    assert answers.viterbi_error(best._replace(states=other), exact, TOKENS) > 1e-3


def test_draws(exact: HMM) -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = sample_paths(exact, TOKENS, num_samples=DRAWS, generator=generator)
    assert answers.sample_error(drawn, exact, TOKENS) < 4
    # Right at every step, but every step drawn by itself.
    probs = smooth(exact, TOKENS).dense(exact.num_states).exp()
    apart = torch.multinomial(probs.flatten(0, 1), DRAWS, True, generator=generator)
    apart = apart.view(*TOKENS.shape, DRAWS).transpose(1, 2)
    assert answers.sample_error(PathSamples(apart), exact, TOKENS) > 6
    # Those of a model that is a little another one.
    others = sample_paths(make_hmm(exact.support, seed=1), TOKENS, num_samples=DRAWS)
    assert answers.sample_error(others, exact, TOKENS) > 6


def test_a_path_that_cannot_be_is_refused() -> None:
    exact = make_hmm("blocks", "factored")
    drawn = sample_paths(exact, TOKENS, num_samples=10).states
    drawn[0, 3, 2] = (drawn[0, 3, 2] + 2) % exact.num_states  # the other block
    assert answers.sample_error(PathSamples(drawn), exact, TOKENS) == torch.inf


def test_row_sums_see_a_normaliser_of_other_factors() -> None:
    left, right = torch.randn(2, 64, 16, generator=torch.Generator().manual_seed(0))
    blocks, sources = torch.arange(64).view(4, 16), torch.arange(10)
    norm = torch.logsumexp(left @ right.T, 1)
    exact = rows.sums_by_torch(Factored(left, right, norm), sources, blocks)
    assert (exact - 1).abs().max() < 1e-5
    rounded = right.bfloat16().float()
    mixed = rows.sums_by_torch(Factored(left, rounded, norm), sources, blocks)
    assert (mixed - 1).abs().max() > rows.ALLOWED


@pytest.mark.parametrize("wrong", [None, "log_normaliser", "emission_table"])
def test_a_step_is_compared_with_tables_made_anew(wrong: str | None, monkeypatch) -> None:
    """A normaliser or a softmax that is off shows, where the chain would be right about both."""
    if wrong is not None:
        right = getattr(features, wrong)

        def off(first: torch.Tensor, *rest, **how) -> torch.Tensor:
            return right(first, *rest, **how) + (first.dtype == torch.float32)

        monkeypatch.setattr(features, wrong, off)
    model, support, batches, dropout = steps.make(steps.SMOKE[0], torch.device("cpu"))
    loss_error, gradient_error = steps.compare(model, support, batches[0], dropout, "float32")
    if wrong is None:
        assert loss_error < 1e-6 and gradient_error < 1e-4
    else:
        assert loss_error > steps.ALLOWED[0]


def test_cases_have_names_that_can_be_read() -> None:
    for name in (*inference.CASES, *inference.SMOKE):
        assert inference.Case.parse(name).name == name
    bench = Bench(torch.device("cpu"), smoke=True, rounds=1)
    case = inference.Case.parse("counts-z64-k16-b3-t6")
    hmm = inference.make(case, "bf16", bench)
    assert hmm.validate().transitions.operand == BF16
    left = hmm.transitions.fields()[0]
    assert torch.equal(left, left.bfloat16().float())
    floor = inference.floor_ms(case, hmm, "fp32", bench)
    once = inference.floor_ms(inference.Case.parse("logprob-z64-k16-b3-t6"), hmm, "fp32", bench)
    assert floor > once > 0
