"""Sequences of symbols as scikit-learn passes them, checked, and as batches of rows."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from hmmlm.errors import InputError, counted

MISSING = -1
"""A symbol that is there but unknown: it is summed over."""

UNSEEN = ("error", "missing")

CELLS = 1 << 24
"""Symbols of a batch times states, about: what a table of posteriors holds."""


class Rows(NamedTuple):
    """Some sequences side by side, those of a batch; `places` are where their symbols stood."""

    tokens: Int[Tensor, "B T"]
    lengths: Int[Tensor, " B"]
    active: Bool[np.ndarray, "B T"]
    places: Int[np.ndarray, " n"]
    sequences: Int[np.ndarray, " B"]


class Sequences(NamedTuple):
    """All symbols one after the other, -1 where missing, and how many each sequence has."""

    symbols: Int[np.ndarray, " N"]
    lengths: Int[np.ndarray, " S"]

    def within(self, num_symbols: int, unseen: str) -> "Sequences":
        """The same with symbols from `num_symbols` on refused, or missing."""
        most = int(self.symbols.max())
        if most < num_symbols:
            return self
        if unseen == "error":
            raise InputError(
                f"X has symbol {most:,} but the model emits 0 to {num_symbols - 1:,}; fit with "
                f"n_features={most + 1}, or set unseen='missing' to sum over such symbols."
            )
        return self._replace(symbols=np.where(self.symbols < num_symbols, self.symbols, MISSING))

    def batches(self, num_states: int) -> Iterator[Rows]:
        """All sequences, the longest first, with others at least half as long beside them."""
        most = max(1 << 10, CELLS // num_states)
        order = np.argsort(-self.lengths, kind="stable")
        offsets = np.cumsum(self.lengths) - self.lengths
        start = 0
        while start < len(order):
            longest = int(self.lengths[order[start]])
            stop = min(len(order), start + max(1, most // longest))
            chosen = order[start:stop]
            chosen = chosen[2 * self.lengths[chosen] >= longest]
            start += len(chosen)
            yield self._rows(chosen, offsets[chosen], longest)

    def _rows(
        self, chosen: Int[np.ndarray, " B"], offsets: Int[np.ndarray, " B"], longest: int
    ) -> Rows:
        lengths = self.lengths[chosen]
        steps = np.arange(longest)
        active = steps < lengths[:, None]
        places = offsets[:, None] + steps
        tokens = np.where(active, self.symbols[np.where(active, places, 0)], 0)
        return Rows(
            torch.from_numpy(tokens), torch.from_numpy(lengths), active, places[active], chosen
        )


def read(X: Any, lengths: Any = None) -> Sequences:
    """X as (n_samples, 1) integers with the lengths of its sequences, or a list of 1-d arrays."""
    if isinstance(X, list | tuple) and X and all(_is_sequence(row) for row in X):
        if lengths is not None:
            raise InputError(
                "lengths go with an X of shape (n_samples, 1), but X is a list of sequences, which "
                "have their own; leave lengths out."
            )
        each = [np.asarray(row) for row in X]
        for place, row in enumerate(each):
            _check_symbols(row, f"X[{place}]")
        symbols = np.concatenate(each)
        return Sequences(symbols.astype(np.int64), np.array([len(row) for row in each]))
    if hasattr(X, "toarray"):
        raise InputError("X is a sparse matrix, which has no use here; give X.toarray().")
    try:
        table = np.asarray(X)
    except ValueError:
        raise InputError(
            "X has rows of unequal length; give (n_samples, 1) integers, all sequences one after "
            "the other, with lengths, or a list of 1-d arrays."
        ) from None
    if table.ndim != 2 or table.shape[1] != 1:
        way = "use X.reshape(-1, 1)" if table.ndim == 1 else "give one symbol per row"
        kind = f"{type(X).__name__} of shape" if not isinstance(X, np.ndarray) else "of shape"
        raise InputError(
            f"X is {kind} {table.shape} but must be (n_samples, 1), sequences one after the other; "
            f"{way}, with the lengths of several sequences in lengths."
        )
    _check_symbols(table[:, 0], "X")
    symbols = table[:, 0].astype(np.int64)
    return Sequences(symbols, _read_lengths(lengths, len(symbols)))


def _is_sequence(row: Any) -> bool:
    return isinstance(row, np.ndarray | Tensor) and row.ndim == 1


def _check_symbols(symbols: Any, name: str) -> None:
    if not len(symbols):
        raise InputError(f"{name} has no symbols (0 samples); give at least 1.")
    if not np.issubdtype(symbols.dtype, np.integer):
        raise InputError(
            f"{name} is {symbols.dtype} but symbols must be integers from 0 on; encode them, for "
            "example with OrdinalEncoder(dtype=int)."
        )
    if symbols.min() < MISSING:
        raise InputError(
            f"{name} has symbol {int(symbols.min()):,} but symbols must be nonnegative, or -1 "
            "where they are missing."
        )


def _read_lengths(lengths: Any, total: int) -> Int[np.ndarray, " S"]:
    if lengths is None:
        return np.array([total])
    found = np.asarray(lengths)
    if found.ndim != 1 or not len(found) or not np.issubdtype(found.dtype, np.integer):
        raise InputError(
            f"lengths is {found.dtype} of shape {found.shape} but must be a list of integers, the "
            "number of samples of each sequence."
        )
    if found.min() < 1:
        raise InputError(f"lengths has {int(found.min()):,} but every sequence needs a sample.")
    if found.sum() != total:
        raise InputError(
            f"lengths sum to {int(found.sum()):,}, of {counted(len(found), 'sequence')}, but X has "
            f"{counted(total, 'sample')}; give the number of samples of each sequence."
        )
    return found.astype(np.int64)
