"""What is said of a claim: whether it holds, of which numbers, or that it has not run yet."""

from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

Outcome = bool | Literal["level"]
"""Whether a claim holds; level where the numbers are too close to say, of one seed."""

LEVEL: Outcome = "level"
WORDS: dict[Any, str] = {True: "holds", False: "does not", LEVEL: "level", None: "not run yet"}


class Missing(Exception):
    """A line that a claim needs is not there yet."""


class Claim(NamedTuple):
    """What is claimed and by whom, its check, and a reason, said where it does not hold."""

    text: str
    check: Callable[[Any], tuple[Outcome, str]]
    whose: str = "paper"
    why: str = ""


class Verdict(NamedTuple):
    claim: str
    whose: str
    outcome: Outcome | None  # None: not run yet
    numbers: str

    @property
    def word(self) -> str:
        return WORDS[self.outcome]


def judge_each(found: Any, claims: Iterable[Claim]) -> list[Verdict]:
    """A verdict for each claim, by its check of the lines that were found."""
    made = []
    for claim in claims:
        try:
            outcome, numbers = claim.check(found)
        except Missing:
            outcome, numbers = None, ""
        why = f"; {claim.why}" if claim.why and outcome is False else ""
        made.append(Verdict(claim.text, claim.whose, outcome, numbers + why))
    return made


def is_less(one: float, other: float, within: float = 0.01) -> Outcome:
    """Whether a number is the smaller one, by more than a share of the other."""
    return LEVEL if abs(one / other - 1) < within else one < other
