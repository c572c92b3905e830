"""One look for all figures: colours with distinct grey values, markers, bands; bytes that depend on numbers only."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dissensus.experiments.curves import Curve
from dissensus.experiments.errors import ConfigError

PALETTE = ("#333333", "#E69F00", "#0072B2", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")
"""Okabe-Ito, in an order in which neighbours differ in lightness as well, so that three arms can be told in grey."""
MARKERS = ("s", "o", "^", "D", "v", "P", "X")
GREY = "#b8b8b8"
"""Of what stays in the background."""

_RC: dict[str, Any] = {
    "figure.facecolor": "white",
    "figure.constrained_layout.use": True,
    "axes.facecolor": "white",
    "axes.edgecolor": "#888888",
    "axes.labelcolor": "#222222",
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.frameon": True,  # white behind the words, without an edge
    "legend.framealpha": 0.8,
    "legend.edgecolor": "none",
    "legend.fancybox": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.7,
    "lines.markersize": 5.5,
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "svg.hashsalt": "dissensus",
    "svg.fonttype": "path",
}


@contextmanager
def house_style() -> Iterator[None]:
    """The settings of all figures, for the time of one figure."""
    with mpl.rc_context(rc=_RC):  # type: ignore[arg-type]
        yield


def new_figure(width: float, height: float) -> Figure:
    """A figure in inches without a window or global state."""
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


Value = TypeVar("Value")


def looks(arms: Mapping[str, Value]) -> Iterator[tuple[str, Value, dict[str, Any]]]:
    """Every arm with its colour and marker, by position."""
    for at, (label, value) in enumerate(arms.items()):
        yield label, value, {"color": PALETTE[at % len(PALETTE)], "marker": MARKERS[at % len(MARKERS)]}


def draw_curve(
    ax: Axes, curve: Curve, label: str | None, look: Mapping[str, Any], *, logarithmic: bool = False, **more: Any
) -> None:
    """A mean over seeds with its band and about ten markers; on a log axis both are those of the logarithm."""
    shown = curve.logarithm() if logarithmic else curve
    mean, low, high = (np.exp(part) if logarithmic else part for part in (shown.mean, *shown.band()))
    every = max(1, len(curve.steps) // 10)
    rim = {"markeredgecolor": "white", "markeredgewidth": 0.6}
    ax.plot(curve.steps, mean, label=label, markevery=every, **rim, **look, **more)
    ax.fill_between(curve.steps, low, high, color=look["color"], alpha=0.18, linewidth=0)


def draw_background(ax: Axes, curves: Iterable[Curve], *, logarithmic: bool = False) -> None:
    """The means over seeds of arms that have no colour of their own: thin and grey, without bands."""
    for curve in curves:
        mean = np.exp(curve.logarithm().mean) if logarithmic else curve.mean
        ax.plot(curve.steps, mean, color=GREY, linewidth=0.6, alpha=0.7, zorder=1)


def background_entry(count: int) -> list[Line2D]:
    """The entry of a legend for so many arms in the background."""
    return [Line2D([], [], color=GREY, linewidth=1.2, label=f"{count} other arms")] if count else []


def darker(colour: str, share: float = 0.45) -> tuple[float, float, float]:
    """The colour with a share of black, for a line that has to be seen on top of its own arm's."""
    red, green, blue = to_rgb(colour)
    return (red * (1 - share), green * (1 - share), blue * (1 - share))


def save(figure: Figure, path: Path) -> None:
    """Writes a figure as the suffix says (svg, png, pdf), without a date in it."""
    path = Path(path)
    kind = path.suffix.removeprefix(".").lower()
    if kind not in ("svg", "png", "pdf"):
        raise ConfigError(f"cannot write a figure as {path.name!r}: the suffix must be .svg, .png or .pdf")
    path.parent.mkdir(parents=True, exist_ok=True)
    with house_style():
        figure.savefig(path, dpi=160, metadata=_timeless(kind))


def svg(figure: Figure) -> bytes:
    """The figure as SVG, the same bytes for the same numbers."""
    out = io.BytesIO()
    with house_style():
        figure.savefig(out, format="svg", metadata=_timeless("svg"))
    return out.getvalue()


def _timeless(kind: str) -> dict[str, Any]:
    return {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None}}[kind]
