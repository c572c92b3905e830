"""What can be asked of a subject, by name: each instrument reads the probes and says its result as plain data.

The Hessian is built once and its trace and eigenvectors are shared: `eig` before `alignment` costs nothing twice. What
is drawn (slices, densities, modes) is handed on as it is, for figures.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from dissensus.experiments.errors import ConfigError
from dissensus.experiments.subject import Subject
from dissensus.probes.alignment import alignment, captured, covariance_envelope
from dissensus.probes.curvature import Curvature
from dissensus.probes.density import spectral_density
from dissensus.probes.disagreement import by_parameter, consensus_distance
from dissensus.probes.dispersion import norm_dispersion
from dissensus.probes.eigen import Eigenpair, top_eigenvalues
from dissensus.probes.envelope import envelope
from dissensus.probes.estimate import Estimate
from dissensus.probes.heterogeneity import heterogeneity
from dissensus.probes.modes import by_mode, curvature_by_mode
from dissensus.probes.noise import noise_measure
from dissensus.probes.sharpness import sharpness
from dissensus.probes.slices import Slice, loss_slice, principal_directions
from dissensus.probes.subspace import disagreement_angles
from dissensus.probes.trace import hessian_trace, layer_traces
from dissensus.probes.untouched import Mode
from dissensus.theory.errors import nearest


@dataclass(frozen=True)
class Settings:
    """How precisely, where and how far to look."""

    rtol: float = 0.05
    max_matvecs: int = 2000
    k: int = 5
    """Eigenpairs."""
    radius: float = 0.05
    m: int | None = None
    steps: int = 20
    points: int = 25
    reach: float = 1.0
    noise_batches: int = 64
    parameters: tuple[str, ...] = ()
    mode: Mode = "eval"
    dtype: torch.dtype | None = None
    seed: int = 0


@dataclass
class Bench:
    """A subject under the instruments, with what they share."""

    subject: Subject
    settings: Settings
    drawn: dict[str, Any] = field(default_factory=dict)
    """What figures are made of, by instrument."""

    @cached_property
    def common(self) -> dict[str, Any]:
        """The keywords of every probe."""
        s = self.settings
        return {"parameters": s.parameters or None, "mode": s.mode, "dtype": s.dtype, "seed": s.seed}

    @cached_property
    def operator(self) -> Curvature:
        """The Hessian at the subject's point."""
        return Curvature(self.subject.model, self.subject.data.task.loss, self.subject.batches, **self.common)

    @cached_property
    def trace(self) -> Estimate:
        """The trace of the Hessian."""
        s = self.settings
        return hessian_trace(self.operator, rtol=s.rtol, max_matvecs=s.max_matvecs, seed=s.seed)

    @cached_property
    def pairs(self) -> list[Eigenpair]:
        """The top eigenpairs."""
        k = min(self.settings.k, self.operator.size)
        return top_eigenvalues(self.operator, k, max_matvecs=max(self.settings.max_matvecs, k), seed=self.settings.seed)

    def workers(self, what: str) -> Tensor:
        """The workers, or an error that says who needs them."""
        if self.subject.x is None:
            raise ConfigError(
                f"{what} is about several workers, {self.subject.name} is one model: give a run directory"
            )
        return self.subject.x


Instrument = Callable[[Bench], dict[str, Any]]
INSTRUMENTS: dict[str, tuple[str, Instrument]] = {}
"""Every instrument by name, with its line of help."""


def measure(subject: Subject, what: Sequence[str], settings: Settings | None = None) -> tuple[dict[str, Any], Bench]:
    """Asks for everything in `what`, in that order; returns plain data, and what figures are made of."""
    for name in what:
        if name not in INSTRUMENTS:
            raise ConfigError(f"unknown instrument {name!r}{nearest(name, INSTRUMENTS)}")
    bench = Bench(subject, settings or Settings())
    found: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    for name in dict.fromkeys(what):
        began = time.perf_counter()
        found[name] = INSTRUMENTS[name][1](bench)
        seconds[name] = round(time.perf_counter() - began, 3)
    return {**subject.facts(), **found, "seconds": seconds}, bench


def suited(subject: Subject) -> list[str]:
    """The instruments that this subject allows."""
    lacking = set()
    if subject.x is None or len(subject.x) < 2:
        lacking |= {"disagreement", "alignment", "envelope", "workers-plane"}
    if subject.topology is None:
        lacking |= {"modes"}
    if len(subject.shards) < 2:
        lacking |= {"heterogeneity"}
    return [name for name in INSTRUMENTS if name not in lacking]


def _instrument(name: str, summary: str) -> Callable[[Instrument], Instrument]:
    def add(read: Instrument) -> Instrument:
        INSTRUMENTS[name] = (summary, read)
        return read

    return add


@_instrument("trace", "the trace of the Hessian")
def _trace(bench: Bench) -> dict[str, Any]:
    return bench.trace.to_dict()


@_instrument("layers", "the trace of every parameter tensor's block")
def _layers(bench: Bench) -> dict[str, Any]:
    pieces = {name: shape.numel() for name, shape in bench.operator.landscape.shapes.items()}
    found = layer_traces(bench.operator, pieces, seed=bench.settings.seed)
    return {name: estimate.to_dict() for name, estimate in found.items()}


@_instrument("eig", "the largest eigenvalues of the Hessian")
def _eig(bench: Bench) -> dict[str, Any]:
    return {"pairs": [pair.to_dict() for pair in bench.pairs]}


@_instrument("density", "the spectral density of the Hessian, outlying eigenvalues as lines")
def _density(bench: Bench) -> dict[str, Any]:
    found = spectral_density(bench.operator, seed=bench.settings.seed)
    bench.drawn["density"] = found
    return found.to_dict()


