"""The spectral density of a Hessian on a log axis, with the eigenvalues that were found one by one as lines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from dissensus.experiments.errors import ConfigError
from dissensus.experiments.figures.style import PALETTE, house_style, new_figure

_BLUE, _ORANGE = PALETTE[2], PALETTE[5]
_FLOOR = 1e-7
"""The axis ends where this share of the highest value is reached: below is the smoothing's tail."""


def density_figure(
    grid: np.ndarray,
    density: np.ndarray,
    outliers: Sequence[float] = (),
    band: tuple[np.ndarray, np.ndarray] | None = None,
    *,
    width: float | None = None,
    size: int | None = None,
) -> Figure:
    """The density over a grid of eigenvalues; `outliers` are lines, `band` its error, `width` that of the smoothing.

    Of `size` eigenvalues a line stands for one, so it ends at the height that a single eigenvalue smoothed alike has.
    """
    if grid.shape != density.shape or grid.ndim != 1 or len(grid) < 2:
        raise ConfigError(f"a density needs one value per point of its grid, got {density.shape} on {grid.shape}")
    with house_style():
        figure = new_figure(8.5, 3.8)
        ax = figure.subplots()
        top = float(density.max())
        floor = max(top * _FLOOR, 1e-300)
        if size is not None and width:
            floor = min(floor * 1e7, 0.05 / (size * width * np.sqrt(2 * np.pi)))
        shown = np.maximum(density, floor)
        ax.fill_between(grid, floor, shown, color=_BLUE, alpha=0.25, linewidth=0)
        ax.plot(grid, shown, color=_BLUE, label="density")
        if band is not None:
            low, high = (np.maximum(end, floor) for end in band)
            ax.fill_between(grid, low, high, color=_BLUE, alpha=0.25, linewidth=0)
        if len(outliers):
            height = top if size is None or not width else 1 / (size * width * np.sqrt(2 * np.pi))
            ax.vlines(
                outliers, floor, max(height, 10 * floor), color=_ORANGE, linewidth=1.4, label="single eigenvalues"
            )
            ax.plot(outliers, np.full(len(outliers), max(height, 10 * floor)), "o", color=_ORANGE, markersize=4)
        ax.axvline(0, color="#888888", linewidth=0.8)
        ax.set_yscale("log")
        ax.set_ylim(floor, 3 * top)
        note = "" if width is None else f"  (smoothed by {width:.2g})"
        ax.set(title="Spectral density of the Hessian", xlabel=f"eigenvalue{note}", ylabel="share per unit")
        ax.legend()
    return figure
