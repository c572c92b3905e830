"""Curvature of the consensus model at the end: Hessian trace and top eigenvalue, per arm and seed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dissensus.experiments.curves import Finals
from dissensus.experiments.figures.style import house_style, looks, new_figure


def curvature_figure(trace: Mapping[str, Finals], eigenvalue: Mapping[str, Finals]) -> Figure:
    """Two panels: the small points are seeds with their estimator's error, the large ones means over seeds."""
    with house_style():
        figure = new_figure(11.0, 3.4)
        left, right = figure.subplots(1, 2)
        _points(left, trace)
        left.set(title="Hessian trace", xlabel=r"$\mathrm{tr}\,H$ at the consensus model (nats / parameter units²)")
        _points(right, eigenvalue)
        right.set(
            title="Largest Hessian eigenvalue",
            xlabel=r"$\lambda_{\max}$ at the consensus model (nats / parameter units²)",
        )
    return figure


def _points(ax: Axes, arms: Mapping[str, Finals]) -> None:
    for row, (_, finals, look) in enumerate(looks(arms)):
        n = len(finals.values)
        spread = np.linspace(-0.2, 0.06, n) if n > 1 else np.zeros(1)
        ax.errorbar(
            finals.values, row + spread, xerr=finals.errors, fmt=look["marker"], color=look["color"],
            markersize=4, elinewidth=0.9, capsize=0, alpha=0.65, linestyle="none",
        )  # fmt: skip
        low, high = finals.interval
        mean = finals.mean
        ax.errorbar(
            [mean], [row + 0.28], xerr=[[mean - low], [high - mean]], fmt=look["marker"], color=look["color"],
            markersize=9, elinewidth=2.2, capsize=5, capthick=2.2, markeredgecolor="white",
        )  # fmt: skip
        ax.annotate(
            f"{mean:#.3g}", (mean, row + 0.28), xytext=(0, -17), textcoords="offset points",
            ha="center", fontsize=9, color="#222222",
        )  # fmt: skip
    ax.set_yticks(range(len(arms)), list(arms))
    ax.set_ylim(len(arms) - 0.25, -0.5)
    ax.grid(visible=False, axis="y")
