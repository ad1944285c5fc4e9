"""Rows summed by a key, in the order in which they come: no atomics, so always the same sum."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _sum(order, begins, ends, rows, table, K, SIDE: tl.constexpr, SOME: tl.constexpr):
    key = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    stop = tl.load(ends + key)
    sums = tl.zeros([SOME, SIDE], tl.float32)
    for first in range(tl.load(begins + key), stop, SOME):
        places = first + tl.arange(0, SOME)
        which = tl.load(order + places, mask=places < stop, other=0)
        mask = (places < stop)[:, None] & (columns < K)[None, :]
        sums += tl.load(rows + which[:, None] * K + columns[None, :], mask=mask, other=0.0)
    tl.store(table + key * K + columns, tl.sum(sums, 0), mask=columns < K)


def sum_rows(keys: Tensor, rows: Tensor, count: int) -> Tensor:
    """(count, K): the float32 rows (N, K) with each key."""
    ordered, order = keys.sort(stable=True)
    marks = torch.arange(count + 1, device=keys.device, dtype=keys.dtype)
    offsets = torch.searchsorted(ordered, marks)
    return sum_ordered(order, offsets[:-1], offsets[1:], rows)


def sum_ordered(order: Tensor, begins: Tensor, ends: Tensor, rows: Tensor) -> Tensor:
    """(M, K): the sum of rows[order[begin:end]] for each begin and end."""
    width = rows.shape[1]
    table = torch.empty(len(begins), width, device=rows.device)
    edge = min(256, max(16, triton.next_power_of_2(width)))
    _sum[(len(begins), triton.cdiv(width, edge))](
        order, begins, ends, rows.contiguous(), table, width, SIDE=edge, SOME=32, num_warps=4
    )
    return table
