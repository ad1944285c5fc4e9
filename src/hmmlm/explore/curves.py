"""The curves of trainings: `metrics.jsonl` read, checked and drawn."""

import colorsys
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hmmlm.errors import InputError
from hmmlm.text_model import METRICS
from hmmlm.train.loop import Progress

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NEEDED = ("step", "loss", "tokens", "tokens_per_second", "learning_rate")
FAR = 50.0
"""Nats that are far outside of any picture; none are below 0."""

MOST_POINTS = 2000
"""Points of a line; of more, each stretch shows its lowest and its highest."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f4f24", "#444444")
"""Okabe and Ito's, which colour-blind readers tell apart."""

INK, GREY, FAINT = "#222222", "#666666", "#e6e6e6"


def read_metrics(folder: Path) -> list[Progress]:
    """The steps of the training that made a model's folder, at least one, checked."""
    path = folder / METRICS
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the model folder of a training.")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(
            f"{folder} has no {METRICS}; give the model folder that hmmlm train wrote."
        ) from None
    except UnicodeDecodeError:
        raise InputError(
            f"{path} is not UTF-8 text; copy the folder again or train again."
        ) from None
    # A training that still runs may be in the middle of its last line.
    lines = text.split("\n")[:-1]
    if not lines:
        raise InputError(f"{path} is empty; train for at least one step.")
    return [_read_line(line, f"{path}, line {number:,}") for number, line in enumerate(lines, 1)]


def best_check(steps: Sequence[Progress]) -> Progress | None:
    """The step with the lowest validation perplexity; None where nothing was validated."""
    checks = [step for step in steps if step.val is not None]
    return min(checks, key=lambda step: step.val or 0.0, default=None)


