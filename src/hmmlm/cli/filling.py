"""`hmmlm fill`: lines with gaps."""

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hmmlm.cli.asking import load_hmm
from hmmlm.cli.bars import progress_bar
from hmmlm.cli.output import Device, Json, print_json, readable, whole
from hmmlm.cli.unknown import tell_unknown_of_pattern


def size_range(value: Any) -> tuple[int, int]:
    """Reads an option that is a range of whole numbers, such as 0..5."""
    found = re.fullmatch(r"(\d{1,4})(?:\.\.(\d{1,4}))?", str(value))
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if least > most:
        raise typer.BadParameter(
            f"{str(value)!r} is not a range of whole numbers, smallest first, such as 0..5."
        )
    return least, most


def fill(
    model: Annotated[Path, typer.Argument(help="A model's folder.")],
    pattern: Annotated[
        str,
        typer.Argument(
            help="A line in which ? is one word and * some; \\? and \\* are the words.",
            parser=readable,
            metavar="PATTERN",
        ),
    ],
    count: Annotated[
        int, typer.Option("--count", "-n", help="How many lines.", parser=whole(1), metavar="N")
    ] = 5,
    top: Annotated[
        int,
        typer.Option(
            help="Show the most probable words of each ?, so many.", parser=whole(0), metavar="N"
        ),
    ] = 0,
    length: Annotated[
        Any, typer.Option(help="How many words * may be.", parser=size_range, metavar="A..B")
    ] = "0..5",
    seed: Annotated[
        int | None,
        typer.Option(help="Seed; by default a new one each time.", parser=whole(0), metavar="N"),
    ] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Words for the gaps of a line, drawn from the model given all the rest of it.

    One line of output per draw: p(these words | the rest), then the line. Where tokens are pieces
    of words, ? is one token.
    """
    loaded = load_hmm(model, device)
    with progress_bar("Filling", None):
        fills = loaded.fill(pattern, count, length=length, seed=seed)
        gaps = loaded.gap_words(pattern, top, length=length) if top else []
    tell_unknown_of_pattern(loaded.tokenizer, pattern)
    if json:
        lines = [line._asdict() for line in fills]
        words = [[{"token": word, "prob": prob} for word, prob in gap] for gap in gaps]
        print_json({"fills": lines, **({"gaps": words} if top else {})})
        return
    for line in fills:
        sys.stdout.write(f"{line.prob:.3e}  {line.text}\n")
    for number, gap in enumerate(gaps, 1):
        shown = "  ".join(f"{word} {prob:.4f}" for word, prob in gap)
        sys.stdout.write(f"? {number}: {shown}\n")
