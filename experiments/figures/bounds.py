"""Bounds, drawn: against the exact worst case and runs over the steps, and how tight all of them are at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from dissensus.experiments.errors import ConfigError
from dissensus.experiments.figures.style import PALETTE, house_style, new_figure
from dissensus.experiments.replay import replay
from dissensus.theory.certificates import Certificate, Setting, certificate_of, guarantees, sampled, worst_case
from dissensus.theory.errors import MixingError
from dissensus.theory.ledger import Row

SAMPLES = 40
"""Random runs that are drawn."""
MOST_STEPS = 12
"""Numbers of steps of which every one costs a certificate."""
FARTHEST = 1e3
"""Slacks beyond it are drawn at the edge."""
CRITERIA = {
    "objective": r"mean over the steps of $F(\bar x^t) - F^\star$",
    "last": r"$F(\bar x^K) - F^\star$",
    "average": r"$F$ at the mean of all points, above $F^\star$",
    "distance": r"mean square distance to $x^\star$",
    "mean": r"$\Vert \bar x^K - x^\star\Vert^2$",
    "consensus": r"consensus distance",
    "rate": r"factor by which the measure $V$ falls",
}
_DASHES: tuple[Any, ...] = ((0, (5, 2)), (0, (1, 1.4)), (0, (6, 2, 1, 2)))
_RIM: dict[str, Any] = {"markeredgecolor": "white", "markeredgewidth": 0.6}


@dataclass(frozen=True, eq=False)
class OverSteps:
    """The worst case after 1 to K steps, what the bounds say of it, and runs."""

    setting: Setting
    steps: tuple[int, ...]
    certificates: tuple[Certificate, ...]
    bounds: Mapping[str, np.ndarray]
    """By name, NaN where a bound does not apply."""
    attained: np.ndarray
    """By the rebuilt worst case of every number of steps, NaN where it is not rebuilt."""
    on_the_way: np.ndarray
    """The worst case of all K steps at every step from 1 to K, or nothing."""
    samples: np.ndarray
    """(runs, K): random members of the class at every step from 1 to K."""

    def to_dict(self) -> list[dict[str, Any]]:
        """One dictionary for every number of steps, for JSON."""
        most = self.samples.max(axis=0)
        return [
            {
                "steps": k,
                "value": c.value,
                "certified": c.certified,
                "attained": _number(self.attained[at]),
                "sampled": float(most[k - 1]),
                "bounds": {name: _number(values[at]) for name, values in self.bounds.items()},
            }
            for at, (k, c) in enumerate(zip(self.steps, self.certificates, strict=True))
        ]


def over_steps(certificate: Certificate, *, samples: int = SAMPLES, seed: int = 0) -> OverSteps:
    """Everything from one step up to those of a certificate."""
    of, rng = certificate.setting, np.random.default_rng(seed)
    steps = sorted({round(k) for k in np.linspace(1, of.steps, min(of.steps, MOST_STEPS))})
    found = [certificate_of(replace(of, steps=k)) for k in steps[:-1]] + [certificate]
    said = [{g.bound: g.value for g in guarantees(c.setting)} for c in found]
    names = sorted({name for one in said for name in one})
    return OverSteps(
        of,
        tuple(steps),
        tuple(found),
        {name: np.array([one.get(name, math.nan) for one in said]) for name in names},
        np.array([_attained(c) for c in found]),
        _worst_on_the_way(certificate),
        np.array([_path(sampled(of, rng)) for _ in range(samples)]),
    )


def steps_figure(curves: OverSteps) -> Figure:
    """Bounds above, the certificate with the runs that reach it, random runs below."""
    with house_style():
        figure = new_figure(8.6, 4.8)
        ax = figure.subplots()
        of, every = curves.setting, np.arange(1, curves.setting.steps + 1)
        for at, (name, values) in enumerate(curves.bounds.items()):
            look: dict[str, Any] = {"linestyle": _DASHES[at % 3], "marker": "^v<"[at % 3], "markersize": 5.0}
            ax.plot(curves.steps, values, color=PALETTE[(5, 2, 3)[at % 3]], label=f"bound {name}", zorder=3, **look)
        values = np.array([c.value if math.isfinite(c.value) else math.nan for c in curves.certificates])
        ax.plot(
            curves.steps, values, color=PALETTE[0], linewidth=2.2, label="certificate: exact worst case", zorder=4
        )  # fmt: skip
        if np.isfinite(curves.attained).any():
            ax.plot(
                curves.steps, curves.attained, "o", markersize=7, markerfacecolor="white",
                markeredgecolor=PALETTE[0], markeredgewidth=1.5, label="its instance, run", zorder=5,
            )  # fmt: skip
        if len(curves.on_the_way) > 1:
            label = f"the instance of K = {of.steps} on its way"
            ax.plot(every, curves.on_the_way, color=PALETTE[1], linewidth=1.4, zorder=3, label=label)
        for at, run in enumerate(curves.samples):
            label = f"{len(curves.samples)} random runs of the class" if at == 0 else None
            ax.plot(every, run, color="#8a8a8a", alpha=0.45, linewidth=0.8, zorder=1, label=label)
        if of.steps == 1:  # lines of one point are not seen
            ax.plot(np.ones(len(curves.samples)), curves.samples[:, 0], "_", color="#8a8a8a", markersize=14, zorder=1)
        shown = np.concatenate([values, *curves.bounds.values()])
        ax.set(
            title=_title(of),
            xlabel="steps K",
            ylabel=CRITERIA[of.criterion],
            xlim=(1 - 0.03 * of.steps, of.steps * 1.03) if of.steps > 1 else (0.5, 1.5),
        )
        _scale(ax, shown, curves.samples)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def tightness_figure(rows: Sequence[Row]) -> Figure:
    """All bounds by their slack: the smallest that was found, the medians of the families, the exact worst case."""
    by_bound: dict[str, list[Row]] = {}
    for row in rows:
        by_bound.setdefault(row.bound, []).append(row)
    names = sorted(by_bound, key=lambda name: (round(_least(by_bound[name]), 2), _medians(by_bound[name])))
    columns = 1 if len(names) <= 24 else 2
    per = math.ceil(len(names) / columns)
    with house_style():
        figure = new_figure(6.6 * columns, 1.7 + 0.23 * per)
        panels = figure.subplots(1, columns, sharex=True, squeeze=False)[0]
        for ax, at in zip(panels, range(columns), strict=True):
            for y, name in enumerate(names[at * per : (at + 1) * per]):
                _draw_bound(ax, y, by_bound[name])
            ax.set(xscale="log", xlabel="slack: bound over what was measured (1: attained)", ylim=(per - 0.4, -0.6))
            ax.set_xlim(0.8 if all(row.violations == 0 for row in rows) else 0.08, 1.25 * FARTHEST)
            ax.set_yticks(range(len(names[at * per : (at + 1) * per])), names[at * per : (at + 1) * per], fontsize=8)
            ax.xaxis.set_major_formatter("{x:g}")
            ax.axvline(1.0, color="#222222", linewidth=1.1, zorder=1)
            ax.grid(visible=False, axis="y")
        figure.legend(handles=_legend(panels[0], rows), loc="outside upper left", ncols=5, handletextpad=0.3)
    return figure


def _draw_bound(ax: Axes, y: int, rows: Sequence[Row]) -> None:
    least, medians = _least(rows), [min(row.median, FARTHEST) for row in rows if row.instances]
    ax.axhline(y, color="#ececec", linewidth=0.7, zorder=0)
    if medians:
        ax.plot([min(medians), max(medians)], [y, y], color=PALETTE[6], linewidth=4.0, solid_capstyle="round", zorder=2)
        ax.plot([least, min(medians)], [y, y], color="#9a9a9a", linewidth=1.2, zorder=2)
        near = [value for value in medians if value < FARTHEST]
        ax.plot(near, [y] * len(near), "o", color=PALETTE[2], markersize=4.2, zorder=3, **_RIM)
        if len(near) < len(medians):
            ax.plot(FARTHEST, y, ">", color=PALETTE[2], markersize=5.5, zorder=3, **_RIM)
    if any(row.violations for row in rows):
        ax.plot(max(least, 0.1), y, "X", color=PALETTE[5], markersize=9, zorder=6, **_RIM)
    elif math.isfinite(least):
        ax.plot(least, y, "s", color=PALETTE[0], markersize=5.0, zorder=4, **_RIM)
    ratios = [row.certificate for row in rows if row.certificate is not None]
    if ratios:
        ax.plot(
            min(*ratios, FARTHEST), y, "D", markerfacecolor="none", markeredgecolor=PALETTE[5], markersize=8.5, zorder=5
        )


def _legend(ax: Axes, rows: Sequence[Row]) -> list[Any]:
    handles: list[Any] = [
        ax.plot([], [], "s", color=PALETTE[0], label="smallest found", **_RIM)[0],
        ax.plot([], [], "o", color=PALETTE[2], label="median of a family (arrow: beyond)", **_RIM)[0],
        ax.plot([], [], color=PALETTE[6], linewidth=4.0, label="from family to family")[0],
    ]
    if any(row.certificate is not None for row in rows):
        look = {"markerfacecolor": "none", "markeredgecolor": PALETTE[5], "markersize": 8.5}
        handles.append(ax.plot([], [], "D", label="over the exact worst case, smallest", **look)[0])
    if any(row.violations for row in rows):
        handles.append(ax.plot([], [], "X", color=PALETTE[5], markersize=9, label="broken", **_RIM)[0])
    return handles


def _least(rows: Sequence[Row]) -> float:
    return min(min(row.smallest, row.searched) for row in rows)


def _medians(rows: Sequence[Row]) -> float:
    return float(np.median([row.median for row in rows]))


def _attained(certificate: Certificate) -> float:
    """The criterion of the worst case in the engine, or in numpy where the engine lacks the method."""
    try:
        return replay(certificate).attained
    except ConfigError:
        return worst_case(certificate).measured()
    except MixingError:
        return math.nan


def _worst_on_the_way(certificate: Certificate) -> np.ndarray:
    try:
        return _path(worst_case(certificate))
    except MixingError:
        return np.zeros(0)


def _path(member: Any) -> np.ndarray:
    """The criterion of one run after 1 to K steps."""
    every = range(1, member.setting.steps + 1)
    if member.setting.criterion == "rate":
        return np.array([replace(member, setting=replace(member.setting, steps=k)).measured() for k in every])
    run = member.run()
    return np.array([member.measured(run[: k + 1]) for k in every])


def _scale(ax: Axes, shown: np.ndarray, samples: np.ndarray) -> None:
    """Logarithmic where the curves that matter span enough; random runs may leave at the bottom."""
    finite = shown[np.isfinite(shown) & (shown > 0)]
    if not len(finite):
        return
    low, top = float(finite.min()), float(finite.max())
    middle = float(np.median(samples[samples > 0])) if (samples > 0).any() else low
    if top / min(low, middle) > 8.0:
        ax.set_yscale("log")
        ax.set_ylim(max(0.5 * min(low, middle), 1e-3 * low), 1.4 * top)
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_locator(LogLocator(subs=(2.0, 5.0)))
        ax.yaxis.set_minor_formatter("{x:g}" if top / low < 100.0 else NullFormatter())
    else:
        ax.set_ylim(0.0, 1.08 * top)


def _title(of: Setting) -> str:
    if isinstance(of.mixing, tuple):
        low, high = of.mixing
        mixing = f"contraction {high:g}" if low == -high else f"eigenvalues in [{low:g}, {high:g}]"
        mixing += ", another W at every exchange" if of.time_varying else ""
    else:
        mixing = f"{of.mixing.name}, {of.mixing.size} workers"
    functions = f"R {of.lipschitz:g}" if of.lipschitz is not None else f"L {of.smoothness:g}, µ {of.convexity:g}"
    order = f" {of.order}" if of.method == "dsgd" else ""
    return f"{of.method}{order}, {mixing}, lr {of.lr:.3g}, {functions}"


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
