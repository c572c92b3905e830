import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dissensus.experiments.cell import Setup
from dissensus.experiments.loading import load
from dissensus.experiments.prediction import follows, interpolated, moves_of, portions, predict
from dissensus.theory import from_function, topology
from dissensus.theory.annealed import trajectory
from dissensus.theory.modes import Move


@given(st.lists(st.tuples(st.floats(-2, 5), st.floats(1e-3, 3)), min_size=1, max_size=12), st.integers(1, 20))
def test_portions_keep_total_and_mean_curvature_and_rise(pairs: list, count: int) -> None:
    nodes, weights = (np.array(part) for part in zip(*pairs, strict=True))
    curvatures, total = portions((nodes, weights), count)
    assert total == pytest.approx(weights.sum())
    assert curvatures.mean() * total == pytest.approx(nodes @ weights, abs=1e-9)
    assert (np.diff(curvatures) >= -1e-9).all()
    assert nodes.min() - 1e-9 <= curvatures.min() <= curvatures.max() <= nodes.max() + 1e-9


def test_no_noise_gives_no_portions() -> None:
    curvatures, total = portions((np.array([1.0]), np.array([0.0])), 3)
    assert (total, list(curvatures)) == (0.0, [0.0, 0.0, 0.0])


def test_between_measurements_noise_and_curvature_are_linear() -> None:
    one = (np.array([1.0]), np.array([4.0]))
    three = (np.array([3.0]), np.array([8.0]))
    curvatures, noise = interpolated({0: one, 10: three}, 12)
    assert curvatures.shape == (13, 48)
    assert curvatures[5, 7] == pytest.approx(2.0)
    assert noise[5] * 48 == pytest.approx(6.0)
    assert noise[12] * 48 == pytest.approx(8.0)


def built(**sections: object) -> Setup:
    arms = {"a": {"algorithm": "dsgd", "order": "atc"}}
    return Setup.build(load(**{"arms": arms, "train": {"workers": 4}, **sections}).cell("a", 0))


@pytest.mark.parametrize(("name", "n"), [("ring", 4), ("one-peer-ring", 6), ("one-peer-hypercube", 4)])
def test_a_run_is_predicted_as_the_covariance_of_all_its_workers_demands(name: str, n: int) -> None:
    """Measured curvature and noise that change on the way; nothing reduced to modes: (x, v) of all workers."""
    steps, beta, count = 25, 0.6, 48
    setup = built(
        arms={"a": {"algorithm": "dsgd", "order": "awc"}}, topology={"name": name},
        optimizer={"name": "sgd", "momentum": beta}, train={"workers": n},
    )  # fmt: skip
    rng = np.random.default_rng(0)
    lrs, gammas = rng.uniform(0.05, 0.2, steps), rng.uniform(0.2, 1.0, steps)
    measures = {t: (rng.uniform(-0.1, 2.0, 5), rng.uniform(0.5, 2.0, 5)) for t in (0, 10, 25)}
    got = predict(setup, measures, list(lrs), list(gammas))
    assert got is not None
    h, s2 = interpolated(measures, steps)
    eye, apart = np.eye(n), np.eye(n) - 1 / n
    covariances = np.zeros((count, 2 * n, 2 * n))
    b = np.vstack([np.zeros((n, n)), eye])
    for t in range(steps):
        mixed = (1 - gammas[t]) * eye + gammas[t] * setup.topology[t].dense()
        b[:n] = -lrs[t] * eye
        for j in range(count):
            a = np.block([[mixed - lrs[t] * h[t, j] * eye, -lrs[t] * beta * eye], [h[t, j] * eye, beta * eye]])
            covariances[j] = a @ covariances[j] @ a.T + s2[t] * b @ b.T
        spread = np.array([np.trace(apart @ c[:n, :n] @ apart) / n for c in covariances])
        assert got.xi[t + 1] == pytest.approx(spread.sum(), rel=1e-12)
        assert got.envelope[t + 1] == pytest.approx(0.5 * float(h[t + 1] @ spread), rel=1e-12)


@pytest.mark.parametrize("order", ["awc", "atc", "cta"])
def test_order_and_optimizer_of_the_run_are_those_of_the_theory(order: str) -> None:
    keys = {"momentum": 0.8, "nesterov": True, "weight_decay": 0.3}
    setup = built(arms={"a": {"algorithm": "dsgd", "order": order}}, optimizer={"name": "sgd", **keys})
    got = predict(setup, {0: (np.array([1.0]), np.array([2.0]))}, [0.1] * 20, [0.7] * 20)
    expected = trajectory(
        setup.topology, 1.0, 2.0, [0.1] * 20, 0.7, 0.8, order, nesterov=True, weight_decay=0.3
    )  # fmt: skip
    assert got is not None
    np.testing.assert_allclose(got.xi, expected.xi, rtol=1e-12)
    np.testing.assert_allclose(got.envelope, expected.envelope, rtol=1e-12)


def test_a_disagreement_that_overflows_stays_infinite_and_what_is_not_finite_is_not_predicted() -> None:
    setup, measure = built(), (np.array([1.0]), np.array([1.0]))
    got = predict(setup, {0: measure}, [1e3] * 100, [1.0] * 100)
    assert got is not None
    assert np.isinf(got.xi[-1])
    assert np.isfinite(got.xi[5])
    assert not np.isnan(got.envelope).any()
    assert predict(setup, {0: (np.array([np.nan]), np.array([1.0]))}, [0.1], [1.0]) is None


def test_it_says_where_it_does_not_apply() -> None:
    assert moves_of(built(optimizer={"name": "sgd", "momentum": 0.5})) == Move.of("atc", 0.5)
    assert moves_of(built(optimizer={"name": "adam"})) is None
    assert moves_of(built(optimizer={"name": "sgd", "dampening": 0.1})) is None
    assert moves_of(built(arms={"a": {"algorithm": "allreduce"}})) is None
    assert follows(topology("erdos-renyi", 6, p=0.7))
    assert follows(topology("one-peer-ring", 6))
    assert not follows(topology("one-peer-ring", 34))
    assert follows(topology("one-peer-exponential", 34))
    assert not follows(topology("random-digraph", 6))
    eye = np.eye(40)
    drawn = from_function(lambda t: (eye + np.roll(eye, t, axis=1)) / 2, 40)
    assert not follows(drawn)
    assert predict(built(), {}, [0.1], [1.0]) is None
