"""Text files and folders of them, read line by line."""

import gzip
import io
import lzma
import os
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hmmlm.errors import InputError

STDIN = Path("-")
EMPTY_LINES = ("refuse", "keep", "skip")

SPLITS = ("train", "valid", "test")
_PATTERNS = (  # the groups are a file's number and its compression
    r"ptb\.{}()\.txt()",
    r"wiki\.{}()\.tokens()",
    r"{}(?:-(\d+))?\.txt(\.xz|\.gz)?",
)


class TextSplits(NamedTuple):
    """The text files of each split, in order, and what an empty line in them means."""

    files: dict[str, tuple[Path, ...]]
    empty_lines: str

    def read(self, split: str, *, empty_lines: str | None = None) -> Iterator[str]:
        """The lines of one split; `empty_lines` overrules the folder's own rule."""
        rule = self.empty_lines if empty_lines is None else empty_lines
        readers = [read_lines(path, empty_lines=rule) for path in self.files[split]]
        return (line for reader in readers for line in reader)


def read_lines(path: str | os.PathLike[str], *, empty_lines: str = "refuse") -> Iterator[str]:
    """The lines of a UTF-8 text file (also `.xz` and `.gz`), one at a time.

    "-" is standard input. A line ends at \\n or \\r\\n. One that has only whitespace is empty:
    refused, kept as "" (a sentence of only `<eos>`), or skipped. Memory: one line.
    """
    path = Path(path)
    if empty_lines not in EMPTY_LINES:
        raise InputError(f"empty_lines is {empty_lines!r} but must be refuse, keep or skip.")
    if path == STDIN:
        return _lines(path, empty_lines)
    if path.is_dir():
        raise InputError(f"{path} is a folder but must be a text file.")
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from None
    return _lines(path, empty_lines)


def _lines(path: Path, empty_lines: str) -> Iterator[str]:
    any_line, name = False, "Standard input" if path == STDIN else str(path)
    for number, raw in enumerate(_raw_lines(path), 1):
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{name}, line {number:,}: byte 0x{error.object[error.start]:02x} is not UTF-8; "
                f"convert the file first, for example: iconv -f LATIN1 -t UTF-8 {path} > new.txt"
            ) from None
        line = line.removesuffix("\n").removesuffix("\r")
        if not line.strip():
            if empty_lines == "skip":
                continue
            if empty_lines == "refuse":
                raise InputError(
                    f"{name}, line {number:,} is empty; --empty-lines keep makes it a sentence of "
                    "only <eos>, --empty-lines skip drops it."
                )
            line = ""
        any_line = True
        yield line
    if not any_line:
        raise InputError(f"{name} is empty; give at least one line of text.")


def _raw_lines(path: Path) -> Iterator[bytes]:
    try:
        with _open(path) as file:
            yield from file
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(
            f"{path} is not a whole {path.suffix} file ({str(error).rstrip('.')}); copy or "
            "compress it again."
        ) from None


def _open(path: Path) -> io.BufferedIOBase:
    if path == STDIN:
        # Closing this one leaves standard input itself open.
        return open(sys.stdin.fileno(), "rb", closefd=False)
    if path.suffix == ".xz":
        return lzma.open(path, "rb")
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    return path.open("rb")


def find_splits(path: str | os.PathLike[str]) -> TextSplits:
    """What to read at `path`: one file is `train`; a folder is searched for splits by name.

    A folder is PTB (`ptb.train.txt`), WikiText (`wiki.train.tokens`) or any with `train.txt`,
    `train.txt.xz` or `train.txt.gz`, or several numbered `train-00.txt` of one kind; `valid` and
    `test` likewise, where they are there. WikiText, told by its text or its names, has blank
    lines on purpose, and each counts as an `<eos>`: they are kept.
    """
    path = Path(path)
    if path.is_file():
        return TextSplits({"train": (path,)}, "refuse")
    if not path.is_dir():
        raise InputError(f"{path} does not exist; give a text file or a folder of them.")
    try:
        names = sorted(entry.name for entry in path.iterdir())
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from None
    for pattern in _PATTERNS:
        files = {split: _matching(path, names, pattern.format(split)) for split in SPLITS}
        if files["train"]:
            break
    else:
        raise InputError(
            f"{path} has no training text; looked for ptb.train.txt, wiki.train.tokens, "
            "train.txt, train.txt.xz, train.txt.gz and the same numbered, as in train-00.txt."
        )
    files = {split: found for split, found in files.items() if found}
    return TextSplits(files, "keep" if _is_wikitext(files["train"][0]) else "refuse")


def _matching(folder: Path, names: list[str], pattern: str) -> tuple[Path, ...]:
    found = [match for name in names if (match := re.fullmatch(pattern, name))]
    if len({(bool(match[1]), match[2]) for match in found}) > 1:
        raise InputError(
            f"{folder} has both {found[0][0]} and {found[-1][0]}, so which to read is not clear; "
            "keep one kind or give one file."
        )
    found.sort(key=lambda match: int(match[1] or 0))
    return tuple(folder / match[0] for match in found)


def _is_wikitext(train: Path) -> bool:
    """Its name says so, or it starts as WikiText does: a blank line, then " = Title = "."""
    if train.suffix == ".tokens":
        return True
    start = read_lines(train, empty_lines="keep")
    first, second = next(start, None), next(start, None)
    return first == "" and second is not None and bool(re.fullmatch(r" = .+ = ", second))
