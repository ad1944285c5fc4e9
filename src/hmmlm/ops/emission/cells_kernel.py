"""The softmax over each state's cells, wherever in a table they stand, as Triton kernels.

Sums are made in a fixed order, without atomics, of float32 or wider numbers.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

SOME = 128
"""Cells of a state that are read at a time."""


@triton.jit
def _some(values, order, start, stop, other, SOME: tl.constexpr):
    """The values of some cells of a state; `other` past their end."""
    places = start + tl.arange(0, SOME)
    cells = tl.load(order + places, mask=places < stop, other=0)
    return tl.load(values + cells, mask=places < stop, other=other)


@triton.jit
def _log_sum(values, order, offsets, sums, SOME: tl.constexpr):
    """The largest value of a state, and the logarithm of the sum of what the others are of it."""
    state = tl.program_id(0)
    start, stop = tl.load(offsets + state), tl.load(offsets + state + 1)
    most = tl.full([SOME], float("-inf"), sums.dtype.element_ty)
    total = tl.zeros([SOME], sums.dtype.element_ty)
    for first in range(start, stop, SOME):
        value = _some(values, order, first, stop, float("-inf"), SOME).to(sums.dtype.element_ty)
        higher = tl.maximum(most, value)
        level = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(most - level) + tl.exp(value - level)
        most = higher
    highest = tl.max(most, 0)
    level = tl.where(highest == float("-inf"), 0.0, highest)
    total = tl.sum(total * tl.exp(most - level), 0)
    found = tl.where(total > 0, tl.log(tl.where(total > 0, total, 1.0)), float("-inf"))
    tl.store(sums + 2 * state, level)
    tl.store(sums + 2 * state + 1, found)


@triton.jit
def _sum(values, order, offsets, sums, SOME: tl.constexpr):
    state = tl.program_id(0)
    start, stop = tl.load(offsets + state), tl.load(offsets + state + 1)
    total = tl.zeros([SOME], sums.dtype.element_ty)
    for first in range(start, stop, SOME):
        total += _some(values, order, first, stop, 0.0, SOME).to(sums.dtype.element_ty)
    tl.store(sums + state, tl.sum(total, 0))


class LogSoftmax(torch.autograd.Function):
    """Logits (V, K) normalised over the cells of each state: `states` (V, K), -1 in padding.

    `order` are the cells ordered by state, those of state z from `offsets[z]`. Padding is -inf.
    O(V K).
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, states: Tensor, order: Tensor, offsets: Tensor) -> Tensor:
        ids = states.clamp(min=0)
        most, norms = _by_state(_log_sum, logits, order, offsets, 2).unbind(1)
        # The largest first: what is left is small and has its digits, however large logits are.
        table = (logits - most[ids] - norms[ids]).to(logits.dtype)
        table = table.masked_fill_(states < 0, -torch.inf)
        ctx.save_for_backward(table, states, order, offsets)
        return table

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        table, states, order, offsets = ctx.saved_tensors
        totals = _by_state(_sum, grad_outputs[0], order, offsets, 1)[:, 0]
        change = grad_outputs[0] - table.exp() * totals[states.clamp(min=0)]
        change = change.to(table.dtype)
        return change.masked_fill_(states < 0, 0.0), None, None, None


def _by_state(kernel: Any, values: Tensor, order: Tensor, offsets: Tensor, number: int) -> Tensor:
    """So many numbers of each state, (Z, number)."""
    wide = torch.promote_types(values.dtype, torch.float32)
    sums = torch.empty(len(offsets) - 1, number, dtype=wide, device=values.device)
    kernel[(len(sums),)](values.contiguous(), order, offsets, sums, SOME=SOME, num_warps=1)
    return sums
