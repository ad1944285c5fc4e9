"""`hmmlm report`: a model on one page."""

from pathlib import Path
from typing import Annotated

import typer

from hmmlm.cli.asking import Folder
from hmmlm.cli.bars import progress_bar
from hmmlm.cli.exploring import UseText
from hmmlm.cli.output import Device, Json, number, pick_device, print_json, say
from hmmlm.storage import new_file, refuse_existing


def report(
    model: Folder,
    out: Annotated[
        Path | None, typer.Option(help="The page to write; by default NAME-report.html here.")
    ] = None,
    states: Annotated[int, number("--states", "How many states to show, the most used ones.")] = 60,
    text: UseText = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Write what a model is as one page: states, clusters, a map, the curves of its training.

    The page is a single file without scripts, for the browser, a mail or paper.
    """
    path = refuse_existing(Path(f"{model.absolute().name}-report.html") if out is None else out)
    from hmmlm.explore.preparing import Prepared
    from hmmlm.explore.report import make_report

    with progress_bar(f"Reading {model}", None):
        prepared = Prepared.open(model, text=text, device=pick_device(device))
        prepared.prepare()
        page = make_report(prepared, states=states)
    with new_file(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    say(f"wrote {path} ({len(page.encode()) / 1e6:.1f} MB)")
    if json:
        print_json({"file": str(path), "bytes": len(page.encode()), "states": states})
