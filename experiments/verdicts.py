"""What is said of a claim: whether it holds, of which numbers, or that it has not run yet."""

from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

Outcome = bool | Literal["level", "unlike"]
"""Whether a claim holds; level where the numbers are too close to say, of one seed; unlike where
what is compared is not what was claimed."""

LEVEL: Outcome = "level"
UNLIKE: Outcome = "unlike"
WORDS: dict[Any, str] = {
    True: "holds",
    False: "does not",
    LEVEL: "level",
    UNLIKE: "not comparable",
    None: "not run yet",
}


class Missing(Exception):
    """A line that a claim needs is not there yet."""


class Claim(NamedTuple):
    """What is claimed and by whom, its check, a reason where it does not hold, and what to know."""

    text: str
    check: Callable[[Any], tuple[Outcome, str]]
    whose: str = "paper"
    why: str = ""
    note: str = ""


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
        told = [numbers, claim.why if outcome is not True else "", claim.note]
        numbers = "; ".join(part for part in told if part) if numbers else ""
        made.append(Verdict(claim.text, claim.whose, outcome, numbers))
    return made


def is_less(one: float, other: float, within: float = 0.01) -> Outcome:
    """Whether a number is the smaller one, by more than a share of the other."""
    return LEVEL if abs(one / other - 1) < within else one < other
