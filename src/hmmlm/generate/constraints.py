"""What a text must be: regular languages over its letters, put together with & | ~ and then.

A text is what its tokens write, without one space at its beginning (`data.spelling`).
"""

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from hmmlm.data.spelling import Spelling
from hmmlm.errors import InputError
from hmmlm.generate.automata import Automaton, alike, distinct, from_steps
from hmmlm.generate.regexes import compile_regex

BYTES = 256
WORD = frozenset((string.ascii_letters + string.digits + "_'").encode())
SPACE = frozenset(string.whitespace.encode())
STOPS = frozenset(b".!?")
CLOSING = frozenset(b"\"')]")


@dataclass(frozen=True, eq=False)
class Constraint:
    """A set of texts. `a & b`, `a | b`, `~a`, and `a.then(b)`: a text of a, followed by one of b.

    `str` is how it was made.
    """

    def __and__(self, other: "Constraint") -> "Constraint":
        return _Together("&", (self, check_constraint(other)))

    def __or__(self, other: "Constraint") -> "Constraint":
        return _Together("|", (self, check_constraint(other)))

    def __invert__(self) -> "Constraint":
        return _Not(self)

    def then(self, other: "Constraint") -> "Constraint":
        return _Then(self, check_constraint(other))

    @property
    def letters(self) -> Automaton | None:
        """Over bytes; None where it counts tokens."""
        raise NotImplementedError

    def read(self, spelling: Spelling) -> Automaton:
        """Over tokens. What it does with tokens that write nothing is left open."""
        assert self.letters is not None
        return lift(self.letters, spelling)

    def compile(self, spelling: Spelling) -> Automaton:
        """The automaton over tokens that accepts its texts; refused if there is none.

        Tokens that write nothing have no place in them.
        """
        made = self.read(spelling) & _written(spelling)
        if made.is_empty:
            raise self.emptiness(spelling)
        return made

    def emptiness(self, spelling: Spelling) -> InputError:
        """Why no text of these tokens is one of its."""
        if self.letters is None or self.letters.is_empty:
            return InputError(f"No text meets {self}, however long.")
        return InputError(
            f"The tokens of this vocabulary cannot write a text that meets {self}; use other "
            f"words, or a model of another tokenizer."
        )

    def accepts(self, text: str) -> bool:
        """Whether a text is one of them; not for constraints that count tokens."""
        if self.letters is None:
            raise InputError(f"{self} counts tokens, so that a text alone does not tell.")
        return self.letters.accepts(_phrase(text) if text else b"")


@dataclass(frozen=True)
class _Leaf(Constraint):
    """Leaves of one name are equal: it says all of them."""

    name: str
    make: Callable[[], Automaton] = field(compare=False)
    lower: "tuple[str, Constraint] | None" = field(default=None, compare=False)
    """What it looks for in lower case, where that is something else."""

    @cached_property
    def letters(self) -> Automaton | None:
        return self.make()

    def read(self, spelling: Spelling) -> Automaton:
        return _lift_leaf(self, spelling)

    def emptiness(self, spelling: Spelling) -> InputError:
        if self.lower is not None:
            phrase, other = self.lower
            if not (other.read(spelling) & _written(spelling)).is_empty:
                return InputError(
                    f"The tokens of this vocabulary cannot write a text that meets {self}; did you "
                    f"mean {phrase}?"
                )
        return super().emptiness(spelling)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class _Tokens(Constraint):
    least: int
    most: int | None

    @property
    def letters(self) -> Automaton | None:
        return None

    def read(self, spelling: Spelling) -> Automaton:
        return from_steps(
            len(spelling.tokens),
            0,
            lambda count, _: _more(count, self.least, self.most),
            lambda count: _is_within(count, self.least, self.most),
            np.zeros(len(spelling.tokens), np.int64),
        )

    def __str__(self) -> str:
        return f"tokens({_range(self.least, self.most)})"


@dataclass(frozen=True, eq=False)
class _Together(Constraint):
    sign: str
    parts: tuple[Constraint, Constraint]

    @cached_property
    def letters(self) -> Automaton | None:
        one, other = (part.letters for part in self.parts)
        if one is None or other is None:
            return None
        return one & other if self.sign == "&" else one | other

    def read(self, spelling: Spelling) -> Automaton:
        one, other = (part.read(spelling) for part in self.parts)
        return one & other if self.sign == "&" else one | other

    def emptiness(self, spelling: Spelling) -> InputError:
        for part in self.parts:
            if (part.read(spelling) & _written(spelling)).is_empty:
                return part.emptiness(spelling)
        one, other = self.parts
        return InputError(f"No text meets both {one} and {other}; ask for one of them.")

    def __str__(self) -> str:
        return f"({f' {self.sign} '.join(map(str, self.parts))})"


@dataclass(frozen=True, eq=False)
class _Not(Constraint):
    part: Constraint

    @cached_property
    def letters(self) -> Automaton | None:
        return None if self.part.letters is None else ~self.part.letters

    def read(self, spelling: Spelling) -> Automaton:
        return ~self.part.read(spelling)

    def __str__(self) -> str:
        return f"~{self.part}"


