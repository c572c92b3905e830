"""The covariance matrix of the disagreement, noise and Hessian without common eigenvectors, and named laws of noise."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from dissensus.theory import MixingError, from_matrices, noise, topology
from dissensus.theory.coupled import Quadratics
from dissensus.theory.covariance import covariance
from dissensus.theory.heterogeneous import predict as predict_all
from dissensus.theory.stationary import predict


def matrices(d: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(d, d)))[0]
    root = rng.normal(size=(d, d))
    return basis @ np.diag(np.linspace(0.0, 1.5, d)) @ basis.T, root @ root.T


CASES = list(
    itertools.product(["ring", "one-peer-ring", "one-peer-exponential", "directed-ring"], ["awc", "atc", "cta"],
                      [(0.0, False, 0.0), (0.8, False, 0.0), (0.8, True, 0.2), (0.0, False, 0.2)])
)  # fmt: skip


@pytest.mark.parametrize(("name", "order", "move"), CASES)
def test_against_the_lyapunov_equation_of_all_coordinates(name, order, move) -> None:
    hessian, spread = matrices(3, 1)
    momentum, nesterov, decay = move
    settings: dict[str, Any] = {"lr": 0.15, "gamma": 0.6, "order": order, "momentum": momentum, "nesterov": nesterov,
                "weight_decay": decay}  # fmt: skip
    got = covariance(topology(name, 6), hessian, spread, **settings)
    full = predict_all(topology(name, 6), Quadratics.of(6, hessian, noise=spread), **settings)
    np.testing.assert_allclose(got, full.covariance, rtol=1e-10, atol=1e-12 * np.abs(got).max())
    by_modes = predict(topology(name, 6), *_along(hessian, spread), **settings)
    assert np.trace(got) == pytest.approx(by_modes.consensus_distance, rel=1e-11)
    assert 0.5 * np.trace(hessian @ got) == pytest.approx(by_modes.envelope, rel=1e-11)


def _along(hessian: np.ndarray, spread: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    values, basis = np.linalg.eigh(hessian)
    return values, np.diag(basis.T @ spread @ basis)


def test_rows_taken_in_portions_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    hessian, spread = matrices(5, 2)
    settings: dict[str, Any] = {"lr": 0.1, "momentum": 0.5}
    whole = covariance(topology("one-peer-ring", 6), hessian, spread, **settings)
    monkeypatch.setattr("dissensus.theory.covariance._CHUNK", 1)
    np.testing.assert_array_equal(covariance(topology("one-peer-ring", 6), hessian, spread, **settings), whole)


def test_a_single_worker_and_eigenvalues_instead_of_a_topology() -> None:
    hessian, spread = matrices(2, 3)
    assert not covariance(from_matrices([np.eye(1)] * 2), hessian, spread, lr=0.1).any()
    values = np.linalg.eigvalsh(topology("ring", 6)[0].dense())
    np.testing.assert_allclose(
        covariance(values, hessian, spread, lr=0.1),
        covariance(topology("ring", 6), hessian, spread, lr=0.1),
        rtol=1e-12,
    )


def test_laws_of_noise() -> None:
    h = [2.0, 0.5, -1.0, 0.0]
    assert noise.along(h, 2.0) == pytest.approx([0.5] * 4)
    assert noise.along(h, 2.0, "hessian") == pytest.approx([1.6, 0.4, 0.0, 0.0])
    assert noise.along(h, 3.0, multiplicity=[1, 2, 0, 0]) == pytest.approx([1.0, 2.0, 0.0, 0.0])


@pytest.mark.parametrize("law", ["isotropic", "hessian"])
def test_a_density_predicts_what_the_spectrum_it_stands_for_does(law: str) -> None:
    curvatures = np.repeat([0.1, 1.0, 3.0], [70, 25, 5])
    nodes, total, mean = noise.on_density([0.1, 1.0, 3.0], [0.7, 0.25, 0.05], 4.0, law)
    settings: dict[str, Any] = {"lr": 0.1, "gamma": 0.3, "momentum": 0.9}
    full = predict(topology("ring", 8), curvatures, noise.along(curvatures, 4.0, law), **settings)
    short = predict(topology("ring", 8), nodes, total, mean_curvature=mean, **settings)
    assert short.consensus_distance == pytest.approx(full.consensus_distance, rel=1e-12)
    assert short.envelope == pytest.approx(full.envelope, rel=1e-12)
    assert short.normalised_alignment == pytest.approx(full.normalised_alignment, rel=1e-12)
    assert short.excess == pytest.approx(full.excess, rel=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: noise.along([1.0], 1.0, "isotrop"), "unknown law of noise 'isotrop'; did you mean 'isotropic'"),
        (lambda: noise.along([1.0], -1.0), "tr S must be finite and not negative, got -1"),
        (lambda: noise.along([-1.0], 1.0, "hessian"), "needs a positive curvature, got none"),
        (lambda: noise.along([1.0], 1.0, multiplicity=0.0), "needs at least one direction"),
        (lambda: noise.on_density([1.0], [0.5, 0.5], 1.0), r"one mass per node, got nodes \(1,\) and masses \(2,\)"),
        (lambda: noise.on_density([1.0, 2.0], [0.5, 0.4], 1.0), "add up to 1, got a sum of 0.9"),
        (lambda: covariance([1.0, 0.5], np.eye(2), np.eye(3), lr=0.1), "one shape, got"),
        (lambda: covariance([1.0, 0.5], [[1.0, 2.0], [0.0, 1.0]], np.eye(2), lr=0.1), "hessian must be symmetric"),
        (lambda: covariance([1.0, 0.5], np.eye(2), np.ones(2), lr=0.1), "noise must be a finite square matrix"),
        (lambda: covariance([1.0, 0.5], np.eye(2), np.eye(2), lr=9.0), "lr = 9 has no stationary state"),
    ],
)
def test_refusals(call, message: str) -> None:
    with pytest.raises(MixingError, match=message):
        call()
