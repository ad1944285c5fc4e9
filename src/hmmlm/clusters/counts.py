"""How often words occur, and how often one follows another."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from hmmlm.clusters.clustering import check_clusters
from hmmlm.clusters.compiled import count_classes, merge_runs, transpose
from hmmlm.data.token_array import TokenArray
from hmmlm.errors import InputError

_CHUNK = 1 << 22
PAIRS = ("lines", "stream")


class SparseCounts(NamedTuple):
    """Row w has counts[i] in column words[i], for i from offsets[w] up to offsets[w + 1]."""

    offsets: Int[np.ndarray, " V+1"]
    words: Int[np.ndarray, " P"]
    counts: Int[np.ndarray, " P"]


@dataclass(frozen=True)
class Bigrams:
    """Counts of a text of V word types: `words` of each, and of each pair of neighbours.

    `ahead` has a row for each first word, `back` for each second. Memory: 24 bytes for each pair
    that occurs, never V x V.
    """

    words: Int[np.ndarray, " V"]
    ahead: SparseCounts
    back: SparseCounts

    @property
    def vocab_size(self) -> int:
        return len(self.words)

    @property
    def total(self) -> int:
        """N, the number of pairs."""
        return int(self.ahead.counts.sum())

    @property
    def num_types(self) -> int:
        """How many of the words occur."""
        return int(np.count_nonzero(self.words))

    @cached_property
    def firsts(self) -> Int[np.ndarray, " V"]:
        """How often each word is the first of a pair."""
        return _row_sums(self.ahead)

    @cached_property
    def seconds(self) -> Int[np.ndarray, " V"]:
        """How often each word is the second of a pair."""
        return _row_sums(self.back)

    def by_count(self) -> Int[np.ndarray, " U"]:
        """The words that occur, the most frequent first; of equals the lowest id."""
        order = np.flatnonzero(self.words)
        return order[np.argsort(-self.words[order], kind="stable")]

    def of_classes(self, class_of_word: Int[np.ndarray, " V"], size: int) -> Int[np.ndarray, "M M"]:
        """How often a word of one class follows one of another; words of class -1 are left out."""
        found = np.zeros((size, size), np.int64)
        count_classes(*self.ahead, class_of_word, found)
        return found

    @staticmethod
    def from_keys(
        words: Int[np.ndarray, " V"], keys: Int[np.ndarray, " P"], counts: Int[np.ndarray, " P"]
    ) -> "Bigrams":
        """From pairs as numbers first * V + second, sorted, each once."""
        size = len(words)
        rows = np.bincount(keys // size, minlength=size)
        offsets = np.concatenate([[0], np.cumsum(rows)])
        ahead = SparseCounts(offsets, (keys % size).astype(np.int32), counts)
        return Bigrams(words, ahead, SparseCounts(*transpose(*ahead)))


def count_bigrams(
    tokens: TokenArray,
    vocab_size: int,
    *,
    pairs: str = "lines",
    progress: Callable[[int], None] | None = None,
) -> Bigrams:
    """Counts the tokens that are not `<eos>`, and their pairs.

    `pairs` is "lines", neighbours within a line, or "stream", where the last word of a line is
    also a neighbour of the first of the next. `progress(tokens)` hears how many were read. Time:
    a sort of the tokens, four million at a time. Memory: that, and the pairs that occur.
    """
    if pairs not in PAIRS:
        raise InputError(f"pairs is {pairs!r} but must be lines or stream.")
    words = np.zeros(vocab_size, np.int64)
    table = _Table()
    last = -1  # the token before this chunk, or -1 if nothing pairs with it
    for start in range(0, len(tokens), _CHUNK):
        ids = tokens[start : start + _CHUNK]
        number = len(ids)
        if ids.max() >= vocab_size:
            raise InputError(
                f"the text has id {ids.max():,} but this vocabulary ends at {vocab_size - 1:,}; "
                "re-encode the text with this vocabulary."
            )
        words += np.bincount(ids, minlength=vocab_size)
        ends = ids == tokens.eos_id
        if pairs == "stream":
            ids = ids[~ends]
        else:
            ids[ends] = -1
        if last >= 0:
            ids = np.concatenate([[last], ids])
        if len(ids):
            last = int(ids[-1])
        keys = ids[:-1] * vocab_size + ids[1:]
        if pairs == "lines":
            keys = keys[(ids[:-1] >= 0) & (ids[1:] >= 0)]
        table.add(keys)
        if progress is not None:
            progress(number)
    words[tokens.eos_id] = 0
    if not words.any():
        raise InputError("the text has no words to cluster; give at least one line with a word.")
    return Bigrams.from_keys(words, *table.whole())


def _row_sums(table: SparseCounts) -> np.ndarray:
    sums = np.concatenate([[0], np.cumsum(table.counts)])
    return sums[table.offsets[1:]] - sums[table.offsets[:-1]]


def count_words(tokens: TokenArray, vocab_size: int) -> Int[np.ndarray, " V"]:
    """How often every token occurs, `<eos>` too."""
    counts = np.zeros(vocab_size, np.int64)
    for start in range(0, len(tokens), _CHUNK):
        counts += np.bincount(tokens[start : start + _CHUNK], minlength=vocab_size)
    return counts


class _Table:
    """Counts of keys that come in chunks: sorted runs, of which equally long ones are merged."""

    def __init__(self) -> None:
        self._runs: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, keys: np.ndarray) -> None:
        keys.sort()
        starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])[: len(keys)])
        counts = np.diff(np.append(starts, len(keys)))
        self._runs.append((keys[starts], counts))
        while len(self._runs) > 1 and len(self._runs[-2][0]) < 2 * len(self._runs[-1][0]):
            self._join()

    def whole(self) -> tuple[np.ndarray, np.ndarray]:
        while len(self._runs) > 1:
            self._join()
        return self._runs[0]

    def _join(self) -> None:
        right, left = self._runs.pop(), self._runs.pop()
        self._runs.append(merge_runs(*left, *right))


class TextWords(NamedTuple):
    """A text as ids, and the word of each id; `<eos>` is the last."""

    tokens: TokenArray
    words: list[str]


def read_words(lines: Iterable[str]) -> TextWords:
    """The words of a text between white space, numbered by falling count and then by spelling.

    `<eos>`, written or at the end of a line, ends it. Memory: eight bytes a word.
    """
    ids: dict[str, int] = {"<eos>": 0}
    parts, held = [], []
    for line in lines:
        held += [ids.setdefault(word, len(ids)) for word in line.split()]
        held.append(0)
        if len(held) >= 1 << 17:
            parts.append(np.array(held, np.int64))
            held = []
    tokens = np.concatenate([*parts, np.array(held, np.int64)])
    counts = np.bincount(tokens, minlength=len(ids))
    counts[0] = -1
    spelt = list(ids)
    order = sorted(range(len(ids)), key=lambda i: (-counts[i], spelt[i]))
    place = np.empty(len(ids), np.int64)
    place[order] = np.arange(len(ids))
    words = [spelt[i] for i in order]
    return TextWords(TokenArray.from_ids(place[tokens], eos_id=len(ids) - 1), words)


def mutual_information(bigrams: Bigrams, cluster_of_word: Int[np.ndarray, " V"]) -> float:
    """I(c; c') of the clusters of neighbouring words, in nats, from counts as they are.

    sum over c, c' of p(c, c') log(p(c, c') / (p(c) p(c'))), where p(c) is that of a first word
    and p(c') of a second. Words of cluster -1 are left out with their pairs. Time: that of the
    pairs that occur; memory: the cluster pairs that occur.
    """
    check_clusters(cluster_of_word, bigrams.vocab_size)
    offsets, words, counts = bigrams.ahead
    firsts = np.repeat(cluster_of_word.astype(np.int64), np.diff(offsets))
    seconds = cluster_of_word[words].astype(np.int64)
    kept = (firsts >= 0) & (seconds >= 0)
    size = int(cluster_of_word.max(initial=-1)) + 1
    keys, which = np.unique(firsts[kept] * size + seconds[kept], return_inverse=True)
    weights = counts[kept].astype(np.float64)
    total = weights.sum()
    if total == 0:
        return 0.0
    cells = np.bincount(which, weights, minlength=len(keys))
    rows = np.bincount(firsts[kept], weights, minlength=size)
    columns = np.bincount(seconds[kept], weights, minlength=size)
    parts = _n_log_n(cells).sum() - _n_log_n(rows).sum() - _n_log_n(columns).sum()
    return float(parts / total + np.log(total))


def n_log_n_table(total: int) -> Float[np.ndarray, " T"]:
    """n log n for n from 0 to the total, or to a million."""
    return _n_log_n(np.arange(min(total, 1 << 20) + 1, dtype=np.float64))


def _n_log_n(counts: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    return counts * np.log(np.maximum(counts, 1.0))
