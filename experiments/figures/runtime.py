r"""How many times as fast as all-reduce a schedule is: over $\gamma$ and $\sigma$, and against the number of workers.

All-reduce is exact (`all_reduce_pace`), the schedule simulated (`pace`), the hatched area proven (`Rivals`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Polygon
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator
from scipy.interpolate import RegularGridInterpolator

from dissensus.experiments.errors import ConfigError
from dissensus.experiments.figures.style import house_style, looks, new_figure
from dissensus.theory.runtime import LogNormal, Order, pace
from dissensus.theory.runtime.closed_forms import all_reduce_pace
from dissensus.theory.runtime.compute import SHARES, longest
from dissensus.theory.runtime.links import even_rounds
from dissensus.theory.runtime.recursion import all_reduce_step
from dissensus.theory.runtime.regime import Rivals
from dissensus.theory.topology import Topology

SPEEDUP = "speed-up (time of all-reduce / time of the schedule)"
ERRORS = 2.0
"""Standard errors to each side that a band shows."""
GAMMAS, DEVIATIONS = tuple(np.geomspace(0.03, 30.0, 193)), tuple(np.linspace(0.0, 0.6, 25))
_HALO = [withStroke(linewidth=3.6, foreground="white")]


Intervals = tuple[tuple[float, float], ...]
Proven = tuple[tuple[float, Intervals], ...]


class Mark(NamedTuple):
    """A point of the surface that has a name."""

    gamma: float
    deviation: float
    label: str


@dataclass(frozen=True, eq=False)
class SpeedupSurface:
    """The speed-up over communication and noise, everything else fixed."""

    gammas: np.ndarray
    deviations: np.ndarray
    value: np.ndarray
    """(deviations, gammas)."""
    standard_error: np.ndarray
    margin: float
    guaranteed: Proven
    """Deviations, and the intervals of gamma in which the speed-up is 1 + margin for certain."""
    title: str

    def at(self, gamma: float, deviation: float) -> float:
        """Linear between the points of the grid; NaN outside."""
        grid = RegularGridInterpolator((self.deviations, self.gammas), self.value, bounds_error=False)
        return float(grid((deviation, gamma)))


@dataclass(frozen=True, eq=False)
class SpeedupBySize:
    """The speed-up against the number of workers, one row for each deviation."""

    sizes: tuple[int, ...]
    deviations: tuple[float, ...]
    value: np.ndarray
    """(deviations, sizes)."""
    standard_error: np.ndarray
    title: str


def speedup_surface(
    topology: Topology,
    omega: float,
    *,
    gammas: Sequence[float] | np.ndarray = GAMMAS,
    deviations: Sequence[float] | np.ndarray = DEVIATIONS,
    margin: float = 0.2,
    strips: int = 32,
    order: Order = "awc",
    begins: float | None = None,
    buckets: int = 1,
    iterations: int = 1000,
    seed: int = 0,
) -> SpeedupSurface:
    """Simulates the schedule over the whole grid and asks the theorem where it is certain.

    Args:
        topology: every exchange of which takes `omega` times as long as an all-reduce.
        omega: decentralized over all-reduce communication.
        gammas: all-reduce communication over computing, increasing.
        deviations: of log-normal computing times, increasing.
        margin: how much faster is asked of the guarantee.
        strips: of how many the proven area is made up at most; each costs a second, 0 leaves it out.
        order: of the schedule.
        begins: of all-reduce, as in `all_reduce_times`.
        buckets: as in `all_reduce_times`.
        iterations: of the simulation, as in `pace`.
        seed: of the simulation.
    """
    g, s = np.asarray(gammas, dtype=float), np.asarray(deviations, dtype=float)
    if min(len(g), len(s)) < 2 or not (g[0] > 0 and (np.diff(g) > 0).all() and (np.diff(s) > 0).all()):
        raise ConfigError("a surface needs two or more gammas and deviations, both increasing, and gammas above 0")
    rounds = even_rounds(topology, 1.0)
    rivals = Rivals(omega, topology.size, max(one.heard for one in rounds), order, begins, buckets)
    computes = [LogNormal(float(one)) for one in s]
    found = pace(rounds, computes, factors=(omega * g).tolist(), order=order, iterations=iterations, seed=seed)
    slowest = [longest(c, topology.size) for c in computes]  # once for all gammas, unlike all_reduce_pace
    together = np.array([[SHARES @ all_reduce_step(c, x, begins, buckets) for x in g] for c in slowest])
    value = together / found.value
    levels = np.linspace(s[0], s[-1], strips + 1) if strips else s[:0]
    guaranteed = _refined(lambda d: tuple(rivals.guaranteed_regime(margin, LogNormal(d))), levels.tolist(), g)
    title = (
        f"{topology.name}, {topology.size} workers, {order}, ω = {omega:.3g}, all-reduce {_overlap(begins, buckets)}"
    )
    return SpeedupSurface(g, s, value, value * found.standard_error / found.value, margin, guaranteed, title)


def surface_figure(surface: SpeedupSurface, mark: Mark | None = None) -> Figure:
    """Filled contours, the break-even line, where the margin is reached in simulation and where it is proven."""
    with house_style():
        figure = new_figure(8.6, 5.4)
        ax = figure.subplots()
        g, s, value = surface.gammas, surface.deviations, surface.value
        low, high = float(value.min()), float(value.max())
        levels = MaxNLocator(10, steps=[1, 2, 2.5, 5, 10]).tick_values(low, max(high, low + 1e-3))
        filled = ax.contourf(g, s, value, levels=levels, cmap="cividis")
        ax.contour(g, s, value, levels=levels[1:-1], colors="white", linewidths=0.5)
        goal = 1 + surface.margin
        handles: list[Any] = []
        if low < 1 < high:
            line = ax.contour(g, s, value, levels=[1.0], colors="#000000", linewidths=2.2)
            line.set(label="break-even", path_effects=_HALO)
            handles.append(Line2D([], [], color="#000000", linewidth=2.2, label="break-even: speed-up 1"))
        else:
            said = "faster" if low >= 1 else "slower"
            handles.append(Line2D([], [], linestyle="none", label=f"no break-even: {said} everywhere here"))
        if low < goal < high:
            dashed: dict[str, Any] = {"colors": "#000000", "linestyles": [(0, (4, 2))], "linewidths": 1.3}
            ax.contour(g, s, value, levels=[goal], **dashed).set(path_effects=_HALO)
            handles.append(
                Line2D([], [], color="#000000", linewidth=1.3, linestyle=(0, (4, 2)), label=f"simulated: {goal:g}×")
            )
        if _guarantee(ax, surface):
            handles.append(Patch(facecolor="none", edgecolor="#222222", hatch="..", label=f"proven: ≥ {goal:g}×"))
        if mark is not None:
            handles.append(_point(ax, surface, mark))
        bar = figure.colorbar(filled, ax=ax, label=SPEEDUP, format="%.4g×")
        bar.outline.set_visible(False)  # type: ignore[operator]
        ax.grid(visible=False)
        ax.set(
            title="Speed-up over all-reduce",
            xlabel="γ: communication of all-reduce / mean computing time (ratio)",
            ylabel="σ: deviation of computing times / their mean (ratio)",
            xscale="log",
            xlim=(g[0], g[-1]),
            ylim=(s[0], s[-1]),
        )
        ax.xaxis.set_major_formatter("{x:g}")
        figure.suptitle(surface.title, x=0.01, ha="left", fontsize=9.5, color="#444444")
        figure.legend(handles=handles, loc="outside lower center", ncols=3 if len(handles) < 4 else 2, handlelength=2.6)
    return figure


def speedup_by_size(
    schedule: Callable[[int], Topology],
    omega: float | Callable[[int], float],
    gamma: float,
    *,
    deviations: Sequence[float] = (0.0, 0.05, 0.1, 0.2, 0.4),
    sizes: Sequence[int] = tuple(2**k for k in range(1, 11)),
    order: Order = "awc",
    begins: float | None = None,
    buckets: int = 1,
    iterations: int = 1000,
    seed: int = 0,
) -> SpeedupBySize:
    """The speed-up for every number of workers at one gamma; `omega` may depend on that number."""
    if not sizes or not deviations:
        raise ConfigError("a speed-up against the number of workers needs at least one size and one deviation")
    computes = [LogNormal(float(one)) for one in deviations]
    graphs = [schedule(n) for n in sizes]
    shares = [float(omega(n) if callable(omega) else omega) for n in sizes]
    values, errors = [], []
    for n, graph, share in zip(sizes, graphs, shares, strict=True):
        found = pace(even_rounds(graph, share * gamma), computes, order=order, iterations=iterations, seed=seed)
        together = np.array([all_reduce_pace(c, n, gamma, begins=begins, buckets=buckets) for c in computes])
        values.append(together / found.value[:, 0])
        errors.append(values[-1] * found.standard_error[:, 0] / found.value[:, 0])
    said = " to ".join(dict.fromkeys(f"{share:.3g}" for share in (shares[0], shares[-1])))
    title = f"{graphs[0].name}, {order}, γ = {gamma:g}, ω = {said}, all-reduce {_overlap(begins, buckets)}"
    return SpeedupBySize(tuple(sizes), tuple(deviations), np.array(values).T, np.array(errors).T, title)


def size_figure(found: SpeedupBySize) -> Figure:
    """One line for each deviation, with a band of two standard errors of the simulation to each side."""
    with house_style():
        figure = new_figure(8.6, 4.6)
        ax = figure.subplots()
        ax.axhline(1.0, color="#222222", linewidth=1.1, linestyle=(0, (5, 2)), label="break-even")
        arms = {
            f"σ = {d:g}": (v, e) for d, v, e in zip(found.deviations, found.value, found.standard_error, strict=True)
        }
        for label, (value, error), look in looks(arms):
            ax.fill_between(
                found.sizes, value - ERRORS * error, value + ERRORS * error, color=look["color"], alpha=0.3, linewidth=0
            )
            ax.plot(found.sizes, value, label=label, markeredgecolor="white", markeredgewidth=0.6, **look)
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_locator(FixedLocator(list(found.sizes)))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_major_formatter("{x:g}×")
        figure.suptitle(found.title, x=0.01, ha="left", fontsize=9.5, color="#444444")
        ax.set(title="Speed-up over all-reduce", xlabel="workers n (number)", ylabel="speed-up (all-reduce / schedule)")
        ax.legend(
            loc="center left", bbox_to_anchor=(1.0, 0.5), reverse=True, alignment="left",
            title=f"deviation / mean\nof computing times\n(band: ± {ERRORS:g} std. errors)", title_fontsize=9,
        )  # fmt: skip
    return figure


def _guarantee(ax: Axes, surface: SpeedupSurface) -> bool:
    """Draws where the margin is proven, if anywhere: one area for every run of intervals that meet."""
    g = surface.gammas
    areas: list[list[tuple[float, float, float]]] = []
    before: list[int] = []
    for deviation, intervals in surface.guaranteed:
        now: list[int] = []
        for low, high in intervals:
            if high <= g[0] or low >= g[-1]:
                continue
            from_, to = max(low, g[0]), min(high, g[-1])
            joined = next(
                (a for a in before if a not in now and from_ <= areas[a][-1][2] and areas[a][-1][1] <= to), None
            )
            if joined is None:
                joined = len(areas)
                areas.append([])
            areas[joined].append((deviation, from_, to))
            now.append(joined)
        before = now
    for area in areas:
        edge = [(low, d) for d, low, _ in area] + [(high, d) for d, _, high in reversed(area)]
        ax.add_patch(
            Polygon(edge, facecolor="none", edgecolor="#222222", hatch="..", linewidth=1.2, label="guaranteed")
        )
    return bool(areas)


def _point(ax: Axes, surface: SpeedupSurface, mark: Mark) -> Line2D:
    here = surface.at(mark.gamma, mark.deviation)
    if not np.isfinite(here):
        raise ConfigError(
            f"the point {mark.label!r} at gamma {mark.gamma:g} and deviation {mark.deviation:g} is not on the surface: "
            f"it has gamma {surface.gammas[0]:g} to {surface.gammas[-1]:g} and "
            f"deviation {surface.deviations[0]:g} to {surface.deviations[-1]:g}"
        )
    look: dict[str, Any] = {"color": "white", "markeredgecolor": "#000000", "markeredgewidth": 2.2, "markersize": 9}
    return ax.plot(
        mark.gamma, mark.deviation, "o", clip_on=False, zorder=6, label=f"{mark.label}: {here:.2f}×", **look
    )[0]


def _refined(regime: Callable[[float], Intervals], levels: list[float], gammas: np.ndarray) -> Proven:
    """The regime at some of the levels: at all where its ends in sight move, at few where they stay."""
    found: dict[int, Intervals] = {}
    near = np.log(gammas[-1] / gammas[0]) / 50
    spans = [(0, len(levels) - 1)] if levels else []
    while spans:
        a, b = spans.pop()
        for k in (a, b):
            found[k] = found[k] if k in found else regime(levels[k])
        before, after = (np.log(np.clip(np.reshape(found[k], (-1, 2)), gammas[0], gammas[-1])) for k in (a, b))
        moves = before.shape != after.shape or np.abs(before - after).max(initial=0.0) > near
        if b - a > 1 and (moves or 4 * (b - a) > len(levels)):
            spans += [(a, (a + b) // 2), ((a + b) // 2, b)]
    return tuple((levels[k], found[k]) for k in sorted(found))


def _overlap(begins: float | None, buckets: int) -> str:
    if begins is None:
        return "after computing"
    return f"from {100 * begins:.0f} % of computing on" + (f" in {buckets} buckets" if buckets > 1 else "")
