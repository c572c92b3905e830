"""A small decoder-only transformer for characters: scores (b, L, V) for the next character at every place.

Blocks normalise first; matrices start from N(0, 0.02), those that write into the residual stream smaller by
sqrt(2 layers); the output may share its matrix with the embedding. Attention takes the composite route of
`scaled_dot_product_attention`: fused kernels have neither a vmap over workers nor a second derivative, and both are
needed here.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from dissensus.experiments.errors import ConfigError
from dissensus.experiments.models.building import MODELS, Count, Share


class Attention(nn.Module):
    """Causal self-attention with several heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.read = nn.Linear(width, 3 * width)
        self.write = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Every place looks at itself and at those before it."""
        query, key, value = self.read(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        with sdpa_kernel(SDPBackend.MATH):
            seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.write(seen.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention, then a perceptron, each added to its own normalised input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.look = nn.Sequential(nn.LayerNorm(width), Attention(width, heads), nn.Dropout(dropout))
        self.think = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The block."""
        x = x + self.look(x)
        return x + self.think(x)


class Transformer(nn.Module):
    """Characters (b, L) to scores (b, L, V)."""

    def __init__(
        self, context: int, characters: int, width: int, heads: int, layers: int, dropout: float, *, tied: bool
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.places = nn.Parameter(torch.zeros(context, width))
        self.enter = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*[Block(width, heads, dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = None if tied else nn.Linear(width, characters, bias=False)
        self._initialise(layers)

    def forward(self, characters: Tensor) -> Tensor:
        """The scores of the next character after every place."""
        x = self.embedding(characters) + self.places[: characters.shape[1]]
        x = self.norm(self.blocks(self.enter(x)))
        return nn.functional.linear(x, self.embedding.weight) if self.head is None else self.head(x)

    def _initialise(self, layers: int) -> None:
        nn.init.normal_(self.places, std=0.02)
        for layer in self.modules():
            if isinstance(layer, nn.Linear | nn.Embedding):
                nn.init.normal_(layer.weight, std=0.02)
            if isinstance(layer, nn.Linear) and layer.bias is not None:
                nn.init.zeros_(layer.bias)
        for name, parameter in self.named_parameters():
            if name.endswith(("write.weight", "think.3.weight")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers))


@MODELS.register("gpt")
def gpt(
    shape: tuple[int, ...],
    classes: int,
    width: Count = 32,
    heads: Count = 2,
    layers: Count = 2,
    dropout: Share = 0.0,
    *,
    tied: bool = True,
) -> nn.Module:
    """A decoder-only transformer over a context of `shape[0]` characters; `tied`: output and embedding share."""
    if len(shape) != 1:
        raise ConfigError(f"model 'gpt' needs inputs of shape (context,), got {shape}; see data 'characters'")
    if width % heads:
        near = max(1, round(width / heads)) * heads
        raise ConfigError(f"model 'gpt': width = {width} is no multiple of heads = {heads}; the nearest is {near}")
    return Transformer(shape[0], classes, width, heads, layers, dropout, tied=tied)
