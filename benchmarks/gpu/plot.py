"""python -m benchmarks.run plot-gpu: the time of a training step against the number of states."""

import argparse
import json
import re
from pathlib import Path

from hmmlm.explore.curves import COLOURS, FAINT, GREY

HERE = Path(__file__).parents[2]
LINES, PICTURE = HERE / "benchmarks/results/gpu.jsonl", HERE / "docs/gpu-steps.svg"
STEP = re.compile(r"ptb-z(\d+)-m\d+-d50-b512tok")


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.run plot-gpu", description=__doc__)
    parser.add_argument("--lines", type=Path, default=LINES, help="what benchmarks.run gpu wrote")
    parser.add_argument("--out", type=Path, default=PICTURE, help="the .svg or .png to write")
    given = parser.parse_args(words)
    steps = read(given.lines)
    if len(steps) < 2:
        raise SystemExit(f"{given.lines} has fewer than two sizes of ptb-z...-d50-b512tok.")
    figure = draw(steps)
    about = {"Date": None} if given.out.suffix == ".svg" else None  # the same lines, the same file
    figure.savefig(given.out, dpi=160, metadata=about)
    print(json.dumps({"picture": str(given.out), "states": list(steps)}))
    return 0


def read(path: Path) -> dict[int, dict]:
    """The last line of each size by kernels, by its number of states."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    found = {
        int(match[1]): line
        for line in lines
        if (match := STEP.fullmatch(line["case"])) and line["implementation"] == "kernel"
    }
    return dict(sorted(found.items()))


def draw(steps: dict[int, dict]):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained", facecolor="white")
    axes = figure.subplots()
    states = list(steps)
    for key, label, colour, dashes, side in (
        ("ms", "measured", COLOURS[0], "-", 8),
        ("floor_ms", "floor", GREY, "--", -14),
    ):
        values = [steps[size][key] for size in states]
        axes.plot(states, values, color=colour, linestyle=dashes, marker="o", ms=4, label=label)
        for size, value in zip(states, values, strict=True):
            place = {"xytext": (0, side), "textcoords": "offset points", "ha": "center"}
            axes.annotate(f"{value:.2g}", (size, value), fontsize=8, color=colour, **place)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(states, [f"{size:,}" for size in states], fontsize=8)
    axes.margins(y=0.12)
    low, high = axes.get_ylim()
    ticks = [times * 10**power for power in range(-4, 4) for times in (1, 2, 5)]
    ticks = [tick for tick in ticks if low <= tick <= high]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=8)
    axes.minorticks_off()
    axes.set_xlabel("states, half of them kept")
    axes.set_ylabel("milliseconds a step")
    axes.grid(color=FAINT)
    axes.spines[["top", "right"]].set_visible(False)
    line = steps[states[-1]]
    axes.set_title(f"A training step of 512 tokens: {line['device']}, {line['dtype']}", fontsize=10)
    axes.legend(frameon=False)
    return figure
