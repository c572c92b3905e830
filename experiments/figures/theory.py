"""What theory expects, drawn: envelope and alignment against gamma, and the exponents of gamma = (lr/lr_max)^p."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from dissensus.experiments.figures.style import MARKERS, PALETTE, house_style, new_figure
from dissensus.theory.errors import MixingError
from dissensus.theory.exponents import Exponents
from dissensus.theory.stationary import Stationary, predict
from dissensus.theory.topology import Topology

_RIM: dict[str, Any] = {"markeredgecolor": "white", "markeredgewidth": 0.6}


@dataclass(frozen=True, eq=False)
class GammaCurves:
    """Stationary predictions over a range of gamma, everything else fixed."""

    gammas: np.ndarray
    found: tuple[Stationary | None, ...]
    """`None` where a gamma has no stationary state."""
    gamma: float
    """The one that was asked about."""
    size: int
    title: str

    def of(self, name: str) -> np.ndarray:
        """A number of the prediction at every gamma, NaN where there is none."""
        values = [None if s is None else getattr(s, name) for s in self.found]
        return np.array([np.nan if v is None else v for v in values])


def gamma_curves(
    topology: Topology, curvatures: Any, noise: Any, *, gamma: float, points: int = 41, **settings: Any
) -> GammaCurves:
    """Predictions from gamma = 1/1000 to 1 (further where the given one lies outside), on a logarithmic scale."""
    low, high = min(1e-3, gamma or 1e-3), max(1.0, gamma)
    gammas = np.unique(np.append(np.geomspace(low, high, points), gamma or low))
    found: list[Stationary | None] = []
    for value in gammas:
        try:
            found.append(predict(topology, curvatures, noise, gamma=float(value), **settings))
        except MixingError:
            found.append(None)
    lr, order, momentum = settings["lr"], settings.get("order", "awc"), settings.get("momentum", 0.0)
    title = f"{topology.name}, {topology.size} workers, {order}, lr {lr:g}, momentum {momentum:g}"
    return GammaCurves(gammas, tuple(found), gamma, topology.size, title)


def stationary_figure(curves: GammaCurves) -> Figure:
    """Left: envelope, with the excess risk of the mean and the cap of independent workers. Right: alignment."""
    with house_style():
        figure = new_figure(11.0, 4.2)
        left, right = figure.subplots(1, 2)
        blue, orange, dark = PALETTE[2], PALETTE[5], PALETTE[0]
        left.plot(curves.gammas, curves.of("envelope"), color=blue, label=r"envelope $\frac{1}{2}\mathrm{tr}(H\Sigma)$")
        excess = curves.of("excess")
        if np.isfinite(excess).any():
            floor = float(np.nanmax(excess))
            left.axhline(floor, color=dark, linewidth=1.1, linestyle=(0, (5, 2)), label="excess risk of the mean")
            if curves.size > 2:
                cap = (curves.size - 1) * floor
                name = rf"{curves.size - 1} $\times$ that: workers that never talk"
                left.axhline(cap, color=dark, linewidth=1.1, linestyle=(0, (1, 1.5)), label=name)
        left.set(
            title="Loss envelope of the disagreement",
            xlabel=r"$\gamma$ (how much of the mixing is done)",
            ylabel="loss above that of the mean",
            xscale="log",
            yscale=_scale(curves.of("envelope"), excess),
        )
        right.plot(curves.gammas, curves.of("normalised_alignment"), color=orange, label="theory")
        right.axhline(1.0, color=dark, linewidth=1.1, linestyle=(0, (5, 2)))
        right.annotate(
            "1: no preferred direction", (0.99, 1.0), xycoords=("axes fraction", "data"), xytext=(0, 3),
            textcoords="offset points", ha="right", va="bottom", fontsize=9,
        )  # fmt: skip
        right.set(
            title="Normalised alignment with curvature",
            xlabel=r"$\gamma$ (how much of the mixing is done)",
            ylabel=r"$d\,\mathrm{tr}(H\Sigma)\,/\,(\mathrm{tr}H\,\mathrm{tr}\Sigma)$",
            xscale="log",
        )
        alignment = np.append(curves.of("normalised_alignment"), 1.0)
        right.set_yscale(_scale(alignment, least_span=5.0))
        top = 1.12 * float(np.nanmax(alignment))
        if right.get_yscale() == "log":
            right.set_ylim(float(np.nanmin(alignment)) / 1.3, 1.4 * top)
        else:
            right.set_ylim(min(0.0, 1.1 * float(np.nanmin(alignment))), top)
        at = int(np.argmin(np.abs(curves.gammas - curves.gamma)))
        if curves.found[at] is not None:
            for ax, name, colour in ((left, "envelope", blue), (right, "normalised_alignment", orange)):
                here = curves.of(name)[at]
                ax.plot(curves.gammas[at], here, "o", color=colour, markersize=8, label=rf"$\gamma$ = {curves.gamma:g}",
                        **_RIM)  # fmt: skip
        left.legend(loc="best")
        for ax in (left, right):
            ax.set_xlim(curves.gammas[0] / 1.2, curves.gammas[-1] * 1.2)
        figure.suptitle(curves.title, x=0.01, ha="left", fontsize=9.5, color="#444444")
    return figure


def exponents_figure(found: Sequence[Exponents]) -> Figure:
    """Left: the envelope against the learning rate. Right: its slope, measured, and what the small-step law says."""
    with house_style():
        figure = new_figure(11.0, 4.4)
        left, right = figure.subplots(1, 2)
        law_drawn = False
        for at, one in enumerate(found):
            look: dict[str, Any] = {"color": PALETTE[at % len(PALETTE)], "marker": MARKERS[at % len(MARKERS)], **_RIM}
            lrs = np.array([point.lr for point in one.points])
            envelope = np.array([point.envelope for point in one.points])
            every = max(1, len(lrs) // 8)
            left.plot(lrs, envelope, label=f"p = {one.p:g}", markevery=every, **look)
            slope = np.array([_number(point.slopes["envelope"]) for point in one.points])
            right.plot(lrs, slope, linestyle="-", linewidth=1.4, markevery=every, **look)
            law = np.array([_number(point.expected) for point in one.points])
            if np.isfinite(law).any():
                name = None if law_drawn else "small-step law"
                right.plot(lrs, law, color="#111111", linestyle=(0, (1, 1.6)), linewidth=1.3, zorder=4, label=name)
                law_drawn = True
        top = max(point.lr for one in found for point in one.points)
        left.set(
            title="Stationary envelope as the learning rate falls",
            xlabel=r"learning rate, $\gamma = (\alpha/\alpha_{\max})^p$",
            ylabel=r"$\frac{1}{2}\mathrm{tr}(H\Sigma)$ (loss)",
            xscale="log",
            yscale=_scale(*(np.array([point.envelope for point in one.points]) for one in found)),
        )
        left.legend(ncols=2)
        right.axhline(0.0, color="#222222", linewidth=1.0)
        right.annotate("0: stays", (0.01, 0.0), xycoords=("axes fraction", "data"), xytext=(0, 3),
                       textcoords="offset points", fontsize=9)  # fmt: skip
        right.set(
            title="Its exponent in the learning rate",
            xlabel="learning rate",
            ylabel=r"$d\,\log P\,/\,d\,\log\alpha$",
            xscale="log",
        )
        drawn = np.concatenate([line.get_ydata() for line in right.lines] or [np.zeros(1)]).astype(float)
        drawn = np.append(drawn[np.isfinite(drawn)], 0.0)
        right.set_ylim(max(-2.4, drawn.min()) - 0.25, min(3.0, drawn.max()) + 0.25)
        low = min(point.lr for one in found for point in one.points)
        for ax in (left, right):
            ax.set_xlim(low / 1.4, 1.15 * top)
        if law_drawn:
            right.legend(loc="best")
    return figure


def _scale(*values: np.ndarray, least_span: float = 1.0) -> str:
    """Logarithmic where there is something positive to show (and, if asked, only over a wide enough range)."""
    shown = np.concatenate(values)
    shown = shown[np.isfinite(shown)]
    if not len(shown) or shown.max() <= 0.0:
        return "linear"
    return "log" if least_span <= 1.0 or 0.0 < shown.min() * least_span <= shown.max() else "linear"


def _number(value: float | None) -> float:
    return np.nan if value is None else value
