"""What commands print: people read the lines, programs the last one."""

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from hmmlm.errors import InputError

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)

Json = Annotated[bool, typer.Option("--json", help="Make the last line of the output JSON.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: a GPU if there is one.")]


def print_json(result: dict[str, Any]) -> None:
    """One line of JSON; numbers that JSON does not have become null."""
    sys.stdout.write(json.dumps(_plain(result), ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@contextmanager
def progress_bar(what: str, total: int | None, *, details: str = "") -> Iterator[Progress]:
    """A bar on stderr that disappears when done; nothing is drawn where nobody watches.

    The bar has one task, number 0; its field `details` is shown at the end.
    """
    middle = [BarColumn(), MofNCompleteColumn()] if total is not None else [SpinnerColumn()]
    with Progress(
        TextColumn("{task.description}"),
        *middle,
        TimeElapsedColumn(),
        TimeRemainingColumn() if total is not None else TextColumn(""),
        TextColumn("{task.fields[details]}"),
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    ) as bar:
        bar.add_task(what, total=total, details=details)
        yield bar


def pick_device(name: str) -> str:
    """The name of the device to run on."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"--device {name} was asked for but torch finds no GPU; use --device cpu.")
    try:
        return str(torch.device(name))
    except RuntimeError:
        raise InputError(f"--device is {name!r} but must be cpu, cuda or auto.") from None
