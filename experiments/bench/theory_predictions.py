"""How fast predictions and certificates are, each beside another way to the same numbers in the same run.

- `stationary`: the covariance of 64 workers along 1000 curvatures (momentum 0.9) in closed form, beside one small
  Lyapunov equation per mode, all of them solved together.
- `lyapunov`: one discrete Lyapunov equation by doubling, beside scipy's solver.
- `certificate`: the exact worst case of decentralized gradient descent by the program whose size does not depend on n,
  its check included, beside the program of four workers on a ring.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import solve_discrete_lyapunov

from dissensus.experiments.bench.timing import interleaved
from dissensus.theory import lyapunov, topology
from dissensus.theory.modes import Move, adapted, disagreement_eigenvalues, state_space
from dissensus.theory.stationary import predict

LIMITS = {"stationary": 0.2, "lyapunov": 10.0, "certificate": 5.0}
"""Seconds that ours may take at the size of `full`."""


def bench_predictions(scale: str, repeats: int) -> list[dict[str, Any]]:
    """A row per case: seconds of every contender, the ratio to ours, how far the results are apart."""
    full = scale == "full"
    rows = [_stationary(repeats), _lyapunov(1024 if full else 256, 3 if full else repeats)]
    try:
        import clarabel  # noqa: F401 - the optional extra of the certificates
    except ImportError:
        return rows
    return [*rows, *_certificates(10 if full else 5, 3)]


def _row(case: str, contenders: dict[str, Any], repeats: int) -> dict[str, Any]:
    times, values = interleaved(contenders, repeats)
    ours = np.asarray(values["ours"], dtype=np.float64)
    apart = {
        k: float(np.abs(np.asarray(v) - ours).max() / np.abs(ours).max()) for k, v in values.items() if k != "ours"
    }
    part = case.split(",", 1)[0]
    return {
        "case": case,
        "seconds": times,
        "times_slower_than_ours": {k: t["median"] / times["ours"]["median"] for k, t in times.items() if k != "ours"},
        "relative_difference": apart,
        "limit": LIMITS[part],
        "met": times["ours"]["median"] <= LIMITS[part],
    }


def _stationary(repeats: int) -> dict[str, Any]:
    ring, h = topology("ring", 64), np.geomspace(1e-4, 1.0, 1000)

    def closed() -> np.ndarray:
        return predict(ring, h, lr=0.1, momentum=0.9, gamma=0.5).modes.variances

    def equations() -> np.ndarray:
        lam, _ = disagreement_eigenvalues(ring)
        a, b = state_space(adapted(lam, 0.5)[:, None, None], h, 0.1, Move.of("awc", 0.9))
        return lyapunov.solve(a, b @ np.swapaxes(b, -1, -2))[..., 0, 0]

    return _row("stationary, 64 workers x 1000 curvatures", {"ours": closed, "Lyapunov by mode": equations}, repeats)


def _lyapunov(states: int, repeats: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    a = rng.normal(size=(states, states))
    a *= 0.95 / np.abs(np.linalg.eigvals(a)).max()
    q = np.eye(states)
    contenders = {"ours": lambda: lyapunov.solve(a, q), "scipy": lambda: solve_discrete_lyapunov(a, q)}
    return _row(f"lyapunov, {states} states", contenders, repeats)


def _certificates(steps: int, repeats: int) -> list[dict[str, Any]]:
    from dissensus.theory.certificates import certify

    def worst(steps: int, **mixing: Any) -> float:
        return certify("dsgd", steps=steps, lr=1 / 3, criterion="last", **mixing).value

    ring = topology("ring", 4)
    beside = {"ours": lambda: worst(3, contraction=1 / 3), "four workers": lambda: worst(3, topology=ring)}
    return [
        _row(f"certificate, any n, {steps} steps", {"ours": lambda: worst(steps, contraction=1 / 3)}, repeats),
        _row("certificate, any n, 3 steps", beside, repeats),
    ]
