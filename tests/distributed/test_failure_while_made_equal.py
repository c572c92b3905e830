"""Somebody is lost while the workers of a new group are being made equal: what some have behind them and others have
not is given up by all, and the group after that one does it anew.

Of six processes the last is lost. When the others make their workers equal, process 3 is slow to hear of what comes
last, so that process 1, which tells it, is not done either, while 0, 2 and 4 go on to the next sum. There 0 is lost,
whom 4 hears in a sum, while 1 and 3 still are where 2 and 4 are no more.
"""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from crew import Crew, left
from plain import flat, net, squared
from pool import Pool
from torch import Tensor, nn

import dissensus
from dissensus.algorithms.engines.distributed.entering import init_process_group
from dissensus.algorithms.engines.distributed.hosting import LoopHost

HERE = Path(__file__)
N, STEPS, WHEN = 6, 40, 6
SLOW, SECOND = 3, 0


def loop(kind: str) -> None:
    """A loop of equal workers in which the second loss comes when it is at its worst."""
    init_process_group()
    model, worker = net(), torch.distributed.get_rank()
    opt = dissensus.decentralize(
        getattr(torch.optim, kind)(model.parameters(), lr=0.01),
        model,
        algorithm="allreduce",
        timeout=10.0,
        on_failure="continue",
    )
    exchange: Any = opt.held.exchange
    align, broadcast, total = LoopHost.align, opt.wire.broadcast, opt.wire.sums
    aligned, told = [], []

    def slow(*args: Any, **named: Any) -> None:
        told.append(0)
        if len(aligned) == 1 and len(told) == 3:  # points, how long what is remembered is, and that
            time.sleep(1.0)
        broadcast(*args, **named)

    def observed(self: LoopHost, source: int) -> None:
        aligned.append(exchange.membership.now.numbers)
        align(self, source)
        if worker == SECOND:
            opt.wire.sums = last  # type: ignore[method-assign]

    def last(*args: Any, **named: Any) -> int:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
        return total(*args, **named)

    LoopHost.align = observed  # type: ignore[method-assign]
    if worker == SLOW:
        opt.wire.broadcast = slow  # type: ignore[method-assign]
    for t in range(STEPS):
        opt.zero_grad()
        if t == WHEN and worker == N - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        squared(model, t, worker).backward()
        opt.step()
    memory = [value for _, p in opt.named for value in opt.state[p].values() if value is not None]
    left({"end": flat(model), "memory": memory, "present": opt.present, "aligned": aligned})


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_one_that_is_lost_meanwhile_leaves_the_others_equal(kind: str, crew: Crew) -> None:
    run = crew.start(f"{HERE}:loop", N, kind=kind)
    others = [1, 2, 3, 4]
    codes = run.codes(others, 60.0)
    run.end()
    logs = {q: run.log(q)[-3000:] for q in range(N)}
    assert codes == [0, 0, 0, 0], logs
    found = [run.left(q) for q in others]
    for one in found:
        assert one["aligned"][-1:] == [(1, 2, 3, 4)], "the last group began with it"
        assert one["present"] == (1, 2, 3, 4)
        torch.testing.assert_close(one["end"], found[0]["end"], rtol=0, atol=0)
        assert len(one["memory"]) == len(found[0]["memory"]) == (0 if kind == "SGD" else 12)
        for mine, its in zip(one["memory"], found[0]["memory"], strict=True):
            torch.testing.assert_close(mine, its, rtol=0, atol=0)


# ---- what is made equal


def made_equal(name: str) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Parameters and what Adam remembers, a step after `align` on a worker that differs."""
    torch.manual_seed(0)
    convolution = nn.Conv2d(3, 4, 2)
    convolution.weight.data = convolution.weight.data.to(memory_format=torch.channels_last)
    model = nn.Sequential(convolution, nn.Flatten(), nn.Linear(4, 2))
    opt = dissensus.decentralize(torch.optim.Adam(model.parameters(), lr=0.1), model, algorithm=name)
    for k in range(2):
        opt.zero_grad()
        model(torch.ones(1, 3, 2, 2)).sum().backward()
        opt.step()
        if k == 0 and torch.distributed.get_rank():
            opt.settle()
            with torch.no_grad():
                for p in model.parameters():
                    p.add_(1.0)
                    opt.state[p]["exp_avg"].add_(1.0)
            assert convolution.bias is not None
            del opt.state[convolution.bias]
        if k == 0:
            opt.settle()
            LoopHost(opt, {}).align(0)
    return [p.detach().clone() for p in model.parameters()], [dict(opt.state[p]) for p in model.parameters()]


@pytest.mark.parametrize(("name", "equal"), [("allreduce", True), ("local-sgd", False)])
def test_workers_are_made_equal_with_all_that_their_optimizers_remember(
    name: str, equal: bool, processes: Pool
) -> None:
    (points, memories), (others, other_memories) = processes.run(2, f"{HERE}:made_equal", name=name)
    assert all(torch.equal(a, b) == equal for a, b in zip(points, others, strict=True))
    assert all(
        all(torch.equal(mine[key], its[key]) for key in mine) == equal
        for mine, its in zip(memories, other_memories, strict=True)
    )
    assert all(len(memory) == 3 for memory in (*memories, *other_memories))
