from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.qkv = nn.Linear(4, 12)
        self.out = nn.Linear(4, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        q, k, v = (part.unflatten(-1, (2, 2)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(x + mixed.transpose(1, 2).flatten(2))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(3, 3, bias=False)
        self.decode = nn.Linear(3, 3, bias=False)
        self.decode.weight = self.encode.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(torch.tanh(self.encode(x)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(3, 2, batch_first=True)
        self.out = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.cell(x)[0][:, -1])


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def next_token(model: nn.Module, tokens: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def labelled(*shape: int, sizes: tuple[int, ...] = (7, 4)) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(sum(shape))
    return [
        (torch.randn(size, *shape, generator=draw).double(), torch.randint(0, 3, (size,), generator=draw))
        for size in sizes
    ]


def stack(layers: Callable[[], list[nn.Module]]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*layers())


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    for p in model[0].parameters():
        p.requires_grad_(False)
    return model


def scenes() -> dict[str, tuple]:
    """Name -> (model, loss, batches of unequal size, mode): what every product and every probe must cope with."""
    tokens = torch.Generator().manual_seed(1)
    mlp = stack(lambda: [nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)])
    norm = stack(lambda: [nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3)])
    drop = stack(lambda: [nn.Linear(3, 4), nn.Dropout(0.5), nn.Tanh(), nn.Linear(4, 3)])
    conv = stack(lambda: [nn.Conv2d(1, 2, 3), nn.SiLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3)])
    block = stack(lambda: [nn.TransformerEncoderLayer(4, 2, 5, batch_first=True), nn.Flatten(), nn.Linear(8, 3)])
    texts = [torch.randint(0, 5, (n, 6), generator=tokens) for n in (4, 3)]
    made = {
        "mlp": (mlp, cross_entropy, labelled(3), "eval"),
        "batch norm in eval": (norm, cross_entropy, labelled(3), "eval"),
        "batch norm in train": (norm, cross_entropy, labelled(3), "train"),
        "dropout in eval": (drop, cross_entropy, labelled(3), "eval"),
        "dropout in train": (drop, cross_entropy, labelled(3), "train"),
        "convolution": (conv, cross_entropy, labelled(1, 6, 6), "eval"),
        "attention": (Attention, next_token, texts, "eval"),
        "encoder layer": (block, cross_entropy, labelled(2, 4), "eval"),
        "tied weights": (Tied, cross_entropy, labelled(3), "eval"),
        "frozen layer": (frozen, cross_entropy, labelled(3), "eval"),
        "recurrent": (Recurrent, cross_entropy, labelled(4, 3), "eval"),
    }
    return {name: (build, *rest) for name, (build, *rest) in made.items()}


SCENES = scenes()


@pytest.fixture(params=sorted(SCENES))
def scene(request: pytest.FixtureRequest) -> tuple:
    build, loss, batches, mode = SCENES[request.param]
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = build().double()
    return model, loss, batches, mode


@pytest.fixture(name="scenes")
def all_scenes() -> dict[str, tuple]:
    return SCENES


@pytest.fixture
def mlp() -> tuple:
    build, loss, batches, _ = SCENES["mlp"]
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = build().double()
    return model, loss, batches


@pytest.fixture
def spectrum():
    """Builds a symmetric matrix with given eigenvalues in a random basis."""

    def build(values: Tensor | list[float], seed: int = 0) -> Tensor:
        values = torch.as_tensor(values, dtype=torch.float64)
        draw = torch.randn(len(values), len(values), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        basis = torch.linalg.qr(draw).Q
        return (basis * values) @ basis.T

    return build
