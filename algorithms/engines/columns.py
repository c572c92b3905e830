"""Which columns of the stacked block belong to which parameter: a model as one row of numbers, and back."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from dissensus.algorithms.errors import AlgorithmError


@dataclass(frozen=True)
class Columns:
    """The trainable parameters of a model, side by side in the order of `named_parameters()`."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, model: nn.Module) -> Columns:
        """Reads the layout off a model; parameters with `requires_grad=False` are left out: they stay as they are."""
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        if not named:
            raise AlgorithmError(f"the model {type(model).__name__} has no parameter that requires a gradient")
        first, p0 = named[0]
        for name, p in named:
            if p.dtype != p0.dtype or p.device != p0.device:
                raise AlgorithmError(
                    f"parameter {name!r} is {p.dtype} on {p.device}, but {first!r} is {p0.dtype} on {p0.device}: "
                    "all trainable parameters must share one dtype and device"
                )
        return cls(tuple(n for n, _ in named), tuple(p.shape for _, p in named), p0.dtype, p0.device)

    @property
    def size(self) -> int:
        """The number of columns, d."""
        return sum(prod(s) for s in self.shapes)

    @property
    def counts(self) -> list[int]:
        """The number of columns of each parameter."""
        return [prod(s) for s in self.shapes]

    def flatten(self, model: nn.Module) -> Tensor:
        """The parameters of a model as a new vector (d,)."""
        parameters = dict(model.named_parameters())
        return torch.cat([parameters[name].detach().reshape(-1) for name in self.names])

    def unflatten(self, value: Tensor) -> dict[str, Tensor]:
        """Views of a vector (d,), or of rows (..., d), in the shapes of the parameters."""
        if value.shape[-1] != self.size:
            raise AlgorithmError(f"expected {self.size} columns, got {value.shape[-1]}")
        lead = value.shape[:-1]
        parts = value.split(self.counts, dim=-1)
        return {n: p.view((*lead, *s)) for n, p, s in zip(self.names, parts, self.shapes, strict=True)}

    def write(self, vector: Tensor, model: nn.Module) -> None:
        """Copies a vector (d,) into the parameters of a model."""
        parameters = dict(model.named_parameters())
        with torch.no_grad():
            for name, value in self.unflatten(vector).items():
                parameters[name].copy_(value)
        torch.clear_autocast_cache()  # an autocast around us would go on with its casts of what was there before
