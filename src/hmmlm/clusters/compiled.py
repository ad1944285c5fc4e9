"""Loops over bigrams that are too slow in Python."""

import numpy as np

from hmmlm.machine_code import compile_loop


@compile_loop
def n_log_n(n, table):  # pragma: no cover
    """n log n, looked up in a table of the first ones or computed."""
    return table[n] if n < table.shape[0] else n * np.log(np.float64(n))


@compile_loop
def merge_runs(keys, counts, other_keys, other_counts):  # pragma: no cover
    """Two tables sorted by key as one, the counts of equal keys added."""
    size = len(keys) + len(other_keys)
    out_keys, out_counts = np.empty(size, np.int64), np.empty(size, np.int64)
    i = j = found = 0
    while i < len(keys) or j < len(other_keys):
        left = i < len(keys) and (j == len(other_keys) or keys[i] <= other_keys[j])
        right = j < len(other_keys) and (i == len(keys) or other_keys[j] <= keys[i])
        out_keys[found] = keys[i] if left else other_keys[j]
        out_counts[found] = (counts[i] if left else 0) + (other_counts[j] if right else 0)
        i, j, found = i + left, j + right, found + 1
    return out_keys[:found].copy(), out_counts[:found].copy()


@compile_loop
def transpose(offsets, words, counts):  # pragma: no cover
    """The same table by column: its rows are sorted too."""
    size = len(offsets) - 1
    out_offsets = np.zeros(size + 1, np.int64)
    for word in words:
        out_offsets[word + 1] += 1
    for word in range(size):
        out_offsets[word + 1] += out_offsets[word]
    place = out_offsets[:-1].copy()
    out_words, out_counts = np.empty_like(words), np.empty_like(counts)
    for word in range(size):
        for i in range(offsets[word], offsets[word + 1]):
            at = place[words[i]]
            place[words[i]] += 1
            out_words[at], out_counts[at] = word, counts[i]
    return out_offsets, out_words, out_counts


@compile_loop
def count_classes(offsets, words, counts, class_of_word, goal):  # pragma: no cover
    """Adds every pair of words to the cell of their classes; words of class -1 have none."""
    for word in range(len(offsets) - 1):
        c = class_of_word[word]
        if c < 0:
            continue
        for i in range(offsets[word], offsets[word + 1]):
            d = class_of_word[words[i]]
            if d >= 0:
                goal[c, d] += counts[i]
