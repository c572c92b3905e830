"""Stragglers and workers that come and go: the schedules, and what a step is for those that are there and those not."""

import copy
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dissensus.algorithms import AlgorithmError, StackedEngine, algorithm
from dissensus.algorithms.engines.participation import (
    Both,
    Cyclic,
    Independent,
    Intervals,
    OnOff,
    Participation,
    Straggler,
    stayed,
    there_at,
    without_absent,
)
from dissensus.theory import topology
from dissensus.theory.faults import absent, dropped

N, D, STEPS = 6, 3, 16
SCHEDULES: list[Participation] = [
    Independent(N, 0.6, seed=1),
    Independent(N, (0.1, 0.9, 0.5, 1.0, 0.3, 0.7), seed=2),
    Cyclic(N, active=4),
    OnOff(N, away=0.3, stay=4.0, seed=3),
    Intervals(N, away={2: [(3, 9), (12, None)], 5: [(0, 1)]}),
    Straggler(N, worker=4, every=3),
    Independent(N, 0.8) & Straggler(N, worker=0, every=2),
]
EVERY = pytest.mark.parametrize("who", SCHEDULES, ids=lambda w: type(w).__name__)


@EVERY
def test_a_schedule_is_a_pure_function_of_the_step(who: Participation) -> None:
    in_order = [who(t) for t in range(60)]
    assert all(a.shape == (N,) and a.dtype == np.bool_ for a in in_order)
    other = copy.deepcopy(who)
    for t in np.random.default_rng(0).permutation(60):
        assert np.array_equal(other(int(t)), in_order[t])
    assert any(not a.all() for a in in_order)
    assert any(a.any() for a in in_order)
    in_order[0][:] = False
    assert np.array_equal(who(7), in_order[7]), "what is handed out may be written to"


def test_what_the_schedules_say() -> None:
    assert Participation(3)(5).tolist() == [True] * 3
    turns = [Cyclic(5, active=2)(t).nonzero()[0].tolist() for t in range(5)]
    assert turns == [[0, 1], [2, 3], [0, 4], [1, 2], [3, 4]]
    assert [bool(Straggler(3, worker=1, every=3)(t)[1]) for t in range(7)] == [True, False, False] * 2 + [True]
    assert [bool(Straggler(3, worker=1, every=3, phase=2)(t)[1]) for t in range(6)] == [False, False, True] * 2
    assert all(Straggler(3, worker=1, every=3)(t)[[0, 2]].all() for t in range(7))
    spans = Intervals(3, away={1: [(2, 4), (6, None)]})
    assert [bool(spans(t)[1]) for t in range(9)] == [True, True, False, False, True, True, False, False, False]
    both = Cyclic(6, active=3) & Straggler(6, worker=0, every=2)
    assert isinstance(both, Both)
    for t in range(8):
        assert np.array_equal(both(t), Cyclic(6, active=3)(t) & Straggler(6, worker=0, every=2)(t))


def test_chances_are_kept() -> None:
    """Fixed seeds: shares within four standard errors, absences as long as they were asked for."""
    p = np.array([0.1, 0.9, 0.5, 1.0, 0.3, 0.0])
    drawn = np.stack([Independent(N, tuple(p), seed=2)(t) for t in range(4000)])
    assert (abs(drawn.mean(axis=0) - p) <= 4 * np.sqrt(p * (1 - p) / 4000)).all()
    assert (Independent(N, tuple(p)).shares == p).all()
    away = ~np.stack([OnOff(200, away=0.25, stay=5.0, seed=1)(t) for t in range(600)])
    correlation = 1 - 1 / 5 - 0.25 / 0.75 / 5
    assert abs(away.mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / away.size * (1 + correlation) / (1 - correlation))
    back = (away[:-1] & ~away[1:]).sum() / away[:-1].sum()
    assert abs(back - 1 / 5) < 4 * np.sqrt(0.2 * 0.8 / away[:-1].sum())


def test_independent_shares_give_exact_moments_and_others_do_not() -> None:
    base = topology("ring", N)
    assert absent(base, Independent(N, 0.6)).moments is not None
    assert absent(base, Participation(N)).moments is not None
    for who in SCHEDULES[2:]:
        assert absent(base, who).moments is None, who
    assert Cyclic(N, active=N).shares is not None
    assert absent(base, Straggler(N, every=4)).parameters["absent"].startswith("Straggler(size=6")


