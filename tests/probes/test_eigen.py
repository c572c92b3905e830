from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from dissensus.probes import Curvature, Matrix, ProbeError, top_eigenvalues
from dissensus.probes.gauss_newton import GaussNewton
from dissensus.probes.krylov import Krylov, gaussian, quadrature, ritz
from dissensus.probes.thick_restart import ThickRestart


@pytest.fixture
def mixed(spectrum):
    values = torch.cat([torch.tensor([9.0, 7, 4, 2.5]), torch.linspace(-0.3, 0.8, 60), torch.tensor([-3.0, -6])])
    return Matrix(spectrum(values)), values.double().sort(descending=True).values


@pytest.mark.parametrize(("which", "pick"), [
    ("largest", lambda v: v[:4]),
    ("smallest", lambda v: v.flip(0)[:4]),
    ("magnitude", lambda v: v[v.abs().argsort(descending=True)][:4]),
])  # fmt: skip
def test_the_outermost_eigenvalues(mixed, which, pick):
    op, values = mixed
    pairs = top_eigenvalues(op, 4, tol=1e-6, which=which)
    assert all(pair.converged for pair in pairs)
    for pair, truth in zip(pairs, pick(values), strict=True):
        assert abs(pair.value - float(truth)) <= pair.residual + 1e-12
        assert pair.residual <= 1e-6 * abs(pair.value)
    assert op.products == pairs[0].num_matvecs < 60


def test_residuals_are_true_and_vectors_orthonormal(mixed):
    op, _ = mixed
    pairs = top_eigenvalues(op, 5, tol=1e-3)
    vectors = torch.stack([pair.vector for pair in pairs])
    torch.testing.assert_close(vectors @ vectors.T, torch.eye(5, dtype=torch.float64), rtol=0, atol=1e-6)
    for pair in pairs:
        true = float((op.matvec(pair.vector) - pair.value * pair.vector).norm())
        assert true <= pair.residual * 1.001 + 1e-10


def test_agreement_with_the_dense_hessian(mlp):
    op = Curvature(*mlp)
    truth = torch.linalg.eigvalsh(op.dense()).flip(0)
    pairs = top_eigenvalues(op, 3, tol=1e-8)
    assert [pair.value for pair in pairs] == pytest.approx(truth[:3].tolist(), rel=1e-8)


def test_a_repeated_eigenvalue_is_found_again(spectrum):
    op = Matrix(spectrum(torch.cat([torch.tensor([5.0, 5, 5, 2, 1.6, 1.2]), torch.linspace(0, 0.3, 60)])))
    pairs = top_eigenvalues(op, 4, tol=1e-6)
    assert [pair.value for pair in pairs] == pytest.approx([5, 5, 5, 2], rel=1e-5)
    assert all(pair.converged for pair in pairs)


def test_few_products_suffice_for_one_outlier(mixed):
    op, _ = mixed
    (top,) = top_eigenvalues(op, 1, tol=1e-3)
    assert top.value == pytest.approx(9, rel=1e-3)
    assert top.num_matvecs <= 16


@pytest.mark.parametrize(("matrix", "truth"), [
    (torch.zeros(6, 6), [0.0, 0.0, 0.0]),
    (torch.eye(6), [1.0, 1.0, 1.0]),
    (torch.diag(torch.tensor([1.0, -2, 3, 0, 0, 0])), [3.0, 1.0, 0.0]),
])  # fmt: skip
def test_spaces_that_close_at_once(matrix, truth):
    pairs = top_eigenvalues(Matrix(matrix.double()), 3)
    assert [pair.value for pair in pairs] == pytest.approx(truth, abs=1e-12)
    assert all(pair.converged for pair in pairs)


def test_one_parameter():
    (pair,) = top_eigenvalues(Matrix([[-4.0]]), 1)
    assert (pair.value, pair.converged) == (-4.0, True)


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_scale_does_not_matter(spectrum, scale):
    values = torch.cat([torch.tensor([9.0, 7]), torch.linspace(-0.3, 0.8, 30)])
    plain = top_eigenvalues(Matrix(spectrum(values)), 2)
    scaled = top_eigenvalues(Matrix(spectrum(values * scale)), 2)
    assert [p.value for p in scaled] == pytest.approx([scale * p.value for p in plain], rel=1e-6)


