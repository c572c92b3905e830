"""Weights from a file: one model by name, one per worker, or all workers stacked; every misfit told by its name.

- the `state_dict()` of one model, by itself or under `state_dict`, `model_state_dict`, `model` or `module`, with the
  prefix of a wrapper or without; from torch, or `.safetensors` where that package is installed;
- a list of them, one per worker;
- a tensor (n, d), or `{"x": (n, d), "buffers": {name: (n, ...)}}`: trainable parameters of n stacked workers.

Files of torch are read as tensors and plain values; code in them is refused.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from dissensus.algorithms.engines.columns import Columns
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.state import read_state
from dissensus.theory.errors import nearest

One = Mapping[str, Tensor]
"""Tensors by name."""
Several = Sequence[One] | tuple[Tensor, One]
"""Workers: a state_dict each, or stacked parameters and buffers."""


def read_weights(path: Path) -> One | Several:
    """One model by name, a list of them, or stacked workers with their buffers."""
    if path.suffix == ".safetensors":
        if importlib.util.find_spec("safetensors") is None:
            raise ConfigError(f"{path} needs the package safetensors: save it with torch.save instead, or install it")
        from safetensors.torch import load_file  # type: ignore[import-not-found]

        return load_file(path)
    saved: Any = read_state(path)
    if isinstance(saved, Tensor):
        return saved, {}
    if isinstance(saved, list | tuple):
        return [_plain_names(one) for one in saved]
    for key in ("state_dict", "model_state_dict", "model", "module"):
        if isinstance(saved.get(key), Mapping):
            saved = saved[key]
    if isinstance(saved.get("x"), Tensor) and saved["x"].dim() == 2:
        return saved["x"], saved.get("buffers") or {}
    return _plain_names(saved)


def _plain_names(saved: Mapping[str, Any]) -> dict[str, Tensor]:
    """Without the prefixes of wrappers that every name shares."""
    tensors = {key: value for key, value in saved.items() if isinstance(value, Tensor)}
    for prefix in ("_orig_mod.", "module.", "_model."):
        if tensors and all(key.startswith(prefix) for key in tensors):
            tensors = {key.removeprefix(prefix): value for key, value in tensors.items()}
    return tensors


def fill(model: nn.Module, state: One, path: Path) -> None:
    """Puts one model's tensors in place; every name and shape must fit."""
    own = model.state_dict()
    for key, value in own.items():
        if key not in state:
            raise ConfigError(f"{path} has no tensor {key!r}{nearest(key, state)}: is it this very model?")
        if state[key].shape != value.shape:
            raise ConfigError(f"{path}: {key!r} has shape {tuple(state[key].shape)}, the model {tuple(value.shape)}")
    strange = [key for key in state if key not in own]
    if strange:
        raise ConfigError(f"{path} holds {strange[0]!r}, which the model has not{nearest(strange[0], own)}")
    model.load_state_dict(dict(state))


def stacked(model: nn.Module, found: Several, path: Path) -> tuple[Tensor, dict[str, Tensor]]:
    """The workers' trainable parameters (n, d) and buffers (n, ...) by name."""
    columns = Columns.of(model)
    if isinstance(found, tuple):
        x, buffers = cast(tuple[Tensor, One], found)
        if x.dim() != 2 or x.shape[1] != columns.size:
            raise ConfigError(
                f"{path}: x has shape {tuple(x.shape)}, the model has {columns.size} trainable parameters"
            )
        own = dict(model.named_buffers())
        lacking = [key for key in own if key not in buffers]
        if lacking and buffers:
            raise ConfigError(f"{path} has no buffer {lacking[0]!r}: is it this very model?")
        return x.to(columns.dtype), {key: buffers[key] for key in own if key in buffers}
    if not found:
        raise ConfigError(f"{path} is an empty list: one state_dict per worker is expected")
    rows, held = [], []
    for state in cast(Sequence[One], found):
        fill(model, state, path)
        rows.append(columns.flatten(model).clone())
        held.append({key: b.detach().clone() for key, b in model.named_buffers()})
    return torch.stack(rows), {key: torch.stack([one[key] for one in held]) for key in held[0]}
