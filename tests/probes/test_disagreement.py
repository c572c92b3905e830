from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from dissensus.probes import ProbeError, by_parameter, consensus_distance, dispersion, norm_dispersion
from dissensus.probes.disagreement import displacements


@pytest.fixture
def workers():
    return torch.randn(5, 9, generator=torch.Generator().manual_seed(0))


def test_the_three_distances_by_numpy(workers):
    rows = workers.double().numpy()
    norms = np.linalg.norm(rows - rows.mean(0), axis=1)
    found = consensus_distance(workers)
    assert found.xi == pytest.approx((norms**2).mean(), rel=1e-14)
    assert found.root == pytest.approx(math.sqrt((norms**2).mean()), rel=1e-14)
    assert found.mean_norm == pytest.approx(norms.mean(), rel=1e-14)
    assert found.max_norm == pytest.approx(norms.max(), rel=1e-14)
    assert found.mean_norm <= found.root <= found.max_norm
    assert found.to_dict()["size"] == 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("n", [1, 3, 7])
def test_consensus_is_zero_to_the_bit(n, dtype):
    x = torch.randn(1, 11, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype).expand(n, -1)
    assert consensus_distance(x).to_dict() == {"xi": 0.0, "root": 0.0, "mean_norm": 0.0, "max_norm": 0.0, "size": n}


def test_a_tiny_disagreement_around_a_huge_mean_is_seen():
    x = torch.full((2, 4), 1e8, dtype=torch.float64)
    x[0] += 2.0**-10
    assert consensus_distance(x).xi == pytest.approx(4 * 2.0**-22, rel=1e-12)


def test_shifts_leave_it_and_scales_square_it(workers):
    base = consensus_distance(workers.double()).xi
    assert consensus_distance(workers.double() + 3).xi == pytest.approx(base, rel=1e-13)
    assert consensus_distance(workers.double() * -2).xi == pytest.approx(4 * base, rel=1e-13)


def test_parameters_share_the_whole():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    x = torch.randn(4, 13, generator=torch.Generator().manual_seed(2))
    parts = by_parameter(x, model)
    assert list(parts) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert sum(part.xi for part in parts.values()) == pytest.approx(consensus_distance(x).xi, rel=1e-13)
    assert parts["0.bias"].xi == pytest.approx(consensus_distance(x[:, 6:9]).xi, rel=1e-13)


def test_rows_may_hold_the_trainable_parameters_alone():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    model[0].requires_grad_(False)
    x = torch.randn(4, 13, generator=torch.Generator().manual_seed(2))
    assert list(by_parameter(x, model)) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert by_parameter(x[:, 9:], model) == {k: v for k, v in by_parameter(x, model).items() if k[0] == "1"}
    with pytest.raises(ProbeError, match=r"rows of this model hold 13 parameters, 4 trainable ones"):
        by_parameter(x[:, 1:], model)


def test_dispersion_by_hand():
    found = dispersion([1.0, 2, 3, 6])
    assert found.coefficient_of_variation == pytest.approx(math.sqrt(3.5) / 3)
    assert found.index_of_dispersion == pytest.approx(3.5 / 3)
    pairs = [abs(a - b) for a in (1, 2, 3, 6) for b in (1, 2, 3, 6)]
    assert found.gini == pytest.approx(sum(pairs) / (2 * 16 * 3))
    assert found.quartile_coefficient == pytest.approx((3.75 - 1.75) / (3.75 + 1.75))


def test_dispersion_identities():
    a = np.random.default_rng(0).gamma(2, size=12)
    base, scaled = dispersion(a), dispersion(7 * a)
    for key in ("coefficient_of_variation", "gini", "quartile_coefficient"):
        assert getattr(scaled, key) == pytest.approx(getattr(base, key), rel=1e-12)
    assert scaled.index_of_dispersion == pytest.approx(7 * base.index_of_dispersion, rel=1e-12)
    assert dispersion([0.0] * 9 + [5.0]).gini == pytest.approx(0.9)
    assert dispersion(np.random.default_rng(0).permutation(a)) == base
    for equal in ([0.0] * 3, [0.1] * 7, [5.0]):
        assert set(dispersion(equal).to_dict().values()) == {0.0}


def test_norms_are_blind_to_direction():
    model = nn.Linear(2, 1, bias=False)
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    assert norm_dispersion(x, model)["weight"].gini == 0.0
    assert consensus_distance(x).xi > 0.5


def test_norm_dispersion_is_per_tensor():
    model = nn.Linear(2, 1)
    x = torch.tensor([[3.0, 4.0, 1.0], [0.0, 1.0, 1.0]])
    found = norm_dispersion(x, model)
    assert found["weight"] == dispersion([5.0, 1.0])
    assert found["bias"].gini == 0.0


def test_nonsense_is_refused(workers):
    with pytest.raises(ProbeError, match=r"x must be a tensor of shape \(n, d\), one row per worker, got \(9,\)"):
        consensus_distance(workers[0])
    with pytest.raises(ProbeError, match=r"one row per worker, got list"):
        displacements([[1.0]])  # type: ignore[arg-type]
    workers[3, 2] = float("nan")
    with pytest.raises(ProbeError, match=r"x is not finite in the row of worker 3: look at the steps before"):
        consensus_distance(workers)
    with pytest.raises(ProbeError, match=r"x has shape \(5, 9\), but rows of this model hold 3 parameters"):
        by_parameter(workers, nn.Linear(2, 1))
    with pytest.raises(ProbeError, match=r"dispersion wants one value per worker, got shape \(2, 1\)"):
        dispersion(np.ones((2, 1)))
    with pytest.raises(ProbeError, match=r"dispersion is of finite, non-negative values \(norms\), got -1 to 2"):
        dispersion([2.0, -1.0])
