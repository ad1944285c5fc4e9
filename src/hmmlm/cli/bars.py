"""The bar of work that takes a while: one line on stderr, as wide as the terminal has room."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rich.cells import cell_len
from rich.console import RenderableType
from rich.progress import Progress, Task
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from hmmlm.cli.output import console, errors
from hmmlm.errors import rounded

LONGEST, SHORTEST = 40, 8
"""Cells of a bar. Where there is no room for the shortest, a shorter version of the details is
taken; the bar of the last version may vanish, so that the words stay."""


@contextmanager
def progress_bar(
    what: str,
    total: int | None,
    *,
    completed: int = 0,
    prints: bool = False,
    bytes: bool = False,
) -> Iterator[Progress]:
    """A bar on stderr that disappears when done; nothing is drawn where nobody watches.

    The bar has one task, number 0, with two fields: `details`, shown at the end, a string or
    versions of it that get shorter; and `left`, the seconds that are left, where the work knows
    better than the bar. Of `bytes` it shows how many a second. Where the work `prints` to the same
    terminal, that is progress enough.
    """
    with _Line(
        console=errors,
        transient=True,
        disable=errors.quiet or not errors.is_terminal or (prints and console.is_terminal),
        # Redirected, what a command writes to stdout would come out on stderr, with the bar.
        redirect_stdout=False,
        redirect_stderr=False,
    ) as bar:
        bar.add_task(what, total=total, completed=completed, details="", bytes=bytes)
        yield bar


def duration(seconds: float) -> str:
    """0:41, 12:03 or 1:02:03; of ten hours and more only those."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 10:
        return f"{seconds / 3600:,.0f} h"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def in_words(seconds: float) -> str:
    """0.6 s, 94 s, 25 min or 26 h."""
    if seconds < 120:
        return f"{seconds:.{1 if seconds < 9.95 else 0}f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:,.0f} h"


class _Line(Progress):
    _spinner = Spinner("dots")

    def get_renderables(self) -> Iterable[RenderableType]:
        for task in self.tasks:
            yield self._draw(task)

    def _draw(self, task: Task) -> Table:
        """What is done, the bar or a spinner, and what is known about it."""
        text, room = _fitting(task, self.console.width - 1)
        grid = Table.grid(padding=(0, 1))
        row: list[RenderableType] = [Text(task.description, no_wrap=True, overflow="ellipsis")]
        grid.add_column()  # the one that is cut where a name is too long
        if task.total is None:
            grid.add_column(no_wrap=True)
            row.append(self._spinner.render(task.get_time()))
        elif room > 0:
            grid.add_column(no_wrap=True)
            row.append(ProgressBar(task.total, task.completed, width=min(LONGEST, room)))
        grid.add_column(no_wrap=True)
        grid.add_row(*row, Text(text, no_wrap=True, overflow="ellipsis"))
        return grid


def _fitting(task: Task, width: int) -> tuple[str, int]:
    """The longest text that leaves room for a short bar, and how many cells are left for it."""
    details = task.fields["details"]
    versions = [details] if isinstance(details, str) else details
    text, room = "", 0
    for version in versions:
        text = ", ".join(part for part in (*_facts(task), version) if part)
        room = width - cell_len(task.description) - cell_len(text) - 2
        if room >= SHORTEST:
            break
    return text, room


def _facts(task: Task) -> list[str]:
    """What every work has: its share and the time left, or without an end the time so far."""
    if task.total is None:
        return [duration(task.elapsed or 0.0)]
    facts = [f"{task.percentage:>3.0f}%"]
    if task.fields["bytes"] and task.speed:
        facts.append(rounded(task.speed, "B/s"))
    left = task.fields.get("left", task.time_remaining)
    return facts if left is None else [*facts, f"{duration(left)} left"]
