"""What is looked at during training, and which weights it speaks of.

Cheap, often: losses and accuracy of the consensus model, the mean loss and the accuracies of the workers, consensus
distance. Dear, seldom: Hessian trace and largest eigenvalue of the consensus model, what the disagreement costs
(the envelope, measured and as 1/2 tr(H Sigma)), how it lies relative to curvature (the alignment), and the gradient
noise by curvature, from which theory predicts the disagreement. All of it on consensus weights unless `which` says
otherwise; nothing of it leaves a trace on the training.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from dissensus.algorithms.engines.snapshot import Snapshot
from dissensus.algorithms.streams import stream_seed
from dissensus.experiments.at_end import measure_at_end
from dissensus.experiments.cell import Batch, Setup, draw_batches
from dissensus.experiments.data import Task
from dissensus.experiments.records import Recorder
from dissensus.probes import (
    Curvature,
    NoiseMeasure,
    alignment,
    consensus_distance,
    envelope,
    hessian_trace,
    noise_measure,
    top_eigenvalues,
)

_ON_THE_WAY = 0.1
"""The accuracy of a trace during training, where it is only the alignment's denominator."""


@torch.no_grad()
def evaluate(module: nn.Module, batches: Sequence[Batch], task: Task) -> tuple[float, float]:
    """The mean loss and the share of correct answers over all samples, or over all characters of a text."""
    loss, right, count = 0.0, 0, 0
    for batch in batches:
        score = task.score(module, batch)
        loss += score.loss
        right += score.right
        count += score.answers
    return loss / count + float(task.penalty(module)), right / count


def measure_learning(setup: Setup, seen: Snapshot, recorder: Recorder, gamma: float | None) -> None:
    """Records the consensus model's losses and accuracy, the consensus distance, and this step's lr and gamma."""
    step = seen.t
    bn = setup.cell.probes.bn if seen.buffers else "none"
    with seen.consensus(**_policy(setup)) as module:
        for name, batches in (("train", setup.train_batches), ("test", setup.test_batches)):
            loss, accuracy = evaluate(module, batches, setup.data.task)
            recorder.metric(step, f"{name}_loss", loss, which="consensus", bn=bn)
            recorder.metric(step, f"{name}_accuracy", accuracy, which="consensus", bn=bn)
    distance = consensus_distance(seen.x)
    recorder.metric(step, "consensus_distance", distance.xi, which="workers")
    recorder.metric(step, "mean_distance", distance.mean_norm, which="workers")
    if step < setup.cell.train.steps:
        recorder.metric(step, "lr", setup.lr(step), which="workers")
    if gamma is not None:
        recorder.metric(step, "gamma", gamma, which="workers")


def measure_workers(setup: Setup, seen: Snapshot, recorder: Recorder) -> None:
    """Records how single workers do on the test set: their mean and the worst of them."""
    accuracies = []
    for i in range(seen.size):
        with seen.worker(i) as module:
            accuracies.append(evaluate(module, setup.test_batches, setup.data.task)[1])
    recorder.metric(seen.t, "test_accuracy", sum(accuracies) / len(accuracies), which="mean")
    recorder.metric(seen.t, "test_accuracy", min(accuracies), which="worst")


def measure_curvature(
    setup: Setup, seen: Snapshot, recorder: Recorder, *, noise: bool, eigenvalue: bool
) -> NoiseMeasure | None:
    """Records curvature at the consensus model and what the disagreement makes of it; returns the noise measure."""
    step, probes, loss = seen.t, setup.cell.probes, setup.data.task.loss
    began = time.perf_counter()
    seed = stream_seed(setup.seed, "probe", "curvature", step)
    about = {"bn": probes.bn if seen.buffers else "none"}
    x = seen.x
    found = None
    with seen.consensus(**_policy(setup)) as module:
        operator = Curvature(module, loss, setup.probe_batches)
        accuracy = probes.trace_error if eigenvalue else max(probes.trace_error, _ON_THE_WAY)
        trace = hessian_trace(operator, rtol=accuracy, seed=seed)
        recorder.probe(step, "hessian_trace", trace.to_dict(), which="consensus", **about)
        if eigenvalue or probes.eigenvalue:
            top = top_eigenvalues(operator, 1, seed=seed)[0]
            recorder.probe(step, "top_eigenvalue", top.to_dict(), which="consensus", **about)
        if consensus_distance(x).xi > 0.0:
            gap = envelope(module, loss, setup.envelope_batches, x, dtype=torch.float64, seed=seed)
            aligned = alignment(operator, x, trace=trace)
            recorder.probe(step, "envelope", gap.to_dict(), which="workers", **about)
            recorder.probe(step, "alignment_normalised", aligned.normalised.to_dict(), which="workers", **about)
            recorder.metric(step, "alignment_numerator", aligned.numerator, which="workers", **about)
            recorder.metric(step, "alignment_rayleigh", aligned.rayleigh, which="workers", **about)
        else:
            recorder.metric(step, "envelope", 0.0, which="workers", **about)
        if noise:
            sample = draw_batches(setup, step, probes.noise_batches)
            found = noise_measure(
                module, loss, sample, seed, batches=setup.probe_batches, operator=operator, vectors=4
            ).compressed(24)
            recorder.probe(step, "gradient_noise", found.variance.to_dict(), which="consensus", **about)
        if eigenvalue:
            measure_at_end(setup, seen, module, recorder, seed)
    _measure_single_workers(setup, seen, recorder, accuracy, seed)
    recorder.metric(step, "probe_seconds", time.perf_counter() - began, which="consensus")
    return found


def _measure_single_workers(setup: Setup, seen: Snapshot, recorder: Recorder, accuracy: float, seed: int) -> None:
    """Records the Hessian trace of the workers that the configuration names."""
    for i in setup.cell.probes.curvature_of or ():
        with seen.worker(i) as module:
            trace = hessian_trace(
                Curvature(module, setup.data.task.loss, setup.probe_batches), rtol=accuracy, seed=seed
            )
        about = {"bn": "own"} if seen.buffers else {}
        recorder.probe(seen.t, "hessian_trace", trace.to_dict(), which="single", worker=i, **about)


def _policy(setup: Setup) -> dict[str, Any]:
    bn = setup.cell.probes.bn
    return {"bn": bn, "batches": setup.train_batches if bn == "recalibrate" else None}
