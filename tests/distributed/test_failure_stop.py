"""A process that dies, hangs or leaves: every other one ends by itself, in time, and says who, when and at what."""

import os
import re
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crew import Crew, Run
from narrow import narrow
from plain import net, squared

import dissensus
from dissensus.algorithms import PeerError
from dissensus.algorithms.engines.distributed.entering import init_process_group
from dissensus.testing import Injection

HERE = Path(__file__)
N, STEPS, TIMEOUT = 4, 300, 4.0
ENDS_WITHIN = TIMEOUT + 10.0
"""Seconds after the failure, as promised."""
SAID = re.compile(
    r"process (?P<who>\d) lost its peer at step (?P<step>\d+), (?P<what>exchange|all-reduce|average of buffers), "
    r"(?P<doing>receiving from|sending to|summing with|gathering from) (?:process (?P<peer>\d)|the others)"
)


def far_loop(**options: Any) -> None:
    """The same with messages that go over gloo, in many pieces."""
    with narrow(1 << 14):
        loop(**options)


def loop(plan: str, topology: str, algorithm: str = "dsgd", width: int = 0, fused: bool = False) -> None:
    """A plain training loop, on a model whose messages are as long as `width` says."""
    init_process_group()
    model: Any = net() if not width else torch.nn.Linear(width, 3).double()
    worker = torch.distributed.get_rank()
    opt = dissensus.decentralize(
        torch.optim.SGD(model.parameters(), lr=0.01),
        model,
        algorithm=algorithm,
        topology=topology,
        timeout=TIMEOUT,
        fused=fused,
    )
    injection = Injection.of(plan)
    for t in range(STEPS):
        opt.zero_grad()
        loss = squared(model, t, worker) if not width else model(torch.ones(1, width).double()).square().mean()
        loss.backward()
        if injection(worker, t, model):
            continue
        opt.step()


def in_a_group(plan: str, algorithm: str, given: bool) -> None:
    """The same loop, with the time-out of the group, or with one of its own in a group that is given."""
    limit = timedelta(seconds=TIMEOUT)
    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=300) if given else limit)
    group: Any = torch.distributed.new_group(list(range(N))) if given else None
    model, injection, worker = net(), Injection.of(plan), torch.distributed.get_rank()
    opt = dissensus.decentralize(
        torch.optim.SGD(model.parameters(), lr=0.01),
        model,
        algorithm=algorithm,
        group=group,
        timeout=TIMEOUT if given else None,
    )
    for t in range(STEPS):
        opt.zero_grad()
        squared(model, t, worker).backward()
        injection(worker, t, model)
        opt.step()


def stopped(run: Run, who: int) -> list[str]:
    """The last line of every survivor, once all have ended."""
    survivors = [q for q in range(N) if q != who]
    codes = run.codes(survivors, 30.0 + ENDS_WITHIN)  # what comes before the failure may take its time
    left = run.end()
    logs = {q: run.log(q) for q in range(N)}
    assert None not in codes, f"processes {left} had not ended\n{logs}"
    assert 0 not in codes, logs
    return [next((x for x in logs[q].splitlines() if "PeerError: " in x), logs[q]) for q in survivors]


def names(line: str, who: int) -> bool:
    """Whether a sentence traces the failure back to this process, and names a step and an operation."""
    first = line.rsplit("what failed first: ", 1)[-1]
    found = SAID.search(first)
    return SAID.search(line) is not None and found is not None and found["peer"] == str(who)


@pytest.mark.parametrize(
    ("plan", "topology", "algorithm", "width"),
    [
        pytest.param("kill 2 at 0", "ring", "dsgd", 0, id="killed at the first step"),
        pytest.param("kill 0 at 6", "one-peer-exponential", "dsgd", 0, id="the one that holds the store"),
        pytest.param("kill 3 at 6 after 4ms", "ring", "dsgd", 1_000_000, id="in the middle of a message"),
        pytest.param("kill 1 at 6", "one-peer-exponential", "gradient-tracking", 0, id="two messages a step"),
        pytest.param("stop 1 at 6", "one-peer-exponential", "dsgd", 0, id="stopped"),
        pytest.param("stop 0 at 6", "ring", "dsgd", 0, id="stopped, the one that holds the store"),
        pytest.param("hang 2 at 6", "ring", "dsgd", 0, id="a loop that stands still"),
        pytest.param("leave 3 at 6", "ring", "dsgd", 0, id="gone early"),
    ],
)
def test_all_others_end_and_name_it(plan: str, topology: str, algorithm: str, width: int, crew: Crew) -> None:
    who = int(plan.split()[1])
    run = crew.start(f"{HERE}:loop", N, plan=plan, topology=topology, algorithm=algorithm, width=width)
    for line in stopped(run, who):
        assert names(line, who), line


