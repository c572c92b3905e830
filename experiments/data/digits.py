"""Handwritten digits: 1797 images of 8 x 8 pixels that ship with scikit-learn, so nothing is downloaded."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from dissensus.experiments.data.dataset import DATASETS, DataSet
from dissensus.experiments.errors import ConfigError


@DATASETS.register("digits", package="sklearn", extra="data")
def digits(
    test: Annotated[int, Field(ge=10, le=1787)] = 360,
    *,
    noise: Annotated[float, Field(ge=0, lt=1)] = 0.0,
    images: bool = False,
) -> DataSet:
    """The digits with pixels scaled to [0, 1]; the split is fixed and stratified, the same in every run.

    `noise` is the share of *training* labels replaced by a random other one (a fixed choice too): it makes the task
    hard enough that what a method generalizes can differ. `images` keeps the shape (1, 8, 8) for convolutions.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ConfigError("the data set 'digits' comes with scikit-learn: pip install 'dissensus[data]'") from None
    pixels, target = load_digits(return_X_y=True)
    x = np.asarray(pixels, dtype=np.float32) / 16.0
    y = np.asarray(target, dtype=np.int64)
    if not 10 <= test <= len(x) - 10:
        raise ConfigError(f"data set 'digits': test must be between 10 and {len(x) - 10} samples, got {test}")
    if not 0 <= noise < 1:
        raise ConfigError(f"data set 'digits': noise is a share of labels in [0, 1), got {noise}")
    generator = np.random.default_rng(0)
    held_out = _stratified(y, test, generator)
    train = np.setdiff1d(np.arange(len(x)), held_out)
    labels = y[train].copy()
    wrong = generator.permutation(len(train))[: round(noise * len(train))]
    labels[wrong] = (labels[wrong] + generator.integers(1, 10, len(wrong))) % 10
    if images:
        x = x.reshape(-1, 1, 8, 8)
    parts = (x[train], labels, x[held_out], y[held_out])
    return DataSet("digits", *(torch.from_numpy(np.ascontiguousarray(part)) for part in parts), classes=10)


def _stratified(y: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    """`count` indices whose labels are in the proportions of y: every (len / count)-th of a shuffled sort by label."""
    order = generator.permutation(len(y))
    by_label = order[np.argsort(y[order], kind="stable")]
    return np.sort(by_label[np.floor((np.arange(count) + 0.5) * len(y) / count).astype(int)])
