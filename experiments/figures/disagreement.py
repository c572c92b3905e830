"""The disagreement: its size beside what theory predicts, and what it does to loss and directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dissensus.experiments.curves import Curve
from dissensus.experiments.figures.style import (
    background_entry,
    darker,
    draw_background,
    draw_curve,
    house_style,
    looks,
    new_figure,
)

_PREDICTED: dict[str, Any] = {"linestyle": (0, (3, 2)), "linewidth": 1.3, "marker": "", "zorder": 4}


def consensus_figure(
    measured: Mapping[str, Curve],
    predicted: Mapping[str, Curve],
    gamma: Mapping[str, Curve],
    lr: Curve,
    background: Sequence[Curve] = (),
) -> Figure:
    """The consensus distance over the steps on a log axis; below it the learning rate and gamma that drive it."""
    with house_style():
        figure = new_figure(11.0, 4.6)
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3.2, 1])
        _log_curves(top, measured, predicted, background)
        top.set(
            title="Consensus distance",
            ylabel=r"$\Xi_t = \frac{1}{n}\sum_i \Vert x_i - \bar x\Vert^2$  (parameter units²)",
        )
        bottom.plot(lr.steps, lr.mean / np.nanmax(lr.mean), color="#222222", linewidth=1.2, label="lr / its maximum")
        for label, curve, look in looks(gamma):
            if curve.is_measured and label in measured and (measured[label].values > 0).any():
                bottom.plot(
                    curve.steps, curve.mean, color=look["color"], linestyle=(0, (1, 1)), linewidth=2.2,
                    label=rf"$\gamma$ of {label}",
                )  # fmt: skip
        few = len(bottom.get_legend_handles_labels()[0]) <= 4
        beside: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.05), "fontsize": 7.5}
        bottom.legend(**({"loc": "center right", "fontsize": 8.5} if few else beside))
        bottom.set(xlabel="step", ylabel="share", ylim=(-0.05, 1.1))
    return figure


def envelope_figure(
    envelope: Mapping[str, Curve],
    quadratic: Mapping[str, Curve],
    predicted: Mapping[str, Curve],
    alignment: Mapping[str, Curve],
    background: Sequence[Sequence[Curve]] = ((), ()),
) -> Figure:
    """Left: the penalty of disagreement, measured, from the Hessian, and predicted. Right: normalised alignment."""
    with house_style():
        figure = new_figure(11.0, 4.0)
        left, right = figure.subplots(1, 2)
        handles, labels = _log_curves(left, envelope, predicted, background[0])
        for _, curve, look in looks(quadratic):
            shown = np.exp(curve.logarithm().mean)
            hollow = {**look, "markerfacecolor": "none"}
            left.plot(curve.steps, shown, linestyle="none", markersize=9, markeredgewidth=1.1, **hollow)
        ring = Line2D([], [], color="#444444", linestyle="none", marker="o", markersize=9, markerfacecolor="none")
        entries = ([*handles, ring], [*labels, r"hollow: $\frac{1}{2}\mathrm{tr}(H\Sigma)$"])
        if background[0]:  # among many grey lines there is no empty corner
            long = max(map(len, entries[1])) > 30
            figure.legend(*entries, loc="outside lower center", ncols=2 if long else 4)
            if (own := left.get_legend()) is not None:
                own.remove()
        else:
            left.legend(*entries)
        left.set(
            title="Hessian-weighted envelope",
            xlabel="step",
            ylabel=r"$\frac{1}{n}\sum_i L(x_i) - L(\bar x)$  (nats)",
        )
        draw_background(right, _positive(background[1]), logarithmic=True)
        for label, curve, look in looks(alignment):
            if not curve.is_measured:
                continue
            draw_curve(right, curve, label, look, logarithmic=True)
        right.axhline(1.0, color="#222222", linewidth=0.9)
        right.annotate(
            "1: no preferred direction",
            (0.99, 1.0),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            fontsize=8.5,
        )
        right.set(
            title="Normalised alignment with curvature",
            xlabel="step",
            ylabel=r"$d\,\mathrm{tr}(H\Sigma)\,/\,(\mathrm{tr}H\,\mathrm{tr}\Sigma)$",
            yscale="log",
        )
        if right.get_legend_handles_labels()[0] and not background[0]:
            right.legend()
    return figure


def _positive(curves: Sequence[Curve]) -> list[Curve]:
    return [curve for curve in curves if (curve.values > 0).any()]


def _log_curves(
    ax: Axes, measured: Mapping[str, Curve], predicted: Mapping[str, Curve], background: Sequence[Curve]
) -> tuple[list, list]:
    """Arms that are zero throughout are named in the legend, for a log axis has no place for them.

    Returns what the legend holds.
    """
    any_predicted = False
    draw_background(ax, _positive(background), logarithmic=True)
    for label, curve, look in looks(measured):
        if not (curve.values > 0).any():
            ax.plot([], [], label=f"{label}: exactly 0", **look)
            continue
        draw_curve(ax, curve, label, look, logarithmic=True, linewidth=2.4, alpha=0.75)
        expected = predicted.get(label)
        if expected is not None and (expected.values > 0).any():
            any_predicted = True
            ax.plot(expected.steps, np.exp(expected.logarithm().mean), color=darker(look["color"]), **_PREDICTED)
    ax.set_yscale("log")
    handles, labels = ax.get_legend_handles_labels()
    if any_predicted:
        handles.append(Line2D([], [], color="#222222", **_PREDICTED))
        labels.append("dashed: theory, nothing fitted")
    for entry in background_entry(len(background)):
        handles.append(entry)
        labels.append(str(entry.get_label()))
    ax.legend(handles, labels)
    return handles, labels
