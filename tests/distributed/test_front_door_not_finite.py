"""A number that is not finite on one worker: nobody receives it, and all are told, or go on without that worker."""

import gc
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from plain import flat, net, squared
from pool import Pool
from torch import Tensor

import dissensus
from dissensus.algorithms import AlgorithmError, algorithm
from dissensus.algorithms.engines.distributed.isolation import Isolation
from dissensus.theory import topology as topology_named

HERE = Path(__file__)
N, STEPS, WHEN, WHO = 4, 20, 3, 1
SPECS = {
    "awc": {"name": "dsgd", "order": "awc"},
    "atc": {"name": "dsgd", "order": "atc"},
    "cta": {"name": "dsgd", "order": "cta"},
    "gradient-tracking": {"name": "gradient-tracking"},
    "allreduce": {"name": "allreduce"},
}
MIXING = ("awc", "atc")


def script(
    case: str,
    topology: str,
    what: str,
    last: int = STEPS,
    leave: bool = True,
    patience: float | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Something goes wrong on worker `WHO` from step `WHEN` on; after step `last` nobody else has a gradient."""
    model, worker = net(), dist.get_rank()
    opt = dissensus.decentralize(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        model,
        algorithm=algorithm(**SPECS[case]),
        topology=topology,
        timeout=patience,
        **options,
    )
    path: list[Tensor] = []
    told = ""
    try:
        for t in range(STEPS):
            opt.zero_grad()
            bad = t >= WHEN and worker == WHO
            if t <= last or bad:
                (squared(model, t, worker) * (float("nan") if bad and what == "gradient" else 1.0)).backward()
            if bad and what == "move":  # a gradient that is finite, along which nobody can go
                opt.param_groups[0]["lr"] = float("inf")
            opt.step()
            path.append(flat(model))
    except AlgorithmError as error:
        told = str(error)
    end = flat(model)
    if told and leave:  # as a script does that ends with an error
        del opt, model
        gc.collect()
        dist.destroy_process_group()
    return {"told": told, "path": torch.stack(path), "end": end}


def check_told(outcomes: list[dict[str, Any]]) -> None:
    for worker, outcome in enumerate(outcomes):
        assert re.search(rf"worker {WHO}\b", outcome["told"]), outcome["told"]
        assert re.search(rf"step {WHEN}\b", outcome["told"]), outcome["told"]
        assert worker == WHO or outcome["end"].isfinite().all(), "nobody has received it"


@pytest.mark.parametrize("what", ["gradient", "move"])
@pytest.mark.parametrize(
    ("case", "topology"), [*((case, "ring") for case in SPECS), *((case, "one-peer-exponential") for case in MIXING)]
)
def test_all_stop_and_name_worker_and_step(case: str, topology: str, what: str, processes: Pool) -> None:
    check_told(processes.run(N, f"{HERE}:script", case=case, topology=topology, what=what))


def test_all_stop_when_the_process_that_found_it_lives_on(processes: Pool) -> None:
    """Nobody's connection is closed then, and the others know after their time-out at the latest."""
    told = processes.run(N, f"{HERE}:script", case="awc", topology="ring", what="gradient", leave=False, patience=2.0)
    check_told(told)


@pytest.mark.parametrize(
    ("topology", "what"),
    [("ring", "gradient"), ("ring", "move"), ("complete", "gradient"), ("one-peer-hypercube", "move")],
)
@pytest.mark.parametrize("case", MIXING)
def test_an_isolated_worker_is_not_missed(case: str, topology: str, what: str, processes: Pool) -> None:
    outcomes = processes.run(
        N, f"{HERE}:script", case=case, topology=topology, what=what, last=WHEN + 1, on_nan="isolate"
    )
    assert [o["told"] for o in outcomes] == [""] * N
    assert [len(o["path"]) for o in outcomes] == [STEPS] * N
    assert all(o["path"].isfinite().all() for o in outcomes), "the isolated one stays at its last finite point"
    left = torch.stack([o["path"] for i, o in enumerate(outcomes) if i != WHO])[:, WHEN + 2 :]
    alone = outcomes[WHO]["path"][WHEN + 2 :]
    mean = left.mean(0)
    assert (mean - mean[0]).abs().max() <= 1e-12, "what is exchanged among those that are left keeps their mean"
    assert (left[:, -1] - mean[-1]).abs().max() < 0.5 * (left[:, 0] - mean[0]).abs().max(), "they come together"
    assert (alone == alone[0]).all(), "and nobody hears or moves the isolated one"


def test_without_a_policy_nobody_looks(processes: Pool) -> None:
    outcomes = processes.run(N, f"{HERE}:script", case="awc", topology="ring", what="gradient", on_nan=None)
    assert [o["told"] for o in outcomes] == [""] * N
    assert not any(o["end"].isfinite().all() for o in outcomes)


def two_at_once() -> str:
    """Two workers at one step: the sentence names one of them, and everybody ends."""
    model, worker, told = net(), dist.get_rank(), ""
    opt = dissensus.decentralize(torch.optim.SGD(model.parameters(), lr=0.1), model, topology="ring")
    try:
        for t in range(STEPS):
            opt.zero_grad()
            (squared(model, t, worker) * (float("inf") if t == 2 and worker in (0, 3) else 1.0)).backward()
            opt.step()
    except AlgorithmError as error:
        told = str(error)
    del opt, model
    gc.collect()
    dist.destroy_process_group()
    return told


def test_two_workers_at_once(processes: Pool) -> None:
    for told in processes.run(N, f"{HERE}:two_at_once"):
        assert re.search(r"worker [03]\b", told), told
        assert re.search(r"step 2\b", told), told


@pytest.mark.parametrize(
    ("name", "schedule", "why"),
    [
        ("choco-sgd", "ring", "remember what their neighbours have sent"),
        ("sgp", "one-peer-exponential", "a sender cannot know"),
        ("dsgd", "directed-ring", "rounds of topology 'directed-ring' are not symmetric"),
        ("gradient-tracking", "ring", "who is no neighbour does not hear that one is gone"),
    ],
)
def test_isolation_is_refused_where_others_would_miss_the_worker(name: str, schedule: str, why: str) -> None:
    with pytest.raises(AlgorithmError, match=f"on_nan='isolate' is not possible: .*{why}.*; use on_nan='stop'"):
        Isolation(algorithm(name), topology_named(schedule, N))
    Isolation(algorithm("dsgd"), topology_named("ring", N))
