"""English text that every Python interpreter ships: the help topics of `pydoc`."""

import re
import zlib

_MARKUP = re.compile(r'\*\*|``|`|\*(?=\w)|(?<=\w)\*|"(?=\w)|(?<=[\w)])"')
_SENTENCE_END = re.compile(r'(?<=[.!?:])\s+(?=[A-Z"(])')
_WORD = re.compile(r"[^\W\d]+(?:['\u2019][a-z]+)?|\d+|[^\w\s]")
_EXAMPLE = re.compile(
    r">>>|::=|^\s+(?:def|class|for|if|try|import|return|with|print)\b.*[:()]$", re.M
)


def builtin_sentences() -> dict[str, list[str]]:
    """Sentences of `pydoc_data.topics`, tokenised and in lower case: train, valid and test.

    Each sentence occurs once. Its split depends on its text alone, so that it is the same on every
    machine with the same Python: of twenty, one is for validation and two are for testing.
    """
    from pydoc_data.topics import topics

    splits: dict[str, dict[str, None]] = {"train": {}, "valid": {}, "test": {}}
    for topic in sorted(topics):
        for paragraph in re.split(r"\n\s*\n", topics[topic]):
            if _EXAMPLE.search(paragraph):
                continue  # code, or a grammar
            text = _MARKUP.sub("", " ".join(paragraph.split()))
            for sentence in _SENTENCE_END.split(text):
                words = _WORD.findall(sentence.lower())
                spelt = sum(word.isalpha() for word in words)
                if len(words) >= 3 and spelt >= 0.5 * len(words):
                    line = " ".join(words)
                    number = zlib.crc32(line.encode()) % 20
                    name = "test" if number < 2 else "valid" if number == 2 else "train"
                    splits[name][line] = None
    return {name: list(lines) for name, lines in splits.items()}
