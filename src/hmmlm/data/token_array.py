"""Token ids as one sequence, over arrays in memory or files on disk."""

import os
import weakref
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np

from hmmlm.errors import InputError

_CHUNK = 1 << 22


class Shard:
    """The ids of a file, read when they are asked for: `len()`, and `[a:b]`.

    Not memory-mapped: a file that is cut short meanwhile, or a disk that fails, would end the
    process where it can be told, and pages of a whole text would stay in its memory.
    """

    def __init__(self, path: Path, tokens: int, dtype: np.dtype) -> None:
        self._path, self._tokens, self.dtype = path, tokens, dtype
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    def __len__(self) -> int:
        return self._tokens

    def __getitem__(self, key: slice) -> np.ndarray:
        return np.frombuffer(self.read(key.start, key.stop), self.dtype)

    def read(self, start: int, stop: int) -> bytes:
        """The bytes of the ids from `start` up to `stop`."""
        at, end = start * self.dtype.itemsize, stop * self.dtype.itemsize
        found = []
        while at < end:
            try:
                data = os.pread(self._file, end - at, at)
            except OSError as error:
                raise InputError(f"{self._path} cannot be read: {error.strerror}.") from error
            if not data:
                raise InputError(
                    f"{self._path} has become shorter since it was opened: it ends at byte {at:,}, "
                    f"not {len(self) * self.dtype.itemsize:,}; copy it again or prepare the text "
                    f"again."
                )
            if len(data) == end - at and not found:
                return data
            found.append(data)
            at += len(data)
        return b"".join(found)


class TokenArray:
    """A read-only sequence of token ids over one or more arrays or files.

    `len()`; `[a:b]` copies that stretch as int64, `[i]` is one id. Memory: what is asked for.
    """

    def __init__(self, parts: Sequence[np.ndarray | Shard], *, eos_id: int) -> None:
        self._parts = list(parts)
        sizes = np.array([len(part) for part in self._parts], dtype=np.int64)
        self._ends = np.cumsum(sizes, dtype=np.int64)
        self._begins = self._ends - sizes
        self._is_on_disk = all(isinstance(part, Shard) for part in self._parts)
        self._number = int(sizes.sum())
        self.eos_id = eos_id

    @classmethod
    def from_ids(cls, ids: Sequence[int] | np.ndarray, *, eos_id: int) -> "TokenArray":
        """The same over ids in memory."""
        array = np.asarray(ids)
        if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
            raise InputError(
                f"ids must be one row of whole numbers, not shape {array.shape} of {array.dtype}."
            )
        if len(array) and array.min() < 0:
            raise InputError(f"ids has {array.min():,} but every token id is 0 or more.")
        return cls([array], eos_id=eos_id)

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, key: int | slice) -> Any:
        if not isinstance(key, slice):
            index = key + len(self) if key < 0 else key
            if not 0 <= index < len(self):
                raise IndexError(f"index {key:,} is outside {len(self):,} tokens")
            return int(self[index : index + 1][0])
        start, stop, step = key.indices(len(self))
        if step != 1:
            raise InputError(f"A slice of tokens has step 1, not {step}.")
        found = [np.empty(0, dtype=np.int64)]
        part = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            begin = int(self._begins[part])
            end = min(stop, int(self._ends[part]))
            found.append(self._read(part, start - begin, end - begin))
            start, part = end, part + 1
        return np.concatenate(found, dtype=np.int64)

    def _read(self, part: int, start: int, stop: int) -> np.ndarray:
        return self._parts[part][start:stop]

    def rows(self, starts: np.ndarray, length: int) -> np.ndarray:
        """Stretches of one length, each within the text, as rows of int64."""
        parts = np.searchsorted(self._ends, starts, side="right")
        within = starts - self._begins[parts]
        if (starts + length <= self._ends[parts]).all() and self._is_on_disk:
            shards, first = self._parts, parts.tolist()
            found = [
                shards[part].read(at, at + length)  # pyright: ignore
                for part, at in zip(first, within.tolist(), strict=True)
            ]
            ids = np.frombuffer(b"".join(found), self._parts[0].dtype)
            return ids.reshape(len(starts), length).astype(np.int64)
        made = np.empty((len(starts), length), dtype=np.int64)
        for row, start in enumerate(starts.tolist()):
            made[row] = self[start : start + length]
        return made

    def head(self, number: int) -> "TokenArray":
        """The first tokens, so many, over the same arrays or files."""
        if not 1 <= number <= len(self):
            raise InputError(
                f"The first {number:,} tokens were asked for but there are {len(self):,}; ask for "
                f"1 to {len(self):,}."
            )
        first = copy(self)
        first._number = number
        return first

    def sentence_offsets(self) -> np.ndarray:
        """Where each sentence starts: 0 and behind every `<eos>` but a last one, int64.

        Cost: one pass; memory of the result and a few megabytes.
        """
        if not len(self):
            return np.empty(0, dtype=np.int64)
        found = [np.zeros(1, dtype=np.int64)]
        for start in range(0, len(self), _CHUNK):
            found.append(np.flatnonzero(self[start : start + _CHUNK] == self.eos_id) + start + 1)
        offsets = np.concatenate(found)
        return offsets[:-1] if offsets[-1] == len(self) else offsets

    def reordered(self, offsets: np.ndarray, order: np.ndarray) -> "Reordered":
        """The stretches that begin at `offsets` in another order, without a copy of the text."""
        return Reordered(self, offsets, order)


class Reordered(TokenArray):
    """The stretches of a text in another order; one read for each that is asked for."""

    def __init__(self, text: TokenArray, offsets: np.ndarray, order: np.ndarray) -> None:
        super().__init__([], eos_id=text.eos_id)
        self._text, self._number = text, len(text)
        self._from = offsets[order]
        sizes = np.diff(offsets, append=len(text))[order]
        self._ends = np.cumsum(sizes, dtype=np.int64)
        self._begins = self._ends - sizes

    def _read(self, part: int, start: int, stop: int) -> np.ndarray:
        begin = int(self._from[part])
        return self._text[begin + start : begin + stop]

    def rows(self, starts: np.ndarray, length: int) -> np.ndarray:
        return np.stack([self[start : start + length] for start in starts.tolist()])
