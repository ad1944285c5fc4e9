"""python -m experiments.report: docs/results.md and its figures, out of the lines of all runs."""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from experiments.chiu_rush_2020 import tables
from experiments.chiu_rush_2020.claims import Found, judge
from experiments.induction import RESULTS as INDUCED
from experiments.induction import section as section_of_tags
from experiments.lee_berg_kirkpatrick_2025.page import draw, section
from experiments.past.page import section as section_of_past
from experiments.results import read_lines, with_times
from experiments.rows import BOTH
from experiments.runner import RESULTS, TIMES

Line = Mapping[str, Any]
PAGE = Path(__file__).parents[1] / "docs/results.md"
DISTILLED = RESULTS.with_name("lee_berg_kirkpatrick_2025.jsonl")
PAST = RESULTS.with_name("past.jsonl")

ABOUT = """# Results

Beside each number of two papers stands ours. `python -m experiments.report` makes this page of the
lines of [experiments/results](../experiments/results), one for each run and evaluation mode; how to
run it again: [experiments/README.md](../experiments/README.md), what was tried:
[experiments/LOG.md](../experiments/LOG.md).

# Chiu & Rush 2020
[Lines]({link}); [Lee & Berg-Kirkpatrick 2025](#lee--berg-kirkpatrick-2025),
[what goes past both](#past-both-papers) and the [induction of tags](#induction-of-tags) come after.

Perplexities are read in two ways, by *sentence* and *streaming* ([evaluation.md](evaluation.md));
the paper's way is streaming. **Bold** is the way that a model was trained for. Every number is of
one seed and of the weights that were best on validation, whose test text was read once; recurrent
networks were validated in windows of 2,048 tokens. Of a row that was trained again the last run
stands here: VL-HMM (packed) on PTB twice by the same settings (124.4 / 115.2 before), the faithful
ones two and three times as their settings changed. Nothing has a second seed, and only the
faithful rows follow the paper's recipe. `train` is by sentence. Where a cell is empty the paper has
no number, or there is none.

A step is the median of training steps with the loop around them. A batch is the time to score
16 x 32 tokens with the state carried, tables at hand; the paper's has them made anew. Both times
are taken alone on the device, in a run of their own: one epoch of the first 300,000 tokens
(`--time`). With a star they are the training's own, beside as many as ran "at once". Seconds are
those of the training processes, start and validation included, and of as many at once: side by
side, or with rows that lose digits and are redone, a step takes longer than in its time alone.
"""

COLUMNS = (
    "row", "text", "paper parameters", "parameters", "paper val", "val, sentence", "val, streaming",
    "paper test", "test, sentence", "test, streaming", "paper train", "train", "step, ms",
    "paper batch, ms", "batch, ms", "epochs", "seconds", "at once",
)  # fmt: skip


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=Path, default=RESULTS, help="what the runner wrote")
    parser.add_argument("--times", type=Path, default=TIMES, help="what it wrote with --time")
    parser.add_argument("--distilled", type=Path, default=DISTILLED, help="those of the other")
    parser.add_argument("--induced", type=Path, default=INDUCED, help="those of tags")
    parser.add_argument("--past", type=Path, default=PAST, help="those that go past both")
    parser.add_argument("--out", type=Path, default=PAGE, help="the page; figures go beside it")
    given = parser.parse_args(words)
    if not given.lines.exists():
        parser.error(f"{given.lines} does not exist; give what an experiment wrote with --out.")
    lines = with_times(read_lines(given.lines), read_lines(given.times))
    timed = given.distilled.with_name(f"{given.distilled.stem}_times.jsonl")
    others = with_times(read_lines(given.distilled), read_lines(timed))
    induced, past = read_lines(given.induced), read_lines(given.past)
    read = {given.lines: lines, given.distilled: others, given.induced: induced}
    for path, some in read.items():
        is_rehearsed = any(line["config"]["text"] != line["dataset"] for line in some)
        if is_rehearsed and given.out.resolve() == PAGE.resolve():
            raise SystemExit(f"{path} has lines of --smoke, which are no results; give --out.")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    pictures = _draw(lines, given.out.parent)
    text = page(lines, pictures, given.lines)
    text += section(others, draw(others, given.out.parent)) + section_of_past(past, lines)
    text += section_of_tags(induced)
    given.out.write_text(text)
    runs = {line["config"]["run"] for line in (*lines, *others)}
    told = {"lines": len(lines) + len(others), "runs": len(runs)}
    print(json.dumps({"page": str(given.out), **told}))
    return 0


def page(lines: Sequence[Line], pictures: Mapping[str, str], source: Path) -> str:
    link = f"../experiments/results/{source.name}"
    parts = [ABOUT.format(link=link)]
    if any(line["config"]["text"] != line["dataset"] for line in lines):
        parts.append("A rehearsal: some lines are of tiny models of the built-in text.\n")
    parts.append(_claims(lines))
    for experiment, module in tables().items():
        parts.append(_table(module, lines))
        if experiment in pictures:
            parts.append(f"![{_title(module)}]({pictures[experiment]})\n")
        parts += [_runs(experiment, lines), _deviations(module)]
    return "\n".join(part for part in parts if part)


def _claims(lines: Sequence[Line]) -> str:
    rows = [
        f"| {_cell(made.claim)} | {made.whose} | {made.word} | {_cell(made.numbers)} |"
        for made in judge(lines)
    ]
    told = "What the paper claims, what was to be shown here (target), and what stands beside that."
    told += "\nLevel: by less than 1%, or times by 5%, of one seed.\n"
    head = ["| claim | whose | verdict | numbers |", "|---|---|---|---|"]
    return "\n".join(["## Claims", told, *head, *rows, ""])


