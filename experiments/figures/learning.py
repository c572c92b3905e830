"""How the consensus model learns: training loss, test loss and test accuracy over the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from dissensus.experiments.curves import Curve
from dissensus.experiments.figures.style import (
    background_entry,
    draw_background,
    draw_curve,
    house_style,
    looks,
    new_figure,
)


def learning_figure(
    train_loss: Mapping[str, Curve],
    test_loss: Mapping[str, Curve],
    accuracy: Mapping[str, Curve],
    background: Sequence[Sequence[Curve]] = ((), (), ()),
) -> Figure:
    """Three panels over the steps, one line per arm, bands over the seeds; `background` is grey, panel by panel."""
    panels = (
        ("Training loss", "cross-entropy (nats)", train_loss),
        ("Test loss", "cross-entropy (nats)", test_loss),
        ("Test accuracy", "share correct (%)", accuracy),
    )
    with house_style():
        figure = new_figure(11.0, 3.5)
        for ax, (title, unit, arms), others in zip(figure.subplots(1, 3), panels, background, strict=True):
            percent = unit.endswith("(%)")
            draw_background(ax, (Curve(c.steps, 100 * c.values) if percent else c for c in others))
            for label, curve, look in looks(arms):
                shown = Curve(curve.steps, 100 * curve.values) if percent else curve
                draw_curve(ax, shown, label, look)
            ax.set(title=title, xlabel="step", ylabel=unit)
            shown = [Curve(c.steps, 100 * c.values) if percent else c for c in arms.values()]
            low, high = _settled(shown)
            ax.set_ylim(*((max(low, -1.0), min(high, 101.0)) if percent else (low, high)))  # a band may leave 0 to 100
        handles, _ = figure.axes[0].get_legend_handles_labels()
        figure.axes[0].legend(handles=[*handles, *background_entry(len(background[0]))])
    return figure


def _settled(curves: Sequence[Curve]) -> tuple[float, float]:
    """Limits that leave out the steep first tenth of the means, and the first half of the bands."""
    ends = []
    for curve in curves:
        ends.append(curve.mean[max(1, len(curve.steps) // 10) :])
        ends += [end[len(end) // 2 :] for end in curve.band()]
    low, high = float(np.nanmin(np.concatenate(ends))), float(np.nanmax(np.concatenate(ends)))
    margin = 0.06 * (high - low) or 0.01
    return low - margin, high + margin
