"""How the help of commands is shown: text that fits any terminal, flags without a type."""

import inspect
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


def reflowed(text: str | None) -> str | None:
    """A docstring with a line for each paragraph, which terminals break where they end.

    Typer keeps the breaks of all paragraphs but the first. Lines that are indented stay as they
    are.
    """
    if not text:
        return text
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(
        part if part.startswith("\b") or "\n " in part else part.replace("\n", " ")
        for part in paragraphs
    )


def _plain(params: list[Any]) -> list[Any]:
    """The parameters, of which flags have no type: there is nothing to give."""
    for param in params:
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
    return params


class Command(TyperCommand):
    """A command whose help fits the terminal."""

    def __init__(self, *arguments: Any, help: str | None = None, **options: Any) -> None:
        super().__init__(*arguments, help=reflowed(help), **options)

    def get_params(self, ctx: Any) -> list[Any]:
        return _plain(super().get_params(ctx))


class Group(TyperGroup):
    """Commands whose help fits the terminal."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _plain(super().get_params(ctx))


def print_version(is_asked: bool) -> None:
    """Prints the version and ends, if that is asked for."""
    if is_asked:
        from hmmlm import __version__

        typer.echo(f"hmmlm {__version__}")
        raise typer.Exit
