"""Regular expressions over characters as automata over the bytes of UTF-8."""

import re
from collections.abc import Iterator
from typing import Any

from hmmlm.errors import InputError
from hmmlm.generate.automata import Automaton, from_steps

SURROGATES = (0xD800, 0xDFFF)
LAST = 0x10FFFF


def compile_regex(pattern: str) -> Automaton:
    r"""The automaton over bytes of the texts that a pattern matches as a whole.

    Of Python's patterns: letters, classes, groups, `|`, `*`, `+`, `?`, `{m,n}`; `.` is any
    character, `\w`, `\d` and `\s` are those of ASCII. Nothing that looks around or back.
    """
    import greenery

    try:
        re.compile(pattern)
    except re.error as error:
        where = "" if error.pos is None else f" at {error.pos}"
        raise InputError(f"The pattern {pattern!r} is wrong{where}: {error.msg}.") from None
    try:
        machine = greenery.parse("".join(_rewrite(pattern))).to_fsm()
    except InputError:
        raise
    except Exception as error:  # greenery has no error of its own
        raise InputError(
            f"The pattern {pattern!r} cannot be made an automaton ({error}); use letters, classes, "
            f"groups, | * + ? and {{m,n}} only."
        ) from None
    return _to_bytes(machine)


def _rewrite(pattern: str) -> Iterator[str]:
    """A pattern of Python's in the way that greenery writes it, which escapes only what it must."""
    left = re.findall(r"\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|\\.|\(\?[^:]|\(\?:|.", pattern, re.S)
    size, place, inside = len(left), 0, False
    while place < size:
        part, before = left[place], "" if place == 0 else left[place - 1]
        following = left[place + 1] if place + 1 < size else ""
        place += 1
        if inside:
            if part == "]":
                inside = False
            elif part in ("[", "^") or (
                part == "-" and (following == "]" or before in ("[", "[^"))
            ):
                part = f"\\{part}"
            yield _letter(pattern, part, r"\[]^-")
        elif part == "[":
            inside = True
            opening = "[^" if following == "^" else "["
            yield opening
            place += len(opening) - 1
            left[place - 1] = opening
            if place < size and left[place] == "]":  # the first one is a letter
                yield r"\]"
                place += 1
        elif (part == "^" and place == 1) or (part == "$" and place == size):
            continue
        elif part in ("^", "$") or (part.startswith("(?") and part != "(?:"):
            raise _not_regular(pattern, part)
        elif part in ("?", "+") and before in ("*", "+", "?", "}"):
            if part == "+":
                raise _not_regular(pattern, before + part)
        elif part == "{" and following == ",":
            yield "{0"
        else:
            yield _letter(pattern, part, r"\[]|().?*+{}")


def _letter(pattern: str, part: str, special: str) -> str:
    """A part that may be an escaped letter; escaped where that means something."""
    if not part.startswith("\\") or len(part) == 1:
        return part
    name = part[1]
    if name == "u":
        letter = chr(int(part[2:], 16))
        return f"\\{letter}" if letter in special else letter
    if name in "123456789bBAZ":
        raise _not_regular(pattern, part)
    return part if name.isalnum() or name in special else name


def _not_regular(pattern: str, part: str) -> InputError:
    return InputError(
        f"The pattern {pattern!r} has {part}, which looks around, refers back or holds on to what "
        f"it took; a pattern here matches a whole text, so leave it out."
    )


def _to_bytes(machine: Any) -> Automaton:
    """An automaton over characters as one over bytes.

    States are those of `machine`, which are numbers, or, in the middle of a character, the ways it
    may go on and where each leads.
    """
    ways = {
        state: tuple(
            (sequence, after)
            for letters, after in row.items()
            for span in _ranges(letters)
            for sequence in _utf8(*span)
        )
        for state, row in machine.map.items()
    }

    def step(state: Any, byte: int) -> Any:
        left = []
        for sequence, after in state if isinstance(state, tuple) else ways[state]:
            low, high = sequence[0]
            if low <= byte <= high:
                if len(sequence) == 1:
                    return after
                left.append((sequence[1:], after))
        return tuple(left)  # an empty one: no character goes on so

    return from_steps(256, machine.initial, step, lambda state: state in machine.finals)


def _ranges(letters: Any) -> list[tuple[int, int]]:
    """The code points of a class, without surrogates, which UTF-8 does not write."""
    ranges = list(letters.ord_ranges)
    if letters.negated:
        ends = [-1, *(high for _, high in ranges)]
        starts = [*(low for low, _ in ranges), LAST + 1]
        ranges = [(end + 1, start - 1) for end, start in zip(ends, starts, strict=True)]
    found = []
    for low, high in ranges:
        for first, last in ((0, SURROGATES[0] - 1), (SURROGATES[1] + 1, LAST)):
            if max(low, first) <= min(high, last):
                found.append((max(low, first), min(high, last)))
    return found


def _utf8(low: int, high: int) -> list[tuple[tuple[int, int], ...]]:
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
