"""Disagreement and curvature by mode: dense eigendecompositions, identities, workers placed in one mode by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from dissensus.probes import Curvature, Matrix, ProbeError, alignment, consensus_distance
from dissensus.probes.estimate import exact
from dissensus.probes.modes import by_mode, curvature_by_mode
from dissensus.theory import topology


def workers(n: int, d: int = 7, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "n"),
    [("ring", 7), ("ring", 8), ("torus", 12), ("star", 5), ("hypercube", 8), ("path", 6), ("complete", 4)],
)
def test_energies_are_those_of_a_dense_eigendecomposition(name, n):
    x, w = workers(n), topology(name, n)[0].dense()
    values, vectors = np.linalg.eigh(w)
    part = ((vectors.T @ (x - x.mean(0)).numpy()) ** 2).sum(1) / n
    found = by_mode(x, topology(name, n))
    for mode in found:
        own = np.abs(values - mode.eigenvalue.real) < 1e-9
        own[np.abs(vectors.sum(0)) > 0.9 * math.sqrt(n)] = False  # the mean
        assert mode.eigenvalue.imag == 0
        assert mode.multiplicity == own.sum()
        assert mode.energy == pytest.approx(part[own].sum(), rel=1e-10, abs=1e-14)
        assert mode.factor == pytest.approx(abs(mode.eigenvalue))
    assert sum(mode.energy for mode in found) == pytest.approx(consensus_distance(x).xi, rel=1e-12)
    assert sum(mode.multiplicity for mode in found) == n - 1
    assert sum(mode.share for mode in found) == pytest.approx(1)
    factors = [m.factor for m in found]  # modes of one modulus are equal to the rounding of an eigensolver
    assert factors == pytest.approx(sorted(factors, reverse=True), rel=1e-14, abs=1e-15)


@pytest.mark.parametrize("n", [3, 5, 6])
def test_directed_rounds_have_complex_pairs_as_one_mode(n):
    x, graph = workers(n), topology("directed-ring", n)
    found = by_mode(x, graph)
    fourier = np.abs(np.fft.fft((x - x.mean(0)).numpy(), axis=0)) ** 2 / n
    values = np.fft.fft(graph[0].dense()[:, 0])
    for mode in found:
        own = np.isclose(values, mode.eigenvalue, atol=1e-9) | np.isclose(values, np.conj(mode.eigenvalue), atol=1e-9)
        assert mode.multiplicity == own.sum()
        assert mode.energy == pytest.approx(fourier[own].sum() / n, rel=1e-10, abs=1e-14)
        assert mode.eigenvalue.imag >= 0


def test_workers_in_one_mode_are_found_there_and_stay_there():
    n, graph = 8, topology("ring", 8)
    wave = torch.cos(2 * math.pi * torch.arange(n).double() * 2 / n)
    x = 5 + wave[:, None] * torch.tensor([[1.0, -2, 0.5]]).double()
    found = by_mode(x, graph)
    full = [mode for mode in found if mode.share > 1e-20]
    assert len(full) == 1
    assert full[0].eigenvalue.real == pytest.approx(1 / 3 + 2 / 3 * math.cos(math.pi / 2), abs=1e-12)
    mixed = torch.as_tensor(graph[0].dense()) @ x
    after = max(by_mode(mixed, graph), key=lambda mode: mode.energy)
    assert after.energy == pytest.approx(full[0].energy * full[0].factor ** 2, rel=1e-10)


def test_a_period_is_one_product():
    x, hop = workers(8), topology("one-peer-exponential", 8)
    (whole,) = by_mode(x, hop)
    assert (whole.eigenvalue, whole.factor, whole.multiplicity) == (0, 0, 7)
    alternating = topology("one-peer-ring", 8)
    with pytest.raises(ProbeError, match=r"this graph is not normal .*; use singular=True"):
        by_mode(x, alternating)
    found = by_mode(x, alternating, singular=True)
    product = alternating[1].dense() @ alternating[0].dense()
    left = torch.as_tensor(product) @ (x - x.mean(0))
    kept = sum(mode.energy * mode.factor ** (2 * 2) for mode in found)
    assert kept == pytest.approx(float(left.square().sum()) / 8, rel=1e-11)
    assert sum(mode.energy for mode in found) == pytest.approx(consensus_distance(x).xi, rel=1e-12)


def test_curvature_by_mode_adds_up_to_the_alignment(mlp):
    op, graph = Curvature(*mlp), topology("ring", 6)
    x = op.landscape.point + 0.1 * workers(6, 31)
    before = op.products
    found = curvature_by_mode(op, x, graph)
    assert op.products - before == 5
    assert sum(part.numerator for part in found) == pytest.approx(alignment(op, x).numerator, rel=1e-10)
    h, away = op.dense().numpy(), (x - x.mean(0)).numpy()
    values, vectors = np.linalg.eigh(graph[0].dense())
    for part in found:
        own = np.abs(values - part.mode.eigenvalue.real) < 1e-9
        own[np.argmax(values)] = False
        rows = vectors[:, own].T @ away
        truth = np.einsum("kd,de,ke->", rows, h, rows) / 6
        assert part.numerator == pytest.approx(truth, rel=1e-9)
        assert part.rayleigh == pytest.approx(truth / ((rows**2).sum() / 6), rel=1e-9)
    json.dumps([part.to_dict() for part in found], allow_nan=False)


def test_a_mode_that_lies_in_a_sharp_direction_says_so():
    op = Matrix(torch.diag(torch.tensor([10.0, 1, 0.1])).double())
    angle = 2 * math.pi * torch.arange(6).double() / 6
    x = torch.stack([torch.cos(angle), torch.cos(2 * angle), torch.cos(3 * angle)], dim=1)
    found = curvature_by_mode(op, x, topology("ring", 6))
    by_value = {round(part.mode.eigenvalue.real, 9): part.rayleigh for part in found}
    expected = {round(1 / 3 + 2 / 3 * math.cos(2 * math.pi * k / 6), 9): h for k, h in ((1, 10.0), (2, 1.0), (3, 0.1))}
    assert by_value == pytest.approx(expected)


@pytest.mark.parametrize(("noise", "above"), [("alike in all directions", False), ("as the curvature", True)])
def test_both_signs_of_alignment_come_out_of_the_stationary_law(noise, above):
    """DSGD on a quadratic, drawn mode by mode from its stationary variances: a^2 s^2 / ((1 - l + a h)(1 + l - a h))."""
    n, lr, copies = 8, 0.1, 200
    values, vectors = np.linalg.eigh(topology("ring", n)[0].dense())
    h = np.repeat([2.0, 0.7, 0.2, 0.05], copies)
    level = np.ones_like(h) if not above else h
    draw = np.random.default_rng(0)
    x = np.zeros((n, len(h)))
    for k in range(n - 1):
        variance = lr**2 * level / ((1 - values[k] + lr * h) * (1 + values[k] - lr * h))
        x += np.outer(vectors[:, k], draw.normal(size=len(h)) * np.sqrt(variance))
    op = Matrix(torch.diag(torch.as_tensor(h)))
    whole = exact("trace", float(h.sum()), num_matvecs=0, dtype="float64")
    found = alignment(op, torch.as_tensor(x), trace=whole).normalised.value
    assert (found > 1.3) if above else (found < 0.95)
    by_value = [part.rayleigh for part in curvature_by_mode(op, torch.as_tensor(x), topology("ring", n))]
    assert by_value[0] == min(by_value), "the slowest mode is damped by curvature, so it lies where that is least"


def test_consensus_has_modes_without_energy():
    x = torch.ones(5, 3).double()
    found = curvature_by_mode(Matrix(torch.eye(3).double()), x, topology("ring", 5))
    assert all(part.mode.energy == 0 and math.isnan(part.mode.share) and math.isnan(part.rayleigh) for part in found)


def test_chosen_parameters_alone(mlp):
    op = Curvature(*mlp, parameters="2.*")
    x = 0.1 * workers(4, 31)
    found = curvature_by_mode(op, x, topology("ring", 4))
    assert sum(part.mode.energy for part in found) == pytest.approx(consensus_distance(x[:, 16:]).xi, rel=1e-12)


def test_nonsense_is_refused():
    x = workers(4)
    with pytest.raises(ProbeError, match=r"the graph has 5 workers, x has 4 rows; take the topology of this run"):
        by_mode(x, topology("ring", 5))
    with pytest.raises(ProbeError, match=r"modes of a graph need doubly stochastic rounds: with others"):
        by_mode(x, np.tril(np.ones((4, 4))) / np.arange(1, 5)[:, None])
    with pytest.raises(ProbeError, match=r"is drawn at every step and has no modes of its own; pass its mean"):
        by_mode(x, topology("random-gossip", 4))
    with pytest.raises(ProbeError, match=r"x has rows of 7 numbers, the operator takes 3"):
        curvature_by_mode(Matrix(torch.eye(3)), x, topology("ring", 4))
