"""The figures of the results: curves and points, with what lies between the seeds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from hmmlm.explore.curves import COLOURS, FAINT, GREY

Ends = tuple[float, float, float]
"""A mean, the least and the most."""


def save_curves(
    path: Path,
    curves: Mapping[str, Mapping[float, float | Ends]],
    across: str,
    up: str,
    *,
    base: int = 2,
    ticks: Mapping[float, str] | None = None,
) -> None:
    """Curves by name, points by place; those of "the paper" are grey."""
    figure, axes = _page()
    own = iter(COLOURS)
    for name, points in curves.items():
        is_paper = "paper" in name
        colour, dashes = (GREY, "--") if is_paper else (next(own), "-")
        ends = [_ends(value) for value in points.values()]
        places, values = list(points), [end[0] for end in ends]
        mark = "s" if name.startswith("the paper, factored") else "o"
        axes.plot(places, values, color=colour, linestyle=dashes, marker=mark, ms=4, label=name)
        if any(low < high for _, low, high in ends):
            beside = [[value - low, high - value] for value, low, high in ends]
            down, above = zip(*beside, strict=True)
            axes.errorbar(places, values, [down, above], fmt="none", ecolor=colour, capsize=3)
        for place, (value, low, high) in zip(places, ends, strict=True):
            told, at = (f"{value:.0f}", low) if is_paper else (f"{value:.1f}", high)
            near = (-5, -12, "right") if is_paper else (3, 6, "left")  # on either side of a point
            axes.annotate(
                told, (place, at), near[:2], textcoords="offset points", fontsize=8, color=colour,
                ha=near[2], path_effects=[withStroke(linewidth=2.5, foreground="white")],
            )  # fmt: skip
    places = sorted({place for points in curves.values() for place in points})
    names = ticks or {place: f"{place:,}" for place in places}
    axes.set_xscale("log", base=base)
    axes.set_xticks(places, [names[place] for place in places], fontsize=8)
    axes.minorticks_off()
    axes.margins(y=0.15)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(color=FAINT)
    axes.legend(loc="best", frameon=False)  # said, it may take its time
    _write(figure, path)


def save_points(
    path: Path, points: Mapping[str, float | Ends], along: str, *, digits: int = 1
) -> None:
    """A point for each name, from the top."""
    figure, axes = _page(height=1.2 + 0.3 * len(points))
    ends = [_ends(value) for value in points.values()]
    values = [end[0] for end in ends]
    beside = zip(*([value - low, high - value] for value, low, high in ends), strict=True)
    axes.errorbar(
        values, range(len(points)), xerr=list(beside), fmt="o", color=COLOURS[0], ms=5, capsize=3
    )
    axes.set_yticks(range(len(points)), list(points))
    axes.margins(x=0.15, y=0.08)
    for place, (value, _, high) in enumerate(ends):
        near = {"xytext": (6, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(f"{value:.{digits}f}", (high, place), fontsize=8, **near)
    axes.invert_yaxis()
    axes.tick_params(labelsize=8)
    axes.set_xlabel(along)
    axes.grid(color=FAINT)
    axes.set_axisbelow(True)
    _write(figure, path)


def save_gaps(
    path: Path,
    curves: Mapping[str, Mapping[float, float]],
    levels: Mapping[str, float],
    across: str,
    up: str,
) -> None:
    """Curves by name that fall towards zero, both scales logarithmic; grey levels beside them."""
    figure, axes = _page(height=4.6)
    places = sorted({place for points in curves.values() for place in points})
    for (name, points), colour in zip(curves.items(), COLOURS, strict=False):
        dashes = "--" if "," in name else "-"
        axes.plot(
            list(points), list(points.values()), dashes, color=colour, marker="o", ms=4, label=name
        )
        last = max(points)
        axes.annotate(
            f"{points[last]:.2g}", (last, points[last]), (6, 0), textcoords="offset points",
            fontsize=8, color=colour, va="center",
        )  # fmt: skip
    axes.margins(x=0.09)
    for name, level in levels.items():
        axes.axhline(level, color=GREY, linestyle=":")
        axes.annotate(
            f"{name}: {level:.2f}", (places[0], level), (0, 4), textcoords="offset points",
            fontsize=8, color=GREY,
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(places, [f"{place:,}" for place in places], fontsize=8)
    axes.set_yticks(marks := [0.01, 0.03, 0.1, 0.3, 1], [f"{mark:g}" for mark in marks], fontsize=8)
    axes.minorticks_off()
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(color=FAINT)
    axes.legend(frameon=False, fontsize=8, loc="lower left")
    _write(figure, path)


def _ends(value: Any) -> Ends:
    return (value, value, value) if isinstance(value, int | float) else tuple(value[:3])


def _page(height: float = 4.2) -> tuple[Figure, Any]:
    figure = Figure(figsize=(6.4, height), layout="constrained", facecolor="white")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _write(figure: Figure, path: Path) -> None:
    with rc_context({"svg.hashsalt": "hmmlm"}):  # the same lines, the same file
        figure.savefig(path, metadata={"Date": None})
