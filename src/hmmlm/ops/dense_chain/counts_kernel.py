"""Where both passes over dense chains meet: posteriors and counts, as a Triton kernel.

Where both were made together it is known what lost digits could have changed. Neither message says
less than the truth, and what is no larger than the floor it was lifted to is doubtful. From step to
step the product of both changes by no more than its doubtful states have of it: where that is
SLIGHT of every step's, evidence and counts are as good as exact, and where not, the row has lost
digits. (Doubt has to be handed on by the messages: a path may be lost by one pass at one step and
by the other at another, and be the one that matters.)
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hmmlm.ops.dense_chain.kernel import Matrix, Passed
from hmmlm.ops.kernels import product
from hmmlm.ops.messages.scaled import lowest

SLIGHT = 1e-8
"""The share of a step's probability that digits which were lost may make."""


class Met(NamedTuple):
    """Posteriors (B, T, Z), log scales (B, T), and the two sides of the counts, (B, T + 1, Z).

    Rows (B,) that are `low` lost digits where both passes meet. Of other rows the sum of the log
    scales is exact; a single one need not be.
    """

    posteriors: Tensor
    log_scales: Tensor
    messages: Tensor
    pairs: Tensor
    low: Tensor


@triton.jit
def _doubt(parts, slot, P, enters, LEAST: tl.constexpr, SOME: tl.constexpr):
    """The floor of what was made from a slot of messages; 0 where none enters."""
    some = tl.arange(0, SOME)
    slot = tl.where(enters, slot, 0)
    total = tl.sum(tl.load(parts + slot * P + some, mask=some < P, other=0.0), 0)
    return tl.where(enters, 1.001 * LEAST / tl.maximum(total, LEAST), 0.0)  # it may be rounded


@triton.jit
def _meet(
    log_emit, tokens, restart, ends, times, joints, backs, parts, parts_back, posteriors,
    log_scales, messages, pairs, low, T, Z, P, LEAST: tl.constexpr, SLIGHT: tl.constexpr,
    TOGETHER: tl.constexpr, WIDE: tl.constexpr, SOME: tl.constexpr,
):  # fmt: skip
    """The two messages of a step met: its posterior, and what counts are made of."""
    step = tl.program_id(0).to(tl.int64)
    row, time = step // T, step % T
    slot = row * (T + 1) + time + 1
    inside_row = time < tl.load(ends + row)
    limit = tl.where(inside_row, Z, 0)
    word = tl.load(tokens + step)
    total = tl.zeros([], joints.dtype.element_ty)
    meet = tl.zeros([], joints.dtype.element_ty)
    doubtful = tl.zeros([], joints.dtype.element_ty)
    if TOGETHER:
        enters = tl.load(restart + step) == 0
        most = tl.maximum(_doubt(parts, slot - 1, P, enters, LEAST, SOME), LEAST)
        follows = time + 1 < tl.load(ends + row)
        follows = follows & (tl.load(restart + tl.where(follows, step + 1, step)) == 0)
        most_back = _doubt(parts_back, slot + 1, P, follows, LEAST, SOME)
    for first in range(0, Z, WIDE):
        columns = first + tl.arange(0, WIDE)
        mask = columns < limit
        joint = tl.load(joints + slot * Z + columns, mask=mask, other=0.0)
        back = tl.load(backs + slot * Z + columns, mask=mask, other=0.0)
        total += tl.sum(joint, 0)
        meet += tl.sum(joint * back, 0)
        if TOGETHER:
            either = mask & ((joint <= most) | (back <= most_back))
            doubtful += tl.sum(tl.where(either, joint * back, 0.0), 0)
    if inside_row:
        tl.store(log_scales + step, tl.log(total))
        if ((meet >= LEAST) & (doubtful <= SLIGHT * meet)) == 0:  # also where one is no number
            tl.store(low + row, 1)
    good = inside_row & (meet >= LEAST) & (total > 0)
    share = tl.where(good, tl.load(times + row) / tl.where(good, meet, 1.0), 0.0)
    through = good & (tl.load(restart + step) == 0)
    over = tl.where(good & (total >= LEAST), 1.0 / tl.where(good, total, 1.0), 0.0)
    for first in range(0, Z, WIDE):
        columns = first + tl.arange(0, WIDE)
        mask = columns < limit
        joint = tl.load(joints + slot * Z + columns, mask=mask, other=0.0)
        back = tl.load(backs + slot * Z + columns, mask=mask, other=0.0)
        where = log_emit + tl.maximum(word, 0).to(tl.int64) * Z + columns
        log_prob = tl.load(where, mask=mask, other=float("-inf"))
        emission = tl.where(word < 0, 1.0, tl.exp(log_prob.to(back.dtype)))
        tl.store(posteriors + step * Z + columns, joint * back * share, mask=columns < Z)
        # Of this step as the one before, in its slot; and of the pair that ends here, in the slot
        # before, so that both sides of a product lie side by side.
        kind = pairs.dtype.element_ty
        tl.store(messages + slot * Z + columns, (joint * over).to(kind), mask=columns < Z)
        pair = tl.where(through, emission * back * share, 0.0)
        tl.store(pairs + (slot - 1) * Z + columns, pair.to(kind), mask=columns < Z)


def meet(
    passed: Passed, log_emit: Tensor, tokens: Tensor, restart: Tensor, ends: Tensor, times: Tensor
) -> Met:
    """Posteriors so many times for each row, and both sides of the counts."""
    log_emit, tokens = log_emit.contiguous(), tokens.contiguous()
    restart = restart.to(torch.int8).contiguous()
    (batch, steps), states = tokens.shape, passed.joints.shape[2]
    posteriors = passed.joints.new_empty(batch, steps, states)
    log_scales = passed.joints.new_zeros(batch, steps)
    # The products have read the messages, so their place can be used again.
    messages, pairs = passed.messages, passed.weights
    pairs[:, -1] = 0
    low = torch.zeros(batch, dtype=torch.int32, device=tokens.device)
    parts, parts_back = passed.parts or (log_scales, log_scales)
    number = parts.shape[-1]
    _meet[(batch * steps,)](
        log_emit, tokens, restart, ends, times.contiguous(), passed.joints, passed.backs, parts,
        parts_back, posteriors, log_scales, messages, pairs, low, steps, states, number,
        lowest(posteriors.dtype), SLIGHT, TOGETHER=passed.parts is not None,
        WIDE=min(1024, triton.next_power_of_2(states)), SOME=triton.next_power_of_2(number),
        num_warps=4,
    )  # fmt: skip
    return Met(posteriors, log_scales, messages, pairs, low)


def pair_counts(matrix: Matrix, met: Met) -> Tensor:
    """Expected transitions, (Z, Z) in the type of `matrix.sums`: p_ij sum_t message_i pair_j."""
    states = len(matrix.sums)
    messages, pairs = (part.view(-1, states) for part in (met.messages, met.pairs))
    return product(messages.T, pairs).mul_(matrix.probs)
