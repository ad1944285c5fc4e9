"""An HMM whose distributions are flatter, or sharper, than they were learnt."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from hmmlm.errors import InputError
from hmmlm.hmm import HMM, emission_table, renormalise
from hmmlm.ops.normaliser import log_normaliser
from hmmlm.transitions import Dense, Factored, whole_norms

LEAST_POWER, MOST_POWER = 1e-6, 100.0
"""Far beyond them a power is 0 or logarithms are infinite in float32, and products NaN."""


@torch.no_grad()
def tempered(hmm: HMM, *, emit: float = 1.0, trans: float = 1.0) -> HMM:
    """The HMM with p(x | z) in proportion to p(x | z)^emit, and p(z' | z) to p(z' | z)^trans.

    What was zero stays zero. A power under 1 flattens: of a model that knows its training text too
    well the emissions of rare words most of all. p(z1) stays. O(V K) time, and O(Z^2 H) if `trans`
    is not 1. Soft evidence is of the emissions as they were, so it comes after (`soften`).
    """
    for name, power in (("emit", emit), ("trans", trans)):
        if not 0 < power < math.inf:
            raise InputError(f"{name} is {power} but must be over 0 and finite; 1 changes nothing.")
        if not LEAST_POWER <= power <= MOST_POWER:
            raise InputError(
                f"{name} is {power:g} but must lie between {LEAST_POWER:g}, which makes all that "
                f"is possible alike, and {MOST_POWER:g}, which leaves little but the most probable."
            )
    if hmm.num_soft:
        raise InputError(
            "The HMM has soft evidence, which is of its emissions; temper first, then soften."
        )
    hmm = hmm.detach()
    if emit != 1:
        hmm = replace(hmm, log_emit=emission_table(emit * hmm.log_emit, hmm.support))
    table = hmm.transitions
    if trans != 1 and isinstance(table, Factored):
        left = table.left.clone()
        left[:, : table.width] *= trans
        norms = whole_norms(log_normaliser(left, table.right), table.marks)
        table = Factored(left, table.right, norms, marks=table.marks)
    elif trans != 1 and isinstance(table, Dense):
        table = Dense(renormalise(trans * table.log_trans))
    return replace(hmm, transitions=table)


def lowest(cost: Callable[[float], float], low: float, high: float, rounds: int = 7) -> float:
    """Where a cost with one valley between two numbers is lowest, and not higher than at 1.

    A golden section: `rounds` + 1 values are asked for, and that of 1.
    """
    golden = (math.sqrt(5) - 1) / 2
    known = {1.0: cost(1.0)}

    def ask(place: float) -> float:
        if place not in known:
            known[place] = cost(place)
        return known[place]

    left, right = high - golden * (high - low), low + golden * (high - low)
    for _ in range(rounds):
        if ask(left) < ask(right):
            high, right = right, left
            left = high - golden * (high - low)
        else:
            low, left = left, right
            right = low + golden * (high - low)
    return min(known, key=known.__getitem__)
