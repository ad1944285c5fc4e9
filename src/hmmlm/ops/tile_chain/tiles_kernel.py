"""The tiles between neighbouring steps as Triton kernels, and which of them a step has.

A tile of probabilities is cut into squares, each over its largest entry; `shrink` is what a square
has to be multiplied with to stand beside the others. Probabilities are float32, or float64 where
messages are: the logarithms and factors that they are made of have a type of their own.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hmmlm.transitions import FAR

ALIGNED = 16
"""Rows of so many numbers, or a multiple of it, are read many times faster than others."""

NONE = -1
"""The row of the map before a step that starts afresh: no tile stands between."""


class Map(NamedTuple):
    """The states of each step: `rows` (R, K) padded with -1, and the row of each step, (B, C).

    `before` (B, C) is the row of the step before, NONE where a step starts afresh or is past the
    end of its row. Each step has a tile of its own, or those between the same two rows share one:
    then `shared` says which. With `overlaps` a state may stand in several rows.
    """

    rows: Tensor
    here: Tensor
    before: Tensor
    shared: "Shared | None" = None
    overlaps: bool = False


class Shared(NamedTuple):
    """Tiles between P different pairs of rows: `tile` (B, C) of each step, NONE where none stands.

    `before` and `here` (P,) are the rows that a tile stands between, in the order of the former;
    `order` (B C,) are the steps ordered by tile, those of tile p from `offsets[p]` (P + 1,). Where
    all steps start afresh there are none: one that is no tile then keeps its place.
    """

    there_are: bool
    tile: Tensor
    before: Tensor
    here: Tensor
    order: Tensor
    offsets: Tensor


class Squares(NamedTuple):
    """P tiles, (P, K, K), with `shrink` (P, I, I) and the log taken out, (P,): see `Map`.

    `turned` are the tiles transposed, for the way back: sums along the first axis are fast. What
    stands where there is no tile means nothing. In memory a row has a `line` of room, zeros after
    its end.
    """

    probs: Tensor
    turned: Tensor | None
    shrink: Tensor
    log_most: Tensor

    @property
    def side(self) -> int:
        return side(self.probs.shape[1], self.probs.dtype)


def side(width: int, dtype: torch.dtype) -> int:
    """The side of a square: one that a program can hold."""
    return min(64 if dtype == torch.float64 else 128, max(16, triton.next_power_of_2(width)))


def line(width: int) -> int:
    """The room of a row of a tile, so that all rows begin where many numbers are read at once."""
    return triton.cdiv(width, ALIGNED) * ALIGNED


def used(where: Map) -> Map:
    """The same of rows that overlap, without those of no step: there may be one for each word.

    Waits for the device.
    """
    steps = torch.cat([where.here.flatten(), where.before[where.before >= 0]])
    kept = steps.unique()
    here, before = (torch.searchsorted(kept, part) for part in (where.here, where.before))
    before = torch.where(where.before < 0, NONE, before)
    return Map(where.rows[kept], here, before, overlaps=True)


def share(where: Map, with_order: bool = True) -> Map:
    """The same map with one tile for all steps between the same two rows.

    Waits for the device, unless there is one row and the order of the steps is not wanted: then
    that is left empty.
    """
    rows = len(where.rows)
    if rows == 1 and not with_order:
        first = torch.zeros(1, dtype=torch.long, device=where.here.device)
        nothing = first[:0]
        return where._replace(shared=Shared(True, where.before, first, first, nothing, nothing))
    keys = torch.where(where.before < 0, NONE, where.before * rows + where.here).flatten()
    ordered, order = keys.sort(stable=True)
    distinct, sizes = ordered.unique_consecutive(return_counts=True)
    offsets = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
    there_are = len(distinct) > 1 or int(distinct[0]) != NONE
    if there_are and int(distinct[0]) == NONE:
        distinct, offsets = distinct[1:], offsets[1:]
    tile = torch.searchsorted(distinct, keys).where(keys >= 0, NONE).view_as(where.here)
    before = torch.where(distinct < 0, NONE, distinct // rows)
    shared = Shared(there_are, tile, before, distinct % rows, order, offsets)
    return where._replace(shared=shared)


@triton.jit
def _ids(rows, row, K, first, SIDE: tl.constexpr):
    """The states in the slots from `first` of a row of the map; -1 in padding."""
    slots = first + tl.arange(0, SIDE)
    return tl.load(rows + row * K + slots, mask=slots < K, other=-1)


@triton.jit
def _vectors(table, states, features, H, EVEN: tl.constexpr):
    where = table + states[:, None].to(tl.int64) * H + features[None, :]
    mask = (states >= 0)[:, None]
    if not EVEN:
        mask = mask & (features < H)[None, :]
    return tl.load(where, mask=mask, other=0.0)


@triton.jit
def _make_squares(
    left, right, log_norm, log_trans, rows, before, here, probs, turned, log_most, K, L, Z, H,
    FACTORED: tl.constexpr, TURNED: tl.constexpr, SIDE: tl.constexpr, WIDE: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A square of p(to | from) over its largest entry, and the log of that."""
    step = tl.program_id(0).to(tl.int64)
    i, j, parts = tl.program_id(1), tl.program_id(2), tl.num_programs(1)
    row = tl.load(before + step)
    most_at = log_most + (step * parts + i) * parts + j
    if row < 0:
        tl.store(most_at, 0.0)
    else:
        sources = _ids(rows, row, K, i * SIDE, SIDE)
        states = _ids(rows, tl.load(here + step), K, j * SIDE, SIDE)
        real = (sources >= 0)[:, None] & (states >= 0)[None, :]
        if FACTORED:
            is_wide: tl.constexpr = left.dtype.element_ty == tl.float64
            logits = tl.zeros([SIDE, SIDE], tl.float64 if is_wide else tl.float32)
            for first in range(0, H, WIDE):
                features = first + tl.arange(0, WIDE)
                mine = _vectors(left, sources, features, H, EVEN)
                theirs = _vectors(right, states, features, H, EVEN)
                logits = tl.dot(mine, tl.trans(theirs), logits, input_precision=PRECISION,
                                out_dtype=logits.dtype)  # fmt: skip
            norms = tl.load(log_norm + sources, mask=sources >= 0, other=0.0)
            logits = logits.to(probs.dtype.element_ty) - norms.to(probs.dtype.element_ty)[:, None]
        else:
            where = log_trans + sources[:, None].to(tl.int64) * Z + states[None, :]
            logits = tl.load(where, mask=real, other=float("-inf")).to(probs.dtype.element_ty)
        logits = tl.where(real, logits, float("-inf"))
        most = tl.max(tl.max(logits, 1), 0)
        most = tl.where(most == float("-inf"), 0.0, most)
        slots_i, slots_j = i * SIDE + tl.arange(0, SIDE), j * SIDE + tl.arange(0, SIDE)
        where = probs + step * K * L + slots_i[:, None] * L + slots_j[None, :]
        mask = (slots_i < K)[:, None] & (slots_j < L)[None, :]
        values = tl.exp(logits - most)
        tl.store(where, values, mask=mask)
        if TURNED:
            where = turned + step * K * L + slots_j[:, None] * L + slots_i[None, :]
            tl.store(where, tl.trans(values), mask=(slots_j < K)[:, None] & (slots_i < L)[None, :])
        tl.store(most_at, most)