def test_a_short_budget_says_so(mixed):
    op, _ = mixed
    pairs = top_eigenvalues(op, 4, tol=1e-9, max_matvecs=6)
    assert op.products <= 6
    assert len(pairs) == 4
    assert not pairs[-1].converged
    assert "not converged" in str(pairs[-1])


def test_same_seed_same_bits(mixed):
    op, _ = mixed
    first, second = (top_eigenvalues(op, 2, seed=9) for _ in range(2))
    assert [p.to_dict() for p in first] == [p.to_dict() for p in second]
    assert all(torch.equal(a.vector, b.vector) for a, b in zip(first, second, strict=True))


def test_a_pair_reads_as_an_estimate(mixed):
    pair = top_eigenvalues(mixed[0], 1)[0]
    assert pair.interval == (pair.value - pair.residual, pair.value + pair.residual)
    assert (pair.stderr, pair.interval_method, float(pair)) == (pair.residual, "residual bound", pair.value)
    assert json.loads(json.dumps(pair.to_dict()))["name"] == "eigenvalue 1 (largest)"
    assert str(pair).endswith(f"(residual bound, {pair.num_matvecs} products)")


def test_lanczos_obeys_its_recurrence(mixed):
    op, _ = mixed
    starts = torch.stack([gaussian(torch.Generator().manual_seed(s), op) for s in range(3)])
    space = Krylov(op, starts).run(12)
    alpha, beta = space.tridiagonal()
    for i in range(3):
        q = space.basis[i]
        torch.testing.assert_close(q @ q.T, torch.eye(12, dtype=torch.float64), rtol=0, atol=1e-13)
        t = torch.diag(torch.tensor(alpha[i])) + sum(torch.diag(torch.tensor(beta[i, :-1]), k) for k in (-1, 1))
        torch.testing.assert_close(q @ op.matvec(q).T, t, rtol=0, atol=1e-12)
        torch.testing.assert_close(q[0], starts[i] / starts[i].norm(), rtol=1e-14, atol=0)


