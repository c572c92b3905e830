r"""Signals in one dimension, of several classes: made here, of any size.

Class c has a periodic shape $s_c(u) = \sum_{k=1}^{K} a_{ck} \cos(2\pi k u) + b_{ck} \sin(2\pi k u)$ with independent
normal coefficients, scaled to variance 1. A sample of it is

$$ x(j) = s_c\bigl(j / L - \tau\bigr) + \sigma\,\varepsilon_j, \qquad j = 0, \dots, L - 1, $$

with a shift tau uniform in [-shift, shift] and standard normal noise. Ours.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from dissensus.algorithms.streams import numpy_stream
from dissensus.experiments.data.dataset import DATASETS, DataSet
from dissensus.experiments.data.images import LabelNoise, noisy
from dissensus.experiments.errors import ConfigError

Count = Annotated[int, Field(ge=1)]


@DATASETS.register("signals")
def signals(
    classes: Annotated[int, Field(ge=2)] = 8,
    length: Annotated[int, Field(ge=4)] = 64,
    train: Count = 2048,
    test: Count = 512,
    sigma: Annotated[float, Field(ge=0)] = 1.0,
    shift: Annotated[float, Field(ge=0, lt=0.5)] = 0.1,
    waves: Count = 6,
    *,
    noise: LabelNoise = 0.0,
    seed: int = 0,
) -> DataSet:
    """Signals of `length` places, every class equally often up to one.

    `sigma` is the noise on every place, `shift` the largest shift as a share of the length, `waves` the number of
    frequencies in a shape, `noise` the share of training labels replaced by a random other one. `seed` makes other
    data; it is not the seed of the run.
    """
    if 2 * waves >= length:
        raise ConfigError(
            f"data set 'signals': {waves} waves need a length above {2 * waves}, got {length}: set data.waves to at "
            f"most {(length - 1) // 2}"
        )
    if shift >= 0.5:
        raise ConfigError(f"data set 'signals': shift is a share of the length below 0.5, got {shift}")
    coefficients = numpy_stream(seed, "signals", "shapes").standard_normal((classes, 2, waves))
    coefficients *= np.sqrt(2.0 / np.sum(coefficients**2, axis=(1, 2), keepdims=True))
    parts = []
    for part, count in (("train", train), ("test", test)):
        generator = numpy_stream(seed, "signals", part)
        y = generator.permutation(np.arange(count) % classes)
        x = shapes(coefficients[y], np.arange(length) / length - generator.uniform(-shift, shift, (count, 1)))
        x += sigma * generator.standard_normal((count, length))
        labels = noisy(y, classes, noise) if part == "train" else y
        parts += [torch.from_numpy(x[:, None].astype(np.float32)), torch.from_numpy(labels.astype(np.int64))]
    return DataSet("signals", *parts, classes=classes)


def shapes(coefficients: np.ndarray, u: np.ndarray) -> np.ndarray:
    """The periodic shapes with coefficients (N, 2, K) at the places u (N, L)."""
    phase = 2 * np.pi * u[:, :, None] * (1 + np.arange(coefficients.shape[2]))
    return (np.cos(phase) @ coefficients[:, 0, :, None] + np.sin(phase) @ coefficients[:, 1, :, None])[:, :, 0]
