"""Images from bytes to a data set: normalised with constants that are computed from the training images."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
import torch
from pydantic import Field

from dissensus.experiments.data.dataset import DataSet
from dissensus.experiments.errors import ConfigError

Part = Annotated[int | None, Field(ge=1)]
"""How many images to take of those there are; all unless said."""
LabelNoise = Annotated[float, Field(ge=0, lt=1)]


class Images(NamedTuple):
    """Pixels (N, channels, height, width) and labels (N,), both bytes as they are published."""

    pixels: np.ndarray
    labels: np.ndarray


def image_data(
    name: str,
    train: Images,
    test: Images,
    classes: int,
    *,
    first: tuple[int | None, int | None] = (None, None),
    noise: float = 0.0,
) -> DataSet:
    """Normalised images: every channel of the training images has mean 0 and variance 1.

    `first` takes that many of the first training and test images; `noise` is the share of training labels replaced by
    a random other one, a fixed choice.
    """
    chosen = [
        _first(name, what, part, k) for what, part, k in zip(("train", "test"), (train, test), first, strict=True)
    ]
    for part in chosen:
        if part.labels.max() >= classes:
            raise ConfigError(f"data set {name!r} has {classes} classes, but its files hold label {part.labels.max()}")
    mean, deviation = _moments(chosen[0].pixels)
    if not np.all(deviation > 0):
        raise ConfigError(f"data set {name!r}: all training images are the same in some channel")
    scaled = [((part.pixels - mean) / deviation).astype(np.float32) for part in chosen]
    labels = [part.labels.astype(np.int64) for part in chosen]
    labels[0] = noisy(labels[0], classes, noise)
    x, y = [torch.from_numpy(a) for a in scaled], [torch.from_numpy(a) for a in labels]
    black = tuple(float(v) for v in (-mean / deviation).reshape(-1))
    return DataSet(name, x[0], y[0], x[1], y[1], classes, black=black)


def noisy(labels: np.ndarray, classes: int, share: float) -> np.ndarray:
    """Labels of which this share is replaced by a random other one; the choice is the same in every run."""
    generator = np.random.default_rng(0)
    changed = labels.copy()
    wrong = generator.permutation(len(labels))[: round(share * len(labels))]
    changed[wrong] = (changed[wrong] + generator.integers(1, classes, len(wrong))) % classes
    return changed


def _moments(pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of every channel, exact up to one rounding: whole numbers are counted, not summed."""
    shape = (1, pixels.shape[1], 1, 1)
    counts = np.stack([np.bincount(pixels[:, c].reshape(-1), minlength=256) for c in range(shape[1])]).astype(float)
    share, levels = counts / counts.sum(axis=1, keepdims=True), np.arange(256.0)
    mean = share @ levels
    variance = np.sum(share * (levels - mean[:, None]) ** 2, axis=1)
    return mean.reshape(shape).astype(np.float32), np.sqrt(variance).reshape(shape).astype(np.float32)


def _first(name: str, what: str, images: Images, count: int | None) -> Images:
    if len(images.pixels) != len(images.labels):
        raise ConfigError(
            f"data set {name!r} has {len(images.pixels)} {what} images, but {len(images.labels)} labels for them"
        )
    if not len(images.pixels):
        raise ConfigError(f"data set {name!r} has no {what} images")
    if count is not None and count > len(images.pixels):
        raise ConfigError(f"data set {name!r} has {len(images.pixels)} {what} images, {what} = {count} asks for more")
    return Images(images.pixels[:count], images.labels[:count])
