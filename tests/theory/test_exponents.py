"""Exponents of gamma = (lr/lr_max)^p, noise with a memory, what a cosine freezes, and alignment that is monotone."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import solve_discrete_lyapunov

from dissensus.theory import MixingError, from_matrices, topology
from dissensus.theory.annealed import trajectory
from dissensus.theory.exponents import exponents, fate, limit_exponent
from dissensus.theory.fixed_point import expected_bias
from dissensus.theory.freezing import frozen_disagreement, frozen_variance
from dissensus.theory.persistent import persistent_variance
from dissensus.theory.stationary import predict
from dissensus.theory.variance import bias, variance

CURVED = [2.0, 0.7, 0.2, 0.05]


@pytest.mark.parametrize(("p", "expected"), [(0, 2), (0.5, 1.5), (1, 1), (1.5, 1), (2, 1), (3, 1)])
@pytest.mark.parametrize(("momentum", "order"), [(0.0, "awc"), (0.9, "atc")])
def test_white_noise_reaches_the_exponent_of_the_table(p: float, expected: float, momentum: float, order: str) -> None:
    got = exponents(topology("ring", 8), CURVED, p=p, lr_max=0.1, lrs=[1e-12], momentum=momentum, order=order)
    assert got.limits["envelope"] == got.limits["consensus_distance"] == expected
    assert got.points[0].slopes["envelope"] == pytest.approx(expected, abs=2e-3)
    assert got.points[0].slopes["ratio"] == pytest.approx(max(1 - p, 0), abs=2e-3)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0])
def test_flat_directions_follow_the_graph_for_ever(p: float) -> None:
    got = exponents(topology("ring", 8), [0.0, 1.0], p=p, lr_max=0.1, lrs=[1e-10])
    assert got.limits["consensus_distance"] == 2 - p
    assert got.points[0].slopes["consensus_distance"] == pytest.approx(2 - p, abs=3e-3)
    assert fate(2 - p) == ("vanishes" if p < 2 else "stays" if p == 2 else "grows")
    fates = got.to_dict()["fates"]
    assert fates == {"envelope": "vanishes", "consensus_distance": fate(2 - p), "ratio": fate(max(1 - p, 0))}


@pytest.mark.parametrize(("p", "expected"), [(0, 2), (0.5, 1), (1, 0), (1.5, 0), (2, 0)])
def test_constant_forces_reach_the_exponent_of_the_table(p: float, expected: float) -> None:
    got = exponents(topology("ring", 8), CURVED, p=p, lr_max=0.1, lrs=[1e-12], memory=1.0)
    assert got.limits["envelope"] == expected
    assert got.points[0].slopes["envelope"] == pytest.approx(expected, abs=2e-3)
    assert got.points[0].ratio is None


@given(st.floats(0.0, 4.0), st.floats(1e-4, 0.2), st.floats(0.0, 0.9), st.sampled_from([0.0, 1.0]))
def test_the_small_step_law_of_the_slope(p: float, lr: float, momentum: float, memory: float) -> None:
    """1 + (1 - p) theta and 2 (1 - p) theta: exact for a constant force in AWC, first order in the steps otherwise."""
    small = 1e-3 * (1 - momentum)
    got = exponents(
        topology("ring", 8), CURVED, p=p, lr_max=small * 1e3, lrs=[small * lr], momentum=momentum, memory=memory
    ).points[0]
    assert got.theta is not None
    assert got.slopes["envelope"] is not None
    if memory == 1.0 or (p >= 0.5 and got.gamma < 1e-2 * (1 - momentum)):
        assert got.slopes["envelope"] == pytest.approx(got.expected, abs=1e-4 if memory else 0.02)


def test_p_equal_to_one_is_the_point_where_curvature_does_not_matter() -> None:
    for curvatures in (CURVED, [10.0], [1e-4, 1.0]):
        white = exponents(topology("ring", 8), curvatures, p=1.0, lr_max=0.05, lrs=[1e-5, 1e-3])
        forced = exponents(topology("ring", 8), curvatures, p=1.0, lr_max=0.05, memory=1.0)
        assert [point.slopes["envelope"] for point in white.points] == pytest.approx([1.0, 1.0], abs=0.02)
        assert all(point.slopes["envelope"] == pytest.approx(0.0, abs=1e-9) for point in forced.points)


def test_the_ratio_to_the_excess_risk_is_a_constant_at_p_one_and_the_cap_above() -> None:
    def at(p: float) -> float:
        ratio = exponents(topology("ring", 8), CURVED, p=p, lr_max=0.25, lrs=[1e-8]).points[0].ratio
        assert ratio is not None
        return ratio

    assert at(0) < 1e-6
    assert at(1) == pytest.approx(1.445, abs=1e-3)
    assert at(2) == pytest.approx(7.0, abs=1e-3)


def test_a_schedule_has_slopes_but_no_share() -> None:
    point = exponents(topology("one-peer-ring", 8), CURVED, p=1.0, lr_max=0.1, lrs=[1e-4]).points[0]
    assert point.slopes["envelope"] == pytest.approx(1.0, abs=0.01)
    assert (point.theta, point.expected) == (None, None)


def test_complete_graphs_in_atc_have_nothing_to_lose() -> None:
    got = exponents(topology("complete", 4), 1.0, p=0.0, lr_max=0.1, order="atc")
    assert got.points[0].slopes["envelope"] is None
    assert len(got.points) == 31
    assert got.points[0].to_dict()["graph_share"] is None


settings = st.tuples(
    st.floats(-0.9, 0.99), st.floats(0.05, 1.0), st.floats(0.0, 2.0), st.floats(0.01, 0.4), st.floats(0.0, 0.9),
    st.sampled_from(["awc", "atc", "cta"]), st.booleans(), st.floats(0.0, 0.999),
)  # fmt: skip


@given(settings)
def test_noise_with_a_memory_against_a_plain_lyapunov_equation(setting: Any) -> None:
    lam, gamma, h, lr, momentum, order, nesterov, memory = setting
    m = 1 - gamma * (1 - lam)
    point = {"awc": h, "atc": h, "cta": h * m}[order]
    c = lr * (m if order == "atc" else 1.0)
    k, own = (1 + momentum, momentum**2) if nesterov else (1.0, momentum)
    a = np.array([[m - c * k * point, -c * own, -c * k], [point, momentum, 1.0], [0.0, 0.0, memory]])
    radius = np.abs(np.linalg.eigvals(a)).max()
    got = persistent_variance(lam, h, lr, momentum, gamma, order, nesterov, 2.0, memory=memory)
    if radius >= 1 - 1e-6:
        assert radius < 1 or np.isinf(got)
        return
    state = 2.0 * solve_discrete_lyapunov(a, np.diag([0.0, 0.0, 1 - memory**2]))
    # the oracle's error is relative to the largest entry of the state, and grows with its memory
    assert got == pytest.approx(state[0, 0], rel=1e-12, abs=1e-15 * np.abs(state).max() / (1 - radius) ** 2)


@pytest.mark.parametrize("momentum", [0.0, 0.8])
@pytest.mark.parametrize("order", ["awc", "atc", "cta"])
def test_from_white_noise_to_a_constant_force(order: str, momentum: float) -> None:
    mode: tuple[Any, ...] = (0.4, 0.9, 0.1, momentum, 0.7, order)
    assert persistent_variance(*mode, memory=0.0) == pytest.approx(variance(*mode), rel=1e-12)
    nearly = persistent_variance(*mode, memory=1 - 1e-9)
    assert persistent_variance(*mode, memory=1.0) == pytest.approx(bias(*mode) ** 2, rel=1e-14)
    assert nearly == pytest.approx(bias(*mode) ** 2, rel=1e-6)
    assert np.isinf(persistent_variance(0.5, 1.0, 9.0, memory=0.5))


def test_expected_bias_is_the_mean_over_rotated_forces() -> None:
    """Every arrangement of the same forces over the workers, averaged, spreads them evenly over the modes."""
    n, rng = 4, np.random.default_rng(0)
    ring = topology("ring", n)
    force = rng.normal(size=n)
    force -= force.mean()
    values, vectors = np.linalg.eigh(ring[0].dense())
    total = 0.0
    for k in range(4000):
        parts = vectors[:, :-1].T @ np.random.default_rng(k).permutation(force)
        total += (bias(values[:-1], 0.8, 0.1, gamma=0.5, pull=parts) ** 2).sum() / n
    distance, envelope = expected_bias(ring, 0.8, (force**2).mean(), lr=0.1, gamma=0.5)
    assert distance == pytest.approx(total / 4000, rel=0.02)  # 24 arrangements, drawn 4000 times
    assert envelope == pytest.approx(0.4 * distance)
    assert expected_bias(topology("complete", 1), 1.0, 1.0, lr=0.1) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("p", "flat"), [(0.5, False), (1.0, False), (1.0, True), (1.5, False), (2.0, True), (3.0, False)]
)
def test_what_a_cosine_freezes_is_what_the_recursion_leaves(p: float, flat: bool) -> None:
    h = np.zeros(1) if flat else np.array(CURVED)
    steps, top = 20000, 0.1
    lrs = 0.5 * top * (1 + np.cos(np.pi * np.arange(steps) / steps))
    end = trajectory(topology("ring", 8), h, np.ones_like(h), lrs, (lrs / top) ** p)
    got = frozen_disagreement(topology("ring", 8), h, 1.0, p=p, lr_max=top, steps=steps)
    assert got[0] == pytest.approx(end.xi[-1], rel=5e-3)  # the limit of long runs
    assert got[1] == pytest.approx(end.envelope[-1], rel=5e-3)


def test_frozen_variance_by_quadrature_meets_its_closed_forms_and_powers_of_the_length() -> None:
    near = frozen_variance(1.0 + 1e-9, 0.2, 0.5, 0.1, 1e4)
    assert near == pytest.approx(frozen_variance(1.0, 0.2, 0.5, 0.1, 1e4), rel=1e-6)
    assert frozen_variance(2.0, 0.2, 1e-9, 0.1, 1e4) == pytest.approx(
        frozen_variance(2.0, 0.2, 0.0, 0.1, 1e4), rel=1e-5
    )
    for p in (0.0, 0.5, 1.0, 2.0, 3.0):
        short, long = (float(frozen_variance(p, 0.2, 0.0, 0.1, t)) for t in (1e4, 1e5))
        assert np.log10(long / short) == pytest.approx(-2 * (2 - p) / (2 * p + 1), abs=1e-10)
    assert frozen_variance(2.0, 0.0, 0.5, 0.1, 1e4) == pytest.approx(frozen_variance(9.0, 0.0, 0.5, 0.1, 1e4))
    with_momentum = frozen_variance(2.0, 0.2, 0.3, 0.01, 1e4, momentum=0.9)
    assert with_momentum == pytest.approx(frozen_variance(2.0, 0.2, 0.3, 0.1, 1e4), rel=1e-12)


spectra = st.lists(st.floats(0.01, 1.0), min_size=2, max_size=6)


@given(spectra, st.lists(st.floats(0.05, 2.0), min_size=6, max_size=6), st.integers(0, 10**6), st.floats(0.1, 0.9))
def test_weaker_consensus_raises_the_envelope_and_lowers_the_alignment_of_like_modes(
    h: list[float], s2: list[float], seed: int, factor: float
) -> None:
    """AWC without momentum, W_gamma - lr H positive semidefinite; alignment only if modes are damped alike."""
    rng = np.random.default_rng(seed)
    delta, gamma = 10 ** rng.uniform(-4, -0.05, 5), rng.uniform(0.05, 1.0)
    noise = s2[: len(h)]
    for like in (False, True):
        lr = 0.999 * float((1 - gamma * delta).min()) / max(h) * 10 ** rng.uniform(-2, 0)
        if like:
            delta = np.minimum(delta, 2 * delta.min() + lr * min(h) / gamma)
        eigenvalues = np.append(1 - delta, 1.0)
        strong = predict(eigenvalues, h, noise, lr=lr, gamma=gamma)
        weak = predict(eigenvalues, h, noise, lr=lr, gamma=factor * gamma)
        assert strong.alignment is not None
        assert weak.alignment is not None
        assert weak.envelope >= strong.envelope * (1 - 1e-12)
        if like:
            assert weak.alignment <= strong.alignment * (1 + 1e-12)
        isotropic = predict(eigenvalues, h, 1.0, lr=lr, gamma=gamma)
        assert isotropic.normalised_alignment is not None
        assert isotropic.normalised_alignment <= 1 + 1e-12


def test_two_cliques_on_a_weak_link_align_more_as_consensus_weakens() -> None:
    w = np.kron(np.eye(2), np.full((8, 8), 1 / 8))
    w[[7, 8], [8, 7]] = 1e-3
    w[[7, 8], [7, 8]] -= 1e-3
    strong, weak = (predict(from_matrices(w), [1.0, 0.1], lr=0.01, gamma=g) for g in (0.7, 0.01))
    assert weak.envelope > strong.envelope
    assert strong.normalised_alignment == pytest.approx(0.39, abs=5e-3)
    assert weak.normalised_alignment == pytest.approx(0.61, abs=5e-3)


def test_beyond_the_condition_the_envelope_can_fall_as_consensus_weakens() -> None:
    strong = predict([1.0, -0.9], 1.0, lr=0.05, gamma=1.0)
    weak = predict([1.0, -0.9], 1.0, lr=0.05, gamma=0.6)
    assert weak.envelope < strong.envelope


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: exponents([1.0, 0.5], 1.0, p=-1.0, lr_max=0.1), "p must be finite and not negative, got -1"),
        (lambda: exponents([1.0, 0.5], 1.0, p=1.0, lr_max=0.1, lrs=[0.2]), "lr = 0.2 is larger than lr_max = 0.1"),
        (lambda: exponents([1.0, 0.5], 1.0, p=1.0, lr_max=0.1, lrs=[0.0]), "lrs must be a list of positive learning"),
        (lambda: exponents(topology("one-peer-ring", 4), 1.0, p=1.0, lr_max=0.1, memory=0.5), "for one symmetric"),
        (lambda: limit_exponent(1.0, cast("Any", "envelop")), "quantity 'envelop'; did you mean 'envelope'"),
        (lambda: persistent_variance(0.5, 1.0, 0.1, memory=1.5), r"memory of the noise must lie in \[0, 1\], got 1.5"),
        (lambda: expected_bias(topology("one-peer-ring", 4), 1.0, 1.0, lr=0.1), "needs one symmetric matrix"),
        (lambda: expected_bias(topology("ring", 4), 1.0, 1.0, lr=9.0), "lr = 9 has no fixed point"),
        (lambda: frozen_variance(-1.0, 0.1, 0.1, 0.1, 100), "p must be finite and not negative, got -1"),
        (lambda: frozen_variance(1.0, 0.1, 0.1, 0.0, 100), "lr_max must be finite and positive, got 0"),
        (lambda: frozen_variance(1.0, 0.0, 0.0, 0.1, 100), "freezes only if it is damped before"),
        (lambda: frozen_disagreement(topology("one-peer-ring", 4), 1.0, 1.0, p=1, lr_max=1, steps=9),
         "the frozen disagreement has no closed form; annealed.trajectory"),
    ],
)  # fmt: skip
def test_refusals(call, message: str) -> None:
    with pytest.raises(MixingError, match=message):
        call()
