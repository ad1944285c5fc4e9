"""Batches of a token sequence, each with a position that can be saved: windows, packed rows."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from hmmlm.data.packing import best_fit, row_loads
from hmmlm.data.token_array import TokenArray
from hmmlm.errors import InputError, check_count, counted

_SECTION = 1 << 20
_CHUNK = 1 << 22


class Batch(NamedTuple):
    """`restart` is True where the hidden chain starts afresh, from p(z1).

    Beyond `lengths` a row has id 0 and no restart; those places are no tokens. A batch without
    rows is one missing token, -1: it has probability one, so nothing is learnt of it. `labels` are
    what is known of the tokens' states, -1 where nothing is; None where nobody labelled the text.
    """

    tokens: Int[Tensor, "B T"]
    lengths: Int[Tensor, " B"]
    restart: Bool[Tensor, "B T"]
    num_tokens: int
    labels: Int[Tensor, "B T"] | None = None


class Batches:
    """Iterating gives the rest of one epoch, then moves to the next; every token comes once.

    `labels` go with the tokens: 0 where nothing is known, or a label and 1.

    `position` says which batch comes next. After the last batch of an epoch it stands at the end
    of that epoch, so that whoever resumes there also sees the epoch end.

    Of `ranks` that share the rows of every batch, `rank` has the stretch of that number. All have
    as many batches; in a short one the last ranks have fewer rows, or none.
    """

    num_batches: int

    def __init__(
        self,
        tokens: TokenArray,
        batch_size: int,
        length: int,
        *,
        labels: TokenArray | None = None,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        for name, value in (("batch_size", batch_size), ("length", length)):
            check_count(name, value)
        if not len(tokens):
            raise InputError("There are no tokens to make batches of; give some text.")
        self.tokens = tokens
        self.batch_size = batch_size
        self.length = length
        if labels is not None and len(labels) != len(tokens):
            raise InputError(
                f"There are {len(labels):,} labels for {len(tokens):,} tokens; give one for each, "
                "0 where it is not known."
            )
        self.labels = labels
        self._own = own_rows(batch_size, rank, ranks)
        self._epoch = 0
        self._next = 0
        self._lay_out()

    @property
    def position(self) -> dict[str, int]:
        return {"epoch": self._epoch, "batch": self._next}

    @position.setter
    def position(self, position: Mapping[str, int]) -> None:
        epoch, batch = position["epoch"], position["batch"]
        if epoch < 0 or not 0 <= batch <= self.num_batches:
            raise InputError(
                f"The position is batch {batch:,} of epoch {epoch:,} but an epoch has "
                f"{counted(self.num_batches, 'batch', 'batches')} here; resume with the same text, "
                "batch size and length."
            )
        self._epoch, self._next = epoch, batch

    def __iter__(self) -> Iterator[Batch]:
        while self._next < self.num_batches:
            batch = self._batch(self._epoch, self._next)
            self._next += 1
            yield batch
        self._epoch, self._next = self._epoch + 1, 0

    def _lay_out(self) -> None:
        """Finds out how many batches there are, and what `_batch` needs to know."""
        raise NotImplementedError

    def _batch(self, epoch: int, index: int) -> Batch:
        raise NotImplementedError


class _Drawn(Batches):
    """Rows that do not depend on each other, in an order drawn anew each epoch from (seed, epoch).

    Without `shuffle` every epoch is the same. A long text comes in sections, one after the other
    in an order that is drawn too; the last batch of a section may have fewer rows. With `first`,
    rows of so many tokens at the head of the text, or a little less, are sections of their own,
    and come first in the first epoch; after it nobody hears of their labels.
    """

    _section_rows: np.ndarray
    _head_sections: int

    def __init__(
        self,
        tokens: TokenArray,
        batch_size: int,
        length: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        first: int = 0,
        labels: TokenArray | None = None,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self.seed, self.shuffle, self.first = seed, shuffle, first
        super().__init__(tokens, batch_size, length, labels=labels, rank=rank, ranks=ranks)
        self._section_batches = -(-self._section_rows // batch_size)
        self.num_batches = int(self._section_batches.sum())
        self._ordered, self._planned = -1, (-1, -1)

    def _batch(self, epoch: int, index: int) -> Batch:
        section, index = self._find(epoch, index)
        if (epoch, section) != self._planned:
            # The draw of a text of one section does not name the section.
            one = len(self._section_rows) == 1
            key = (self.seed, epoch) if one else (self.seed, epoch, section + 1)
            self._plan(section, np.random.default_rng(key))
            self._planned = (epoch, section)
        first = index * self.batch_size
        stop = min(first + self._own.stop, int(self._section_rows[section]))
        made = self._take(first + self._own.start, stop)
        return made._replace(labels=None) if self.first and epoch > 0 else made

    def _find(self, epoch: int, index: int) -> tuple[int, int]:
        """The section of a batch of an epoch, and which of its batches it is."""
        if epoch != self._ordered:
            self._order = np.arange(len(self._section_rows))
            if self.shuffle:
                self._order = np.random.default_rng((self.seed, epoch)).permutation(self._order)
            if epoch == 0:
                late = self._order >= self._head_sections
                self._order = self._order[np.argsort(late, kind="stable")]
            self._order_ends = np.cumsum(self._section_batches[self._order])
            self._ordered = epoch
        at = int(np.searchsorted(self._order_ends, index, side="right"))
        section = int(self._order[at])
        return section, index - int(self._order_ends[at] - self._section_batches[section])

    def _plan(self, section: int, random: np.random.Generator) -> None:
        """Draws the rows of a section."""
        raise NotImplementedError

    def _take(self, first: int, stop: int) -> Batch:
        """Rows of the section that was planned last; none if `stop` is not above `first`."""
        raise NotImplementedError


class Windows(_Drawn):
    """Stretches of `length` tokens, each a cold start, in an order drawn anew each epoch.

    Without `shuffle` they come in file order. The text's last window may be short. Memory: 8 bytes
    for each window of a section, of which there are 2^20.
    """

    def _lay_out(self) -> None:
        windows = -(-len(self.tokens) // self.length)
        head = min(self.first // self.length, windows)
        parts = [size - np.arange(0, size, _SECTION) for size in (head, windows - head)]
        self._head_sections = len(parts[0])
        self._section_rows = np.minimum(np.concatenate(parts), _SECTION)

    def _plan(self, section: int, random: np.random.Generator) -> None:
        before = int(self._section_rows[:section].sum())
        self._windows = np.arange(self._section_rows[section]) + before
        if self.shuffle:
            random.shuffle(self._windows)

    def _take(self, first: int, stop: int) -> Batch:
        starts = self._windows[first:stop] * self.length
        lengths = np.minimum(len(self.tokens) - starts, self.length)
        return stretch_rows(self.tokens, self.labels, starts, lengths, restart=True)


class Packed(_Drawn):
    """Whole sentences packed into rows of `length`, each with a restart at its first token.

    A sentence longer than `length` is cut into pieces that each restart. Packing is best-fit with
    the longest first; which sentences meet is drawn too. Rows have as many places as the longest
    needs; `fill` is the share of them that hold a token.

    A section is 2^20 pieces. Cost: O(pieces log pieces) time an epoch and a pass over the tokens at
    the start; memory of a section, under 100 bytes a piece.
    """

    def _lay_out(self) -> None:
        head = _whole_sentences(self.tokens, self.first)
        self._begins, self._counts = _sections(self.tokens, self.length, 0, head)
        self._head_sections = len(self._begins)
        begins, counts = _sections(self.tokens, self.length, head, len(self.tokens))
        self._begins, self._counts = self._begins + begins, self._counts + counts
        # How many rows there are depends on the lengths alone, so it is the same every epoch.
        loads = [row_loads(counts, self.length) for counts in self._counts]
        self._section_rows = np.array([len(load) for load in loads])
        self._width = max(int(load.max()) for load in loads)
        self.num_rows = int(self._section_rows.sum())
        self._loaded = -1

    @property
    def fill(self) -> float:
        return len(self.tokens) / (self.num_rows * self._width)

    def _load(self, section: int) -> None:
        """Where the pieces of a section are, how long, and in which row, the longest first."""
        if section == self._loaded:
            return
        self._loaded = section
        begin, end = [*self._begins, len(self.tokens)][section : section + 2]
        starts, lengths = zip(*_pieces(self.tokens, begin, end, self.length), strict=True)
        self._starts, self._lengths = np.concatenate(starts), np.concatenate(lengths)
        self._row_of = best_fit(self._counts[section], self.length)

    def _plan(self, section: int, random: np.random.Generator) -> None:
        """Which pieces lie in which row: row r holds pieces[ends[r - 1] : ends[r]]."""
        self._load(section)
        order, row_of = np.arange(len(self._lengths)), self._row_of
        num_rows = int(self._section_rows[section])
        if self.shuffle:
            order = random.permutation(len(order))
        order = order[np.argsort(-self._lengths[order], kind="stable")]
        if self.shuffle:
            row_of = random.permutation(num_rows)[row_of]
        self._in_rows = order[np.argsort(row_of, kind="stable")]
        self._row_ends = np.cumsum(np.bincount(row_of, minlength=num_rows))

    def _take(self, first: int, stop: int) -> Batch:
        rows = stop - first
        if rows < 1:
            return _no_rows()
        tokens = np.zeros((rows, self._width), dtype=np.int64)
        restart = np.zeros(tokens.shape, dtype=bool)
        lengths = np.zeros(rows, dtype=np.int64)
        labels = None if self.labels is None else np.zeros_like(tokens)
        for row in range(rows):
            end = self._row_ends[first + row]
            begin = self._row_ends[first + row - 1] if first + row else 0
            for piece in self._in_rows[begin:end]:
                start, size, at = self._starts[piece], self._lengths[piece], lengths[row]
                tokens[row, at : at + size] = self.tokens[int(start) : int(start + size)]
                if self.labels is not None and labels is not None:
                    labels[row, at : at + size] = self.labels[int(start) : int(start + size)]
                restart[row, at] = True
                lengths[row] += size
        return _batch(tokens, lengths, restart, labels)


def _whole_sentences(tokens: TokenArray, first: int) -> int:
    """The tokens of the whole sentences among the first ones."""
    for stop in range(min(first, len(tokens)), 0, -_CHUNK):
        start = max(0, stop - _CHUNK)
        ends = np.flatnonzero(tokens[start:stop] == tokens.eos_id)
        if len(ends):
            return start + int(ends[-1]) + 1
    return 0


def _sections(
    tokens: TokenArray, length: int, begin: int, end: int
) -> tuple[list[int], list[np.ndarray]]:
    """Where each section of a stretch begins, and how many of its pieces have each length."""
    begins: list[int] = []
    counts: list[np.ndarray] = []
    room = 0
    for starts, lengths in _pieces(tokens, begin, end, length):
        while len(lengths):
            if not room:
                begins.append(int(starts[0]))
                counts.append(np.zeros(1, dtype=np.int64))
                room = _SECTION
            taken = lengths[:room]
            more = np.bincount(taken, minlength=len(counts[-1]))
            more[: len(counts[-1])] += counts[-1]
            counts[-1] = more
            room -= len(taken)
            starts, lengths = starts[len(taken) :], lengths[len(taken) :]
    return begins, counts


def _pieces(
    tokens: TokenArray, begin: int, end: int, length: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Starts and lengths of the pieces from `begin`, where one starts, to `end`; some at a time."""
    for start in range(begin, end, _CHUNK):
        stop = min(start + _CHUNK, end)
        ends = np.flatnonzero(tokens[start:stop] == tokens.eos_id) + start + 1
        if stop == end and (not len(ends) or ends[-1] < end):
            ends = np.append(ends, end)
        # A sentence that goes on behind `stop` gives its whole pieces, and the rest later.
        last = int(ends[-1]) if len(ends) else begin
        ends = np.append(ends, last + (stop - last) // length * length)
        sizes = np.diff(ends, prepend=begin)
        pieces = -(-sizes // length)
        within = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        starts = np.repeat(ends - sizes, pieces) + within * length
        yield starts, np.minimum(np.repeat(sizes, pieces) - within * length, length)
        begin = int(ends[-1])


def own_rows(batch_size: int, rank: int, ranks: int) -> slice:
    """Which rows of a batch are a rank's, of ranks that share them equally."""
    if batch_size % ranks:
        below = batch_size // ranks * ranks
        fits = f"{below:,} or {below + ranks:,}" if below else f"{ranks:,}"
        raise InputError(
            f"batch_size is {batch_size:,}, which {ranks:,} ranks cannot share equally; use {fits}."
        )
    return slice(rank * batch_size // ranks, (rank + 1) * batch_size // ranks)


def stretch_rows(
    tokens: TokenArray,
    labels: TokenArray | None,
    starts: np.ndarray,
    lengths: np.ndarray,
    *,
    restart: bool,
) -> Batch:
    """Stretches of a text as the rows of a batch, all of which restart or none."""
    if not len(starts):
        return _no_rows()
    filled = _stretches(tokens, starts, lengths)
    marks = None if labels is None else _stretches(labels, starts, lengths)
    flags = np.zeros(filled.shape, dtype=bool)
    flags[:, 0] = restart
    return _batch(filled, lengths.astype(np.int64), flags, marks)


def _stretches(tokens: TokenArray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Stretches of a text as rows, 0 past the end of those that are shorter."""
    longest = int(lengths.max())
    if int(lengths.min()) == longest:
        return tokens.rows(starts, longest)
    filled = np.zeros((len(starts), longest), dtype=np.int64)
    for row, (start, size) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        filled[row, :size] = tokens[start : start + size]
    return filled


def _no_rows() -> Batch:
    return Batch(torch.tensor([[-1]]), torch.tensor([1]), torch.tensor([[True]]), 0)


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
