"""Fully connected models: the multilayer perceptron, and the linear model, which is logistic regression."""

from __future__ import annotations

import itertools
import math
from typing import Annotated

from pydantic import Field
from torch import nn

from dissensus.experiments.models.building import MODELS, Activation, Count
from dissensus.experiments.models.building import activation as activated


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
        layers += [nn.Linear(a, b), activated(activation)]
    return nn.Sequential(*layers, nn.Linear(wide[-1], classes))


@MODELS.register("logistic")
@MODELS.register("linear")
def linear(shape: tuple[int, ...], classes: int, *, zero: bool = False) -> nn.Module:
    """One affine map to the scores: with cross-entropy, (multinomial) logistic regression. `zero`: starts at 0."""
    layer = nn.Linear(math.prod(shape), classes)
    if zero:
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)