@pytest.mark.parametrize("spread", [1e-3, 1e-10])
def test_a_basis_stays_orthonormal_however_wide_the_spectrum(spectrum, spread):
    """Where the next direction is a small rest of a large image, one orthogonalisation leaves rounding in it."""
    op = Matrix(spectrum(torch.logspace(0, np.log10(spread), 60, dtype=torch.float64)))
    start = torch.randn(60, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    restarted = ThickRestart(op, start, 45)
    for _ in range(45):
        restarted.extend()
    for basis in (Krylov(op, start).run(45).basis[0], restarted.basis):
        torch.testing.assert_close(basis @ basis.T, torch.eye(45, dtype=torch.float64), rtol=0, atol=2e-14)


@pytest.mark.parametrize("steps", [1, 2, 4, 7])
def test_quadrature_is_exact_up_to_degree_two_m_minus_one(mixed, steps):
    op, values = mixed
    start = gaussian(torch.Generator().manual_seed(1), op)
    alpha, beta = Krylov(op, start).run(steps).tridiagonal()
    nodes, weights = quadrature(alpha[0], beta[0])
    power = start / start.norm()
    for degree in range(2 * steps + 1):
        truth = float(power @ start / start.norm())
        error = abs(float(weights @ nodes**degree) - truth)
        size = float(values.abs().max()) ** degree
        assert error <= 1e-13 * size if degree < 2 * steps else error > 1e-9 * size
        power = op.matvec(power)


def test_ritz_of_one_step():
    found = ritz(np.array([2.0]), np.array([0.5]))
    assert (found.values.tolist(), found.residuals.tolist()) == ([2.0], [0.5])


@pytest.mark.parametrize("which", ["largest", "smallest", "magnitude"])
@pytest.mark.parametrize("room", [7, 9, 14, 30])
def test_a_restarted_basis_finds_the_same(mixed, which, room):
    op, _ = mixed
    free = top_eigenvalues(op, 4, tol=1e-7, which=which, seed=3)
    kept = top_eigenvalues(op, 4, tol=1e-7, which=which, seed=3, max_basis=room, max_matvecs=2000)
    assert all(pair.converged for pair in kept)
    assert [p.value for p in kept] == pytest.approx([p.value for p in free], rel=1e-9)
    for a, b in zip(free, kept, strict=True):
        assert abs(float(a.vector @ b.vector)) == pytest.approx(1, abs=1e-9)
        assert float((op.matvec(b.vector) - b.value * b.vector).norm()) <= b.residual * 1.001 + 1e-10
    assert kept[0].num_matvecs >= free[0].num_matvecs


def test_the_restarted_space_obeys_its_recurrence(mixed):
    """T = QHQ' and HQ' - Q'T is one vector times the last row, restart after restart."""
    op, _ = mixed
    space = ThickRestart(op, gaussian(torch.Generator().manual_seed(1), op), 10)
    for _ in range(40):
        space.extend()
        found = space.ritz()
        q = space.basis
        torch.testing.assert_close(q @ q.T, torch.eye(len(q), dtype=torch.float64), rtol=0, atol=1e-12)
        vectors = space.vectors(found, np.arange(len(q)))
        rest = op.matvec(vectors) - torch.as_tensor(found.values)[:, None] * vectors
        np.testing.assert_allclose(rest.norm(dim=1).numpy(), found.residuals, atol=1e-10)
        space.make_room(lambda v: -v, 2)
    assert space.restarts >= 7
    assert len(space._rows) == 10


def test_memory_bounds_the_basis(mixed):
    op, values = mixed
    pairs = top_eigenvalues(op, 2, tol=1e-5, memory=8 * 66 * 8, max_matvecs=500)
    assert [p.value for p in pairs] == pytest.approx(values[:2].tolist(), rel=1e-5)
    with pytest.raises(ProbeError, match=r"memory=1000 bytes hold 1 vectors, 2 eigenpairs need 5: allow 2640 bytes"):
        top_eigenvalues(op, 2, memory=1000)
    with pytest.raises(ProbeError, match=r"max_basis=3 is too small for 2 eigenpairs; allow at least 5 vectors"):
        top_eigenvalues(op, 2, max_basis=3)


def test_a_repeated_eigenvalue_in_a_small_basis(spectrum):
    op = Matrix(spectrum(torch.cat([torch.tensor([5.0, 5, 5, 2, 1.6, 1.2]), torch.linspace(0, 0.3, 60)])))
    pairs = top_eigenvalues(op, 4, tol=1e-6, max_basis=8, max_matvecs=1000)
    assert [pair.value for pair in pairs] == pytest.approx([5, 5, 5, 2], rel=1e-5)


@pytest.mark.parametrize(
    "matrix", [torch.zeros(12, 12), torch.eye(12), torch.diag(torch.tensor([2.0] * 6 + [1.0] * 6))]
)
def test_small_bases_that_close(matrix):
    pairs = top_eigenvalues(Matrix(matrix.double()), 3, max_basis=6, max_matvecs=300)
    assert [pair.value for pair in pairs] == pytest.approx([float(matrix[0, 0])] * 3, abs=1e-10)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_float32_at_its_ends(spectrum, scale):
    values = torch.cat([torch.tensor([9.0, 7]), torch.linspace(-0.3, 0.8, 30)])
    pairs = top_eigenvalues(Matrix((spectrum(values) * scale).float()), 2)
    assert [p.value / scale for p in pairs] == pytest.approx([9, 7], rel=1e-5)


def test_gauss_newton_has_no_negative_eigenvalues(mlp):
    op = GaussNewton(*mlp)
    truth = torch.linalg.eigvalsh(op.dense()).flip(0)
    pairs = top_eigenvalues(op, 3, tol=1e-8)
    assert [pair.value for pair in pairs] == pytest.approx(truth[:3].tolist(), rel=1e-8)
    (bottom,) = top_eigenvalues(op, 1, which="smallest", tol=1e-8)
    assert abs(bottom.value) <= bottom.residual + 1e-12


def test_nonsense_is_refused(mixed):
    op, _ = mixed
    with pytest.raises(ProbeError, match=r"k must lie between 1 and the 66 parameters, got 67"):
        top_eigenvalues(op, 67)
    with pytest.raises(ProbeError, match=r"which must be 'largest', 'smallest' or 'magnitude', got 'LM'"):
        top_eigenvalues(op, which="LM")  # type: ignore[arg-type]
    with pytest.raises(ProbeError, match=r"tol must be positive, got 0; 1e-3 means a thousandth of the eigenvalue"):
        top_eigenvalues(op, tol=0)
    with pytest.raises(ProbeError, match=r"max_matvecs=2 cannot give 3 eigenvalues; allow at least 3 products"):
        top_eigenvalues(op, 3, max_matvecs=2)
