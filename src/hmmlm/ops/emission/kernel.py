"""The softmax over each block's words as Triton kernels: only the cells of the map exist."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hmmlm.ops.cells import Tiling
from hmmlm.ops.narrow_kernel import narrowed
from hmmlm.products import Operand


@triton.jit
def _rows_of(table, ids, features, H: tl.constexpr):
    where = table + ids[:, None].to(tl.int64) * H + features[None, :]
    return tl.load(where, mask=(ids >= 0)[:, None] & (features < H)[None, :], other=0.0)


@triton.jit
def _some(order, start, stop, WORDS: tl.constexpr):
    """The items from `start` on in their order; -1 past the end."""
    places = start + tl.arange(0, WORDS)
    return tl.load(order + places, mask=places < stop, other=-1)


@triton.jit
def _slots_of(rows, row, K, SIDE: tl.constexpr):
    slots = tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    return slots, tl.load(rows + row * K + slots, mask=slots < K, other=-1)


@triton.jit
def _logits(mine, items, bias, ids, features, H: tl.constexpr, PRECISION: tl.constexpr):
    theirs = _rows_of(items, ids, features, H)
    logits = tl.dot(mine, tl.trans(theirs), input_precision=PRECISION)
    logits += tl.load(bias + ids, mask=ids >= 0, other=0.0)[None, :]
    return tl.where((ids >= 0)[None, :], logits, float("-inf"))


@triton.jit
def _softmax(
    vectors, items, bias, rows, order, offsets, table, K,
    H: tl.constexpr, WIDE: tl.constexpr, SIDE: tl.constexpr, WORDS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """log p(item | slot) of some slots of a row, over all items of that row."""
    row = tl.program_id(0)
    slots, states = _slots_of(rows, row, K, SIDE)
    features = tl.arange(0, WIDE)
    mine = _rows_of(vectors, states, features, H)
    start, stop = tl.load(offsets + row), tl.load(offsets + row + 1)
    most = tl.full([SIDE], float("-inf"), tl.float32)
    total = tl.zeros([SIDE], tl.float32)
    for first in range(start, stop, WORDS):
        ids = _some(order, first, stop, WORDS)
        logits = _logits(mine, items, bias, ids, features, H, PRECISION)
        higher = tl.maximum(most, tl.max(logits, 1))
        total = total * tl.exp(most - higher) + tl.sum(tl.exp(logits - higher[:, None]), 1)
        most = higher
    norm = tl.where(states >= 0, most + tl.log(total), float("inf"))  # padding has -inf
    for first in range(start, stop, WORDS):
        ids = _some(order, first, stop, WORDS)
        logits = _logits(mine, items, bias, ids, features, H, PRECISION)
        where = table + ids[None, :].to(tl.int64) * K + slots[:, None]
        mask = (slots < K)[:, None] & (ids >= 0)[None, :]
        tl.store(where, logits - norm[:, None], mask=mask)


@triton.jit
def _to_vectors(
    items, rows, order, offsets, table, grad, totals, gradient, K,
    H: tl.constexpr, WIDE: tl.constexpr, SIDE: tl.constexpr, WORDS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """sum over a row's items of (grad - p total) item, and the totals of grad."""
    row = tl.program_id(0)
    slots, states = _slots_of(rows, row, K, SIDE)
    features = tl.arange(0, WIDE)
    start, stop = tl.load(offsets + row), tl.load(offsets + row + 1)
    parts = tl.zeros([SIDE, WORDS], tl.float32)
    for first in range(start, stop, WORDS):
        ids = _some(order, first, stop, WORDS)
        cells = ids[None, :].to(tl.int64) * K + slots[:, None]
        mask = (states >= 0)[:, None] & (ids >= 0)[None, :]
        parts += tl.load(grad + cells, mask=mask, other=0.0)
    total = tl.sum(parts, 1)
    tl.store(totals + row * K + slots, total, mask=slots < K)
    sums = tl.zeros([SIDE, WIDE], tl.float32)
    for first in range(start, stop, WORDS):
        ids = _some(order, first, stop, WORDS)
        cells = ids[None, :].to(tl.int64) * K + slots[:, None]
        mask = (states >= 0)[:, None] & (ids >= 0)[None, :]
        probs = tl.exp(tl.load(table + cells, mask=mask, other=float("-inf")))
        change = tl.load(grad + cells, mask=mask, other=0.0) - probs * total[:, None]
        theirs = _rows_of(items, ids, features, H)
        narrow = narrowed(change, theirs, PRECISION)
        sums = tl.dot(narrow, theirs, sums, input_precision=PRECISION)
    where = gradient + states[:, None].to(tl.int64) * H + features[None, :]
    tl.store(where, sums, mask=(states >= 0)[:, None] & (features < H)[None, :])


