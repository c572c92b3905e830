"""Stability limits and relaxation against the spectral radius, the trap of momentum, one-peer closed forms."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dissensus.theory import MixingError, from_function, from_matrices, topology
from dissensus.theory.limits import limits
from dissensus.theory.one_peer import one_peer_hypercube_distance, one_peer_ring_distance
from dissensus.theory.stationary import predict

ORDERS = ["awc", "atc", "cta"]


def radius(top, h, lr, momentum, gamma, order) -> float:
    """Per step, of the whole (x, v) of all workers without their mean."""
    n = top.size
    apart = np.eye(n) - 1 / n
    product = np.eye(2 * n)
    for t in range(top.period):
        w = ((1 - gamma) * np.eye(n) + gamma * top[t].dense()) @ apart
        reach, seen = (w if order == "atc" else apart), (w if order == "cta" else apart)
        step = np.block([[w - lr * h * reach @ seen, -lr * momentum * reach], [h * seen, momentum * apart]])
        product = step @ product
    return float(np.abs(np.linalg.eigvals(product)).max() ** (1 / top.period))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(
    "name", ["ring", "one-peer-ring", "one-peer-exponential", "directed-ring", "one-peer-hypercube"]
)
def test_limit_and_relaxation_are_those_of_the_whole_map(name: str, momentum: float, order: str) -> None:
    top, h, gamma = topology(name, 8), np.array([0.3, 2.0]), 0.9
    got = limits(top, h, lr=0.05, momentum=momentum, gamma=gamma, order=order)
    assert got.mean_lr == pytest.approx((1 + momentum) * 2 / 2.0)
    assert got.lr <= got.mean_lr
    if got.lr < got.mean_lr:
        assert radius(top, 2.0, got.lr * (1 - 1e-6), momentum, gamma, order) < 1.0
        assert max(radius(top, v, got.lr * (1 + 1e-6), momentum, gamma, order) for v in h) > 1.0
    else:
        assert radius(top, 2.0, got.lr * (1 - 1e-6), momentum, gamma, order) < 1.0 + 1e-9
    slowest = max(radius(top, v, 0.05, momentum, gamma, order) for v in h)
    assert got.relaxation == pytest.approx(-1 / np.log(slowest), rel=1e-6)


def test_the_trap_of_momentum_on_a_negative_eigenvalue_is_named() -> None:
    ring = topology("ring", 8)
    got = limits(ring, 1.0, lr=0.1, momentum=0.9, order="atc")
    assert (got.lr, got.mean_lr, got.eigenvalue) == pytest.approx((0.4, 3.8, -1 / 3))
    assert got.warning == (
        "order atc with momentum 0.9 on a W with eigenvalue -0.333333 is stable only for lr < 0.4, where the mean "
        "alone would bear 3.8: use lazy weights (I + W)/2, gamma <= 0.75, or order awc"
    )
    for cured in (
        limits(from_matrices((ring[0].dense() + np.eye(8)) / 2), 1.0, lr=0.1, momentum=0.9, order="atc"),
        limits(ring, 1.0, lr=0.1, momentum=0.9, gamma=0.75, order="atc"),
        limits(ring, 1.0, lr=0.1, momentum=0.9, order="awc"),
        limits(ring, 1.0, lr=0.1, order="atc"),
    ):
        assert cured.warning is None
        assert cured.lr >= 1.2666
    assert limits(ring, 1.0, lr=0.1, momentum=0.9, gamma=0.75, order="atc").lr == pytest.approx(3.8)


def test_close_to_the_limit_and_beyond() -> None:
    ring = topology("ring", 8)
    close = limits(ring, 1.0, lr=0.62).warning
    assert close == "lr = 0.62 is close to the limit of stability, 0.666667"
    beyond = limits(ring, 1.0, lr=0.7)
    assert beyond.warning == "lr = 0.7 is beyond the limit of stability, 0.666667"
    assert np.isinf(beyond.relaxation)
    assert limits(ring, 1.0, lr=0.7).to_dict()["eigenvalue"] == pytest.approx(-1 / 3)


def test_where_negative_curvature_sets_the_limit_the_graph_is_not_blamed() -> None:
    got = limits(topology("ring", 8), [1.0, -2.0], lr=0.01, momentum=0.9, order="atc")
    assert got.eigenvalue == pytest.approx(0.8047378541)
    assert got.lr < 0.02
    assert got.warning is None
    closer = limits(topology("ring", 8), [1.0, -2.0], lr=0.99 * got.lr, momentum=0.9, order="atc")
    assert closer.warning is not None
    assert "close to the limit" in closer.warning


def test_edges() -> None:
    alone = limits(topology("complete", 1), 2.0, lr=0.1)
    assert (alone.lr, alone.eigenvalue, alone.relaxation) == (1.0, 1.0, 0.0)
    assert limits(from_matrices([np.eye(1)] * 2), 2.0, lr=0.1).lr == 1.0
    flat = limits(topology("ring", 4), 0.0, lr=0.1)
    assert np.isinf(flat.lr)
    assert flat.mean_relaxation == 0.0
    undamped = limits(topology("one-peer-ring", 4), [1.0, 0.0], lr=0.1, gamma=0.0)
    assert (undamped.lr, undamped.relaxation) == (0.0, np.inf)
    with pytest.raises(MixingError, match="drawn anew at every step: its limits are those of the sample"):
        limits(from_function(lambda t: np.eye(3), 3), 1.0, lr=0.1)


@pytest.mark.parametrize(("n", "gamma", "order"), list(itertools.product([2, 4, 6, 10], [1.0, 0.4, 0.05], ORDERS)))
def test_the_one_peer_ring_in_closed_form(n: int, gamma: float, order: str) -> None:
    for h in (0.0, 0.7, 3.0):
        expected = predict(topology("one-peer-ring", n), h, 2.0, lr=0.1, gamma=gamma, order=order)
        got = one_peer_ring_distance(n, h, lr=0.1, gamma=gamma, order=order, noise=2.0)
        assert got == pytest.approx(expected.consensus_distance, rel=1e-11)


@pytest.mark.parametrize(("d", "gamma", "order"), list(itertools.product([1, 2, 3, 4], [1.0, 0.4, 0.05], ORDERS)))
def test_the_one_peer_hypercube_in_closed_form(d: int, gamma: float, order: str) -> None:
    for h in (0.0,) if order == "awc" else (0.0, 0.7, 3.0):
        expected = predict(topology("one-peer-hypercube", 2**d), h, 2.0, lr=0.1, gamma=gamma, order=order)
        got = one_peer_hypercube_distance(d, h, lr=0.1, gamma=gamma, order=order, noise=2.0)
        assert got == pytest.approx(expected.consensus_distance, rel=1e-11)
    if gamma == 1.0 and order == "awc":
        assert one_peer_hypercube_distance(d, lr=1.0) == pytest.approx(2 - (d + 2) / 2**d, rel=1e-13)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: one_peer_ring_distance(5, lr=0.1), "even number of workers, got 5"),
        (lambda: one_peer_ring_distance(4, lr=0.1, gamma=0.0), "has no stationary state on this ring"),
        (lambda: one_peer_hypercube_distance(0, lr=0.1), "at least one dimension, got 0"),
        (lambda: one_peer_hypercube_distance(2, 1.0, lr=0.1), "in orders atc and cta only"),
        (lambda: one_peer_hypercube_distance(2, lr=0.1, gamma=0.0), "has no stationary state here"),
    ],
)
def test_refusals(call, message: str) -> None:
    with pytest.raises(MixingError, match=message):
        call()
