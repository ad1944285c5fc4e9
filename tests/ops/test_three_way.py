"""Kernels in bf16 are no further from float64 than plain bf16 is, in answers and in gradients."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hmmlm.hmm import HMM, emission_table
from hmmlm.inference.kernels import count
from hmmlm.ops.cells import Tiling, cell_products
from hmmlm.ops.normaliser import log_normaliser
from hmmlm.products import BF16, TF32, round_to_tf32
from hmmlm.support import Support
from hmmlm.transitions import Factored

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
NARROW = torch.bfloat16


def noise(*size: int, seed: int = 0, scale: float = 0.5) -> Tensor:
    """Numbers that bf16 holds: what is measured is the arithmetic."""
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(*size, generator=generator)).to(NARROW).float().cuda()


def compare(truth: list[Tensor], plain: list[Tensor], ours: list[Tensor]) -> None:
    for exact, low, kernel in zip(truth, plain, ours, strict=True):
        far, near = (float((part.double() - exact).norm()) for part in (low, kernel))
        assert near <= far + 1e-6 * float(exact.norm()), f"{near:.3g} from float64, plain {far:.3g}"


def three_ways(
    formula: Callable[..., Tensor], kernel: Callable[..., Tensor], given: list[Tensor]
) -> None:
    found = []
    for run, dtype in ((formula, torch.float64), (formula, NARROW), (kernel, torch.float32)):
        parts = [part.clone().to(dtype).requires_grad_() for part in given]
        value = run(*parts)
        weight = noise(*value.shape, seed=9).to(value.dtype)
        finite = torch.where(torch.isfinite(value), value, 0.0)
        found.append([finite.detach(), *torch.autograd.grad(finite, parts, weight)])
    compare(*found)


@pytest.mark.parametrize("size", [(63, 257, 33), (300, 2100, 256)])
def test_normaliser(size: tuple[int, int, int]) -> None:
    rows, columns, width = size
    three_ways(
        lambda left, right: torch.logsumexp(left @ right.T, 1),
        lambda left, right: log_normaliser(left, right, operand=BF16, implementation="kernel"),
        [noise(rows, width, scale=0.2), noise(columns, width, seed=1, scale=0.2)],
    )


def test_normaliser_in_tf32() -> None:
    given = [round_to_tf32(noise(n, 256, seed=n, scale=0.2).float()) for n in (300, 2100)]
    found = []
    for how in ("float64", "plain", "kernel"):
        dtype = torch.float64 if how == "float64" else torch.float32
        parts = [part.to(dtype).requires_grad_() for part in given]
        torch.backends.cuda.matmul.fp32_precision = "tf32" if how == "plain" else "ieee"
        try:
            if how == "kernel":
                value = log_normaliser(*parts, operand=TF32, implementation="kernel")
            else:
                value = torch.logsumexp(parts[0] @ parts[1].T, 1)
            weight = noise(*value.shape, seed=9).to(dtype)
            found.append([value.detach(), *torch.autograd.grad(value, parts, weight)])
        finally:
            torch.backends.cuda.matmul.fp32_precision = "ieee"
    compare(*found)


@pytest.mark.parametrize("width", [3, 256])
def test_emissions_of_blocks(width: int) -> None:
    from hmmlm.ops.emission.kernel import LogSoftmax

    support = Support.from_clusters(torch.arange(170) % 3, [130, 17, 63]).to("cuda")
    tiling = Tiling(support.row_of_word).to(torch.device("cuda"))

    def formula(vectors: Tensor, words: Tensor, bias: Tensor) -> Tensor:
        logits = cell_products(vectors, words, support.rows, tiling) + bias[:, None]
        return emission_table(logits, support)

    three_ways(
        formula,
        lambda *parts: LogSoftmax.apply(*parts, support.rows, tiling, BF16),
        [noise(210, width, scale=0.2), noise(170, width, seed=1, scale=0.2), noise(170, seed=2)],
    )


@pytest.mark.parametrize("size", [(37, 19, 5), (700, 130, 256)])
def test_emissions_of_all_states(size: tuple[int, int, int]) -> None:
    from hmmlm.ops.emission.dense_kernel import LogSoftmax

    words, states, width = size
    three_ways(
        lambda vectors, items, bias: (items @ vectors.T + bias[:, None]).log_softmax(0),
        lambda *parts: LogSoftmax.apply(*parts, BF16),
        [noise(states, width, scale=0.2), noise(words, width, seed=1, scale=0.2), noise(words)],
    )


@pytest.mark.parametrize("width", [16, 256])
def test_residual_network(width: int) -> None:
    from hmmlm.ops.residual.kernel import Residual

    def formula(x, w1, b1, w2, b2, scale, shift):
        first = torch.relu(x @ w1.T + b1)
        second = torch.relu(first @ w2.T + b2) + first
        return torch.nn.functional.layer_norm(second, (width,), scale, shift, 1e-5)

    square, row = (width, width), (width,)
    sizes = [(300, width), square, row, square, row, row, row]
    three_ways(
        formula,
        lambda *parts: Residual.apply(*parts, 1e-5, BF16),
        [noise(*size, seed=seed, scale=0.1) for seed, size in enumerate(sizes)],
    )


@pytest.mark.parametrize("support", ["blocks", "dense", "dense, many"])
def test_counts(support: str) -> None:
    """Counts are the gradient of the log evidence, which plain bf16 differentiates step by step."""
    shape = {
        "blocks": Support.from_clusters(torch.arange(40) % 3, 64),
        "dense": Support.dense(40, 96),
        "dense, many": Support.dense(40, 2048),
    }[support].to("cuda")
    states, words = shape.num_states, shape.vocab_size
    left, right = noise(states, 64, scale=0.2), noise(states, 64, seed=1, scale=0.2)
    table = Factored.normalise(left.double(), right.double())
    emit = emission_table(noise(words, shape.width, seed=2).double(), shape)
    start = noise(states, seed=3).double().log_softmax(0)
    tokens = torch.randint(words, (4, 12), generator=torch.Generator().manual_seed(4)).cuda()
    restart = torch.zeros_like(tokens, dtype=torch.bool)
    restart[:, 0] = True

    def formula(start: Tensor, left: Tensor, right: Tensor, norm: Tensor, emit: Tensor) -> Tensor:
        probs = torch.exp(left @ right.T - norm[:, None])
        total, message, before = start.new_zeros(len(tokens)), start, None
        for step in range(tokens.shape[1]):
            here = shape.states_of(tokens[:, step])  # (B, K)
            emission = emit[tokens[:, step]].exp()
            if before is None:
                joint = start[here].exp() * emission
            else:
                tile = probs[before[:, :, None], here[:, None, :]]
                joint = (message[:, None, :] @ tile)[:, 0] * emission
            scale = joint.sum(1, keepdim=True)
            message, before, total = joint / scale, here, total + scale[:, 0].log()
        return total.sum()

    fields = [start, *table.fields(), emit]
    found = []
    for dtype in (torch.float64, NARROW):
        parts = [part.clone().to(dtype).requires_grad_() for part in fields]
        value = formula(*parts)
        found.append([value.detach(), *torch.autograd.grad(value, parts)])
    small = [part.float() for part in fields]
    hmm = HMM(small[0], Factored(*small[1:4], operand=BF16), small[4], shape)
    ends = torch.full((4,), 12, device="cuda")
    ours = count(hmm, tokens, restart, ends, torch.ones(4, device="cuda"))
    found.append([ours.log_scales.sum(), *ours.fields])
    compare(*found)
