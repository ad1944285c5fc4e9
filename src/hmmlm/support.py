"""Which states may emit which word."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import index
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from hmmlm.errors import InputError


class StateWords(NamedTuple):
    """The inverse map: cell i says that `states[i]` may emit `words[i]`, in slot `slots[i]` of it.

    Cells are sorted by state; those of state z lie from `offsets[z]` up to `offsets[z + 1]`.
    """

    offsets: Int[Tensor, " Z+1"]
    states: Int[Tensor, " N"]
    words: Int[Tensor, " N"]
    slots: Int[Tensor, " N"]


@dataclass(frozen=True)
class Support:
    """The map from a word to the states that may emit it.

    Words that share their states share a row: word w may be emitted by
    `rows[row_of_word[w]]`, ids padded with -1 to the longest row. Dense supports have one row,
    blocks one per block, uniform ones a row per word.
    """

    rows: Int[Tensor, "R K"]
    row_of_word: Int[Tensor, " V"]
    num_states: int

    def __post_init__(self) -> None:
        if self.rows.ndim != 2 or self.row_of_word.ndim != 1:
            raise InputError(
                f"Support needs rows (R, K) and row_of_word (V,), not shapes "
                f"{tuple(self.rows.shape)} and {tuple(self.row_of_word.shape)}."
            )

    @property
    def vocab_size(self) -> int:
        return self.row_of_word.shape[0]

    @property
    def width(self) -> int:
        """K, the largest number of states that one word has."""
        return self.rows.shape[1]

    @cached_property
    def is_dense(self) -> bool:
        """Whether every word may come from every state, in the order of their ids."""
        rows = self.rows
        return rows.shape == (1, self.num_states) and bool(
            (rows[0] == torch.arange(self.num_states, device=rows.device)).all()
        )

    @cached_property
    def is_partition(self) -> bool:
        """Whether the rows are blocks: no state is in two of them."""
        ids = self.rows[self.rows >= 0]
        return ids.unique().numel() == ids.numel()

    @property
    def num_blocks(self) -> int:
        """How many blocks share the states; if rows overlap, how many of their width would."""
        return len(self.rows) if self.is_partition else max(1, self.num_states // self.width)

    def states_of(self, words: Int[Tensor, "..."]) -> Int[Tensor, "... K"]:
        """The states that may emit each word, padded with -1."""
        return self.rows[self.row_of_word[words]]

    def slots_of(self, words: Int[Tensor, "..."], states: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
        """Where each state stands among those of its word; -1 if it may not emit it."""
        if self.is_dense:
            return torch.where((states >= 0) & (states < self.num_states), states, -1)
        is_here = self.states_of(words) == states[..., None]
        return torch.where(is_here.any(-1), is_here.int().argmax(-1), -1)

    @cached_property
    def words_by_row(self) -> tuple[Int[Tensor, " N"], ...]:
        """The words of each row; a row may have none."""
        sizes = torch.bincount(self.row_of_word, minlength=len(self.rows)).tolist()
        return self.row_of_word.sort(stable=True).indices.split(sizes)

    @cached_property
    def row_of_state(self) -> Int[Tensor, " Z"]:
        """The row of each state, of a partition: its block."""
        rows, slots = (self.rows >= 0).nonzero(as_tuple=True)
        found = torch.zeros(self.num_states, dtype=torch.long, device=self.rows.device)
        found[self.rows[rows, slots]] = rows
        return found

    @cached_property
    def word_keys(self) -> Int[Tensor, " V"]:
        """A number for each word that orders words by row first: V row + word."""
        words = torch.arange(self.vocab_size, device=self.rows.device)
        return self.row_of_word * self.vocab_size + words

    @cached_property
    def row_keys(self) -> Int[Tensor, " R+1"]:
        """Where the words of each row begin in the order of `word_keys`, and where the last end."""
        return torch.arange(len(self.rows) + 1, device=self.rows.device) * self.vocab_size

    @cached_property
    def places(self) -> Int[Tensor, " R*K"]:
        """The state in each slot of each row; Z, one past the last state, in padding."""
        return self.rows.flatten() % (self.num_states + 1)

    @cached_property
    def state_words(self) -> StateWords:
        """The inverse map, from a state to its words. O(V K) memory."""
        states = self.rows[self.row_of_word]  # (V, K)
        words, slots = (states >= 0).nonzero(as_tuple=True)
        states = states[words, slots]
        order = torch.sort(states, stable=True).indices
        sizes = torch.bincount(states, minlength=self.num_states)
        offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        return StateWords(offsets, states[order], words[order], slots[order])

    @cached_property
    def cells_by_state(self) -> tuple[Int[Tensor, " V*K"], Int[Tensor, " Z+1"]]:
        """The cells of the (V, K) map ordered by state, and where those of each state begin.

        Padding comes first. Made without waiting for the device.
        """
        states = self.rows[self.row_of_word].flatten()
        ordered, order = states.sort(stable=True)
        marks = torch.arange(self.num_states + 1, device=states.device)
        return order, torch.searchsorted(ordered, marks)

    def to(self, device: torch.device | str) -> "Support":
        """The same on a device; itself, if it is there."""
        rows, row_of_word = self.rows.to(device), self.row_of_word.to(device)
        if rows is self.rows and row_of_word is self.row_of_word:
            return self
        moved = Support(rows, row_of_word, self.num_states)
        if "is_partition" in vars(self):  # finding it out reads all rows
            vars(moved)["is_partition"] = self.is_partition
        return moved

    def validate(self) -> "Support":
        """This support, after checking that ids are in range and unique and that none is unused."""
        rows = self.rows
        if rows.shape[1] == 0 or self.vocab_size == 0:
            raise InputError("A support needs at least one word and one state per word.")
        if rows.max() >= self.num_states or rows.min() < -1:
            bad = int(rows.max()) if rows.max() >= self.num_states else int(rows.min())
            raise InputError(
                f"The support names state {bad:,} but there are {self.num_states:,} states "
                f"(0 to {self.num_states - 1:,}); -1 is the padding."
            )
        if self.row_of_word.min() < 0 or self.row_of_word.max() >= rows.shape[0]:
            raise InputError(f"row_of_word must lie between 0 and {rows.shape[0] - 1:,}.")
        used = rows[self.row_of_word.unique()]
        empty = (rows >= 0).sum(1)[self.row_of_word] == 0
        if empty.any():
            word = int(empty.nonzero()[0])
            raise InputError(f"Word {word:,} has no state that may emit it; give it at least one.")
        ordered = rows.sort(1).values
        if ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any():
            raise InputError("A word names the same state twice; name each of its states once.")
        named = torch.bincount(used[used >= 0], minlength=self.num_states)
        if (named == 0).any():
            lost = (named == 0).nonzero().flatten()
            raise InputError(
                f"State {int(lost[0]):,} is named by no word ({lost.numel():,} such states of "
                f"{self.num_states:,}), so it could never emit anything; remove it or name it."
            )
        if self.width > self.num_states:
            raise InputError(
                f"The rows of the support have {self.width:,} slots but there are "
                f"{self.num_states:,} states, and none is named twice; leave out padding that no "
                f"word needs."
            )
        return self

    @staticmethod
    def dense(vocab_size: int, num_states: int) -> "Support":
        """Every word may come from every state."""
        for size in (vocab_size, num_states):
            if _whole(size, least=1) is None:
                raise InputError(
                    f"A support needs at least one word and one state, not vocab_size "
                    f"{vocab_size!r} and num_states {num_states!r}; give whole numbers from 1."
                )
        rows = torch.arange(num_states)[None]
        return Support(rows, torch.zeros(vocab_size, dtype=torch.long), num_states).validate()

    @staticmethod
    def from_clusters(
        clusters: Int[Tensor, " V"] | Sequence[int], states_per_block: int | Sequence[int]
    ) -> "Support":
        """Blocks: all words of cluster m share the states of block m, a range of its own.

        `clusters` gives each word's cluster; `states_per_block` is one number, or one per cluster.
        """
        clusters = torch.as_tensor(clusters)
        cut = clusters.is_floating_point() or clusters.dtype == torch.bool
        if clusters.numel() and cut:
            raise InputError(
                f"clusters are {clusters.dtype} but must be whole numbers; give torch.int64."
            )
        clusters = clusters.long()
        if clusters.numel() == 0 or clusters.min() < 0:
            raise InputError("clusters must give every word a cluster id of 0 or more.")
        blocks = int(clusters.max()) + 1
        many = isinstance(states_per_block, Sequence) or getattr(states_per_block, "ndim", 0)
        asked: Any = states_per_block if many else [states_per_block] * blocks
        sizes = [size for size in (_whole(one, least=1) for one in asked) if size is not None]
        if not len(sizes) == len(asked) == blocks:
            raise InputError(
                f"states_per_block is {states_per_block!r} but must be a whole number from 1, or "
                f"one for each of the {blocks:,} clusters."
            )
        rows = torch.full((blocks, max(sizes)), -1)
        first = 0
        for block, size in enumerate(sizes):
            rows[block, :size] = torch.arange(first, first + size)
            first += size
        return Support(rows, clusters, first).validate()

    @staticmethod
    def uniform(
        vocab_size: int, num_states: int, states_per_word: int, generator: torch.Generator
    ) -> "Support":
        """Each word gets `states_per_word` random states; every state is given to some word."""
        if not 1 <= states_per_word <= num_states:
            raise InputError(
                f"states_per_word is {states_per_word:,} but must lie between 1 and the "
                f"{num_states:,} states."
            )
        if vocab_size * states_per_word < num_states:
            raise InputError(
                f"{vocab_size:,} words with {states_per_word:,} states each can name at most "
                f"{vocab_size * states_per_word:,} of {num_states:,} states; use fewer states or "
                f"more per word."
            )
        draws = [
            torch.randperm(num_states, generator=generator)[:states_per_word]
            for _ in range(vocab_size)
        ]
        rows = torch.stack(draws)
        named = torch.bincount(rows.flatten(), minlength=num_states)
        for state in (named == 0).nonzero().flatten().tolist():
            # Takes the place of a state that other words name too, so that none becomes unnamed;
            # this word cannot already hold `state`, which nobody names.
            places = (named[rows] > 1).nonzero()
            word, slot = places[int(torch.randint(len(places), (1,), generator=generator))].tolist()
            named[rows[word, slot]] -= 1
            rows[word, slot] = state
            named[state] += 1
        rows = rows.sort(1).values
        return Support(rows, torch.arange(vocab_size), num_states).validate()

    @staticmethod
    def ragged(states: Sequence[Sequence[int]], num_states: int) -> "Support":
        """The states of each word, listed; words with the same list share a row."""
        places: dict[tuple[int, ...], int] = {}
        row_of_word = []
        for word, row in enumerate(states):
            try:
                named = tuple(map(index, row))
            except TypeError:
                raise InputError(
                    f"Word {word:,} has {row!r} but must have a list of states; give whole numbers."
                ) from None
            row_of_word.append(places.setdefault(named, len(places)))
        width = max((len(row) for row in places), default=0)
        rows = torch.full((len(places), width), -1)
        for row, place in places.items():
            rows[place, : len(row)] = torch.tensor(row, dtype=torch.long)
        return Support(rows, torch.tensor(row_of_word, dtype=torch.long), num_states).validate()

    def restrict(self, states: Int[Tensor, " S"], *, width: int | None = None) -> "Support":
        """The support on a subset of states, renumbered in the order given; not validated.

        A word that loses all of its states has a row of -1. Where the `width` of the new rows is
        given, nothing waits for the device. O(R K log K).
        """
        rows = self._renumbered(states).gather(1, self.moves(states))
        waits = width is None
        if width is None:
            width = max(1, int((rows >= 0).sum(1).max()))
        kept = Support(rows[:, :width].contiguous(), self.row_of_word, len(states))
        if self.is_partition or not waits:
            # Parts of blocks are blocks; other rows are assumed to overlap still.
            vars(kept)["is_partition"] = self.is_partition
        return kept

    def moves(self, states: Int[Tensor, " S"]) -> Int[Tensor, "R K"]:
        """For each slot of a row on a subset, the slot it comes from: what stays moves left."""
        gone = (self._renumbered(states) < 0).to(torch.uint8)
        return torch.sort(gone, dim=1, stable=True).indices

    def _renumbered(self, states: Int[Tensor, " S"]) -> Int[Tensor, "R K"]:
        """The rows in the ids of a subset, -1 for what is not in it."""
        renumber = torch.full((self.num_states + 1,), -1, device=self.rows.device)
        renumber[states] = torch.arange(len(states), device=self.rows.device)
        return renumber[self.rows]  # -1 reads the last cell, which stays -1


def _whole(value: Any, *, least: int) -> int | None:
    """A value of any integer type as an int; None if it is no whole number or under `least`."""
    try:
        number = index(value)
    except TypeError:
        return None
    return number if number >= least else None
