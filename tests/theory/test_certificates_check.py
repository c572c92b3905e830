"""The check of a dual: what it lets through is a bound, and what is no proof does not get through."""

import math
import sys
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from dissensus.theory import topology
from dissensus.theory.certificates import Certificate, certify, check, worst_case
from dissensus.theory.certificates.check import _is_positive
from dissensus.theory.certificates.posing import pose
from dissensus.theory.certificates.setting import setting

CASES = {
    "dsgd": {"method": "dsgd", "contraction": 0.5, "steps": 4, "lr": 0.4, "criterion": "last"},
    "tracking": {
        "method": "diging",
        "contraction": 0.7,
        "steps": 2,
        "lr": 0.05,
        "convexity": 0.1,
        "criterion": "rate",
    },
    "ring": {"method": "dsgd", "topology": topology("ring", 4), "steps": 3, "lr": 1 / 3, "order": "atc"},
    "extra": {"method": "extra", "eigenvalues": (0.0, 0.6), "steps": 4, "lr": 0.3, "criterion": "distance"},
}


@pytest.fixture(scope="module", params=list(CASES))
def certificate(request: pytest.FixtureRequest) -> Certificate:
    found = certify(**CASES[request.param])
    assert found.certified
    return found


def proven_bound(certificate: Certificate, **changed) -> float:
    """What multipliers prove after a change; infinite if nothing."""
    assert certificate.multipliers is not None
    return check(certificate.program, replace(certificate.multipliers, **changed)).bound


@pytest.mark.parametrize("scale", [1e-4, 1e-2, 0.3])
def test_a_perturbed_dual_is_rejected(certificate: Certificate, scale: float) -> None:
    assert certificate.multipliers is not None
    for seed in range(5):
        tampered = certificate.with_multipliers(certificate.multipliers.perturbed(scale, seed))
        assert not tampered.certified
        assert tampered.checked.reason or tampered.gap > 1e-5


@pytest.mark.parametrize("scale", [1e-12, 1e-9, 1e-6, 1e-3, 0.1, 1.0])
def test_no_perturbation_proves_less_than_a_run_attains(certificate: Certificate, scale: float) -> None:
    # soundness: whatever the multipliers are, a bound that gets through lies above what an instance reaches
    assert certificate.multipliers is not None
    attained = worst_case(certificate).measured()
    for seed in range(10):
        found = check(certificate.program, certificate.multipliers.perturbed(scale, seed))
        assert found.bound >= attained
        assert found.proves == (found.bound < math.inf)


@pytest.mark.parametrize("outwards", [True, False])
def test_what_function_values_leave_over_is_balanced_against_the_optimum(
    certificate: Certificate, outwards: bool
) -> None:
    # too much on one side of a pair with the optimum, whichever, is the same as too much on both
    assert certificate.multipliers is not None
    pairs, last = certificate.multipliers.pairs, certificate.program.samples
    one, both = pairs.copy(), pairs.copy()
    one[(0, 0, last) if outwards else (0, last, 0)] += 0.5
    both[0, 0, last] += 0.5
    both[0, last, 0] += 0.5
    here, there, before = (
        check(certificate.program, replace(certificate.multipliers, pairs=p)) for p in (one, both, pairs)
    )
    assert here.value_residual == pytest.approx(0.5, abs=1e-6)
    assert there.value_residual < 1e-6
    assert here.slack == pytest.approx(there.slack, abs=1e-9)
    assert abs(here.slack - before.slack) > 1e-5, "the pair is seen in S"


def test_smaller_limits_prove_nothing(certificate: Certificate) -> None:
    assert certificate.multipliers is not None
    assert proven_bound(certificate, limits=certificate.multipliers.limits * (1 - 1e-5)) == math.inf
    assert proven_bound(certificate, limits=-certificate.multipliers.limits) == math.inf


