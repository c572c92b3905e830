"""Lyapunov equations by doubling, and the search for eigenvectors that all rounds share."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import solve_discrete_lyapunov

from dissensus.theory import MixingError, Topology, from_matrices, lyapunov
from dissensus.theory.modes import joint_spectrum, restricted


def matchings(n: int) -> Topology:
    eye, i = np.eye(n), np.arange(n)
    return from_matrices([(eye + eye[i ^ (1 << k)]) / 2 for k in range(n.bit_length() - 1)])


def shifted(n: int) -> Topology:
    eye = np.eye(n)
    return from_matrices([(eye + np.roll(eye, 1 << k, axis=1)) / 2 for k in range(n.bit_length() - 1)])


def without_symmetry(n: int) -> Topology:
    rng = np.random.default_rng(0)
    return from_matrices([(np.eye(n)[rng.permutation(n)] + 2 * np.eye(n)[rng.permutation(n)]) / 3 * 0.9 + 0.1 / n])


def alternating_ring(n: int) -> Topology:
    eye, i = np.eye(n), np.arange(n)
    return from_matrices([(eye + eye[i ^ 1]) / 2, (eye + eye[np.where(i % 2 == 1, (i + 1) % n, (i - 1) % n)]) / 2])


def test_joint_spectrum_is_found_where_it_exists_and_only_there() -> None:
    def of(top):
        return joint_spectrum([restricted(w) for w in top])

    assert of(alternating_ring(8)) is None
    assert of(without_symmetry(5)) is None
    for top in (matchings(8), shifted(8)):
        values = of(top)
        assert values is not None
        for w, lam in zip(top, values, strict=True):
            found, expected = np.append(lam, 1.0), np.linalg.eigvals(w.dense())
            # both contain each other: sorting complex numbers would trip over rounding
            assert np.abs(found[:, None] - expected).min(axis=0).max() < 1e-12
            assert np.abs(found[:, None] - expected).min(axis=1).max() < 1e-12
            assert found.sum() == pytest.approx(np.trace(w.dense()), abs=1e-12)


def test_lyapunov_against_scipy_and_the_edge_of_stability() -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(size=(5, 12, 12)) / 6 + 1j * rng.normal(size=(5, 12, 12)) / 9
    q = np.array([m @ m.conj().T for m in rng.normal(size=(5, 12, 12))])
    radius = lyapunov.radius([a])
    a *= (np.array([0.1, 0.9, 0.999, 1.0, 1.3]) / radius)[:, None, None]
    got = lyapunov.solve(a, q)
    for j in range(3):
        np.testing.assert_allclose(got[j], solve_discrete_lyapunov(a[j], q[j]), rtol=1e-9, atol=1e-9)
    assert np.isinf(got[3:]).all()
    near = 1 - 1e-9
    assert lyapunov.solve(np.array([[near]]), np.eye(1))[0, 0] == pytest.approx(1 / (1 - near**2), rel=1e-6)
    assert lyapunov.solve(np.zeros((0, 3, 3)), np.zeros((0, 3, 3))).shape == (0, 3, 3)
    with pytest.raises(MixingError, match=r"needs square matrices of one shape, got A \(2, 3\)"):
        lyapunov.solve(np.ones((2, 3)), np.eye(3))
    with pytest.raises(MixingError, match="one noise covariance per map, got 1 maps and 0 noises"):
        lyapunov.periodic([np.eye(2)], [])
