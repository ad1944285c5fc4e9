"""Batches of a token sequence, in three layouts, each with a position that can be saved."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from hmmlm.data.shards import TokenArray
from hmmlm.errors import InputError


class Batch(NamedTuple):
    """`restart` is True where the hidden chain starts afresh, from p(z1).

    Beyond `lengths` a row has id 0 and no restart; those places are no tokens. `labels` are what
    is known of the tokens' states, -1 where nothing is; None where nobody labelled the text.
    """

    tokens: Int[Tensor, "B T"]
    lengths: Int[Tensor, " B"]
    restart: Bool[Tensor, "B T"]
    num_tokens: int
    labels: Int[Tensor, "B T"] | None = None


class _Batches:
    """Iterating gives the rest of one epoch, then moves to the next; every token comes once.

    `labels` go with the tokens: 0 where nothing is known, or a label and 1.

    `position` says which batch comes next. After the last batch of an epoch it stands at the end
    of that epoch, so that whoever resumes there also sees the epoch end.
    """

    num_batches: int

    def __init__(
        self,
        tokens: TokenArray,
        batch_size: int,
        length: int,
        *,
        labels: TokenArray | None = None,
    ) -> None:
        for name, value in (("batch_size", batch_size), ("length", length)):
            if value < 1:
                raise InputError(f"{name} is {value:,} but must be at least 1.")
        if not len(tokens):
            raise InputError("There are no tokens to make batches of; give some text.")
        if labels is not None and len(labels) != len(tokens):
            raise InputError(
                f"There are {len(labels):,} labels for {len(tokens):,} tokens; give one for each, "
                "0 where it is not known."
            )
        self.tokens = tokens
        self.labels = labels
        self.batch_size = batch_size
        self.length = length
        self._epoch = 0
        self._next = 0

    @property
    def position(self) -> dict[str, int]:
        return {"epoch": self._epoch, "batch": self._next}

    @position.setter
    def position(self, position: Mapping[str, int]) -> None:
        epoch, batch = position["epoch"], position["batch"]
        if epoch < 0 or not 0 <= batch <= self.num_batches:
            raise InputError(
                f"The position is batch {batch:,} of epoch {epoch:,} but an epoch has "
                f"{self.num_batches:,} batches here; resume with the same text, batch size and "
                "length."
            )
        self._epoch, self._next = epoch, batch

    def __iter__(self) -> Iterator[Batch]:
        while self._next < self.num_batches:
            batch = self._batch(self._epoch, self._next)
            self._next += 1
            yield batch
        self._epoch, self._next = self._epoch + 1, 0

    def _batch(self, epoch: int, index: int) -> Batch:
        raise NotImplementedError


class Streams(_Batches):
    """The text as `batch_size` contiguous rows, in consecutive slices of `length` (BPTT).

    Row b of a batch goes on where row b of the batch before ended; only the first batch of an
    epoch restarts. Rows differ by one token at most, the longer ones first: the last batch may
    have fewer rows, those that are over are missing at its end. With fewer tokens than rows there
    is one row per token.
    """

    def __init__(
        self,
        tokens: TokenArray,
        batch_size: int,
        length: int,
        *,
        labels: TokenArray | None = None,
    ) -> None:
        super().__init__(tokens, batch_size, length, labels=labels)
        rows = min(batch_size, len(tokens))
        short, longer = divmod(len(tokens), rows)
        self._row_lengths = short + (np.arange(rows) < longer)
        self._row_starts = np.cumsum(self._row_lengths) - self._row_lengths
        self.num_batches = -(-int(self._row_lengths[0]) // length)

    def _batch(self, epoch: int, index: int) -> Batch:
        done = index * self.length
        lengths = np.minimum(self._row_lengths - done, self.length)
        lengths = lengths[lengths > 0]
        starts = self._row_starts[: len(lengths)] + done
        width = int(lengths[0])
        return _rows(self.tokens, self.labels, starts, lengths, width, restart=index == 0)


class Windows(_Batches):
    """Stretches of `length` tokens in file order, each a cold start; the last may be short."""

    def __init__(
        self,
        tokens: TokenArray,
        batch_size: int,
        length: int,
        *,
        labels: TokenArray | None = None,
    ) -> None:
        super().__init__(tokens, batch_size, length, labels=labels)
        self.num_batches = -(-len(tokens) // (batch_size * length))

    def _batch(self, epoch: int, index: int) -> Batch:
        first = index * self.batch_size * self.length
        stop = min(first + self.batch_size * self.length, len(self.tokens))
        starts = np.arange(first, stop, self.length)
        lengths = np.minimum(stop - starts, self.length)
        return _rows(self.tokens, self.labels, starts, lengths, int(lengths[0]), restart=True)


class Packed(_Batches):
    """Whole sentences packed into rows of `length`, each with a restart at its first token.

    A sentence longer than `length` is cut into pieces that each restart. Packing is best-fit with
    the longest first; which sentences meet, and the order of rows, is drawn anew each epoch from
    (seed, epoch), or is the same every epoch without `shuffle`. `fill` is the share of places
    that hold a token. Cost: O(sentences log sentences) time an epoch, about 60 bytes of memory a
    sentence.
    """

    def __init__(
        self,
        tokens: TokenArray,
        batch_size: int,
        length: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        labels: TokenArray | None = None,
    ) -> None:
        super().__init__(tokens, batch_size, length, labels=labels)
        self.seed = seed
        self.shuffle = shuffle
        offsets = tokens.sentence_offsets()
        sizes = np.diff(offsets, append=len(tokens))
        pieces = -(-sizes // length)
        within = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        self._starts = np.repeat(offsets, pieces) + within * length
        self._lengths = np.minimum(np.repeat(sizes, pieces) - within * length, length)
        # How many rows there are depends on the lengths alone, so it is the same every epoch.
        self._by_length = np.argsort(-self._lengths, kind="stable")
        self._row_of = _best_fit(np.bincount(self._lengths, minlength=length + 1), length)
        self.num_rows = int(self._row_of.max()) + 1
        self.num_batches = -(-self.num_rows // batch_size)
        self._plan_epoch = -1

    @property
    def fill(self) -> float:
        return len(self.tokens) / (self.num_rows * self.length)

    def _plan(self, epoch: int) -> None:
        """Which pieces lie in which row: row r holds pieces[ends[r - 1] : ends[r]]."""
        if epoch == self._plan_epoch:
            return
        order, row_of = self._by_length, self._row_of
        if self.shuffle:
            random = np.random.default_rng((self.seed, epoch))
            shuffled = random.permutation(len(order))
            order = shuffled[np.argsort(-self._lengths[shuffled], kind="stable")]
            row_of = random.permutation(self.num_rows)[row_of]
        self._pieces = order[np.argsort(row_of, kind="stable")]
        self._row_ends = np.cumsum(np.bincount(row_of, minlength=self.num_rows))
        self._plan_epoch = epoch

    def _batch(self, epoch: int, index: int) -> Batch:
        self._plan(epoch)
        first = index * self.batch_size
        rows = min(self.batch_size, self.num_rows - first)
        tokens = np.zeros((rows, self.length), dtype=np.int64)
        restart = np.zeros((rows, self.length), dtype=bool)
        lengths = np.zeros(rows, dtype=np.int64)
        labels = None if self.labels is None else np.zeros_like(tokens)
        for row in range(rows):
            end = self._row_ends[first + row]
            begin = self._row_ends[first + row - 1] if first + row else 0
            for piece in self._pieces[begin:end]:
                start, size, at = self._starts[piece], self._lengths[piece], lengths[row]
                tokens[row, at : at + size] = self.tokens[int(start) : int(start + size)]
                if self.labels is not None and labels is not None:
                    labels[row, at : at + size] = self.labels[int(start) : int(start + size)]
                restart[row, at] = True
                lengths[row] += size
        return _batch(tokens, lengths, restart, labels)


def _rows(
    tokens: TokenArray,
    labels: TokenArray | None,
    starts: np.ndarray,
    lengths: np.ndarray,
    width: int,
    *,
    restart: bool,
) -> Batch:
    filled = np.zeros((len(starts), width), dtype=np.int64)
    marks = None if labels is None else np.zeros_like(filled)
    for row, (start, size) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        filled[row, :size] = tokens[start : start + size]
        if labels is not None and marks is not None:
            marks[row, :size] = labels[start : start + size]
    flags = np.zeros(filled.shape, dtype=bool)
    flags[:, 0] = restart
    return _batch(filled, lengths.astype(np.int64), flags, marks)


def _batch(
    tokens: np.ndarray, lengths: np.ndarray, restart: np.ndarray, labels: np.ndarray | None
) -> Batch:
    return Batch(
        torch.from_numpy(tokens),
        torch.from_numpy(lengths),
        torch.from_numpy(restart),
        int(lengths.sum()),
        None if labels is None else torch.from_numpy(labels - 1),
    )


def _best_fit(counts: np.ndarray, length: int) -> np.ndarray:
    """The row of each piece, longest pieces first; `counts[n]` pieces have length n.

    Every piece goes into the fullest row that still has room. Pieces of one length are placed
    together, so the cost is O(length^2) array operations, not one step a piece.
    """
    room: list[np.ndarray] = [np.empty(0, dtype=np.int64) for _ in range(length + 1)]
    placed, num_rows = [], 0
    for size in range(length, 0, -1):
        left = int(counts[size])
        free = size
        while left:
            while free <= length and not len(room[free]):
                free += 1
            if free > length:
                per_row = length // size
                opened = np.arange(num_rows, num_rows - (-left // per_row))
                num_rows += len(opened)
                room[length] = opened
                free = length
            taken, room[free] = room[free][:left], room[free][left:]
            placed.append(taken)
            left -= len(taken)
            free -= size
            room[free] = np.concatenate([room[free], taken])
            free = max(free, size)
    return np.concatenate(placed)
