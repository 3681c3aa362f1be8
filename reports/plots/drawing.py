"""Figures as inline SVG in the colours of the report (login side)."""

from __future__ import annotations

import io
from typing import Any

DARK, GREY, RED, BLUE = "#1c2127", "#535d68", "#a8201a", "#2d4f83"
PALE_BLUE = "#9fb3d1"


def new_figure(width: float, height: float, rows: int = 0) -> tuple[Any, Any]:
    """Return a figure of this size in inches and its axes; with `rows` a list, one below another.

    Made without pyplot, which looks for a display and keeps every figure in memory.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    all_axes = list(figure.subplots(max(1, rows), squeeze=False)[:, 0])
    for axes in all_axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color("#d3d8de")
        axes.tick_params(labelsize=7, colors=GREY, length=2)
    return figure, all_axes if rows else all_axes[0]


def svg_of(figure: Any) -> str:
    """Return the figure as SVG on a transparent ground.

    Not by savefig, which draws a figure with a layout twice.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    for part in (figure, *(axes.patch for axes in figure.axes)):
        part.set(facecolor="none", edgecolor="none")
    text = io.StringIO()
    with matplotlib.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "acceptance", "font.family": ["sans-serif"],
         "text.parse_math": False}
    ):  # fmt: skip
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(text, metadata={"Date": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]
