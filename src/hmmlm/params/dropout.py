"""State dropout: which states a training step keeps (Chiu & Rush 2020, section 5)."""

import math

import torch
from jaxtyping import Int
from torch import Tensor

from hmmlm.errors import InputError
from hmmlm.ops.kernels import why_not
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
    kept = make_keeper(support.to(device), rate).draw(generator)
    if words is None or support.is_partition:
        return kept
    more = _one_each(support, kept, generator, words.to(device))
    return torch.cat([kept, more]).sort().values


class Keeper:
    """Draws the states to keep of blocks: always as many of each.

    The kept states are numbered block by block, so the `support` on them is always the same, and a
    draw waits for nothing on the device.
    """

    def __init__(self, support: Support, rate: float) -> None:
        check_rate(rate)
        self.rows = support.rows  # (R, K)
        sizes = (self.rows >= 0).sum(1)
        keep = torch.ceil(sizes.double() * (1 - rate) - 1e-9).long()
        slots = torch.arange(int(keep.max()), device=keep.device)
        self.keep, self.firsts = keep, keep.cumsum(0) - keep
        self.is_kept = slots < keep[:, None]  # (R, k)
        self.places = self.is_kept.flatten().nonzero().flatten()
        rows = torch.full(self.is_kept.shape, -1, device=keep.device)
        rows[self.is_kept] = torch.arange(len(self.places), device=keep.device)
        self.support = Support(rows, support.row_of_word, len(self.places))

    @property
    def width(self) -> int:
        """The most states that a word keeps."""
        return self.support.width

    def on(self, states: Int[Tensor, " S"]) -> Support:
        """The support on states that were drawn."""
        return self.support

    def draw(self, generator: torch.Generator) -> Int[Tensor, " S"]:
        """The states, those of each block in the order of its row."""
        scores = torch.rand(self.rows.shape, generator=generator, device=self.rows.device)
        scores = scores.masked_fill(self.rows < 0, -1.0)
        if why_not(scores.device) is None:
            from hmmlm.ops.choice import kernel

            return kernel.choose(scores, self.rows, self.keep, self.firsts, len(self.places))
        best = scores.argsort(1, descending=True)[:, : self.is_kept.shape[1]]
        last = self.rows.shape[1] - 1
        slots = torch.where(self.is_kept, best, last + 1).sort(1).values.clamp_(max=last)
        return self.rows.gather(1, slots).flatten()[self.places]


class FreeKeeper:
    """Draws the states to keep where words share only some of theirs: always as many of all.

    A word may lose all of its states. Its row on the kept states stays as wide as before, so
    nothing waits for the device here either.
    """

    def __init__(self, support: Support, rate: float) -> None:
        check_rate(rate)
        self.support, self.width = support, support.width
        self.number = math.ceil(support.num_states * (1 - rate) - 1e-9)

    def on(self, states: Int[Tensor, " S"]) -> Support:
        """The support on states that were drawn."""
        return self.support.restrict(states, width=self.width)

    def draw(self, generator: torch.Generator) -> Int[Tensor, " S"]:
        """The states, in the order of their ids."""
        device = self.support.rows.device
        scores = torch.rand(self.support.num_states, generator=generator, device=device)
        return scores.argsort()[: self.number].sort().values


def make_keeper(support: Support, rate: float) -> Keeper | FreeKeeper:
    """What draws the states to keep at a rate, on the device of the support."""
    return Keeper(support, rate) if support.is_partition else FreeKeeper(support, rate)


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
