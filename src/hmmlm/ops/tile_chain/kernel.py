"""Chains of tiles as Triton kernels: B rows of C steps, K states each, named by rows of a map.

A step's messages lie in the slot after it: slot 0 of (B, C + 1, K) holds what comes in from before
the stretch. Between two slots stands a tile of probabilities, cut into squares, each over its
largest entry; `shrink` is what a square has to be multiplied with to stand beside the others.
All of these are float32 or, for messages that float32 cannot hold, float64.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hmmlm.ops.messages.scaled import lowest
from hmmlm.ops.tile_chain.tiles_kernel import Map, Squares, _ids, _tile_at, _tiles, line


class Emissions(NamedTuple):
    """p(word | state) of every step over its largest, (B, C, K), and the log of that, (B, C).

    `low` (B,) marks rows where one was too small for a number.
    """

    probs: Tensor
    log_most: Tensor
    low: Tensor


class Passed(NamedTuple):
    """Forward messages not yet over their `totals` (B, C + 1), and backward ones, (B, C + 1, K).

    `low` (2, B) marks the rows of each pass that lost digits.
    """

    joints: Tensor
    totals: Tensor
    backs: Tensor
    low: Tensor


class Met(NamedTuple):
    """Posteriors (B, C, K), log scales (B, C), and pairs (B, C, K): see `meet`."""

    posteriors: Tensor
    log_scales: Tensor
    pairs: Tensor


@triton.jit
def _make_emissions(log_weights, index, ends, probs, log_most, low, C, K, WIDE: tl.constexpr):
    step = tl.program_id(0).to(tl.int64)
    slots = tl.arange(0, WIDE)
    word = tl.load(index + step).to(tl.int64)
    where = log_weights + tl.maximum(word, 0) * K + slots
    logs = tl.load(where, mask=slots < K, other=float("-inf")).to(probs.dtype.element_ty)
    logs = tl.where((word < 0) & (slots < K), 0.0, logs)  # a missing word says nothing
    most = tl.max(logs, 0)
    most = tl.where(most == float("-inf"), 0.0, most)
    values = tl.exp(logs - most)
    tl.store(probs + step * K + slots, values, mask=slots < K)
    tl.store(log_most + step, most)
    lost = tl.max(((values == 0.0) & (logs > float("-inf"))).to(tl.int32), 0)
    if (lost > 0) & (step % C < tl.load(ends + step // C)):
        tl.store(low + step // C, 1)


@triton.jit
def _over(values, axis: tl.constexpr, BEST: tl.constexpr):
    if BEST:
        return tl.max(values, axis)
    return tl.sum(values, axis)


@triton.jit
def _one_over(total):
    return tl.where(total > 0, 1.0 / tl.where(total > 0, total, 1.0), 0.0)


@triton.jit
def _multiplied(
    tiles, shrink, source, number, start, given, K, L, Q, WIDE: tl.constexpr, STRIP: tl.constexpr,
    SIDE: tl.constexpr, EVEN: tl.constexpr, TURNED: tl.constexpr,
):  # fmt: skip
    """The rows from `start` on of a tile, (STRIP, WIDE), each times its number of `given`.

    Zeros where the step starts afresh, `source` being NONE.
    """
    some, slots = start + tl.arange(0, STRIP), tl.arange(0, WIDE)
    where = tiles + number * K * L + some[:, None] * L + slots[None, :]
    limit = tl.where(source < 0, 0, K)
    if EVEN:
        tile = tl.load(where, mask=(some < limit)[:, None], other=0.0)
    else:
        tile = tl.load(where, mask=(some < limit)[:, None] & (slots < L)[None, :], other=0.0)
    if STRIP < WIDE:
        given = tl.gather(given, some, 0)
    if SIDE == WIDE:
        return tile * given[:, None]
    if TURNED:
        squares = (number * Q + slots // SIDE) * Q + start // SIDE
    else:
        squares = (number * Q + start // SIDE) * Q + slots // SIDE
    small = tl.load(shrink + squares, mask=slots < K, other=0.0)
    return tile * (given[:, None] * small[None, :])


@triton.jit
def _go_forward(
    row, begin, end, C, K, L, Q, rows, here, before, tile_of, probs, shrink, log_init, log_start,
    emissions, joints, totals, low, LEAST: tl.constexpr,
    WIDE: tl.constexpr, STRIP: tl.constexpr, STAGES: tl.constexpr, SIDE: tl.constexpr,
    EVEN: tl.constexpr, SHARED: tl.constexpr, BEST: tl.constexpr, STARTED: tl.constexpr,
):  # fmt: skip
    """Sums over the states before or, with BEST, the largest of them.

    A turn takes in a strip of a tile. Nothing that is read hangs on the message, so that strips to
    come are on their way while one is worked on.
    """
    slots = tl.arange(0, WIDE)
    row = row.to(tl.int64)
    message = tl.load(joints + (row * (C + 1) + begin) * K + slots, mask=slots < K, other=0.0)
    lost = tl.zeros([WIDE], tl.int32)
    sums = tl.zeros([STRIP, WIDE], message.dtype)
    for turn in tl.range(begin * (WIDE // STRIP), end * (WIDE // STRIP), num_stages=STAGES):
        start = turn % (WIDE // STRIP) * STRIP
        step = row * C + turn // (WIDE // STRIP)
        after = step + row + 1
        source = tl.load(before + step)
        emission = tl.load(emissions + step * K + slots, mask=slots < K, other=0.0)
        number = _tile_at(tile_of, step, SHARED)
        part = _multiplied(probs, shrink, source, number, start, message, K, L, Q, WIDE, STRIP,
                           SIDE, EVEN, False)  # fmt: skip
        if BEST:
            sums = tl.maximum(sums, part)
        else:
            sums += part
        if start + STRIP >= WIDE:
            total = _over(message, 0, BEST)
            tl.store(totals + after - 1, total)
            if source < 0:
                states = _ids(rows, tl.load(here + step), K, 0, WIDE)
                start_at = log_init + states
                if STARTED:
                    is_first = step == row * C
                    start_at = tl.where(is_first, log_start + row * K + slots, start_at)
                logs = tl.load(start_at, mask=states >= 0, other=float("-inf"))
                message = tl.exp(logs.to(message.dtype)) * emission
            else:
                raw = _over(sums, 0, BEST)
                lost = tl.maximum(lost, ((raw < LEAST) & (emission > 0)).to(tl.int32))
                message = raw * (emission * _one_over(total))
            lost = tl.maximum(lost, ((message < LEAST) & (emission > 0)).to(tl.int32))
            tl.store(joints + after * K + slots, message, mask=slots < K)
            sums = tl.zeros([STRIP, WIDE], message.dtype)
    tl.store(totals + row * (C + 1) + end, _over(message, 0, BEST))
    if tl.max(lost, 0) > 0:
        tl.store(low + row, 1)


@triton.jit
def _go_back(
    row, begin, end, C, K, L, Q, rows, before, tile_of, turned, shrink, emissions, backs, low,
    LEAST: tl.constexpr, WIDE: tl.constexpr, STRIP: tl.constexpr, STAGES: tl.constexpr,
    SIDE: tl.constexpr, EVEN: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    slots = tl.arange(0, WIDE)
    row = row.to(tl.int64)
    back = tl.load(backs + (row * (C + 1) + end) * K + slots, mask=slots < K, other=0.0)
    lost = tl.zeros([WIDE], tl.int32)
    sums = tl.zeros([STRIP, WIDE], back.dtype)
    for turn in tl.range(begin * (WIDE // STRIP), end * (WIDE // STRIP), num_stages=STAGES):
        start = turn % (WIDE // STRIP) * STRIP
        step = row * C + begin + end - 1 - turn // (WIDE // STRIP)
        slot = step + row  # of the step before
        source = tl.load(before + step)
        weight = back * tl.load(emissions + step * K + slots, mask=slots < K, other=0.0)
        number = _tile_at(tile_of, step, SHARED)
        sums += _multiplied(turned, shrink, source, number, start, weight, K, L, Q, WIDE, STRIP,
                            SIDE, EVEN, True)  # fmt: skip
        if start + STRIP >= WIDE:
            if source < 0:
                back = tl.full([WIDE], 1.0, back.dtype)
            else:
                raw = tl.sum(sums, 0)
                back = raw * _one_over(tl.sum(weight, 0))
                real = _ids(rows, source, K, 0, WIDE) >= 0
                lost = tl.maximum(lost, (((back < LEAST) | (raw < LEAST)) & real).to(tl.int32))
            tl.store(backs + slot * K + slots, back, mask=slots < K)
            sums = tl.zeros([STRIP, WIDE], back.dtype)
    if tl.max(lost, 0) > 0:
        tl.store(low + row, 1)


@triton.jit
def _pass(
    ends, begin, C, K, L, Q, rows, here, before, tile_of, probs, turned, shrink, log_init,
    log_start, emissions, joints, totals, backs, low, low_back, LEAST: tl.constexpr,
    FORWARD: tl.constexpr, BACK: tl.constexpr, WIDE: tl.constexpr, STRIP: tl.constexpr,
    STAGES: tl.constexpr, SIDE: tl.constexpr, EVEN: tl.constexpr, SHARED: tl.constexpr,
    BEST: tl.constexpr, STARTED: tl.constexpr,
):  # fmt: skip
    """One row, forward or back: they do not need one another."""
    row = tl.program_id(0)
    end = tl.load(ends + row).to(tl.int32)
    if FORWARD and (not BACK or tl.program_id(1) == 0):
        _go_forward(row, begin, end, C, K, L, Q, rows, here, before, tile_of, probs, shrink,
                    log_init, log_start, emissions, joints, totals, low, LEAST, WIDE, STRIP,
                    STAGES, SIDE, EVEN, SHARED, BEST, STARTED)  # fmt: skip
    if BACK and (not FORWARD or tl.program_id(1) == 1):
        _go_back(row, begin, end, C, K, L, Q, rows, before, tile_of, turned, shrink, emissions,
                 backs, low_back, LEAST, WIDE, STRIP, STAGES, SIDE, EVEN, SHARED)  # fmt: skip


@triton.jit
def _meet(
    ends, before, tile_of, C, K, emissions, emission_most, tile_most, joints, totals, backs, times,
    posteriors, log_scales, pairs, low,
    LEAST: tl.constexpr, WIDE: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    step = tl.program_id(0).to(tl.int64)
    row, time = step // C, step % C
    slot = row * (C + 1) + time + 1
    slots = tl.arange(0, WIDE)
    inside = slots < K
    posterior = tl.zeros([WIDE], joints.dtype.element_ty)
    pair = posterior
    if time < tl.load(ends + row):
        through = tl.load(before + step) >= 0
        total = tl.load(totals + slot)
        scale = tl.log(total) + tl.load(emission_most + step)
        if through:
            scale += tl.load(tile_most + _tile_at(tile_of, step, SHARED))
        tl.store(log_scales + step, scale)
        joint = tl.load(joints + slot * K + slots, mask=inside, other=0.0)
        back = tl.load(backs + slot * K + slots, mask=inside, other=0.0)
        meet = tl.sum(joint * back, 0)
        before_total = tl.load(totals + slot - 1)
        before_total = tl.where(through, before_total, 1.0)
        if (meet < LEAST) | (meet * before_total < LEAST):
            tl.store(low + row, 1)
        else:
            share = tl.load(times + row) / meet
            posterior = joint * back * share
            if through:
                emission = tl.load(emissions + step * K + slots, mask=inside, other=0.0)
                # Over the sum of the message before, which counts are made with as it is.
                pair = emission * back * (share / tl.load(totals + slot - 1))
    tl.store(posteriors + step * K + slots, posterior, mask=inside)
    tl.store(pairs + step * K + slots, pair, mask=inside)


def emissions_of(
    log_weights: Tensor, index: Tensor, ends: Tensor, *, dtype: torch.dtype = torch.float32
) -> Emissions:
    """exp(log_weights[index]) of all steps, each over its largest, of type `dtype`."""
    log_weights = log_weights.contiguous()
    slots = log_weights.shape[1]
    probs = torch.empty(*index.shape, slots, dtype=dtype, device=index.device)
    log_most = torch.empty(index.shape, dtype=dtype, device=index.device)
    low = torch.zeros(len(index), dtype=torch.int32, device=index.device)
    _make_emissions[(index.numel(),)](
        log_weights, index, ends, probs, log_most, low, index.shape[1], slots,
        WIDE=triton.next_power_of_2(slots), num_warps=1 if slots <= 128 else 4,
    )  # fmt: skip
    return Emissions(probs, log_most, low)


def run(
    squares: Squares,
    where: Map,
    log_init: Tensor,
    emissions: Emissions,
    ends: Tensor,
    *,
    begin: int = 0,
    message: Tensor | None = None,
    start: Tensor | None = None,
    forward: Passed | None = None,
    back: Tensor | None = None,
    both: bool = False,
    best: bool = False,
) -> Passed:
    """The forward pass, or the backward pass after it, or `both` at once.

    `message` (B, K) is that of the step before `begin`; `start` (B, K), if given, stands for
    `log_init` where the first step of a row starts afresh; `back` is what comes back into each
    row's last step, all ones if None. `ends` (B,) is the number of steps of each row. With `best`
    a forward message is of the best path into each state, not of all, and its total the best.
    Messages have the type of the emissions, which that of the squares is too.
    """
    (batch, steps), slots = where.here.shape, where.rows.shape[1]
    dtype, device = emissions.probs.dtype, where.here.device
    with_back = both or forward is not None
    turned = squares.turned
    assert turned is not None or not with_back
    if forward is None:
        joints = torch.empty(batch, steps + 1, slots, dtype=dtype, device=device)
        joints[:, begin] = 0 if message is None else message
        totals = torch.ones(batch, steps + 1, dtype=dtype, device=device)
        low = torch.zeros(2, batch, dtype=torch.int32, device=device)
    else:
        joints, totals, _, low = forward
    backs = joints
    if with_back:
        backs = torch.ones(batch, steps + 1, slots, dtype=dtype, device=device)
        if back is not None:
            backs[torch.arange(batch, device=device), ends] = back
    wide = max(16, triton.next_power_of_2(slots))
    strip, stages, warps = STRIPS[min(wide, max(STRIPS))]
    strip = min(wide, strip * 4 // dtype.itemsize)  # as many bytes
    _pass[(batch, 2 if both else 1)](
        ends, begin, steps, slots, line(slots), squares.shrink.shape[1], where.rows, where.here,
        where.before, _tiles(where), squares.probs, squares.probs if turned is None else turned,
        squares.shrink, log_init, log_init if start is None else start.contiguous(),
        emissions.probs, joints, totals, backs, low[0], low[1],
        LEAST=lowest(dtype), FORWARD=forward is None, BACK=with_back, WIDE=wide, STRIP=strip,
        STAGES=stages, SIDE=squares.side, EVEN=slots == wide, SHARED=where.shared is not None,
        BEST=best, STARTED=start is not None, num_warps=warps,
    )  # fmt: skip
    return Passed(joints, totals, backs, low)


STRIPS = {
    16: (16, 3, 1),
    32: (32, 3, 2),
    64: (64, 3, 2),
    128: (64, 3, 4),
    256: (64, 3, 8),
    512: (32, 3, 8),
    1024: (16, 3, 8),
}
"""For messages of a width: the rows of a float32 tile taken in at a time, how many such strips are
on their way or being worked on, and warps."""


def meet(
    squares: Squares, emissions: Emissions, passed: Passed, where: Map, ends: Tensor, times: Tensor
) -> Met:
    """Posteriors so many times for each row, and pairs: counts of a step are joint_i p_ij pair_j.

    Rows whose messages do not meet are marked in `low`.
    """
    batch, steps, slots = emissions.probs.shape
    posteriors, pairs = torch.empty_like(emissions.probs), torch.empty_like(emissions.probs)
    log_scales = torch.zeros_like(emissions.log_most)
    _meet[(batch * steps,)](
        ends, where.before, _tiles(where), steps, slots, emissions.probs, emissions.log_most,
        squares.log_most, passed.joints, passed.totals, passed.backs, times.contiguous(),
        posteriors, log_scales, pairs, passed.low[0],
        LEAST=lowest(posteriors.dtype), WIDE=triton.next_power_of_2(slots),
        SHARED=where.shared is not None, num_warps=4 if slots > 128 else 1,
    )  # fmt: skip
    return Met(posteriors, log_scales, pairs)
