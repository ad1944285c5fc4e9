"""What is said of a claim: whether it holds, of which numbers, or that it has not run yet."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple


class Missing(Exception):
    """A line that a claim needs is not there yet."""


class Verdict(NamedTuple):
    claim: str
    holds: bool | None  # None: not run yet
    numbers: str

    @property
    def word(self) -> str:
        return {True: "holds", False: "does not", None: "not run yet"}[self.holds]


def judge_each(
    found: Any, claims: Iterable[tuple[str, Callable[[Any], tuple[bool, str]]]]
) -> list[Verdict]:
    """A verdict for each claim, by its check of the lines that were found."""
    made = []
    for claim, check in claims:
        try:
            made.append(Verdict(claim, *check(found)))
        except Missing:
            made.append(Verdict(claim, None, ""))
    return made
