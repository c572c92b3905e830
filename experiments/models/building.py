"""Models by name. A builder gets the shape of an input and the number of classes; a start is a function of the seed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from dissensus.algorithms.streams import stream
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.registry import Registry

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]
Activation = Literal["relu", "tanh", "gelu"]
_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}


MODELS = Registry[nn.Module]("model", given=("shape", "classes"), folder="dissensus.experiments.models")


def model(
    name: str,
    shape: tuple[int, ...],
    classes: int,
    seed: int,
    parameters: Mapping[str, Any],
    *,
    worker: int | None = None,
) -> nn.Module:
    """Builds a model whose start is a pure function of the seed; the global random state stays as it was.

    With `worker`, the start is that worker's own, different from every other worker's and from the common one.
    """
    key = ("init",) if worker is None else ("init", worker)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream(seed, *key).initial_seed())
        return MODELS.build(name, parameters, shape, classes)


def starts(
    name: str, shape: tuple[int, ...], classes: int, seed: int, parameters: Mapping[str, Any], workers: int
) -> Tensor:
    """Starts of all workers' own, one row each, (n, d): row i depends on the seed and on i alone."""
    rows = []
    for i in range(workers):
        own = model(name, shape, classes, seed, parameters, worker=i)
        rows.append(torch.cat([p.detach().reshape(-1) for p in own.parameters() if p.requires_grad]))
    return torch.stack(rows)


def cross_entropy(module: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The mean cross-entropy of a batch (inputs, labels)."""
    return nn.functional.cross_entropy(module(batch[0]), batch[1])


def parameters_hash(parameters: Tensor) -> str:
    """A hash of every bit of the parameters."""
    return hashlib.sha256(parameters.detach().cpu().contiguous().numpy().tobytes()).hexdigest()[:16]


def activation(name: str) -> nn.Module:
    """An activation by name."""
    if name not in _ACTIVATIONS:
        raise ConfigError(f"unknown activation {name!r}; known: {', '.join(sorted(_ACTIVATIONS))}")
    return _ACTIVATIONS[name]()


def check_image(model: str, shape: tuple[int, ...]) -> None:
    """Refuses inputs that are no images."""
    if len(shape) != 3:
        raise ConfigError(
            f"model {model!r} needs inputs of shape (channels, height, width), got {shape}: set data.images = true"
        )
