"""What a constraint is made of, how its probability is told, and where a text meets it."""

import math
import re
from collections.abc import Sequence

from hmmlm import generate as g
from hmmlm.errors import InputError, counted


def make_constraint(
    contains: Sequence[str], without: Sequence[str], regex: str, words: str
) -> g.Constraint:
    """All of what is asked for, which must be something."""
    parts = [g.contains(phrase) for phrase in contains]
    parts += [~g.contains(phrase) for phrase in without]
    parts += [g.regex(regex)] if regex else []
    parts += [g.words(*read_range(words, "words"))] if words else []
    if not parts:
        raise InputError(
            "There is no constraint; give words that must be there or must not, a regular "
            "expression, or a number of words."
        )
    made = parts[0]
    for part in parts[1:]:
        made = made & part
    return made


def read_range(said: str, name: str) -> tuple[int, int | None]:
    """10..20, 10.. or 12 as the least and the most."""
    first, dots, last = said.partition("..")
    last = last if dots else first
    if not first.isdecimal() or not (last.isdecimal() or (dots and not last)):
        raise InputError(f"{name} is {said!r} but must be such as 10..20, 10.. or 12.")
    return int(first), int(last) if last else None


def share(log_prob: float) -> str:
    """A probability for people; small ones by their power of ten, of which floats know 323."""
    if log_prob >= math.log(0.001):
        return f"{100 * math.exp(log_prob):.3g}%"
    power = math.floor(log_prob / math.log(10) + 0.0223)  # 9.5 is told as 1 of the next power
    return f"{math.exp(log_prob - power * math.log(10)):.0f}e{power}"


def told(log_prob: float, length: int) -> str:
    """A sentence about how probable it is that a text meets a constraint and ends in time."""
    room = f"at most {counted(length, 'token')}"
    if log_prob == -math.inf:
        return f"probability 0: this model never writes that in {room}"
    words = f"probability {share(log_prob)} that the model writes such a text of {room}"
    return words + (": it hardly ever does" if log_prob < math.log(0.01) else "")


def marks(text: str, phrases: Sequence[str]) -> list[tuple[int, int]]:
    """Where phrases stand in a text, as parts of no longer word: (start, end), in order."""
    found = []
    for phrase in phrases:
        before = r"(?<![\w'])" if re.match(r"[\w']", phrase[0]) else ""
        after = r"(?![\w'])" if re.match(r"[\w']", phrase[-1]) else ""
        pattern = before + re.escape(phrase) + after
        found += [match.span() for match in re.finditer(pattern, text)]
    return sorted(set(found))
