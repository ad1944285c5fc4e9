"""The row normaliser and its gradient as Triton kernels: the S x Z products are never written.

Where a gradient is wanted, the forward pass also takes the mean of `right` under each row's
distribution: the gradient of `left` is that mean as often as the row counts. Only the gradient of
`right` makes the logits again, so there are four products in all, and no atomics.
"""

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hmmlm.ops.kernels import is_interpreted
from hmmlm.ops.narrow_kernel import narrowed
from hmmlm.products import Operand

LOG2E = tl.constexpr(1.4426950408889634)


class Tile(NamedTuple):
    """Rows that a program owns, others that it meets at a time, and how it is run."""

    own: int
    other: int
    warps: int
    stages: int


@triton.jit
def _load(matrix, rows, features, count, H: tl.constexpr, EVEN: tl.constexpr):
    where = matrix + rows[:, None] * H + features[None, :]
    if EVEN:
        return tl.load(where)
    return tl.load(where, mask=(rows < count)[:, None] & (features < H)[None, :], other=0.0)


@triton.jit
def _forward(
    left, right, bias, most_of, total_of, S, Z, SPAN, BIASED: tl.constexpr,
    H: tl.constexpr, WIDE: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The largest logit of each row (in base 2) and the sum of the others over it, of a span."""
    own = tl.program_id(0) * OWN + tl.arange(0, OWN)
    part = tl.program_id(1)
    features = tl.arange(0, WIDE)
    mine = _load(left, own, features, S, H, EVEN)
    most = tl.full([OWN], float("-inf"), tl.float32)
    total = tl.zeros([OWN], tl.float32)
    for start in range(part * SPAN, min(part * SPAN + SPAN, Z), OTHER):
        others = start + tl.arange(0, OTHER)
        theirs = _load(right, others, features, Z, H, EVEN)
        logits = tl.dot(mine, tl.trans(theirs), input_precision=PRECISION) * LOG2E
        if BIASED:
            logits += tl.load(bias + others, mask=others < Z, other=0.0)[None, :] * LOG2E
        if not EVEN:
            logits = tl.where((others < Z)[None, :], logits, float("-inf"))
        higher = tl.maximum(most, tl.max(logits, 1))
        total = total * tl.exp2(most - higher) + tl.sum(tl.exp2(logits - higher[:, None]), 1)
        most = higher
    where = part * S + own
    tl.store(most_of + where, most, mask=own < S)
    tl.store(total_of + where, total, mask=own < S)


@triton.jit
def _with_mean(
    left, right, most_of, total_of, mean_of, S, Z, SPAN,
    H: tl.constexpr, WIDE: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """As `_forward`, and the sum of `right` with those weights over their total."""
    own = tl.program_id(0) * OWN + tl.arange(0, OWN)
    part = tl.program_id(1)
    features = tl.arange(0, WIDE)
    mine = _load(left, own, features, S, H, EVEN)
    most = tl.full([OWN], float("-inf"), tl.float32)
    total = tl.zeros([OWN], tl.float32)
    sums = tl.zeros([OWN, WIDE], tl.float32)
    for start in range(part * SPAN, min(part * SPAN + SPAN, Z), OTHER):
        others = start + tl.arange(0, OTHER)
        theirs = _load(right, others, features, Z, H, EVEN)
        logits = tl.dot(mine, tl.trans(theirs), input_precision=PRECISION) * LOG2E
        if not EVEN:
            logits = tl.where((others < Z)[None, :], logits, float("-inf"))
        higher = tl.maximum(most, tl.max(logits, 1))
        weights = tl.exp2(logits - higher[:, None])
        shrink = tl.exp2(most - higher)
        total = total * shrink + tl.sum(weights, 1)
        sums = sums * shrink[:, None]
        narrow = narrowed(weights, theirs, PRECISION)
        sums = tl.dot(narrow, theirs, sums, input_precision=PRECISION)
        most = higher
    where = part * S + own
    tl.store(most_of + where, most, mask=own < S)
    tl.store(total_of + where, total, mask=own < S)
    where = mean_of + where[:, None].to(tl.int64) * H + features[None, :]
    tl.store(where, sums / total[:, None], mask=(own < S)[:, None] & (features < H)[None, :])


@triton.jit
def _to_right(
    left, right, log2_norm, weight, gradient, S, Z, SPAN,
    H: tl.constexpr, WIDE: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """sum_i weight_i p(j | i) left_i for the columns j of a program, over a span of rows."""
    own = tl.program_id(0) * OWN + tl.arange(0, OWN)
    part = tl.program_id(1)
    features = tl.arange(0, WIDE)
    mine = _load(right, own, features, Z, H, EVEN)
    sums = tl.zeros([OWN, WIDE], tl.float32)
    for start in range(part * SPAN, min(part * SPAN + SPAN, S), OTHER):
        others = start + tl.arange(0, OTHER)
        theirs = _load(left, others, features, S, H, EVEN)
        norm = tl.load(log2_norm + others, mask=others < S, other=0.0)
        times = tl.load(weight + others, mask=others < S, other=0.0)
        logits = tl.dot(mine, tl.trans(theirs), input_precision=PRECISION) * LOG2E
        counts = tl.exp2(logits - norm[None, :]) * times[None, :]
        narrow = narrowed(counts, theirs, PRECISION)
        sums = tl.dot(narrow, theirs, sums, input_precision=PRECISION)
    where = gradient + (part * Z + own)[:, None].to(tl.int64) * H + features[None, :]
    tl.store(where, sums, mask=(own < Z)[:, None] & (features < H)[None, :])


class LogNormaliser(torch.autograd.Function):
    """log sum_j exp(left_i . right_j) of factors rounded to `operand`, gradients in float32."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, operand: Operand) -> Tensor:
        ctx.types, ctx.precision = (left.dtype, right.dtype), operand.precision
        wanted = any(ctx.needs_input_grad)
        left, right = (factor.to(operand.dtype).contiguous() for factor in (left, right))
        if not wanted:
            return log_normaliser(left, right, operand.precision)
        norms, mean = log_normaliser_and_mean(left, right, operand.precision)
        ctx.save_for_backward(left, right, norms, mean)
        return norms

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        left, right, norms, mean = ctx.saved_tensors
        (grad,) = grad_outputs
        made = mean * grad[:, None], gradient_of_right(left, right, norms, grad, ctx.precision)
        return *(part.to(kind) for part, kind in zip(made, ctx.types, strict=True)), None


def log_normaliser(
    left: Tensor, right: Tensor, precision: str, bias: Tensor | None = None
) -> Tensor:
    """log sum_j exp(left_i . right_j + bias_j).

    `left` (S, H) and `right` (Z, H) are contiguous and of one type, `bias` (Z,) is float32.
    """
    rows, columns, tile = len(left), len(right), choose_tile(left, precision)
    spans, span = _spans(rows, columns, tile)
    most = torch.empty(spans, rows, device=left.device)
    total = torch.empty_like(most)
    _forward[(triton.cdiv(rows, tile.own), spans)](
        left, right, right if bias is None else bias, most, total, rows, columns, span,
        BIASED=bias is not None, **_constants(left, right, tile, precision),
    )  # fmt: skip
    return _joined(most, total)


def log_normaliser_and_mean(left: Tensor, right: Tensor, precision: str) -> tuple[Tensor, Tensor]:
    """The normaliser, and sum_j p(j | i) right_j, (S, H) in float32."""
    (rows, width), columns, tile = left.shape, len(right), choose_tile(left, precision)
    spans, span = _spans(rows, columns, tile)
    most = torch.empty(spans, rows, device=left.device)
    total, mean = torch.empty_like(most), torch.empty(spans, rows, width, device=left.device)
    _with_mean[(triton.cdiv(rows, tile.own), spans)](
        left, right, most, total, mean, rows, columns, span,
        **_constants(left, right, tile, precision),
    )  # fmt: skip
    norms = _joined(most, total)
    if spans == 1:
        return norms, mean[0]
    shares = (most * math.log(2) + total.log() - norms).exp()  # (spans, S)
    return norms, (mean * shares[:, :, None]).sum(0)


def gradient_of_right(
    left: Tensor, right: Tensor, norms: Tensor, weight: Tensor, precision: str
) -> Tensor:
    """sum_i weight_i p(j | i) left_i, (Z, H) in float32."""
    rows, columns, tile = len(left), len(right), choose_tile(left, precision)
    spans, span = _spans(columns, rows, tile, each=1)
    sums = torch.empty(spans, *right.shape, device=left.device)
    _to_right[(triton.cdiv(columns, tile.own), spans)](
        left, right, norms * math.log2(math.e), weight.contiguous(), sums, rows, columns, span,
        **_constants(left, right, tile, precision),
    )  # fmt: skip
    return sums[0] if spans == 1 else sums.sum(0)


def _spans(rows: int, columns: int, tile: Tile, each: int = 2) -> tuple[int, int]:
    """Spans of columns, and their length: few rows alone would leave most of the device idle.

    At most so many programs for `each` processor.
    """
    spans = max(1, min(each * PROCESSORS // triton.cdiv(rows, tile.own), columns // 1024))
    span = triton.cdiv(triton.cdiv(columns, spans), tile.other) * tile.other
    return triton.cdiv(columns, span), span


def _joined(most: Tensor, total: Tensor) -> Tensor:
    if len(most) == 1:
        return torch.log(total[0]).add_(most[0], alpha=math.log(2))
    return torch.logsumexp(most * math.log(2) + total.log(), 0)


PROCESSORS = 132


def choose_tile(operand: Tensor, precision: str) -> Tile:
    """The fastest of ten that were tried on an H200, for factors of 256; smaller for wider ones."""
    if is_interpreted():
        return Tile(32, 32, 4, 2)
    wide = triton.next_power_of_2(operand.shape[1]) * operand.element_size()
    if wide <= 512:
        return Tile(128, 64, 8, 3)
    if wide <= 1024:
        is_tf32 = operand.dtype == torch.float32 and precision == "tf32"
        return Tile(128, 32, 8, 3) if is_tf32 else Tile(64, 32, 4, 2)
    return Tile(32, 16, 4, 1)


def _constants(left: Tensor, right: Tensor, tile: Tile, precision: str) -> dict[str, Any]:
    width = left.shape[1]
    wide = max(16, triton.next_power_of_2(width))
    even = width == wide
    even &= all(count % max(tile.own, tile.other) == 0 for count in (len(left), len(right)))
    return {
        "H": width,
        "WIDE": wide,
        "OWN": tile.own,
        "OTHER": tile.other,
        "EVEN": even,
        "PRECISION": precision,
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }
