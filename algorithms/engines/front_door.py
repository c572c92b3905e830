r"""The front door: an existing training loop becomes decentralized, one worker a process.

    opt = dissensus.decentralize(opt, model, algorithm="dsgd", topology="ring")

What comes back *is* a `torch.optim.Optimizer`: it shares parameter groups and state with the one it wraps, so
schedulers, closures and hooks work as before. The loop computes the gradient; `step()` drives the algorithm's generator
with it and exchanges messages with this step's neighbours through `torch.distributed` (any backend, one process group,
batched point-to-point messages). In a single process it is the inner optimizer, bit for bit.

What this engine does not do yet is refused in a sentence or stated here: exchanges are waited for inside `step()` (they
do not run under forward and backward), parameters share one dtype and one device, ranks are not compared at the start,
and algorithms whose gradient is taken elsewhere than at the model's own parameters (CTA, push-sum) run in the stacked
engine only.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dissensus.algorithms import protocol
from dissensus.algorithms.engines import views
from dissensus.algorithms.engines.fit import check_fit
from dissensus.algorithms.errors import AlgorithmError
from dissensus.algorithms.protocol import Algorithm
from dissensus.algorithms.registry import algorithm as algorithm_by_name
from dissensus.algorithms.registry import check_optimizer
from dissensus.algorithms.streams import stream
from dissensus.theory.registry import topology as topology_by_name
from dissensus.theory.topology import Topology


def decentralize(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    *,
    algorithm: Algorithm | str = "dsgd",
    topology: Topology | str = "ring",
    group: dist.ProcessGroup | None = None,
    seed: int = 0,
) -> Decentralized:
    """Makes the optimizer of a training loop decentralized. Call it after `init_process_group`, or without any.

    `seed` decides what the algorithm draws (random compressors, random directions); it must be the same everywhere.
    """
    size = dist.get_world_size(group) if _is_distributed() else 1
    if isinstance(topology, str):
        topology = topology_by_name(topology, size)
    if isinstance(algorithm, str):
        algorithm = algorithm_by_name(algorithm)
    if topology.size != size:
        raise AlgorithmError(f"the topology has {topology.size} workers, but there are {size} processes")
    return Decentralized(optimizer, model, algorithm, topology, group, seed)


class Decentralized(torch.optim.Optimizer):
    """One worker's optimizer: the inner one moves, the algorithm says what travels and when. See `decentralize`."""

    def __init__(
        self,
        inner: torch.optim.Optimizer,
        model: nn.Module,
        algorithm: Algorithm,
        topology: Topology,
        group: dist.ProcessGroup | None,
        seed: int = 0,
    ) -> None:
        super().__init__(inner.param_groups, inner.defaults)  # the very same group dictionaries
        self.state = inner.state
        self.inner, self.algorithm, self.topology = inner, algorithm, topology
        self.t, self.seed = 0, seed
        self.worker = dist.get_rank(group) if topology.size > 1 else 0
        """Which worker this process is."""
        self._parameters = [p for g in inner.param_groups for p in g["params"]]
        _check(self._parameters, model)
        self._model = model
        check_fit(algorithm, topology)
        check_optimizer(algorithm, inner)
        self._exchange = _Exchange(topology, group)
        self._algorithm_state = algorithm.init(self._point())

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step of the algorithm with the gradients that the loop has computed."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        x, g = self._point(), self._gradient()
        local = _Local(self, g)
        running = self.algorithm.step(x, self._algorithm_state, local)
        answer: Any = None
        while True:
            try:
                request = running.send(answer)
            except StopIteration as done:
                x, self._algorithm_state = done.value
                break
            answer = self._answer(request, x, g)
        self._place(x)
        self.t += 1
        return loss

    @contextmanager
    def consensus(self, bn: Literal["average", "local"] = "average") -> Iterator[nn.Module]:
        """The average of the workers as a module of its own in eval mode; every process enters, and all see the same.

        Buffers are averaged too, or with `bn="local"` worker 0's; parameters that are not trained are this process's.
        """
        if bn not in ("average", "local"):
            raise AlgorithmError(f"bn must be 'average' or 'local' on many processes, got {bn!r}")
        model = copy.deepcopy(self._model)
        names = {id(p): name for name, p in self._model.named_parameters(remove_duplicate=False)}
        trained = dict(model.named_parameters(remove_duplicate=False))
        with torch.no_grad():
            for p, mean in zip(self._parameters, self._split(self._exchange.mean(self._point())), strict=True):
                trained[names[id(p)]].copy_(mean)
            for buffer in model.buffers():
                buffer.data = self._exchange.pooled(buffer.detach(), bn)
        for p in model.parameters():
            p.grad = None
        with views.generators_restored():
            yield model.eval()

    def _answer(self, request: protocol.Request, x: Tensor, g: Tensor) -> Any:
        match request:
            case protocol.Gradient(at):
                if at is not x:
                    raise AlgorithmError(
                        f"algorithm {self.algorithm.name!r} takes its gradient elsewhere than at the model's "
                        "parameters, which a plain training loop does not offer; the stacked engine runs it"
                    )
                return g
            case protocol.Mix(value):
                return self._exchange.wait(self._exchange.post(value, self.t))
            case protocol.Post(value):
                return self._exchange.post(value, self.t)
            case protocol.Await(ticket):
                return self._exchange.wait(ticket)
            case protocol.Mean(value):
                return self._exchange.mean(value)
            case protocol.Norm(value):
                return value.norm(dim=1, keepdim=True)
            case protocol.Note():
                return None
        raise AlgorithmError(f"algorithm {self.algorithm.name!r} asked for {type(request).__name__}: not a request")

    def _point(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self._parameters]).unsqueeze(0)

    def _gradient(self) -> Tensor:
        parts = [torch.zeros_like(p).reshape(-1) if p.grad is None else p.grad.reshape(-1) for p in self._parameters]
        return torch.cat(parts).unsqueeze(0)

    def _place(self, x: Tensor) -> None:
        for p, part in zip(self._parameters, self._split(x), strict=True):
            p.copy_(part)

    def _split(self, x: Tensor) -> list[Tensor]:
        parts = x[0].split([p.numel() for p in self._parameters])
        return [part.view(p.shape) for p, part in zip(self._parameters, parts, strict=True)]


