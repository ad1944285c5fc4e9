"""Dense chains as Triton kernels: a launch for each step takes both passes one step on.

A step's messages lie in the slot after it: slot 0 of (B, T + 1, Z) stands before the first step.
A program makes some columns of some rows, and what they sum to, for the step after to divide by.
Messages that products read are kept in the type of the matrix, `operand`; what is not a sum of
products stays float32, or is float64 as well where the matrix is. A matrix rounded to bfloat16 has
rows that do not sum to one: predictions are divided by what they sum to, so that they still do.

Passes that are made together (`FLOOR`) never say less than the truth: what may have lost digits is
as much as it can be. Where they meet, that tells what was lost from what matters.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hmmlm.ops.kernels import is_interpreted, product
from hmmlm.ops.messages.scaled import lowest

FUSED = 1024
"""States up to which a product in the kernel that uses it beats one by torch before it."""

PRODUCT, MADE, BEST = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
"""How a step is made: a product in the kernel, one made before it, or the largest for the sum."""


class Matrix(NamedTuple):
    """Transition probabilities (Z, Z) in some type, and what each row of them sums to, (Z,)."""

    probs: Tensor
    sums: Tensor

    @staticmethod
    def of(log_rows: Tensor, operand: torch.dtype) -> "Matrix":
        wide = torch.float64 if operand == torch.float64 else torch.float32
        probs = log_rows.to(wide).exp().to(operand).contiguous()
        return Matrix(probs, probs.sum(1, dtype=wide))


class Passed(NamedTuple):
    """Both passes, (B, T + 1, Z) each, not yet over their sums.

    `low` (2, B) marks rows in which a possible state lost digits on one of the passes; `parts`, if
    both were made together, are the sums of messages and of weights in parts, (B, T + 1, P).
    """

    joints: Tensor
    messages: Tensor
    backs: Tensor
    weights: Tensor
    low: Tensor
    parts: tuple[Tensor, Tensor] | None = None


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
def _product(
    messages, at, probs, columns, Z, FROM, TO,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """sum_i message_i p_ij; an entry of the matrix is FROM i + TO j away from its first."""
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, Z, INNER):
        inner = first + tl.arange(0, INNER)
        message_at = messages + at[:, None] + inner[None, :]
        square_at = probs + inner[:, None].to(tl.int64) * FROM + columns[None, :].to(tl.int64) * TO
        if EVEN:
            message, square = tl.load(message_at), tl.load(square_at)
        else:
            message = tl.load(message_at, mask=(inner < Z)[None, :], other=0.0)
            mask = (inner < Z)[:, None] & (columns < Z)[None, :]
            square = tl.load(square_at, mask=mask, other=0.0)
        sums = tl.dot(message, square, sums, input_precision=PRECISION)
    return sums


@triton.jit
def _best(
    messages, at, probs, columns, Z,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, STAGES: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """max_i message_i p_ij."""
    best = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in tl.range(0, Z, INNER, num_stages=STAGES):
        inner = first + tl.arange(0, INNER)
        message_at = messages + at[:, None] + inner[None, :]
        square_at = probs + inner[:, None].to(tl.int64) * Z + columns[None, :]
        if EVEN:
            message, square = tl.load(message_at), tl.load(square_at)
        else:
            message = tl.load(message_at, mask=(inner < Z)[None, :], other=0.0)
            mask = (inner < Z)[:, None] & (columns < Z)[None, :]
            square = tl.load(square_at, mask=mask, other=0.0)
        best = tl.maximum(best, tl.max(message[:, :, None] * square[None, :, :], 1))
    return best


@triton.jit
def _parts(parts, slots, P, WIDE: tl.constexpr, BEST: tl.constexpr):
    """What a message of each row comes to, from the parts of it that programs made."""
    some = tl.arange(0, WIDE)
    values = tl.load(
        parts + slots[:, None] * P + some[None, :], mask=(some < P)[None, :], other=0.0
    )
    if BEST:
        return tl.max(values, 1)
    return tl.sum(values, 1)


@triton.jit
def _forward(
    time, part, made, probs, sums, initial, log_emit, tokens, restart, ends, joints, messages,
    parts, low, B, T, Z, P, LEAST: tl.constexpr, ZERO,
    FLOOR: tl.constexpr, HOW: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    INNER: tl.constexpr, STAGES: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """To the slot after step `time`, from the one before. What is past a row's end is not kept."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = part * COLUMNS + tl.arange(0, COLUMNS)
    active = (rows < B) & (time < tl.load(ends + rows, mask=rows < B, other=0))
    safe = tl.minimum(rows, B - 1).to(tl.int64)
    before = (safe * (T + 1) + time) * Z
    mask = active[:, None] & (columns < Z)[None, :]
    if HOW == MADE:
        sum_of = tl.load(made + safe[:, None] * Z + columns[None, :], mask=mask, other=0.0)
    elif HOW == BEST:
        sum_of = _best(messages, before, probs, columns, Z, ROWS, COLUMNS, INNER, STAGES, EVEN)
    else:
        sum_of = _product(messages, before, probs, columns, Z, Z, 1, ROWS, COLUMNS, INNER, EVEN,
                          PRECISION)  # fmt: skip
    total = _parts(parts, safe * (T + 1) + time, P, WIDE, HOW == BEST)
    prediction = sum_of / tl.where(total > 0, total, 1.0)[:, None]
    if FLOOR:
        prediction = tl.maximum(prediction, (LEAST / tl.maximum(total, LEAST))[:, None])
    fresh = tl.load(restart + safe * T + time, mask=active, other=0) != 0
    start = tl.load(initial + columns, mask=columns < Z, other=0.0)
    prediction = tl.where(fresh[:, None], start[None, :], prediction)
    words = tl.load(tokens + safe * T + time, mask=active, other=0)
    log_probs = _emission(log_emit, words, active, columns, Z).to(joints.dtype.element_ty)
    joint = prediction * tl.exp(log_probs)
    if FLOOR:
        joint = tl.where(log_probs > float("-inf"), tl.maximum(joint, LEAST), joint)
    small = (joint < LEAST) | ((sum_of < LEAST) & (fresh == 0)[:, None])
    _mark(low, rows, small & (prediction > ZERO) & (log_probs > float("-inf")), B)
    where = before[:, None] + Z + columns[None, :]
    tl.store(joints + where, joint, mask=mask)
    joint = tl.where(mask, joint, 0.0)
    at = parts + (safe * (T + 1) + time + 1) * P + part
    if HOW == BEST:
        tl.store(at, tl.max(joint, 1), mask=active)
    else:
        kept = joint.to(messages.dtype.element_ty)
        tl.store(messages + where, kept, mask=mask)
        share = tl.load(sums + columns, mask=columns < Z, other=0.0)
        tl.store(at, tl.sum(kept.to(share.dtype) * share[None, :], 1), mask=active)


