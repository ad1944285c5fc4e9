"""What is known of the words of a text: a file of labels with gaps, parallel to its lines."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from hmmlm.data.corpus import read_lines
from hmmlm.data.token_array import TokenArray
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError, counted

GAP = "_"
"""The entry of a word whose label is not known."""

_CHUNK = 1 << 20


class Labels(NamedTuple):
    """`ids` are parallel to the tokens: 0 where nothing is known, k + 1 for `tags[k]`."""

    tags: tuple[str, ...]
    ids: TokenArray

    def identity(self) -> str:
        """What tells these labels from others. One pass."""
        found = hashlib.sha256("\n".join(self.tags).encode())
        for start in range(0, len(self.ids), _CHUNK):
            found.update(self.ids[start : start + _CHUNK])
        return found.hexdigest()[:16]


def read_labels(
    path: str | os.PathLike[str], tokens: TokenArray, tokenizer: Tokenizer, *, left_out: int = 0
) -> Labels:
    """The labels of a text, from a file with a line for each of its lines and an entry a word.

    Entries are separated by spaces; `_` is a gap, and `<eos>` has no entry. Empty lines stand for
    empty lines of the text, whether they are in `tokens` or were skipped. With `left_out` n, every
    n-th line that is not empty belongs to no token, as where plain text holds lines out. Tags are
    sorted. Memory: a byte for each token, two or four where there are more than 255 tags, and a few
    megabytes.
    """
    path = Path(path)
    if not tokenizer.splits_by_words:
        raise InputError(
            f"{path} has labels for words, but the text was split into pieces of words; prepare it "
            "without --tokenizer, so that its tokens are words."
        )
    lines = _lines(path, left_out)
    found = np.zeros(len(tokens), dtype=np.uint8)
    known: dict[str, int] = {GAP: 0}
    at = sentence = number = 0
    for sentence, words in enumerate(_sentence_lengths(tokens), 1):
        number, entries = next(lines, (number, None))
        while entries == [] and words:  # an empty line that the preparation skipped
            number, entries = next(lines, (number, None))
        if entries is None:
            raise InputError(
                f"{path} ends after {counted(number, 'line')} but the text has more: sentence "
                f"{sentence:,} has no labels; give a line for every line of the text."
            )
        if len(entries) != words:
            raise InputError(
                f"{path}, line {number:,} has {counted(len(entries), 'label')} but its sentence "
                f"has {counted(words, 'word')}; give one for each word, _ where it is not known."
            )
        ids = [known.setdefault(entry, len(known)) for entry in entries]
        if len(known) > np.iinfo(found.dtype).max:
            found = found.astype(np.uint16 if found.dtype == np.uint8 else np.uint32)
        found[at : at + words] = ids
        at += words + 1
    for number, entries in lines:
        if entries:
            raise InputError(
                f"{path}, line {number:,} comes after the last of the text's {sentence:,} "
                "sentences; give a line for every line of the text and no more."
            )
    if len(known) == 1:
        raise InputError(f"{path} has no label, only gaps; give some words a label.")
    tags = sorted(known.keys() - {GAP})
    place = {tag: number for number, tag in enumerate(tags, 1)} | {GAP: 0}
    order = np.array([place[tag] for tag in known], dtype=found.dtype)
    for start in range(0, len(found), _CHUNK):
        found[start : start + _CHUNK] = order[found[start : start + _CHUNK]]
    return Labels(tuple(tags), TokenArray([found], eos_id=tokens.eos_id))


def labelled_words(tokens: TokenArray, labels: TokenArray) -> Int[np.ndarray, "N 2"]:
    """The different (word, label) that occur together, without gaps, in order. One pass."""
    codes, base = np.empty(0, dtype=np.int64), 1 << 32
    for start in range(0, len(tokens), _CHUNK):
        words, marks = tokens[start : start + _CHUNK], labels[start : start + _CHUNK]
        here = marks > 0
        codes = np.union1d(codes, words[here] * base + marks[here] - 1)
    return np.stack([codes // base, codes % base], 1)


def _lines(path: Path, left_out: int) -> Iterator[tuple[int, list[str]]]:
    """The number and the entries of each line."""
    filled = 0
    for number, line in enumerate(read_lines(path, empty_lines="keep"), 1):
        entries = line.split()
        filled += bool(entries)
        if not (entries and left_out and filled % left_out == 0):
            yield number, entries


def _sentence_lengths(tokens: TokenArray) -> Iterator[int]:
    """The words of each sentence, without its `<eos>`."""
    begun = 0
    for start in range(0, len(tokens), _CHUNK):
        chunk = tokens[start : start + _CHUNK]
        at = 0
        for end in np.flatnonzero(chunk == tokens.eos_id).tolist():
            yield begun + end - at
            at, begun = end + 1, 0
        begun += len(chunk) - at
