"""Brown clustering: merging clusters so that least mutual information is lost."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from hmmlm.clusters import together
from hmmlm.clusters.brown import compiled
from hmmlm.clusters.clustering import (
    Clustering,
    check_alone,
    check_clusters,
    check_number,
    from_tree,
    joined,
)
from hmmlm.clusters.counts import Bigrams, n_log_n_table

_STRETCH = 256
"""Words between two reports of progress."""


def brown(
    bigrams: Bigrams,
    clusters: int,
    *,
    alone: Sequence[int] = (),
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Clustering:
    """Brown et al. 1992 with the window of Liang 2005.

    The M most frequent words start in clusters of their own. Then the next word comes in as
    another, and the two clusters merge that lose least of the mutual information between those
    so far: sum of p(c, c') log(p(c, c') / (p(c) p(c'))) over their pairs, where p(c) is of the
    whole text. In the end the M clusters are merged into one, which gives the bit strings. Words
    of `alone` keep a cluster of their own; in the tree they come last.

    The result does not depend on the number of threads. `progress(words)` hears how many more
    were merged. Time: O(V M^2) to look at all pairs and O(M D) to keep their losses, where D is
    the number of pairs of a word and a neighbouring cluster; memory: O(M^2), beside the bigrams.
    """
    cluster_of_word, merges = merge_words(
        bigrams, clusters, alone=alone, threads=threads, progress=progress
    )
    return from_tree(cluster_of_word, bigrams.words, merges[len(merges) - clusters + 1 :])


def merge_words(
    bigrams: Bigrams,
    clusters: int,
    *,
    alone: Sequence[int] = (),
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[Int[np.ndarray, " V"], Int[np.ndarray, "U-1 2"]]:
    """The clusters that `brown` finds, and all merges in order: a word of one and of the other."""
    check_number(clusters, bigrams.num_types)
    alone = check_alone(alone, bigrams.words, clusters)
    order = bigrams.by_count()
    # Words that stay alone come in first: later ones would find every slot taken.
    order = np.concatenate([np.array(alone, np.int64), order[~np.isin(order, alone)]])
    state = _State(bigrams, clusters + 1, alone, together.available_threads(threads))
    state.start(order, clusters)
    free = clusters
    for begin in range(clusters, len(order), _STRETCH):
        stop = min(begin + _STRETCH, len(order))
        free = state.grow(order, begin, stop, free)
        if progress is not None:
            progress(stop - begin)
    state.close(free)
    cluster_of_word = state.words[0].astype(np.int32)
    return cluster_of_word, np.concatenate(
        [state.merges[clusters : len(order)], state.shrink(clusters)]
    )


def merge_tree(
    bigrams: Bigrams, cluster_of_word: Int[np.ndarray, " V"], *, threads: int | None = None
) -> Clustering:
    """Bit strings for clusters made otherwise: they are merged as Brown would. O(M^3)."""
    merges = _merge_classes(bigrams, cluster_of_word, (), threads)
    kept = np.flatnonzero(cluster_of_word >= 0)
    example = np.zeros(len(merges) + 1, np.int64)
    example[cluster_of_word[kept]] = kept  # a word of each cluster stands for it
    return from_tree(cluster_of_word, bigrams.words, example[merges])


def merge_down(
    bigrams: Bigrams,
    cluster_of_word: Int[np.ndarray, " V"],
    clusters: int,
    *,
    alone: Sequence[int] = (),
    threads: int | None = None,
) -> Int[np.ndarray, " V"]:
    """Fewer clusters out of many: those merge first that Brown would. O(M^3) for M to begin with.

    The clusters of words of `alone` stay as they are.
    """
    own = sorted({int(cluster_of_word[word]) for word in alone})
    number = int(cluster_of_word.max(initial=-1)) + 1
    check_number(clusters, number)
    merges = _merge_classes(bigrams, cluster_of_word, own, threads, left=clusters)
    labels = joined(merges, number)
    return np.append(labels, -1)[cluster_of_word]


def _merge_classes(
    bigrams: Bigrams,
    cluster_of_word: np.ndarray,
    alone: Sequence[int],
    threads: int | None,
    left: int = 1,
) -> np.ndarray:
    """The merges of clusters until so many are left, each as two of the clusters."""
    check_clusters(cluster_of_word, bigrams.vocab_size)
    number = int(cluster_of_word.max(initial=-1)) + 1
    kept = cluster_of_word >= 0
    counts = bigrams.of_classes(cluster_of_word, number).ravel()
    keys = np.flatnonzero(counts)
    sizes = np.bincount(cluster_of_word[kept], bigrams.words[kept], minlength=number)
    classes = Bigrams.from_keys(sizes.astype(np.int64), keys, counts[keys])
    state = _State(classes, number, alone, together.available_threads(threads))
    state.start(np.arange(number), number)
    return state.shrink(number, left)


class _State:
    """The tables of `compiled`, for a number of slots."""

    def __init__(self, bigrams: Bigrams, size: int, alone: Sequence[int], threads: int) -> None:
        self.bigrams, self.size, self.threads = bigrams, size, threads
        vocab = bigrams.vocab_size
        total = bigrams.total
        self.table = n_log_n_table(total)
        is_alone = np.zeros(vocab, np.int64)
        is_alone[list(alone)] = 1
        self.texts = (*bigrams.ahead, *bigrams.back, bigrams.firsts, bigrams.seconds, is_alone)
        empty = np.full((2, vocab), -1)
        self.words = (*empty, *np.full((2, size), -1))
        kind = np.int32 if total < 1 << 31 else np.int64
        self.slots = (
            *np.zeros((2, size, size), kind),
            *np.zeros((3, size, size)),
            np.zeros((5, size), np.int64),
        )
        # Twice as many pieces as threads: one that is held up leaves more to the others.
        pieces = 1 if threads == 1 else 2 * threads
        self.work = (
            np.zeros((pieces, 2, size), np.int64),
            np.zeros((pieces, 3, size)),
            np.zeros((pieces, 3, size)),
            np.zeros((pieces, 3)),
        )
        self.merges = np.full((vocab, 2), -1)

    def start(self, order: np.ndarray, window: int) -> None:
        self._run(compiled.start, order, window, self.texts)

    def grow(self, order: np.ndarray, begin: int, stop: int, free: int) -> int:
        return self._run(compiled.grow, order, begin, stop, free, self.merges, self.texts)

    def _run(self, loop: Callable, *arguments: Any) -> Any:
        shared = (np.zeros(6, np.int64), self.slots, self.table, self.work)
        results = []
        together.run(
            lambda board: results.append(loop(*arguments, self.words, *shared, board)),
            lambda _, board: compiled.help(*shared, board),
            self.threads,
        )
        return results[0]

    def close(self, free: int) -> None:
        """Puts the last slot in the place of a free one."""
        slot_of_word = self.words[0]
        slot_of_word[slot_of_word == self.size - 1] = free
        compiled.move(free, self.size - 1, self.slots, self.words)

    def shrink(self, number: int, left: int = 1) -> np.ndarray:
        merges = np.zeros((number - 1, 2), np.int64)
        self._run(compiled.shrink, number, left, merges)
        return merges[left - 1 :][::-1]
