"""Schedules, and looks attached to a training run: when they are due, what they record, what they leave alone."""

import copy
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from dissensus.algorithms import StackedEngine
from dissensus.probes import Curvature, ProbeError, hessian_trace
from dissensus.probes.attached import Attached
from dissensus.probes.schedule import Epochs, Every, LogSpaced, Never, schedule
from dissensus.theory import topology

N, STEPS = 4, 12


def steps_of(when: Any, last: int = 40) -> list[int]:
    return [t for t in range(last + 1) if when.due(t)]


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("never", []),
        ("0", []),
        ("10", [0, 10, 20, 30, 40]),
        ("every 15", [0, 15, 30]),
        ("epoch", [0, 8, 15, 23, 30, 38]),  # 7.5 steps an epoch
        ("Epoch 2", [0, 15, 30]),
        ("log 4", [0, 1, 3, 12, 40]),
    ],
)
def test_schedules(text: str, steps: list[int]) -> None:
    assert steps_of(schedule(text, steps=40, steps_per_epoch=7.5)) == steps


def test_schedules_by_hand() -> None:
    assert steps_of(Every(7, start=3), 20) == [3, 10, 17]
    assert steps_of(Epochs(5.0, 2), 20) == [0, 10, 20]
    assert steps_of(LogSpaced(40, 10), 12) == [*range(11)], "looks that fall together are one"
    assert steps_of(Never()) == []


@pytest.mark.parametrize("text", ["", "sometimes", "every", "every x", "epoch x", "log", "log x", "every -1"])
def test_an_unknown_schedule_is_told_what_there_is(text: str) -> None:
    with pytest.raises(ProbeError, match="there are 'never', 'every 250'"):
        schedule(text, steps=10, steps_per_epoch=2)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Every(0), "positive number of steps"),
        (lambda: Epochs(0.0), "positive number of steps"),
        (lambda: Epochs(1.0, 0), "every >= 1"),
        (lambda: LogSpaced(1, 10), "at least 2 looks"),
        (lambda: schedule("every 0", steps=1, steps_per_epoch=1), "positive number of steps"),
    ],
)
def test_impossible_schedules(make: Any, says: str) -> None:
    with pytest.raises(ProbeError, match=says):
        make()


def loss(model: nn.Module, batch: tuple) -> torch.Tensor:
    return mse_loss(model(batch[0]), batch[1])


def engine() -> StackedEngine:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.3), nn.Linear(5, 1)).double()
    return StackedEngine(model, loss, algorithm="dsgd", topology=topology("ring", N), lr=0.1, seed=1)


def batch(t: int) -> tuple:
    rng = np.random.default_rng(t)
    return torch.from_numpy(rng.normal(size=(N, 8, 3))), torch.from_numpy(rng.normal(size=(N, 8, 1)))


def one(t: int) -> tuple:
    x, y = batch(t)
    return x[0], y[0]


def trace(model: nn.Module) -> Any:
    torch.rand(7)  # a careless look
    return hessian_trace(Curvature(model, loss, [one(1000)]), method="exact", max_matvecs=100)


def test_a_run_that_is_looked_at_equals_the_one_that_is_not_to_the_bit() -> None:
    watched, alone, lines = engine(), engine(), []
    looks = Attached({"trace": trace}, Every(3), record=lines.append, workers=[0, 2])
    for t in range(STEPS):
        looks.after(watched)
        watched.step(batch(t))
        alone.step(batch(t))
    looks.after(watched, final=True)
    assert torch.equal(watched.x, alone.x)
    assert all(torch.equal(watched.buffers[name], value) for name, value in alone.buffers.items())
    assert [(line["step"], line["which"]) for line in lines] == [
        (t, which) for t in (0, 3, 6, 9, 12) for which in ("consensus", "worker 0", "worker 2")
    ]
    assert looks.seconds == pytest.approx(sum(line["seconds"] for line in lines), abs=1e-4)
    assert all(line["num_matvecs"] == 36 and line["name"] == "trace" for line in lines)