def _title(module: ModuleType) -> str:
    return (module.__doc__ or "").splitlines()[0].rstrip(".")


def _deviations(module: ModuleType) -> str:
    """The list at the top of the file."""
    text = (module.__doc__ or "").partition("Deviations from the paper:\n")[2]
    return f"Deviations:\n\n{text.strip()}\n" if text else ""


def _table(module: ModuleType, lines: Sequence[Line]) -> str:
    head = ["", f"## {_title(module)}", f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    found = Found(lines)
    for row in module.ROWS:
        held = {
            line["mode"]: line
            for line in found.lines.values()
            if (line["experiment"], line["row"], line["dataset"])
            == (module.EXPERIMENT, row.name, row.dataset)
        }
        paper = {
            "paper parameters": row.paper_size,
            "paper val": _number(row.paper_val),
            "paper test": _number(row.paper_test),
            "paper train": _number(row.paper_train),
            "paper batch, ms": _number(row.paper_ms, 0),
        }
        cells = {"row": _cell(row.name), "text": row.dataset, **paper, **_cells(held)}
        head.append("| " + " | ".join(cells.get(name, "") for name in COLUMNS) + " |")
    return "\n".join([*head, ""])


def _cells(held: Mapping[str, Line]) -> dict[str, str]:
    """What a table says of the lines of a row, one for each mode."""
    if not held:
        return {"val, sentence": "not run yet"}
    any_line = next(iter(held.values()))
    star = "" if any_line["config"].get("is_timed_alone") else "*"
    cells = {
        "parameters": f"{any_line['parameters']:,}",
        "train": _number(any_line["train"]),
        "step, ms": _number(any_line["ms_train_step"], 2, star),
        "batch, ms": _number(any_line["ms_eval_batch"], 2, star),
        "epochs": str(any_line["epochs"]),
        "seconds": f"{any_line['seconds']:,.0f}",
        "at once": str(any_line["config"]["workers"]),
    }
    for mode, line in held.items():
        mark = "**" if line["config"]["trained_for"] == mode else ""
        for split in ("val", "test"):
            cells[f"{split}, {mode}"] = f"{mark}{_number(line[split])}{mark}"
    return cells


def _runs(experiment: str, lines: Sequence[Line]) -> str:
    """Where the lines of an experiment come from."""
    of_it = [line for line in lines if line["experiment"] == experiment]
    if not of_it:
        return ""
    devices, commits, timed, seeds, texts = (
        ", ".join(dict.fromkeys(str(value) for value in values))
        for values in (
            (line["device"] for line in of_it),
            (line["commit"] for line in of_it),
            (line["config"]["timed_at"] for line in of_it if line["config"].get("timed_at")),
            (line["seed"] for line in of_it),
            (
                f"{line['config']['text']} {line['tokens_val']:,} / {line['tokens_test']:,}"
                for line in of_it
            ),
        )
    )
    commits += f", times {timed}" if timed else ""
    return f"Device: {devices}. Commit: {commits}. Seed: {seeds}. Tokens, val / test: {texts}.\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _number(value: float | None, digits: int = 1, mark: str = "") -> str:
    return "" if value is None else f"{value:,.{digits}f}{mark}"


def _draw(lines: Sequence[Line], folder: Path) -> dict[str, str]:
    """The figures of which there are two points at least, by experiment."""
    from experiments.chiu_rush_2020 import figure3, table4
    from experiments.drawing import save_curves

    found, made = Found(lines), {}
    sizes = found.some("figure3", (row.name for row in figure3.ROWS))
    ours = {row.states: sizes[row.name]["val"] for row in figure3.ROWS if row.name in sizes}
    paper = {row.states: row.paper_val for row in figure3.ROWS if row.paper_val and row.states}
    if len(ours) > 1:
        curves = {f"ours, {_modes(sizes.values())}": ours, "the paper, streaming": paper}
        label = "validation perplexity"
        save_curves(folder / "figure3.svg", curves, "states, half of them kept", label)
        made[figure3.EXPERIMENT] = "figure3.svg"
    curves, modes = {}, []
    for kind, name in (("independent", "independent"), ("+ block emb", "factored")):
        names = {blocks: f"{kind}, M = {blocks}" for blocks in table4.BLOCKS}
        rows = found.some("table4", names.values())
        curves[name] = {m: rows[row]["val"] for m, row in names.items() if row in rows}
        modes += rows.values()
    if max(map(len, curves.values())) > 1:
        curves = {f"{name}, {_modes(modes)}": points for name, points in curves.items()}
        curves["the paper, independent, streaming"] = table4.BLOCKS
        curves["the paper, factored, streaming"] = {
            row.blocks: row.paper_val
            for row in table4.ROWS
            if row.paper_val and row.blocks and row.name.startswith("+ block emb")
        }
        label = "validation perplexity"
        save_curves(folder / "figure4.svg", curves, "blocks, 16,384 states", label)
        made[table4.EXPERIMENT] = "figure4.svg"
    return made


def _modes(lines: Iterable[Line]) -> str:
    used = {line["mode"] for line in lines}
    return " and ".join(mode for mode in BOTH if mode in used)


if __name__ == "__main__":
    raise SystemExit(main())
