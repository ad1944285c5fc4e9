"""Small texts to cluster, and quantities by their definition."""

import math
import random
from collections import Counter
from itertools import pairwise

import numpy as np

from hmmlm.clusters.counts import Bigrams, count_bigrams
from hmmlm.data.shards import TokenArray


def lines_of_classes(count: int, seed: int, words: int = 30, classes: int = 5) -> list[list[int]]:
    """Lines of word ids, drawn from a chain over classes; ids are 0 to words - 1, word w of class
    w % classes, the lower ids more often."""
    draw = random.Random(seed)
    lines = []
    for _ in range(count):
        line, c = [], draw.randrange(classes)
        for _ in range(draw.randint(1, 9)):
            members = range(c, words, classes)
            line.append(draw.choices(members, [1 / (1 + i) for i in range(len(members))])[0])
            c = (c + draw.choice([1, 1, 1, 2, 3, classes])) % classes
        lines.append(line)
    return lines


def bigrams_of(lines: list[list[int]], vocab_size: int, pairs: str = "lines") -> Bigrams:
    """The counts of lines, `<eos>` being the last word of the vocabulary."""
    eos = vocab_size - 1
    ids = [word for line in lines for word in [*line, eos]]
    return count_bigrams(TokenArray.from_ids(ids, eos_id=eos), vocab_size, pairs=pairs)


def toy(seed: int = 0, lines: int = 200) -> tuple[Bigrams, Counter]:
    """Thirty words and `<eos>`, and the pairs of neighbours counted by hand."""
    text = lines_of_classes(lines, seed)
    pairs = Counter((a, b) for line in text for a, b in pairwise(line))
    return bigrams_of(text, 31), pairs


def information(pairs: Counter, cluster_of: dict[int, int]) -> float:
    """sum p(c, c') log(p(c, c') / (p(c) p(c'))) over the clusters of words in `cluster_of`.

    p(c) is of all pairs, so with some of the words it is the part of the sum that they have.
    """
    total = sum(pairs.values())
    both, first, second = Counter(), Counter(), Counter()
    for (a, b), n in pairs.items():
        if a in cluster_of:
            first[cluster_of[a]] += n
        if b in cluster_of:
            second[cluster_of[b]] += n
        if a in cluster_of and b in cluster_of:
            both[cluster_of[a], cluster_of[b]] += n
    return sum(
        n / total * math.log(n * total / (first[c] * second[d])) for (c, d), n in both.items()
    )


def as_dict(cluster_of_word: np.ndarray) -> dict[int, int]:
    return {word: int(c) for word, c in enumerate(cluster_of_word) if c >= 0}


def partition(cluster_of_word: np.ndarray) -> set[frozenset[int]]:
    """The clusters as sets of words."""
    return {
        frozenset(np.flatnonzero(cluster_of_word == c).tolist())
        for c in set(cluster_of_word.tolist()) - {-1}
    }