@triton.jit
def _backward(
    time, part, made, probs, log_emit, tokens, restart, ends, given, backs, weights, parts, low,
    B, T, Z, P, LEAST: tl.constexpr, ZERO,
    FLOOR: tl.constexpr, HOW: tl.constexpr, GIVEN: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, INNER: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """To the slot before step `time`, from the one after it."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = part * COLUMNS + tl.arange(0, COLUMNS)
    real = rows < B
    safe = tl.minimum(rows, B - 1).to(tl.int64)
    slot = safe * (T + 1) + time
    after = tl.where(time < T, slot + 1, slot)  # there is none after the last, nor is it read
    mask = real[:, None] & (columns < Z)[None, :]
    if HOW == MADE:
        sum_of = tl.load(made + safe[:, None] * Z + columns[None, :], mask=mask, other=0.0)
    else:
        sum_of = _product(weights, after * Z, probs, columns, Z, 1, Z, ROWS, COLUMNS, INNER, EVEN,
                          PRECISION)  # fmt: skip
    total = _parts(parts, after, P, WIDE, False)
    end = tl.load(ends + rows, mask=real, other=0)
    active = real & (time < end)
    through = active & (tl.load(restart + safe * T + time, mask=active, other=1) == 0)
    back = sum_of / tl.where(total > 0, total, 1.0)[:, None]
    if FLOOR:
        back = tl.maximum(back, (LEAST / tl.maximum(total, LEAST))[:, None])
    back = tl.where(through[:, None], back, 1.0)
    if GIVEN:
        entering = tl.load(given + safe[:, None] * Z + columns[None, :], mask=mask, other=1.0)
        back = tl.where((time == end)[:, None], entering, back)
    inside = (columns < Z)[None, :]
    small = (back < LEAST) | (sum_of < LEAST)
    _mark(low, rows, small & (back > ZERO) & through[:, None] & inside, B)
    there = real & (end * 0 + time > 0) & (time - 1 < end)
    words = tl.load(tokens + safe * T + time - 1, mask=there, other=-1)
    log_probs = _emission(log_emit, words, real, columns, Z).to(backs.dtype.element_ty)
    where = slot[:, None] * Z + columns[None, :]
    tl.store(backs + where, back, mask=mask)
    weight = tl.where(mask, back * tl.exp(log_probs), 0.0).to(weights.dtype.element_ty)
    tl.store(weights + where, weight, mask=mask)
    tl.store(parts + slot * P + part, tl.sum(weight.to(back.dtype), 1), mask=real)


@triton.jit(do_not_specialize=["ahead", "behind"])
def _step(
    ahead, behind, made, made_back, probs, sums, initial, log_emit, tokens, restart, ends, given,
    joints, messages, parts, backs, weights, parts_back, low, low_back, B, T, Z, P,
    LEAST: tl.constexpr, ZERO, FLOOR: tl.constexpr,
    FORWARD: tl.constexpr, BACK: tl.constexpr, HOW: tl.constexpr, GIVEN: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, STAGES: tl.constexpr,
    WIDE: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(1)
    if FORWARD and (not BACK or tl.program_id(2) == 0):
        _forward(ahead, part, made, probs, sums, initial, log_emit, tokens, restart, ends, joints,
                 messages, parts, low, B, T, Z, P, LEAST, ZERO, FLOOR, HOW, ROWS, COLUMNS, INNER,
                 STAGES, WIDE, EVEN, PRECISION)  # fmt: skip
    if BACK and (not FORWARD or tl.program_id(2) == 1):
        _backward(behind, part, made_back, probs, log_emit, tokens, restart, ends, given, backs,
                  weights, parts_back, low_back, B, T, Z, P, LEAST, ZERO, FLOOR, HOW, GIVEN, ROWS,
                  COLUMNS, INNER, WIDE, EVEN, PRECISION)  # fmt: skip


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
    message: Tensor | None = None,
    fused: bool | None = None,
) -> Passed:
    """The forward pass, and with `back` the backward pass beside it.

    `message` (B, Z) comes from before the first step; without it all rows start afresh. `ends` (B,)
    is the number of steps of each row. A zero is impossible if `exact_zeros`, and may have been
    lost if not. Products are made in the kernel if `fused`, by default those of bfloat16.
    O(B T Z^2) time, O(B T Z) memory.
    """
    steps = _Steps(matrix, initial, log_emit, tokens, restart, ends, exact_zeros, fused)
    steps.enter(message)
    steps.together = back
    if back:
        steps.enter_back(None)
    if back and steps.how == MADE.value and tokens.is_cuda:
        # Neither pass fills the device, so that they run side by side.
        here, other = torch.cuda.current_stream(), torch.cuda.Stream()
        other.wait_stream(here)
        for time in range(steps.steps):
            steps.take(time, None)
            with torch.cuda.stream(other):
                steps.take(None, steps.steps - time)
        here.wait_stream(other)
        return steps.passed()
    for time in range(steps.steps):
        steps.take(time, steps.steps - time if back else None)
    return steps.passed()


def run_back(
    matrix: Matrix,
    log_emit: Tensor,
    tokens: Tensor,
    restart: Tensor,
    ends: Tensor,
    joints: Tensor,
    back: Tensor | None,
    *,
    exact_zeros: bool,
    fused: bool | None = None,
) -> Passed:
    """The backward pass after a forward pass, down to slot 0.

    `back` (B, Z) is what comes back into each row's last step, all ones if None.
    """
    steps = _Steps(matrix, matrix.sums, log_emit, tokens, restart, ends, exact_zeros, fused)
    steps.joints = steps.messages = joints
    steps.enter_back(back)
    for time in range(steps.steps, -1, -1):
        steps.take(None, time)
    return steps.passed()


def run_best(
    matrix: Matrix,
    initial: Tensor,
    log_emit: Tensor,
    tokens: Tensor,
    restart: Tensor,
    ends: Tensor,
    *,
    exact_zeros: bool,
    message: Tensor | None = None,
) -> Passed:
    """The forward pass over best paths in place of all: the largest takes the place of the sum."""
    steps = _Steps(matrix, initial, log_emit, tokens, restart, ends, exact_zeros, True, best=True)
    steps.enter(message)
    for time in range(steps.steps):
        steps.take(time, None)
    return steps.passed()


class _Steps:
    """The launches of a pass or two, and what they read and write."""

    def __init__(
        self, matrix, initial, log_emit, tokens, restart, ends, exact_zeros, fused, best=False
    ) -> None:
        operand, self.matrix = matrix.probs.dtype, matrix
        if fused is None:
            fused = operand.itemsize < 4 and len(matrix.sums) <= FUSED
        (self.batch, self.steps), self.states = tokens.shape, len(matrix.sums)
        self.how = (BEST if best else PRODUCT if fused else MADE).value
        self.shape = _shape(self.states, self.how)
        self.columns = triton.cdiv(self.states, self.shape["COLUMNS"])
        self.given = (initial, log_emit.contiguous(), tokens.contiguous())
        self.restart, self.ends = restart.to(torch.int8).contiguous(), ends
        self.zero = 0.0 if exact_zeros else -1.0
        self.device, self.operand = tokens.device, operand
        self.wide, self.together = matrix.sums.dtype, False
        size = (self.batch, self.steps + 1)
        self.parts, self.parts_back = (
            torch.zeros(*size, self.columns, device=self.device, dtype=self.wide) for _ in range(2)
        )
        self.size = (*size, self.states)
        self.low = torch.zeros(2, self.batch, dtype=torch.int32, device=self.device)
        self.back = self.backs = self.weights = None
        # What is made before its kernel: a product of each kind.
        self.made = self.made_back = self.parts
        if not fused:
            size = (2, self.batch, self.states)
            self.made, self.made_back = torch.zeros(size, device=self.device, dtype=self.wide)

    def enter(self, message: Tensor | None) -> None:
        make = torch.zeros if self.how == BEST.value else torch.empty  # past an end it reads on
        self.joints = self.messages = make(self.size, device=self.device, dtype=self.wide)
        if self.operand != self.wide:
            self.messages = torch.empty(self.size, device=self.device, dtype=self.operand)
        self.messages[:, 0] = 0 if message is None else message
        if message is not None:
            self.joints[:, 0] = message
            entered = self.messages[:, 0].to(self.wide)
            total = entered.amax(1) if self.how == BEST.value else entered @ self.matrix.sums
            self.parts[:, 0, 0] = total

    def enter_back(self, back: Tensor | None) -> None:
        self.back = back
        self.backs = torch.empty(self.size, device=self.device, dtype=self.wide)
        self.weights = torch.empty(self.size, device=self.device, dtype=self.operand)

    def take(self, ahead: int | None, behind: int | None) -> None:
        """The step `ahead`, and the one back over step `behind`."""
        probs, sums = self.matrix
        weights = self.messages if self.weights is None else self.weights
        if self.how == MADE.value:
            if ahead is not None:
                product(self.messages[:, ahead], probs, out=self.made)
            if behind is not None and behind < self.steps:
                product(weights[:, behind + 1], probs.T, out=self.made_back)
        initial, log_emit, tokens = self.given
        precision = "ieee" if probs.dtype == torch.float32 else "tf32"
        grid = (
            triton.cdiv(self.batch, self.shape["ROWS"]),
            self.columns,
            (ahead is not None) + (behind is not None),
        )
        _step[grid](
            ahead or 0, behind or 0, self.made, self.made_back, probs, sums, initial, log_emit,
            tokens, self.restart, self.ends, self.made if self.back is None else self.back,
            self.joints, self.messages, self.parts,
            self.joints if self.backs is None else self.backs, weights, self.parts_back,
            self.low[0], self.low[1], self.batch, self.steps, self.states, self.columns,
            lowest(self.wide), self.zero, FLOOR=self.together,
            FORWARD=ahead is not None, BACK=behind is not None, HOW=self.how,
            GIVEN=self.back is not None, WIDE=triton.next_power_of_2(self.columns),
            EVEN=self.states % self.shape["COLUMNS"] == self.states % self.shape["INNER"] == 0,
            STAGES=self.shape["num_stages"], PRECISION=precision, **self.shape,
        )  # fmt: skip

    def passed(self) -> Passed:
        backs = self.joints if self.backs is None else self.backs
        weights = self.messages if self.weights is None else self.weights
        parts = (self.parts, self.parts_back) if self.together else None
        return Passed(self.joints, self.messages, backs, weights, self.low, parts)


def _shape(states: int, how: int) -> dict[str, int]:
    """The part of a step that a program makes: small enough that all processors have one."""
    if is_interpreted():
        return {"ROWS": 16, "COLUMNS": 16, "INNER": 16, "num_warps": 4, "num_stages": 2}
    if how == BEST.value:
        return {"ROWS": 8, "COLUMNS": 128, "INNER": 16, "num_warps": 4, "num_stages": 3}
    if how == MADE.value:
        return {"ROWS": 8, "COLUMNS": 256, "INNER": 16, "num_warps": 4, "num_stages": 1}
    rows = 16 if states <= 512 else 32
    return {"ROWS": rows, "COLUMNS": 64, "INNER": 128, "num_warps": 4, "num_stages": 3}
