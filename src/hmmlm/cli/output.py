"""What commands are told and what they print: people read the lines, programs the last one."""

import math
import re
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hmmlm.storage import json_line

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


def mute() -> None:
    """Prints and draws nothing from here on: of several ranks the first one speaks."""
    console.quiet = errors.quiet = True


def whole(least: int) -> Callable[[Any], int]:
    """Reads an option that is a whole number of at least `least`."""

    def read(value: Any) -> int:
        if not re.fullmatch(r"[+-]?\d+", str(value)) or int(value) < least:
            raise typer.BadParameter(f"{str(value)!r} is not a whole number of at least {least}.")
        if int(value) >= 1 << 63:  # where the seeds of the random generators end
            raise typer.BadParameter(f"{value} is above the largest number possible, 2^63 - 1.")
        return int(value)

    return read


def number(name: str, help: str, least: int = 1) -> Any:
    """An option that is a whole number of at least `least`."""
    return typer.Option(name, help=help, parser=whole(least), metavar="N")


def positive(value: Any) -> float:
    """Reads an option that is a number above zero."""
    number = _number(value)
    if not number > 0:
        raise typer.BadParameter(f"{str(value)!r} is not a number above 0.")
    return number


def zero_or_more(value: Any) -> float:
    """Reads an option that is a number of at least zero."""
    number = _number(value)
    if not number >= 0:
        raise typer.BadParameter(f"{str(value)!r} is not a number of at least 0.")
    return number


def _number(value: Any) -> float:
    try:
        number = float(value)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def one_of(*choices: str) -> Callable[[str], str]:
    """Reads an option that is one of a few words."""

    def read(value: str) -> str:
        if value not in choices:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(choices)}.")
        return value

    return read


def readable(value: str) -> str:
    """Reads text from the command line, where bytes that are not UTF-8 come as surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        byte = ord(value[error.start]) & 0xFF
        raise typer.BadParameter(
            f"byte 0x{byte:02x} is not UTF-8; write the text in UTF-8."
        ) from None
    return value


def device_name(value: str) -> str:
    """Reads the name of a device; whether it is there is asked of torch later."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
        raise typer.BadParameter(f"{value!r} is not one of cpu, cuda, cuda:N or auto.")
    return value


Json = Annotated[bool, typer.Option("--json", help="Make the last line of the output JSON.")]
Device = Annotated[
    str,
    typer.Option(
        help="cpu, cuda, cuda:N, or auto: a GPU if there is one.",
        parser=device_name,
        metavar="NAME",
    ),
]
Recipe = Annotated[
    str | None,
    typer.Option(
        help="Settings by name, best, chiu-rush-2020 or lee-bk-2025; others override them.",
        metavar="NAME",
    ),
]
EmptyLines = Annotated[
    str | None,
    typer.Option(
        help="What an empty line means: refuse, keep (only <eos>) or skip.",
        parser=one_of("refuse", "keep", "skip"),
        metavar="RULE",
    ),
]


def say(text: str = "", *, heading: str = "", indent: int = 0) -> None:
    """A line for people: wrapped at words in a terminal, and never where a program may read it."""
    line = Text.assemble((heading, "bold"), " " if heading and text else "", text)
    if console.is_terminal:
        console.print(Padding(line, (0, 0, 0, indent), expand=False))
    else:
        console.print(" " * indent, line, sep="", soft_wrap=True)


def say_fact(name: str, value: str) -> None:
    """A line of a list of facts; in a terminal a long one goes on under where it began."""
    if not console.is_terminal:
        say(f"{name:>20}  {value}")
        return
    grid = Table.grid(padding=(0, 2))
    grid.add_column(justify="right", min_width=20, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(name), Text(value))
    console.print(grid)


def warn(text: str) -> None:
    """A line on stderr for people, where work goes on or was asked to stop."""
    note(f"hmmlm: {text}")


def note(text: str, *, on: Console = errors) -> None:
    """A line on stderr for people, above a bar; wrapped at words in a terminal, never in a log."""
    on.print(Text(text), soft_wrap=not on.is_terminal)


def print_json(result: dict[str, Any]) -> None:
    """One line of JSON, never wrapped; numbers that JSON does not have become null."""
    if console.quiet:
        return
    sys.stdout.write(json_line(result))
    sys.stdout.flush()


def pick_device(name: str) -> str:
    """The name of the device to run on."""
    from hmmlm.devices import find_device
    from hmmlm.errors import InputError

    place = find_device(name, name="--device")
    if place.type == "meta":
        raise InputError("--device is meta, which holds no numbers; use --device cpu.")
    return str(place)
