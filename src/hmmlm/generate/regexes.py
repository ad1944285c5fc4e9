"""Regular expressions over characters as automata over the bytes of UTF-8."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np

from hmmlm.errors import InputError
from hmmlm.generate.automata import Automaton, from_steps

SURROGATES = (0xD800, 0xDFFF)
LAST = 0x10FFFF
PLACES = 1 << 16
"""Of a pattern whose counts are written out; what would need more is refused."""

WORK = 1 << 24
"""Steps of places that are followed at most."""

CATEGORIES = {
    "DIGIT": [(0x30, 0x39)],
    "SPACE": [(0x09, 0x0D), (0x20, 0x20)],
    "WORD": [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)],
}
"""The characters of `\\d`, `\\s` and `\\w`."""

EDGES = {"AT_BEGINNING": "^", "AT_BEGINNING_STRING": r"\A", "AT_END": "$", "AT_END_STRING": r"\Z"}
NOT_REGULAR = {
    **EDGES,
    "AT_BOUNDARY": r"\b",
    "AT_NON_BOUNDARY": r"\B",
    "ASSERT": "(?=...)",
    "ASSERT_NOT": "(?!...)",
    "GROUPREF": "a reference to a group",
    "GROUPREF_EXISTS": "(?(...)...)",
    "POSSESSIVE_REPEAT": "*+, ++, ?+ or }+",
    "ATOMIC_GROUP": "(?>...)",
}
"""Parts of Python's patterns that have no place in an automaton of whole texts."""

Span = tuple[int, int]


def compile_regex(pattern: str) -> Automaton:
    r"""The automaton over bytes of the texts that a pattern matches as a whole.

    Of Python's patterns: letters, classes, groups, `|`, `*`, `+`, `?`, `{m,n}`; `.` is any
    character, `\w`, `\d` and `\s` are those of ASCII. Nothing that looks around or back.
    """
    parser: Any = import_module("re._parser")  # Python's own: what it takes is what `re` takes
    try:
        tree = parser.parse(pattern)
    except re.error as error:
        where = "" if error.pos is None else f" at {error.pos}"
        raise InputError(f"The pattern {pattern!r} is wrong{where}: {error.msg}.") from None
    except (OverflowError, RecursionError) as error:
        raise InputError(f"The pattern {pattern!r} cannot be read: {error}.") from None
    if tree.state.flags != re.UNICODE.value:
        raise InputError(f"The pattern {pattern!r} has flags; write out what they stand for.")
    places = _Places(pattern)
    end = places.follow(tree, 0, (True, True))
    return places.determine(end)


