"""Residual nets for small images, with BatchNorm.

- `resnet`: depth 6 k + 2 (8, 14, 20, ...): k blocks at each of three widths (w, 2w, 4w), shortcuts without parameters
  (every other pixel, missing channels zero). Reference: He et al., arXiv:1512.03385, section 4.2, option A.
- `wrn`: depth 6 k + 4, blocks in the order normalisation, activation, convolution, widths (16, 32, 64) times `width`,
  shortcuts by 1 x 1 convolution where widths differ. Reference: Zagoruyko and Komodakis, arXiv:1605.07146.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dissensus.experiments.errors import ConfigError
from dissensus.experiments.models.building import MODELS, Count, Share, check_image


class Residual(nn.Module):
    """Two normalised convolutions added to their own input."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _conv(before, after, stride), nn.BatchNorm2d(after), nn.ReLU(), _conv(after, after), nn.BatchNorm2d(after)
        )
        self.stride, self.missing = stride, after - before

    def forward(self, x: Tensor) -> Tensor:
        """The block."""
        short = x[:, :, :: self.stride, :: self.stride]
        if self.missing:
            short = nn.functional.pad(short, (0, 0, 0, 0, self.missing // 2, self.missing - self.missing // 2))
        return torch.relu(self.body(x) + short)


class Wide(nn.Module):
    """A block in pre-activation order, with dropout between its convolutions."""

    def __init__(self, before: int, after: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.BatchNorm2d(before), nn.ReLU())
        self.body = nn.Sequential(
            _conv(before, after, stride), nn.BatchNorm2d(after), nn.ReLU(), nn.Dropout(dropout), _conv(after, after)
        )
        self.short = None if before == after else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The block; where the width changes, the shortcut too starts from the activated input."""
        active = self.enter(x)
        return self.body(active) + (x if self.short is None else self.short(active))


@MODELS.register("resnet")
def resnet(shape: tuple[int, ...], classes: int, depth: Count = 8, width: Count = 16) -> nn.Module:
    """The residual net of `depth` layers, whose first width is `width`."""
    check_image("resnet", shape)
    blocks = _blocks("resnet", depth, 2)
    layers: list[nn.Module] = [_conv(shape[0], width), nn.BatchNorm2d(width), nn.ReLU()]
    before = width
    for stage in range(3):
        for block in range(blocks):
            after = width * 2**stage
            layers.append(Residual(before, after, 2 if stage and not block else 1))
            before = after
    return _initialised(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes)))


@MODELS.register("wrn")
def wrn(shape: tuple[int, ...], classes: int, depth: Count = 10, width: Count = 1, dropout: Share = 0.0) -> nn.Module:
    """The wide residual net WRN-depth-width: WRN-16-8 is `depth = 16, width = 8`."""
    check_image("wrn", shape)
    blocks = _blocks("wrn", depth, 4)
    layers: list[nn.Module] = [_conv(shape[0], 16)]
    before = 16
    for stage in range(3):
        for block in range(blocks):
            after = 16 * width * 2**stage
            layers.append(Wide(before, after, 2 if stage and not block else 1, dropout))
            before = after
    layers += [nn.BatchNorm2d(before), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes)]
    return _initialised(nn.Sequential(*layers))


def _blocks(model: str, depth: int, extra: int) -> int:
    """How many blocks each of the three stages has."""
    blocks, left = divmod(depth - extra, 6)
    if left or blocks < 1:
        near = 6 * max(1, round((depth - extra) / 6)) + extra
        raise ConfigError(f"model {model!r}: depth must be 6 k + {extra}, got {depth}; the nearest is {near}")
    return blocks


def _conv(before: int, after: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(before, after, 3, stride, padding=1, bias=False)


def _initialised(net: nn.Module) -> nn.Module:
    """Convolutions from the normal distribution that keeps the variance of activations (He et al., 1502.01852)."""
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return net