def test_larger_limits_prove_a_larger_value(certificate: Certificate) -> None:
    # tau enlarged adds a positive semidefinite matrix to S: still a proof, of something weaker
    assert certificate.multipliers is not None
    larger = proven_bound(certificate, limits=certificate.multipliers.limits * 1.001)
    assert larger == pytest.approx(certificate.value * 1.001, rel=1e-9)
    tampered = certificate.with_multipliers(
        replace(certificate.multipliers, limits=certificate.multipliers.limits * 1.001)
    )
    assert tampered.checked.proves
    assert not tampered.certified


def test_without_inequalities_or_mixing_nothing_is_proven(certificate: Certificate) -> None:
    assert certificate.multipliers is not None
    assert proven_bound(certificate, pairs=0 * certificate.multipliers.pairs) == math.inf
    if certificate.multipliers.mixing:
        none = tuple(0 * z for z in certificate.multipliers.mixing)
        assert proven_bound(certificate, mixing=none) == math.inf
        wrong = tuple(-z for z in certificate.multipliers.mixing)
        assert proven_bound(certificate, mixing=wrong) == math.inf


def test_negative_multipliers_count_as_zero(certificate: Certificate) -> None:
    assert certificate.multipliers is not None
    pairs = certificate.multipliers.pairs
    idle = np.argwhere((abs(pairs) < 1e-7) & ~np.eye(pairs.shape[1], dtype=bool))
    for row, s, t in idle[:6]:
        negative, zero = pairs.copy(), pairs.copy()
        negative[row, s, t], zero[row, s, t] = -0.01, 0.0
        found = check(certificate.program, replace(certificate.multipliers, pairs=negative))
        assert found.negativity == pytest.approx(0.01)
        assert found.bound == proven_bound(certificate, pairs=zero)


def test_negative_limits_count_as_zero() -> None:
    found = certify(contraction=0.5, steps=2, lr=0.5, lipschitz=1.0, criterion="last")
    assert found.multipliers is not None
    limits = found.multipliers.limits
    for k in range(len(limits)):
        negative, zero = limits.copy(), limits.copy()
        negative[k], zero[k] = -0.01, 0.0
        assert proven_bound(found, limits=negative) == proven_bound(found, limits=zero)
    padded = replace(found.program, limits=(*found.program.limits, found.program.limits[-1]))
    refused = check(padded, replace(found.multipliers, limits=np.append(limits, -0.01)))
    assert refused.bound == found.value  # a limit that is not needed lends nothing to the others


def test_eigenvalues_that_lie_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    # the floating-point eigenvalue only says how far to lift Z; whether that was enough is proven
    found = certify(**CASES["extra"])
    assert found.multipliers is not None
    wrong = replace(found.multipliers, mixing=tuple(-z for z in found.multipliers.mixing))
    monkeypatch.setattr(sys.modules[check.__module__], "_smallest", lambda _: 1.0)
    assert check(found.program, wrong).reason == "the multiplier of mixing is not positive semidefinite"


def test_transposed_pairs_are_another_proof_and_none(certificate: Certificate) -> None:
    assert certificate.multipliers is not None
    assert proven_bound(certificate, pairs=certificate.multipliers.pairs.swapaxes(1, 2)) == math.inf


def test_multipliers_of_something_else_are_told(certificate: Certificate) -> None:
    assert certificate.multipliers is not None
    other = check(certificate.program, replace(certificate.multipliers, pairs=np.zeros((1, 2, 2))))
    assert not other.proves
    assert "shapes differ" in other.reason
    broken = certificate.multipliers.limits.copy()
    broken[0] = math.nan
    assert "not finite" in check(certificate.program, replace(certificate.multipliers, limits=broken)).reason


def test_the_dual_of_one_learning_rate_is_none_of_another() -> None:
    one, other = (certify(contraction=0.5, steps=3, lr=lr) for lr in (0.3, 0.3003))
    assert one.multipliers is not None
    assert not check(other.program, one.multipliers).proves