BAD: list[tuple[str, Callable[[], Any]]] = [
    ("at least one worker", lambda: Participation(0)),
    ("counts steps from 0, got -1", lambda: Participation(3)(-1)),
    ("one probability or 3, got 2", lambda: Independent(3, (0.1, 0.2))),
    (r"probabilities in \[0, 1\]", lambda: Independent(3, 1.2)),
    ("seed of at least 0", lambda: Independent(3, 0.5, seed=-1)),
    ("1 to 3 active workers, got 4", lambda: Cyclic(3, active=4)),
    (r"share of steps away in \[0, 1\), got 1.0", lambda: OnOff(3, away=1.0)),
    ("at least 2 steps long on average, got burst=1.5", lambda: OnOff(3, away=0.5, stay=1.5)),
    ("the seed must be at least 0", lambda: OnOff(3, seed=-2)),
    ("workers 0 to 2, got worker 3", lambda: Intervals(3, away={3: [(0, 1)]})),
    ("away from 4 to 4", lambda: Intervals(3, away={0: [(4, 4)]})),
    ("workers 0 to 2, got worker 7", lambda: Straggler(3, worker=7)),
    ("k >= 1, got 0", lambda: Straggler(3, every=0)),
    ("of 3 and of 4 workers", lambda: Participation(3) & Participation(4)),
    ("array of 3 bools, but at step 2 it gave int64",
     lambda: there_at(lambda t: np.ones(3, int), 2, 3, torch.device("cpu"))),
    ("algorithm 'dsgd' cannot run with absent workers: .* not symmetric",
     lambda: without_absent(topology("one-peer-exponential", 8), Participation(8), algorithm("dsgd"))),
    ("'choco-sgd' cannot run with absent workers: its workers remember",
     lambda: without_absent(topology("ring", 8), Participation(8), algorithm("choco-sgd"))),
]  # fmt: skip


@pytest.mark.parametrize(("message", "wrong"), BAD, ids=[m[:24] for m, _ in BAD])
def test_schedules_that_cannot_be_are_refused(message: str, wrong: Callable[[], Any]) -> None:
    with pytest.raises(AlgorithmError, match=message):
        wrong()


def test_who_stays_keeps_every_bit() -> None:
    there = torch.tensor([True, False, True])
    old = {"a": torch.full((3, 2), float("nan")), "b": [torch.tensor([1, 2, 3])], "c": (torch.zeros(3, 1, 2),)}
    new = {"a": torch.zeros(3, 2), "b": [torch.tensor([7, 8, 9])], "c": (torch.ones(3, 1, 2),)}
    kept = stayed(there, old, new)
    assert kept["a"][1].isnan().all()
    assert not kept["a"][[0, 2]].any()
    assert kept["b"][0].tolist() == [7, 2, 9]
    assert kept["c"][0][:, 0, 0].tolist() == [1, 0, 1]
    assert stayed(None, old, new) is new


def engine_of(quadratics: Any, name: str = "dsgd", who: Any = None, schedule: Any = None, **options: Any) -> Any:
    chosen = algorithm(name, **options.pop("of_algorithm", {}))
    return quadratics.engine(chosen, schedule or topology("ring", N), participation=who, **options)


def rows(engine: StackedEngine) -> list[Tensor]:
    """Everything with one row per worker that speaks of the worker."""
    saved = engine.state_dict()
    own = [v for name, v in saved["state"].items() if name not in getattr(engine.algorithm, "common", ())]
    return [saved["x"], *own, *saved["buffers"].values()]


@EVERY
@pytest.mark.parametrize("name", ["dsgd", "gradient-tracking", "qg-dsgdm", "sgp", "allreduce", "local-sgd", "dsgd-ac"])
def test_who_is_away_stays_as_it_is_bit_for_bit(name: str, who: Participation, quadratics: Any) -> None:
    problem = quadratics.draw(N, D, STEPS)
    engine = engine_of(problem, name, who)
    for t in range(STEPS):
        before = rows(engine)
        engine.step(problem.batch(t))
        away = torch.from_numpy(~who(t))
        for old, new in zip(before, rows(engine), strict=True):
            assert torch.equal(old[away], new[away])
        if not away.all():
            assert not torch.equal(before[0][~away], rows(engine)[0][~away])


