r"""Logistic regression with a known optimum: strongly convex, and the optimum certified.

Inputs are normal, $x \sim N(\mu_g, \mathrm{diag}(\nu))$, with variances from 1 down to 1/condition; labels of C classes
follow softmax scores $W_g x$. Samples come from G groups, which partitioners tell apart (`DataSet.groups`), with

$$ W_g = s\,(W_0 + h\,\Delta_g), \qquad \mu_g = h\,m_g, $$

so that `heterogeneity` h = 0 makes all groups alike, and `strength` s says how separable the classes are. The objective
of model `linear` is

$$ f(w) = \frac1N \sum_i -\log \mathrm{softmax}(W x_i + b)_{y_i} + \frac{\lambda}{2} \|w\|^2, \qquad w = (W, b). $$

Newton's method ends where the gradient is below 1e-12 in float64. As f is lambda-strongly convex, that certifies
$\|w - w^*\| \le \|\nabla f(w)\| / \lambda$ and $f(w) - f^* \le \|\nabla f(w)\|^2 / 2\lambda$; where it is not reached,
the data set is refused. Ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np
import torch
from pydantic import Field
from scipy.special import log_softmax, softmax

from dissensus.algorithms.streams import numpy_stream
from dissensus.experiments.data.dataset import DATASETS, DataSet
from dissensus.experiments.data.images import LabelNoise, noisy
from dissensus.experiments.data.task import Task
from dissensus.experiments.errors import ConfigError

CERTIFIED = 1e-12
"""The norm of the gradient below which a point is called the optimum."""
_NEWTON = 100
Count = Annotated[int, Field(ge=1)]


class Optimum(NamedTuple):
    """A certified minimiser."""

    point: np.ndarray
    """Weights (C, d) and biases (C,) as one vector: the order of `torch.nn.Linear`."""
    value: float
    gradient_norm: float
    smoothness: float
    """The largest eigenvalue of the Hessian at the optimum."""


@DATASETS.register("logistic")
def logistic(
    classes: Annotated[int, Field(ge=2)] = 2,
    dimension: Count = 10,
    train: Count = 1024,
    test: Count = 512,
    groups: Count = 8,
    *,
    heterogeneity: Annotated[float, Field(ge=0)] = 0.0,
    noise: LabelNoise = 0.0,
    strength: Annotated[float, Field(ge=0)] = 3.0,
    condition: Annotated[float, Field(ge=1)] = 1.0,
    ridge: Annotated[float, Field(ge=1e-6)] = 1e-3,
    seed: int = 0,
) -> DataSet:
    """Logistic regression whose optimum on all training samples is in `optimum`, its value in `facts["best_loss"]`.

    `noise` is the share of training labels replaced by a random other one; `seed` makes other data, it is not the seed
    of the run.
    """
    truth = numpy_stream(seed, "logistic", "truth")
    common = truth.standard_normal((classes, dimension))
    weights = strength * (common + heterogeneity * truth.standard_normal((groups, classes, dimension)))
    centres = heterogeneity * truth.standard_normal((groups, dimension))
    scale = np.geomspace(1.0, 1.0 / condition, dimension) ** 0.5
    parts: list[np.ndarray] = []
    for part, count in (("train", train), ("test", test)):
        generator = numpy_stream(seed, "logistic", part)
        group = generator.permutation(np.arange(count) % groups)
        x = centres[group] + scale * generator.standard_normal((count, dimension))
        scores = np.einsum("ncd,nd->nc", weights[group], x) / np.sqrt(dimension)
        y = np.argmax(scores + generator.gumbel(size=scores.shape), axis=1)
        parts += [x, y, group]
    x, y, group, test_x, test_y, _ = parts
    y = noisy(y, classes, noise)
    found = optimum(x, y, classes, ridge)
    inputs, labels, test_inputs, test_labels, origin = map(torch.from_numpy, (x, y, test_x, test_y, group))
    return DataSet(
        "logistic",
        inputs,
        labels,
        test_inputs,
        test_labels,
        classes,
        task=Task(ridge=ridge),
        groups=origin,
        facts={
            "best_loss": found.value,
            "gradient_norm_at_optimum": found.gradient_norm,
            "smoothness_at_optimum": found.smoothness,
            "strong_convexity": ridge,
        },
        optimum=torch.from_numpy(found.point),
    )


def optimum(
    x: np.ndarray, y: np.ndarray, classes: int, ridge: float, shards: Sequence[np.ndarray] | None = None
) -> Optimum:
    """The minimiser of the mean loss plus ridge; with `shards`, of the mean over workers of their own mean losses.

    These are two objectives wherever workers keep different numbers of samples.
    """
    z = np.column_stack([x, np.ones(len(x))]).astype(np.float64)
    weight = np.full(len(z), 1.0 / len(z))
    if shards is not None:
        weight[:] = 0.0
        for shard in shards:
            weight[shard] += 1.0 / (len(shards) * len(shard))
    target = np.eye(classes)[y]
    w = np.zeros((classes, z.shape[1]))
    value, gradient = _value(w, z, target, weight, ridge)
    for _ in range(_NEWTON):
        if np.linalg.norm(gradient) < 0.01 * CERTIFIED:
            break
        try:
            direction = np.linalg.solve(_hessian(w, z, weight, ridge), -gradient.ravel()).reshape(w.shape)
        except np.linalg.LinAlgError:  # the ridge is below the rounding of the data's part: no certificate
            break
        length, slope = 1.0, float(np.sum(gradient * direction))
        while length > 1e-10:
            new_value, new_gradient = _value(w + length * direction, z, target, weight, ridge)
            lower = new_value <= value + 1e-4 * length * slope
            if lower or np.linalg.norm(new_gradient) < np.linalg.norm(gradient):
                break
            length *= 0.5
        else:
            break
        w, value, gradient = w + length * direction, new_value, new_gradient
    norm = float(np.linalg.norm(gradient))
    if not norm < CERTIFIED:
        raise ConfigError(
            f"data set 'logistic': the optimum is not certified: the gradient is {norm:.1e} there, not below "
            f"{CERTIFIED:g}; set a larger data.ridge than {ridge:g} or a smaller data.strength"
        )
    top = float(np.linalg.eigvalsh(_hessian(w, z, weight, ridge))[-1])
    return Optimum(np.concatenate([w[:, :-1].ravel(), w[:, -1]]), value, norm, top)


def _value(
    w: np.ndarray, z: np.ndarray, target: np.ndarray, weight: np.ndarray, ridge: float
) -> tuple[float, np.ndarray]:
    """Objective and gradient."""
    scores = z @ w.T
    value = -float(weight @ np.sum(target * log_softmax(scores, axis=1), axis=1)) + 0.5 * ridge * float(np.sum(w**2))
    return value, ((softmax(scores, axis=1) - target) * weight[:, None]).T @ z + ridge * w


def _hessian(w: np.ndarray, z: np.ndarray, weight: np.ndarray, ridge: float) -> np.ndarray:
    """The Hessian in the row-major entries of w."""
    p = softmax(z @ w.T, axis=1)
    size, d = w.size, w.shape[1]
    h = np.empty((len(w), d, len(w), d))
    for a in range(len(w)):
        for b in range(len(w)):
            h[a, :, b] = (z * (weight * p[:, a] * (float(a == b) - p[:, b]))[:, None]).T @ z
    return h.reshape(size, size) + ridge * np.eye(size)