@triton.jit
def _tile_at(tile_of, step, SHARED: tl.constexpr):
    """The number of the tile before a step; any where there is none."""
    if SHARED:
        return tl.maximum(tl.load(tile_of + step), 0)
    return step


def squares_of_factors(
    left: Tensor,
    right: Tensor,
    log_norm: Tensor,
    where: Map,
    precision: str,
    *,
    turned: bool = True,
    dtype: torch.dtype = torch.float32,
    marks: int = 0,
) -> Squares:
    """The tiles exp(left_i . right_j - log_norm_i) of a map, of type `dtype`. O(P K^2 H).

    Products are summed in float64 if the factors are float64, and else in float32. Factors with
    `marks` (`Factored`) may have tiles of nothing but zeros.
    """
    left, right, log_norm = (part.contiguous() for part in (left, right, log_norm))
    width = left.shape[1]
    wide = min(16 if left.dtype == torch.float64 else 64, max(16, triton.next_power_of_2(width)))
    made = _squares(
        where, turned, dtype, left, right, log_norm, log_norm, 0, width,
        FACTORED=True, WIDE=wide, EVEN=width % wide == 0, PRECISION=precision,
    )  # fmt: skip
    if marks:
        is_zero = made.log_most < -FAR / 2
        made.log_most.masked_fill_(is_zero, 0.0)
        for tiles in (made.probs, made.turned):
            if tiles is not None:
                tiles.masked_fill_(is_zero[:, None, None], 0.0)
    return made


def squares_of_table(
    log_trans: Tensor, where: Map, *, turned: bool = True, dtype: torch.dtype = torch.float32
) -> Squares:
    """The tiles exp(log_trans[i, j]) of a map, of type `dtype`. O(P K^2)."""
    log_trans = log_trans.contiguous()
    return _squares(
        where, turned, dtype, log_trans, log_trans, log_trans, log_trans, log_trans.shape[1], 0,
        FACTORED=False, WIDE=16, EVEN=True, PRECISION="ieee",
    )  # fmt: skip


def _squares(where: Map, turned: bool, dtype: torch.dtype, *fields, **constants) -> Squares:
    *tensors, states, width = fields
    named = where.shared or where
    before, here = named.before, named.here
    slots, tiles = where.rows.shape[1], here.numel()
    edge = side(slots, dtype)
    parts = triton.cdiv(slots, edge)
    room = (1 + turned, tiles, slots, line(slots))
    probs, *other = torch.empty(room, dtype=dtype, device=here.device)[..., :slots]
    log_most = torch.empty(tiles, parts, parts, dtype=dtype, device=here.device)
    _make_squares[(tiles, parts, parts)](
        *tensors, where.rows, before, here, probs, other[0] if turned else probs, log_most,
        slots, line(slots), states, width, TURNED=turned, SIDE=edge,
        num_warps=8 if edge > 64 else 4, **constants,
    )  # fmt: skip
    most = log_most.amax((1, 2))
    return Squares(
        probs, other[0] if turned else None, (log_most - most[:, None, None]).exp(), most
    )


def _tiles(where: Map) -> Tensor:
    """What a kernel reads the numbers of tiles from; nothing where each step has its own."""
    return where.before if where.shared is None else where.shared.tile
