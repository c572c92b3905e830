"""What is measured once, at the end of a run, where `probes.at_end` names it: dearer, or of interest only there.

- `average` (recorded as `average_sharpness`, of the consensus model): the mean rise of the loss under Gaussian
  perturbations of length `probes.radius`;
- `captured` (of the workers): the share of the disagreement in the space of the ten top eigenvectors, and
  `captured_chance`, what a disagreement without direction would have there;
- `dispersion` (`norm_dispersion`, of the workers): the coefficient of variation over workers of a parameter tensor's
  norm, mean over tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from dissensus.probes import Curvature, consensus_distance, top_eigenvalues
from dissensus.probes.alignment import captured
from dissensus.probes.average_sharpness import average_sharpness
from dissensus.probes.dispersion import norm_dispersion
from dissensus.probes.perturbation import Gaussian

if TYPE_CHECKING:
    from dissensus.algorithms.engines.snapshot import Snapshot
    from dissensus.experiments.cell import Setup
    from dissensus.experiments.records import Recorder

TOP = 10
"""How many eigenvectors span the dominant space."""
RADIUS = 0.05
"""The length of a perturbation if nothing is said."""
Measure = Callable[["Setup", "Snapshot", nn.Module, "Recorder", int, dict[str, Any]], None]


def measure_at_end(setup: Setup, seen: Snapshot, module: nn.Module, recorder: Recorder, seed: int) -> None:
    """Records everything that the configuration names; `module` is the consensus model."""
    about = {"bn": setup.cell.probes.bn if seen.buffers else "none"}
    for name in setup.cell.probes.at_end or ():
        AT_END[name](setup, seen, module, recorder, seed, about)


def _average(setup: Setup, seen: Snapshot, module: nn.Module, recorder: Recorder, seed: int, about: Any) -> None:
    radius = setup.cell.probes.radius or RADIUS
    found = average_sharpness(module, setup.data.task.loss, setup.probe_batches, Gaussian(radius), seed=seed)
    recorder.probe(seen.t, "average_sharpness", found.to_dict(), which="consensus", radius=radius, **about)


def _captured(setup: Setup, seen: Snapshot, module: nn.Module, recorder: Recorder, seed: int, about: Any) -> None:
    if consensus_distance(seen.x).xi == 0.0:
        return
    operator = Curvature(module, setup.data.task.loss, setup.probe_batches)
    k = min(TOP, operator.size)
    pairs = top_eigenvalues(operator, k, seed=seed)
    share = captured(seen.x, [pair.vector for pair in pairs], operator)
    recorder.metric(seen.t, "captured", share, which="workers", k=k, **about)
    recorder.metric(seen.t, "captured_chance", k / operator.size, which="workers", k=k)


def _dispersion(setup: Setup, seen: Snapshot, module: nn.Module, recorder: Recorder, seed: int, about: Any) -> None:
    del setup, seed, about
    of_tensors = [part.coefficient_of_variation for part in norm_dispersion(seen.x, module).values()]
    recorder.metric(seen.t, "norm_dispersion", float(np.mean(of_tensors)), which="workers")


AT_END: dict[str, Measure] = {"average": _average, "captured": _captured, "dispersion": _dispersion}
"""Every such measurement by its name."""
