"""Small random models of every kind."""

import torch
from torch import Tensor

from hmmlm.hmm import HMM, emission_table
from hmmlm.support import Support
from hmmlm.transitions import Dense, Factored

SUPPORTS = ("dense", "blocks", "uneven", "uniform", "ragged", "one")
TRANSITIONS = ("dense", "factored")


def make_support(kind: str) -> Support:
    generator = torch.Generator().manual_seed(3)
    if kind == "dense":
        return Support.dense(5, 3)
    if kind == "blocks":
        return Support.from_clusters([0, 1, 1, 0, 1], 2)
    if kind == "uneven":
        return Support.from_clusters([0, 1, 1, 0, 1], [1, 3])
    if kind == "uniform":
        return Support.uniform(5, 4, 2, generator)
    if kind == "ragged":
        return Support.ragged([[0, 1, 2], [2], [3, 0], [2], [1, 3]], 4)
    assert kind == "one"
    return Support.from_clusters([0, 1, 2, 2, 1], 1)


def make_hmm(
    support: str | Support = "dense",
    transitions: str = "dense",
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    scale: float = 1.5,
) -> HMM:
    """Random tables on a support."""
    support = make_support(support) if isinstance(support, str) else support
    generator = torch.Generator().manual_seed(seed)

    def noise(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64) * scale

    states = support.num_states
    if transitions == "dense":
        table = Dense(torch.log_softmax(noise(states, states), -1))
    else:
        table = Factored.normalise(noise(states, 2), noise(states, 2))
    emit = emission_table(noise(support.vocab_size, support.width), support)
    return HMM(torch.log_softmax(noise(states), 0), table, emit, support).validate().to(dtype=dtype)


def with_holes(hmm: HMM) -> HMM:
    """The same with every second transition impossible, and one start."""
    assert isinstance(hmm.transitions, Dense)
    table, init = hmm.transitions.log_trans.clone(), hmm.log_init.clone()
    cells = torch.arange(table.numel()).view_as(table)
    table[(cells + cells // len(table)) % 2 == 1] = -torch.inf
    init[0] = -torch.inf
    table, init = torch.log_softmax(table, -1), torch.log_softmax(init, 0)
    return HMM(init, Dense(table), hmm.log_emit, hmm.support).validate()
