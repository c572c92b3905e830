"""Augmentation by name: random changes of training inputs that leave the label as it is.

What worker i draws at step t comes from the stream ("augment", t, i) of the seed and from nothing else: the same
picture is cropped the same way whether i is one of a thousand workers or alone in its process, and whether the run was
resumed or not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from dissensus.algorithms.streams import numpy_stream
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.registry import Registry

Draw = dict[str, np.ndarray]
"""The random numbers of one worker's batch."""
Padding = Annotated[int, Field(ge=1)]


class Augmentation:
    """A random change of images (N, channels, height, width), or of signals (N, channels, length)."""

    def __init__(
        self, draw: Callable[[np.random.Generator, int], Draw], apply: Callable[[Tensor, Draw], Tensor]
    ) -> None:
        self._draw, self._apply = draw, apply

    def __call__(self, x: Tensor, seed: int, *key: str | int, workers: range | None = None) -> Tensor:
        """Changes the inputs of stacked workers, (n, b, ...).

        The row of worker i draws from the stream ("augment", *key, i); `workers` says which workers the rows are, all
        from 0 on unless given.
        """
        n, b = x.shape[:2]
        rows = range(n) if workers is None else workers
        draws = [self._draw(numpy_stream(seed, "augment", *key, i), b) for i in rows]
        if len(draws) != n:
            raise ConfigError(f"augmentation of {n} rows got the names of {len(draws)} workers")
        together = {name: np.concatenate([draw[name] for draw in draws]) for name in draws[0]}
        return self._apply(x.flatten(0, 1), together).reshape(x.shape)


AUGMENTATIONS: Registry[Augmentation] = Registry("augmentation", given=("shape", "black"))


def augmentation(
    name: str, shape: tuple[int, ...], black: tuple[float, ...] = (), parameters: Mapping[str, Any] | None = None
) -> Augmentation:
    """Builds an augmentation by name for inputs of a shape; `black` is what an empty pixel is, per channel."""
    AUGMENTATIONS.check(name, parameters or {})
    return AUGMENTATIONS.build(name, parameters or {}, shape, black)


@AUGMENTATIONS.register("crop-flip")
def crop_flip(shape: tuple[int, ...], black: tuple[float, ...], padding: Padding = 4) -> Augmentation:
    """A random crop of the image padded with black on all sides, mirrored left to right half of the time."""
    return _window("crop-flip", shape, black, padding, mirror=True)


@AUGMENTATIONS.register("crop")
def crop(shape: tuple[int, ...], black: tuple[float, ...], padding: Padding = 4) -> Augmentation:
    """A random crop of the image padded with black on all sides."""
    return _window("crop", shape, black, padding, mirror=False)


@AUGMENTATIONS.register("flip")
def flip(shape: tuple[int, ...], black: tuple[float, ...]) -> Augmentation:
    """Mirrors the image left to right half of the time."""
    return _window("flip", shape, black, 0, mirror=True)


@AUGMENTATIONS.register("roll")
def roll(shape: tuple[int, ...], black: tuple[float, ...], reach: Annotated[int, Field(ge=1)] = 4) -> Augmentation:
    """Shifts a signal around its end by up to `reach` places to either side."""
    del black
    if len(shape) != 2:
        raise ConfigError(f"augmentation 'roll' needs signals of shape (channels, length), got {shape}")

    def draw(generator: np.random.Generator, b: int) -> Draw:
        return {"shift": generator.integers(-reach, reach + 1, b)}

    def apply(x: Tensor, draw: Draw) -> Tensor:
        length = x.shape[2]
        at = (torch.arange(length) - torch.from_numpy(draw["shift"])[:, None]) % length
        return x.gather(2, at[:, None].expand_as(x))

    return Augmentation(draw, apply)


def _window(name: str, shape: tuple[int, ...], black: tuple[float, ...], padding: int, *, mirror: bool) -> Augmentation:
    if len(shape) != 3:
        raise ConfigError(
            f"augmentation {name!r} needs images of shape (channels, height, width), got {shape}; "
            "of data set 'digits': set data.images = true"
        )
    channels, height, width = shape
    ground = np.reshape(black or (0.0,) * channels, (1, channels, 1, 1))

    def draw(generator: np.random.Generator, b: int) -> Draw:
        corner = generator.integers(0, 2 * padding + 1, (b, 2))
        mirrored = generator.random(b) < 0.5
        return {"corner": corner, "mirrored": mirrored if mirror else np.zeros(b, dtype=bool)}

    def apply(x: Tensor, draw: Draw) -> Tensor:
        """One window per image: copies of slices are several times faster here than one gather."""
        images = x.numpy()
        padded = np.empty((len(x), channels, height + 2 * padding, width + 2 * padding), dtype=images.dtype)
        padded[:] = ground
        padded[:, :, padding : padding + height, padding : padding + width] = images
        out = np.empty_like(images)
        places = zip(draw["corner"].tolist(), draw["mirrored"].tolist(), strict=True)
        for i, ((top, left), mirrored) in enumerate(places):
            window = padded[i, :, top : top + height, left : left + width]
            out[i] = window[:, :, ::-1] if mirrored else window
        return torch.from_numpy(out)

    return Augmentation(draw, apply)
