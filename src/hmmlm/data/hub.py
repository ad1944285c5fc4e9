"""Datasets of Hugging Face's as text, row by row; `datasets` is imported when one is read."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hmmlm.errors import InputError

PREFIX = "hf:"
"""What a dataset's name begins with where a file's might stand."""

NAMES = {"train": "train", "valid": "valid", "test": "test"}
NAMES |= dict.fromkeys(("validation", "val", "dev"), "valid")
"""What datasets call their splits, and we."""


class Rows(NamedTuple):
    """Texts of a dataset: the first is row `number`, and `stop` bytes of text end with the last."""

    path: str
    number: int
    texts: list[str]
    stop: int
    read: int

    @property
    def next_number(self) -> int:
        return self.number + len(self.texts)

    def lines(self, empty_lines: str) -> list[str]:
        """The texts, of which the empty ones are refused, kept or skipped."""
        lines = []
        for number, text in enumerate(self.texts, self.number):
            if not text.strip():
                if empty_lines == "skip":
                    continue
                if empty_lines == "refuse":
                    raise InputError(
                        f"{self.path}, row {number:,} is empty; --empty-lines keep makes it a "
                        "sentence of only <eos>, --empty-lines skip drops it."
                    )
                text = ""
            lines.append(text)
        return lines


@dataclass(frozen=True)
class HubText:
    """One column of one split. A row is one line, whatever it has within; null is an empty one.

    `size` is about how many bytes it has, 0 where nobody knows; `signature` is another where the
    rows are others.
    """

    path: str
    column: str
    size: int
    signature: list[Any] = field(repr=False)
    rows: Any = field(repr=False)

    def blocks(self, size: int, *, start: int = 0, number: int = 1) -> Iterator[Rows]:
        """About `size` bytes of texts at a time, from row `number` on. Memory: a block, and what
        `datasets` reads at a time.
        """
        texts, stop = [], start
        with _reading(self.path, row=lambda: number + len(texts)):
            for row in self.rows.skip(number - 1):
                text = self._text(row, number + len(texts))
                texts.append(text)
                stop += len(text.encode()) + 1
                if stop - start >= size:
                    yield self._block(number, texts, stop)
                    start, number, texts = stop, number + len(texts), []
        if texts:
            yield self._block(number, texts, stop)

    def lines(self, empty_lines: str) -> Iterator[str]:
        """All lines, one at a time."""
        for block in self.blocks(1 << 20):
            yield from block.lines(empty_lines)

    def _block(self, number: int, texts: list[str], stop: int) -> Rows:
        return Rows(self.path, number, texts, stop, min(stop, self.size or stop))

    def _text(self, row: dict[str, Any], number: int) -> str:
        text = row.get(self.column)
        if text is None:
            return ""
        if not isinstance(text, str):
            raise InputError(
                f"{self.path}, row {number:,}: the column {self.column!r} has {_kind(text)} and "
                f"not text; choose another with --column."
            )
        return text.removesuffix("\n").removesuffix("\r")


def find_rows(
    name: str,
    *,
    config: str | None = None,
    splits: Sequence[str] = (),
    column: str | None = None,
) -> tuple[dict[str, tuple[HubText, ...]], str]:
    """The texts of our splits in a dataset, a folder or a name on the hub, and its empty lines.

    `splits` are `THEIRS` or `OURS=THEIRS`. One of them alone is the text to train on; without any,
    all those are taken that are called as ours or nearly so. Empty rows are to be skipped, but
    those of WikiText count, as in its folder.
    """
    column, path = column or "text", f"{PREFIX}{name}"
    is_folder = Path(name).is_absolute() or name.startswith((".", "~"))
    name = os.path.expanduser(name) if is_folder else name
    if not name:
        raise InputError(f"{path} names no dataset; write hf:NAME, or hf:./FOLDER.")
    if is_folder and not Path(name).is_dir():
        raise InputError(f"{path} is no folder; give one with jsonl, parquet or text files in it.")
    with _reading(path) as datasets:
        _check_config(datasets, name, path, config)
        builder = datasets.load_dataset_builder(name, config)
        found = builder.as_streaming_dataset()
        chosen = _choose(path, list(found), splits)
        files = {
            ours: tuple(
                _open(f"{path}, split {split}", found[split], builder, column) for split in theirs
            )
            for ours, theirs in chosen.items()
        }
        train = files["train"][0]
        first = [train._text(row, number) for number, row in enumerate(train.rows.take(2), 1)]
    is_wikitext = first[0] == "" and bool(re.fullmatch(" = .+ = ", first[-1]))
    return files, "keep" if is_wikitext else "skip"


def _check_config(datasets: Any, name: str, path: str, config: str | None) -> None:
    configs = datasets.get_dataset_config_names(name)
    if config is None and datasets.get_dataset_default_config_name(name) is None:
        raise InputError(
            f"{path} has several configurations: {_listed(configs)}; choose one with --config."
        )
    if config is not None and config not in configs:
        raise InputError(
            f"{path} has no configuration {config!r}, only {_listed(configs)}; give --config one "
            f"of them."
        )


def _choose(path: str, there: list[str], asked: Sequence[str]) -> dict[str, list[str]]:
    """Which splits of a dataset become which of ours."""
    chosen: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    if not asked:
        for split in there:
            ours = NAMES.get(split)
            if ours is not None and not chosen[ours]:
                chosen[ours].append(split)
        if len(there) == 1:
            chosen = {"train": there}
    for pair in asked:
        ours, is_said, theirs = pair.rpartition("=")
        if not is_said:
            ours = "train" if len(asked) == 1 else theirs
        if ours not in NAMES:
            raise InputError(
                f"--split {pair} does not say what it becomes; write --split train={theirs}, or "
                f"valid= or test= in place of train=."
            )
        if theirs not in there:
            raise InputError(
                f"{path} has no split {theirs!r}, only {_listed(there)}; give --split one of them."
            )
        chosen[NAMES[ours]].append(theirs)
    if not chosen["train"]:
        theirs = next((split for split in there if split not in NAMES), "NAME")
        raise InputError(
            f"None of the splits of {path} ({_listed(there)}) is said to be trained on; choose one "
            f"with --split train={theirs}."
        )
    return {ours: theirs for ours, theirs in chosen.items() if theirs}


def _open(path: str, rows: Any, builder: Any, column: str) -> HubText:
    """One split, after a look at its first row; of columns that are known no other is read."""
    is_known = column in (rows.column_names or ())
    first = next(iter(rows.select_columns([column]) if is_known else rows), None)
    if first is None:
        raise InputError(f"{path} is empty; choose another split or dataset.")
    if column not in first:
        raise InputError(
            f"{path} has no column {column!r}, only {_listed(list(first))}; choose one with "
            f"--column."
        )
    split = str(rows.split)
    files = list((builder.config.data_files or {}).get(split, ()))
    stamps = getattr((builder.config.data_files or {}).get(split), "origin_metadata", [])
    known = (builder.info.splits or {}).get(split)
    size = known.num_bytes if known is not None else 0
    if not size and all(map(os.path.isfile, files)):
        size = sum(map(os.path.getsize, files))
    signature = [path, builder.config.name, builder.hash, column, files, [list(s) for s in stamps]]
    text = HubText(path, column, size or 0, signature, rows.select_columns([column]))
    text._text(first, 1)
    return text


@contextmanager
def _reading(path: str, row: Any = None) -> Iterator[Any]:
    """`datasets`, silent; what goes wrong with it becomes one sentence.

    In the middle, where `row` says which comes next, a line that broke is no mistake of the user's:
    what was done is kept.
    """
    try:
        import datasets
    except ImportError:
        raise InputError(
            f"{path} needs Hugging Face's datasets; pip install 'hmmlm[hf]'."
        ) from None
    log, has_bars = datasets.utils.logging, not datasets.are_progress_bars_disabled()
    level = log.get_verbosity()
    log.set_verbosity(log.CRITICAL)
    datasets.disable_progress_bars()
    try:
        yield datasets
    except InputError:
        raise
    except StopIteration:  # what datasets raises of a json without a line
        raise InputError(f"{path} is empty; choose another split or dataset.") from None
    except Exception as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        where = f" from row {row():,} on" if row is not None else ""
        if row is not None and not isinstance(error, ValueError | TypeError | LookupError):
            raise ConnectionError(
                f"{path} cannot be read{where} ({said}); what was done is kept, and the same "
                f"command goes on from there"
            ) from error
        raise InputError(
            f"{path} cannot be read{where}: {said}; give a dataset on the hub that datasets "
            f"streams, or a folder of jsonl, parquet or text files."
        ) from error
    finally:
        log.set_verbosity(level)
        if has_bars:
            datasets.enable_progress_bars()


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 20:,} more" if len(names) > 20 else ""
    return ", ".join(names[:20]) + more


def _kind(value: Any) -> str:
    names = {bool: "a truth value", int: "a number", float: "a number", list: "a list"}
    return names.get(type(value), f"a {type(value).__name__}")
