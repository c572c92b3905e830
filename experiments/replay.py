r"""A worst case, run by the engine that trains everything else: the run attains what the certificate says.

The functions behind a certificate are rebuilt from their values and gradients at a few points (theory's
`worst_case`), written as a loss that `autograd` differentiates, and given to the workers of a `StackedEngine` together
with the worst mixing matrix. With w the minimising weights, held fixed,

$$ f_i(x) = \frac{L-\mu}2\Big\lVert x - \sum_s w_s c_s\Big\rVert^2 + \sum_s w_s b_s + \frac\mu2\lVert x\rVert^2
   + \langle g_i, x\rangle $$

has the right value and, by the envelope theorem, the right gradient. Nothing of the certificate's program is used: the
algorithm is the registered one, mixing is the engine's, and the criterion is measured on the points of the run.

Reference: ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dissensus.algorithms.engines.stacked import StackedEngine
from dissensus.algorithms.protocol import Algorithm
from dissensus.algorithms.registry import algorithm, algorithms
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.problem import Point
from dissensus.theory.certificates.certificate import Certificate
from dissensus.theory.certificates.worst_case import WorstCase, worst_case


@dataclass(frozen=True, eq=False)
class Replay:
    """A run of the engine on the instance behind a certificate."""

    certificate: Certificate
    instance: WorstCase
    run: np.ndarray
    """The points of all workers, (steps + 1, n, d)."""
    attained: float
    """The criterion, measured on the run."""

    @property
    def shortfall(self) -> float:
        """How far the run stays below the certified value, relative to it; negative if it exceeds it."""
        value = self.certificate.value
        return (value - self.attained) / value if value else value - self.attained


def replay(certificate: Certificate) -> Replay:
    """Rebuilds the worst instance of a certificate and runs it in the engine."""
    of = certificate.setting
    known = algorithms()
    if of.method not in known:
        raise ConfigError(
            f"the engine has no algorithm {of.method!r} to replay the worst case with; "
            "worst_case(certificate).measured() runs it in numpy"
        )
    instance = worst_case(certificate)
    method = algorithm("dsgd", order=of.order) if of.method == "dsgd" else algorithm(of.method)
    engine = engine_for(instance, method)
    if instance.tracker is not None:
        _start_tracking(engine, instance, instance.tracker)
    run, batch = [engine.x.numpy()], {"worker": torch.arange(instance.size)}
    for _ in range(of.steps):
        engine.step(batch)
        run.append(engine.x.numpy())
    points = np.stack(run)
    attained = (
        _measured_rate(engine, instance, instance.tracker)
        if instance.tracker is not None
        else instance.measured(points)
    )
    return Replay(certificate, instance, points, attained)


def engine_for(instance: WorstCase, method: Algorithm) -> StackedEngine:
    """The engine that runs a method on the instance, at its start; a batch holds the index of every worker."""
    return StackedEngine(
        Point(instance.dimension, torch.float64),
        loss_of(instance),
        algorithm=method,
        topology=instance.topology,
        lr=instance.setting.lr,
        gradients="loop",
        start=torch.from_numpy(np.ascontiguousarray(instance.start)),
    )


def loss_of(instance: WorstCase) -> Callable[[nn.Module, Any], Tensor]:
    """The workers' functions as one loss: which worker's, the batch says."""
    mu, ell = instance.setting.convexity, instance.setting.smoothness - instance.setting.convexity
    centres = [torch.from_numpy(f.centres) for f in instance.functions]
    floors = [torch.from_numpy(f.floors) for f in instance.functions]
    slopes = torch.from_numpy(instance.slopes)

    def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        i, x = int(batch["worker"]), model()
        w = torch.from_numpy(instance.functions[i].weights(x.detach().numpy()))
        off = x - w @ centres[i]
        return 0.5 * ell * off @ off + w @ floors[i] + 0.5 * mu * x @ x + slopes[i] @ x

    return loss


def _start_tracking(engine: StackedEngine, instance: WorstCase, tracker: np.ndarray) -> None:
    """Puts the tracking variable of the instance into the engine, where it would begin with the gradient."""
    saved = engine.state_dict()
    saved["state"]["received"] = torch.from_numpy(tracker - instance.gradient(instance.start))
    engine.load_state_dict(saved)


def _measured_rate(engine: StackedEngine, instance: WorstCase, tracker: np.ndarray) -> float:
    """The measure of tracking after the run over that before it, from what the engine holds."""
    weight = float(instance.setting.weight)

    def measure(x: np.ndarray, y: np.ndarray, g: np.ndarray) -> float:
        return float((x**2).sum() + weight * ((y - g.mean(axis=0)) ** 2).sum())

    x, state = engine.x.numpy(), engine.state
    g = instance.gradient(x)
    y = state.received.numpy() + g - state.gradient.numpy()
    before = measure(instance.start, tracker, instance.gradient(instance.start))
    return measure(x, y, g) / before
