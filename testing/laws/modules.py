r"""The oracle of engines: n modules in a Python list, each with its own optimizer, and a dense W between them.

It is DSGD in the order `awc` as anybody would write it first,

$$ g_i = \nabla f_i(x_i), \qquad x_i \leftarrow \sum_j W_{ij} x_j, \qquad x_i \leftarrow \text{opt}_i(x_i, g_i), $$

with what belongs to a worker (buffers, memory, param groups, clipping) left to `torch` itself.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dissensus.theory.topology import Topology

Batch = tuple[Tensor, Tensor]
FEATURES, CLASSES, SAMPLES = 4, 3, 6


def network(*, dropout: float = 0.0) -> nn.Module:
    """Linear layers around a BatchNorm, with fixed numbers in them; dropout on request."""
    middle: list[nn.Module] = [nn.BatchNorm1d(5), nn.Tanh()] + ([nn.Dropout(dropout)] if dropout else [])
    model = nn.Sequential(nn.Linear(FEATURES, 5), *middle, nn.Linear(5, CLASSES)).to(torch.float64)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) / 2)
    return model


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    """The mean over the samples of a batch."""
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def samples(n: int, t: int, seed: int = 0) -> Batch:
    """Everybody's batch of step t; no two workers or steps see the same."""
    g = torch.Generator().manual_seed(1000 * seed + t)
    inputs = torch.randn(n, SAMPLES, FEATURES, generator=g, dtype=torch.float64)
    return inputs, torch.randint(0, CLASSES, (n, SAMPLES), generator=g)


def options_of(name: str, shape: torch.Size) -> dict[str, Any]:
    """Param groups as people use them: no decay on vectors, and a smaller learning rate on the last layer's bias."""
    del name
    if len(shape) > 1:
        return {"weight_decay": 0.3}
    return {"weight_decay": 0.0, "lr": 0.05} if shape == torch.Size([CLASSES]) else {"weight_decay": 0.0}


@dataclass
class Modules:
    """n modules side by side. `lr` is relative to what the optimizer was built with, as in an engine."""

    topology: Topology
    factory: Callable[..., torch.optim.Optimizer]
    lr: Callable[[int], float]
    groups: Callable[[str, torch.Size], Mapping[str, Any]] | None = None
    clip: float | None = None
    losses: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.modules = [copy.deepcopy(network()) for _ in range(self.topology.size)]
        self.optimizers = []
        for model in self.modules:
            groups = self.groups or (lambda *_: {})
            self.optimizers.append(
                self.factory([{"params": [p], **groups(k, p.shape)} for k, p in model.named_parameters()])
            )
        self.scales = [[g["lr"] / o.defaults["lr"] for g in o.param_groups] for o in self.optimizers]

    def step(self, t: int, batch: Batch) -> None:
        """Gradients at the own points, mixing, and everybody's own optimizer."""
        losses = []
        for i, model in enumerate(self.modules):
            model.train()
            model.zero_grad()
            loss = cross_entropy(model, (batch[0][i], batch[1][i]))
            loss.backward()
            losses.append(loss.detach())
            if self.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
        self.losses.append(torch.stack(losses))
        mixed = self.topology[t].dense() @ self.x
        for i, (model, optimizer) in enumerate(zip(self.modules, self.optimizers, strict=True)):
            nn.utils.vector_to_parameters(torch.from_numpy(mixed[i]), model.parameters())
            for group, scale in zip(optimizer.param_groups, self.scales[i], strict=True):
                group["lr"] = self.lr(t) * scale
            optimizer.step()

    @property
    def x(self) -> np.ndarray:
        """All parameters, (n, d)."""
        return np.stack([nn.utils.parameters_to_vector(m.parameters()).detach().numpy().copy() for m in self.modules])

    def buffers(self) -> dict[str, np.ndarray]:
        """All buffers by name, (n, ...)."""
        return {
            name: np.stack([dict(m.named_buffers())[name].numpy().copy() for m in self.modules])
            for name, _ in self.modules[0].named_buffers()
        }
