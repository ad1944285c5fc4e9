"""Files of tagged sentences: a token and its tags on a line, a blank line after a sentence."""

import os
from pathlib import Path
from typing import NamedTuple

from hmmlm.data.corpus import read_lines
from hmmlm.errors import InputError, counted

_CONLLU = (
    "of CoNLL-U keep words and tags: grep -Ev '^(#|[0-9]+[-.])' FILE | cut -f 2,4,5 > gold.tsv"
)


class TaggedSentence(NamedTuple):
    """The words of a sentence and a tag for each; its first is on line `number` of the file."""

    words: list[str]
    tags: list[str]
    number: int


def read_gold(path: str | os.PathLike[str], *, column: int = 2) -> list[TaggedSentence]:
    """The sentences of a file whose lines are a word and its tags, separated by tabs.

    `column` is that of the tags, where the word's is 1. All lines have as many columns as the first
    one; blank lines end sentences.
    """
    path = Path(path)
    if column < 2:
        raise InputError(f"column is {column:,} but tags begin at 2; the words are in 1.")
    found: list[TaggedSentence] = []
    columns = 0
    is_open = False
    for number, line in enumerate(read_lines(path, empty_lines="keep"), 1):
        if not line:
            is_open = False
            continue
        cells = line.split("\t")
        where = f"{path}, line {number:,}"
        if columns == 0:
            columns = _check_first(where, cells, column)
        if len(cells) != columns:
            raise InputError(
                f"{where} has {counted(len(cells), 'column')} but those before it have "
                f"{columns:,}; give every token as many, separated by tabs."
            )
        word, tag = cells[0], cells[column - 1].strip()
        if len(word.split()) != 1:
            raise InputError(
                f"{where} has {word!r} for a word, but a word is not empty and has no space; write "
                "_ instead of one, or leave the line out."
            )
        if not tag:
            raise InputError(f"{where} has no tag in column {column:,}; give every word one.")
        if not is_open:
            found.append(TaggedSentence([], [], number))
            is_open = True
        found[-1].words.append(word)
        found[-1].tags.append(tag)
    if not found:
        raise InputError(f"{path} has only blank lines; give a word, a tab and a tag on each.")
    return found


def _check_first(where: str, cells: list[str], column: int) -> int:
    if len(cells) == 1:
        raise InputError(f"{where} has no tab, but must have a word, a tab and its tags; {_CONLLU}")
    if column > len(cells):
        raise InputError(
            f"{where} has {counted(len(cells), 'column')} but the tags are to be in column "
            f"{column:,}; choose --column 2 to {len(cells):,}."
        )
    return len(cells)
