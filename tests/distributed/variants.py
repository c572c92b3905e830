"""What models and training loops are like in the wild, as a table: each entry is swept by several tests.

A variant says how the model is built, what its loss is, which optimizer moves it, how many backward passes make a
step and what comes between the last of them and `step()`. Everything is in float64 but where the dtype is the point.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from plain import Loss, batch, net, normed, squared
from torch import Tensor, nn

Optimizer = Callable[[nn.Module], torch.optim.Optimizer]


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.02)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


@dataclass(frozen=True)
class Variant:
    build: Callable[[], nn.Module] = net
    loss: Loss = squared
    optimizer: Optimizer = momentum
    backwards: int = 1
    before_step: Callable[[nn.Module], Any] = lambda model: None
    set_to_none: bool = True
    tolerance: float = 1e-10
    leaves_gradients: bool = False
    """Whether gradients are looked at between backward and `step()`: with moves inside backward there are none."""

    def gradient(self, model: nn.Module, t: int, worker: int) -> None:
        """Leaves the gradient of a step in the model."""
        for k in range(self.backwards):
            (self.loss(model, self.backwards * t + k, worker) / self.backwards).backward()
        self.before_step(model)

    def train(self, model: nn.Module, opt: torch.optim.Optimizer, steps: range, worker: int) -> None:
        for t in steps:
            opt.zero_grad(set_to_none=self.set_to_none)
            self.gradient(model, t, worker)
            opt.step()


def factored(model: nn.Module) -> torch.optim.Optimizer:
    """An optimizer that is not elementwise: its memory of a matrix is a row and a column."""
    return torch.optim.Adafactor(model.parameters(), lr=0.05)


def two_groups(model: nn.Module) -> torch.optim.Optimizer:
    weights = [p for p in model.parameters() if p.ndim > 1]
    biases = [p for p in model.parameters() if p.ndim <= 1]  # so the groups are not in the order of the model
    groups = [{"params": biases, "lr": 0.03, "weight_decay": 0.0}, {"params": weights, "momentum": 0.5}]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=0.05)


class Tied(nn.Module):
    """Encoder and decoder share a matrix."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Linear(5, 7).double()
        self.decoder = nn.Linear(5, 7, bias=False).double()
        self.decoder.weight = self.encoder.weight
        self.head = nn.Linear(5, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.encoder(x)) @ self.decoder.weight)


class Branches(nn.Module):
    """A trunk, a branch that is used when one says so, and one that never is."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.never = net(), nn.Linear(3, 3).double()
        self.sometimes = nn.Linear(5, 3).double()

    def forward(self, x: Tensor, branch: bool) -> Tensor:
        return self.trunk(x) + (self.sometimes(x) if branch else 0.0)


def branched(when: Callable[[int, int], bool]) -> Loss:
    def loss(model: nn.Module, t: int, worker: int) -> Tensor:
        inputs, targets = batch(t, worker)
        return (model(inputs, when(t, worker)) - targets).square().mean()

    return loss


def half_frozen() -> nn.Module:
    """The first layer is not trained, though the optimizer is given it."""
    model = net()
    for p in next(model.children()).parameters():
        p.requires_grad_(False)
    return model


class Transposed(nn.Module):
    """A matrix whose memory lies the other way round, and a scalar."""

    def __init__(self) -> None:
        super().__init__()
        drawn = torch.Generator().manual_seed(0)
        self.matrix = nn.Parameter(torch.randn(3, 5, generator=drawn, dtype=torch.float64).t())
        self.scale = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * torch.tanh(x @ self.matrix)


class Image(nn.Module):
    """Convolutions in channels_last."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 3, 2), nn.Flatten(), nn.Linear(12, 3)
        self.layers = nn.Sequential(*layers).double().to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.cat([x, x.flip(1), x.square(), x.roll(1, 1)], dim=1)[:, :16]
        images = rows.reshape(-1, 1, 4, 4).expand(-1, 2, -1, -1).contiguous(memory_format=torch.channels_last)
        return self.layers(images)


class Mixed(nn.Module):
    """Three dtypes in one model."""

    def __init__(self, dtypes: tuple[torch.dtype, ...]) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Linear(a, b) for a, b in ((5, 6), (6, 6), (6, 3))]
        self.layers = nn.ModuleList(layer.to(dtype) for layer, dtype in zip(layers, dtypes, strict=True))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            x = torch.tanh(layer(x.to(layer.weight.dtype)))
        return x


def in_their_dtype(model: nn.Module, t: int, worker: int) -> Tensor:
    inputs, targets = batch(t, worker)
    out = model(inputs)
    return (out - targets.to(out.dtype)).square().mean()


def with_autocast(model: nn.Module, t: int, worker: int) -> Tensor:
    inputs, targets = batch(t, worker)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (model(inputs.float()) - targets.float()).square().mean()


def two_forwards(model: nn.Module, t: int, worker: int) -> Tensor:
    return squared(model, 2 * t, worker) + squared(model, 2 * t + 1, worker)


def clip(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)


VARIANTS = {
    "plain": Variant(),
    "adam": Variant(optimizer=adam),
    "adafactor": Variant(optimizer=factored),
    "batch norm": Variant(normed),
    "groups of their own": Variant(optimizer=two_groups),
    "clipped": Variant(before_step=clip, leaves_gradients=True),
    "accumulated": Variant(backwards=3),
    "two forwards": Variant(loss=two_forwards),
    "tied": Variant(Tied),
    "unused at times": Variant(Branches, branched(lambda t, worker: t % 3 == 0)),
    "unused at times, adam": Variant(Branches, branched(lambda t, worker: t % 3 == 0), adam),
    "unused at times, zeroed": Variant(
        Branches, branched(lambda t, worker: t % 3 == 0), set_to_none=False, leaves_gradients=True
    ),
    "unused at first": Variant(Branches, branched(lambda t, worker: t > 2)),
    "unused by some": Variant(Branches, branched(lambda t, worker: (t + worker) % 2 == 0)),
    "frozen": Variant(half_frozen),
    "transposed": Variant(Transposed),
    "channels last": Variant(Image),
    # in one float32 layer a rounding differs; relative to its largest number it is a few 2^-24, carried over the steps
    "two dtypes": Variant(lambda: Mixed((torch.float32, torch.float64, torch.float32)), in_their_dtype, tolerance=1e-5),
    # 2^-9 is half a unit of bfloat16, and a moved number may fall on the other side of a rounding in every step
    "three dtypes": Variant(
        lambda: Mixed((torch.bfloat16, torch.float64, torch.float32)), in_their_dtype, sgd, tolerance=0.05
    ),
    # numbers of 8 bits inside the loss: a difference of one unit of float32 may flip one of them
    "autocast": Variant(lambda: net().float(), with_autocast, tolerance=1e-2),
}
