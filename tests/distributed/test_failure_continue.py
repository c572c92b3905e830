"""A process is lost and the others go on: among themselves they are the algorithm on the smaller topology, from a step
on that is the same for all, and every loop comes to its end."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crew import Crew, Run, left
from narrow import narrow
from plain import batch, flat, net, normed, squared
from pool import Pool
from torch import Tensor

import dissensus
from dissensus.algorithms import AlgorithmError, StackedEngine, algorithm
from dissensus.algorithms.engines.distributed.entering import init_process_group
from dissensus.algorithms.engines.distributed.surviving import Surviving
from dissensus.testing import Injection
from dissensus.theory import MixingMatrix, from_matrices, topology
from dissensus.theory.survivors import among

HERE = Path(__file__)
N, STEPS, WHEN, LR = 4, 30, 6, 0.05
ALGORITHMS = {
    "awc": {"name": "dsgd", "order": "awc", "gamma": 0.7},
    "atc": {"name": "dsgd", "order": "atc"},
    "cta": {"name": "dsgd", "order": "cta"},
    "dsgd-ac": {"name": "dsgd-ac"},
    "gradient-tracking": {"name": "gradient-tracking"},
    "choco-sgd": {"name": "choco-sgd"},
    "sgp": {"name": "sgp"},
    "local-sgd": {"name": "local-sgd", "period": 4},
    "allreduce": {"name": "allreduce"},
}
CASES = [
    *[(name, "ring", 2, False) for name in ALGORITHMS],
    ("awc", "one-peer-exponential", 0, False),
    ("sgp", "one-peer-exponential", 1, False),
    ("awc", "star", 0, False),
    ("awc", "ring", 3, True),
]


def script(spec: dict[str, Any], topology: str, who: int, fused: bool) -> dict[str, Any]:
    """A loop in which worker `who` kills itself; what the others were at every step."""
    model, worker = net(), torch.distributed.get_rank()
    opt = dissensus.decentralize(
        torch.optim.SGD(model.parameters(), lr=LR),
        model,
        algorithm=algorithm(**spec),
        topology=topology,
        timeout=20.0,
        on_failure="continue",
        fused=fused,
    )
    path: list[Tensor] = []
    for t in range(STEPS):
        opt.zero_grad()
        if t == WHEN and worker == who:
            os.kill(os.getpid(), signal.SIGKILL)
        squared(model, t, worker).backward()
        opt.step()
        path.append(flat(model))
    exchange = opt.held.exchange
    assert isinstance(exchange, Surviving)
    parts = [exchange._exchange.rounds[t] for t in range(exchange.begins, exchange.begins + 4)]
    rows = np.zeros((4, N))
    for row, part in zip(rows, parts, strict=True):
        row[worker] = part.own[0, 0]
        for (_, heard), weight in zip(part.receives, part.heard[0], strict=True):
            row[heard] = weight
    return {"path": torch.stack(path), "begins": exchange.begins, "present": opt.present, "rows": rows}


@pytest.mark.parametrize(("name", "graph", "who", "fused"), CASES)
def test_the_others_are_the_algorithm_on_the_smaller_topology(
    name: str, graph: str, who: int, fused: bool, processes: Pool
) -> None:
    spec = ALGORITHMS[name]
    outcomes = processes.outcomes(N, f"{HERE}:script", grace=60.0, spec=spec, topology=graph, who=who, fused=fused)
    assert "died with exit code -9" in outcomes[who].failure
    others = [q for q in range(N) if q != who]
    assert not any(outcomes[q].failure for q in others), [o.failure for o in outcomes]
    found = [outcomes[q].value for q in others]
    assert {f["present"] for f in found} == {tuple(others)}
    (begins,) = {f["begins"] for f in found}
    assert WHEN < begins < STEPS - 5
    whole = among(topology(graph, N), others)
    rounds = [whole[begins + s].dense()[np.ix_(others, others)] for s in range(whole.period or 1)]
    for s in range(4):
        mixing = np.stack([f["rows"][s] for f in found])
        assert (mixing[:, who] == 0).all()
        assert MixingMatrix.of(mixing[:, others]).is_doubly_stochastic
        np.testing.assert_allclose(mixing[:, others], rounds[s % len(rounds)], atol=1e-15)
    path = torch.stack([f["path"] for f in found])
    if name == "local-sgd":  # counts its periods from the first step of all
        begins += -begins % 4
    expected = replayed(spec, from_matrices(rounds), others, path[:, begins - 1], begins)
    torch.testing.assert_close(path[:, begins:], expected, rtol=1e-10, atol=1e-12)


def replayed(spec: dict[str, Any], smaller: Any, workers: list[int], start: Tensor, begins: int) -> Tensor:
    """The same algorithm started from these points, with all workers in one process."""
    equal = spec["name"] == "allreduce"
    engine = StackedEngine(
        net(),
        lambda model, b: (model(b[0]) - b[1]).square().mean(),
        algorithm=algorithm(**spec),
        topology=smaller,
        optimizer=partial(torch.optim.SGD, lr=LR),
        start=start[0] if equal else start,
    )
    path = []
    for t in range(begins, STEPS):
        batches = [batch(t, i) for i in workers]
        engine.step(tuple(torch.stack(column) for column in zip(*batches, strict=True)))
        path.append(engine.x)
    return torch.stack(path, dim=1)


# ---- whole processes, in whatever way they are lost


def loop(
    plan: str, graph: str = "ring", name: str = "awc", steps: int = 60, each: int = 0, fused: bool = False
) -> None:
    """A loop that looks at the average of all now and then, and at its end comes together."""
    init_process_group()
    torch.manual_seed(0)
    model, worker = normed(), torch.distributed.get_rank()
    opt = dissensus.decentralize(
        torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9),
        model,
        algorithm=algorithm(**ALGORITHMS[name]),
        topology=graph,
        timeout=4.0,
        on_failure="continue",
        fused=fused,
    )
    injection = Injection.of(plan)
    for t in range(steps):
        opt.zero_grad()
        injection(worker, t, model)
        squared(model, t, worker).backward()
        opt.step()
        if each and t % each == 0:
            with opt.consensus():
                pass
    apart = flat(model)
    for group in opt.param_groups:
        group["lr"] = 0.0
    for _ in range(60):
        opt.zero_grad()
        squared(model, steps, worker)  # some take their gradient elsewhere, and wait for a forward
        opt.step()
    with opt.consensus() as average:
        mean = flat(average)
    left({"present": opt.present, "t": opt.t, "apart": apart, "end": flat(model), "mean": mean})


def far_loop(**options: Any) -> None:
    """The same with messages in many pieces."""
    with narrow(32):
        loop(**options)


def went_on(run: Run, *lost: int, of: int = N, apart: bool = True) -> list[dict[str, Any]]:
    """What the others have left, once all have ended well."""
    others = [q for q in range(of) if q not in lost]
    codes = run.codes(others, 90.0)
    run.end()
    logs = {q: run.log(q) for q in range(of)}
    assert codes == [0] * len(others), logs
    found = [run.left(q) for q in others]
    assert {one["present"] for one in found} == {tuple(others)}, logs
    assert {one["t"] for one in found} == {found[0]["t"]}, "every loop makes all its steps"
    for one in found:
        torch.testing.assert_close(one["mean"], found[0]["mean"], rtol=0, atol=0)
        torch.testing.assert_close(one["end"], one["mean"], rtol=1e-8, atol=1e-10)  # 60 rounds of a contraction < 0.6
    if apart and len(others) > 1:
        assert (found[0]["apart"] - found[1]["apart"]).norm() > 1e-6, "they had something to agree on"
    return found


@pytest.mark.parametrize(
    ("plan", "graph", "options"),
    [
        pytest.param("kill 0 at 6", "one-peer-exponential", {}, id="the one that holds the store"),
        pytest.param("kill 0 at 6; kill 1 at 6", "ring", {}, id="two at once"),
        pytest.param("kill 0 at 6; kill 3 at 8; kill 2 at 10", "ring", {}, id="all but one"),
        pytest.param("kill 1 at 6; kill 2 at 6 after 15ms", "ring", {}, id="another one while they agree"),
        pytest.param("kill 2 at 6 after 1ms", "ring", {"each": 1}, id="while they look at the average"),
        pytest.param("kill 2 at 6", "ring", {"name": "gradient-tracking", "each": 1}, id="with two messages a step"),
        pytest.param("leave 1 at 9", "one-peer-exponential", {"fused": True}, id="gone early, fused"),
    ],
)
def test_the_others_go_on_and_come_together(plan: str, graph: str, options: dict[str, Any], crew: Crew) -> None:
    lost = sorted({int(part.split()[1]) for part in plan.split(";")})
    went_on(crew.start(f"{HERE}:loop", N, plan=plan, graph=graph, **options), *lost)


@pytest.mark.parametrize(
    ("plan", "options"),
    [
        ("kill 2 at 6 after 1ms", {"each": 1}),
        ("kill 0 at 6; kill 3 at 8 after 3ms", {"fused": True}),
        ("kill 1 at 6", {"name": "gradient-tracking"}),
    ],
)
def test_messages_in_pieces_are_given_up_too(plan: str, options: dict[str, Any], crew: Crew) -> None:
    lost = sorted({int(part.split()[1]) for part in plan.split(";")})
    run = crew.start(f"{HERE}:far_loop", N, plan=plan, graph="one-peer-exponential", **options)
    went_on(run, *lost)


def at_random(crew: Crew, times: int, seed: int) -> None:
    drawn = np.random.default_rng(seed)
    for k in range(times):
        name = str(drawn.choice(["awc", "atc", "cta", "gradient-tracking", "sgp", "allreduce"]))
        lost = sorted(drawn.permutation(N)[: drawn.integers(1, N)].tolist())
        begin = int(drawn.integers(2, 40))
        when = [
            (q, begin + int(drawn.integers(4)), float(drawn.choice([0.1, 3.0, 30.0]) * drawn.random())) for q in lost
        ]
        options = {
            "plan": "; ".join(f"kill {q} at {step} after {later:.2f}ms" for q, step, later in when),
            "graph": str(drawn.choice(["ring", "one-peer-exponential"])),
            "name": name,
            "each": int(drawn.choice([0, 1, 5])),
            "fused": name in ("awc", "allreduce") and bool(drawn.integers(2)),
        }
        print(options)  # noqa: T201
        script = "far_loop" if k % 2 else "loop"
        found = went_on(crew.start(f"{HERE}:{script}", N, **options), *lost, apart=False)
        assert name != "allreduce" or all(torch.equal(one["apart"], found[0]["apart"]) for one in found)


def test_lost_at_random_moments(crew: Crew) -> None:
    at_random(crew, 3, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_lost_at_a_hundred_random_moments(crew: Crew) -> None:
    at_random(crew, 100, seed=2)


def test_one_of_two_goes_on(crew: Crew) -> None:
    went_on(crew.start(f"{HERE}:loop", 2, plan="kill 0 at 6"), 0, of=2)


def test_one_that_wakes_up_again_is_told_that_the_others_went_on(crew: Crew) -> None:
    run = crew.start(f"{HERE}:loop", N, plan="stop 1 at 6; sleep all 50ms", steps=100)
    for _ in range(600):
        if "without 1" in run.log(0):
            break
        run.codes([0], 0.1)
    assert "without 1" in run.log(0), run.log(0)
    run.kill(1, signal.SIGCONT)
    assert run.codes([1], 60.0) not in ([0], [None])
    assert "the others went on without process 1" in run.log(1), run.log(1)
    went_on(run, 1)


def lone() -> list[str]:
    """What is refused, and what is not needed."""
    model = net()
    told = []
    for how in ("continue", "go on"):
        try:
            opt: Any = torch.optim.SGD(model.parameters(), lr=LR)
            dissensus.decentralize(opt, model, on_failure=how)  # type: ignore[arg-type]
            told.append("")
        except AlgorithmError as error:
            told.append(str(error))
    return told


def test_what_is_not_a_policy_is_refused_and_one_process_needs_none(processes: Pool) -> None:
    ((one, other),) = processes.run(1, f"{HERE}:lone")
    assert one == ""
    assert other == "on_failure must be 'stop' or 'continue', got 'go on'"
