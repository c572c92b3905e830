"""What the benchmark of the probes looks at: perceptrons and a small CNN on digits, a small GPT with attention."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from dissensus.experiments.data.digits import digits
from dissensus.probes import Curvature

Kind = Literal["digits", "images", "tokens"]
Batch = tuple[Tensor, Tensor]

LETTERS, CONTEXT = 64, 32
"""Tokens and length of a sequence of the GPT."""


@dataclass(frozen=True)
class Case:
    """A model, the batch it is looked at on, and how long it was trained before."""

    name: str
    kind: Kind
    build: Callable[[], nn.Module]
    samples: int
    steps: int
    """Steps of Adam on that very batch, so that the spectrum is that of a trained model."""

    def batch(self) -> Batch:
        """The samples, the same at every call."""
        if self.kind == "tokens":
            tokens = torch.randint(LETTERS, (self.samples, CONTEXT + 1), generator=torch.Generator().manual_seed(1))
            tokens = tokens.cumsum(1) % LETTERS  # a text with something to learn in it
            return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        data = digits(images=self.kind == "images")
        return data.train_x[: self.samples], data.train_y[: self.samples]

    def model(self) -> nn.Module:
        """The trained model, the same at every call; the global generator stays as it was."""
        batch = self.batch()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = self.build()
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for _ in range(self.steps):
            optimizer.zero_grad()
            self.loss(model, batch).backward()
            optimizer.step()
        optimizer.zero_grad()
        return model.eval()

    def loss(self, model: Any, batch: Any) -> Tensor:
        """The mean cross-entropy over samples, and over positions of a sequence."""
        return criterion(model(batch[0]), batch[1])


def criterion(outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss as the peers want it: a function of outputs and targets."""
    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


class Block(nn.Module):
    """Causal attention by torch's fused kernel and a perceptron, both beside a path that changes nothing."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Pre-norm: both branches read a normalised x."""
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm_1(x)).chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.inner(self.norm_2(x))


class Gpt(nn.Module):
    """Two blocks of width 64 with learned positions."""

    def __init__(self, width: int = 64, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(LETTERS, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, LETTERS)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token at every position."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.token(tokens) + self.position(places))))


def perceptron(*widths: int, bend: type[nn.Module] = nn.Tanh) -> Callable[[], nn.Module]:
    """Linear layers of these widths with a nonlinearity between them."""

    def build() -> nn.Module:
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Linear(before, after), bend()]
        return nn.Sequential(*layers[:-1])

    return build


def convolutions() -> nn.Module:
    """Three convolutions on 8 x 8 pixels, some 20 thousand parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 48, 3, padding=1),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(48, 10),
    )


CASES = {
    case.name: case
    for case in (
        Case("mlp 3k", "digits", perceptron(64, 32, 32, 10), 512, 150),
        Case("mlp 3k, relu", "digits", perceptron(64, 32, 32, 10, bend=nn.ReLU), 512, 150),
        Case("mlp 100k", "digits", perceptron(64, 280, 280, 10), 256, 40),
        Case("cnn 19k", "images", convolutions, 64, 40),
        Case("gpt 108k", "tokens", Gpt, 16, 20),
    )
}
MLPS = ("mlp 3k", "mlp 3k, relu")
"""Small enough for a dense Hessian."""


def dense_hessian(case: Case) -> tuple[Curvature, Tensor]:
    """The Hessian of a case as an operator, and whole."""
    operator = Curvature(case.model(), case.loss, [case.batch()])
    matrix = operator.dense().detach()
    return operator, (matrix + matrix.T) / 2
