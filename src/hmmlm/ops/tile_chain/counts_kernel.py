"""Expected transitions of chains of tiles as Triton kernels: into factors, or into a table.

Sums are made in a fixed order, without atomics, but those of a table whose rows overlap. What is
multiplied has the type of the messages; counts, which are numbers of any type, are multiplied with
factors in the type of those.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from hmmlm.ops.narrow_kernel import narrowed
from hmmlm.ops.row_sums.kernel import sum_rows
from hmmlm.ops.tile_chain.tiles_kernel import (
    NONE,
    Map,
    Squares,
    _ids,
    _tile_at,
    _tiles,
    _vectors,
    line,
)

COUNTED = 256
"""Features for which a program sums counts."""


@triton.jit
def _chunk_of(chunk, firsts, offsets, R, STEPS, ROWS: tl.constexpr):
    """The places of a chunk: each row's list of steps is cut into chunks of STEPS."""
    all_rows = tl.arange(0, ROWS)
    ends = tl.load(firsts + all_rows + 1, mask=all_rows < R, other=2147483647)
    row = tl.sum((ends <= chunk).to(tl.int32), 0)
    row = tl.minimum(row, R - 1)
    start = tl.load(offsets + row) + (chunk - tl.load(firsts + row)) * STEPS
    return start, tl.minimum(start + STEPS, tl.load(offsets + row + 1))


