"""Heterogeneity on quadratics whose gradients, and whose moments under sampling, are known."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from dissensus.probes import ProbeError
from dissensus.probes.heterogeneity import heterogeneity


class Centre(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64))


def bowl(model, targets):
    return 0.5 * (model.x - targets).square().sum(1).mean()


def drawn(seed: int, apart: float, n: int = 5, m: int = 6, size: int = 4, noise: float = 1.0):
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(n, 3)) * apart
    data = centres[:, None, None] + noise * rng.normal(size=(n, m, size, 3))
    return [[torch.as_tensor(b) for b in worker] for worker in data], centres


def test_on_the_given_data_it_is_the_spread_of_full_gradients():
    workers, _ = drawn(0, 1.0)
    workers = [[batch if b else batch[:2] for b, batch in enumerate(own)] for own in workers]  # a short batch
    found = heterogeneity(Centre(), bowl, workers)
    x = Centre().x.detach()
    full = torch.stack([x - torch.cat(own).mean(0) for own in workers])
    away = (full - full.mean(0)).square().sum(1)
    assert found.plain == pytest.approx(float(away.mean()), rel=1e-12)
    assert found.shares == pytest.approx([float(a) / 5 for a in away], rel=1e-12)
    assert found.gradient_norm2 == pytest.approx(float(full.mean(0).square().sum()), rel=1e-12)
    assert found.relative == pytest.approx(found.plain / found.gradient_norm2)
    json.dumps(found.to_dict(), allow_nan=False)


def test_the_estimate_never_multiplies_a_batch_with_itself():
    workers, _ = drawn(0, 1.0, n=3, m=4)
    x = Centre().x.detach()
    g = torch.stack([torch.stack([x - batch.mean(0) for batch in own]) for own in workers])
    c = g - g.mean(0)
    pairs = [float((c[:, a] * c[:, b]).sum()) / 3 for a in range(4) for b in range(4) if a != b]
    found = heterogeneity(Centre(), bowl, workers).value
    assert found.value == pytest.approx(np.mean(pairs), rel=1e-11)
    left = [np.mean([float((c[:, a] * c[:, b]).sum()) / 3 for a in keep for b in keep if a != b])
            for drop in range(4) for keep in [[i for i in range(4) if i != drop]]]  # fmt: skip
    assert found.stderr == pytest.approx(math.sqrt(3 / 4 * np.var(left) * len(left)), rel=1e-9)
    assert found.interval_method == "jackknife over 4 batches of 3 workers"


@pytest.mark.parametrize("apart", [0.0, 0.5])
def test_it_is_unbiased_where_the_plain_one_is_not_and_its_interval_holds(apart):
    truth = float(((c := drawn(0, apart)[1]) - c.mean(0)).__pow__(2).sum(1).mean())
    found = [heterogeneity(Centre(), bowl, drawn(seed, apart)[0]) for seed in range(100)]
    values = np.array([f.value.value for f in found])
    assert abs(values.mean() - truth) <= 4 * values.std() / math.sqrt(100)
    # of n equal workers with m s samples of variance 3 each, the plain one expects (1 - 1/n) 3 / (m s) too much
    plain = np.array([f.plain for f in found])
    assert plain.mean() - truth == pytest.approx(0.8 * 3 / 24, abs=4 * plain.std() / math.sqrt(100))
    held = np.mean([f.value.interval[0] <= truth <= f.value.interval[1] for f in found])
    assert held >= 0.85


def test_few_batches_say_what_they_cannot():
    workers, _ = drawn(0, 1.0, m=2)
    two = heterogeneity(Centre(), bowl, workers).value
    assert math.isfinite(two.value)
    assert math.isnan(two.stderr)
    assert not two.converged
    one = heterogeneity(Centre(), bowl, [own[:1] for own in workers]).value
    assert math.isnan(one.value)
    assert one.interval_method == "none: one batch a worker has no spread"
    json.dumps(one.to_dict(), allow_nan=False)


def test_equal_workers_are_not_different():
    workers, _ = drawn(0, 1.0)
    found = heterogeneity(Centre(), bowl, [workers[0]] * 4)
    assert found.plain == 0.0
    assert found.value.value == 0.0


def test_nonsense_is_refused():
    workers, _ = drawn(0, 1.0)
    with pytest.raises(ProbeError, match=r"every worker must have as many batches, got \[6, 5\]; cut their data"):
        heterogeneity(Centre(), bowl, [workers[0], workers[1][:5]])
    with pytest.raises(ProbeError, match=r"every worker must have as many batches, got \[\]"):
        heterogeneity(Centre(), bowl, [])
