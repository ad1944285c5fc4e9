"""English text that every Python interpreter ships: the help topics of `pydoc`."""

import hashlib
import re

_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*|[^\w\s]")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_HELD_OUT = 10
"""One sentence in this many is held out."""


def builtin_sentences() -> tuple[list[str], list[str]]:
    """Sentences of `pydoc_data.topics`, tokenised and in lower case: (training, held out).

    Each sentence occurs once. Which are held out depends on their text alone, so the split is the
    same on every machine with the same Python.
    """
    from pydoc_data.topics import topics

    train: dict[str, None] = {}
    held_out: dict[str, None] = {}
    for topic in sorted(topics):
        for paragraph in re.split(r"\n\s*\n", topics[topic]):
            if _is_prose(paragraph):
                for sentence in _SENTENCE_END.split(" ".join(paragraph.split())):
                    words = _WORD.findall(sentence.replace("*", "").replace("`", "").lower())
                    if _is_sentence(words):
                        line = " ".join(words)
                        number = int.from_bytes(hashlib.sha256(line.encode()).digest()[:4], "big")
                        (train if number % _HELD_OUT else held_out)[line] = None
    return list(train), list(held_out)


def _is_prose(paragraph: str) -> bool:
    """Not a piece of code, a grammar or a table."""
    marks = (">>>", "::=", "...", "+---", "====", "----", "   |")
    return not any(mark in paragraph for mark in marks)


def _is_sentence(words: list[str]) -> bool:
    spelt = sum(word[0].isalpha() for word in words)
    return 4 <= len(words) <= 80 and words[-1] in ".!?:" and spelt >= 0.65 * len(words)
