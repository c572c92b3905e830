"""Principal angles against constructions with known ones and against scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.linalg import subspace_angles

from dissensus.probes import ProbeError
from dissensus.probes.subspace import disagreement_angles, principal_angles


def basis(k: int, d: int, seed: int) -> torch.Tensor:
    draw = torch.randn(d, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.linalg.qr(draw).Q.T


@pytest.mark.parametrize(("k", "m"), [(1, 1), (2, 3), (4, 2), (3, 3)])
def test_angles_are_those_of_scipy(k, m):
    a, b = basis(k, 9, 0), basis(m, 9, 1)
    found = principal_angles(a, b)
    truth = np.degrees(subspace_angles(a.T.numpy(), b.T.numpy()))[::-1]
    assert found.degrees == pytest.approx(tuple(truth), rel=1e-9)
    assert found.overlap == pytest.approx(float(np.cos(np.radians(truth)) @ np.cos(np.radians(truth))) / min(k, m))
    assert found.by_chance == max(k, m) / 9
    assert found.dimensions == (k, m)


def test_tiny_angles_are_resolved():
    e = torch.eye(5, dtype=torch.float64)
    tilt = 1e-9
    turned = torch.stack([math.cos(tilt) * e[0] + math.sin(tilt) * e[2], e[1]])
    assert principal_angles(e[:2], turned).degrees == pytest.approx((0.0, math.degrees(tilt)), rel=1e-6, abs=1e-20)
    assert principal_angles(e[:2], e[2:4]).degrees == pytest.approx((90.0, 90.0))
    assert principal_angles(e[:1], e[:3]).overlap == 1.0


def test_random_spaces_overlap_as_chance_says():
    overlaps = [principal_angles(basis(3, 40, 2 * s), basis(5, 40, 2 * s + 1)).overlap for s in range(200)]
    assert np.mean(overlaps) == pytest.approx(5 / 40, abs=float(4 * np.std(overlaps) / math.sqrt(200)))


def test_disagreement_within_and_without_the_top_space():
    rows = basis(4, 12, 0)
    x = 3 + torch.randn(6, 2, generator=torch.Generator().manual_seed(1)).double() @ rows[:2]
    inside = disagreement_angles(x, rows[:2])
    assert inside.degrees == pytest.approx((0, 0), abs=1e-5)
    assert inside.overlap == pytest.approx(1)
    assert disagreement_angles(x, rows[2:]).degrees == pytest.approx((90, 90))
    assert disagreement_angles(x, rows, count=1).dimensions == (1, 4)


def test_nonsense_is_refused():
    with pytest.raises(ProbeError, match=r"the second rows are not orthonormal \(off by 3\); use torch.linalg.qr"):
        principal_angles(basis(1, 3, 0), 2 * torch.eye(3))
    with pytest.raises(ProbeError, match=r"the spaces lie in 3 and 4 dimensions; choose the same parameters"):
        principal_angles(basis(1, 3, 0), basis(1, 4, 0))
    with pytest.raises(ProbeError, match=r"the vectors have 4 entries, the rows of x 3; choose the same ones"):
        disagreement_angles(torch.randn(3, 3), basis(1, 4, 0))
