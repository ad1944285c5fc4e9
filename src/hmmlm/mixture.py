"""A mixture of HMMs, which is again an HMM: its parts side by side, and no way between them."""

import math
from collections.abc import Sequence
from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor

from hmmlm.errors import InputError, counted
from hmmlm.hmm import HMM
from hmmlm.support import Support
from hmmlm.transitions import FAR, Dense, Factored, Transitions

LARGEST = 1 << 30
"""Cells of a transition table that is made whole: those of parts that have one."""

LEAST = 1e-9
"""The least that a part may weigh: with none at all it would be no part."""

GAIN = 1e-6
"""Nats of all texts: weights that gain less in a round have settled."""


def mixture(hmms: Sequence[HMM], log_weights: Float[Tensor, " N"] | None = None) -> HMM:
    """The HMM with p(x) = sum_n weight_n p_n(x); parts weigh alike if nothing is said.

    Its states are those of the first part, then those of the second, and so on. A text begins in
    part n with its weight, and stays there. Where all transitions are factored and some words lack
    some states they stay so, with a further number for each part (`Factored.marks`): products
    within a part are the same as before, and those between parts are zeros. Words have the states
    that they have in any part: where all parts have the same blocks those are the blocks of the
    mixture.
    """
    weights = _check(hmms, log_weights)
    dtype = torch.float64 if any(h.dtype == torch.float64 for h in hmms) else torch.float32
    parts = [hmm.to(hmms[0].device, dtype) for hmm in hmms]
    support, order = _join_supports([part.support for part in parts])
    starts = [part.log_init + weight for part, weight in zip(parts, weights, strict=True)]
    emissions = torch.cat([part.log_emit for part in parts], 1)  # (V, sum of K)
    return HMM(
        torch.cat(starts).to(dtype),
        _join_transitions([part.transitions for part in parts], support),
        emissions.gather(1, order[support.row_of_word]).contiguous(),
        support,
    )


def check_parts(hmms: Sequence[HMM]) -> None:
    """Refuses what no mixture can be made of, before anything is asked of the parts. O(N V)."""
    _check(hmms, None)
    support, _ = _join_supports([hmm.support.to(hmms[0].device) for hmm in hmms])
    _stay_factored([hmm.transitions for hmm in hmms], support)


def learn_weights(
    log_evidence: Float[Tensor, "N S"], *, rounds: int = 10_000
) -> tuple[Float[Tensor, " N"], float]:
    """The log-weights of N parts that make S texts most probable, by EM, and log p of all texts.

    EM ends with a round that gains less than `GAIN`, or after so many. A part of no use ends with
    next to nothing, and with no less than `LEAST`.
    """
    held = log_evidence.double()
    if held.shape[1] == 0:
        raise InputError("There are no texts to find the weights on; give at least one.")
    lost = (~torch.isfinite(torch.logsumexp(held, 0))).nonzero()
    if len(lost):
        have = "has" if len(lost) == 1 else "have"
        raise InputError(
            f"{len(lost):,} of {counted(held.shape[1], 'text')} {have} probability zero under all "
            f"parts, or no number, the first is {int(lost[0]):,}, counted from 0; leave them out."
        )
    log_weights, last = held.new_full((len(held),), 1 / len(held)).log(), -math.inf
    for _ in range(rounds):
        joint = held + log_weights[:, None]
        each = torch.logsumexp(joint, 0)
        if float(each.sum()) - last < GAIN:
            break
        last = float(each.sum())
        shares = (joint - each).exp().mean(1)
        log_weights = torch.log_softmax(shares.clamp(min=LEAST).log(), 0)
    return log_weights, float(torch.logsumexp(held + log_weights[:, None], 0).sum())


