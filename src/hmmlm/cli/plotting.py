"""`hmmlm plot`: the curves of trainings as a picture."""

from pathlib import Path
from typing import Annotated

import typer

from hmmlm.cli.output import Json, one_of, print_json, say
from hmmlm.errors import InputError, counted
from hmmlm.storage import new_file, refuse_existing

FORMATS = ("svg", "png", "pdf")


def plot(
    runs: Annotated[
        list[Path],
        typer.Argument(help="The model folders of one or more trainings.", metavar="RUN"),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The .svg, .png or .pdf to write; by default NAME-curves.svg here."),
    ] = None,
    x: Annotated[
        str,
        typer.Option(help="tokens or steps.", parser=one_of("tokens", "steps"), metavar="UNIT"),
    ] = "tokens",
    json: Json = False,
) -> None:
    """Draw perplexity and learning rate over the course of trainings.

    Perplexity has a log scale; each run's best on validation is ringed, and stands by its name.
    """
    if out is not None and out.suffix[1:] not in FORMATS:
        raise InputError(
            f"{out} does not end in one of {', '.join(f'.{name}' for name in FORMATS)}; choose one "
            "of these kinds of picture."
        )
    names = _names(runs)
    path = _free_file(names) if out is None else refuse_existing(out)
    from hmmlm.explore.curves import best_check, draw_curves, read_metrics

    read = {name: read_metrics(folder) for name, folder in zip(names, runs, strict=True)}
    figure = draw_curves(read, x=x)
    with new_file(path) as temporary:
        # No date in it: the same runs give the same picture.
        about = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(temporary, format=path.suffix[1:], dpi=160, metadata=about)
    facts = []
    for (name, steps), folder in zip(read.items(), runs, strict=True):
        best = best_check(steps)
        facts.append(
            {
                "name": name,
                "folder": str(folder),
                "steps": steps[-1].step,
                "tokens": steps[-1].tokens,
                "val": None if best is None else best.val,
                "best_step": None if best is None else best.step,
            }
        )
        what = "" if best is None else f", best on validation {best.val:.2f} at {best.step:,}"
        done = f"{counted(steps[-1].step, 'step')}, {counted(steps[-1].tokens, 'token')}"
        say(f"{name}: {done}{what}")
    say(f"wrote {path}")
    if json:
        print_json({"file": str(path), "runs": facts})


def _names(runs: list[Path]) -> list[str]:
    """The folders' own names, or where two are alike their paths."""
    for given in ([run.absolute().name for run in runs], [str(run) for run in runs]):
        if len(set(given)) == len(given):
            return given
    twice = next(str(run) for run in runs if runs.count(run) > 1)
    raise InputError(f"{twice} is given twice; name each run once.")


def _free_file(names: list[str]) -> Path:
    """NAME-curves.svg, or the first of NAME-curves-2.svg, ... that is free."""
    stem = f"{names[0]}-curves" if len(names) == 1 else "curves"
    number, free = 1, Path(f"{stem}.svg")
    while free.exists():
        number += 1
        free = Path(f"{stem}-{number}.svg")
    return refuse_existing(free)
