"""The part of docs/results.md that is about this paper."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from experiments.lee_berg_kirkpatrick_2025 import (
    figure1,
    figure2,
    figure3,
    figure4,
    figure5,
    figure6,
    figure7,
    figure8,
    rates,
    tables,
)
from experiments.lee_berg_kirkpatrick_2025.claims import Found, Spread, judge
from experiments.verdicts import Missing

Line = Mapping[str, Any]
HEAD = """
# Lee & Berg-Kirkpatrick 2025
512 states and 100M tokens of prose where nothing else is said, in windows of 64 Llama-2 tokens,
each read from a cold start; [lines](../experiments/results/lee_berg_kirkpatrick_2025.jsonl). The
paper's numbers are of 500M tokens of SlimPajama: not the numbers but their order is to be compared.
A number is the mean of the seeds, with the least and the most of them; `train` is perplexity of the
first million tokens of the training text.
"""
COLUMNS = (
    "row", "text", "states", "parameters", "paper", "test", "val", "train", "bits per byte",
    "step, ms", "seconds", "seeds", "at once",
)  # fmt: skip


def section(lines: Sequence[Line], pictures: Mapping[str, str]) -> str:
    """Claims, tables and figures, of whatever lines there are."""
    verdicts = [
        f"| {made.claim} | {made.word} | {made.numbers} |" for made in judge(lines)
    ]  # fmt: skip
    parts = [
        HEAD,
        "\n".join(
            [
                "## The paper's claims",
                "| claim | verdict | numbers |",
                "|---|---|---|",
                *verdicts,
                "",
            ]
        ),
    ]
    found = Found(lines, is_whole=False)
    for experiment, module in tables().items():
        table = _rates if module is rates else _table
        parts.append(table(module, found))
        if experiment in pictures:
            parts.append(f"![{_title(module)}]({pictures[experiment]})\n")
        parts.append(_runs(experiment, lines))
    return "\n".join(part for part in parts if part)


def _title(module: ModuleType) -> str:
    return (module.__doc__ or "").splitlines()[0].rstrip(".")


def _table(module: ModuleType, found: Found) -> str:
    """A line for each row, of all its seeds; of what has not run, how many rows that are."""
    made, waiting = [], 0
    for row in dict.fromkeys((row.name, row.dataset, row.paper_test) for row in module.ROWS):
        try:
            made.append(_row(module.EXPERIMENT.partition("/")[2], *row, found))
        except Missing:
            waiting += 1
    text = ["", f"## {_title(module)}"]
    if made:
        text += [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|", *made, ""]
    if waiting:
        text.append(f"Not run yet: {waiting} {'row' if waiting == 1 else 'rows'}.\n")
    return "\n".join(text)


def _rates(module: ModuleType, found: Found) -> str:
    """Validation perplexity of each model by rate, the best in bold."""
    every = sorted(
        {*rates.RATES, *(r for some in rates.LOWER.values() for r in some)}, reverse=True
    )
    head = ["model", *(f"{rate:g}" for rate in every)]
    made = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    at_end = []
    for name in rates.NAMES:
        values = {}
        for rate in every:
            with suppress(Missing):
                values[rate] = found.spread("rates", f"{name}, rate {rate}", "val").middle
        best = min(values.values(), default=0.0)
        cells = [f"{values[rate]:.1f}" if rate in values else "" for rate in every]
        marked = [f"**{cell}**" if cell == f"{best:.1f}" else cell for cell in cells]
        if values:
            made.append(f"| {name} | {' | '.join(marked)} |")
            if min(values, key=lambda rate: values[rate]) in (min(values), max(values)):
                at_end.append(name)
    text = made if len(made) > 2 else ["Not run yet."]
    if at_end:
        told = "The best is at an end of the rates that finished, so a better one may lie beyond it"
        text += ["", f"{told}: {'; '.join(at_end)}."]
    return "\n".join(["", f"## {_title(module)}", *text, ""])


def _row(table: str, name: str, dataset: str, paper: float | None, found: Found) -> str:
    lines = found.rows(table, name)
    first = lines[0]
    cells = {
        "row": name,
        "text": dataset,
        "states": f"{first['states']:,}",
        "parameters": f"{first['parameters']:,}",
        "paper": "" if paper is None else f"{paper:g}",
        "seeds": str(len(lines)),
        "at once": str(max(line["config"]["workers"] for line in lines)),
    }
    for key in ("test", "val", "train"):
        cells[key] = str(found.spread(table, name, key))
    for key, column, digits in (
        ("bits_per_byte", "bits per byte", 4),
        ("ms_train_step", "step, ms", 2),
        ("seconds", "seconds", 0),
    ):
        if all(line.get(key) is not None for line in lines):
            cells[column] = f"{found.spread(table, name, key).middle:.{digits}f}"
    return "| " + " | ".join(cells.get(column, "") for column in COLUMNS) + " |"


def _runs(experiment: str, lines: Sequence[Line]) -> str:
    of_it = [line for line in lines if line["experiment"] == experiment]
    if not of_it:
        return ""
    devices, commits = (
        ", ".join(dict.fromkeys(line[key] for line in of_it)) for key in ("device", "commit")
    )
    return f"Device: {devices}. Commit: {commits}.\n"


def draw(lines: Sequence[Line], folder: Path) -> dict[str, str]:
    """The figures of which something is there, by experiment."""
    from experiments.drawing import save_curves, save_points

    found, made = Found(lines, is_whole=False), {}
    up = "test perplexity"

    def curves(module: ModuleType, wanted: Mapping[str, Mapping[float, str]], **how: Any) -> None:
        table = module.EXPERIMENT.partition("/")[2]
        known = {
            name: {
                place: found.spread(table, row) for place, row in rows.items() if has(table, row)
            }
            for name, rows in wanted.items()
        }
        known = {name: points for name, points in known.items() if points}
        if known:
            path = folder / f"lee-{table}.svg"
            save_curves(path, known, up=up, **how)
            made[module.EXPERIMENT] = path.name

    def points(module: ModuleType) -> None:
        table = module.EXPERIMENT.partition("/")[2]
        names = dict.fromkeys(row.name for row in module.ROWS)
        # Of texts in different tokens perplexities cannot be compared.
        is_mixed = len({row.dataset for row in module.ROWS}) > 1
        key, along = ("bits_per_byte", "bits per byte") if is_mixed else ("test", up)
        known: dict[str, Spread] = {
            name: found.spread(table, name, key) for name in names if has(table, name)
        }
        if known:
            path = folder / f"lee-{table}.svg"
            save_points(path, known, along, digits=3 if is_mixed else 1)
            made[module.EXPERIMENT] = path.name

    def has(table: str, row: str) -> bool:
        return any(key[:2] == (table, row) for key in found.lines)

    states = {
        name: {number: f"{name}, {number} states" for number in figure1.STATES}
        for name in ("HMM", "best")
    }
    curves(figure1, states, across="states")
    sizes = {
        title: {2**power: f"{title}, 512 states, 2^{power}" for power in figure2.POWERS}
        for title in figure2.NAMES.values()
    }
    powers: dict[float, str] = {2**power: f"2^{power}" for power in figure2.POWERS}
    curves(figure2, sizes, across="parameters of the network, 512 states", ticks=powers)
    rates = {
        name: {rate: f"{name}, rate {rate}" for rate in figure6.RATES}
        for name in ("drawn", "layers of the decoder")
    }
    curves(figure6, rates, across="learning rate", base=10)
    for module in (figure3, figure4, figure5, figure7, figure8):
        points(module)
    return made
