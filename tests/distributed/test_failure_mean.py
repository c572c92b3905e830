"""A process is lost while all take a mean: it is the mean of those that are left.

All workers start at the same point and see the same data, so that every mean is what each of them has, and the loop of
one process alone says where they must be.
"""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from plain import flat, net, squared
from pool import Pool
from torch import Tensor

import dissensus
from dissensus.algorithms import algorithm

HERE = Path(__file__)
N, STEPS, WHEN, WHO, LR = 4, 14, 6, 2, 0.05
ALGORITHMS = {
    "local-sgd": {"name": "local-sgd", "period": 4},
    "allreduce": {"name": "allreduce"},
    "dsgd": {"name": "dsgd"},
}


def alone() -> Tensor:
    """Where one process is after every step."""
    model, path = net(), []
    opt = torch.optim.SGD(model.parameters(), lr=LR)
    for t in range(STEPS):
        opt.zero_grad()
        squared(model, t, 0).backward()
        opt.step()
        path.append(flat(model))
    return torch.stack(path)


class Mortal:
    """A group in which this process kills itself when something is summed for the second time."""

    def __init__(self, group: Any) -> None:
        self._group, self._sums = group, 0

    def allreduce(self, *args: Any) -> Any:
        self._sums += 1
        if self._sums == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return self._group.allreduce(*args)


def script(name: str, where: str, **options: Any) -> dict[str, Any]:
    """Worker `WHO` kills itself in the step of a mean, between two sums of one, or where the others look."""
    model, worker = net(), torch.distributed.get_rank()
    opt = dissensus.decentralize(
        torch.optim.SGD(model.parameters(), lr=LR),
        model,
        algorithm=algorithm(**ALGORITHMS[name]),
        timeout=20.0,
        on_failure="continue",
        **options,
    )
    if worker == WHO and where == "between":
        opt.wire.group = Mortal(opt.wire.group)
    path, means = [], []
    for t in range(STEPS):
        opt.zero_grad()
        squared(model, t, 0).backward()
        if (t, worker, where) == (WHEN, WHO, "step"):
            os.kill(os.getpid(), signal.SIGKILL)
        opt.step()
        path.append(flat(model))
        if (t, worker, where) == (WHEN, WHO, "consensus"):
            os.kill(os.getpid(), signal.SIGKILL)
        if where == "consensus":
            with opt.consensus() as average:
                means.append(flat(average))
    return {"path": torch.stack(path), "means": torch.stack(means or path), "present": opt.present}


@pytest.mark.parametrize(
    ("name", "where", "on_nan"),
    [
        ("local-sgd", "step", "stop"),
        ("local-sgd", "step", "isolate"),
        ("local-sgd", "between", "isolate"),
        ("allreduce", "step", "stop"),
        ("allreduce", "between", "isolate"),
        ("allreduce", "consensus", "stop"),
        ("dsgd", "consensus", "stop"),
        ("dsgd", "consensus", "isolate"),
    ],
)
def test_the_mean_is_of_those_that_are_left(name: str, where: str, on_nan: str, processes: Pool) -> None:
    told = processes.outcomes(N, f"{HERE}:script", grace=60.0, name=name, where=where, on_nan=on_nan)
    assert "died with exit code -9" in told[WHO].failure
    others = [q for q in range(N) if q != WHO]
    assert not any(told[q].failure for q in others), [o.failure for o in told]
    expected = alone()
    for q in others:
        found = told[q].value
        assert found["present"] == tuple(others)
        torch.testing.assert_close(found["path"], expected, rtol=1e-12, atol=1e-14)  # sums in another order
        torch.testing.assert_close(found["means"], expected, rtol=1e-12, atol=1e-14)
