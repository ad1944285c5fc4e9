"""The way back as a Triton kernel: a program for each path.

Forward messages (B, C + 1, K) lie in the slot after their step; slot 0 is of the step before the
stretch. A state i before j has the weight message_i p_ij: with uniform numbers the path is drawn,
without it is the best, given messages of best paths. No pointers are kept: the largest is found
again, for the one state that the path has.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048
"""States that are looked at at a time."""


@triton.jit
def _weights(
    messages, slot_at, tiles, shrink, number, state, first, K, Q, TILE, STEP, COLUMN, SIDE,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """message_i p_ij of a block of states i; the message alone where no tile stands after it."""
    places = first + tl.arange(0, BLOCK)
    inside = places < K
    weights = tl.load(messages + slot_at * K + places, mask=inside, other=0.0)
    if number >= 0:
        where = tiles + number * TILE + places.to(tl.int64) * STEP + state * COLUMN
        weights *= tl.load(where, mask=inside, other=0.0)
        if Q > 1:
            square = (number * Q + places // SIDE) * Q + state // SIDE
            weights *= tl.load(shrink + square, mask=inside, other=0.0)
    return weights


@triton.jit
def _trace(
    messages, tiles, shrink, tile_of, ends, given, uniform, states, C, K, Q, N, TILE, STEP, COLUMN,
    SIDE, FROM, DRAW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    path = tl.program_id(0).to(tl.int64)
    row = path // N
    end = tl.load(ends + row).to(tl.int32)
    state = tl.load(given + path).to(tl.int32)
    places = tl.arange(0, BLOCK)
    number = tl.full([], -1, tl.int64)
    # A row that ended before this stretch has nothing in it.
    for back in range(tl.where(end > 0, FROM, 1), end + 1):
        slot = end + FROM - back
        slot_at = row * (C + 1) + slot
        if slot < end:
            number = tl.load(tile_of + row * C + slot).to(tl.int64)
        # The last state may be known from the stretch after.
        if (slot < end) | (state < 0):
            best = tl.full([], -1.0, messages.dtype.element_ty)
            total = tl.zeros([], messages.dtype.element_ty)
            chosen = 0
            for first in range(0, K, BLOCK):
                weights = _weights(messages, slot_at, tiles, shrink, number, state, first, K, Q,
                                   TILE, STEP, COLUMN, SIDE, BLOCK)  # fmt: skip
                most = tl.max(weights, 0)
                if most > best:
                    best = most
                    chosen = first + tl.argmax(weights, 0)
                total += tl.sum(weights, 0)
            if DRAW:
                limit = tl.load(uniform + path * (C + 1) + slot) * total
                before = tl.zeros([], messages.dtype.element_ty)
                found = K
                for first in range(0, K, BLOCK):
                    weights = _weights(messages, slot_at, tiles, shrink, number, state, first, K,
                                       Q, TILE, STEP, COLUMN, SIDE, BLOCK)  # fmt: skip
                    sums = before + tl.cumsum(weights, 0)
                    # Sums made side by side need not rise: a state without weight is never taken.
                    reached = (sums > limit) & (weights > 0)
                    found = tl.minimum(found, tl.min(tl.where(reached, first + places, K), 0))
                    before += tl.sum(weights, 0)
                chosen = tl.where(found < K, found, chosen)  # rounding may pass over the last
            state = chosen
        tl.store(states + path * (C + 1) + slot, state)


def trace(
    messages: Tensor,
    tiles: Tensor,
    shrink: Tensor | None,
    tile_of: Tensor,
    ends: Tensor,
    *,
    num_paths: int = 1,
    given: Tensor | None = None,
    uniform: Tensor | None = None,
    turned: bool = False,
    side: int = 1,
    is_first: bool = True,
) -> Tensor:
    """Places of states (B, N, C + 1) in each slot up to a row's end; what lies after means nothing.

    `tile_of` (B, C) is the number of the tile (P, K, K) before each step, -1 where it starts
    afresh; `turned` tiles have the state before as their column. `given` (B, N) are the states of
    the last slot, -1 where they are not known. Slot 0 is traced unless the stretch `is_first`.
    `uniform` (B, N, C + 1) are the numbers to draw with. O(B N C K).
    """
    (batch, slots, width), device = messages.shape, messages.device
    states = torch.zeros(batch, num_paths, slots, dtype=torch.int32, device=device)
    if given is None:
        given = torch.full((batch, num_paths), -1, dtype=torch.int32, device=device)
    parts = 1 if shrink is None else shrink.shape[1]
    across, along = tiles.stride()[-2:]
    step, column = (along, across) if turned else (across, along)
    _trace[(batch * num_paths,)](
        messages, tiles, tiles if shrink is None else shrink, tile_of.contiguous(), ends,
        given.contiguous(), messages if uniform is None else uniform.contiguous(), states,
        slots - 1, width, parts, num_paths, tiles.stride(0), step, column, side,
        int(is_first), DRAW=uniform is not None,
        BLOCK=min(BLOCK, max(16, triton.next_power_of_2(width))),
        num_warps=1 if width <= 128 else 4,
    )  # fmt: skip
    return states