@triton.jit
def _add_counts(
    order, offsets, firsts, R, STEPS, SHIFT, C, K, L, H, N, rows, here, before, messages, probs,
    shrink, pairs, factors, sums, Q,
    LEFT: tl.constexpr, ROWS: tl.constexpr, SIDE: tl.constexpr, WIDE: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A chunk of a row's steps: counts (from, to) times the factors at the other end."""
    chunk, part = tl.program_id(0), tl.program_id(1)
    features = tl.program_id(2) * WIDE + tl.arange(0, WIDE)
    start, stop = _chunk_of(chunk, firsts, offsets, R, STEPS, ROWS)
    mine = part * SIDE + tl.arange(0, SIDE)
    total = tl.zeros([SIDE, WIDE], sums.dtype.element_ty)
    for place in range(start, stop):
        step = tl.load(order + place) + SHIFT
        source = -1
        if (step < N) & ((SHIFT == 0) | (step % C != 0)):
            source = tl.load(before + step).to(tl.int32)
        if source >= 0:
            slot = step + step // C  # of the step before
            other_row = source
            if LEFT:
                other_row = tl.load(here + step).to(tl.int32)
            for other in range(0, Q):
                theirs = other * SIDE + tl.arange(0, SIDE)
                if LEFT:
                    i, j = mine, theirs
                else:
                    i, j = theirs, mine
                message = tl.load(messages + slot * K + i, mask=i < K, other=0.0)
                pair = tl.load(pairs + step * K + j, mask=j < K, other=0.0)
                square = (step * Q + i // SIDE) * Q + j // SIDE
                message *= tl.load(shrink + square)
                where = probs + step * K * L + i[:, None] * L + j[None, :]
                tile = tl.load(where, mask=(i < K)[:, None] & (j < L)[None, :], other=0.0)
                counts = (tile * message[:, None] * pair[None, :]).to(total.dtype)
                states = _ids(rows, other_row, K, other * SIDE, SIDE)
                vectors = _vectors(factors, states, features, H, EVEN)
                counts = narrowed(counts, vectors, PRECISION)
                if LEFT:
                    total = tl.dot(counts, vectors, total, input_precision=PRECISION)
                else:
                    total = tl.dot(tl.trans(counts), vectors, total, input_precision=PRECISION)
    if start < stop:
        where = (chunk * Q * SIDE + mine[:, None]).to(tl.int64) * H + features[None, :]
        tl.store(sums + where, total, mask=(features < H)[None, :])


@triton.jit
def _count_tile(
    steps, offsets, C, K, L, Q, messages, probs, shrink, pairs, counts, SIDE: tl.constexpr,
):  # fmt: skip
    """A square of the counts of a shared tile, summed over its steps."""
    tile, i, j = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    slots_i, slots_j = i * SIDE + tl.arange(0, SIDE), j * SIDE + tl.arange(0, SIDE)
    met = tl.zeros([SIDE, SIDE], messages.dtype.element_ty)
    for at in range(tl.load(offsets + tile), tl.load(offsets + tile + 1)):
        step = tl.load(steps + at)
        slot = step + step // C  # of the step before
        message = tl.load(messages + slot * K + slots_i, mask=slots_i < K, other=0.0)
        pair = tl.load(pairs + step * K + slots_j, mask=slots_j < K, other=0.0)
        met += message[:, None] * pair[None, :]
    where = tile * K * L + slots_i[:, None] * L + slots_j[None, :]
    inside = (slots_i < K)[:, None] & (slots_j < L)[None, :]
    small = tl.load(shrink + (tile * Q + i) * Q + j)
    met *= tl.load(probs + where, mask=inside, other=0.0) * small
    tl.store(counts + where, met.to(counts.dtype.element_ty), mask=inside)


@triton.jit
def _add_tiles(
    order, offsets, firsts, others, R, STEPS, K, L, H, Q, rows, counts, factors, sums,
    LEFT: tl.constexpr, ROWS: tl.constexpr, SIDE: tl.constexpr, INNER: tl.constexpr,
    WIDE: tl.constexpr, STAGES: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A chunk of a row's shared tiles: counts (from, to) times the factors at the other end."""
    chunk, part = tl.program_id(0), tl.program_id(1)
    features = tl.program_id(2) * WIDE + tl.arange(0, WIDE)
    start, stop = _chunk_of(chunk, firsts, offsets, R, STEPS, ROWS)
    mine = part * SIDE + tl.arange(0, SIDE)
    total = tl.zeros([SIDE, WIDE], sums.dtype.element_ty)
    parts = (K + INNER - 1) // INNER
    for turn in tl.range(start * parts, stop * parts, num_stages=STAGES):
        place, first = turn // parts, turn % parts * INNER
        theirs = first + tl.arange(0, INNER)
        states = _ids(rows, tl.load(others + place), K, first, INNER)
        vectors = _vectors(factors, states, features, H, EVEN)
        where = counts + tl.load(order + place) * K * L
        if LEFT:
            where += mine[:, None] * L + theirs[None, :]
            mask = (mine < K)[:, None] & (theirs < L)[None, :]
        else:
            where += mine[:, None] + theirs[None, :] * L
            mask = (mine < L)[:, None] & (theirs < K)[None, :]
        met = tl.load(where, mask=mask, other=0.0)
        met = narrowed(met, vectors, PRECISION)
        total = tl.dot(met, vectors, total, input_precision=PRECISION, out_dtype=total.dtype)
    if start < stop:
        where = (chunk * (tl.num_programs(1) * SIDE) + mine[:, None]).to(tl.int64) * H
        tl.store(sums + where + features[None, :], total, mask=(features < H)[None, :])


@triton.jit
def _join_chunks(
    firsts, rows, sums, gradient, K, H, SLOTS, SOME: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The sums of a row's chunks, to the states of its slots."""
    row, first = tl.program_id(0), tl.program_id(1) * SOME
    features = tl.program_id(2) * WIDE + tl.arange(0, WIDE)
    states = _ids(rows, row, K, first, SOME)
    slots = first + tl.arange(0, SOME)
    mask = (states >= 0)[:, None] & (features < H)[None, :]
    total = tl.zeros([SOME, WIDE], sums.dtype.element_ty)
    for chunk in range(tl.load(firsts + row), tl.load(firsts + row + 1)):
        where = (chunk * SLOTS + slots).to(tl.int64)[:, None] * H + features[None, :]
        total += tl.load(sums + where, mask=mask, other=0.0)
    tl.store(gradient + states[:, None].to(tl.int64) * H + features[None, :], total, mask=mask)


@triton.jit
def _add_table(
    order, keys, N, C, K, L, Z, rows, here, before, tile_of, messages, probs, shrink, pairs, table,
    Q,
    SHARED: tl.constexpr, OVERLAPS: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """A square of the counts between two rows, summed over the steps between them."""
    place, i, j = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    key = tl.load(keys + place)
    is_first = place == 0
    if place > 0:
        is_first = tl.load(keys + place - 1) != key
    if (key >= 0) & is_first:
        slots_i, slots_j = i * SIDE + tl.arange(0, SIDE), j * SIDE + tl.arange(0, SIDE)
        inside = (slots_i < K)[:, None] & (slots_j < K)[None, :]
        total = tl.zeros([SIDE, SIDE], messages.dtype.element_ty)
        step = tl.load(order + place)
        sources = _ids(rows, tl.load(before + step), K, i * SIDE, SIDE)
        states = _ids(rows, tl.load(here + step), K, j * SIDE, SIDE)
        # Between the same two rows all steps have the same tile.
        number = _tile_at(tile_of, step, SHARED)
        where = probs + number * K * L + slots_i[:, None] * L + slots_j[None, :]
        tile = tl.load(where, mask=inside, other=0.0) * tl.load(shrink + (number * Q + i) * Q + j)
        following = key
        while following == key:
            step = tl.load(order + place)
            slot = step + step // C
            message = tl.load(messages + slot * K + slots_i, mask=slots_i < K, other=0.0)
            pair = tl.load(pairs + step * K + slots_j, mask=slots_j < K, other=0.0)
            total += message[:, None] * pair[None, :]
            place += 1
            following = key * 0 - 1
            if place < N:
                following = tl.load(keys + place)
        real = (sources >= 0)[:, None] & (states >= 0)[None, :]
        where = table + sources[:, None].to(tl.int64) * Z + states[None, :]
        if OVERLAPS:
            tl.atomic_add(where, total * tile, mask=real)
        else:
            tl.store(where, total * tile, mask=real)


def factor_counts(
    squares: Squares,
    where: Map,
    joints: Tensor,
    pairs: Tensor,
    left: Tensor,
    right: Tensor,
    precision: str,
    by_row: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Expected transitions seen through the factors: sums of counts @ right and counts.T @ left.

    `by_row` are the steps ordered by their row of the map, and where those of each row begin, for
    who has them. First steps start afresh.
    """
    left, right = left.contiguous(), right.contiguous()
    (rows, slots), width = where.rows.shape, left.shape[1]
    number = where.here.numel()
    wide = min(COUNTED, max(16, triton.next_power_of_2(width)))
    if by_row is None:
        by_row = _ordered(where.here, rows)
    parts, edge = squares.shrink.shape[1], squares.side
    gradients = []
    # The step after each of a row's steps is one that leaves it, so one order serves both.
    chunks = _Chunks(*by_row, number, where.rows, parts * edge, width)
    for is_left, factors in ((True, right), (False, left)):
        _add_counts[(chunks.most, parts, triton.cdiv(width, wide))](
            chunks.order, chunks.offsets, chunks.firsts, rows, chunks.length, int(is_left),
            where.here.shape[1], slots, line(slots), width, number, where.rows, where.here,
            where.before,
            joints, squares.probs, squares.shrink, pairs, factors, chunks.sums, parts,
            LEFT=is_left, ROWS=triton.next_power_of_2(rows), SIDE=edge, WIDE=wide,
            EVEN=width % wide == 0, PRECISION=precision,
            num_warps=8 if edge > 64 else 4, num_stages=1,
        )  # fmt: skip
        gradients.append(chunks.join((left, right)[not is_left], where.overlaps))
    return gradients[0], gradients[1]


def shared_counts(
    squares: Squares,
    where: Map,
    joints: Tensor,
    pairs: Tensor,
    left: Tensor,
    right: Tensor,
    precision: str,
) -> tuple[Tensor, Tensor]:
    """As `factor_counts`, of shared tiles; the turned tiles, which have been read, are lost."""
    shared, room = where.shared, squares.turned
    assert shared is not None and room is not None
    left, right = left.contiguous(), right.contiguous()
    (rows, slots), width, number = where.rows.shape, left.shape[1], len(shared.here)
    parts, edge = squares.shrink.shape[1], squares.side
    summed = torch.float64 if left.dtype == torch.float64 else torch.float32
    length = line(slots)
    numbers = number * slots * length
    counts = room.as_strided((numbers,), (1,)).view(left.dtype)[:numbers]
    _count_tile[(number, parts, parts)](
        shared.order, shared.offsets, where.here.shape[1], slots, length, parts, joints,
        squares.probs, squares.shrink, pairs, counts, SIDE=edge, num_warps=8 if edge > 64 else 4,
    )  # fmt: skip
    is_narrow, is_wide = left.dtype.itemsize < 4, left.dtype == torch.float64
    wide = min(256 if is_narrow else 64, max(16, triton.next_power_of_2(width)))
    gradients = []
    for is_left, factors in ((True, right), (False, left)):
        mine, theirs = (shared.before, shared.here) if is_left else (shared.here, shared.before)
        chunks = _Chunks(*_ordered(mine, rows), number, where.rows, parts * edge, width, summed)
        _add_tiles[(chunks.most, parts, triton.cdiv(width, wide))](
            chunks.order, chunks.offsets, chunks.firsts, theirs[chunks.order], rows, chunks.length,
            slots, length, width, parts, where.rows, counts, factors, chunks.sums,
            LEFT=is_left, ROWS=triton.next_power_of_2(rows), SIDE=edge,
            INNER=min(edge, 32 if is_wide else 64), WIDE=wide, STAGES=3 if is_narrow else 2,
            EVEN=width % wide == 0, PRECISION=precision, num_warps=8 if edge > 64 else 4,
        )  # fmt: skip
        gradients.append(chunks.join((left, right)[not is_left], where.overlaps))
    return gradients[0], gradients[1]


class _Chunks:
    """Lists of steps or tiles, one for each row of the map, cut so that long ones are shared out.

    Each chunk has a sum of its own, (slots, H).
    """

    def __init__(
        self,
        order: Tensor,
        offsets: Tensor,
        number: int,
        rows: Tensor,
        slots: int,
        width: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.order, self.offsets, self.rows = order, offsets, rows
        self.length = max(4, triton.cdiv(number, 256))
        self.most = triton.cdiv(number, self.length) + len(rows)  # chunks there can be
        sizes = offsets[1:] - offsets[:-1]
        counts = (sizes + self.length - 1) // self.length
        self.firsts = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
        self.sums = torch.empty(self.most, slots, width, dtype=dtype, device=rows.device)

    def join(self, like: Tensor, overlaps: bool) -> Tensor:
        """The sums of all chunks, by state, in a table like this one."""
        (rows, slots), (_, padded, width) = self.rows.shape, self.sums.shape
        if overlaps:
            return sum_rows(self._states(len(like)), self.sums.flatten(0, 1), len(like))
        gradient = torch.zeros(like.shape, dtype=self.sums.dtype, device=like.device)
        wide = min(256, max(16, triton.next_power_of_2(width)))
        _join_chunks[(rows, triton.cdiv(slots, 4), triton.cdiv(width, wide))](
            self.firsts, self.rows, self.sums, gradient, slots, width, padded,
            SOME=4, WIDE=wide, num_warps=2,
        )  # fmt: skip
        return gradient

    def _states(self, none: int) -> Tensor:
        """The state that each slot of each chunk is for; `none` in padding and where none is."""
        chunks = torch.arange(self.most, device=self.firsts.device)
        row = torch.searchsorted(self.firsts[1:], chunks, right=True)  # R where there is no chunk
        wide = self.sums.shape[1] - self.rows.shape[1]
        rows = torch.nn.functional.pad(self.rows, (0, wide, 0, 1), value=-1)
        return rows.masked_fill(rows < 0, none)[row].flatten()


def _ordered(keys: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Steps ordered by a row of the map, and where those of each row begin."""
    ordered, order = keys.flatten().sort(stable=True)
    return order, torch.searchsorted(ordered, torch.arange(rows + 1, device=keys.device))


def table_counts(
    squares: Squares, where: Map, joints: Tensor, pairs: Tensor, num_states: int
) -> Tensor:
    """Expected transitions, (Z, Z).

    On blocks no two pairs of rows share one; else they are added in any order.
    """
    (rows, slots), (batch, steps) = where.rows.shape, where.here.shape
    keys = torch.where(where.before < 0, NONE, where.before * rows + where.here).flatten()
    ordered, order = keys.sort(stable=True)
    table = torch.zeros(num_states, num_states, dtype=joints.dtype, device=joints.device)
    parts, edge = squares.shrink.shape[1], squares.side
    _add_table[(batch * steps, parts, parts)](
        order, ordered, batch * steps, steps, slots, line(slots), num_states, where.rows,
        where.here, where.before, _tiles(where), joints, squares.probs, squares.shrink, pairs,
        table, parts, SHARED=where.shared is not None, OVERLAPS=where.overlaps, SIDE=edge,
        num_warps=8 if edge > 64 else 4,
    )  # fmt: skip
    return table
