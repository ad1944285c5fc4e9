"""Text files and folders of them, read line by line."""

import codecs
import gzip
import io
import lzma
import os
import re
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, NoReturn

from hmmlm.data.hub import HubText
from hmmlm.errors import InputError

TextFile = Path | HubText
STDIN = Path("-")
EMPTY_LINES = ("refuse", "keep", "skip")
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

SPLITS = ("train", "valid", "test")
_PATTERNS = (  # the groups are a file's number and its compression
    r"ptb\.{}()\.txt()",
    r"wiki\.{}()\.tokens()",
    r"{}(?:-(\d+))?\.txt(\.xz|\.gz)?",
)


class TextSplits(NamedTuple):
    """The files of each split in order, or texts of a dataset, and what an empty line means."""

    files: dict[str, tuple[TextFile, ...]]
    empty_lines: str

    def read(self, split: str, *, empty_lines: str | None = None) -> Iterator[str]:
        """The lines of one split; `empty_lines` overrules the folder's own rule."""
        rule = self.empty_lines if empty_lines is None else empty_lines
        readers = [
            path.lines(rule) if isinstance(path, HubText) else read_lines(path, empty_lines=rule)
            for path in self.files[split]
        ]
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
    any_line = False
    for number, raw in enumerate(_raw_lines(path), 1):
        for line in Block(path, number, raw, 0, 0).lines(empty_lines):
            any_line = True
            yield line
    if not any_line:
        refuse_empty(path)


class Block(NamedTuple):
    """Whole lines of a file: the first has this number, and the bytes end at `stop` of its text.

    `read` bytes of the file itself were read so far, which are fewer where it is compressed.
    """

    path: Path
    number: int
    data: bytes
    stop: int
    read: int

    @property
    def next_number(self) -> int:
        return self.number + self.data.count(b"\n")

    def lines(self, empty_lines: str) -> list[str]:
        """The lines as `read_lines` gives them."""
        data = self.data.removesuffix(b"\n")
        try:
            text = data.decode("utf-8-sig" if self.number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            number = self.number + error.object.count(b"\n", 0, error.start)
            coding = "UTF-16" if self.number == 1 and data.startswith(UTF_16) else "LATIN1"
            raise InputError(
                f"{_name(self.path)}, line {number:,}: byte 0x{error.object[error.start]:02x} is "
                f"not UTF-8; convert the file first, for example: iconv -f {coding} -t UTF-8 "
                f"{self.path} > new.txt"
            ) from None
        lines = []
        for number, line in enumerate(text.split("\n"), self.number):
            line = line.removesuffix("\r")
            if not line.strip():
                if empty_lines == "skip":
                    continue
                if empty_lines == "refuse":
                    raise InputError(
                        f"{_name(self.path)}, line {number:,} is empty; --empty-lines keep makes "
                        "it a sentence of only <eos>, --empty-lines skip drops it."
                    )
                line = ""
            lines.append(line)
        return lines


def read_blocks(path: Path, size: int, *, start: int = 0, number: int = 1) -> Iterator[Block]:
    """The whole lines of a file, about `size` bytes of them at a time, from a line on.

    That line starts at byte `start` of the text and has this `number`. Memory: a block.
    """
    with _opened(path) as (file, text):
        if start:
            text.seek(start)
        while data := text.read(size):
            data += text.readline()
            start += len(data)
            block = Block(path, number, data, start, file.tell() if file.seekable() else start)
            yield block
            number = block.next_number


def refuse_empty(path: TextFile) -> NoReturn:
    name = path.path if isinstance(path, HubText) else _name(path)
    raise InputError(f"{name} is empty; give at least one line of text.")


def _name(path: Path) -> str:
    return "Standard input" if path == STDIN else str(path)


def _raw_lines(path: Path) -> Iterator[bytes]:
    with _opened(path) as (_, text):
        yield from text


@contextmanager
def _opened(path: Path) -> Iterator[tuple[io.BufferedReader, io.BufferedIOBase]]:
    """A file as it is on disk, and its text."""
    try:
        with _open(path) as file:
            yield file, _text_of(file, path.suffix)
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(
            f"{path} is not a whole {path.suffix} file ({str(error).rstrip('.')}); copy or "
            "compress it again."
        ) from None


def _open(path: Path) -> io.BufferedReader:
    if path == STDIN:
        # Closing this one leaves standard input itself open.
        return open(sys.stdin.fileno(), "rb", closefd=False)
    return path.open("rb")


def _text_of(file: io.BufferedReader, suffix: str) -> io.BufferedIOBase:
    if suffix == ".xz":
        return lzma.LZMAFile(file)
    return gzip.GzipFile(fileobj=file) if suffix == ".gz" else file


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
