"""`hmmlm prepare`: a corpus out of text."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hmmlm.cli.bars import progress_bar
from hmmlm.cli.output import (
    EmptyLines,
    Json,
    note,
    print_json,
    say,
    warn,
    whole,
)
from hmmlm.errors import InputError
from hmmlm.storage import refuse_existing

if TYPE_CHECKING:
    from hmmlm.data.corpus import TextSplits


MUCH_UNKNOWN = 0.2
"""The share of <unk> above which little of a text is left to learn."""


def prepare(
    text: Annotated[
        str,
        typer.Argument(
            help="A text file, one sentence or document per line, a folder, or hf:NAME."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The folder to write; by default NAME.corpus here.")
    ] = None,
    valid: Annotated[Path | None, typer.Option(help="A text file for validation.")] = None,
    test: Annotated[Path | None, typer.Option(help="A text file for testing.")] = None,
    config: Annotated[
        str | None, typer.Option(help="Of hf:NAME: its configuration.", metavar="NAME")
    ] = None,
    split: Annotated[
        list[str] | None,
        typer.Option(
            help="Of hf:NAME: a split, or valid=SPLIT; repeat for more. By default all.",
            metavar="SPLIT",
        ),
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="Of hf:NAME: the column; by default text.", metavar="NAME")
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="A tokenizer.json or SentencePiece .model; by default words."),
    ] = None,
    eos: Annotated[str | None, typer.Option(help="The tokenizer's token that ends a line.")] = None,
    min_count: Annotated[
        int, typer.Option(help="Rarer words become <unk>.", parser=whole(1), metavar="N")
    ] = 1,
    max_size: Annotated[
        int | None,
        typer.Option(
            help="Most words in the vocabulary, <unk> and <eos> included.",
            parser=whole(3),
            metavar="N",
        ),
    ] = None,
    empty_lines: EmptyLines = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Processes; by default one for each processor.", parser=whole(1), metavar="N"
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Turn text into a corpus: numbered tokens in files that are read in place.

    A folder may be PTB, WikiText, or any with train.txt, valid.txt and test.txt (also .xz, .gz).
    hf:NAME is a dataset of Hugging Face's, on the hub or a folder; it is streamed.
    If it is stopped, the same command goes on from there.
    """
    from hmmlm.data.preparation import prepare_corpus
    from hmmlm.data.tokenizer import Tokenizer

    splits = _find_text(text, config=config, splits=split or (), column=column)
    for name, path in (("valid", valid), ("test", test)):
        if path is not None:
            splits.files[name] = (path,)
    if empty_lines is not None:
        splits = splits._replace(empty_lines=empty_lines)
    name = Path(text.removeprefix("hf:")).absolute().name.split(".")[0]
    out = refuse_existing(Path(f"{name}.corpus") if out is None else out)
    if tokenizer is not None and (min_count, max_size) != (1, None):
        raise InputError(
            "--min-count and --max-size make a vocabulary of words and do not go with --tokenizer; "
            "leave them out."
        )
    made = None if tokenizer is None else Tokenizer.load(tokenizer, eos)
    with progress_bar("Reading", 0, bytes=True) as bar:

        def report(work: str, read: int, total: int) -> None:
            if work != bar.tasks[0].description:
                bar.reset(bar.task_ids[0], description=work, total=total)
            bar.update(bar.task_ids[0], completed=read)

        try:
            result = prepare_corpus(
                out,
                splits,
                tokenizer=made,
                min_count=min_count,
                max_size=max_size,
                workers=workers,
                progress=report,
                notice=say,
            )
        except KeyboardInterrupt:
            note("What was done is kept; the same command goes on from there.")
            raise
    for name, counts in result["splits"].items():
        unknown = counts["unknown"] / counts["tokens"]
        say(
            f"{name:>6}  {counts['tokens']:>13,} tokens  {counts['sentences']:>11,} lines  "
            f"{unknown:.2%} <unk>"
        )
    say(f"vocabulary of {result['vocab']:,}; written to {out}")
    _warn_of_unknown(result["splits"], made is not None)
    if json:
        print_json({**result, "folder": str(out)})


def _warn_of_unknown(splits: dict[str, dict[str, int]], has_tokenizer: bool) -> None:
    """Says when much of a text is <unk>, and what to do about that."""
    shares = {name: counts["unknown"] / counts["tokens"] for name, counts in splits.items()}
    name = max(shares, key=lambda name: shares[name])
    if shares[name] <= MUCH_UNKNOWN:
        return
    way_out = "a lower --min-count or a larger --max-size keeps more words"
    if has_tokenizer:
        way_out = "its words are not those of the tokenizer; give another, or none"
    elif name != "train":
        way_out = "its words are not those of the training text"
    told = {"train": "training", "valid": "validation"}.get(name, name)
    warn(f"{shares[name]:.0%} of the {told} text is <unk>: {way_out}.")


def _find_text(
    text: str, *, config: str | None, splits: Sequence[str], column: str | None
) -> "TextSplits":
    """The text of each split: a dataset's, or that of files."""
    from hmmlm.data.corpus import TextSplits, find_splits
    from hmmlm.data.hub import PREFIX, find_rows

    if text.startswith(PREFIX):
        name = text.removeprefix(PREFIX)
        files, empty_lines = find_rows(name, config=config, splits=splits, column=column)
        return TextSplits({**files}, empty_lines)
    for option, value in {"config": config, "split": splits, "column": column}.items():
        if value:
            raise InputError(f"--{option} is for a dataset, hf:NAME; {text} is none: leave it out.")
    if (Path(text) / "corpus.json").exists():
        raise InputError(f"{text} is already a prepared corpus; train on it with hmmlm train.")
    return find_splits(text)
