"""What a worker in a loop remembers, by the names of the model: saved, and put back however parameters are laid out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dissensus.algorithms.engines.distributed.buckets import Bucket
from dissensus.algorithms.errors import AlgorithmError

if TYPE_CHECKING:
    from dissensus.algorithms.engines.distributed.worker import LoopWorker


def state_of(worker: LoopWorker) -> dict[str, Any]:
    """The step, the algorithm's memory by parameter, and the point where it is not what the parameters hold."""
    fields = getattr(worker.states[0], "_fields", ()) if worker.states else ()
    columns = zip(*worker.states, strict=True)
    state = {field: _by_name(worker.buckets, values) for field, values in zip(fields, columns, strict=True)}
    return {
        "algorithm": worker.algorithm.name,
        "t": worker.t,
        "size": worker.wire.size,
        "worker": worker.wire.rank,
        "seed": worker.seed,
        "isolated": None if worker.isolation is None else worker.isolation.since,
        "state": state,
        "point": {} if worker.in_place else _by_name(worker.buckets, worker.points),
        "left": list(worker.left),
    }


def check_state(worker: LoopWorker, saved: Any) -> None:
    """Refuses the state of another worker, of another run, or of one that must not be mixed in again."""
    if saved["algorithm"] != worker.algorithm.name:
        raise AlgorithmError(f"the state is of algorithm {saved['algorithm']!r}, not {worker.algorithm.name!r}")
    for what, own in (("size", worker.wire.size), ("worker", worker.wire.rank)):
        if saved[what] != own:
            raise AlgorithmError(f"the state is of {what} {saved[what]}, but this process is of {what} {own}")
    since = saved.get("isolated")
    if since is not None and worker.isolation is None:
        raise AlgorithmError(
            f"worker {worker.wire.rank} was isolated at step {since}, and would be mixed in again: go on with "
            "on_nan='isolate'"
        )


def put_back(worker: LoopWorker, saved: Any) -> None:
    """The worker remembers what was saved."""
    if worker.isolation is not None:
        worker.isolation.since = saved.get("isolated")
    kinds = [type(state) for state in worker.states]
    fields = {field: _by_bucket(worker.buckets, value) for field, value in saved["state"].items()}
    worker.states = [kind(**{f: values[k] for f, values in fields.items()}) for k, kind in enumerate(kinds)]
    if not worker.in_place:
        worker.points = _by_bucket(worker.buckets, saved["point"])
    worker.seed, worker.left = saved["seed"], list(saved.get("left", ()))


def _by_name(buckets: Sequence[Bucket], rows: Sequence[Tensor]) -> Any:
    """Rows of all buckets by parameter, or what all buckets share."""
    if any(row.shape != bucket.flat.shape for row, bucket in zip(rows, buckets, strict=True)):
        return rows[0].clone()
    pairs = zip(buckets, rows, strict=True)
    return {place.name: place.view(row).clone() for bucket, row in pairs for place in bucket.places}


def _by_bucket(buckets: Sequence[Bucket], value: Any) -> list[Tensor]:
    """The opposite."""
    if isinstance(value, Tensor):
        return [value.to(bucket.flat.device).clone() for bucket in buckets]
    found = []
    for bucket in buckets:
        row = torch.empty_like(bucket.flat)
        for place in bucket.places:
            if place.name not in value:
                raise AlgorithmError(
                    f"the state has no parameter {place.name!r}: it is of another model, or of one in which that "
                    "was frozen; freeze it before you wrap the optimizer"
                )
            place.view(row).copy_(value[place.name])
        found.append(row)
    return found
