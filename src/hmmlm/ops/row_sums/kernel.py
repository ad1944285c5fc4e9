"""Rows summed by a key, in the order in which they come: no atomics, so always the same sum.

Words are as frequent as Zipf says, so a key may have a tenth of all rows: after the first CHUNK
rows of a key, the rest is cut into chunks, which are summed side by side and joined in their order.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 64
"""Rows of a key that one program sums, where there are many rows."""

FEW = 2048
"""Rows up to which each key has one program, whatever it has to sum."""


@triton.jit
def _sum_some(order, start, stop, rows, columns, K, SIDE: tl.constexpr, SOME: tl.constexpr):
    sums = tl.zeros([SOME, SIDE], rows.dtype.element_ty)
    for first in range(start, stop, SOME):
        places = first + tl.arange(0, SOME)
        which = tl.load(order + places, mask=places < stop, other=0)
        mask = (places < stop)[:, None] & (columns < K)[None, :]
        sums += tl.load(rows + which[:, None] * K + columns[None, :], mask=mask, other=0.0)
    return tl.sum(sums, 0)


@triton.jit
def _sum(
    order, begins, ends, before, key_of, rows, table, parts, M, K, CHUNK,
    SIDE: tl.constexpr, SOME: tl.constexpr,
):  # fmt: skip
    """The first chunk of a key, into the table; or a further one, into a place of its own."""
    number = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    if number < M:
        start = tl.load(begins + number)
        stop = tl.minimum(start + CHUNK, tl.load(ends + number))
        sums = _sum_some(order, start, stop, rows, columns, K, SIDE, SOME)
        tl.store(table + number * K + columns, sums, mask=columns < K)
    else:
        chunk = number - M
        key = tl.load(key_of + chunk)
        if key < M:
            start = tl.load(begins + key) + (chunk - tl.load(before + key) + 1) * CHUNK
            stop = tl.minimum(start + CHUNK, tl.load(ends + key))
            sums = _sum_some(order, start, stop, rows, columns, K, SIDE, SOME)
            tl.store(parts + chunk * K + columns, sums, mask=columns < K)


@triton.jit
def _join(before, key_of, table, parts, M, K, SIDE: tl.constexpr, SOME: tl.constexpr):
    """Adds the further chunks of a key to its sum."""
    chunk = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    key = tl.load(key_of + chunk)
    is_first = False
    if key < M:
        is_first = tl.load(before + key) == chunk
    if is_first:
        sums = tl.zeros([SOME, SIDE], table.dtype.element_ty)
        stop = tl.load(before + key + 1)
        for first in range(chunk, stop, SOME):
            places = first + tl.arange(0, SOME)
            mask = (places < stop)[:, None] & (columns < K)[None, :]
            sums += tl.load(parts + places[:, None] * K + columns[None, :], mask=mask, other=0.0)
        where = table + key * K + columns
        total = tl.load(where, mask=columns < K, other=0.0) + tl.sum(sums, 0)
        tl.store(where, total, mask=columns < K)


def sum_rows(keys: Tensor, rows: Tensor, count: int) -> Tensor:
    """(count, K): the sum of the rows (N, K) with each key; other keys are in no sum."""
    ordered, order = keys.sort(stable=True)
    marks = torch.arange(count + 1, device=keys.device, dtype=keys.dtype)
    offsets = torch.searchsorted(ordered, marks)
    return sum_ordered(order, offsets[:-1], offsets[1:], rows)


def sum_ordered(order: Tensor, begins: Tensor, ends: Tensor, rows: Tensor) -> Tensor:
    """(M, K): the sum of rows[order[begin:end]] for each begin and end, which do not overlap."""
    rows, (keys, width) = rows.contiguous(), (len(begins), rows.shape[1])
    table = torch.empty(keys, width, dtype=rows.dtype, device=rows.device)
    edge = min(1024, max(16, triton.next_power_of_2(width)))
    columns = triton.cdiv(width, edge)
    shape = {"SIDE": edge, "SOME": max(8, min(32, 8192 // edge)), "num_warps": 4}
    if len(order) <= FEW:
        _sum[(keys, columns)](
            order, begins, ends, order, order, rows, table, table, keys, width, FEW, **shape
        )
        return table
    more = len(order) // CHUNK  # further chunks there can be
    further = ((ends - begins - 1) // CHUNK).clamp(min=0)
    before = torch.nn.functional.pad(further.cumsum(0), (1, 0))  # (M + 1,)
    chunks = torch.arange(more, device=order.device)
    key_of = torch.searchsorted(before[1:], chunks, right=True)  # M where there is no such chunk
    parts = torch.empty(more, width, dtype=rows.dtype, device=rows.device)
    _sum[(keys + more, columns)](
        order, begins, ends, before, key_of, rows, table, parts, keys, width, CHUNK, **shape
    )
    _join[(more, columns)](before, key_of, table, parts, keys, width, **shape)
    return table
