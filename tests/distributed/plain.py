"""What a user trains: models, batches and a plain loop; and n copies of it in one process, with the recursion by hand.

Everything is a function of step and worker alone, so that a process and a copy see the same numbers.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import dissensus
from dissensus.algorithms import Decentralized
from dissensus.theory import Topology
from dissensus.theory import topology as topology_named

Loss = Callable[[nn.Module, int, int], Tensor]
"""(model, step, worker) -> the loss of that worker on its batch of that step."""


def batch(t: int, worker: int, size: int = 6) -> tuple[Tensor, Tensor]:
    """Inputs (size, 5) and targets (size, 3) in float64; workers see different data."""
    drawn = torch.Generator().manual_seed(1000 * worker + t)
    inputs = torch.randn(size, 5, generator=drawn, dtype=torch.float64) + 0.3 * worker
    return inputs, torch.randn(size, 3, generator=drawn, dtype=torch.float64) - 0.5 * worker


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def normed(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 3)).double()


def squared(model: nn.Module, t: int, worker: int) -> Tensor:
    inputs, targets = batch(t, worker)
    return (model(inputs) - targets).square().mean()


def train(
    model: nn.Module,
    opt: torch.optim.Optimizer,
    steps: range,
    worker: int,
    loss: Loss = squared,
    schedule: Any = None,
) -> None:
    """The loop everybody writes."""
    for t in steps:
        opt.zero_grad()
        loss(model, t, worker).backward()
        opt.step()
        if schedule is not None:
            schedule.step()


def held(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, as copies."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def flat(model: nn.Module) -> Tensor:
    """The trained parameters as one vector, as a copy."""
    return torch.cat([p.detach().reshape(-1) for p in model.parameters() if p.requires_grad])


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Whether two models are equal to the bit, dtypes included."""
    return a.keys() == b.keys() and all(a[k].dtype == b[k].dtype and torch.equal(a[k], b[k]) for k in a)


def distance(measured: Sequence[dict[str, Tensor]], expected: Sequence[dict[str, Tensor]]) -> float:
    """The largest difference between models of the same workers, relative to the largest number of each tensor."""
    assert [m.keys() for m in measured] == [e.keys() for e in expected]
    errors = [
        ((m[name].double() - e[name].double()).abs().max() / e[name].double().abs().max().clamp(min=1e-3)).item()
        for m, e in zip(measured, expected, strict=True)
        for name in m
    ]
    assert all(error == error for error in errors), "a number is not finite"
    return max(errors)


class Copies:
    """n copies of a model, each with an optimizer of its own, and DSGD on them with W as a dense matrix."""

    def __init__(
        self,
        n: int,
        build: Callable[[int], nn.Module],
        optimizer: Callable[[nn.Module], torch.optim.Optimizer],
        topology: Topology | str,
        order: str,
        gamma: float = 1.0,
    ) -> None:
        self.models = [build(i) for i in range(n)]
        self.optimizers = [optimizer(model) for model in self.models]
        self.topology = topology_named(topology, n) if isinstance(topology, str) else topology
        self.order, self.gamma, self.t = order, gamma, 0

    def step(
        self, gradient: Callable[[nn.Module, int, int], Any], absent: Sequence[int] = (), *, set_to_none: bool = True
    ) -> None:
        """One step; `gradient` leaves a worker's gradient in its model. Those that are absent mix but do not move."""
        if self.order == "cta":
            self._mix()
        for i, (model, opt) in enumerate(zip(self.models, self.optimizers, strict=True)):
            opt.zero_grad(set_to_none=set_to_none)
            gradient(model, self.t, i)
        if self.order == "allreduce":
            self._mean_gradients()
        if self.order == "awc":
            self._mix()
        for i, opt in enumerate(self.optimizers):
            if i not in absent:
                opt.step()
        if self.order == "atc":
            self._mix()
        self.t += 1

    def train(self, steps: range, loss: Loss = squared) -> None:
        for _ in steps:
            self.step(lambda model, t, i: loss(model, t, i).backward())

    @property
    def held(self) -> list[dict[str, Tensor]]:
        return [held(model) for model in self.models]

    def _columns(self) -> list[tuple[Tensor, ...]]:
        """The same parameter of all workers, for every parameter that is trained."""
        trained = [[p for g in o.param_groups for p in g["params"] if p.requires_grad] for o in self.optimizers]
        return list(zip(*trained, strict=True))

    @torch.no_grad()
    def _mix(self) -> None:
        n = len(self.models)
        w = (1 - self.gamma) * torch.eye(n).double() + self.gamma * torch.from_numpy(self.topology[self.t].dense())
        for column in self._columns():
            stacked = torch.stack([p.double() for p in column])
            for p, mixed in zip(column, torch.tensordot(w, stacked, 1), strict=True):
                p.copy_(mixed)

    @torch.no_grad()
    def _mean_gradients(self) -> None:
        for column in self._columns():
            if all(p.grad is None for p in column):
                continue
            mean = torch.stack([torch.zeros_like(p) if p.grad is None else p.grad for p in column]).mean(0)
            for p in column:
                p.grad = mean.clone()


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    """The inner optimizer, where it does not matter."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


def decentralized(order: str = "awc", topology: str = "ring", **options: Any) -> tuple[nn.Module, Decentralized]:
    """The plain model and its optimizer through the front door."""
    model = net()
    algorithm = dissensus.algorithms.algorithm("dsgd", order=order)
    return model, dissensus.decentralize(momentum(model), model, algorithm=algorithm, topology=topology, **options)


def by_hand(n: int, order: str = "awc", topology: str = "ring", steps: range = range(10)) -> list[dict[str, Tensor]]:
    """What the same comes to in one process."""
    copies = Copies(n, lambda _: net(), momentum, topology, order)
    copies.train(steps)
    return copies.held