class _Places:
    """Places in a pattern, and which bytes lead from one to another; the first is 0."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.free: list[list[int]] = [[]]  # to places without a byte
        self.moves: list[list[tuple[Span, int]]] = [[]]

    def new(self) -> int:
        if len(self.free) >= PLACES:
            raise self._too_large()
        self.free.append([])
        self.moves.append([])
        return len(self.free) - 1

    def follow(self, parts: Iterable[Any], place: int, edges: tuple[bool, bool]) -> int:
        """The place after some parts; whether they are first in the text, and last."""
        parts = list(parts)
        for number, (kind, value) in enumerate(parts):
            is_edge = (edges[0] and number == 0, edges[1] and number == len(parts) - 1)
            place = self._part(str(kind), value, place, is_edge)
        return place

    def determine(self, end: int) -> Automaton:
        """The smallest automaton, its states sets of places."""
        cuts = sorted({0, 256, *(n for low, high in self._spans() for n in (low, high + 1))})
        column = np.repeat(np.arange(len(cuts) - 1), np.diff(cuts))
        work = 0

        def step(state: frozenset[int], number: int) -> frozenset[int]:
            nonlocal work
            work += len(state) + 1
            if work > WORK:
                raise self._too_large()
            byte = cuts[number]
            return frozenset().union(
                *(
                    self._reached[after]
                    for place in state
                    for (low, high), after in self.moves[place]
                    if low <= byte <= high
                )
            )

        return from_steps(256, self._reached[0], step, lambda state: end in state, column)

    @cached_property
    def _reached(self) -> list[frozenset[int]]:
        """The places that each place stands for: from which a byte leads on, or the last."""
        found = []
        for place in range(len(self.free)):
            seen, waiting = {place}, [place]
            for some in waiting:
                waiting += [new for new in self.free[some] if new not in seen]
                seen.update(self.free[some])
            found.append(frozenset(n for n in seen if self.moves[n] or not self.free[n]))
        return found

    def _spans(self) -> Iterator[Span]:
        return (span for moves in self.moves for span, _ in moves)

    def _part(self, kind: str, value: Any, place: int, edges: tuple[bool, bool]) -> int:
        if kind in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            return self._character(_ranges(kind, value), place)
        if kind == "BRANCH":
            after = self.new()
            for way in value[1]:
                self._join(self.follow(way, place, edges), after)
            return after
        if kind == "SUBPATTERN":
            _, added, removed, inside = value
            if added or removed:
                raise InputError(
                    f"The pattern {self.pattern!r} has flags; write out what they stand for."
                )
            return self.follow(inside, place, edges)
        if kind in ("MAX_REPEAT", "MIN_REPEAT"):
            least, most, inside = value
            return self._repeat(least, most, inside, place)
        kind = str(value) if kind == "AT" else kind
        if kind in EDGES and edges[kind.startswith("AT_END")]:
            return place
        raise InputError(
            f"The pattern {self.pattern!r} has {NOT_REGULAR.get(kind, kind)}, which looks around, "
            f"refers back or holds on to what it took; a pattern here matches a whole text, so "
            f"leave it out."
        )

    def _repeat(self, least: int, most: Any, inside: Any, place: int) -> int:
        has_end = str(most) != "MAXREPEAT"
        for _ in range(least):
            place = self._copy(inside, place)
        if not has_end:
            loop, after = self.new(), self.new()
            self._join(place, loop)
            self._join(self._copy(inside, loop), loop)
            self._join(loop, after)
            return after
        after = self.new()
        for _ in range(most - least):
            self._join(place, after)
            place = self._copy(inside, place)
        self._join(place, after)
        return after

    def _copy(self, inside: Any, place: int) -> int:
        begin = self.new()
        self._join(place, begin)
        return self.follow(inside, begin, (False, False))

    def _character(self, ranges: Sequence[Span], place: int) -> int:
        after = self.new()
        for low, high in ranges:
            for spans in _utf8(low, high):
                here = place
                for span in spans[:-1]:
                    there = self.new()
                    self.moves[here].append((span, there))
                    here = there
                self.moves[here].append((spans[-1], after))
        return after

    def _join(self, place: int, after: int) -> None:
        self.free[place].append(after)

    def _too_large(self) -> InputError:
        return InputError(
            f"The automaton of the pattern {self.pattern!r} is too large: over {PLACES:,} places, "
            f"or too many sets of them; ask for fewer repetitions."
        )


def _ranges(kind: str, value: Any) -> list[Span]:
    """The code points of a character, without surrogates, which UTF-8 does not write."""
    if kind == "IN":
        is_negated = str(value[0][0]) == "NEGATE"
        found = [span for name, what in value[is_negated:] for span in _class(str(name), what)]
    else:
        is_negated = kind == "NOT_LITERAL"
        found = [(0, LAST)] if kind == "ANY" else [(value, value)]
    found = _without(found) if is_negated else found
    return [
        (max(low, first), min(high, last))
        for low, high in found
        for first, last in ((0, SURROGATES[0] - 1), (SURROGATES[1] + 1, LAST))
        if max(low, first) <= min(high, last)
    ]


def _class(name: str, what: Any) -> list[Span]:
    """What a part of a class stands for."""
    if name == "CATEGORY":
        kind = str(what).removeprefix("CATEGORY_")
        found = CATEGORIES[kind.removeprefix("NOT_")]
        return _without(found) if kind.startswith("NOT_") else found
    return [(what, what)] if name == "LITERAL" else [what]


def _without(ranges: Sequence[Span]) -> list[Span]:
    """All other code points."""
    found, first = [], 0
    for low, high in sorted(ranges):
        if low > first:
            found.append((first, low - 1))
        first = max(first, high + 1)
    return [*found, (first, LAST)] if first <= LAST else found


def _utf8(low: int, high: int) -> list[tuple[Span, ...]]:
    """Sequences of ranges of bytes that write the characters from `low` to `high`."""
    for last in (0x7F, 0x7FF, 0xFFFF):
        if low <= last < high:
            return _utf8(low, last) + _utf8(last + 1, high)
    first, final = chr(low).encode(), chr(high).encode()
    for place in range(1, len(first)):
        rest = (1 << 6 * (len(first) - place)) - 1  # what the bytes from `place` on can count
        if low & ~rest != high & ~rest:
            if low & rest:
                return _utf8(low, low | rest) + _utf8((low | rest) + 1, high)
            if high & rest != rest:
                return _utf8(low, (high & ~rest) - 1) + _utf8(high & ~rest, high)
    return [tuple(zip(first, final, strict=True))]
