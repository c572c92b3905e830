"""Disagreement and curvature by mode of the graph: how much of it each mode holds, and how curved the loss is there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from dissensus.experiments.errors import ConfigError
from dissensus.experiments.figures.style import MARKERS, PALETTE, house_style, new_figure


def mode_figure(
    factors: Sequence[float],
    energies: Sequence[float],
    curvatures: Sequence[float],
    multiplicities: Sequence[int],
    mean_curvature: float | None = None,
    axis: str = "what one step leaves of the mode, |λ|",
) -> Figure:
    """Left: energy per dimension against the modes' eigenvalues or factors. Right: mean curvature along them.

    `mean_curvature` is tr H / d: where the disagreement would lie without a preference.
    """
    if not len(factors) == len(energies) == len(curvatures) == len(multiplicities) or len(factors) == 0:
        raise ConfigError("a figure of modes needs one factor, energy, curvature and multiplicity per mode")
    with house_style():
        figure = new_figure(10.0, 3.6)
        left, right = figure.subplots(1, 2, sharex=True)
        each = np.asarray(energies) / np.asarray(multiplicities)
        look = {"linestyle": "none", "markersize": 7, "markeredgecolor": "white"}
        left.plot(factors, each, marker=MARKERS[1], color=PALETTE[2], **look)
        left.set(
            title="Disagreement in a mode",
            xlabel=axis,
            ylabel=r"$\Xi_k$ / dimension  (parameter units²)",
            yscale="log" if (each > 0).all() else "linear",
        )
        right.plot(factors, curvatures, marker=MARKERS[2], color=PALETTE[5], **look)
        if mean_curvature is not None:
            right.axhline(mean_curvature, color="#222222", linewidth=0.9)
            right.annotate(
                "tr H / d: no preference", (0.01, mean_curvature), xycoords=("axes fraction", "data"),
                xytext=(0, 3), textcoords="offset points", fontsize=8.5,
            )  # fmt: skip
        values = [*curvatures, *([] if mean_curvature is None else [mean_curvature])]
        right.set(
            title="Curvature along it",
            xlabel=axis,
            ylabel=r"$\mathrm{tr}(H\Sigma_k)\,/\,\Xi_k$",
            yscale="log" if all(v > 0 for v in values) else "linear",
        )
    return figure
