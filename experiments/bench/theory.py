"""How fast theory is: spectral gaps against numpy and networkx, one exchange against a memory copy, predictions and
certificates (`theory_predictions`) against other ways to the same numbers.

Every comparison runs its contenders in turn, several times over, in one process: a slow moment of the machine hits all
of them. Reported are the median, the smallest and the largest time of each, the ratio of every contender to ours (or of
ours to the yardstick) from the medians, for exchanges also from the fastest runs, which a busy machine disturbs least,
and how far the numbers agree. No time is asserted here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
import torch

from dissensus.algorithms.engines.layout import spans, strip_width
from dissensus.algorithms.engines.mixing import round_of
from dissensus.experiments.bench.theory_predictions import bench_predictions
from dissensus.experiments.bench.timing import interleaved
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.threads import threads
from dissensus.theory import MixingMatrix, from_matrices
from dissensus.theory.exchange import exchange, plan
from dissensus.theory.spectrum import spectral_gap

Scale = Literal["small", "full"]


def bench_theory(scale: Scale = "small", *, repeats: int = 9) -> dict[str, Any]:
    """Measures all of it; `full` adds the sizes up to a million workers. A JSON-able dictionary."""
    if scale not in ("small", "full"):
        raise ConfigError(f"scale must be 'small' or 'full', got {scale!r}")
    return {
        "scale": scale,
        "repeats": repeats,
        "spectral_gap": [_gap(*case, repeats=repeats) for case in _gap_cases(scale)],
        "exchange": [_exchange(*case, repeats=repeats) for case in _exchange_cases(scale)],
        "prediction": bench_predictions(scale, repeats),
    }


def _gap_cases(scale: Scale) -> list[tuple[str, sp.csr_array, float | None, bool]]:
    """Name, matrix, exact gap where there is one, whether the slow contenders can be waited for."""
    sizes = [1000] if scale == "small" else [1000, 10**5, 10**6]
    cases: list[tuple[str, sp.csr_array, float | None, bool]] = []
    for n in sizes:
        side, small = int(np.sqrt(n)), n <= 1000
        ring_gap, torus_gap = 4 / 3 * np.sin(np.pi / n) ** 2, 4 / 5 * np.sin(np.pi / side) ** 2
        cases.append((f"ring n={n}", _ring(n), ring_gap, small))
        if n <= 10**5:
            cases.append((f"ring, relabelled, n={n}", _relabelled(_ring(n)), ring_gap, small))
            cases.append((f"random geometric n={n}", _geometric(n), None, small))
        cases.append((f"torus n={side**2}", _torus(side), torus_gap, small))
        hops = (n - 1).bit_length()
        exponential = _circulant(n, [0, *(2**k for k in range(hops))])
        cases.append((f"exponential n={n}", exponential, 2 / (1 + hops) if n % 2 == 0 else None, small))
    return cases


def _gap(name: str, weights: sp.csr_array, exact: float | None, small: bool, *, repeats: int) -> dict[str, Any]:
    symmetric = MixingMatrix(weights).is_symmetric
    contenders: dict[str, Callable[[], float]] = {"ours": lambda: spectral_gap(_fresh(weights)).value}
    if small:
        contenders["numpy dense"] = lambda: _dense_gap(weights, symmetric=symmetric)
        if symmetric:
            contenders["networkx algebraic_connectivity"] = lambda: _networkx_gap(weights, "tracemin_pcg")
            contenders["networkx tracemin_lu"] = lambda: _networkx_gap(weights, "tracemin_lu")
    times, values = interleaved(contenders, repeats if small else 1)
    found = spectral_gap(_fresh(weights))
    return {
        "case": name,
        "method": found.method,
        "gap": found.value,
        "stated_error": float(found.error),
        "relative_error": None if exact is None else float(abs(found.value - exact) / exact),
        "values": {k: float(v) for k, v in values.items()},
        "seconds": times,
        "times_slower_than_ours": {k: t["median"] / times["ours"]["median"] for k, t in times.items() if k != "ours"},
    }


def _fresh(weights: sp.csr_array) -> Any:
    """A topology without anything cached."""
    return from_matrices(weights, name="bench")


def _dense_gap(weights: sp.csr_array, *, symmetric: bool) -> float:
    dense = weights.toarray()
    if not symmetric:
        return float(1 - np.linalg.norm(dense - 1 / len(dense), 2))
    return float(1 - np.sort(np.abs(np.linalg.eigvalsh(dense)))[-2])


def _networkx_gap(weights: sp.csr_array, method: Literal["tracemin_pcg", "tracemin_lu"]) -> float:
    """1 - lambda_2 as the algebraic connectivity of the graph weighted by W (the upper end of the spectrum only)."""
    import networkx as nx

    links = sp.csr_array(weights - sp.diags_array(weights.diagonal()))
    return float(nx.algebraic_connectivity(nx.from_scipy_sparse_array(links), method=method, seed=0))


def _exchange_cases(scale: Scale) -> list[tuple[str, MixingMatrix, int, type]]:
    """Name, round, row length, precision."""
    entries = 2**21 if scale == "small" else 2**24
    cases: list[tuple[str, MixingMatrix, int, type]] = []
    for dtype in (np.float32, np.float64):
        for n in (8, 64) if scale == "small" else (8, 64, 1024):
            i = np.arange(n)
            rounds = {
                "pairs at distance 1": _one_peer(i ^ 1),
                "pairs at distance n/2": _one_peer(i ^ (n // 2)),
                "random pairs": _one_peer(_random_matching(n)),
                "random pairs, gamma 0.3": _one_peer(_random_matching(n)).adapted(0.3),
                "directed, hop 1": _one_peer((i - 1) % n),
                "directed, hop n/4": _one_peer((i - n // 4) % n),
                "ring": MixingMatrix(_ring(n)),
                "exponential": MixingMatrix(_circulant(n, [0, *(2**k for k in range((n - 1).bit_length()))])),
                "complete": MixingMatrix.of(np.full((n, n), 1 / n)),
            }
            cases += [(f"{name}, n={n}", w, entries // n, dtype) for name, w in rounds.items()]
    return cases


def _exchange(name: str, w: MixingMatrix, d: int, dtype: type, *, repeats: int) -> dict[str, Any]:
    x = np.random.default_rng(0).standard_normal((w.size, d)).astype(dtype)
    out, copy, product = np.zeros_like(x), np.zeros_like(x), np.zeros_like(x)
    dense, sparse = w.dense().astype(dtype), sp.csr_array(w.weights.astype(dtype))
    one_peer = plan(w).one_peer is not None
    exchange(w, x, out)
    contenders: dict[str, Callable[[], Any]] = {
        "ours": lambda: exchange(w, x, out),
        "np.copyto": lambda: np.copyto(copy, x),
        "dense matmul": lambda: np.matmul(dense, x, out=product),
        "sparse product": lambda: sparse @ x,
        "stacked engine": _in_strips(w, x),
    }
    with threads(1):
        times, results = interleaved(contenders, repeats)
    median, least = ({k: t[kind] for k, t in times.items()} for kind in ("median", "min"))
    best = min(median["dense matmul"], median["sparse product"])
    return {
        "case": name,
        "n": w.size,
        "d": d,
        "dtype": np.dtype(dtype).name,
        "one_peer": one_peer,
        "seconds": times,
        "ratio_to_copy": median["ours"] / median["np.copyto"],
        "ratio_to_best_product": median["ours"] / best,
        "ratio_to_copy_of_fastest": least["ours"] / least["np.copyto"],
        "ratio_to_best_product_of_fastest": least["ours"] / min(least["dense matmul"], least["sparse product"]),
        "engine_ratio_to_copy": median["stacked engine"] / median["np.copyto"],
        "engine_ratio_to_best_product": median["stacked engine"]
        / min(median["dense matmul"], median["sparse product"]),
        "limit": "2 x copy" if one_peer else "2 x best product",
        "largest_difference": float(np.abs(results["ours"] - results["sparse product"]).max()),
    }


def _in_strips(w: MixingMatrix, x: np.ndarray) -> Callable[[], Any]:
    """The same round as the stacked engine makes it: on strips of columns, each mixture used while it is cached."""
    value = torch.from_numpy(x)
    mix = round_of(w, value.dtype, value.device)
    strips = spans(value.shape[1], strip_width(w.size), evenly=True)

    def run() -> None:
        for columns in strips:
            mix(value[:, columns])

    return run


def _circulant(n: int, hops: list[int]) -> sp.csr_array:
    i = np.arange(n)
    rows, columns = np.concatenate([i for _ in hops]), np.concatenate([(i - hop) % n for hop in hops])
    return sp.csr_array((np.full(len(rows), 1 / len(hops)), (rows, columns)), shape=(n, n))


def _ring(n: int) -> sp.csr_array:
    return _circulant(n, [0, 1, -1])


def _torus(side: int) -> sp.csr_array:
    i = np.arange(side**2)
    x, y = i // side, i % side
    steps = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)]
    columns = np.concatenate([(x + a) % side * side + (y + b) % side for a, b in steps])
    return sp.csr_array((np.full(len(columns), 1 / 5), (np.tile(i, 5), columns)), shape=(side**2, side**2))


def _relabelled(w: sp.csr_array) -> sp.csr_array:
    p = np.random.default_rng(0).permutation(len(w.indptr) - 1)
    return sp.csr_array(w[p][:, p])


def _geometric(n: int) -> sp.csr_array:
    """Points in the unit square linked within a radius above the threshold of connectivity, Metropolis weights."""
    from scipy.spatial import KDTree

    points = np.random.default_rng(0).random((n, 2))
    links = KDTree(points).query_pairs(np.sqrt(1.8 * np.log(n) / (np.pi * n)), output_type="ndarray")
    i, j = links.T
    degree = np.bincount(np.r_[i, j], minlength=n)
    weight = 1 / (1 + np.maximum(degree[i], degree[j]))
    off = sp.csr_array((np.r_[weight, weight], (np.r_[i, j], np.r_[j, i])), shape=(n, n))
    return sp.csr_array(off + sp.diags_array(1 - np.asarray(off.sum(axis=1)).ravel()))


def _one_peer(peer: np.ndarray) -> MixingMatrix:
    i = np.arange(len(peer))
    half = np.full(2 * len(peer), 0.5)
    return MixingMatrix(sp.csr_array((half, (np.r_[i, i], np.r_[i, peer])), shape=(len(peer), len(peer))))


def _random_matching(n: int) -> np.ndarray:
    p, peer = np.random.default_rng(0).permutation(n), np.empty(n, dtype=np.int64)
    peer[p[0::2]], peer[p[1::2]] = p[1::2], p[0::2]
    return peer
