"""Pictures for a page that may be light or dark: matplotlib's SVG with the page's colours."""

import colorsys
import io
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from hmmlm.errors import InputError
from hmmlm.explore.curves import COLOURS as CURVES
from hmmlm.explore.curves import FAINT, GREY, INK
from hmmlm.explore.projection import Projection

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VECTORS = 3000
"""Points up to which each is drawn as a shape; more are a picture, which is smaller."""

LINE, EDGE = CURVES[0], "#bbbbbb"
NAMES = {INK: "ink", GREY: "grey", FAINT: "faint", EDGE: "faint", LINE: "line"}
"""What the page calls the colours of a picture."""


def draw_map(found: Projection, block: np.ndarray | None, use: np.ndarray | None) -> "Figure":
    """The states in the plane: larger where they are used more, coloured by block."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise InputError(
            "The map is drawn with matplotlib, which is not installed; run pip install "
            "'hmmlm[explore]'."
        ) from None
    figure = Figure(figsize=(7.2, 5.4), layout="constrained", facecolor="white")
    axes = figure.subplots()
    count = len(found.points)
    share = np.full(count, 1 / count) if use is None else use
    sizes = 60 * np.sqrt(share / max(share.max(), 1e-300)) * min(1.0, (2000 / count) ** 0.5) + 1.5
    order = np.argsort(-sizes, kind="stable")
    x, y = found.points[order].T
    colour: Any = LINE
    if block is not None:
        # Neighbouring numbers are far apart on the wheel of colours.
        hues = (block[order] * 0.61803399) % 1.0
        colour = [colorsys.hls_to_rgb(hue, 0.5, 0.55) for hue in hues]
    axes.scatter(
        x, y, s=sizes[order], c=colour, alpha=0.6, linewidths=0, rasterized=count > VECTORS,
    )  # fmt: skip
    for axis, name, part in ((axes.xaxis, "first", 0), (axes.yaxis, "second", 1)):
        axis.set_label_text(
            f"{name} direction ({100 * found.explained[part]:.0f}% of variance)",
            color=GREY,
            fontsize=9,
        )
        axis.set_ticks([])
    for spine in axes.spines.values():
        spine.set_color(EDGE)
    return figure


def inline_svg(figure: "Figure", label: str) -> str:
    """A figure as SVG to stand in a page, in the page's colours; the same each time."""
    import matplotlib

    with io.StringIO() as file:
        with matplotlib.rc_context({"svg.hashsalt": label}):
            figure.savefig(file, format="svg", dpi=160, metadata={"Date": None})
        text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Its size is that of its box; it has no ground of its own.
    text = re.sub(r'<svg ([^>]*?)width="[^"]*"', r"<svg \1", text, count=1)
    text = re.sub(r'<svg ([^>]*?)height="[^"]*"', r"<svg \1", text, count=1)
    text = re.sub(r"fill: (#ffffff|white)", "fill: none", text)
    for colour, name in NAMES.items():
        text = text.replace(colour, f"var(--{name})")
    # Names within one page must differ between its pictures.
    mark = re.sub(r"\W+", "-", label)
    text = re.sub(r'\bid="', f'id="{mark}-', text)
    text = re.sub(r'href="#', f'href="#{mark}-', text)
    text = re.sub(r"url\(#", f"url(#{mark}-", text)
    return text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