@dataclass(frozen=True, eq=False)
class _Then(Constraint):
    """Cut anywhere, also within a token; where tokens are counted, between two."""

    first: Constraint
    second: Constraint

    @cached_property
    def letters(self) -> Automaton | None:
        one, other = self.first.letters, self.second.letters
        return None if one is None or other is None else one.then(other)

    def read(self, spelling: Spelling) -> Automaton:
        if self.letters is not None:
            return lift(self.letters, spelling)
        return self.first.read(spelling).then(self.second.read(spelling))

    def __str__(self) -> str:
        return f"{self.first}.then({self.second})"


def check_constraint(given: Any) -> Constraint:
    """What was given, if it is a constraint."""
    if not isinstance(given, Constraint):
        example = repr(given if isinstance(given, str) and given else "rain")
        raise InputError(
            f"{given!r} is a {type(given).__name__} but must be a constraint; make one, such as "
            f"hmmlm.generate.contains({example})."
        )
    return given


def contains(*phrases: str, whole: bool = True, ignore_case: bool = False) -> Constraint:
    """Texts with all of these words or phrases, in any order.

    `whole`: not as a part of a longer word ("rain" is not in "train"). `ignore_case`: of ASCII's
    letters.
    """
    return _all("&", [_contains(phrase, whole, ignore_case) for phrase in _given(phrases)])


def contains_any(*phrases: str, whole: bool = True, ignore_case: bool = False) -> Constraint:
    """Texts with at least one of these words or phrases."""
    return _all("|", [_contains(phrase, whole, ignore_case) for phrase in _given(phrases)])


def starts_with(text: str) -> Constraint:
    """Texts that begin so."""
    goal = _phrase(text)

    def step(state: int, byte: int) -> int:
        if state in (-1, len(goal)):
            return state
        return state + 1 if goal[state] == byte else -1

    made = _leaf(f"starts_with({text!r})", 0, step, lambda state: state == len(goal))
    return _or_lower(made, text, starts_with)


def ends_with(text: str) -> Constraint:
    """Texts that end so."""
    goal = _phrase(text)

    def step(state: int, byte: int) -> int:
        read = goal[:state] + bytes([byte])
        return next(n for n in range(min(len(goal), len(read)), -1, -1) if read.endswith(goal[:n]))

    made = _leaf(f"ends_with({text!r})", 0, step, lambda state: state == len(goal))
    return _or_lower(made, text, ends_with)


def words(least: int, most: int | None = None) -> Constraint:
    """Texts of so many words, by the spaces between them."""
    _check_range("words", least, most)

    def step(state: Any, byte: int) -> Any:
        count, inside = state
        if byte in SPACE:
            return count, False
        return (count if inside else _more(count, least, most)), True

    def accepts(state: Any) -> bool:
        return _is_within(state[0], least, most)

    return _leaf(f"words({_range(least, most)})", (0, False), step, accepts)


def sentences(least: int, most: int | None = None) -> Constraint:
    """Texts of so many sentences: each is ended by . ! or ?, before a space or at the end.

    Quotes and brackets may close in between; an end that is not marked is none.
    """
    _check_range("sentences", least, most)

    def step(state: Any, byte: int) -> Any:
        count, ended = state
        if byte in STOPS:
            return count, True
        if ended and byte in CLOSING:
            return count, True
        return (_more(count, least, most) if ended and byte in SPACE else count), False

    def accepts(state: Any) -> bool:
        count, ended = state
        return _is_within(_more(count, least, most) if ended else count, least, most)

    return _leaf(f"sentences({_range(least, most)})", (0, False), step, accepts)


def tokens(least: int, most: int | None = None) -> Constraint:
    """Texts of so many tokens, `<eos>` not counted."""
    _check_range("tokens", least, most)
    return _Tokens(least, most)


def regex(pattern: str) -> Constraint:
    """Texts that a regular expression matches as a whole."""
    return _Leaf(f"regex({pattern!r})", lambda: compile_regex(pattern))


def anything() -> Constraint:
    """All texts."""
    return _leaf("anything()", 0, lambda state, byte: 0, lambda state: True)


