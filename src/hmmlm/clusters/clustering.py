"""A partition of words: its bit strings, its balance, and what is asked of one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from hmmlm.errors import InputError, check_count


@dataclass(frozen=True)
class Clustering:
    """`cluster_of_word[w]` is a word's cluster, -1 for one that never occurs.

    `paths[m]` is the way to cluster m from the root of a binary tree, 0 for left and 1 for right;
    clusters are numbered in the order of their paths. Those that share a prefix were merged before
    they were merged with others.
    """

    cluster_of_word: Int[np.ndarray, " V"]
    paths: tuple[str, ...]

    @property
    def num_clusters(self) -> int:
        return len(self.paths)


class Balance(NamedTuple):
    """How even blocks are. `imbalance` is the most words in a block over the mean.

    `largest_share` is the part of a text that comes from its most frequent block.
    """

    blocks: int
    fewest_words: int
    median_words: float
    most_words: int
    imbalance: float
    largest_share: float | None


def balance(
    block_of_word: Int[np.ndarray, " V"], counts: Int[np.ndarray, " V"] | None = None
) -> Balance:
    """The sizes of blocks; with the counts of words also of their share of the text."""
    kept = block_of_word >= 0
    blocks = block_of_word[kept]
    sizes = np.bincount(blocks)
    share = None
    if counts is not None:
        tokens = np.bincount(blocks, counts[kept])
        share = float(tokens.max() / max(1.0, tokens.sum()))
    return Balance(
        len(sizes),
        int(sizes.min()),
        float(np.median(sizes)),
        int(sizes.max()),
        float(sizes.max() / sizes.mean()),
        share,
    )


def from_tree(
    cluster_of_word: Int[np.ndarray, " V"],
    words: Int[np.ndarray, " V"],
    merges: Int[np.ndarray, "M-1 2"],
) -> Clustering:
    """Numbers clusters by their bit strings, from the merges that join all of them, in order.

    A merge is a word of either cluster. Of two that merge, the one whose words occur more often
    (`words` counts them) is the left.
    """
    number = len(merges) + 1
    kept = cluster_of_word >= 0
    weights = np.bincount(cluster_of_word[kept], words[kept], minlength=number).tolist()
    children: list[tuple[int, int] | None] = [None] * number
    node_of = list(range(number))  # of the tree that a cluster is in, if it stands for that tree
    stands_for = list(range(number))

    def find(cluster: int) -> int:
        while stands_for[cluster] != cluster:
            stands_for[cluster] = stands_for[stands_for[cluster]]
            cluster = stands_for[cluster]
        return cluster

    for pair in cluster_of_word[merges].tolist():
        one, other = (find(cluster) for cluster in pair)
        left, right = node_of[one], node_of[other]
        if weights[left] < weights[right]:
            left, right = right, left
        children.append((left, right))
        weights.append(weights[left] + weights[right])
        stands_for[other] = one
        node_of[one] = len(children) - 1
    found, waiting = [], [(len(children) - 1, "")]
    while waiting:
        node, path = waiting.pop()
        pair = children[node]
        if pair is None:
            found.append((path, node))
        else:
            waiting += [(pair[1], path + "1"), (pair[0], path + "0")]
    # Left first: they come in the order of their paths.
    place = np.empty(number + 1, np.int32)
    place[-1] = -1  # what -1 reads
    place[[node for _, node in found]] = np.arange(number)
    return Clustering(place[cluster_of_word], tuple(path for path, _ in found))


def joined(pairs: Int[np.ndarray, "P 2"], size: int) -> Int[np.ndarray, " N"]:
    """A number for each of `size` things, the same for those that pairs join, from 0 on."""
    stands_for = list(range(size))

    def find(one: int) -> int:
        while stands_for[one] != one:
            stands_for[one] = stands_for[stands_for[one]]
            one = stands_for[one]
        return one

    for one, other in pairs.tolist():
        stands_for[find(other)] = find(one)
    return np.unique([find(one) for one in range(size)], return_inverse=True)[1]


def check_number(clusters: int, types: int) -> None:
    """Refuses a number of clusters that the text does not have words for."""
    check_count("clusters", clusters)
    if clusters > types:
        raise InputError(
            f"{clusters:,} clusters were asked for but the text has only {types:,} different "
            f"words; ask for at most {types:,}."
        )


def check_clusters(cluster_of_word: np.ndarray, vocab_size: int) -> None:
    """Refuses clusters that are not one number for each word of a vocabulary."""
    if cluster_of_word.shape != (vocab_size,) or cluster_of_word.dtype.kind not in "iu":
        raise InputError(
            f"cluster_of_word must be {vocab_size:,} whole numbers, one for each word, not shape "
            f"{cluster_of_word.shape} of {cluster_of_word.dtype}; these are the clusters of "
            "another vocabulary."
        )


def check_alone(alone: Sequence[int], words: np.ndarray, clusters: int) -> list[int]:
    """The words that are to be alone in a cluster, in order; they must occur."""
    alone = sorted(set(alone))
    for word in alone:
        if not 0 <= word < len(words) or words[word] == 0:
            raise InputError(
                f"word {word:,} cannot have a cluster of its own: it does not occur in the text."
            )
    types = int(np.count_nonzero(words))
    if len(alone) > clusters or (len(alone) == clusters and types > clusters):
        raise InputError(
            f"{clusters:,} clusters are too few for {len(alone):,} words with one of their own and "
            f"{types - len(alone):,} others; ask for at least {len(alone) + 1:,}."
        )
    return alone
