"""Curvature over training: eigenvalues, trace and alignment with the intervals of their estimators, one panel each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dissensus.experiments.errors import ConfigError
from dissensus.experiments.figures.style import MARKERS, PALETTE, house_style, new_figure
from dissensus.experiments.records import Run

PANELS: Mapping[str, str] = {
    "Hessian trace": "hessian_trace",
    "Largest eigenvalue": "top_eigenvalue",
    "Normalised alignment": "alignment_normalised",
}
"""What is drawn from the records of a run, by the title of its panel."""


@dataclass(frozen=True, eq=False)
class Track:
    """One quantity over the steps, each value with the ends of its interval (nan: not known)."""

    steps: np.ndarray
    values: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> Track:
        """From records with `step`, `value` and perhaps `interval`."""
        kept = sorted((row for row in rows if row.get("value") is not None), key=lambda row: row["step"])
        ends = [[_end(row, side) for row in kept] for side in (0, 1)]
        return cls(np.array([r["step"] for r in kept]), np.array([r["value"] for r in kept]), *map(np.array, ends))


def training_figure(
    panels: Mapping[str, Mapping[str, Track]], marks: Mapping[str, Mapping[str, float]] | None = None
) -> Figure:
    """A panel per title with its tracks by label; bars are 95 % intervals, `marks` are level lines by title and label.

    A mark far above everything that was measured is left out: it would press the rest to the bottom.
    """
    shown = {title: tracks for title, tracks in panels.items() if any(len(track.steps) for track in tracks.values())}
    if not shown:
        raise ConfigError("there is nothing to draw over training: no quantity was measured at any step")
    with house_style():
        figure = new_figure(max(4.2 * len(shown), 5.5), 3.5)
        axes: list[Axes] = list(np.atleast_1d(figure.subplots(1, len(shown), sharex=True)))
        for ax, (title, tracks) in zip(axes, shown.items(), strict=True):
            for at, (label, track) in enumerate(tracks.items()):
                _draw(ax, track, at, label)
            _scale(ax, [track for track in tracks.values() if len(track.steps)])
            for label, level in (marks or {}).get(title, {}).items():
                if level <= 3 * ax.get_ylim()[1]:
                    ax.axhline(level, color="#222222", linewidth=0.9, linestyle=(0, (4, 2)), label=label)
            if len(tracks) > 1 or (marks or {}).get(title):
                ax.legend()
            ax.set(title=title, xlabel="step")
    return figure


def run_tracks(run: Run) -> dict[str, dict[str, Track]]:
    """What a run's records hold, by panel: of the consensus, and of single workers where they were looked at."""
    panels: dict[str, dict[str, Track]] = {}
    for title, name in PANELS.items():
        by_label: dict[str, list[Mapping[str, Any]]] = {}
        for row in (*run.probes, *run.metrics):
            if row["name"] == name:
                label = f"worker {row['worker']}" if "worker" in row else "consensus"
                by_label.setdefault(label, []).append(row)
        if by_label:
            panels[title] = {label: Track.of(rows) for label, rows in by_label.items()}
    return panels


def _draw(ax: Axes, track: Track, at: int, label: str) -> None:
    below, above = (np.nan_to_num(np.abs(end - track.values)) for end in (track.low, track.high))
    ax.errorbar(
        track.steps, track.values, yerr=[below, above], label=label, capsize=2, elinewidth=0.9, markersize=4.5,
        color=PALETTE[(2 + at) % len(PALETTE)], marker=MARKERS[(1 + at) % len(MARKERS)],
    )  # fmt: skip


def _scale(ax: Axes, tracks: list[Track]) -> None:
    """From zero on where all is positive; on a log axis where it spans more than a factor of fifty."""
    values = np.concatenate([track.values for track in tracks])
    if (values > 0).all():
        if values.max() > 50 * values.min():
            ax.set_yscale("log")
        else:
            ax.set_ylim(0, 1.1 * max(values.max(), *(np.nanmax([track.high, track.values]) for track in tracks)))


def _end(row: Mapping[str, Any], side: int) -> float:
    interval = row.get("interval")
    return float("nan") if interval is None or interval[side] is None else interval[side]
