"""Compressors: the dense form of each, and the omega inequality by exact moments and by enumeration."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

from dissensus.algorithms import AlgorithmError, algorithm, stream
from dissensus.algorithms.compression import COMPRESSORS, Quantized, RandomK, ScaledSign, TopK, compressor

D = 6
ROWS = np.array(
    [
        [1.0, -2.0, 0.5, 3.0, 0.0, -0.25],
        [1.0, 1.1, -1.2, 1.3, -1.4, 1.5],
        [0.0, 0.0, -4.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [1e-8, -1e3, 2e-3, 7.0, 1e-30, 5.0],
    ]
)


def generators(key: str) -> list[torch.Generator]:
    return [stream(0, key, i) for i in range(len(ROWS))]


def exact_error(of: Any, v: np.ndarray) -> float:
    """E||Q(v) - v||^2 without a random number: all subsets, or all roundings of the levels number by number."""
    d = len(v)
    if isinstance(of, RandomK):
        k = max(1, math.ceil(of.ratio * d))
        left_out = [sum(v[i] ** 2 for i in range(d) if i not in kept) for kept in itertools.combinations(range(d), k)]
        return float(np.mean(left_out))
    if isinstance(of, Quantized):
        s, norm = 2 ** (of.bits - 1) - 1, np.linalg.norm(v)
        tau, total = 1 + min(d / s**2, math.sqrt(d) / s), 0.0
        for x in v if norm > 0 else ():
            place = s * abs(x) / norm
            low, up = math.floor(place), place - math.floor(place)
            for level, probability in ((low, 1 - up), (low + 1, up)):
                total += probability * (np.sign(x) * norm * level / (s * tau) - x) ** 2
        return total
    return float(((of.dense(v) - v) ** 2).sum())


def choices(name: str) -> list[Any]:
    if name in ("top-k", "random-k"):
        return [compressor(name, ratio=r) for r in (1 / 6, 0.4, 1.0)]
    return [compressor(name, bits=b) for b in (2, 3, 5, 8)] if name == "quantized" else [compressor(name)]


EVERY = [pytest.param(c, id=str(c)) for name in COMPRESSORS for c in choices(name)]


@pytest.mark.parametrize("of", EVERY)
def test_every_row_equals_its_dense_form(of: Any) -> None:
    rows = torch.from_numpy(ROWS)
    got = of(rows, generators("a")) if of.draws else of(rows)
    expected = np.stack([of.dense(row, g) for row, g in zip(ROWS, generators("a"), strict=True)])
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-14, atol=0)
    assert np.array_equal(rows.numpy(), ROWS), "the message is not written to"
    assert np.isfinite(got.numpy()).all(), "a row of zeros is no division by zero"


@pytest.mark.parametrize("of", EVERY)
def test_the_omega_inequality(of: Any) -> None:
    rng = np.random.default_rng(0)
    for v in [*ROWS, *rng.normal(size=(50, D)), *rng.standard_cauchy(size=(50, D))]:
        bound = (1 - of.omega(D)) * float(v @ v)
        assert exact_error(of, v) <= bound * (1 + 1e-12) + 1e-300
    assert 0 < of.omega(D) <= 1


def test_omegas_that_are_attained() -> None:
    flat, single = np.ones(D), np.eye(D)[0]
    for ratio in (1 / 6, 0.5):
        for of, v in ((TopK(ratio), flat), (RandomK(ratio), flat), (RandomK(ratio), single)):
            assert exact_error(of, v) == pytest.approx((1 - of.omega(D)) * float(v @ v), rel=1e-12)
    assert exact_error(ScaledSign(), np.where(single > 0, 1.0, 1e-9)) == pytest.approx(1 - 1 / D, rel=1e-7)
    assert exact_error(ScaledSign(), flat) == pytest.approx(0, abs=1e-12)
    assert [Quantized(b).omega(9) for b in (2, 3)] == pytest.approx([1 / (1 + 3), 1 / (1 + 1)], rel=1e-12)


@pytest.mark.parametrize("bits", [2, 4])
def test_quantized_without_tau_is_unbiased_and_needs_these_bits(bits: int) -> None:
    # E floor(place + u) is place: averaged over a grid of u that meets every rounding equally often
    of, v = Quantized(bits), torch.tensor([3.0, -4.0, 0.0, 12.0], dtype=torch.float64)
    s, tau, norm = 2 ** (bits - 1) - 1, 1 / of.omega(4), 13.0
    mean = np.zeros(4)
    grid = [(j + 0.5) / (13 * 1000) for j in range(13 * 1000)]
    for x_at, x in enumerate(v.tolist()):
        mean[x_at] = np.sign(x) * norm / s * np.mean([math.floor(s * abs(x) / norm + u) for u in grid])
    np.testing.assert_allclose(mean, v.numpy(), rtol=1e-3)
    seen = {float(q) for t in range(200) for q in of(v[None], [stream(t, "u")])[0] * (s * tau / norm)}
    assert all(abs(q - round(q)) < 1e-12 for q in seen)
    assert {round(abs(q)) for q in seen} <= set(range(s + 1))
    assert s + 1 <= 2 ** (bits - 1), "levels fit the bits beside the sign"


def test_quantized_draws_the_rounding_it_says() -> None:
    of, d = Quantized(3), 20_000
    v = torch.full((1, d), 1.0, dtype=torch.float64)
    v[0, 0] = 2.0 * math.sqrt(d)  # the others lie at 3 / sqrt(4 d + d - 1) of a level: mostly sent as zero
    share = 3.0 / math.sqrt(5 * d - 1)
    sent = int((of(v, [stream(0, "many")])[0, 1:] != 0).sum())
    spread = math.sqrt(d * share * (1 - share))
    assert abs(sent - (d - 1) * share) < 5 * spread


def test_random_k_chooses_every_subset_equally_often() -> None:
    of, counts = RandomK(0.5), dict.fromkeys(itertools.combinations(range(4), 2), 0)
    trials = 6000
    for t in range(trials):
        kept = of(torch.ones(1, 4), [stream(0, "subset", t)])[0].nonzero().reshape(-1).tolist()
        counts[tuple(kept)] += 1
    chi_square = sum((c - trials / 6) ** 2 / (trials / 6) for c in counts.values())
    assert chi_square < 20.5, "5 degrees of freedom, one in a thousand"


def test_rows_choose_for_themselves_and_every_step_anew(quadratics: Any, schedules: dict) -> None:
    problem = quadratics.draw(4, 12, 3)
    engine = problem.engine(algorithm("choco-sgd", compressor="random-k", ratio=0.25), schedules["ring"](4), lr=0.0)
    masks, before = [], torch.zeros(4, 12, dtype=torch.float64)
    for t in range(3):
        engine.step(problem.batch(t))
        masks.append((engine.state.own != before).int())
        before = engine.state.own
    assert all(int(m.sum()) <= 12 for m in masks)
    rows = {tuple(row.tolist()) for m in masks for row in m}
    assert len(rows) > 8


@pytest.mark.parametrize("name", ["random-k", "quantized"])
@pytest.mark.parametrize("order", ["gossip-first", "compress-first"])
def test_gossip_with_drawn_messages_keeps_the_mean_and_reaches_consensus(
    name: str, order: str, quadratics: Any, schedules: dict
) -> None:
    problem = quadratics.draw(8, 4, 600)
    recursion = algorithm("choco-sgd", compressor=name, ratio=0.5, bits=3, consensus_step=0.2, order=order)
    engine = problem.engine(recursion, schedules["ring"](8), lr=0.0)
    problem.run(engine, 600)
    np.testing.assert_allclose(engine.x.numpy(), np.tile(problem.x0.mean(axis=0), (8, 1)), rtol=0, atol=1e-5)
    np.testing.assert_allclose(engine.mean.numpy(), problem.x0.mean(axis=0), rtol=0, atol=1e-12)


def test_who_draws_says_so() -> None:
    assert [name for name in COMPRESSORS if algorithm("choco-sgd", compressor=name).stochastic] == [  # type: ignore
        "quantized",
        "random-k",
    ]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"compressor": "quantised"}, "unknown compressor 'quantised'; did you mean 'quantized'"),
        ({"compressor": "quantized", "bits": 1}, r"bits must be a whole number from 2 .* to 16, got 1"),
        ({"compressor": "quantized", "bits": 4.0}, r"bits must be a whole number from 2 .* to 16, got 4.0"),
        ({"compressor": "random_k", "ratio": 1.5}, r"ratio must lie in \(0, 1\], got 1.5"),
    ],
)
def test_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(AlgorithmError, match=message):
        algorithm("choco-sgd", **parameters)


@pytest.mark.parametrize("of", [RandomK(0.5), Quantized(4)], ids=str)
def test_a_compressor_that_draws_needs_generators(of: Any) -> None:
    with pytest.raises(AlgorithmError, match=r"draws: it needs one generator per row, 5 of them, got 0"):
        of(torch.from_numpy(ROWS))