def lift(letters: Automaton, spelling: Spelling) -> Automaton:
    """The automaton over tokens that does what one over bytes does with what they write.

    Beginnings of tokens that lead from each state to the same one are read on as one: O(beginnings
    + kinds of them x states). The first token of a text is read without a space at its beginning.
    """
    # State 0 stands before the text, where a space does not count; the others are the letters'.
    space, size = letters.num_columns, letters.num_states + 1
    columns = letters.column.copy()
    columns[ord(" ")] = space
    steps = np.empty((size, space + 1), np.int64)
    steps[1:, :-1] = letters.next + 1
    steps[1:, -1] = steps[1:, letters.column[ord(" ")]]
    steps[0], steps[0, -1] = steps[1], 1

    ends, levels = spelling.prefixes
    moves, kind = np.arange(size)[None], np.zeros(1, np.int64)
    all_moves, kinds, before = [], [], 0
    for parents, spelt in levels:
        codes = kind[parents] * (space + 1) + columns[spelt]
        codes, kind = distinct(codes, len(moves) * (space + 1))
        sources, column = np.divmod(codes, space + 1)
        moves = steps[moves[sources], column[:, None]]  # (kinds, states)
        first, same = alike(moves)
        moves, kind = moves[first], same[kind]
        all_moves.append(moves)
        kinds.append(before + kind)
        before += len(moves)
    column = np.zeros(len(spelling.tokens), np.int64)  # tokens that write nothing: back to 0
    if len(ends):
        column[spelling.rows[0]] = 1 + np.concatenate(kinds)[ends]
    used, column = distinct(column, before + 1)
    table = np.concatenate([np.zeros((1, size), np.int64), *all_moves])[used].T
    accepting = letters.accepting[[0, *range(letters.num_states)]]
    return Automaton(column, table, accepting).reduced()


@lru_cache(maxsize=64)
def _lift_leaf(leaf: "_Leaf", spelling: Spelling) -> Automaton:
    """Of the leaves read last: constraints share words."""
    assert leaf.letters is not None
    return lift(leaf.letters, spelling)


def _written(spelling: Spelling) -> Automaton:
    """All strings of tokens that write something."""
    column = np.array([int(not text) for text in spelling.tokens])
    return Automaton(column, np.array([[0, 1], [1, 1]]), np.array([True, False]))


def _contains(phrase: str, whole: bool, ignore_case: bool) -> Constraint:
    goal = _phrase(phrase)
    fold = (lambda byte: ord(chr(byte).lower()) if byte < 128 else byte) if ignore_case else int
    goal = bytes(fold(byte) for byte in goal)
    # At an end that is no letter there is no longer word to be part of.
    opens, closes = (whole and _is_of_word(phrase[n].encode()[0], False) for n in (0, -1))

    def step(state: Any, byte: int) -> Any:
        if state is True:
            return True
        after_word, parts = state
        begins = {0} if not (opens and after_word) else set()
        grown = frozenset(n + 1 for n in parts | begins if n < len(goal) and goal[n] == fold(byte))
        is_word = _is_of_word(byte, after_word)
        if (len(goal) in parts and not is_word) or (len(goal) in grown and not closes):
            return True
        return is_word, grown

    how = ("" if whole else ", whole=False") + (", ignore_case=True" if ignore_case else "")
    made = _leaf(
        f"contains({phrase!r}{how})",
        (False, frozenset()),
        step,
        lambda state: state is True or len(goal) in state[1],
    )
    return _or_lower(made, phrase, lambda small: _contains(small, whole, ignore_case))


def _is_of_word(byte: int, before: bool) -> bool:
    """Whether a byte belongs to a character that a word may have, as its first byte tells.

    Those are ASCII's letters, digits, _ and ', and all from U+00C0 on but U+2000 to U+3FFF (signs,
    kana), and what comes after U+E000 (private, full-width, emoji).
    """
    if byte < 128:
        return byte in WORD
    if byte < 0xC0:
        return before  # not the first one
    return byte not in (0xC2, 0xE2, 0xE3) and byte < 0xEE


def _leaf(
    name: str, start: Any, step: Callable[[Any, int], Any], accepts: Callable[[Any], bool]
) -> _Leaf:
    return _Leaf(name, lambda: from_steps(BYTES, start, step, accepts))


def _or_lower(leaf: _Leaf, phrase: str, make: Callable[[str], Constraint]) -> Constraint:
    """The leaf, which knows what it would be in lower case."""
    small = phrase.lower()
    return leaf if small == phrase else replace(leaf, lower=(small, make(small)))


def _all(sign: str, parts: Sequence[Constraint]) -> Constraint:
    made = parts[0]
    for part in parts[1:]:
        made = _Together(sign, (made, part))
    return made


def _more(count: int, least: int, most: int | None) -> int:
    """One more, as far as it matters."""
    return min(count + 1, least if most is None else most + 1)


def _is_within(count: int, least: int, most: int | None) -> bool:
    return count >= least and (most is None or count <= most)


def _given(phrases: tuple[str, ...]) -> tuple[str, ...]:
    if not phrases:
        raise InputError("There is no phrase to look for; give at least one.")
    return phrases


def _phrase(text: str) -> bytes:
    if not text:
        raise InputError("The text to look for is empty; give at least one letter.")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{text!r} cannot be written in UTF-8; give other text.") from None


def _check_range(name: str, least: int, most: int | None) -> None:
    if least < 0 or (most is not None and most < least):
        raise InputError(
            f"{name} is {_range(least, most)} but must be from 0 or more up to no less than that."
        )


def _range(least: int, most: int | None) -> str:
    return f"{least}.." if most is None else f"{least}..{most}"