@_instrument("sharpness", "the sharpness family, every measure by its name")
def _sharpness(bench: Bench) -> dict[str, Any]:
    s, subject = bench.settings, bench.subject
    found = sharpness(
        subject.model, subject.data.task.loss, subject.batches, radius=s.radius, m=s.m, steps=s.steps, x=subject.x,
        operator=bench.operator, rtol=s.rtol, **bench.common,
    )  # fmt: skip
    return {kind: estimate.to_dict() for kind, estimate in found.items()}


@_instrument("disagreement", "how far apart the workers are, in all and by parameter tensor")
def _disagreement(bench: Bench) -> dict[str, Any]:
    x, model = bench.workers("disagreement"), bench.subject.model
    return {
        **consensus_distance(x).to_dict(),
        "layers": {name: part.to_dict() for name, part in by_parameter(x, model).items()},
        "norm_dispersion": {name: part.to_dict() for name, part in norm_dispersion(x, model).items()},
    }


@_instrument("envelope", "what the disagreement costs: measured, and as half of tr(H Sigma)")
def _envelope(bench: Bench) -> dict[str, Any]:
    x, subject = bench.workers("envelope"), bench.subject
    keywords = {**bench.common, "dtype": torch.float64}
    measured = envelope(subject.model, subject.data.task.loss, subject.portions, x, **keywords)
    return {"measured": measured.to_dict(), "quadratic": covariance_envelope(bench.operator, x).to_dict()}


@_instrument("alignment", "curvature along the disagreement against curvature overall; share in the top eigenspace")
def _alignment(bench: Bench) -> dict[str, Any]:
    x = bench.workers("alignment")
    found = alignment(bench.operator, x, trace=bench.trace).to_dict()
    vectors = [pair.vector for pair in bench.pairs]
    found["captured"] = captured(x, vectors, bench.operator)
    found["captured_by_chance"] = len(vectors) / bench.operator.size
    if consensus_distance(x).xi > 0:
        found["angles"] = disagreement_angles(bench.operator.select(x), vectors).to_dict()
    return found


@_instrument("modes", "disagreement and curvature in every mode of the graph")
def _modes(bench: Bench) -> dict[str, Any]:
    x, graph = bench.workers("modes"), bench.subject.topology
    if graph is None:
        raise ConfigError(f"modes are those of a topology, {bench.subject.name} has none: give a run directory")
    found = curvature_by_mode(bench.operator, x, graph)
    bench.drawn["modes"] = found
    whole = by_mode(x, graph) if bench.settings.parameters else [part.mode for part in found]
    return {"modes": [part.to_dict() for part in found], "xi": sum(mode.energy for mode in whole)}


@_instrument("noise", "gradient noise of a worker's batch, and the noise scale")
def _noise(bench: Bench) -> dict[str, Any]:
    s, subject = bench.settings, bench.subject
    found = noise_measure(
        subject.model, subject.data.task.loss, subject.drawn(s.noise_batches, s.seed), batches=subject.batches,
        operator=bench.operator, **bench.common,
    )  # fmt: skip
    return found.to_dict()


@_instrument("heterogeneity", "how different the workers' own objectives are")
def _heterogeneity(bench: Bench) -> dict[str, Any]:
    subject = bench.subject
    if len(subject.shards) < 2:
        raise ConfigError(
            f"heterogeneity is about workers with data of their own, {subject.name} has none: see data.partition"
        )
    return heterogeneity(subject.model, subject.data.task.loss, subject.of_workers(), **bench.common).to_dict()


@_instrument("slice", "the loss along a random filter-normalised direction and along the top eigenvector")
def _slice(bench: Bench) -> dict[str, Any]:
    along = {"random": _cut(bench, 1, reach=bench.settings.reach)}
    top, random = bench.pairs[0], along["random"].values
    rise = max(float(max(random[0], random[-1]) - random[len(random) // 2]), 1e-6)
    reach = math.sqrt(2 * rise / abs(top.value)) if top.value else bench.settings.reach  # the parabola rises as much
    along["eigenvector"] = _cut(bench, [top.vector], reach=reach, labels=[f"top eigenvector (λ = {top.value:.3g})"])
    bench.drawn["slice"] = along
    return {name: found.to_dict() for name, found in along.items()}


@_instrument("plane", "the loss over the plane of two random filter-normalised directions")
def _plane(bench: Bench) -> dict[str, Any]:
    found = _cut(bench, 2, reach=bench.settings.reach)
    bench.drawn["plane"] = found
    return found.to_dict()


@_instrument("workers-plane", "the loss over the plane in which the workers differ most, with the workers in it")
def _workers_plane(bench: Bench) -> dict[str, Any]:
    x = bench.operator.select(bench.workers("workers-plane"))
    if len(x) < 3:
        raise ConfigError(f"workers-plane is the plane in which workers differ most: needs three of them, got {len(x)}")
    rows, sizes = principal_directions(x, 2)
    widest = 3 * float(sizes[0])
    labels = ["disagreement, first principal direction", "second principal direction"]
    found = _cut(bench, list(rows), reach=widest, labels=labels, workers=x, dtype=torch.float64)
    bench.drawn["workers-plane"] = found
    return {**found.to_dict(), "spread": sizes.tolist()}


def _cut(bench: Bench, directions: Any, **more: Any) -> Slice:
    subject, keywords = bench.subject, {"points": bench.settings.points, **bench.common, **more}
    return loss_slice(subject.model, subject.data.task.loss, subject.batches, directions, **keywords)