@EVERY
@pytest.mark.parametrize("optimizer", ["sgd", "momentum-decay", "adamw"])
@pytest.mark.parametrize("order", ["awc", "atc", "cta"])
def test_dsgd_with_absent_workers_is_its_recursion_written_worker_by_worker(
    order: str, optimizer: str, who: Participation, quadratics: Any, optimizers: Any
) -> None:
    """Each worker has an optimizer of its own in numpy, and calls it only when it is there."""
    problem = quadratics.draw(N, D, STEPS)
    factory, make = optimizers[optimizer]
    engine = engine_of(problem, who=who, optimizer=factory, of_algorithm={"order": order})
    got = problem.run(engine, STEPS)
    moves, x = [make() for _ in range(N)], problem.x0.copy()
    for t in range(STEPS):
        there = who(t)
        w = topology("ring", N)[t].dense()
        for i, j in itertools.product(range(N), range(N)):
            if i != j and not (there[i] and there[j]):
                w[i, i] += w[i, j]
                w[i, j] = 0.0
        at = w @ x if order == "cta" else x
        g = problem.gradient(t, at)
        start = w @ x if order in ("awc", "cta") else x
        moved = np.stack([moves[i](t, start[i], g[i], 0.1) if there[i] else x[i] for i in range(N)])
        moved = w @ moved if order == "atc" else moved
        x = np.where(there[:, None], moved, x)
        np.testing.assert_allclose(got[t + 1], x, rtol=1e-11, atol=1e-12)


@EVERY
def test_the_mean_of_all_workers_moves_by_the_gradients_of_those_that_are_there(
    who: Participation, quadratics: Any
) -> None:
    problem = quadratics.draw(N, D, STEPS)
    engine = engine_of(problem, who=who)
    for t in range(STEPS):
        x, there = engine.x.numpy(), who(t)
        expected = x.mean(axis=0) - 0.1 / N * problem.gradient(t, x)[there].sum(axis=0)
        engine.step(problem.batch(t))
        np.testing.assert_allclose(engine.mean.numpy(), expected, rtol=1e-13, atol=1e-14)


@EVERY
def test_sums_that_algorithms_keep_are_kept(who: Participation, quadratics: Any) -> None:
    """Gradient tracking: y sums to the gradients that were taken last. Push-sum: the weights sum to n."""
    problem = quadratics.draw(N, D, STEPS)
    tracking = engine_of(problem, "gradient-tracking", who)
    pushing = engine_of(problem, "sgp", who, schedule=topology("exponential", N))
    latest = np.zeros((N, D))
    for t in range(STEPS):
        latest[who(t)] = problem.gradient(t, tracking.x.numpy())[who(t)]
        tracking.step(problem.batch(t))
        pushing.step(problem.batch(t))
        np.testing.assert_allclose(tracking.state.received.sum(dim=0), latest.sum(axis=0), rtol=1e-12, atol=1e-12)
        assert float(pushing.state.weight.sum()) == pytest.approx(N, rel=1e-13)


def test_a_mean_is_over_those_that_are_there(quadratics: Any) -> None:
    problem = quadratics.draw(N, D, 1)
    who = Intervals(N, away={1: [(0, None)], 4: [(0, None)]})
    engine = engine_of(problem, "allreduce", who)
    there = who(0)
    expected = problem.x0 - 0.1 * problem.gradient(0, problem.x0)[there].mean(axis=0)
    engine.step(problem.batch(0))
    np.testing.assert_allclose(engine.x.numpy()[there], expected[there], rtol=1e-14)
    assert np.array_equal(engine.x.numpy()[~there], problem.x0[~there])


@pytest.mark.parametrize("name", ["allreduce", "local-sgd", "sam"])
def test_a_mean_needs_no_symmetric_rounds(name: str, quadratics: Any) -> None:
    """Who never mixes does not ask what the rounds keep when somebody is away."""
    n = 8
    problem = quadratics.draw(n, D, 4)
    problem.x0[:] = problem.x0[0]
    who = Straggler(n, worker=3, every=2)
    parameters = {"local-sgd": {"period": 1}, "sam": {"rho": 1e-9}}.get(name, {})
    for graph in ("one-peer-exponential", "directed-ring", "ring"):
        options = {"participation": who, "on_nan": "isolate"}
        engine = problem.engine(algorithm(name, **parameters), topology(graph, n), **options)
        for t in range(4):
            x, there = engine.x.numpy(), who(t)
            engine.step(problem.batch(t))
            mean = x[there].mean(axis=0) - 0.1 * problem.gradient(t, x)[there].mean(axis=0)
            if name != "local-sgd":  # a mean of gradients, taken from the own point
                mean = x[there] - 0.1 * problem.gradient(t, x)[there].mean(axis=0)
            # the perturbation moves a gradient by about its own length
            np.testing.assert_allclose(engine.x.numpy()[there], mean + 0 * x[there], rtol=1e-12, atol=1e-8)
            assert np.array_equal(engine.x.numpy()[~there], x[~there])


