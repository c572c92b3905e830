"""The global random generators of a process as tensors and plain values: taken down, kept in a file, put back.

There are four that training code draws from without saying so: torch's on the CPU, torch's on every CUDA device,
numpy's legacy one and Python's. What is taken down can be read back with `torch.load(weights_only=True)`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from dissensus.algorithms.errors import AlgorithmError

KINDS = ("torch", "numpy", "python", "cuda")


def generators() -> dict[str, Any]:
    """What the global generators will draw next. CUDA's are there if this process has used a CUDA device."""
    version, numbers, gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "numpy": _with_tensors(np.random.get_state(legacy=False)),  # noqa: NPY002
        "python": [version, torch.tensor(numbers), gauss],
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else [],
    }


def restore_generators(saved: Mapping[str, Any]) -> None:
    """Puts the generators back: they draw what they would have drawn. Devices that are not there any more are left."""
    for kind in KINDS:
        if kind not in saved:
            raise AlgorithmError(f"the saved generators lack {kind!r}: expected {', '.join(KINDS)}")
    version, numbers, gauss = saved["python"]
    torch.set_rng_state(saved["torch"])
    np.random.set_state(_with_arrays(saved["numpy"]))  # noqa: NPY002
    random.setstate((version, tuple(numbers.tolist()), gauss))
    for device, state in enumerate(saved["cuda"][: torch.cuda.device_count() if saved["cuda"] else 0]):
        torch.cuda.set_rng_state(state, device)


def _with_tensors(value: Any) -> Any:
    """Arrays as tensors; the words of a generator are unsigned, which not every tensor can be, so they get a sign."""
    if isinstance(value, Mapping):
        return {key: _with_tensors(v) for key, v in value.items()}
    return torch.from_numpy(value.view(f"i{value.itemsize}")) if isinstance(value, np.ndarray) else value


def _with_arrays(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _with_arrays(v) for key, v in value.items()}
    return value.numpy().view(f"u{value.element_size()}") if isinstance(value, torch.Tensor) else value
