"""One round on stacked workers against the dense product, for every shape of round and of array."""

import importlib
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from dissensus.theory import MixingError, MixingMatrix
from dissensus.theory.exchange import exchange, plan

exchange_module = importlib.import_module("dissensus.theory.exchange")  # the room's door has a function of that name


def one_peer(peer, keep: Any = 0.5):
    n = len(peer)
    keep = np.broadcast_to(np.asarray(keep, dtype=float), n)
    w = np.zeros((n, n))
    w[np.arange(n), peer] += 1 - keep
    w[np.arange(n), np.arange(n)] += keep
    return MixingMatrix.of(w, "row")


def shift(n, hop, keep=0.5):
    return one_peer((np.arange(n) - hop) % n, keep)


def matching(n, seed=0, keep=0.5):
    p = np.random.default_rng(seed).permutation(n)
    peer = np.arange(n)
    half = n // 2
    peer[p[:half]], peer[p[half : 2 * half]] = p[half : 2 * half], p[:half]
    return one_peer(peer, keep)


def regular(n, k, seed=0):
    """Any round that is not one-peer: k random shifts and oneself."""
    rng = np.random.default_rng(seed)
    w = np.eye(n) / (k + 1)
    for hop in rng.choice(np.arange(1, n), size=k, replace=False):
        w += np.roll(np.eye(n), hop, axis=1) / (k + 1)
    return MixingMatrix.of(w)


TAKEN = np.array([0.1, 0.2, 0.3, 0.4, 0.5])

