"""Numbers of a study as checks ask for them: final ones per seed, paths, and paths compared at equal training loss."""

from __future__ import annotations

import numpy as np

from dissensus.experiments.errors import ConfigError
from dissensus.experiments.results import Results

CONSENSUS = {"test_accuracy", "test_loss", "train_loss", "train_accuracy"}
"""Measured of several kinds of weights; a check means the consensus model's unless it says otherwise."""


def final(results: Results, name: str, arm: str, which: str | None = None) -> np.ndarray:
    """The last value of a quantity, one per seed; an error where it was not measured."""
    if arm not in results.order:
        raise ConfigError(f"study {results.name!r} has no arm {arm!r}: it has {', '.join(results.order)}")
    values = results.final(name, which=which or ("consensus" if name in CONSENSUS else None), arm=arm)
    if not np.isfinite(values).all():
        raise ConfigError(f"{name} of arm {arm!r} was not measured in every run of study {results.name!r}")
    return values


def measured(results: Results, name: str, *arms: str) -> bool:
    """Whether a quantity is there in any run of each arm; that it lacks in some of them is for `final` to refuse."""
    which = "consensus" if name in CONSENSUS else None
    return all(arm in results.order and np.isfinite(results.final(name, which=which, arm=arm)).any() for arm in arms)


def path(results: Results, name: str, arm: str, which: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Steps (T,) and values (seeds, T) of a quantity, where it was measured in every seed."""
    curve = results.curve(name, arm, which=which)
    there = np.isfinite(curve.values).all(axis=0)
    return curve.steps[there], curve.values[:, there]


def at_equal_loss(results: Results, name: str, first: str, second: str) -> tuple[np.ndarray, np.ndarray]:
    r"""The logarithm of a positive quantity for two arms, seed by seed, where both have the same training loss.

    That loss is the larger one of the two at the end. The arm that ends there gives its final value; the other one is
    followed back along its own path to where it last had that loss, and is interpolated there: log quantity, linear
    in the loss between the two times of measurement around it. What this cannot make equal is how far the learning
    rate has fallen.
    """
    ends = [final(results, "train_loss", arm) for arm in (first, second)]
    target = np.maximum(*ends)
    return _met(results, name, first, target), _met(results, name, second, target)


def _met(results: Results, name: str, arm: str, target: np.ndarray) -> np.ndarray:
    steps, values = path(results, name, arm)
    at, losses = path(results, "train_loss", arm, "consensus")
    shared = np.isin(steps, at)
    logs = np.log(values[:, shared])
    losses = losses[:, np.isin(at, steps[shared])]
    return np.array([_crossing(loss, log, goal) for loss, log, goal in zip(losses, logs, target, strict=True)])


def _crossing(loss: np.ndarray, log: np.ndarray, goal: float) -> float:
    above = np.flatnonzero(loss[:-1] >= goal)
    if loss[-1] >= goal:
        return float(log[-1])
    if not len(above):
        raise ConfigError(f"there is no equal training loss: one arm ended at {goal:.3g}, the other was always below")
    k = int(above[-1])
    part = (loss[k] - goal) / (loss[k] - loss[k + 1])
    return float((1 - part) * log[k] + part * log[k + 1])
