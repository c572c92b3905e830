"""Small models that train in seconds on a laptop, by name. A builder gets the shape of an input and the classes."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from dissensus.algorithms.streams import stream
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.registry import Registry

MODELS: Registry[nn.Module] = Registry("model", given=("shape", "classes"))
Count = Annotated[int, Field(ge=1)]
Activation = Literal["relu", "tanh", "gelu"]
_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}


@MODELS.register("mlp")
def mlp(
    shape: tuple[int, ...],
    classes: int,
    width: Count = 64,
    depth: Annotated[int, Field(ge=0)] = 1,
    activation: Activation = "tanh",
) -> nn.Module:
    """A multilayer perceptron: `depth` hidden layers of `width` units (64 -> 64 -> 10 for digits)."""
    wide = [math.prod(shape), *[width] * depth]
    layers: list[nn.Module] = [nn.Flatten()]
    for a, b in itertools.pairwise(wide):
        layers += [nn.Linear(a, b), _activation(activation)]
    return nn.Sequential(*layers, nn.Linear(wide[-1], classes))


@MODELS.register("cnn")
def cnn(shape: tuple[int, ...], classes: int, channels: Count = 8, activation: Activation = "relu") -> nn.Module:
    """Two 3 x 3 convolutions with average pooling between them, and a linear head; needs inputs (channels, h, w)."""
    if len(shape) != 3:
        raise ConfigError(
            f"model 'cnn' needs inputs of shape (channels, height, width), got {shape}: set data.images = true"
        )
    depth, height, width = shape
    return nn.Sequential(
        nn.Conv2d(depth, channels, 3, padding=1),
        _activation(activation),
        nn.AvgPool2d(2),
        nn.Conv2d(channels, 2 * channels, 3, padding=1),
        _activation(activation),
        nn.Flatten(),
        nn.Linear(2 * channels * (height // 2) * (width // 2), classes),
    )


def model(name: str, shape: tuple[int, ...], classes: int, seed: int, parameters: Mapping[str, Any]) -> nn.Module:
    """Builds a model whose start is a pure function of the seed; the global random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream(seed, "init").initial_seed())
        return MODELS.build(name, parameters, shape, classes)


def cross_entropy(module: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The mean cross-entropy of a batch (inputs, labels)."""
    return nn.functional.cross_entropy(module(batch[0]), batch[1])


def parameters_hash(parameters: Tensor) -> str:
    """A hash of every bit of the parameters."""
    return hashlib.sha256(parameters.detach().cpu().contiguous().numpy().tobytes()).hexdigest()[:16]


def _activation(name: str) -> nn.Module:
    if name not in _ACTIVATIONS:
        raise ConfigError(f"unknown activation {name!r}; known: {', '.join(sorted(_ACTIVATIONS))}")
    return _ACTIVATIONS[name]()
