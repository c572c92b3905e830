"""Slices of the loss: along a line with its parabola, over a plane with contours and the workers in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dissensus.experiments.errors import ConfigError
from dissensus.experiments.figures.style import PALETTE, house_style, new_figure

_BLUE, _ORANGE = PALETTE[2], PALETTE[5]
_LEVELS = 12


def slice_figure(
    slices: Mapping[str, tuple[np.ndarray, np.ndarray]], curvatures: Mapping[str, float] | None = None
) -> Figure:
    """One panel per direction: (distances from the point, losses); dashed the parabola of the curvature at zero.

    `curvatures` are d'Hd along the unit direction, by the name of the slice. The slope at zero is taken from the two
    points beside it.
    """
    if not slices:
        raise ConfigError("a figure of slices needs at least one slice")
    with house_style():
        figure = new_figure(5.5 * len(slices), 3.6)
        panels: list[Axes] = list(np.atleast_1d(figure.subplots(1, len(slices))))
        for at, (ax, (label, (offsets, losses))) in enumerate(zip(panels, slices.items(), strict=True)):
            ax.plot(offsets, losses, color=_BLUE, label="loss")
            middle = len(offsets) // 2
            ax.plot(offsets[middle], losses[middle], "o", color=_BLUE, markeredgecolor="white")
            if curvatures is not None and label in curvatures:
                slope = (losses[middle + 1] - losses[middle - 1]) / (offsets[middle + 1] - offsets[middle - 1])
                parabola = losses[middle] + slope * offsets + 0.5 * curvatures[label] * offsets**2
                ax.plot(offsets, parabola, color=_ORANGE, linestyle=(0, (4, 2)), label="its parabola at 0")
                low, high = float(np.min(losses)), float(np.max(losses))
                room = 0.15 * max(high - low, 1e-12)
                ax.set_ylim(low - room, high + 2 * room)
            ax.set(title=label, xlabel="distance from the model (parameter units)")
            if at == 0:
                ax.set_ylabel("loss")
                ax.legend(loc="upper center")
    return figure


def plane_figure(
    axes: tuple[np.ndarray, np.ndarray],
    losses: np.ndarray,
    labels: Sequence[str],
    marks: np.ndarray | None = None,
    title: str = "Loss over a plane",
) -> Figure:
    """Contours of the rise above the loss at the centre, spaced evenly in the root of the rise above the lowest point.

    Contours of a quadratic are then evenly spaced, and the bottom is not lost in one level. `marks` (k, 2) are workers;
    with them both axes have one unit.
    """
    if losses.shape != (len(axes[0]), len(axes[1])) or min(losses.shape) < 3:
        raise ConfigError(f"a plane needs losses over its two axes, at least 3 by 3, got shape {losses.shape}")
    if not np.isfinite(losses).all():
        raise ConfigError("the loss is not finite everywhere in the plane: take a smaller reach")
    with house_style():
        figure = new_figure(6.8, 5.0)
        ax = figure.subplots()
        losses = losses - losses[len(axes[0]) // 2, len(axes[1]) // 2]
        low, high = float(losses.min()), float(losses.max())
        levels = low + (high - low) * np.linspace(0, 1, _LEVELS) ** 2 if high > low else np.array([low, low + 1e-9])
        filled = ax.contourf(axes[0], axes[1], losses.T, levels=levels, cmap="cividis_r", extend="neither")
        ax.contour(axes[0], axes[1], losses.T, levels=levels[1:-1], colors="white", linewidths=0.6)
        ax.plot(0, 0, "o", color="white", markeredgecolor="#222222", markersize=8, label="model")
        if marks is not None and len(marks):
            ax.plot(
                *marks.T, "^", color=_ORANGE, markeredgecolor="white", markersize=8, linestyle="none", label="workers"
            )
            ax.set_aspect("equal")
        ax.legend(loc="upper right", frameon=True, facecolor="white", framealpha=0.85, edgecolor="none")
        bar = figure.colorbar(filled, ax=ax, label="loss, above that of the model", format="%.2g")
        bar.outline.set_visible(False)  # type: ignore[operator]
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(MaxNLocator(5))
        ax.grid(visible=False)
        ax.set(title=title, xlabel=labels[0], ylabel=labels[1])
    return figure