@pytest.mark.parametrize(
    ("capture", "away", "rates"),
    [
        ("published", 0, (0.3, 0.2, 0.1, 0.05)),
        ("window", 1, (0.1, 0.3, 0.2, 0.1)),
        ("window", 0, (0.3, 0.2, 0.1, 0.05)),
    ],
)
def test_the_rate_that_gamma_is_relative_to_is_one_for_all(
    capture: str, away: int, rates: tuple[float, ...], quadratics: Any
) -> None:
    """With a gamma of their own in some rows, mixing would not keep the mean of all workers."""
    drawn = quadratics.draw(N, D, 1)
    flat = quadratics(drawn.A * 0, drawn.b * 0, drawn.noise * 0, drawn.x0)
    who = Intervals(N, away={2: [(away, away + 1)]})
    engine = engine_of(flat, "dsgd-ac", who, of_algorithm={"capture": capture}, lr=lambda t: rates[t])
    mean, peak = engine.mean.numpy(), 0.0
    for rate in rates:
        peak = max(peak, rate)
        gamma = torch.as_tensor(engine.step(flat.batch(0)).notes["gamma"]).expand(N, 1)
        torch.testing.assert_close(gamma, torch.full_like(gamma, (rate / peak) ** 3), rtol=1e-14, atol=0.0)
        np.testing.assert_allclose(engine.mean.numpy(), mean, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("name", ["dsgd", "gradient-tracking", "qg-dsgdm", "sgp", "local-sgd"])
def test_everybody_always_there_is_no_participation_at_all(name: str, quadratics: Any) -> None:
    problem = quadratics.draw(N, D, 10)
    plain, wrapped = engine_of(problem, name), engine_of(problem, name, Participation(N))
    assert np.array_equal(problem.run(plain, 10), problem.run(wrapped, 10))


def test_what_an_absent_worker_would_have_computed_does_not_matter(quadratics: Any) -> None:
    problem = quadratics.draw(N, D, STEPS)
    who = Intervals(N, away={2: [(0, None)]})
    clean, poisoned = engine_of(problem, who=who), engine_of(problem, who=who)
    for t in range(5):
        batch = problem.batch(t)
        clean.step(batch)
        noise = batch["noise"].clone()
        noise[2] = float("nan")
        poisoned.step({**batch, "noise": noise})
        assert torch.equal(clean.x, poisoned.x)


@EVERY
def test_a_resumed_run_finds_the_schedule_by_itself(who: Participation, quadratics: Any) -> None:
    problem = quadratics.draw(N, D, STEPS)
    adam = {"optimizer": lambda p: torch.optim.Adam(p, lr=0.1)}
    whole, resumed = (engine_of(problem, "gradient-tracking", copy.deepcopy(who), **adam) for _ in range(2))
    problem.run(whole, 9)
    resumed.load_state_dict(whole.state_dict())
    assert np.array_equal(problem.run(whole, 7), problem.run(resumed, 7))


def test_lost_links_and_absent_workers_together_keep_the_mean(quadratics: Any) -> None:
    problem = quadratics.draw(N, D, STEPS)
    lossy = dropped(topology("ring", N), 0.3, seed=5, burst=3.0)
    engine = engine_of(problem, who=OnOff(N, away=0.2, stay=3.0), schedule=lossy, lr=0.0)
    first, last = engine.mean, problem.run(engine, STEPS)[-1].mean(axis=0)
    np.testing.assert_allclose(last, first, rtol=1e-13, atol=1e-14)
    assert float(engine.x.std(dim=0).max()) < float(torch.from_numpy(problem.x0).std(dim=0).max())


@pytest.mark.parametrize("route", ["vmap", "loop"])
def test_buffers_and_the_count_of_batches_stay_too(route: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)).double()
    who = Straggler(3, worker=1, every=3)
    engine = StackedEngine(
        model, lambda m, b: m(b).square().mean(), algorithm="dsgd", topology=topology("ring", 3),
        optimizer=lambda p: torch.optim.Adam(p, lr=0.01), gradients=route, participation=who,
    )  # fmt: skip
    for t in range(7):
        engine.step(torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(t), dtype=torch.float64))
    assert engine.buffers["1.num_batches_tracked"].tolist() == [7, 3, 7]
