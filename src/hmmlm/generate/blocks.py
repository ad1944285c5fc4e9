"""Sums over what words lead to from the states of an automaton, as products of matrices."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from hmmlm.generate.emissions import pieces

BLOCK = 128
"""States of an automaton whose sums are one product: more need fewer rows, but more sums."""


class Block(NamedTuple):
    """Some states of an automaton, and the kinds of words with the states that they lead to.

    Each pair once: states that do the same with most words share their products.
    """

    states: Int[Tensor, " N"]
    kinds: Int[Tensor, " U"]
    goals: Int[Tensor, " U"]
    which: Int[Tensor, "N C"]  # of the pairs


def make_blocks(goals: np.ndarray, device: torch.device) -> list[Block]:
    """Of states that each kind of word leads from to `goals`; those of like rows in one block."""
    size = int(goals.max()) + 1
    codes = np.arange(goals.shape[1]) * size + goals
    found = []
    for states in np.split(np.lexsort(goals.T), range(BLOCK, len(goals), BLOCK)):
        pairs, which = np.unique(codes[states], return_inverse=True)
        kinds, ahead = np.divmod(pairs, size)
        parts = (states, kinds, ahead, which.reshape(len(states), -1))
        found.append(Block(*(torch.from_numpy(part).to(device) for part in parts)))
    return found


def add_up(
    total: Float[Tensor, "S Z"],
    probs: Float[Tensor, "G Z"],
    shares: Float[Tensor, "C Z"],
    factors: Float[Tensor, "S C"],
    blocks: Sequence[Block],
) -> Float[Tensor, "S Z"]:
    """Adds sum_c factors[s, c] probs[goal of s and c] shares[c], as products of matrices."""
    step = max(1, pieces(total.device) // total.shape[1])
    for block in blocks:
        weights = total.new_zeros(len(block.states), len(block.kinds))
        weights.scatter_(1, block.which, factors[block.states])
        some = total[block.states]
        for first in range(0, len(block.kinds), step):
            part = slice(first, first + step)
            some.addmm_(weights[:, part], probs[block.goals[part]] * shares[block.kinds[part]])
        total[block.states] = some
    return total
