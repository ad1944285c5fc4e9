"""The text of a training: a corpus folder or plain text, its labels, and what is held out."""

import tempfile
from contextlib import ExitStack
from pathlib import Path
from shlex import quote
from typing import Any

from hmmlm.cli.bars import progress_bar
from hmmlm.cli.output import say, warn
from hmmlm.errors import InputError, counted

HELD_OUT = 20
"""Of plain text without a validation file, one line in so many is held out."""

LITTLE = 1000
"""Tokens below which a text is too little to learn from."""


def open_corpus(config: Any, stack: ExitStack) -> tuple[Any, str]:
    """The corpus of a configuration, or the head of it, and a name for its model."""
    corpus, name = _open_whole(config, stack)
    return corpus.head(config.data.tokens) if config.data.tokens else corpus, name


def _open_whole(config: Any, stack: ExitStack) -> tuple[Any, str]:
    from hmmlm.data.corpus import read_lines
    from hmmlm.data.shards import Corpus, write_corpus
    from hmmlm.fitting import drops_rare_words, words_of

    data = config.data
    if bool(data.corpus) == bool(data.text):
        raise InputError(
            "Give either a corpus folder, made by hmmlm prepare, or plain text with --text; here "
            "or in the run's [data], but not both."
        )
    if data.corpus:
        path = Path(data.corpus)
        if path.is_file():
            way_out = "run hmmlm prepare on it, or give it with --text"
            if _is_config(path):
                way_out = "if it is a run's file, its name must end in .toml"
            raise InputError(f"{path} is a file but must be a corpus folder; {way_out}.")
        with progress_bar(f"Checking {path}", None):
            return Corpus.open(path), path.absolute().name.split(".")[0]
    path = Path(data.text)
    with progress_bar(f"Reading {path}", None):
        lines = list(read_lines(path, empty_lines="skip"))
        splits = {"train": lines}
        if len(lines) >= 2 * HELD_OUT:
            splits["valid"] = lines[HELD_OUT - 1 :: HELD_OUT]
            del lines[HELD_OUT - 1 :: HELD_OUT]
        words = words_of(lines)
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "corpus"
        counts = write_corpus(scratch, words, splits)["splits"]
    held_out = f", {counts['valid']['tokens']:,} held out" if "valid" in counts else ""
    rare = ""
    if drops_rare_words(lines):
        share = counts["train"]["unknown"] / counts["train"]["tokens"]
        rare = f"; words that occur once are <unk>, {share:.1%} of the text"
    tokens = counts["train"]["tokens"]
    say(f"{tokens:,} tokens to train on{held_out}, {words.vocab_size:,} words{rare}")
    corpus = Corpus.open(scratch)
    check_validation(corpus, config)  # refused, it would be told twice
    _warn_of_lines(path, lines, tokens, data, not held_out)
    return corpus, path.absolute().name.split(".")[0]


def _warn_of_lines(path: Path, lines: list[str], tokens: int, data: Any, alone: bool) -> None:
    """Says what comes of a text of few words, or, where it is left `alone`, of few lines."""
    size = f"{path} has {counted(len(lines), 'line')} of {counted(tokens - len(lines), 'word')}"
    if tokens < LITTLE:
        warn(f"{size}, which is too little to learn from; give some thousands of words.")
    elif alone:
        longest = max(len(line.split()) for line in lines) + 1
        cut = data.layout == "packed" and longest > data.length
        it = "it" if len(lines) == 1 else "longer ones"
        warn(
            f"{size}; a line is a sentence: nothing could be held out"
            f"{f', and rows of {data.length:,} tokens cut {it}' if cut else ''}. "
            f"Split the text into sentences, {2 * HELD_OUT} of them or more."
        )


def _is_config(path: Path) -> bool:
    """Whether a file has tables of settings."""
    from hmmlm.train.tables import TABLES, read_config

    try:
        return not read_config(path).keys().isdisjoint((*TABLES, "sweep"))
    except InputError:
        return False


def open_labels(corpus: Any, config: Any) -> Any:
    """The labels of the words to train on, if there are any."""
    from hmmlm.data.labels import read_labels

    if not config.data.labels:
        return None
    path, held_out = config.data.labels, bool(config.data.text) and "valid" in corpus.splits
    with progress_bar(f"Reading {path}", None):
        left_out = HELD_OUT if held_out else 0
        return read_labels(path, corpus.split("train"), corpus.tokenizer, left_out=left_out)


def check_places(tables: dict[str, Any], file: Path) -> None:
    """Refuses settings of a run's file whose paths are right from the folder of that file only."""
    from hmmlm.train.checkpoint import flatten
    from hmmlm.train.config import FILES

    settings = flatten(tables)
    for name in FILES:
        place = settings.get(name)
        beside = file.parent / str(place)
        if place and not Path(place).exists() and beside.exists():
            raise InputError(
                f"{name} is {place!r}, which is not in the current folder but beside {file}; paths "
                f"are taken from the current folder, so start in {file.parent}, or write "
                f"{str(beside)!r}."
            )


def find_again(config: Any, run: Path) -> None:
    """Refuses to go on with a run one of whose files is not there."""
    from hmmlm.train.checkpoint import flatten
    from hmmlm.train.config import FILES

    settings = flatten(config.as_tables())
    for name in FILES:
        place = settings.get(name, "")
        # The weights of a model to start from are in a checkpoint, if there is one.
        is_needed = place and name != "train.start" and is_path(name, place)
        if is_needed and not Path(place).exists():
            raise not_there(name, place, run)


def is_path(name: str, place: str) -> bool:
    """Whether a setting of `FILES` is a path: a checkpoint that is not there is a name on a hub.

    A run that goes on names its own in full.
    """
    return name != "model.checkpoint" or Path(place).is_absolute() or Path(place).exists()


def not_there(name: str, place: str, run: Path) -> InputError:
    """The error of a run that goes on without one of its files."""
    key = name.partition(".")[2]
    option = {
        "corpus": "",
        "start": "--set train.start=",
        "states": "--set data.states=",
        "checkpoint": "--set model.checkpoint=",
    }.get(key, f"--{key} ")
    return InputError(
        f"{place}, which the run in {run} began with, is not there; if it has moved, go on with "
        f"hmmlm train --resume {quote(str(run))} {option}NEW-PLACE."
    )


def check_validation(corpus: Any, config: Any) -> None:
    """Refuses settings that ask validation where there is none."""
    from hmmlm.train.config import asks_validation

    asked = asks_validation(config.train)
    if "valid" in corpus.splits or asked is None:
        return
    if config.data.text:
        way_out = f"give at least {2 * HELD_OUT} lines, of which some are held out"
    else:
        way_out = "prepare the corpus with --valid"
    leave = "set it to 0" if asked == "average_after" else "leave it out"
    raise InputError(f"{asked} needs validation text, and there is none; {way_out}, or {leave}.")
