"""Tokens whose states are known: log p(words, states), a sum of cells of the tables."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from hmmlm.hmm import HMM
from hmmlm.transitions import Dense


def joint_log_prob(
    hmm: HMM,
    tokens: Int[Tensor, "B T"],
    states: Int[Tensor, "B T"],
    *,
    lengths: Int[Tensor, " B"] | None = None,
    restart: Bool[Tensor, "B T"] | None = None,
    reset_id: int | None = None,
) -> Float[Tensor, " B"]:
    """log p(x, z) of each row; its gradient is the number of times that each cell is used.

    `states` are global ids (what stands past `lengths` does not matter); one that may not emit its
    word makes a row -inf. A row begins from p(z1), and so does a chain that starts afresh, at
    `restart` and after `reset_id`. Nothing waits for the device. O(B T (H + K)), on dense supports
    O(B T H).
    """
    begins = torch.zeros_like(tokens, dtype=torch.bool)
    if restart is not None:
        begins |= restart
    if reset_id is not None:
        begins[:, 1:] |= tokens[:, :-1] == reset_id
    begins[:, 0] = True
    inside = torch.ones_like(begins)
    if lengths is not None:
        inside = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
    # What is past the end may be any number: it becomes one that is there.
    words, states = (torch.where(inside, part, 0) for part in (tokens, states))
    cells = hmm.log_init[states].where(begins, _moves(hmm, states.roll(1, 1), states))
    cells = cells + _emissions(hmm, words, states)
    return torch.where(inside, cells, 0.0).sum(1)


def _moves(
    hmm: HMM, sources: Int[Tensor, "B T"], states: Int[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """log p(state | source)."""
    table = hmm.transitions
    if isinstance(table, Dense):
        return table.log_trans[sources, states]
    left, right = F.embedding(sources, table.left), F.embedding(states, table.right)
    return table.with_zeros((left * right).sum(2) - table.log_norm[sources])


def _emissions(
    hmm: HMM, words: Int[Tensor, "B T"], states: Int[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """log p(word | state)."""
    if hmm.support.is_dense:
        return hmm.log_emit[words, states]
    slots = hmm.support.slots_of(words, states)
    return torch.where(slots >= 0, hmm.log_emit[words, slots.clamp(min=0)], -torch.inf)
