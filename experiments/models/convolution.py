"""Small convolutional nets without normalisation: `cnn` for images, `conv1d` for signals."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import nn

from dissensus.experiments.errors import ConfigError
from dissensus.experiments.models.building import MODELS, Activation, Count, check_image
from dissensus.experiments.models.building import activation as activated


@MODELS.register("cnn")
def cnn(shape: tuple[int, ...], classes: int, channels: Count = 8, activation: Activation = "relu") -> nn.Module:
    """Two 3 x 3 convolutions with average pooling between them, and a linear head; needs inputs (channels, h, w)."""
    check_image("cnn", shape)
    depth, height, width = shape
    return nn.Sequential(
        nn.Conv2d(depth, channels, 3, padding=1),
        activated(activation),
        nn.AvgPool2d(2),
        nn.Conv2d(channels, 2 * channels, 3, padding=1),
        activated(activation),
        nn.Flatten(),
        nn.Linear(2 * channels * (height // 2) * (width // 2), classes),
    )


@MODELS.register("conv1d")
def conv1d(
    shape: tuple[int, ...],
    classes: int,
    channels: Count = 8,
    kernel: Annotated[int, Field(ge=1)] = 5,
    stages: Count = 2,
    activation: Activation = "relu",
) -> nn.Module:
    """`stages` of convolution and halving, twice the channels each, then the mean over places and a linear head."""
    if len(shape) != 2:
        raise ConfigError(f"model 'conv1d' needs inputs of shape (channels, length), got {shape}; see data 'signals'")
    depth, length = shape
    if length < 2**stages or kernel % 2 == 0:
        raise ConfigError(
            f"model 'conv1d' halves {length} places {stages} times with a kernel of {kernel}: needs at least "
            f"{2**stages} places and an odd kernel"
        )
    layers: list[nn.Module] = []
    for stage in range(stages):
        wide = channels * 2**stage
        layers += [nn.Conv1d(depth, wide, kernel, padding=kernel // 2), activated(activation), nn.AvgPool1d(2)]
        depth = wide
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(depth, classes))
