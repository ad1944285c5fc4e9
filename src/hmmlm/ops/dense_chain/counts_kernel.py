"""Where both passes over dense chains meet: posteriors and counts, as a Triton kernel."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hmmlm.ops.dense_chain.kernel import Matrix, Passed
from hmmlm.ops.kernels import product
from hmmlm.ops.messages.scaled import lowest


class Met(NamedTuple):
    """Posteriors (B, T, Z), log scales (B, T), and the two sides of the counts, (B, T + 1, Z)."""

    posteriors: Tensor
    log_scales: Tensor
    messages: Tensor
    pairs: Tensor


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
        if meet < LEAST:
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
        emission = tl.where(word < 0, 1.0, tl.exp(log_prob))
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
    """Posteriors so many times for each row, and both sides of the counts; marks lost rows."""
    log_emit, tokens = log_emit.contiguous(), tokens.contiguous()
    restart = restart.to(torch.int8).contiguous()
    (batch, steps), states = tokens.shape, passed.joints.shape[2]
    posteriors = torch.empty(batch, steps, states, device=tokens.device)
    log_scales = torch.zeros(batch, steps, device=tokens.device)
    # The products have read the messages, so their place can be used again.
    messages, pairs = passed.messages, passed.weights
    pairs[:, -1] = 0
    _meet[(batch * steps,)](
        log_emit, tokens, restart, ends, times.contiguous(), passed.joints,
        passed.backs, posteriors, log_scales, messages, pairs, passed.low[0], steps, states,
        lowest(torch.float32), WIDE=min(1024, triton.next_power_of_2(states)), num_warps=4,
    )  # fmt: skip
    return Met(posteriors, log_scales, messages, pairs)


def pair_counts(matrix: Matrix, met: Met) -> Tensor:
    """Expected transitions, (Z, Z) in float32: p_ij sum_t message_i pair_j."""
    states = len(matrix.sums)
    messages, pairs = (part.view(-1, states) for part in (met.messages, met.pairs))
    return product(messages.T, pairs).mul_(matrix.probs)
