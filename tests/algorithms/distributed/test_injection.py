"""Failures on purpose: plans are read, refused where they mean nothing, and happen to whom and when they say."""

import math
import signal
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pytest
import torch

from dissensus.algorithms import AlgorithmError
from dissensus.algorithms.engines.distributed.injection import Injection, Part


def test_a_plan_is_read() -> None:
    plan = (
        "kill 1 at 5; stop 2 at 7;sleep 3 lognormal 0.3 of 50ms; nan 0 at 9; kill 4 at 6 after 20ms; sleep all 2s at 1"
    )
    assert Injection.of(plan).parts == (
        Part("kill", 1, 5),
        Part("stop", 2, 7),
        Part("sleep", 3, None, 0.05, "lognormal", 0.3),
        Part("nan", 0, 9),
        Part("kill", 4, 6, 0.02),
        Part("sleep", None, 1, 2.0),
    )


def test_without_a_plan_the_environment_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISSENSUS_INJECT", raising=False)
    assert Injection.of().parts == ()
    monkeypatch.setenv("DISSENSUS_INJECT", "skip 1 at 2")
    assert Injection.of().parts == (Part("skip", 1, 2),)
    assert Injection.of("").parts == ()


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ("kil 1 at 5", "nothing is called 'kil'; did you mean 'kill'"),
        ("kill one at 5", "a worker is a whole number, or 'all', got 'one'"),
        ("kill 1", "expected 'kill 1 at 5'"),
        ("kill 1 at soon", "expected 'kill 1 at 5'"),
        ("stop 1 at 5 after 3ms", "expected 'stop 1 at 5'"),
        ("sleep 1 long", "expected 'sleep 1 50ms'"),
        ("sleep 1 lognormal of 50ms", "expected 'sleep 1 50ms'"),
    ],
)
def test_a_plan_that_means_nothing_is_refused(plan: str, said: str) -> None:
    with pytest.raises(AlgorithmError, match=said):
        Injection.of(plan)


@pytest.mark.parametrize(("law", "spread"), [("exponential", 1.0), ("lognormal 0.5", math.sqrt(math.exp(0.25) - 1.0))])
def test_sleeps_have_the_mean_and_the_spread_of_their_law(law: str, spread: float) -> None:
    plan = Injection.of(f"sleep all {law} of 20ms")
    drawn = np.array([plan.slept(0, worker, step) for worker in range(4) for step in range(2000)]) / 0.02
    # 8000 draws: standard errors of the mean below 0.012, of the deviation below 0.03 (exponential: 0.016)
    assert drawn.mean() == pytest.approx(1.0, abs=0.05)
    assert drawn.std() == pytest.approx(spread, abs=0.12)


def test_the_seed_decides_how_long_somebody_sleeps() -> None:
    def all_of(seed: int) -> list[float]:
        plan = Injection.of("sleep 0 exponential of 1ms; sleep 0 exponential of 1ms", seed=seed)
        return [plan.slept(place, worker, step) for place in (0, 1) for worker in (0, 1) for step in (0, 1)]

    assert all_of(3) == all_of(3)
    assert len({*all_of(3), *all_of(4)}) == 16


def test_it_happens_to_whom_and_when_the_plan_says(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    plan = Injection.of("skip 1 at 2; sleep 0 3ms at 4; sleep all 5ms at 6")
    skipped = [(worker, step) for step in range(8) for worker in range(3) if plan(worker, step)]
    assert skipped == [(1, 2)]
    assert slept == [0.003, 0.005, 0.005, 0.005]


def test_gradients_are_spoiled() -> None:
    model = torch.nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    plan = Injection.of("nan 0 at 1")
    plan(0, 0, model)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    plan(0, 1, model)
    assert all(p.grad is not None and p.grad.isnan().all() for p in model.parameters())
    with pytest.raises(AlgorithmError, match="it was given no model"):
        plan(0, 1)


LOOP = """
import sys, time
from dissensus.algorithms.engines.distributed.injection import Injection
plan = Injection.of(sys.argv[1])
for t in range(3):
    print(t, flush=True)
    plan(0, t)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("what", "code"),
    [("kill 0 at 1", -signal.SIGKILL), ("leave 0 at 1", 0), ("kill 0 at 1 after 1ms", -signal.SIGKILL)],
)
def test_a_process_ends_as_planned(what: str, code: int) -> None:
    run = partial(subprocess.run, capture_output=True, text=True, timeout=60)
    found = run([sys.executable, "-c", LOOP, what])
    assert found.returncode == code
    assert found.stdout.split()[:2] == ["0", "1"]
    assert "after" in what or "2" not in found.stdout
