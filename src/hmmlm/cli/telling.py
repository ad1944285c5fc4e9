"""What people are told while a training runs: a bar, or lines in a log, and how long it takes."""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from hmmlm.cli.bars import duration, in_words
from hmmlm.cli.output import errors, note

if TYPE_CHECKING:
    from hmmlm.train.loop import Progress

LONG = 600.0
"""Seconds of a training that are worth a word."""

SURE = 10.0
"""Seconds of steps after which their number tells how long all take."""

LEAST, MOST, UNCHECKED = 5.0, 600.0, 60.0
"""Seconds between lines of a log: after a validation at least, without one at most; at most where
there is no validation text."""


class Teller:
    """Tells of steps to a bar, or where nobody watches to a log; once, how long all will take."""

    def __init__(self, bar: Any, folder: Path, *, has_checks: bool) -> None:
        self.bar, self.folder, self.has_checks = bar, folder, has_checks
        self.first: tuple[int, float] | None = None  # the first step here, and when it was over
        self.last = time.perf_counter()  # when the log had its last line
        self.has_said_length = False

    def tell(self, step: "Progress", best: float) -> None:
        now = time.perf_counter()
        left, known = self._left(step, now)
        self.bar.update(
            self.bar.task_ids[0], completed=step.step, left=left, details=_versions(step, best)
        )
        if left is not None and known >= SURE and not self.has_said_length:
            self.has_said_length = True
            if left + known > LONG:
                note(
                    f"about {in_words(left + known)} on this machine; Ctrl-C stops, hmmlm train "
                    f"--resume {quote(str(self.folder))} goes on"
                )
        if not errors.is_terminal and self._is_due(step, now - self.last):
            self.last = now
            note(_line(step, left))

    def _left(self, step: "Progress", now: float) -> tuple[float | None, float]:
        """Seconds that are left, and how many the steps took that tell so.

        The first step is not one of them: it compiles, and waits for memory.
        """
        if self.first is None:
            self.first = (step.step, now)
            return None, 0.0
        number, began = self.first
        return (step.steps - step.step) * (now - began) / (step.step - number), now - began

    def _is_due(self, step: "Progress", since: float) -> bool:
        if step.val is not None:
            return since >= LEAST
        return since >= (MOST if self.has_checks else UNCHECKED)


def _versions(step: "Progress", best: float) -> Sequence[str]:
    """What a bar says of a step, from the longest to what it says in any terminal."""
    perplexity = f"perplexity {step.perplexity:.1f}"
    speed = f"{step.tokens_per_second:,.0f} tokens/s"
    count = f"step {step.step:,} of {step.steps:,}"
    if math.isinf(best):
        return [f"{count}, {perplexity}, {speed}", f"{perplexity}, {speed}", perplexity]
    checked = f"{perplexity}, best on validation {best:.1f}"
    shorter = [f"{checked}, {speed}", checked, f"{perplexity}, best {best:.1f}"]
    return [f"{count}, {shorter[0]}", *shorter]


def _line(step: "Progress", left: float | None) -> str:
    """What a log says of a step."""
    parts = [f"step {step.step:,} of {step.steps:,}", f"perplexity {step.perplexity:.1f}"]
    parts += [] if step.val is None else [f"validation {step.val:.1f}"]
    parts += [] if left is None else [f"{duration(left)} left"]
    return ", ".join(parts)