@triton.jit
def _to_items(
    vectors, rows, order, offsets, table, grad, totals, gradient, to_bias, K,
    H: tl.constexpr, WIDE: tl.constexpr, SIDE: tl.constexpr, WORDS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """sum over the slots of some items of (grad - p total) vector, and without the vector."""
    row = tl.program_id(0)
    stop = tl.load(offsets + row + 1)
    first = tl.load(offsets + row) + tl.program_id(1) * WORDS
    if first < stop:
        ids = _some(order, first, stop, WORDS)
        features = tl.arange(0, WIDE)
        sums = tl.zeros([WORDS, WIDE], tl.float32)
        parts = tl.zeros([WORDS, SIDE], tl.float32)
        for start in range(0, K, SIDE):
            slots = start + tl.arange(0, SIDE)
            states = tl.load(rows + row * K + slots, mask=slots < K, other=-1)
            total = tl.load(totals + row * K + slots, mask=slots < K, other=0.0)
            cells = ids[:, None].to(tl.int64) * K + slots[None, :]
            mask = (ids >= 0)[:, None] & (states >= 0)[None, :]
            probs = tl.exp(tl.load(table + cells, mask=mask, other=float("-inf")))
            change = tl.load(grad + cells, mask=mask, other=0.0) - probs * total[None, :]
            parts += change
            theirs = _rows_of(vectors, states, features, H)
            narrow = narrowed(change, theirs, PRECISION)
            sums = tl.dot(narrow, theirs, sums, input_precision=PRECISION)
        where = gradient + ids[:, None].to(tl.int64) * H + features[None, :]
        tl.store(where, sums, mask=(ids >= 0)[:, None] & (features < H)[None, :])
        tl.store(to_bias + ids, tl.sum(parts, 1), mask=ids >= 0)


class LogSoftmax(torch.autograd.Function):
    """log p(item | slot), (V, K): softmax over the items of each row of a partition.

    Of vectors (S, H) and items (V, H) rounded to `operand`, and a bias (V,); gradients in float32.
    """

    @staticmethod
    def forward(
        ctx: Any,
        vectors: Tensor,
        items: Tensor,
        bias: Tensor,
        rows: Tensor,
        tiling: Tiling,
        operand: Operand,
    ) -> Tensor:
        vectors, items = (part.to(operand.dtype).contiguous() for part in (vectors, items))
        order, offsets, _ = tiling.groups
        table = torch.empty(len(items), rows.shape[1], device=items.device)
        if rows.shape[0] != len(offsets) - 1:
            raise ValueError("the tiling is of another map")
        _softmax[_grid(vectors, rows)](
            vectors, items, bias, rows, order, offsets, table, rows.shape[1],
            **_constants(vectors, rows, operand.precision),
        )  # fmt: skip
        ctx.tiling, ctx.precision = tiling, operand.precision
        ctx.save_for_backward(vectors, items, rows, table)
        return table

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        grad = grad_outputs[0].contiguous()
        vectors, items, rows, table = ctx.saved_tensors
        order, offsets, largest = ctx.tiling.groups
        like = {"device": items.device}
        totals = torch.empty(rows.shape, **like)
        to_vectors = torch.zeros(vectors.shape, **like)
        to_items, to_bias = torch.empty(items.shape, **like), torch.empty(len(items), **like)
        shared = order, offsets, table, grad, totals
        constants = _constants(vectors, rows, ctx.precision)
        _to_vectors[_grid(vectors, rows)](
            items, rows, *shared, to_vectors, rows.shape[1], **constants
        )
        _to_items[(len(rows), triton.cdiv(largest, _met(vectors)))](
            vectors, rows, *shared, to_items, to_bias, rows.shape[1], **constants
        )
        return to_vectors, to_items, to_bias, None, None, None


def _grid(vectors: Tensor, rows: Tensor) -> tuple[int, int]:
    return len(rows), triton.cdiv(rows.shape[1], _side(vectors, rows))


def _side(vectors: Tensor, rows: Tensor) -> int:
    return min(_met(vectors), max(16, triton.next_power_of_2(rows.shape[1])))


def _met(vectors: Tensor) -> int:
    """Items met at a time: fewer where their vectors are long."""
    bytes_each = triton.next_power_of_2(vectors.shape[1]) * vectors.element_size()
    return 64 if bytes_each <= 1024 else 32 if bytes_each <= 2048 else 16


def _constants(vectors: Tensor, rows: Tensor, precision: str) -> dict[str, Any]:
    width = vectors.shape[1]
    return {
        "H": width,
        "WIDE": max(16, triton.next_power_of_2(width)),
        "SIDE": _side(vectors, rows),
        "WORDS": _met(vectors),
        "PRECISION": precision,
        "num_warps": 8 if width > 64 else 4,
        "num_stages": 2,
    }