@pytest.mark.parametrize(
    ("plan", "topology", "fused"),
    [
        pytest.param("kill 3 at 6 after 4ms", "ring", False, id="killed in the middle of a message"),
        pytest.param("kill 1 at 6 after 4ms", "one-peer-exponential", True, id="killed, fused"),
        pytest.param("stop 1 at 6", "one-peer-exponential", False, id="stopped"),
        pytest.param("hang 2 at 6", "one-peer-exponential", True, id="a loop that stands still, fused"),
        pytest.param("leave 0 at 6", "ring", False, id="gone early"),
    ],
)
def test_messages_in_pieces_end_as_others_do(plan: str, topology: str, fused: bool, crew: Crew) -> None:
    who = int(plan.split()[1])
    run = crew.start(f"{HERE}:far_loop", N, plan=plan, topology=topology, fused=fused, width=100_000)
    for line in stopped(run, who):
        assert names(line, who), line


def test_one_that_has_skipped_a_step_is_missed_at_the_last_one(crew: Crew) -> None:
    run = crew.start(f"{HERE}:loop", N, plan="skip 2 at 6", topology="complete", algorithm="qg-dsgdm")
    for line in stopped(run, 2):
        assert names(line, 2), line
        assert f"step {STEPS - 1}" in line, line


@pytest.mark.parametrize("algorithm", ["dsgd", "allreduce"])
@pytest.mark.parametrize("given", [False, True], ids=["that of the group", "another one for a group that is given"])
def test_one_that_hangs_is_missed_within_the_time_out(given: bool, algorithm: str, crew: Crew) -> None:
    run = crew.start(f"{HERE}:in_a_group", N, plan="hang 2 at 6", algorithm=algorithm, given=given)
    for line in stopped(run, 2):
        assert SAID.search(line), line


def test_an_all_reduce_names_whoever_does_not_answer(crew: Crew) -> None:
    run = crew.start(f"{HERE}:loop", N, plan="kill 1 at 6", topology="ring", algorithm="allreduce")
    for line in stopped(run, 1):
        assert "all-reduce, summing with the others" in line
        assert "process 1 does not answer" in line, line


def uneven() -> None:
    """The loop of a first example: nobody waits for anybody at its end. One computes longer in the last step."""
    os.environ["DISSENSUS_SAME_HOST"] = "gloo"
    init_process_group()
    model, worker, steps = net(), torch.distributed.get_rank(), 5
    opt = dissensus.decentralize(torch.optim.SGD(model.parameters(), lr=0.01), model, timeout=TIMEOUT)
    for t in range(steps):
        opt.zero_grad()
        if worker == 1 and t == steps - 1:
            time.sleep(4.0)  # longer than the others take to end
        squared(model, t, worker).backward()
        opt.step()


def test_the_last_to_end_has_lost_nobody(crew: Crew) -> None:
    run = crew.start(f"{HERE}:uneven", N)
    assert run.codes(range(N), 60.0) == [0] * N, run.log(1)


def at_random(crew: Crew, times: int, seed: int) -> None:
    drawn = np.random.default_rng(seed)
    for k in range(times):
        who, step, later = int(drawn.integers(N)), int(drawn.integers(30)), float(drawn.uniform(0.1, 5.0))
        topology = str(drawn.choice(["ring", "one-peer-exponential"]))
        plan = f"kill {who} at {step} after {later:.1f}ms"
        script, width = [("loop", 0), ("loop", 200_000), ("far_loop", 200_000)][k % 3]
        run = crew.start(f"{HERE}:{script}", N, plan=plan, topology=topology, width=width)
        for line in stopped(run, who):
            assert names(line, who), (plan, line)


def test_killed_at_random_moments(crew: Crew) -> None:
    at_random(crew, 3, seed=1)


@pytest.mark.slow
def test_killed_twenty_times_at_random_moments(crew: Crew) -> None:
    at_random(crew, 20, seed=2)


def test_the_error_can_be_caught() -> None:
    error = PeerError("process 0 lost its peer", 2, 7)
    assert isinstance(error, dissensus.algorithms.AlgorithmError)
    assert (error.peer, error.step) == (2, 7)
