"""One worker as a process of its own: two training loops that exchange messages with gloo, and the life of the process.

*front door*: the ordinary loop with `dissensus.decentralize`. *by hand*: parameters and gradients laid out in one
vector each, so that nothing is copied together; messages posted before the forward pass and waited for after the
backward pass, which hides what can be hidden; one optimizer call on the vector.
"""

from __future__ import annotations

import datetime
import os
import signal
import socket
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dissensus.algorithms import decentralize
from dissensus.algorithms.engines.distributed.same_host import VARIABLE
from dissensus.experiments.bench.simulate_models import CASES, Case, placed, starting_points
from dissensus.experiments.bench.simulate_rivals import OPTIMIZERS, OptimizerFactory, lay
from dissensus.theory.registry import topology

PATIENCE = 60.0
"""Seconds after which a message is given up."""


class FrontDoor:
    """The loop as users write it."""

    def __init__(self, case: Case, worker: int, size: int, factory: OptimizerFactory) -> None:
        self._model = placed(case.model(), starting_points(case, size)[worker])
        inner = factory(self._model.parameters())
        self._optimizer = decentralize(inner, self._model, algorithm="dsgd", topology="ring", start="own")
        self._loss, self._batch = case.loss, tuple(leaf[worker] for leaf in case.samples(size))

    def step(self) -> None:
        """One step of this worker."""
        self._optimizer.zero_grad()
        self._loss(self._model, self._batch).backward()
        self._optimizer.step()

    @property
    def x(self) -> Tensor:
        """The point of this worker, (d,)."""
        return nn.utils.parameters_to_vector(self._model.parameters()).detach()


class ByHand:
    """The same step with as little beside the arithmetic as we could think of."""

    def __init__(self, case: Case, worker: int, size: int, factory: OptimizerFactory) -> None:
        self._point = nn.Parameter(starting_points(case, size)[worker].clone())
        self._point.grad = torch.zeros_like(self._point)
        self._model = case.model()
        lay(list(self._model.parameters()), self._point.data, self._point.grad)
        self._optimizer = factory([self._point])
        self._loss, self._batch = case.loss, tuple(leaf[worker] for leaf in case.samples(size))
        row = topology("ring", size)[0].row(worker)
        self._own = dict(row)[worker]
        self._heard = [(j, weight, torch.empty_like(self._point.data)) for j, weight in row if j != worker]

    def step(self) -> None:
        """One step of this worker; the ring is symmetric, so it speaks to whom it hears."""
        x, g = self._point.data, self._point.grad
        assert g is not None
        works = [dist.irecv(inbox, j) for j, _, inbox in self._heard]
        works += [dist.isend(x, j) for j, _, _ in self._heard]
        g.zero_()
        self._loss(self._model, self._batch).backward()
        for work in works:
            assert work is not None
            work.wait()
        x.mul_(self._own)
        for _, weight, inbox in self._heard:
            x.add_(inbox, alpha=weight)
        self._optimizer.step()

    @property
    def x(self) -> Tensor:
        """The point of this worker, (d,)."""
        return self._point.detach().clone()


LOOPS: Mapping[str, Callable[..., FrontDoor | ByHand]] = {"front door": FrontDoor, "by hand": ByHand}


def serve(worker: int, size: int, store: str, line: Connection) -> None:
    """The life of one process. It leaves without the destructors of gloo, which are known to abort now and then."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started us decides, and tells
    status = 1
    try:
        _obey(worker, size, store, line)
        status = 0
    except EOFError:
        pass  # whoever started us is gone
    except Exception:
        import traceback

        traceback.print_exc()
    finally:
        line.close()
        os._exit(status)


def _obey(worker: int, size: int, store: str, line: Connection) -> None:
    torch.set_num_threads(1)
    if "lo" in {name for _, name in socket.if_nameindex()}:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault(VARIABLE, "gloo")  # both loops speak through the same transport
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=worker,
        world_size=size,
        timeout=datetime.timedelta(seconds=PATIENCE),
    )
    line.send(None)
    loops: dict[str, FrontDoor | ByHand] = {}
    while True:
        match line.recv():
            case ("build", name, optimizer):
                loops = {k: make(CASES[name], worker, size, OPTIMIZERS[optimizer]) for k, make in LOOPS.items()}
                line.send(None)
            case ("run", loop, steps):
                for _ in range(steps):
                    loops[loop].step()
                line.send(None)
            case ("x", loop):
                line.send(loops[loop].x.numpy())
            case ("stop",):
                return
