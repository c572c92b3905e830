r"""Who does what when: all-reduce above, a decentralized schedule below, from one table of computing times.

With $c$ computing, $e$ ended and $r_i = \max_{j\in S_i} e_j$ ready (of $e + c$ for atc), a step that exchanges is

| | computing | communicating | waiting |
|---|---|---|---|
| awc | $e$ to $e + c$ | beside it, $r$ to $r + d$ | $e + c$ to the end |
| atc | $e$ to $e + c$ | $r$ to the end | $e + c$ to $r$ |
| cta | $r + d$ to the end | $r$ to $r + d$ | $e$ to $r$ |
| all-reduce | $e$ to $e + c$ | $\max(e + c)$ to the end; beside it by buckets, if overlapped | $e + c$ until then |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from dissensus.experiments.errors import ConfigError
from dissensus.experiments.figures.style import PALETTE, house_style, new_figure
from dissensus.theory.runtime import Compute, Order, Round, all_reduce_times, finish_times

Kind = Literal["computing", "communicating", "waiting"]
LOOKS: dict[Kind, dict[str, Any]] = {
    "computing": {"facecolor": PALETTE[2], "edgecolor": PALETTE[2]},
    "communicating": {"facecolor": PALETTE[1], "edgecolor": "#5c4000", "hatch": "//////"},
    "waiting": {"facecolor": "#ededed", "edgecolor": "#b5b5b5"},
}
"""Dark, middle and hatched, light: told apart in grey as well."""
_MAIN, _BESIDE, _ALONE = (-0.40, 0.52), (0.16, 0.24), (-0.38, 0.76)
"""Where the bars of a worker lie, those of what goes on beside, and all if nothing does: upper edge and height."""
_DRAWN = 64
"""The most workers whose bars can still be told apart."""
_NUMBERED = 0.022
"""The share of the axis that a bar must have for a number in it."""


@dataclass(frozen=True, eq=False)
class Bars:
    """From when to when every worker does one kind of thing; what takes no time is not drawn."""

    kind: Kind
    begins: np.ndarray
    """(steps or pieces, n)."""
    ends: np.ndarray
    beside: bool = False
    """Whether it goes on under what the worker does otherwise."""


@dataclass(frozen=True, eq=False)
class Timeline:
    """The same computing times under all-reduce and under a schedule."""

    computed: np.ndarray
    """(K, n), what both have drawn."""
    all_reduce: np.ndarray
    """(K + 1,), when all have ended each step."""
    schedule: np.ndarray
    """(K + 1, n), when each has."""
    above: tuple[Bars, ...]
    below: tuple[Bars, ...]
    name: str

    @property
    def earlier(self) -> float:
        """By how much the last worker of the schedule has ended before all-reduce."""
        return float(self.all_reduce[-1] - self.schedule[-1].max())


def timeline(
    rounds: Sequence[Round],
    compute: Compute,
    communication: float,
    *,
    order: Order = "awc",
    every: int = 1,
    begins: float | None = None,
    buckets: int = 1,
    steps: int = 5,
    seed: int = 0,
    name: str = "decentralized",
) -> Timeline:
    """Draws computing times once and lets both run on them.

    Args:
        rounds: one period of the schedule, delays in the unit of computing times.
        compute: where the times come from.
        communication: of one all-reduce, in the same unit.
        order: of the schedule, as in `finish_times`.
        every: as in `finish_times`.
        begins: of all-reduce, as in `all_reduce_times`.
        buckets: as in `all_reduce_times`.
        steps: how many iterations.
        seed: of the times.
        name: of the schedule.
    """
    if not rounds or steps < 1:
        raise ConfigError(f"a timeline needs rounds and at least one step, got {len(rounds)} and {steps}")
    computed = compute.at(np.random.default_rng(seed).standard_normal((steps, rounds[0].size)))
    together = all_reduce_times(communication, computed, begins=begins, buckets=buckets)
    apart = finish_times(rounds, computed, order=order, every=every)
    above = _of_all_reduce(together, communication, computed, begins, buckets)
    below = _of_schedule(apart, rounds, computed, order, every)
    return Timeline(computed, together, apart, above, below, f"{name}, {order}")


def timeline_figure(found: Timeline, *, unit: str = "mean computing times") -> Figure:
    """All-reduce above, the schedule below, on one axis of time; the title says by how much which is done first."""
    n = found.computed.shape[1]
    if n > _DRAWN:
        raise ConfigError(f"a timeline of {n} workers would show nothing: draw it with at most {_DRAWN} workers")
    main = _MAIN if any(bars.beside for bars in (*found.above, *found.below)) else _ALONE
    last = float(max(found.all_reduce[-1], found.schedule[-1].max()))
    with house_style():
        figure = new_figure(11.0, 1.9 + 2 * (0.34 if n <= 16 else 0.2) * n)
        panels: list[Axes] = list(figure.subplots(2, 1, sharex=True))
        ended = np.repeat(found.all_reduce[:, None], n, axis=1), found.schedule
        names = "all-reduce", found.name
        for ax, bars, ends, name in zip(panels, (found.above, found.below), ended, names, strict=True):
            _draw(ax, bars, ends, last, main)
            done = float(ends[-1].max())
            ax.axvline(done, color="#222222", linewidth=1.2, linestyle=(0, (4, 2)), zorder=5)
            ax.set(title=f"{name}: all done after {done:.2f}", ylabel="worker", ylim=(n - 0.4, -0.6))
            ax.set_yticks(range(n) if n <= 16 else range(0, n, 4))
            ax.grid(visible=False, axis="y")
        _gap(panels[1], float(found.schedule[-1].max()), float(found.all_reduce[-1]), last)
        panels[1].set(xlabel=f"time ({unit})", xlim=(0.0, 1.02 * last))
        figure.suptitle(_title(found, unit), x=0.01, ha="left", fontsize=11, fontweight="bold")
        figure.legend(handles=_legend(found), loc="outside lower center", ncols=4, handlelength=2.4)
    return figure


def _of_all_reduce(
    ended: np.ndarray, communication: float, computed: np.ndarray, begins: float | None, buckets: int
) -> tuple[Bars, ...]:
    shape, start, slowest = computed.shape, ended[:-1, None], computed.max(axis=1)[:, None]
    end, done = np.broadcast_to(ended[1:, None], shape), start + computed
    computing = Bars("computing", np.broadcast_to(start, shape), done)
    if begins is None:
        meet = np.broadcast_to(start + slowest, shape)
        return computing, Bars("waiting", done, meet), Bars("communicating", meet, end)
    pieces, busy_until = [], start
    for b in range(1, buckets + 1):
        sent = np.maximum(busy_until, start + (begins + (1 - begins) * b / buckets) * slowest)
        busy_until = sent + communication / buckets
        pieces.append((np.broadcast_to(sent, shape), np.broadcast_to(busy_until, shape)))
    sends, arrives = (np.concatenate(part) for part in zip(*pieces, strict=True))
    return computing, Bars("waiting", done, end), Bars("communicating", sends, arrives, beside=True)


def _of_schedule(
    ended: np.ndarray, rounds: Sequence[Round], computed: np.ndarray, order: Order, every: int
) -> tuple[Bars, ...]:
    now, end, ready, delay = ended[:-1], ended[1:], np.empty_like(computed), np.zeros_like(computed)
    for k, c in enumerate(computed):
        if (k + 1) % every:
            ready[k] = now[k] + c if order == "atc" else now[k]
        else:
            this = rounds[k // every % len(rounds)]
            ready[k], delay[k] = this.latest(now[k] + c if order == "atc" else now[k]), this.delay
    sent = ready + delay
    if order == "awc":
        done = now + computed
        beside = Bars("communicating", ready, sent, beside=True)
        return Bars("computing", now, done), Bars("waiting", done, end), beside
    if order == "atc":
        done = now + computed
        return Bars("computing", now, done), Bars("waiting", done, ready), Bars("communicating", ready, end)
    return Bars("waiting", now, ready), Bars("communicating", ready, sent), Bars("computing", sent, end)


def _draw(ax: Axes, drawn: Sequence[Bars], ended: np.ndarray, last: float, main: tuple[float, float]) -> None:
    for bars in drawn:
        at, worker = np.nonzero(bars.ends > bars.begins)
        begins, ends = bars.begins[at, worker], bars.ends[at, worker]
        top, height = _BESIDE if bars.beside else main
        ax.barh(
            worker + top,
            ends - begins,
            height,
            begins,
            align="edge",
            linewidth=0.5,
            label=bars.kind,
            **LOOKS[bars.kind],
        )
        for step, i, middle, width in zip(at, worker, (begins + ends) / 2, ends - begins, strict=True):
            if bars.kind == "computing" and width > _NUMBERED * last:
                ax.text(middle, i + top + height / 2 + 0.02, f"{step + 1}", color="white", fontsize=7.5, ha="center",
                        va="center")  # fmt: skip
    worker = np.broadcast_to(np.arange(ended.shape[1]), ended[1:].shape)
    ax.vlines(ended[1:].ravel(), worker.ravel() - 0.46, worker.ravel() + 0.46, color="#111111", linewidth=1.5, zorder=4)


def _gap(ax: Axes, done: float, other: float, last: float) -> None:
    """An arrow over the time that is won, with the number where there is room for it."""
    ax.axvline(other, color="#888888", linewidth=1.0, linestyle=(0, (1, 1.5)), zorder=0)
    if other - done < 0.02 * last:
        return
    middle = ax.get_ylim()[0] / 2
    ax.annotate("", (done, middle), (other, middle), arrowprops={"arrowstyle": "<->", "color": "#222222"})
    if other - done > 0.06 * last:
        ax.text((done + other) / 2, middle - 0.12, f"{other - done:.2f}", ha="center", va="bottom", fontsize=9.5)


def _title(found: Timeline, unit: str) -> str:
    (steps, n), earlier = found.computed.shape, found.earlier
    whole = float(found.all_reduce[-1])
    said = f"{abs(earlier):.2f} {unit} ({100 * abs(earlier) / whole:.0f} %) {'earlier' if earlier > 0 else 'later'}"
    said = said if abs(earlier) > 1e-9 * whole else "at the same time"
    iterations = f"{steps} iteration{'s' if steps > 1 else ''} of {n} worker{'s' if n > 1 else ''}"
    return f"{iterations}: the decentralized schedule has finished {said}"


def _legend(found: Timeline) -> list[Any]:
    kinds: list[Any] = [Patch(label=kind, linewidth=0.5, **look) for kind, look in LOOKS.items()]
    if any(bars.beside for bars in (*found.above, *found.below)):
        kinds[1].set_label("communicating (thin: beside computing)")
    kinds[0].set_label("computing, number of the iteration")
    return [*kinds, Line2D([], [], color="#111111", linewidth=1.5, label="end of an iteration")]
