"""The `paths` file that the field uses: bit string of a word's cluster, word and count."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from hmmlm.clusters.clustering import Clustering, check_clusters
from hmmlm.errors import InputError
from hmmlm.storage import new_file

_LINE = re.compile(r"([01]*)\t(.+)\t(\d{1,18})")


class WordPaths(NamedTuple):
    """What is in a `paths` file, line by line."""

    paths: list[str]
    words: list[str]
    counts: list[int]


def write_paths(
    path: str | os.PathLike[str],
    clustering: Clustering,
    words: Sequence[str],
    counts: Int[np.ndarray, " V"],
) -> None:
    """Writes the words that occur: clusters in order, in each the most frequent word first."""
    check_clusters(clustering.cluster_of_word, len(words))
    clusters = clustering.cluster_of_word.tolist()
    numbers = counts.tolist()
    found = [word for word in range(len(words)) if clusters[word] >= 0]
    found.sort(key=lambda word: (clusters[word], -numbers[word], words[word]))
    for word in found:
        if not words[word] or "\n" in words[word] or "\r" in words[word]:
            raise InputError(
                f"the word {words[word]!r} is empty or has a line break in it, so a paths file "
                "cannot hold it; cluster a text without it."
            )
    with new_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        for word in found:
            file.write(f"{clustering.paths[clusters[word]]}\t{words[word]}\t{numbers[word]}\n")


def read_paths(path: str | os.PathLike[str]) -> WordPaths:
    """Reads a file of `write_paths` or of wcluster, and checks every line."""
    path = Path(path)
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from None
    if lines[-1] == b"":
        lines.pop()
    if not lines:
        raise InputError(f"{path} is empty; give a paths file with at least one word.")
    seen: dict[str, int] = {}
    found = WordPaths([], [], [])
    for number, raw in enumerate(lines, 1):
        try:
            line = raw.decode().removesuffix("\r")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{path}, line {number:,}: byte 0x{raw[error.start]:02x} is not UTF-8; convert the "
                "file first."
            ) from None
        match = _LINE.fullmatch(line)
        if match is None:
            raise InputError(
                f"{path}, line {number:,} is {_short(line)} but must be a bit string, a word and a "
                "count with tabs between; give a paths file of hmmlm cluster or wcluster."
            )
        bits, word, count = match.groups()
        if word in seen:
            raise InputError(
                f"{path}, line {number:,} has the word {word!r} a second time, after line "
                f"{seen[word]:,}; a word is in one cluster, so remove one of the lines."
            )
        seen[word] = number
        found.paths.append(bits)
        found.words.append(word)
        found.counts.append(int(count))
    return found


def clustering_from_paths(
    found: WordPaths, words: Sequence[str], *, source: str = "the paths file"
) -> Clustering:
    """The clusters of a vocabulary, by the spelling of its words; -1 for those not in the file.

    Clusters are numbered in the order of their bit strings. A word that the vocabulary lacks is
    refused: the clusters are of another one.
    """
    ids = {word: id for id, word in enumerate(words) if word}
    unknown = [word for word in found.words if word not in ids]
    if unknown:
        raise InputError(
            f"{source} has {len(unknown):,} of {len(found.words):,} words that this vocabulary "
            f"does not have, such as {unknown[0]!r}; give clusters that were made with this "
            "vocabulary."
        )
    paths = tuple(sorted(set(found.paths)))
    places = {path: place for place, path in enumerate(paths)}
    cluster_of_word = np.full(len(words), -1, np.int32)
    for word, path in zip(found.words, found.paths, strict=True):
        cluster_of_word[ids[word]] = places[path]
    return Clustering(cluster_of_word, paths)


def _short(line: str) -> str:
    return repr(line if len(line) <= 60 else line[:60] + "...")
