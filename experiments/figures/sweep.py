"""Many arms at the end of training: one row an arm, sorted, with the interval of its mean over the seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import stdtrit

from dissensus.experiments.curves import Finals
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.figures.style import GREY, house_style, looks, new_figure

MOST_ROWS = 150
"""More rows than this nobody reads."""
_AXES = {
    "test_accuracy": ("Test accuracy", "share correct (%)"),
    "hessian_trace": ("Hessian trace", r"$\mathrm{tr}\,H$ (nats / parameter units²)"),
    "top_eigenvalue": ("Largest Hessian eigenvalue", r"$\lambda_{\max}$ (nats / parameter units²)"),
}


def sweep_figure(panels: Mapping[str, Mapping[str, Finals]], coloured: Sequence[str]) -> Figure:
    """One panel per quantity, label -> finals in the order of the rows; the coloured arms look as in other figures."""
    measured = {name: arms for name, arms in panels.items() if any(np.isfinite(f.values).all() for f in arms.values())}
    labels = list(next(iter(panels.values())))
    with house_style():
        figure = new_figure(11.0, 1.3 + 0.155 * len(labels))
        axes = figure.subplots(1, max(1, len(measured)), sharey=True, squeeze=False)[0]
        for ax, (name, arms) in zip(axes, measured.items(), strict=False):
            title, unit = _AXES[name]
            _rows(ax, arms, coloured)
            ax.set(title=title, xlabel=unit, ylabel="")
            ax.tick_params(top=True, labeltop=True)
        axes[0].set_yticks(range(len(labels)), labels, fontsize=7)
        axes[0].set_ylim(len(labels) - 0.4, -0.6)
    return figure


def _rows(ax: Axes, arms: Mapping[str, Finals], coloured: Sequence[str]) -> None:
    try:
        import pandas as pd
        import seaborn as sns
    except ImportError:
        raise ConfigError("the figure of many arms needs seaborn: pip install 'dissensus[plots]'") from None

    order = list(arms)
    seeds = max(len(found.values) for found in arms.values())
    frame = pd.DataFrame([(label, float(value)) for label, found in arms.items() for value in found.values])
    frame.columns = ["arm", "value"]
    # the standard error times Student's quantile is the interval of every other figure
    bars: Any = ("se", float(stdtrit(seeds - 1, 0.975))) if seeds > 1 else None
    where: dict[str, Any] = {"x": "value", "y": "arm", "order": order, "orient": "h", "ax": ax}
    dots: dict[str, Any] = {**where, "errorbar": bars, "linestyle": "none"}
    sns.stripplot(frame, color=GREY, size=2.4, jitter=False, zorder=1, **where)
    plain: Any = frame[~frame["arm"].isin(list(coloured))]
    sns.pointplot(plain, color="#777777", marker="o", markersize=3.2, err_kws={"linewidth": 1.0}, **dots)
    for label, _, look in looks(dict.fromkeys(coloured)):
        row: Any = frame[frame["arm"] == label]
        sns.pointplot(row, markersize=6.5, markeredgewidth=0.6, err_kws={"linewidth": 2.2}, **look, **dots)
        ax.axhspan(order.index(label) - 0.5, order.index(label) + 0.5, color="#f0f0f0", zorder=0)
    ax.grid(visible=False, axis="y")