def draw_curves(runs: Mapping[str, Sequence[Progress]], *, x: str = "tokens") -> "Figure":
    """Perplexity (log scale) and learning rate of named runs over their `tokens` or `steps`.

    Training is smoothed, with every step faint behind it if the runs are few; each check on
    validation is a point, the best one ringed and named at the right.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ModuleNotFoundError:
        raise InputError(
            "Curves are drawn with matplotlib, which is not installed; run pip install "
            "'hmmlm[explore]'."
        ) from None
    wide = 6.6 + 0.078 * max(len(_label(name, steps)) for name, steps in runs.items())
    high = max(4.8, 2.0 + 0.19 * len(runs))
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1, hspace=0.04)
    figure = Figure(figsize=(wide, high), layout=layout, facecolor="white")
    top, bottom = figure.subplots(2, sharex=True, height_ratios=[high - 1.7, 1.0])
    colours = _colours(len(runs))
    ends: list[tuple[float, str, Any]] = []
    seen: list[float] = []
    starts: list[float] = []
    for (name, steps), colour in zip(runs.items(), colours, strict=True):
        places = np.array([step.tokens if x == "tokens" else step.step for step in steps])
        losses = np.clip([step.loss for step in steps], 0.0, FAR)
        smoothed = np.exp(smooth(losses))
        one = "." if len(steps) == 1 else ""  # a line of one point would not be seen
        if len(runs) <= 4:
            faint = _thin(places, np.exp(losses))
            top.plot(*faint, color=colour, linewidth=0.7, alpha=0.22, zorder=1)
        top.plot(*_thin(places, smoothed), color=colour, linewidth=1.3, marker=one, zorder=2)
        checks = [(at, step.val) for at, step in zip(places, steps, strict=True) if step.val]
        checks = [(at, min(max(val, 1.0), math.exp(FAR))) for at, val in checks]
        if checks:
            at, values = zip(*checks, strict=True)
            dots = {"marker": "o", "markersize": 3.2, "markeredgewidth": 0}
            top.plot(at, values, color=colour, linewidth=0.8, linestyle=":", zorder=3, **dots)
            best = int(np.argmin(values))
            ring = {"marker": "o", "markersize": 7.5, "markerfacecolor": "none"}
            ring |= {"clip_on": False, "in_layout": False}  # whole at the edge; far outside, gone
            top.plot(at[best], values[best], color=colour, markeredgewidth=1.4, zorder=4, **ring)
            seen += values
        seen += smoothed.tolist()
        starts.append(float(smoothed[0]))
        ends.append((checks[-1][1] if checks else smoothed[-1], _label(name, steps), colour))
        bottom.plot(*_thin(places, np.array([step.learning_rate for step in steps])), color=colour,
                    linewidth=1.3, marker=one)  # fmt: skip
    # A run that blows up leaves the picture, which is there for the others.
    _finish_perplexity(top, min(seen), min(max(seen), 2 * max(starts)))
    _finish_rates(bottom, [max(step.learning_rate for step in steps) for steps in runs.values()])
    bottom.set_xlabel(x, color=GREY, fontsize=9)
    bottom.set_xlim(left=0)
    _write_labels(top, ends, gap=0.185 / (high - 1.9))
    _add_legend(top, raw=len(runs) <= 4, checks=any(best_check(steps) for steps in runs.values()))
    return figure


def _read_line(line: str, where: str) -> Progress:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise InputError(f"{where} is not a JSON object; remove the line or train again.")
    for key in (*NEEDED, "val"):
        value = record.get(key)
        if value is None and key == "val":
            continue
        above = -math.inf if key in ("loss", "learning_rate") else 0
        number = value if isinstance(value, int | float) else math.nan
        if isinstance(value, bool) or not above < number <= sys.float_info.max:
            shown = json.dumps(value) if key in record else "missing"
            wanted = "a finite number" if above else "a number above 0"
            raise InputError(
                f"{where}: {key} is {shown} but must be {wanted}; remove the line or train again."
            )
    fields: list[Any] = [record.get(key) for key in Progress._fields]
    return Progress(*fields)


def smooth(values: np.ndarray) -> np.ndarray:
    """The mean of each value's neighbourhood, a twentieth of all.

    Narrower at the start, where curves are steep; only those before it at the end.
    """
    number = len(values)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(number)
    before = np.minimum(number // 40, at)
    after = np.minimum(before, number - 1 - at)
    return (sums[at + after + 1] - sums[at - before]) / (before + after + 1)


def thin(values: np.ndarray) -> np.ndarray:
    """The places of a line's points; of a long one the lowest and the highest of each stretch."""
    places = np.arange(len(values))
    if len(values) <= MOST_POINTS:
        return places
    stretches = np.array_split(places, MOST_POINTS // 2)
    ends = [sorted((s[values[s].argmin()], s[values[s].argmax()])) for s in stretches]
    return np.array(ends).ravel()


def _thin(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    kept = thin(y)
    return x[kept], y[kept]


def _colours(number: int) -> list[Any]:
    if number <= len(COLOURS):
        return list(COLOURS[:number])
    return [colorsys.hls_to_rgb(place / number, 0.4, 0.65) for place in range(number)]


def _label(name: str, steps: Sequence[Progress]) -> str:
    best = best_check(steps)
    if best is None or best.val is None:
        return name
    return f"{name}  {best.val:,.1f}" if best.val < 1e9 else f"{name}  {best.val:.3g}"


def _finish_perplexity(axes: "Axes", low: float, high: float) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    low, high = low / 1.06, high * 1.06
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    fine = (1, 1.5, 2, 3, 4, 6, 8) if high / low < 20 else (1, 2, 5) if high / low < 300 else (1,)
    narrow = high / low < 1.6
    axes.yaxis.set_major_locator(MaxNLocator(5) if narrow else LogLocator(subs=fine))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    _finish(axes, "Perplexity")


def _finish_rates(axes: "Axes", heights: list[float]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    if max(heights) > 5 * min(heights) > 0:
        axes.set_yscale("log")
        axes.set_ylim(min(heights) / 20, max(heights) * 1.5)
        axes.yaxis.set_major_locator(LogLocator())
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_major_formatter(FuncFormatter(_short))
    _finish(axes, "Learning rate")


def _finish(axes: "Axes", title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10, color=INK, fontweight="bold", pad=6)
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=GREY, labelsize=8.5, length=0, pad=5)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color("#bbbbbb")


def _write_labels(axes: "Axes", ends: list[tuple[float, str, Any]], gap: float) -> None:
    """Each run's label at the right where its curve ends, moved apart where they would overlap."""
    low, high = axes.get_ylim()
    ends = sorted(ends, key=lambda end: end[0])
    wanted = [math.log(value / low) / math.log(high / low) for value, _, _ in ends]
    heights = _spread([min(1.0, height) for height in wanted], gap)
    for height, (_, label, colour) in zip(heights, ends, strict=True):
        axes.text(
            1.015, height, label, color=colour, fontsize=9, va="center",
            transform=axes.transAxes, parse_math=False,
        )  # fmt: skip


def _spread(wanted: list[float], gap: float) -> list[float]:
    """Heights at least a gap apart, as near to the rising ones wanted as may be, within [0, 1]."""
    # Less its own number of gaps, each height must only not fall: those that do share their mean.
    groups: list[tuple[float, int]] = []
    for number, height in enumerate(wanted):
        mean, size = height - number * gap, 1
        while groups and groups[-1][0] > mean:
            other, more = groups.pop()
            mean, size = (mean * size + other * more) / (size + more), size + more
        groups.append((mean, size))
    means = [mean for mean, size in groups for _ in range(size)]
    most = max(0.0, 1.0 - gap * (len(wanted) - 1))
    return [min(max(mean, 0.0), most) + number * gap for number, mean in enumerate(means)]


def _add_legend(axes: "Axes", *, raw: bool, checks: bool) -> None:
    from matplotlib.lines import Line2D

    def handle(label: str, **look: Any) -> Line2D:
        return Line2D([], [], color=GREY, label=label, **look)

    handles = [handle("training, smoothed", linewidth=1.3)]
    if raw:
        handles.append(handle("each step", linewidth=0.7, alpha=0.4))
    if checks:
        dots = {"linestyle": ":", "marker": "o", "markeredgewidth": 0}
        ring = {"linestyle": "none", "marker": "o", "markerfacecolor": "none"}
        handles.append(handle("validation", linewidth=0.8, markersize=3.2, **dots))
        handles.append(handle("best validation", markersize=8, markeredgewidth=1.4, **ring))
    axes.legend(
        handles=handles, frameon=False, fontsize=8.5, labelcolor=GREY, ncols=len(handles),
        loc="lower right", bbox_to_anchor=(1, 1), borderpad=0.2, borderaxespad=0.1,
        handlelength=1.6, handletextpad=0.5, columnspacing=1.2,
    )  # fmt: skip


def _short(number: float, _: Any = None) -> str:
    """A number of tokens as short as it may be: 1.5M, 200k."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:g}{unit}"
    return f"{number:g}"
