"""Who goes on without an isolated worker: what the others remember of it is forgotten, and they reach their own end."""

from typing import Any

import numpy as np
import pytest
import torch

from dissensus.algorithms import StackedEngine, Straggler, algorithm
from dissensus.theory import topology

N, D, WHEN, WHO = 6, 3, 50, 2
REST = [i for i in range(N) if i != WHO]


def poisoned(problem: Any, t: int) -> dict[str, torch.Tensor]:
    """The batch of step t, in which one worker's loss is not a number at step `WHEN`."""
    batch = problem.batch(0)
    if t == WHEN:
        batch["noise"] = batch["noise"].clone()
        batch["noise"][WHO] = torch.nan
    return batch


def still(quadratics: Any) -> Any:
    """Quadratics without noise."""
    drawn = quadratics.draw(N, D, 1)
    return quadratics(drawn.A, drawn.b, np.zeros((1, N, D)), drawn.x0)


def tracking(problem: Any, **options: Any) -> StackedEngine:
    return problem.engine(
        algorithm("gradient-tracking"), topology("ring", N), on_nan="isolate", **({"lr": 0.1} | options)
    )


def test_those_that_are_left_track_their_own_mean_gradient_and_reach_their_own_optimum(quadratics: Any) -> None:
    problem = still(quadratics)
    engine = tracking(problem)
    for t in range(1500):
        engine.step(poisoned(problem, t))
        if t >= WHEN:
            received, gradient = (v[REST].sum(dim=0) for v in engine.state)
            # both are sums of five numbers of order one, carried through the mixing of all steps
            torch.testing.assert_close(received, gradient, rtol=1e-10, atol=1e-11)
    assert engine.isolated == {WHO: WHEN}
    best = np.linalg.solve(problem.A[REST].sum(axis=0), problem.b[REST].sum(axis=0))
    all_of_them = np.linalg.solve(problem.A.sum(axis=0), problem.b.sum(axis=0))
    assert np.abs(best - all_of_them).max() > 1e-2
    np.testing.assert_allclose(engine.x[REST].numpy(), np.tile(best, (N - 1, 1)), rtol=1e-8, atol=1e-8)


def test_a_worker_that_is_away_when_another_is_isolated_starts_anew_too(quadratics: Any) -> None:
    problem = still(quadratics)
    away = Straggler(N, worker=4, every=WHEN - 1)
    assert not away(WHEN)[4]
    engine = tracking(problem, participation=away)
    for t in range(WHEN + 4):
        before = engine.state_dict()
        engine.step(poisoned(problem, t))
        if t >= WHEN:
            received, gradient = (v[REST].sum(dim=0) for v in engine.state)
            torch.testing.assert_close(received, gradient, rtol=1e-10, atol=1e-11)
        if t == WHEN:
            assert torch.equal(engine.state.gradient[WHO], before["state"]["gradient"][WHO])
            assert torch.equal(engine.x[[WHO, 4]], before["x"][[WHO, 4]])


def test_a_run_goes_on_from_the_step_of_the_isolation_as_if_it_had_not_been_interrupted(quadratics: Any) -> None:
    problem = still(quadratics)
    whole, resumed = tracking(problem), tracking(problem)
    for t in range(WHEN + 1):
        whole.step(poisoned(problem, t))
    resumed.load_state_dict(whole.state_dict())
    for t in range(WHEN + 1, WHEN + 20):
        for engine in (whole, resumed):
            engine.step(poisoned(problem, t))
    assert torch.equal(whole.x, resumed.x)


@pytest.mark.parametrize("graph", ["exponential", "one-peer-exponential"])
def test_push_sum_goes_on_to_the_mean_of_those_that_are_left(graph: str, quadratics: Any) -> None:
    problem = still(quadratics)
    engine = problem.engine(algorithm("sgp"), topology(graph, N), on_nan="isolate", lr=0.1)
    for t in range(WHEN - 3, WHEN + 1):
        engine.step(poisoned(problem, t))
    assert (engine.state.weight[REST] == 1.0).all()
    there = engine.x[REST].mean(dim=0)
    saved = engine.state_dict()
    engine = problem.engine(algorithm("sgp"), topology(graph, N), on_nan="isolate", lr=0.0)
    engine.load_state_dict(saved)
    for t in range(WHEN + 1, WHEN + 400):
        engine.step(poisoned(problem, t))
    torch.testing.assert_close(engine.x[REST], there.expand(N - 1, D), rtol=1e-10, atol=1e-12)
