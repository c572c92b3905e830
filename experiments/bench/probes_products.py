"""The time of a product with the Hessian per vector, in blocks, against the peers and against gradients.

The contenders run in turn in one process on the same model and batch, and their products are compared first. Ours is
measured by every route, with what each takes to set up and the time per vector when that is shared by `SHARED` vectors.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from dissensus.experiments.bench.probes_cases import CASES, Batch, Case
from dissensus.experiments.bench.probes_peers import available, mathematical
from dissensus.experiments.bench.timing import Share, race, spread
from dissensus.experiments.threads import threads
from dissensus.probes import Curvature
from dissensus.probes.routes import DEFAULT, FIRST, ROUTES

SHARED = 64
"""Products at one point over which the setup is shared out."""

LIMITS = {"of the fastest peer": 0.9, "gradients": 3.0}
"""What a product per vector should stay below: in times of the fastest peer, and in gradients of the batch."""


def bench_products(scale: str) -> Iterator[dict[str, Any]]:
    """A row for every case and block size."""
    seconds, least = (2.0, 3) if scale == "small" else (8.0, 7)
    for name in ("mlp 3k", "mlp 100k", "cnn 19k", "gpt 108k"):
        for width in (16,) if scale == "small" else (1, 4, 16, 64):
            with threads(1):
                yield _row(CASES[name], width, seconds, least)


def _row(case: Case, width: int, seconds: float, least: int) -> dict[str, Any]:
    model, batch = case.model(), case.batch()
    ours = {name: Curvature(model, case.loss, [batch], route=name) for name in ROUTES}
    size = ours[FIRST].size
    block = torch.randn(width, size, generator=torch.Generator().manual_seed(0))
    setup = {name: _elapsed(lambda op=op: op.matvec(block[:1])) for name, op in ours.items()}
    peers, missing = available(case, batch)
    truth = Curvature(model, case.loss, [batch], route=FIRST, dtype=torch.float64).matvec(block.double())
    contenders: dict[str, Callable[[], Any]] = {"gradient": _gradient(case, batch)}
    contenders |= {f"ours, {name}": (lambda op=op: op.matvec(block)) for name, op in ours.items()}
    contenders |= {name: (lambda rows=rows: _mathematically(rows, block)) for name, rows in peers.items()}
    errors = {
        name: float((run().double() - truth).norm() / truth.norm())
        for name, run in contenders.items()
        if name != "gradient"
    }
    with Share() as share:
        times = race(contenders, seconds, least=least)
    per_vector = {name: [t / (1 if name == "gradient" else width) for t in laps] for name, laps in times.items()}
    median = {name: statistics.median(laps) for name, laps in per_vector.items()}
    fastest = min(peers, key=lambda name: median[name], default=None)
    gradient = median["gradient"]
    return {
        "part": "products",
        "case": case.name,
        "parameters": size,
        "samples": case.samples,
        "block": width,
        "seconds": {name: spread(laps) for name, laps in per_vector.items()},
        "gradients": {name: value / gradient for name, value in median.items()},
        "setup_gradients": {f"ours, {name}": value / gradient for name, value in setup.items()},
        "gradients_with_setup_shared": {
            f"ours, {name}": median[f"ours, {name}"] / gradient + value / gradient / SHARED
            for name, value in setup.items()
        },
        "relative_error": errors,
        "missing": missing,
        "fastest_peer": fastest,
        "ratio": None if fastest is None else median[OURS] / median[fastest],
        "ratio_of_fastest_runs": None if fastest is None else min(per_vector[OURS]) / min(per_vector[fastest]),
        "limits": LIMITS,
        "met": fastest is not None
        and median[OURS] <= LIMITS["of the fastest peer"] * median[fastest]
        and median[OURS] <= LIMITS["gradients"] * gradient,
        "route": ours[DEFAULT].route,
        "cores": share.cores,
    }


OURS = f"ours, {DEFAULT}"


def _mathematically(rows: Callable[[Tensor], Tensor], block: Tensor) -> Tensor:
    with mathematical():
        return rows(block)


def _gradient(case: Case, batch: Batch) -> Callable[[], Any]:
    model = case.model()
    parameters = list(model.parameters())
    return lambda: torch.autograd.grad(case.loss(model, batch), parameters)


def _elapsed(run: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin
