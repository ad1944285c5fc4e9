"""Running what a page of the documentation shows.

A page's fenced blocks are run in order in one folder: `python` in one namespace, `bash` line by
line, and `toml` is checked as settings and written to the file that its first line names. A `text`
block is what the block before it prints: exactly; with the title "such as" but for its numbers;
with "for example" it may say anything else. A block whose title begins with "not run" is not run:
Python is compiled, and commands of hmmlm are parsed.
"""

import contextlib
import difflib
import glob
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import typer
import yaml

from commands import SOURCE

FENCE = re.compile(r'^```(\w+)(?: title="([^"]*)")?\n(.*?)^```$', re.M | re.S)
LANGUAGES = {"python", "bash", "toml", "text", "yaml"}
APART = {"demo", "prepare", "sweep"}
"""Commands that start processes or compile much: they have a process of their own."""


class Block(NamedTuple):
    """A block of a page, and the number of the line where it begins."""

    language: str
    title: str
    code: str
    line: int

    @property
    def is_run(self) -> bool:
        return not self.title.startswith("not run")


def find_blocks(page: Path) -> list[Block]:
    """All blocks of a page; code in any other form than a named fence is an error."""
    text = page.read_text()
    found = [
        Block(match[1], match[2] or "", match[3], text[: match.start()].count("\n") + 1)
        for match in FENCE.finditer(text)
    ]
    rest = FENCE.sub("", text)
    assert "```" not in rest, f"{page.name} has a fence that names no language, or no end"
    assert not re.search(r"^(    |\t)\S", rest, re.M), f"{page.name} has indented code"
    for block in found:
        assert block.language in LANGUAGES, f"{page.name}:{block.line}: {block.language}"
        known = block.title in ("", "such as", "for example") or block.title.startswith("not run: ")
        assert known, f"{page.name}:{block.line}: {block.title}"
    return found


def run_page(page: Path) -> None:
    """Runs a page's blocks in the current folder; what they print must be what the page says."""
    names: dict[str, Any] = {"__name__": "page"}
    printed: str | None = None
    for block in find_blocks(page):
        try:
            if block.language == "text":
                compare(block, printed)
            elif not block.is_run:
                check(block, page.name)
                printed = None
            elif block.language == "python":
                # As many empty lines before it as the page has, so that errors name its lines.
                code = compile("\n" * block.line + block.code, page.name, "exec")
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    exec(code, names)
                printed = out.getvalue()
            elif block.language == "bash":
                printed = "".join(run_line(line) for line in command_lines(block.code))
            else:
                check(block, page.name)
                if name := re.match(r"# (\S+\.toml)\n", block.code):
                    Path(name[1]).write_text(block.code)
        except BaseException as error:
            error.add_note(f"{page.name}:{block.line}:\n{block.code}")
            raise


def compare(block: Block, printed: str | None) -> None:
    """What is shown against what was printed; after a block that was not run, nothing is known."""
    if printed is None:
        assert block.title == "for example", "nothing was run that could print this"
        return
    # How many lines a training writes into a log depends on how fast the machine is.
    printed = re.sub(r"^step [\d,]+ of [\d,]+, perplexity .*\n", "", printed, flags=re.M)
    shown, printed = (_stripped(text) for text in (block.code, printed))
    if block.title == "for example":
        assert printed, "nothing was printed"
    elif block.title == "such as":
        assert _masked(printed) == _masked(shown), _difference(printed, shown)
    else:
        assert printed == shown, _difference(printed, shown)


def _difference(printed: str, shown: str) -> str:
    lines = difflib.unified_diff(shown.splitlines(), printed.splitlines(), "shown", "printed")
    return "\n".join(lines)


def _stripped(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


def _masked(text: str) -> list[list[str]]:
    number = re.compile(r"-?\d[\d,]*(\.\d+)?(e[-+]?\d+)?")
    return [number.sub("#", line).split() for line in text.splitlines()]


def command_lines(code: str) -> Iterator[str]:
    for line in code.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            yield line


def run_line(line: str) -> str:
    """A line of a shell, of which pipes and > are known; what it prints, errors too.

    With the comment "exit status 2" it must be refused.
    """
    status = 2 if line.endswith("# exit status 2") else 0
    stages, out, target = [[]], "", None
    words = iter(_words(line))
    for word in words:
        if word == "|":
            stages.append([])
        elif word == ">":
            target = next(words)
        else:
            stages[-1] += sorted(glob.glob(word)) or [word]
    for stage in stages:
        out = _run(stage, out, status)
    if target is None:
        return out
    Path(target).write_text(out)
    return ""


def _words(line: str) -> list[str]:
    reader = shlex.shlex(line, posix=True, punctuation_chars="|>")
    reader.whitespace_split = True
    return list(reader)


def _run(words: list[str], given: str, status: int) -> str:
    if words[0] == "hmmlm" and words[1] not in APART:
        return _run_here(words, given, status)
    if words[0] == "hmmlm":
        words = ["python", "-m", *words]
    words = [sys.executable if word == "python" else word for word in words]
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run(
        words,
        input=given,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert done.returncode == status, done.stdout
    return done.stdout


def _run_here(words: list[str], given: str, status: int) -> str:
    """`hmmlm` in this process, for what does not need one of its own."""
    from hmmlm.cli import main

    before, out = (sys.argv, sys.stdin), io.StringIO()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        file.write(given)
        file.seek(0)
        sys.argv, sys.stdin = words, file
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                main()
        except SystemExit as end:
            assert (end.code or 0) == status, out.getvalue()
        finally:
            sys.argv, sys.stdin = before
    return out.getvalue()


def check(block: Block, name: str) -> None:
    """What can be said of a block without running it."""
    if block.language == "python":
        compile(block.code, name, "exec")
    elif block.language == "toml":
        check_settings(block.code)
    elif block.language == "yaml":
        assert yaml.safe_load(block.code)
    else:
        for line in command_lines(block.code):
            check_command(line)


def check_command(line: str) -> None:
    """Options and their values must be ones that the command line takes; nothing is run."""
    from hmmlm.cli import app

    words = _words(line)
    if "hmmlm" not in words or words[0] == "pip":
        return
    words = words[words.index("hmmlm") + 1 :]
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        assert words[0] in command.commands, f"hmmlm has no {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    command.make_context(command.name, words)


def check_settings(code: str) -> None:
    """A run's file, or some of its tables, with those that `sweep` and `distill` add."""
    from hmmlm.baselines.kinds import NEURAL
    from hmmlm.distill.labels import LabelSettings
    from hmmlm.distill.teachers import TeacherSettings
    from hmmlm.train.config import make_config
    from hmmlm.train.tables import take

    tables = tomllib.loads(code)
    sweep, distill = tables.pop("sweep", {}), tables.pop("distill", None)
    assert set(sweep) <= {"grid", "list", "out"}
    if distill is not None:
        for settings in (LabelSettings, TeacherSettings):
            take(settings, distill, "distill", [LabelSettings, TeacherSettings])
    make_config(tables, NEURAL)
