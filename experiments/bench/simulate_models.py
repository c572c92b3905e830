"""What the benchmark of the simulation trains: small models of every kind, each with a batch of the right shape.

Only shapes matter for speed, so inputs and labels are random numbers with a fixed seed.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

Kind = Literal["mlp", "convolution", "transformer"]
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Case:
    """A model, its loss, and the batch of one worker."""

    name: str
    kind: Kind
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    """Of one input; of one sequence of tokens for a transformer."""
    batch: int
    """Samples of one worker and step."""
    classes: int = 10
    normalised: bool = False
    """Whether the loss of a sample depends on the rest of its batch (BatchNorm)."""
    double: bool = False
    """Whether it is computed in double precision."""

    def model(self) -> nn.Module:
        """The model at its start, the same at every call; the global generator stays as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = self.build()
        return model.double() if self.double else model

    def samples(self, workers: int) -> Batch:
        """One batch for each of so many workers, side by side: tensors (workers, batch, ...)."""
        g = torch.Generator().manual_seed(1)
        lead = (workers, self.batch)
        if self.kind == "transformer":
            tokens = torch.randint(self.classes, (*lead, self.shape[0] + 1), generator=g)
            return tokens[..., :-1].contiguous(), tokens[..., 1:].contiguous()
        inputs, labels = torch.randn(*lead, *self.shape, generator=g), torch.randint(self.classes, lead, generator=g)
        return inputs.double() if self.double else inputs, labels

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The mean cross-entropy over samples, and over positions of a sequence."""
        inputs, labels = batch
        return functional.cross_entropy(model(inputs).reshape(-1, self.classes), labels.reshape(-1))


class Residual(nn.Module):
    """Two 3 x 3 convolutions with BatchNorm beside a path that changes nothing but the shape."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.first_norm, self.second_norm = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        same = before == after and stride == 1
        self.beside = nn.Identity() if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """What lies beside is added before the last ReLU."""
        inner = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(self.beside(x) + self.second_norm(self.second(inner)))


class Block(nn.Module):
    """Causal attention and a perceptron, each after a LayerNorm and added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Attention is added, then the perceptron."""
        b, length, width = x.shape
        heads = self.project(self.before_attention(x)).view(b, length, 3, self.heads, width // self.heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.merge(seen.transpose(1, 2).reshape(b, length, width))
        return x + self.mlp(self.before_mlp(x))


class Gpt(nn.Module):
    """A small decoder-only transformer with learned positions."""

    def __init__(self, vocabulary: int, context: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Parameter(0.02 * torch.randn(context, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, vocabulary))

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits of the next token at every position."""
        return self.head(self.blocks(self.tokens(tokens) + self.positions))


def mlp(*widths: int) -> nn.Module:
    """Linear layers of these widths with ReLU between them."""
    layers: list[nn.Module] = [nn.Flatten()]
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def cnn(side: int) -> nn.Module:
    """Two 3 x 3 convolutions (16 and 32 channels) with ReLU and pooling after each, and a linear head."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (side // 4) ** 2, 10),
    )


def conv1d(length: int) -> nn.Module:
    """The same along a line, with 5 points in a filter."""
    return nn.Sequential(
        nn.Conv1d(1, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool1d(2),
        nn.Conv1d(16, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool1d(2),
        nn.Flatten(),
        nn.Linear(32 * (length // 4), 10),
    )


def resnet() -> nn.Module:
    """A stem and two residual blocks of 16 and 32 channels, with BatchNorm."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        Residual(16, 16, 1),
        Residual(16, 32, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


CASES = {
    case.name: case
    for case in (
        Case("mlp 784-256-128-10, b=16", "mlp", partial(mlp, 784, 256, 128, 10), (784,), 16),
        Case("mlp 784-256-128-10, b=32", "mlp", partial(mlp, 784, 256, 128, 10), (784,), 32),
        Case("mlp 784-256-128-10, b=64", "mlp", partial(mlp, 784, 256, 128, 10), (784,), 64),
        Case("mlp 64-64-10, b=16", "mlp", partial(mlp, 64, 64, 10), (64,), 16),
        Case("mlp 64-133-10, b=16", "mlp", partial(mlp, 64, 133, 10), (64,), 16),
        Case("cnn 8x8, b=16", "convolution", partial(cnn, 8), (1, 8, 8), 16),
        Case("cnn 28x28, b=16", "convolution", partial(cnn, 28), (1, 28, 28), 16),
        Case("conv1d 64, b=16", "convolution", partial(conv1d, 64), (1, 64), 16),
        Case("resnet 3x16x16, b=16", "convolution", resnet, (3, 16, 16), 16, normalised=True),
        Case("gpt 2 layers, b=8", "transformer", partial(Gpt, 64, 64, 64, 4, 2), (64,), 8, classes=64),
    )
}
"""By name."""


def starting_points(case: Case, workers: int) -> Tensor:
    """Points around the model's own, (workers, d): what depends on who is who shows only where workers differ."""
    own = nn.utils.parameters_to_vector(case.model().parameters()).detach()
    g = torch.Generator().manual_seed(2)
    return own + 0.001 * torch.randn(workers, own.numel(), generator=g).to(own.dtype)


def placed(model: nn.Module, point: Tensor) -> nn.Module:
    """A copy of the model with the parameters of this point."""
    own = copy.deepcopy(model)
    with torch.no_grad():
        nn.utils.vector_to_parameters(point.clone(), own.parameters())
    return own