ROUNDS = {
    "alone": MixingMatrix.identity(9),
    "one worker": MixingMatrix.identity(1),
    "shift": shift(12, 1),
    "shift far": shift(12, 5, 0.7),
    "shift back": shift(12, 11, 0.2),
    "only the peer": shift(7, 2, 0.0),
    "neighbouring pairs": one_peer(np.arange(16) ^ 1),
    "far pairs": one_peer(np.arange(16) ^ 8, 0.7),
    "mirror": one_peer(np.arange(16)[::-1], 0.3),
    "swap": one_peer(np.arange(16) ^ 2, 0.0),
    "matching": matching(14),
    "odd matching": matching(15, keep=0.7),
    "large matching": matching(300, seed=1),
    "large matching, unequal": matching(300, seed=1, keep=0.8),
    "everybody its own weight": one_peer(np.random.default_rng(3).permutation(40), np.linspace(0, 1, 40)),
    "all hear worker 2": one_peer(np.full(20, 2)),
    "push-sum, no own weight": MixingMatrix.of(np.roll(np.diag([1.0] * 5), 1, axis=0), "column"),
    "push-sum, mute rows": MixingMatrix.of(
        np.array([[1.0, 0.5, 0, 0], [0, 0.5, 0, 0], [0, 0, 0, 0.0], [0, 0, 1.0, 1.0]]), "column"
    ),
    "push-sum, equal own weights, unequal others": MixingMatrix.of(
        np.block([[0.5 * np.eye(5), np.diag(TAKEN)], [0.5 * np.eye(5), np.diag(1 - TAKEN)]]), "column"
    ),
    "dense": regular(20, 6),
    "sparse": regular(200, 4),
    "sparse, many neighbours": regular(120, 12),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("d", [1, 10, 100, 5000])
@pytest.mark.parametrize("name", ROUNDS)
def test_equals_the_dense_product(name, d, dtype):
    w = ROUNDS[name]
    x = np.random.default_rng(0).standard_normal((w.size, d)).astype(dtype)
    before = x.copy()
    out = np.full_like(x, np.nan)
    assert exchange(w, x, out) is out
    # every entry is a sum of at most `most` products of rounded factors
    most = int(np.diff(w.weights.indptr).max()) + 2
    bound = most * np.finfo(dtype).eps * (abs(w.dense()) @ abs(x.astype(np.float64)))
    assert np.all(np.abs(out - w.dense() @ x.astype(np.float64)) <= bound)
    assert np.array_equal(x, before)
    assert out.dtype == dtype


@pytest.mark.parametrize("name", ["shift far", "neighbouring pairs", "mirror", "large matching", "dense", "sparse"])
@pytest.mark.parametrize("layout", ["fortran", "every second column", "every second row"])
def test_any_memory_layout(name, layout):
    w = ROUNDS[name]
    n, d = w.size, 70
    rng = np.random.default_rng(1)

    def laid_out():
        if layout == "fortran":
            return np.asfortranarray(rng.standard_normal((n, d)))
        if layout == "every second column":
            return rng.standard_normal((n, 2 * d))[:, ::2]
        return rng.standard_normal((2 * n, d))[::2]

    x, out = laid_out(), laid_out()
    exchange(w, x, out)
    np.testing.assert_allclose(out, w.dense() @ x, atol=1e-13)
    np.testing.assert_allclose(exchange(w, x), out, atol=1e-15)


@pytest.mark.parametrize("strip", [64, 100])
@pytest.mark.parametrize(
    "name", ["shift far", "far pairs", "mirror", "matching", "large matching", "sparse, many neighbours"]
)
def test_strips_join_seamlessly(name, strip, monkeypatch):
    monkeypatch.setattr(exchange_module, "STRIP", strip)
    monkeypatch.setattr(exchange_module, "SPARSE_STRIP_BYTES", 8 * strip * 20)
    w = ROUNDS[name]
    x = np.random.default_rng(2).standard_normal((w.size, 1999))
    np.testing.assert_allclose(exchange(w, x), w.dense() @ x, atol=1e-14)


def test_without_runs_rows_are_gathered(monkeypatch):
    monkeypatch.setattr(exchange_module, "MOST_RUNS", 3)
    w = matching(64, seed=5, keep=0.6)
    found = plan(w).one_peer
    assert found is not None
    assert found.runs is None
    x = np.random.default_rng(2).standard_normal((64, 3000))
    np.testing.assert_allclose(exchange(w, x), w.dense() @ x, atol=1e-14)


@pytest.mark.parametrize("name", ROUNDS)
def test_runs_cover_every_worker_once(name):
    found = plan(ROUNDS[name]).one_peer
    if found is None:
        assert int(np.diff(ROUNDS[name].weights.indptr).max()) > 2
        return
    assert found.runs is not None
    rows = [i for run in found.runs for i in range(10**6)[run.rows]]
    rows += [i for run in found.runs if run.paired for i in range(10**6)[run.peers]]
    assert sorted(rows) == list(range(ROUNDS[name].size))


def test_a_shift_is_two_runs_and_a_plan_is_kept():
    w = shift(4096, 7)
    found = plan(w)
    assert found.one_peer is not None
    assert found.one_peer.runs is not None
    assert len(found.one_peer.runs) == 2
    assert plan(w) is found


def test_a_plan_dies_with_its_matrix():
    held = len(exchange_module._plans)
    plan(shift(5, 1))
    assert len(exchange_module._plans) <= held


def test_infinities_of_others_do_not_leak():
    x = np.ones((6, 100))
    x[3] = np.inf
    w = matching(6)
    got = exchange(w, x)
    touched = {3, int(w.neighbours(3)[0])}
    assert all(np.isfinite(got[i]).all() for i in range(6) if i not in touched)


@pytest.mark.parametrize(
    ("x", "out", "message"),
    [
        (np.ones((3, 2)), None, r"one row for each of 4 workers, \(n, d\), got shape \(3, 2\)"),
        (np.ones(4), None, r"got shape \(4,\)"),
        (np.ones((4, 2), dtype=int), None, "float32 or float64, got int64"),
        (np.ones((4, 2)), np.ones((4, 3)), r"out must be \(4, 2\) of float64 like x, got \(4, 3\)"),
        (np.ones((4, 2)), np.ones((4, 2), dtype=np.float32), "got .* of float32"),
    ],
)
def test_refuses(x, out, message):
    with pytest.raises(MixingError, match=message):
        exchange(shift(4, 1), x, out)


def test_refuses_an_output_that_overlaps():
    x = np.ones((8, 3))
    with pytest.raises(MixingError, match="out overlaps x in memory"):
        exchange(shift(4, 1), x[:4], x[2:6])
    with pytest.raises(MixingError, match="out overlaps x in memory"):
        exchange(shift(8, 1), x, x)


def test_the_sparse_route_is_taken_where_weights_are_few():
    assert not plan(ROUNDS["sparse"]).prefers_dense
    assert plan(ROUNDS["dense"]).prefers_dense
    assert isinstance(ROUNDS["sparse"].weights, sp.csr_array)
