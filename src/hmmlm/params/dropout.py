"""State dropout: which states a training step keeps (Chiu & Rush 2020, section 5)."""

import math

import torch
from jaxtyping import Int
from torch import Tensor

from hmmlm.errors import InputError
from hmmlm.support import Support


def keep_states(
    support: Support,
    rate: float,
    generator: torch.Generator,
    words: Int[Tensor, "..."] | None = None,
) -> Int[Tensor, " S"]:
    """The states to keep, drawn uniformly: a fixed number of each block, at least one.

    Where rows are not blocks it is a fixed number of all states, and each of `words`, the ids of a
    batch (-1 is none), that would lose all of its states keeps one. O(R K log K).
    """
    check_rate(rate)
    device = generator.device
    if support.is_partition:
        rows = support.rows.to(device)
        scores = torch.rand(rows.shape, generator=generator, device=device)
        scores = scores.masked_fill(rows < 0, -1.0)
        sizes = (rows >= 0).sum(1)
        keep = torch.ceil(sizes.double() * (1 - rate) - 1e-9).long()
        rank = scores.argsort(1, descending=True).argsort(1)
        return rows[rank < keep[:, None]]
    count = math.ceil(support.num_states * (1 - rate) - 1e-9)
    kept = torch.randperm(support.num_states, generator=generator, device=device)[:count]
    if words is not None:
        kept = torch.cat([kept, _one_each(support, kept, generator, words.to(device))])
    return kept.sort().values


def check_rate(rate: float) -> None:
    """Refuses a rate that would keep no state."""
    if not 0 <= rate < 1:
        raise InputError(
            f"The state dropout is {rate} but must be at least 0 and less than 1, or no state "
            f"would be kept."
        )


def _one_each(
    support: Support, kept: Tensor, generator: torch.Generator, words: Tensor
) -> Int[Tensor, " N"]:
    """A state for each word that has none among those kept."""
    rows = support.rows.to(words.device)[
        support.row_of_word.to(words.device)[words[words >= 0].unique()]
    ]
    lost = rows[~torch.isin(rows, kept).any(1)]
    if not len(lost):
        return kept[:0]
    scores = torch.rand(lost.shape, generator=generator, device=lost.device)
    place = scores.masked_fill(lost < 0, -1.0).argmax(1, keepdim=True)
    return lost.gather(1, place)[:, 0].unique()
