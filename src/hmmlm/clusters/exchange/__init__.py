"""Exchange clustering: moving one word at a time to the class where it adds most."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Int

from hmmlm.clusters import together
from hmmlm.clusters.brown import merge_down, merge_tree
from hmmlm.clusters.clustering import Clustering, check_alone, check_clusters, check_number
from hmmlm.clusters.counts import Bigrams, n_log_n_table
from hmmlm.clusters.exchange import compiled
from hmmlm.errors import InputError

WIDE_START = 1024
"""Classes up to which twice as many are made first: it ends better, and above takes too long."""

BATCH = 64
"""Words that are looked at side by side before those that gain are moved."""

_STRETCH = 16 * BATCH
"""Words between two reports of progress."""


def exchange(
    bigrams: Bigrams,
    clusters: int,
    *,
    start: Int[np.ndarray, " V"] | None = None,
    alone: Sequence[int] = (),
    passes: int = 50,
    tolerance: float = 1e-4,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Clustering:
    """Moves words between M classes while the mutual information of neighbouring classes grows.

    Kneser & Ney 1993, Martin et al. 1998: each word in turn, frequent ones first, goes to the class
    that adds most. No move lowers the mutual information. It stops after a pass that added less
    than `tolerance` of all, or after `passes`. `start` gives each word that occurs a class. Without
    it the most frequent words start in one each and the rest in the last; up to 1,024 classes, a
    few passes with twice as many come first, which are then merged as Brown does. Words of `alone`
    keep a class of their own. The bit strings come from merging the classes in the end.

    The result does not depend on the number of threads. `progress(words)` hears how many more
    were looked at. Time: O(M D) a pass, where D is the number of pairs of a word and a neighbouring
    class, O(M^3) for the bit strings, and what the start takes; memory: O(M^2), beside the bigrams.
    """
    check_number(clusters, bigrams.num_types)
    alone = check_alone(alone, bigrams.words, clusters)
    threads = together.available_threads(threads)
    if start is not None:
        _check_start(start, bigrams, clusters, alone)
        classes = start.astype(np.int64)
    elif clusters <= WIDE_START and 2 * clusters <= bigrams.num_types:
        wide = _frequent_words(bigrams, 2 * clusters, alone)
        _State(bigrams, wide, 2 * clusters, alone, threads).settle(passes, 1e-2, progress)
        classes = merge_down(bigrams, wide, clusters, alone=alone, threads=threads)
    else:
        classes = _frequent_words(bigrams, clusters, alone)
    _State(bigrams, classes, clusters, alone, threads).settle(passes, tolerance, progress)
    return merge_tree(bigrams, classes.astype(np.int32), threads=threads)


def _frequent_words(bigrams: Bigrams, clusters: int, alone: Sequence[int]) -> np.ndarray:
    """The most frequent words in a class each, those of `alone` first, and the rest in the last."""
    order = bigrams.by_count()
    order = np.concatenate([np.array(alone, np.int64), order[~np.isin(order, alone)]])
    classes = np.full(bigrams.vocab_size, -1)
    classes[order] = np.minimum(np.arange(len(order)), clusters - 1)
    return classes


class _State:
    """The tables of `compiled`; `classes` is changed in place."""

    def __init__(
        self, bigrams: Bigrams, classes: np.ndarray, size: int, alone: Sequence[int], threads: int
    ) -> None:
        self.bigrams, self.classes, self.threads = bigrams, classes, threads
        self.total = bigrams.total
        self.table = n_log_n_table(self.total)
        self.order = bigrams.by_count()
        self.texts = (*bigrams.ahead, *bigrams.back, bigrams.firsts, bigrams.seconds)
        counts = bigrams.of_classes(classes, size)
        kind = np.int32 if self.total < 1 << 31 else np.int64
        ahead, back = counts.astype(kind), counts.T.astype(kind, order="C")
        self.tables = (ahead, back, counts.sum(1), counts.sum(0))
        self.is_open = np.ones(size, np.bool_)
        self.is_open[classes[list(alone)]] = False
        self.scratch = (
            *np.zeros((2, threads, 2, size), np.int64),
            np.zeros((threads, size)),
        )

    def settle(self, passes: int, tolerance: float, progress: Callable[[int], None] | None) -> None:
        """Passes until one gains no more than `tolerance` of all."""
        for _ in range(passes):
            if self.improve(progress) <= tolerance * self.information():
                return

    def improve(self, progress: Callable[[int], None] | None) -> float:
        """One pass over all words; gives what it gained, in nats a pair."""
        gained = []
        # A gain below what rounding may make of nothing is none.
        least = 1e-6 + 1e-12 * self.total
        shared = (
            np.zeros(3, np.int64),
            self.order,
            np.zeros(BATCH, np.int64),
            self.texts,
            self.classes,
            self.tables,
            self.is_open,
            self.table,
            self.scratch,
        )
        for begin in range(0, len(self.order), _STRETCH):
            stop = min(begin + _STRETCH, len(self.order))
            shared[0][:] = 0
            own = (begin, stop, least)
            together.run(
                lambda board, own=own: gained.append(compiled.improve(*own, shared, board)),
                lambda thread, board: compiled.help(shared, thread, board),
                self.threads,
            )
            if progress is not None:
                progress(stop - begin)
        return sum(gained) / max(1, self.total)

    def information(self) -> float:
        """The mutual information of the classes, in nats."""
        if self.total == 0:
            return 0.0
        parts = []
        for counts in (self.tables[0], self.tables[2], self.tables[3]):
            counts = counts[counts > 1].astype(np.float64)
            parts.append((counts * np.log(counts)).sum())
        return float((parts[0] - parts[1] - parts[2]) / self.total + np.log(self.total))


def _check_start(start: np.ndarray, bigrams: Bigrams, clusters: int, alone: Sequence[int]) -> None:
    check_clusters(start, bigrams.vocab_size)
    occurs = bigrams.words > 0
    sizes = np.bincount(start[start >= 0], minlength=clusters)
    if ((start >= 0) != occurs).any() or len(sizes) > clusters or (sizes == 0).any():
        raise InputError(
            f"start must give every word that occurs, and no other, a class from 0 to "
            f"{clusters - 1:,}, and every class a word."
        )
    for word in alone:
        if sizes[start[word]] > 1:
            raise InputError(
                f"word {word:,} is to be alone but shares its class of `start` with others; give "
                "it one of its own."
            )
