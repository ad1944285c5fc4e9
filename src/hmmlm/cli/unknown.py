"""Words that a model does not know: what is said of them where a text was read as <unk>."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from hmmlm.cli.output import warn
from hmmlm.errors import counted

if TYPE_CHECKING:
    from hmmlm.data.tokenizer import Tokenizer

SHOWN = 5
"""Unknown words that are named; of more the first ones."""


class UnknownWords:
    """The words of a text that is read meanwhile, and those of them that are unknown."""

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self.tokenizer = tokenizer
        self.words = self.unknown = 0
        self._named: dict[str, None] = {}  # in the order of the text

    def watch(self, lines: Iterable[str]) -> Iterator[str]:
        """The lines as they are, each counted when it is taken."""
        for line in lines:
            self.add(line)
            yield line

    def add(self, line: str) -> None:
        """Counts the words of a line."""
        by_words = self.tokenizer.splits_by_words
        size = len(line.split()) if by_words else len(self.tokenizer.encode(line))
        self.count(size, self.tokenizer.unknown(line))

    def count(self, words: int, unknown: list[str]) -> None:
        """Counts words, some of which are unknown."""
        self.words += words
        self.unknown += len(unknown)
        for word in unknown:
            if len(self._named) <= SHOWN:  # one more says that there are more
                self._named[word] = None

    def tell(self) -> None:
        """A line on stderr, if any word was unknown."""
        if not self.unknown:
            return
        noun = "word" if self.tokenizer.splits_by_words else "token"
        share = f" ({self.unknown / self.words:.1%})" if self.words > 100 else ""
        verb = "is" if self.unknown == 1 else "are"
        named = [*self._named][:SHOWN] + ["..."] * (len(self._named) > SHOWN)
        assert self.tokenizer.unk_id is not None
        warn(
            f"{self.unknown:,} of {counted(self.words, noun)}{share} {verb} not in the "
            f"vocabulary and {verb} read as {self.tokenizer.token(self.tokenizer.unk_id)}: "
            f"{', '.join(named)}{self._advice()}"
        )

    def _advice(self) -> str:
        """What lower case would help."""
        lower = {word: word.lower() for word in self._named if word != word.lower()}
        known = [small for small in lower.values() if not self.tokenizer.unknown(small)]
        if not known:
            return ""
        names = (self.tokenizer.token(id) for id in range(self.tokenizer.vocab_size))
        if all(name == name.lower() for name in names):
            return " (the model's words are in lower case)"
        return f" (it knows {', '.join(known[:SHOWN])})"


def tell_unknown(tokenizer: "Tokenizer", text: str) -> None:
    """A line on stderr, if any word of a text is unknown."""
    found = UnknownWords(tokenizer)
    found.add(text)
    found.tell()


def tell_unknown_of_pattern(tokenizer: "Tokenizer", pattern: str) -> None:
    """The same of a line with gaps, whose marks are no words."""
    from hmmlm.filling import read_gaps

    line = read_gaps(tokenizer, pattern, (0, 0))
    places = [place for place in line.spans if place is not None]
    ids = line.ids[0].tolist()[: len(places)]
    pairs = [(id, pattern[slice(*place)]) for id, place in zip(ids, places, strict=True) if id >= 0]
    unk = tokenizer.unk_id
    unknown = [part for id, part in pairs if id == unk and part != tokenizer.token(id)]
    found = UnknownWords(tokenizer)
    found.count(len(pairs), unknown)
    found.tell()