def _check(hmms: Sequence[HMM], log_weights: Tensor | None) -> Float[Tensor, " N"]:
    """The log-weights in float64, after checking that there is something to mix."""
    if not hmms:
        raise InputError("A mixture needs at least one HMM.")
    sizes = [hmm.vocab_size for hmm in hmms]
    if len(set(sizes)) > 1:
        raise InputError(
            f"The parts of a mixture have {', '.join(f'{size:,}' for size in sizes)} words but "
            f"must have the same; train them on the same vocabulary."
        )
    if any(hmm.state_ids is not None or hmm.source_ids is not None for hmm in hmms):
        raise InputError("A part of a mixture has some states of a larger HMM; give the whole one.")
    if any(hmm.num_soft for hmm in hmms):
        raise InputError("A part of a mixture has soft evidence; give the one without.")
    if log_weights is None:
        log_weights = torch.zeros(len(hmms))
    log_weights = log_weights.to(hmms[0].device, torch.float64)
    if log_weights.shape != (len(hmms),) or not torch.isfinite(log_weights).all():
        raise InputError(
            f"log_weights must be {len(hmms):,} finite numbers, one for each part; got "
            f"{log_weights.tolist()}."
        )
    return torch.log_softmax(log_weights, 0)


def _join_supports(supports: Sequence[Support]) -> tuple[Support, Tensor]:
    """What each word has in all parts, and which of the slots side by side a slot took, (R, K)."""
    words = torch.stack([support.row_of_word for support in supports], 1)  # (V, N)
    kinds, row_of_word = words.unique(dim=0, return_inverse=True)
    firsts = [0, *accumulate(support.num_states for support in supports)]
    rows = []
    for place, (first, support) in enumerate(zip(firsts, supports, strict=False)):
        own = support.rows[kinds[:, place]]
        rows.append(torch.where(own >= 0, own + first, -1))
    side_by_side = torch.cat(rows, 1)  # (R, sum of K)
    order = torch.sort((side_by_side < 0).to(torch.uint8), dim=1, stable=True).indices
    order = order[:, : int((side_by_side >= 0).sum(1).max())]
    return Support(side_by_side.gather(1, order), row_of_word, firsts[-1]), order


def _stay_factored(tables: Sequence[Transitions], support: Support) -> bool:
    """Whether transitions on this support stay factored; a table must not be too large."""
    if all(isinstance(table, Factored) for table in tables) and not support.is_dense:
        return True
    states = sum(table.num_states for table in tables)
    if states**2 > LARGEST:
        raise InputError(
            f"The mixture has {states:,} states and a transition table of {states**2:,} cells, but "
            f"{LARGEST:,} is the most; mix models of kind lowrank or mlp in blocks."
        )
    return False


def _join_transitions(tables: Sequence[Transitions], support: Support) -> Transitions:
    if _stay_factored(tables, support):
        return _join_factors([table for table in tables if isinstance(table, Factored)])
    states = sum(table.num_states for table in tables)
    blocks = [table.rows(0, table.num_states) for table in tables]
    made = blocks[0].new_full((states, states), -torch.inf)
    first = 0
    for block in blocks:
        made[first : first + len(block), first : first + len(block)] = block
        first += len(block)
    return Dense(made)


def _join_factors(tables: Sequence[Factored]) -> Factored:
    """left . right as before within a part, with -FAR added between two.

    A table that has marks keeps them, as the parts that it is made of.
    """
    width = max(table.width for table in tables)
    numbers = [max(1, table.marks) for table in tables]
    firsts, marks = [0, *accumulate(numbers)], sum(numbers)
    lefts, rights = [], []
    for first, number, table in zip(firsts, numbers, tables, strict=False):
        own = slice(width + first, width + first + number)
        for factor, held, between, within in (
            (table.left, lefts, -FAR, 0.0),
            (table.right, rights, 0.0, 1.0),
        ):
            wide = factor.new_zeros(len(factor), width + marks)
            wide[:, : table.width] = factor[:, : table.width]
            wide[:, width:] = between
            wide[:, own] = factor[:, table.width :] if table.marks else within
            held.append(wide)
    norms = torch.cat([table.log_norm for table in tables])
    return Factored(torch.cat(lefts), torch.cat(rights), norms, marks=marks)
