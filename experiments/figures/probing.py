"""The figures of `dissensus probe`: whatever the instruments have drawn, one file each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from dissensus.experiments.errors import ConfigError
from dissensus.experiments.figures.graph_modes import mode_figure
from dissensus.experiments.figures.landscape import plane_figure, slice_figure
from dissensus.experiments.figures.spectrum import density_figure
from dissensus.experiments.figures.style import save
from dissensus.experiments.figures.training import run_tracks, training_figure
from dissensus.experiments.instruments import Bench
from dissensus.probes.density import Density

_HANDFUL = 5.5
_PLANES = {"plane": "Loss over two random directions", "workers-plane": "Loss where the workers differ most"}


def probe_figures(bench: Bench, folder: Path, suffix: str = ".png") -> list[Path]:
    """Writes every figure that there is something for, and returns their paths."""
    figures = dict(drawn_figures(bench))
    if not figures:
        raise ConfigError("nothing that was measured is a figure: ask for --what slice, plane, modes or density")
    for name, figure in figures.items():
        save(figure, Path(folder) / f"{name}{suffix}")
    return [Path(folder) / f"{name}{suffix}" for name in figures]


def drawn_figures(bench: Bench) -> list[tuple[str, Figure]]:
    """The figures of what was measured, by name."""
    drawn, figures = bench.drawn, []
    if "density" in drawn:
        figures.append(("density", density_of(drawn["density"])))
    if "slice" in drawn:
        figures.append(("slice", _slices(bench, drawn["slice"])))
    for name, title in _PLANES.items():
        if name in drawn:
            found = drawn[name]
            figures.append((name, plane_figure(found.axes, found.values, found.labels, found.marks, title)))
    if "modes" in drawn:
        found = drawn["modes"]
        static = all(abs(abs(p.mode.eigenvalue) - p.mode.factor) < 1e-9 and p.mode.eigenvalue.imag == 0 for p in found)
        figure = mode_figure(
            [part.mode.eigenvalue.real if static else part.mode.factor for part in found],
            [part.mode.energy for part in found],
            [part.rayleigh for part in found],
            [part.mode.multiplicity for part in found],
            bench.trace.value / bench.operator.size,
            axis="eigenvalue λ of the round" if static else "what one step leaves of the mode, |λ|",
        )
        figures.append(("modes", figure))
    tracks = {} if bench.subject.run is None else run_tracks(bench.subject.run)
    if tracks:
        figures.append(("training", training_figure(tracks, {"Normalised alignment": {"no preference": 1.0}})))
    return figures


def density_of(found: Density, share: float = 1 / 300) -> Figure:
    """The figure of a spectral density: everything smoothed by a share of the whole range, what stands apart as lines.

    A single eigenvalue stands apart where at most a handful of eigenvalues lie within six widths of it.
    """
    width = share * float(np.ptp(found.nodes)) or 1e-3 * max(abs(float(found.nodes[0])), 1e-12)
    curve = found.curve(1500, width=width, lines=True)
    low, high = (np.maximum(curve["density"] + side * 2 * np.nan_to_num(curve["stderr"]), 0) for side in (-1, 1))
    near = np.abs(found.nodes[None, :] - found.lines[:, None]) < 6 * width
    apart = found.lines[near @ found.weights * found.size < _HANDFUL]
    return density_figure(curve["x"], curve["density"], apart.tolist(), (low, high), width=width, size=found.size)


def _slices(bench: Bench, found: dict[str, Any]) -> Figure:
    shown, curved = {}, {}
    for one in found.values():
        (direction,), (offsets,), label = one.directions, one.axes, one.labels[0]
        length = float(torch.linalg.vector_norm(direction))
        unit = (direction / length).to(bench.operator.dtype)
        shown[label] = (offsets * length, one.values)
        curved[label] = float(unit.double() @ bench.operator.matvec(unit).double())
    return slice_figure(shown, curved)
