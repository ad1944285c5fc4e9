"""Links: the transition between two neighbouring steps of a batch of chains.

A link says which log p(to | from) stands between the states of step t-1 and those of step t. The
message arithmetic (`ops.messages`) pushes and pulls messages through it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from hmmlm.results import FactoredCounts
from hmmlm.transitions import Dense, Transitions

if TYPE_CHECKING:
    from hmmlm.ops.dense_chain import Packed

RESIDENT = 1 << 28
"""Tables of at most this many cells may be kept whole; larger ones are made a tile at a time."""

TILE = 1 << 20
"""Cells of a streamed tile, and of the temporaries of log-space products."""


def finite(values: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The values, and 0 where they are infinite: -inf less this stays -inf, not NaN."""
    return torch.where(torch.isfinite(values), values, 0.0)


@dataclass(frozen=True)
class Table:
    """The first S rows of a transition table, kept whole or made a tile at a time.

    S = Z, the states themselves, unless sources outside them are wanted too.
    """

    transitions: Transitions
    num_sources: int
    keep: bool

    @property
    def num_states(self) -> int:
        return self.transitions.num_states

    @property
    def is_resident(self) -> bool:
        return self.keep and self.num_sources * self.num_states <= RESIDENT

    @cached_property
    def log_rows(self) -> Float[Tensor, "S Z"]:
        return self.transitions.rows(0, self.num_sources)

    @cached_property
    def probs(self) -> Float[Tensor, "S Z"]:
        return self.log_rows.exp()

    @cached_property
    def packed(self) -> "Packed":
        """The table in the order in which the recursions of a dense chain read it."""
        from hmmlm.ops.dense_chain import Packed  # which reads this file

        return Packed(self.log_rows)

    def log_tiles(self) -> Iterator[tuple[slice, Float[Tensor, "N Z"]]]:
        """Groups of source rows in turn, as (slice of sources, log p(. | source))."""
        if self.is_resident:
            yield slice(0, self.num_sources), self.log_rows
            return
        step = max(1, TILE // self.num_states)
        for start in range(0, self.num_sources, step):
            stop = min(start + step, self.num_sources)
            yield slice(start, stop), self.transitions.rows(start, stop)

    def prob_tiles(self) -> Iterator[tuple[slice, Float[Tensor, "N Z"]]]:
        """Groups of source rows in turn, as (slice of sources, p(. | source))."""
        if self.is_resident:
            yield slice(0, self.num_sources), self.probs
            return
        for rows, log_tile in self.log_tiles():
            yield rows, log_tile.exp()


@dataclass(frozen=True)
class Tiles:
    """Between K states and L states of each row: log p as (B, K, L), -inf in padding."""

    log_tile: Float[Tensor, "B K L"]
    sources: Int[Tensor, "B K"]
    destinations: Int[Tensor, "B L"]


@dataclass(frozen=True)
class Wide:
    """Between all sources and all states of a table, or those of them that are named.

    None stands for all. A message on named ones is spread over all of them first. Where the table
    is a part of a larger one, its rows or its columns say which of that one they are.
    """

    table: Table
    sources: Int[Tensor, "B K"] | None = None
    destinations: Int[Tensor, "B L"] | None = None
    rows: Int[Tensor, " S"] | None = None
    columns: Int[Tensor, " Z"] | None = None


Link = Tiles | Wide


def least_probability(log_probs: Tensor) -> float:
    """The smallest probability that is not zero; 0 where one is too small for a number."""
    least = float(finite(log_probs).min())
    return math.exp(least) if least > math.log(torch.finfo(log_probs.dtype).tiny) else 0.0


def spread(
    message: Shaped[Tensor, "B K"],
    states: Int[Tensor, "B K"] | None,
    num_states: int,
    zero: float | int,
) -> Shaped[Tensor, "B Z"]:
    """A message on named states (-1 for padding) as one on all states, `zero` elsewhere."""
    if states is None:
        return message
    wide = message.new_full((message.shape[0], num_states + 1), zero)
    return wide.scatter_(1, states % (num_states + 1), message)[:, :num_states]


def gather(
    message: Float[Tensor, "B Z"], states: Int[Tensor, "B K"] | None, zero: float
) -> Float[Tensor, "B K"]:
    """A message on all states, read at the named ones (`zero` at -1)."""
    if states is None:
        return message
    return message.gather(1, states.clamp(min=0)).masked_fill(states < 0, zero)


class CountSums:
    """Expected transitions being summed: a table for `Dense`, three factors for `Factored`.

    The sums are of type `dtype`.
    """

    def __init__(self, transitions: Transitions, dtype: torch.dtype) -> None:
        self.transitions = transitions
        # zeros_like would keep the order of a transposed table, and `add_tile` needs rows.
        self.fields = tuple(
            torch.zeros(field.shape, dtype=dtype, device=field.device)
            for field in transitions.fields()
        )

    def add_tile(
        self,
        tile_counts: Float[Tensor, "B K L"],
        sources: Int[Tensor, "B K"],
        destinations: Int[Tensor, "B L"],
    ) -> None:
        """Adds counts between named states; padding must count zero."""
        sources, destinations = sources.clamp(min=0), destinations.clamp(min=0)
        if isinstance(self.transitions, Dense):
            (total,) = self.fields
            cells = sources[:, :, None] * total.shape[1] + destinations[:, None, :]
            total.view(-1).index_add_(0, cells.flatten(), tile_counts.flatten().to(total.dtype))
            return
        left, right, log_norm = self.fields
        factors_right = self.transitions.right[destinations]  # (B, L, H)
        factors_left = self.transitions.left[sources]  # (B, K, H)
        width = left.shape[1]
        from_left = (tile_counts @ factors_right).reshape(-1, width)
        from_right = (tile_counts.transpose(1, 2) @ factors_left).reshape(-1, width)
        left.index_add_(0, sources.flatten(), from_left.to(left.dtype))
        right.index_add_(0, destinations.flatten(), from_right.to(left.dtype))
        log_norm.index_add_(0, sources.flatten(), -tile_counts.sum(2).flatten().to(left.dtype))

    def add_rows(
        self,
        rows: slice | Int[Tensor, " N"],
        row_counts: Float[Tensor, "N L"],
        columns: Int[Tensor, " L"] | None = None,
    ) -> None:
        """Adds counts from a group of different sources to all states, or to those of `columns`."""
        to = slice(None) if columns is None else columns
        if isinstance(self.transitions, Dense):
            self.fields[0][rows, to] += row_counts
            return
        left, right, log_norm = self.fields
        left[rows] += row_counts @ self.transitions.right[to]
        right[to] += row_counts.T @ self.transitions.left[rows]
        log_norm[rows] -= row_counts.sum(1)

    def result(self) -> Tensor | FactoredCounts:
        if isinstance(self.transitions, Dense):
            return self.fields[0]
        return FactoredCounts(*self.fields)
