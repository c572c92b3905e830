"""The sharpness family: exact maxima on quadratics, exact moments, and what each measure is blind to."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dissensus.probes import Curvature, Eigenpair, Estimate, ProbeError
from dissensus.probes.average_sharpness import average_sharpness
from dissensus.probes.perturbation import Ball, Diagonal, Gaussian, LowRank, Sphere, Workers
from dissensus.probes.sharpness import KINDS, sharpness
from dissensus.probes.worst_case import in_groups, worst_case_sharpness


class Point(nn.Module):
    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.w = nn.Parameter(values.clone())


def bowl(matrix: Tensor):
    """A quadratic with this Hessian; a sample is what is added to the gradient."""

    def loss(model, batch):
        return 0.5 * model.w @ matrix @ model.w + batch.mean(0) @ model.w

    return loss


def quadratic(spectrum, values, slope=1.0, seed=0):
    matrix = spectrum(torch.as_tensor(values, dtype=torch.float64))
    draw = torch.Generator().manual_seed(seed)
    point = torch.randn(len(matrix), generator=draw, dtype=torch.float64)
    pull = slope * torch.randn(6, len(matrix), generator=draw, dtype=torch.float64)
    return Point(point), bowl(matrix), [pull[:4], pull[4:]], matrix, matrix @ point + pull.mean(0)


def trust_region_maximum(matrix: Tensor, gradient: Tensor, radius: float) -> float:
    """max g'u + u'Hu/2 on the ball, from the secular equation (H symmetric, g with a part in every eigenspace)."""
    values, basis = np.linalg.eigh(matrix.numpy())
    g = basis.T @ gradient.numpy()
    if values[-1] < 0 and np.linalg.norm(g / values) <= radius:
        u = -g / values
    else:
        low, high = max(values[-1], 0.0) * (1 + 1e-14), max(values[-1], 0.0) + np.linalg.norm(g) / radius + 1
        for _ in range(300):
            middle = (low + high) / 2
            low, high = (middle, high) if np.linalg.norm(g / (middle - values)) > radius else (low, middle)
        u = g / (high - values)
    return float(g @ u + 0.5 * (values * u) @ u)


@pytest.mark.parametrize("values", [[5.0, 2, 1, 0.5], [3.0, 1, -1, -4], [-0.1, -0.2, -0.3, -0.4]])
@pytest.mark.parametrize("radius", [0.1, 3.0])
def test_the_ascent_reaches_the_maximum_of_a_quadratic_on_the_ball(spectrum, values, radius):
    model, loss, batches, matrix, gradient = quadratic(spectrum, values)
    truth = trust_region_maximum(matrix, gradient, radius)
    found = worst_case_sharpness(model, loss, batches, radius, steps=200)
    assert found.value == pytest.approx(truth, rel=2e-4)
    assert found.value <= truth * (1 + 1e-12)
    assert found.interval == (found.value, math.inf)
    assert found.interval_method == "lower bound of a maximum"


def test_one_step_is_where_sam_steps(spectrum):
    model, loss, batches, matrix, gradient = quadratic(spectrum, [4.0, 1, 0.2])
    u = 0.3 * gradient / gradient.norm()
    found = worst_case_sharpness(model, loss, batches, 0.3)
    assert found.value == pytest.approx(float(gradient @ u + 0.5 * u @ matrix @ u), rel=1e-11)
    assert (found.stderr, found.interval_method) == (0.0, "exact")
    assert found.name == "worst-case sharpness (radius 0.3, m = all, one step)"
    longer = [worst_case_sharpness(model, loss, batches, 0.3, steps=k).value for k in (2, 5, 20)]
    assert [found.value, *longer] == sorted([found.value, *longer])


def test_the_adaptive_ball_is_the_plain_one_in_sizes_of_the_weights(spectrum):
    model, loss, batches, matrix, gradient = quadratic(spectrum, [4.0, 1, 0.2])
    scale = torch.diag(model.w.detach().abs())
    truth = trust_region_maximum(scale @ matrix @ scale, scale @ gradient, 0.7)
    found = worst_case_sharpness(model, loss, batches, 0.7, steps=300, adaptive=True)
    assert found.value == pytest.approx(truth, rel=1e-4)
    once = worst_case_sharpness(model, loss, batches, 0.7, adaptive=True)
    step = 0.7 * scale @ scale @ gradient / (scale @ gradient).norm()
    assert once.value == pytest.approx(float(gradient @ step + 0.5 * step @ matrix @ step), rel=1e-11)


def test_a_stationary_point_is_left_in_some_direction(spectrum):
    matrix = spectrum([6.0, 1, 0.1])
    model, batches = Point(torch.zeros(3, dtype=torch.float64)), [torch.zeros(2, 3, dtype=torch.float64)]
    found = worst_case_sharpness(model, bowl(matrix), batches, 0.5, steps=200)
    assert found.value == pytest.approx(0.5 * 6 * 0.25, rel=1e-6)
    cap = worst_case_sharpness(model, bowl(-matrix), batches, 0.5, steps=20)
    assert cap.value == 0.0, "at a maximum the worst place of the ball is where we are"


def test_m_cuts_batches_and_every_group_has_a_direction_of_its_own(spectrum):
    model, loss, batches, matrix, _ = quadratic(spectrum, [3.0, 1, 0.5], slope=4.0)
    found = worst_case_sharpness(model, loss, batches, 0.2, m=2)
    values = []
    for group in (batches[0][:2], batches[0][2:], batches[1]):
        g = matrix @ model.w.detach() + group.mean(0)
        u = 0.2 * g / g.norm()
        values.append(float(g @ u + 0.5 * u @ matrix @ u))
    assert found.value == pytest.approx(np.mean(values), rel=1e-11)
    assert found.stderr == pytest.approx(np.std(values, ddof=1) / math.sqrt(3), rel=1e-9)
    assert found.name.endswith("m = 2, one step)")
    by_size = [worst_case_sharpness(model, loss, batches, 0.2, m=m).value for m in (1, 2)]
    assert by_size[0] > by_size[1] > worst_case_sharpness(model, loss, batches, 0.2).value
    pieces = in_groups([(torch.arange(5), "label")], 2)
    assert [piece[0].tolist() for piece in pieces] == [[0, 1], [2, 3], [4]]
    assert worst_case_sharpness(model, loss, batches, 0.2, m=2, steps=3).interval[1] == math.inf


def covariances(x: Tensor, d: int) -> dict:
    away = x - x.mean(0)
    variances = torch.linspace(0, 0.02, d, dtype=torch.float64)
    return {
        "sphere": (Sphere(0.3), torch.eye(d).double() * 0.09 / d),
        "ball": (Ball(0.3), torch.eye(d).double() * 0.09 / (d + 2)),
        "gaussian": (Gaussian(0.3), torch.eye(d).double() * 0.09 / d),
        "diagonal": (Diagonal(variances), torch.diag(variances)),
        "low rank": (LowRank(away), away.T @ away),
        "workers": (Workers(x), away.T @ away / len(x)),
    }


@pytest.mark.parametrize("name", ["sphere", "ball", "gaussian", "diagonal", "low rank", "workers"])
def test_perturbations_have_the_covariance_they_promise(mlp, name):
    landscape = Curvature(*mlp).landscape
    x = 0.1 * torch.randn(5, 31, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    perturbation, sigma = covariances(x, 31)[name]
    rows = perturbation.draw(40_000, landscape, torch.Generator().manual_seed(0))
    scale = torch.sqrt(torch.outer(sigma.diag(), sigma.diag()) + sigma.square())
    # every entry of a sample covariance of N normal vectors has standard error sqrt((s_ii s_jj + s_ij^2) / N)
    errors = (rows.T @ rows / len(rows) - sigma).abs() / (scale + 1e-300) * math.sqrt(len(rows))
    assert float(errors[scale > 0].max()) < 6
    if name == "sphere":
        torch.testing.assert_close(rows.norm(dim=1), torch.full((len(rows),), 0.3).double())
    if name == "ball":
        lengths = rows.norm(dim=1) / 0.3
        assert float(lengths.max()) <= 1 + 1e-12
        assert float((lengths**31).mean()) == pytest.approx(0.5, abs=6 * 0.289 / 200)


@pytest.mark.parametrize("name", ["sphere", "gaussian", "diagonal", "low rank", "workers"])
def test_on_a_quadratic_the_average_is_half_the_trace_of_h_times_the_covariance(spectrum, name):
    model, loss, batches, matrix, _ = quadratic(spectrum, torch.linspace(-1, 5, 12))
    x = 0.1 * torch.randn(5, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    perturbation, sigma = covariances(x, 12)[name]
    truth = 0.5 * float((matrix * sigma).sum())
    found = average_sharpness(model, loss, batches, perturbation, rtol=0.1, max_pairs=2000)
    assert found.converged
    assert abs(found.value - truth) <= 4 * found.stderr
    assert found.num_matvecs == 0
    scale = torch.diag(model.w.detach().abs())
    relative = average_sharpness(model, loss, batches, perturbation, adaptive=True, rtol=0.1, max_pairs=2000)
    assert abs(relative.value - 0.5 * float((scale @ matrix @ scale * sigma).sum())) <= 4 * relative.stderr


def test_on_average_the_interval_holds(spectrum):
    model, loss, batches, matrix, _ = quadratic(spectrum, torch.linspace(0.1, 5, 12))
    truth = 0.5 * float(matrix.trace()) * 0.04 / 12
    held = [
        low <= truth <= high
        for seed in range(60)
        for low, high in [average_sharpness(model, loss, batches, Sphere(0.2), rtol=0.1, seed=seed).interval]
    ]
    assert 0.85 <= np.mean(held) <= 1.0


def test_the_same_seed_gives_the_same_bits_and_another_another(mlp):
    model, loss, batches = mlp
    first, again, other = (average_sharpness(model, loss, batches, Gaussian(0.1), seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.value != other.value


def relu_net() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).double()


def norm_net() -> nn.Sequential:
    torch.manual_seed(3)
    layers = [nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3, eps=1e-30), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)]
    return nn.Sequential(*layers).double()


def by_layers(model: nn.Sequential) -> nn.Sequential:
    return rescaled(model, torch.full((6,), 10.0).double())


def by_neurons(model: nn.Sequential) -> nn.Sequential:
    return rescaled(model, torch.tensor([0.05, 2, 10, 1, 0.1, 20]).double())


def rescaled(model: nn.Sequential, factors: Tensor) -> nn.Sequential:
    changed: Any = copy.deepcopy(model)
    with torch.no_grad():
        changed[0].weight *= factors[:, None]
        changed[0].bias *= factors
        changed[2].weight /= factors
    return changed


def before_norm(model: nn.Sequential) -> nn.Sequential:
    changed: Any = copy.deepcopy(model)
    factors = torch.tensor([0.1, 5, 10]).double()
    with torch.no_grad():
        changed[0].weight *= factors[:, None, None, None]
        changed[0].bias *= factors
        changed[1].running_mean *= factors
        changed[1].running_var *= factors**2
    return changed


def same_output(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


RESCALINGS = {
    "layers": (relu_net, by_layers, (4,), "eval"),
    "neurons": (relu_net, by_neurons, (4,), "eval"),
    "normalised, train": (norm_net, before_norm, (1, 3, 3), "train"),
    "normalised, eval": (norm_net, before_norm, (1, 3, 3), "eval"),
}


def batches_of(shape: tuple[int, ...]) -> list:
    draw = torch.Generator().manual_seed(0)
    return [
        (torch.randn(12, *shape, generator=draw).double(), torch.randint(0, 3, (12,), generator=draw)) for _ in "ab"
    ]


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@pytest.mark.parametrize("rescaling", RESCALINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_measure_is_blind_to_is_what_the_table_says(kind, rescaling):
    build, rescale, shape, mode = RESCALINGS[rescaling]
    model, batches = build(), batches_of(shape)
    changed = rescale(model)
    before, after = (m.train(mode == "train")(batches[0][0]) for m in (copy.deepcopy(model), copy.deepcopy(changed)))
    torch.testing.assert_close(before, after, rtol=1e-12, atol=1e-12)
    workers = []
    for i in range(4):
        worker = copy.deepcopy(model)
        with torch.no_grad():
            for p in worker.parameters():
                p += 0.02 * torch.randn(p.shape, generator=torch.Generator().manual_seed(i + p.numel())).double()
        workers.append(worker)
    options = {"radius": 0.1, "adaptive_radius": 0.3, "rtol": 0.5, "mode": mode, "steps": 5}
    found = []
    for m, everybody in ((model, workers), (changed, [rescale(w) for w in workers])):
        x = torch.stack([flat(w) for w in everybody])
        found.append(sharpness(m, same_output, batches, [kind], x=x, **options)[kind].value)
    told = getattr(KINDS[kind], rescaling.split(",")[0])
    if told:
        assert found[1] == pytest.approx(found[0], rel=1e-6)
    else:
        assert abs(found[1] / found[0] - 1) > 0.05


def test_all_measures_come_by_name_and_share_an_operator(mlp):
    model, loss, batches = mlp
    op = Curvature(model, loss, batches)
    x = op.landscape.point + 0.01 * torch.randn(3, 31, generator=torch.Generator().manual_seed(0)).double()
    found = sharpness(model, loss, batches, x=x, operator=op, m=2)
    assert list(found) == list(KINDS)
    assert isinstance(found["largest-eigenvalue"], Eigenpair)
    assert all(isinstance(value, Estimate) for kind, value in found.items() if kind != "largest-eigenvalue")
    assert op.products >= found["largest-eigenvalue"].num_matvecs, "the operator at hand was used"
    dense = op.dense()
    assert found["trace"].value == pytest.approx(float(dense.trace()), rel=0.1)
    assert found["largest-eigenvalue"].value == pytest.approx(float(torch.linalg.eigvalsh(dense)[-1]), rel=1e-3)
    assert "workers" not in sharpness(model, loss, batches, rtol=1.0)


def test_chosen_parameters_alone_are_perturbed(mlp):
    model, loss, batches = mlp
    only = worst_case_sharpness(model, loss, batches, 0.1, parameters="2.*").value
    landscape = Curvature(model, loss, batches, "2.*").landscape
    g = landscape.gradient()
    truth = landscape.value(landscape.point + 0.1 * g / g.norm()) - landscape.value()
    assert only == pytest.approx(truth, rel=1e-12)


def test_nonsense_is_refused(mlp):
    model, loss, batches = mlp
    with pytest.raises(ProbeError, match=r"unknown sharpness 'sma'; did you mean 'sam'\?"):
        sharpness(model, loss, batches, ["sma"])
    with pytest.raises(ProbeError, match=r"sharpness 'workers' perturbs as the workers disagree; give their"):
        sharpness(model, loss, batches, ["workers"])
    with pytest.raises(ProbeError, match=r"radius must be a positive number \(a length in parameter units\), got 0"):
        worst_case_sharpness(model, loss, batches, 0)
    with pytest.raises(ProbeError, match=r"radius must be a positive number .* got -1"):
        Gaussian(-1)
    with pytest.raises(ProbeError, match=r"steps and starts must be at least 1, got steps=0, starts=1"):
        worst_case_sharpness(model, loss, batches, steps=0)
    with pytest.raises(ProbeError, match=r"m=9 is more than the 7 samples of batch 0; give larger batches"):
        worst_case_sharpness(model, loss, batches, m=9)
    with pytest.raises(ProbeError, match=r"m must be at least 1 sample, got 0"):
        worst_case_sharpness(model, loss, batches, m=0)
    with pytest.raises(ProbeError, match=r"m cuts batches and weights them by samples; leave weights out"):
        worst_case_sharpness(model, loss, batches, m=2, weights=[1, 2])
    with pytest.raises(ProbeError, match=r"batch 0 cannot be cut into groups of m=1: its tensors begin with \[2, 3\]"):
        in_groups([(torch.zeros(2), torch.zeros(3))], 1)
    with pytest.raises(ProbeError, match=r"rtol must be positive, got 0; 0.05 means a twentieth of the value"):
        average_sharpness(model, loss, batches, Sphere(1.0), rtol=0)
    with pytest.raises(ProbeError, match=r"max_pairs=3 is too few for an interval; allow at least 12"):
        average_sharpness(model, loss, batches, Sphere(1.0), max_pairs=3)
    with pytest.raises(ProbeError, match=r"variances must not be negative, got -1; take squares, not roots"):
        average_sharpness(model, loss, batches, Diagonal(-torch.ones(31)))