class _Local:
    """What the algorithm may ask of this worker alone: the step, the learning rate, a move of the inner optimizer."""

    def __init__(self, outer: Decentralized, gradient: Tensor) -> None:
        self._outer, self._gradient = outer, gradient
        self.t = outer.t
        self.lr = float(outer.param_groups[0]["lr"])
        self.rate = self.lr

    def generators(self, purpose: str) -> list[torch.Generator]:
        """The stream of this worker."""
        return [stream(self._outer.seed, purpose, self.t, self._outer.worker)]

    def move(self, x: Tensor, g: Tensor) -> Tensor:
        """One step of the inner optimizer from `x` along `g`; a parameter without a gradient stays without one."""
        outer = self._outer
        outer._place(x)
        kept = [p.grad for p in outer._parameters]
        if g is not self._gradient:
            for p, part in zip(outer._parameters, outer._split(g), strict=True):
                p.grad = part.clone()
        outer.inner.step()
        for p, grad in zip(outer._parameters, kept, strict=True):
            p.grad = grad
        return outer._point()


class _Exchange:
    """Messages to and from this step's neighbours, within one process group."""

    def __init__(self, topology: Topology, group: dist.ProcessGroup | None) -> None:
        self._topology, self._group = topology, group
        self._rank = dist.get_rank(group) if topology.size > 1 else 0

    def post(self, value: Tensor, t: int) -> tuple[list[Any], dict[int, Tensor], list[tuple[int, float]]]:
        """Sends `value` to whoever hears this worker in round t, and opens an inbox for whom it hears."""
        w, me = self._topology[t], self._rank
        row = w.row(me)
        heard_by = [int(i) for i in w.weights[:, [me]].tocoo().coords[0] if i != me]
        inbox = {j: torch.empty_like(value) for j, _ in row if j != me}
        operations = [dist.P2POp(dist.isend, value, self._peer(i), self._group) for i in heard_by]
        operations += [dist.P2POp(dist.irecv, box, self._peer(j), self._group) for j, box in inbox.items()]
        works = dist.batch_isend_irecv(operations) if operations else []
        return works, inbox | {me: value}, row

    def wait(self, ticket: tuple[list[Any], dict[int, Tensor], list[tuple[int, float]]]) -> Tensor:
        """This worker's row of `W_t value`, once everything has come."""
        works, arrived, row = ticket
        for work in works:
            work.wait()
        return torch.stack([weight * arrived[j] for j, weight in row]).sum(0) if row else torch.zeros_like(arrived[0])

    def mean(self, value: Tensor) -> Tensor:
        """The mean over all workers."""
        if self._topology.size == 1:
            return value
        total = value.clone()
        dist.all_reduce(total, group=self._group)
        return total / self._topology.size

    def pooled(self, buffer: Tensor, policy: views.BatchNormPolicy) -> Tensor:
        """A buffer of the consensus model, made of those of all workers as the stacked engine makes it."""
        rows = buffer.unsqueeze(0).contiguous()
        if self._topology.size > 1:
            all_rows = [torch.empty_like(rows[0]) for _ in range(self._topology.size)]
            dist.all_gather(all_rows, rows[0], group=self._group)
            rows = torch.stack(all_rows)
        return views.pooled({"": rows}, policy, {})[""].clone()

    def _peer(self, i: int) -> int:
        return dist.get_global_rank(self._group, i) if self._group is not None else i


def _check(parameters: list[Tensor], model: nn.Module) -> None:
    own = {id(p) for p in model.parameters()}
    if not all(id(p) in own for p in parameters):
        raise AlgorithmError("the optimizer holds a parameter that is not the model's: wrap both of the same model")
    kinds = {(p.dtype, str(p.device)) for p in parameters}
    if len(kinds) > 1:
        raise AlgorithmError(f"parameters must share one dtype and one device, got {sorted(map(str, kinds))}")


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()