def test_what_is_recorded_is_the_consensus_model_and_the_worker() -> None:
    run, lines = engine(), []
    for t in range(5):
        run.step(batch(t))
    Attached({"trace": trace}, Every(5), record=lines.append, workers=[3]).after(run)
    with run.consensus() as mean:
        expected = [float(trace(mean))]
    with run.worker(3) as third:
        expected.append(float(trace(third)))
    assert [line["value"] for line in lines] == expected
    assert expected[0] != expected[1]


def test_numbers_and_several_at_once_are_recorded_by_name() -> None:
    lines: list[dict] = []
    looks = {"size": lambda model: 2, "both": lambda model: {"a": 1.5, "b": trace(model)}}
    Attached(looks, Every(1), record=lines.append).after(engine())
    assert [(line["name"], line.get("converged")) for line in lines] == [("size", None), ("a", None), ("b", True)]
    assert [line["value"] for line in lines[:2]] == [2.0, 1.5]


class Clock:
    """A clock that a test turns."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Still:
    """What an engine shows, without one; a look and a view take the time that the test says."""

    t = 0

    @contextmanager
    def consensus(self) -> Any:
        yield nn.Linear(1, 1)


def test_a_share_of_the_time_is_kept_and_what_is_left_out_is_recorded() -> None:
    clock, run, lines = Clock(), Still(), []

    def slow(model: nn.Module) -> float:
        clock.now += 3.0
        return 1.0

    looks = Attached({"slow": slow}, Every(1), record=lines.append, share=0.2, clock=clock)
    for _ in range(100):
        looks.after(run)
        clock.now += 1.0
        run.t += 1
        if lines[-1]["step"] > 0 and lines[-1]["value"] is not None:
            assert looks.seconds <= 0.2 * (clock.now - 1.0) + 1e-9
    taken = [line["step"] for line in lines if line["value"] is not None]
    assert taken[0] == 0, "the first look's cost is not known beforehand"
    assert len(lines) == 100
    assert 6 <= len(taken) <= 100 * 0.25 / 3 + 1
    assert {line["left_out"] for line in lines if line["value"] is None} == {"no time left in its share"}
    looks.after(run, final=True)
    assert lines[-1]["value"] == 1.0, "the end is always looked at"


def test_a_look_that_fails_leaves_its_sentence_and_the_training_goes_on() -> None:
    lines: list[dict] = []

    def fails(model: nn.Module) -> float:
        raise ProbeError("nothing to look at")

    looks = Attached({"bad": fails, "good": lambda model: 1.0}, Every(1), record=lines.append)
    looks.after(engine())
    assert [(line["name"], line["value"], line.get("error")) for line in lines] == [
        ("bad", None, "nothing to look at"),
        ("good", 1.0, None),
    ]


def test_a_mistake_in_a_look_is_not_swallowed() -> None:
    with pytest.raises(ZeroDivisionError):
        Attached({"bad": lambda model: 1 / 0}, Every(1), record=print).after(engine())


def test_a_layout_without_single_workers_is_told_so_before_anything_is_recorded() -> None:
    lines: list[dict] = []
    looks = Attached({"one": lambda model: 1.0}, Every(5), record=lines.append, workers=[0])
    with pytest.raises(ProbeError, match=r"Still has no view of a single worker: leave workers out"):
        looks.after(Still())
    assert lines == []


@pytest.mark.parametrize("share", [0.0, -0.1, 1.5])
def test_an_impossible_share(share: float) -> None:
    with pytest.raises(ProbeError, match="a part of the time"):
        Attached({}, Never(), record=print, share=share)


def test_nothing_is_done_when_nothing_is_due() -> None:
    run = engine()
    before = copy.deepcopy(run.state_dict())
    looks = Attached({"trace": trace}, Never(), record=print)
    assert looks.after(run) == []
    assert looks.seconds == 0.0
    assert before["t"] == run.t
