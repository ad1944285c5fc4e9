"""Dense chains as Triton kernels: a launch for each step takes both passes one step on.

A step's messages lie in the slot after it: slot 0 of (B, T + 1, Z) stands before the first step.
Messages that products read are kept in the type of the matrix, `operand`; what is not a sum of
products stays float32. A matrix rounded to bfloat16 has rows that do not sum to one: predictions
are divided by what they sum to, so that they still do.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hmmlm.ops.kernels import is_interpreted, precision_of, product
from hmmlm.ops.messages.scaled import lowest


class Matrix(NamedTuple):
    """Transition probabilities (Z, Z) in some type, and what each row of them sums to, (Z,)."""

    probs: Tensor
    sums: Tensor

    @staticmethod
    def of(log_rows: Tensor, operand: torch.dtype) -> "Matrix":
        probs = log_rows.exp().to(operand).contiguous()
        return Matrix(probs, probs.sum(1, dtype=torch.float32))


class Passed(NamedTuple):
    """Both passes, (B, T + 1, Z) each, not yet over their sums; `low` (2, B) marks lost rows."""

    joints: Tensor
    messages: Tensor
    backs: Tensor
    weights: Tensor
    low: Tensor


class Met(NamedTuple):
    """Posteriors (B, T, Z), log scales (B, T), and the two sides of the counts, (B, T + 1, Z)."""

    posteriors: Tensor
    log_scales: Tensor
    messages: Tensor
    pairs: Tensor


@triton.jit
def _emission(log_emit, words, active, columns, Z):
    """p(word | state), 1 for a missing word (-1)."""
    where = log_emit + tl.maximum(words, 0)[:, None].to(tl.int64) * Z + columns[None, :]
    mask = active[:, None] & (columns < Z)[None, :]
    log_probs = tl.load(where, mask=mask, other=float("-inf"))
    return tl.where((words < 0)[:, None] & mask, 0.0, log_probs)


@triton.jit
def _mark(low, rows, small, B):
    lost = tl.max(small.to(tl.int32), 1)
    tl.store(low + rows, 1, mask=(rows < B) & (lost > 0))


@triton.jit
def _forward(
    time, probs, sums, initial, log_emit, tokens, restart, ends, joints, messages, low,
    B, T, Z, LEAST, ZERO,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    active = (rows < B) & (time < tl.load(ends + rows, mask=rows < B, other=0))
    before = (rows.to(tl.int64) * (T + 1) + time) * Z
    sum_of = tl.zeros([ROWS, COLUMNS], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    for first in range(0, Z, INNER):
        inner = first + tl.arange(0, INNER)
        message = tl.load(
            messages + before[:, None] + inner[None, :],
            mask=active[:, None] & (inner < Z)[None, :], other=0.0,
        )  # fmt: skip
        share = tl.load(sums + inner, mask=inner < Z, other=0.0)
        total += tl.sum(message.to(tl.float32) * share[None, :], 1)
        square = tl.load(
            probs + inner[:, None].to(tl.int64) * Z + columns[None, :],
            mask=(inner < Z)[:, None] & (columns < Z)[None, :], other=0.0,
        )  # fmt: skip
        sum_of = tl.dot(message, square, sum_of, input_precision=PRECISION)
    prediction = sum_of / tl.where(total > 0, total, 1.0)[:, None]
    fresh = tl.load(restart + rows * T + time, mask=active, other=0) != 0
    start = tl.load(initial + columns, mask=columns < Z, other=0.0)
    prediction = tl.where(fresh[:, None], start[None, :], prediction)
    words = tl.load(tokens + rows * T + time, mask=active, other=0)
    log_probs = _emission(log_emit, words, active, columns, Z)
    joint = prediction * tl.exp(log_probs)
    _mark(low, rows, (joint < LEAST) & (prediction > ZERO) & (log_probs > float("-inf")), B)
    where = before[:, None] + Z + columns[None, :]
    mask = active[:, None] & (columns < Z)[None, :]
    tl.store(joints + where, joint, mask=mask)
    tl.store(messages + where, joint.to(messages.dtype.element_ty), mask=mask)


@triton.jit
def _backward(
    time, probs, log_emit, tokens, restart, ends, backs, weights, low,
    B, T, Z, LEAST, ZERO,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """From step `time` to the one before it."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    real = rows < B
    after = (rows.to(tl.int64) * (T + 1) + time + 1) * Z
    sum_of = tl.zeros([ROWS, COLUMNS], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    active = real & (time < tl.load(ends + rows, mask=real, other=0))
    through = active & (tl.load(restart + rows * T + time, mask=active, other=1) == 0)
    for first in range(0, Z, INNER):
        inner = first + tl.arange(0, INNER)
        weight = tl.load(
            weights + after[:, None] + inner[None, :],
            mask=through[:, None] & (inner < Z)[None, :], other=0.0,
        )  # fmt: skip
        total += tl.sum(weight.to(tl.float32), 1)
        square = tl.load(
            probs + columns[:, None].to(tl.int64) * Z + inner[None, :],
            mask=(columns < Z)[:, None] & (inner < Z)[None, :], other=0.0,
        )  # fmt: skip
        sum_of = tl.dot(weight, tl.trans(square), sum_of, input_precision=PRECISION)
    back = sum_of / tl.where(total > 0, total, 1.0)[:, None]
    back = tl.where(through[:, None], back, 1.0)
    inside = (columns < Z)[None, :]
    _mark(low, rows, (back < LEAST) & (back > ZERO) & through[:, None] & inside, B)
    there = real & (time - 1 < tl.load(ends + rows, mask=real, other=0))
    words = tl.load(tokens + rows * T + time - 1, mask=there, other=-1)
    log_probs = _emission(log_emit, words, real, columns, Z)
    where = after[:, None] - Z + columns[None, :]
    mask = real[:, None] & inside
    tl.store(backs + where, back, mask=mask)
    weight = back * tl.exp(log_probs)
    tl.store(weights + where, weight.to(weights.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["ahead", "behind"])
def _step(
    ahead, behind, probs, sums, initial, log_emit, tokens, restart, ends, joints, messages, backs,
    weights, low, low_back, B, T, Z, LEAST, ZERO,
    FORWARD: tl.constexpr, BACK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    INNER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    if FORWARD and BACK:
        if tl.program_id(2) == 0:
            _forward(ahead, probs, sums, initial, log_emit, tokens, restart, ends, joints,
                     messages, low, B, T, Z, LEAST, ZERO, ROWS, COLUMNS, INNER,
                     PRECISION)  # fmt: skip
        else:
            _backward(behind, probs, log_emit, tokens, restart, ends, backs, weights, low_back,
                      B, T, Z, LEAST, ZERO, ROWS, COLUMNS, INNER, PRECISION)  # fmt: skip
    elif FORWARD:
        _forward(ahead, probs, sums, initial, log_emit, tokens, restart, ends, joints,
                 messages, low, B, T, Z, LEAST, ZERO, ROWS, COLUMNS, INNER, PRECISION)  # fmt: skip
    else:
        _backward(behind, probs, log_emit, tokens, restart, ends, backs, weights, low_back,
                  B, T, Z, LEAST, ZERO, ROWS, COLUMNS, INNER, PRECISION)  # fmt: skip


@triton.jit
def _meet(
    log_emit, tokens, restart, ends, times, joints, backs, posteriors, log_scales, messages, pairs,
    low, T, Z, LEAST, WIDE: tl.constexpr,
):  # fmt: skip
    """The two messages of a step met: its posterior, and what counts are made of."""
    step = tl.program_id(0).to(tl.int64)
    row, time = step // T, step % T
    slot = row * (T + 1) + time + 1
    inside_row = time < tl.load(ends + row)
    limit = tl.where(inside_row, Z, 0)
    word = tl.load(tokens + step)
    total, meet = 0.0, 0.0
    for first in range(0, Z, WIDE):
        columns = first + tl.arange(0, WIDE)
        mask = columns < limit
        joint = tl.load(joints + slot * Z + columns, mask=mask, other=0.0)
        back = tl.load(backs + slot * Z + columns, mask=mask, other=0.0)
        total += tl.sum(joint, 0)
        meet += tl.sum(joint * back, 0)
    if inside_row:
        tl.store(log_scales + step, tl.log(total))
        if meet < LEAST * total:
            tl.store(low + row, 1)
    good = inside_row & (meet >= LEAST * total) & (total > 0)
    share = tl.where(good, tl.load(times + row) / tl.where(good, meet, 1.0), 0.0)
    through = good & (tl.load(restart + step) == 0)
    over = tl.where(good, 1.0 / tl.where(good, total, 1.0), 0.0)
    for first in range(0, Z, WIDE):
        columns = first + tl.arange(0, WIDE)
        mask = columns < limit
        joint = tl.load(joints + slot * Z + columns, mask=mask, other=0.0)
        back = tl.load(backs + slot * Z + columns, mask=mask, other=0.0)
        where = log_emit + tl.maximum(word, 0).to(tl.int64) * Z + columns
        log_prob = tl.load(where, mask=mask, other=float("-inf"))
        emission = tl.where(word < 0, 1.0, tl.exp(log_prob))
        tl.store(posteriors + step * Z + columns, joint * back * share, mask=columns < Z)
        # Of this step as the one before, in its slot; and of the pair that ends here, in the slot
        # before, so that both sides of a product lie side by side.
        kind = pairs.dtype.element_ty
        tl.store(messages + slot * Z + columns, (joint * over).to(kind), mask=columns < Z)
        pair = tl.where(through, emission * back * share, 0.0)
        tl.store(pairs + (slot - 1) * Z + columns, pair.to(kind), mask=columns < Z)


def run(
    matrix: Matrix,
    initial: Tensor,
    log_emit: Tensor,
    tokens: Tensor,
    restart: Tensor,
    ends: Tensor,
    *,
    exact_zeros: bool,
    back: bool = True,
) -> Passed:
    """The forward pass over rows that start afresh, and with `back` the backward pass beside it.

    `ends` (B,) is the number of steps of each row. A zero is impossible if `exact_zeros`, and may
    have been lost if not. O(B T Z^2) time, O(B T Z) memory.
    """
    log_emit = log_emit.contiguous()
    (batch, steps), states = tokens.shape, len(initial)
    device, operand = tokens.device, matrix.probs.dtype
    size = (batch, steps + 1, states)
    joints = torch.empty(size, device=device)
    messages = torch.empty(size, device=device, dtype=operand)
    messages[:, 0] = 0
    backs, weights = (torch.empty_like(part) if back else part for part in (joints, messages))
    low = torch.zeros(2, batch, dtype=torch.int32, device=device)
    shape = _shape(states)
    grid = (triton.cdiv(batch, shape["ROWS"]), triton.cdiv(states, shape["COLUMNS"]), 1 + back)
    restart = restart.to(torch.int8)
    for time in range(steps):
        _step[grid](
            time, steps - time, matrix.probs, matrix.sums, initial, log_emit, tokens, restart,
            ends, joints, messages, backs, weights, low[0], low[1], batch, steps, states,
            lowest(torch.float32), 0.0 if exact_zeros else -1.0,
            FORWARD=True, BACK=back, PRECISION=precision_of(matrix.probs), **shape,
        )  # fmt: skip
    return Passed(joints, messages, backs, weights, low)


def meet(
    passed: Passed, log_emit: Tensor, tokens: Tensor, restart: Tensor, ends: Tensor, times: Tensor
) -> Met:
    """Posteriors so many times for each row, and both sides of the counts; marks lost rows."""
    log_emit = log_emit.contiguous()
    (batch, steps), states = tokens.shape, passed.joints.shape[2]
    posteriors = torch.empty(batch, steps, states, device=tokens.device)
    log_scales = torch.zeros(batch, steps, device=tokens.device)
    # The products have read the messages, so their place can be used again.
    messages, pairs = passed.messages, passed.weights
    pairs[:, -1] = 0
    _meet[(batch * steps,)](
        log_emit, tokens, restart.to(torch.int8), ends, times.contiguous(), passed.joints,
        passed.backs, posteriors, log_scales, messages, pairs, passed.low[0], steps, states,
        lowest(torch.float32), WIDE=min(1024, triton.next_power_of_2(states)), num_warps=4,
    )  # fmt: skip
    return Met(posteriors, log_scales, messages, pairs)


def pair_counts(matrix: Matrix, met: Met) -> Tensor:
    """Expected transitions, (Z, Z) in float32: p_ij sum_t message_i pair_j."""
    states = len(matrix.sums)
    messages, pairs = (part.view(-1, states) for part in (met.messages, met.pairs))
    return product(messages.T, pairs).mul_(matrix.probs)


def _shape(states: int) -> dict[str, int]:
    """The part of a step that a program makes: small enough that all processors have one."""
    if is_interpreted():
        return {"ROWS": 16, "COLUMNS": 16, "INNER": 16, "num_warps": 4, "num_stages": 2}
    if states <= 1024:
        return {"ROWS": 32, "COLUMNS": 32, "INNER": 128, "num_warps": 4, "num_stages": 3}
    return {"ROWS": 64, "COLUMNS": 128, "INNER": 64, "num_warps": 4, "num_stages": 3}
