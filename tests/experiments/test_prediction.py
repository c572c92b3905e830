import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dissensus.experiments.cell import Setup
from dissensus.experiments.loading import load
from dissensus.experiments.prediction import interpolated, modes_of, moves_of, portions, recursion
from dissensus.theory import annealed, topology
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


@pytest.mark.parametrize("name", ["ring", "one-peer-hypercube", "directed-ring"])
@pytest.mark.parametrize("order", ["awc", "atc", "cta"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_with_constant_curvature_it_is_the_annealed_recursion_of_the_theory(
    name: str, order: str, momentum: float
) -> None:
    graph = topology(name, 4)
    h, s2 = np.array([0.1, 1.0, 3.0]), 0.7
    lrs, gammas = np.linspace(0.1, 0.01, 30), np.linspace(1.0, 0.1, 30)
    move = Move.of(order, momentum, weight_decay=0.01)
    modes = modes_of(graph)
    assert modes is not None
    ours = recursion(modes, 4, (np.tile(h, (31, 1)), np.full(31, s2)), list(lrs), list(gammas), move)
    theirs = annealed.trajectory(graph, h, np.full(3, s2), lrs, gammas, momentum, order, weight_decay=0.01)
    np.testing.assert_allclose(ours.xi, theirs.xi, rtol=1e-10)
    np.testing.assert_allclose(ours.envelope, theirs.envelope, rtol=1e-10)


def test_changing_curvature_against_a_dense_simulation_of_second_moments() -> None:
    """The covariance of all workers' (x, v), without modes: x+ = Wg x - a v+, v+ = b v + h x + noise."""
    n, steps, beta = 5, 25, 0.6
    graph = topology("ring", n)
    w, average = graph[0].dense(), np.full((n, n), 1 / n)
    rng = np.random.default_rng(0)
    h, s2 = rng.uniform(0.1, 2.0, (steps + 1, 2)), rng.uniform(0.5, 2.0, steps + 1)
    lrs, gammas = rng.uniform(0.05, 0.2, steps), rng.uniform(0.2, 1.0, steps)
    ours = recursion(np.linalg.eigvalsh(w)[:-1][None], n, (h, s2), list(lrs), list(gammas), Move.of("awc", beta))
    eye, apart = np.eye(n), np.eye(n) - average
    covariances = [np.zeros((2 * n, 2 * n)) for _ in range(2)]
    for t in range(steps):
        mixed = (1 - gammas[t]) * eye + gammas[t] * w
        for j in range(2):
            a = np.block([[mixed - lrs[t] * h[t, j] * eye, -lrs[t] * beta * eye], [h[t, j] * eye, beta * eye]])
            b = np.vstack([-lrs[t] * eye, eye])
            covariances[j] = a @ covariances[j] @ a.T + s2[t] * b @ b.T
        spread = [np.trace(apart @ c[:n, :n] @ apart) / n for c in covariances]
        assert ours.xi[t + 1] == pytest.approx(sum(spread), rel=1e-10)
        assert ours.envelope[t + 1] == pytest.approx(0.5 * float(h[t + 1] @ spread), rel=1e-10)


def test_it_says_where_it_does_not_apply() -> None:
    def setup(**sections: object) -> Setup:
        arms = {"a": {"algorithm": "dsgd", "order": "atc"}}
        return Setup.build(load(**{"arms": arms, "train": {"workers": 4}, **sections}).cell("a", 0))

    assert moves_of(setup(optimizer={"name": "sgd", "momentum": 0.5})) == Move.of("atc", 0.5)
    assert moves_of(setup(optimizer={"name": "adam"})) is None
    assert moves_of(setup(optimizer={"name": "sgd", "dampening": 0.1})) is None
    assert moves_of(setup(arms={"a": {"algorithm": "allreduce"}})) is None
    assert modes_of(topology("erdos-renyi", 6, p=0.7)) is not None
    rounds = modes_of(topology("one-peer-ring", 6))
    assert rounds is None