def test_the_status_of_the_solver_decides_nothing(certificate: Certificate) -> None:
    lied = replace(certificate.solution, status="AlmostSolved")
    again = replace(certificate, solution=lied).with_multipliers(lied.multipliers)  # type: ignore[arg-type]
    assert again.status == "AlmostSolved"
    assert again.certified
    believed = replace(certificate.solution, status="Solved")
    poor = replace(certificate, solution=believed).with_multipliers(certificate.multipliers.perturbed(0.1))  # type: ignore[union-attr]
    assert poor.status == "Solved"
    assert not poor.certified


def test_a_primal_that_misses_its_constraints_certifies_nothing(certificate: Certificate) -> None:
    far = replace(certificate.solution, grams=tuple(2.0 * g for g in certificate.solution.grams))
    again = replace(certificate, solution=far).with_multipliers(far.multipliers)  # type: ignore[arg-type]
    assert again.violation > 1e-3
    assert not again.certified


@pytest.mark.parametrize("size", [1, 3, 12])
def test_positive_definiteness_is_proven_and_its_absence_never(size: int) -> None:
    rng = np.random.default_rng(size)
    for _ in range(20):
        root = rng.integers(-5, 6, size=(size, size)).astype(object)
        gram = root.T @ root
        exactly = np.vectorize(Fraction, otypes=[object])
        assert _is_positive(exactly(gram + np.eye(size, dtype=int)))
        # as little below zero as matters: the smallest eigenvalue is about -1e-9 of the trace
        low = np.linalg.eigvalsh(gram.astype(float))[0]
        off = gram - (Fraction(low) + Fraction(1, 10**9) * max(1, int(np.trace(gram)))) * np.eye(size, dtype=int)
        assert not _is_positive(exactly(off))


def test_zero_is_positive_semidefinite() -> None:
    assert _is_positive(np.zeros((3, 3), dtype=object))
    assert _is_positive(np.zeros((0, 0), dtype=object))
    assert not _is_positive(np.array([[1, 2], [2, 1]], dtype=object))
    assert not _is_positive(np.array([[-1]], dtype=object))


def test_the_bound_is_rounded_upwards() -> None:
    found = certify(contraction=0.5, steps=2, lr=0.4)
    assert found.multipliers is not None
    exact = sum(
        Fraction(round(Fraction(float(v)) * 2**70), 2**70)
        * m.most
        / Fraction(m.unit)
        * Fraction(found.program.criterion.unit)
        for v, m in zip(found.multipliers.limits, found.program.limits, strict=True)
    )
    assert Fraction(found.value) >= exact
    assert Fraction(math.nextafter(found.value, 0.0)) < exact


# The program itself, on vectors that satisfy nothing.


def test_the_program_says_what_the_recursion_does() -> None:
    # leaves are replaced by random vectors: points must be what plain numpy makes of them
    program = pose(setting(**CASES["ring"]))
    leaves = np.random.default_rng(0).normal(size=(len(program.units), 2))
    x, h = (a.astype(float) @ leaves for a in (program.points, program.gradients))
    slopes = program.limits[1].squares[0].vector.astype(float) @ leaves
    np.testing.assert_allclose(slopes.mean(axis=0), 0, atol=1e-14)
    first = topology("ring", 4)[0].dense() @ (x[0] - (h[0] + slopes) / 3)
    means = [k for k in range(1, len(x)) if np.allclose(x[k], x[k].mean(axis=0))]
    np.testing.assert_allclose(x[1], first, atol=1e-13)
    np.testing.assert_allclose(x[means[0]][0], first.mean(axis=0), atol=1e-13)


def test_deviations_have_no_mean() -> None:
    program = pose(setting(contraction=0.5, steps=3, lr=0.3, size=4, criterion="distance"))
    (group,) = program.groups
    assert len(group.sent) == 2  # the exchange of equal starting points is none
    for array in (group.sent, group.turned):
        assert not array.sum(axis=1).any()


def test_exchanges_nothing_depends_on_are_left_out() -> None:
    # the objective at the mean does not see the last exchange
    distance, last = (pose(setting(contraction=0.5, steps=3, lr=0.3, criterion=c)) for c in ("distance", "last"))
    assert (len(distance.groups[0].sent), len(last.groups[0].sent)) == (2, 1)
