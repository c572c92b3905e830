r"""How good the model is, said of which model: the consensus, the workers on average, the worst worker.

n workers hold n models and nobody deploys all of them. So an evaluation names what it speaks of:

- `consensus`: the average of the workers' points, put in place as one model, with the buffers that `bn` says;
- `local_mean`: $\frac1n\sum_i m_i$, the mean of the n values that the workers' own models get;
- `worst`: the value and the number of the worker that does worst; one whose value is not a number does worst of all.

Workers always keep the buffers (BatchNorm statistics) that they gathered themselves: `recalibrate`, `average` and
`frozen` are about the consensus model alone, which has gathered none.

A metric is a function (module, batch) -> tensor. One value per sample (numbers, or truth values for a share) is
summed; a scalar is taken for the mean over its batch and counted as often as the batch has samples. Either way the
result is the mean over all samples, the short last batch included, summed in float64 (whole numbers exactly).

Nothing is left behind: modules handed to a metric are copies in eval mode, without a gradient being recorded, and the
global generators are put back. Every model sees the same batches, and the same random numbers where a metric draws any.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dissensus.algorithms.engines.snapshot import Snapshot
from dissensus.algorithms.engines.stacked import StackedEngine
from dissensus.algorithms.engines.views import BatchNormPolicy, generators_restored
from dissensus.algorithms.errors import AlgorithmError
from dissensus.theory.errors import nearest

Metric = Callable[[nn.Module, Any], Tensor]
Worse = Literal["larger", "smaller"]


@dataclass(frozen=True)
class Measured:
    """One metric of all models."""

    consensus: float
    """Of the averaged model."""
    local_mean: float
    """The mean of the workers' values."""
    worst: float
    """The value of the worst worker."""
    worst_worker: int
    """Which worker that is; the first, if several do equally badly."""
    worse: Worse
    """Which values are bad: `larger` for a loss, `smaller` for an accuracy."""
    per_worker: tuple[float, ...]
    """The value of every worker."""


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate` found: `evaluation["accuracy"].consensus`. Printed, a table that says which is which."""

    metrics: Mapping[str, Measured]
    samples: int
    """Over how many samples every mean goes."""
    batches: int
    step: int
    """How many steps the workers had taken."""
    size: int
    """The number of workers."""
    bn: str
    """Where the buffers of the consensus model came from; `none` if the model has none."""
    isolated: tuple[int, ...] = ()
    """Workers that were cut off: left out of the consensus, and evaluated at their last finite point."""

    @property
    def weights(self) -> Mapping[str, str]:
        """Which weights and buffers each figure speaks of."""
        pooled = {
            "none": "",
            "average": ", buffers averaged over the workers",
            "local": ", buffers of worker 0",
            "frozen": ", buffers the model came with",
            "recalibrate": ", normalisation statistics measured anew",
        }
        whose = f"{self.size} workers"
        if self.isolated:
            whose = f"{self.size - len(self.isolated)} workers ({', '.join(map(str, self.isolated))} isolated)"
        own = ", each with its own buffers" if self.bn != "none" else ""
        return {
            "consensus": f"the average of {whose}{pooled[self.bn]}",
            "local mean": f"{self.size} workers evaluated apart{own}, then averaged",
            "worst": f"the one worker that does worst{own}",
        }

    def __getitem__(self, name: str) -> Measured:
        if name not in self.metrics:
            raise AlgorithmError(f"metric {name!r} was not evaluated{nearest(name, self.metrics)}")
        return self.metrics[name]

    def __str__(self) -> str:
        head = ["", "consensus", "local mean", "worst", "worst worker"]
        rows = [
            [
                name,
                f"{m.consensus:.6g}",
                f"{m.local_mean:.6g}",
                f"{m.worst:.6g}",
                f"{m.worst_worker} ({m.worse} is worse)",
            ]
            for name, m in self.metrics.items()
        ]
        widths = [max(len(row[k]) for row in [head, *rows]) for k in range(len(head))]
        lines = [
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in [head, *rows]
        ]
        about = f"step {self.step}, {self.samples} samples in {self.batches} batches"
        return "\n".join([*lines, about, *(f"{key}: {what}" for key, what in self.weights.items())])


def evaluate(
    engine: StackedEngine | Snapshot,
    metrics: Mapping[str, Metric] | Metric,
    batches: Iterable[Any],
    *,
    bn: BatchNormPolicy = "average",
    calibration: Iterable[Any] | None = None,
    worse: Worse | Mapping[str, Worse] = "larger",
    workers: Literal["loop", "vmap"] = "loop",
    chunk: int | None = None,
    samples: Callable[[Any], int] | None = None,
) -> Evaluation:
    """Evaluates the consensus model and every worker on the same batches; the training does not notice.

    Args:
        engine: whose workers, or a snapshot of them. Spread over processes, all of these call it together.
        metrics: name -> metric, or one metric, which then goes by its own name.
        batches: one model's batches, without a worker dimension; gone through once.
        bn: where the buffers of the consensus model come from, as in `engine.consensus`.
        calibration: the batches of `bn="recalibrate"`.
        worse: which values of a metric are bad, `larger` or `smaller`; by name where metrics differ (else `larger`).
        workers: `loop` evaluates one after another, `vmap` all at once, or `chunk` at a time.
        chunk: how many workers go through one vmap; all of them unless told otherwise.
        samples: how many samples a batch has; the length of its first tensor unless told otherwise.
    """
    named = {_own_name(metrics): metrics} if callable(metrics) else dict(metrics)
    bad = _directions(named, worse)
    if workers not in ("loop", "vmap"):
        raise AlgorithmError(f"workers must be 'loop' or 'vmap', got {workers!r}")
    if chunk is not None and chunk < 1:
        raise AlgorithmError(f"chunk must be at least 1 worker, got {chunk}")
    if bn == "recalibrate" and calibration is None:
        raise AlgorithmError('bn="recalibrate" needs batches to measure the statistics on: pass calibration=[...]')
    total, passed, seen = 0, 0, engine.snapshot()
    sums = {name: torch.zeros(1 + seen.size, dtype=torch.float64) for name in named}
    everyone = _one_by_one(seen, named) if workers == "loop" else _at_once(seen, named, chunk)
    average_of = seen.consensus(bn=bn, batches=calibration)
    with average_of as average, everyone as of, torch.no_grad():  # a view puts the generators back, whoever draws
        for batch in batches:
            size = _length(batch) if samples is None else samples(batch)
            if size == 0:
                continue
            total, passed = total + size, passed + 1
            for name, metric in named.items():
                sums[name][:1] += _summed(name, _value(name, metric, average, batch)[None], size)
            for name, values in of(batch).items():
                sums[name][1:] += _summed(name, values, size)
    if total == 0:
        raise AlgorithmError("there is no sample to evaluate on: batches is empty, or was gone through before")
    found = {name: _measured((s / total).tolist(), bad[name]) for name, s in sums.items()}
    from_where, cut_off = bn if seen.buffers else "none", tuple(sorted(seen.isolated))
    return Evaluation(found, total, passed, seen.t, seen.size, from_where, cut_off)


Everyone = Callable[[Any], dict[str, Tensor]]
"""A batch -> every metric's values, with one row per worker."""


@contextmanager
def _one_by_one(seen: Snapshot, metrics: Mapping[str, Metric]) -> Iterator[Everyone]:
    """The workers take turns in one module."""
    with seen.worker(0) as module:
        places = dict(module.named_buffers())

        def of(batch: Any) -> dict[str, Tensor]:
            found: dict[str, list[Tensor]] = {name: [] for name in metrics}
            for i in range(seen.size):
                seen.columns.write(seen.x[i], module)
                for name, place in places.items():
                    place.copy_(seen.buffers[name][i])
                for name, metric in metrics.items():
                    found[name].append(_value(name, metric, module, batch))
            return {name: torch.stack(values) for name, values in found.items()}

        yield of


@contextmanager
def _at_once(seen: Snapshot, metrics: Mapping[str, Metric], chunk: int | None) -> Iterator[Everyone]:
    """The workers under one `vmap`; what a metric draws is the same for all, as in the loop."""
    split, buffers = seen.columns.unflatten(seen.x), dict(seen.buffers)
    with seen.worker(0) as module:

        def of(batch: Any) -> dict[str, Tensor]:
            return {name: of_one(name, metric, batch) for name, metric in metrics.items()}

        def of_one(name: str, metric: Metric, batch: Any) -> Tensor:
            applied = _Applied(module.eval(), metric)

            def value(parameters: dict[str, Tensor], own: dict[str, Tensor]) -> Tensor:
                given = {f"model.{k}": v for k, v in (*parameters.items(), *own.items())}
                return torch.func.functional_call(applied, given, (batch,))

            try:
                with generators_restored():
                    return torch.vmap(value, randomness="same", chunk_size=chunk)(split, buffers)
            except (RuntimeError, ValueError) as error:
                if "vmap" not in str(error):
                    raise
                raise AlgorithmError(
                    f"metric {name!r} cannot be vectorised over workers ({str(error).splitlines()[0]}); "
                    'use workers="loop"'
                ) from error

        yield of


class _Applied(nn.Module):
    """A metric of a model as a module, so that `functional_call` can put parameters in its place."""

    def __init__(self, model: nn.Module, metric: Metric) -> None:
        super().__init__()
        self.model, self.metric = model, metric

    def forward(self, batch: Any) -> Tensor:
        return self.metric(self.model, batch)


def _value(name: str, metric: Metric, module: nn.Module, batch: Any) -> Tensor:
    """The metric of one model, with the random numbers that every other model gets."""
    with generators_restored():
        value = metric(module.eval(), batch)
    if not isinstance(value, Tensor):
        raise AlgorithmError(f"metric {name!r} must return a tensor, got {type(value).__name__}")
    return value


def _summed(name: str, value: Tensor, size: int) -> Tensor:
    """The sums over a batch, by row, from one value per sample or from the mean over them."""
    each, value = tuple(value.shape[1:]), value.detach().cpu()
    if value.is_complex():
        raise AlgorithmError(f"metric {name!r} must be real, got {value.dtype}")
    if each == (size,):
        return value.double().sum(dim=1)
    if each != ():
        raise AlgorithmError(
            f"metric {name!r} must return a scalar or one value per sample, ({size},), got shape {each}; if a batch "
            "has another number of samples, say samples="
        )
    if not value.is_floating_point():
        raise AlgorithmError(
            f"metric {name!r} returned one whole number ({value.dtype}) for a batch of {size}, which is no mean; "
            "return one value per sample"
        )
    return value.double() * size


def _measured(values: list[float], worse: Worse) -> Measured:
    consensus, *own = values
    worst = max(range(len(own)), key=lambda i: (math.isnan(own[i]), own[i] if worse == "larger" else -own[i]))
    return Measured(consensus, sum(own) / len(own), own[worst], worst, worse, tuple(own))


def _directions(metrics: Mapping[str, Metric], worse: Worse | Mapping[str, Worse]) -> dict[str, Worse]:
    if not metrics:
        raise AlgorithmError("there is nothing to evaluate: metrics is empty")
    given: Mapping[str, Worse] = dict.fromkeys(metrics, worse) if isinstance(worse, str) else worse
    for name, direction in given.items():
        if name not in metrics:
            raise AlgorithmError(f"worse names {name!r}, which is no metric{nearest(name, metrics)}")
        if direction not in ("larger", "smaller"):
            raise AlgorithmError(f"worse must be 'larger' or 'smaller', got {direction!r} for metric {name!r}")
    return {name: given.get(name, "larger") for name in metrics}


def _own_name(metric: Metric) -> str:
    name = getattr(metric, "__name__", "metric")
    return "metric" if name == "<lambda>" else name


def _length(batch: Any) -> int:
    """How many samples a batch has: the length of its first tensor."""
    if isinstance(batch, Tensor) and batch.ndim:
        return len(batch)
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple | list) else ()
    for part in parts:
        if isinstance(part, Tensor | Mapping | tuple | list):
            return _length(part)
    raise AlgorithmError("a batch without a tensor in it has no known number of samples: say samples=")
