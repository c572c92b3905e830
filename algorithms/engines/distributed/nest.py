"""A nest of tensors and plain values as a file: dicts, lists and tuples around tensors, numbers, words, None.

It is written by `torch.save` and read with `torch.load(weights_only=True)` only: a file can hold no code. What could
not be read back is refused when it is written, with its place in the nest. A tensor that is a view into a larger one is
written by itself, and two names of one tensor stay one.
"""

from __future__ import annotations

import pickle
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dissensus.algorithms.engines.distributed.durable import Written, write_durably
from dissensus.algorithms.errors import AlgorithmError

PLAIN = (int, float, str, bool, bytes, complex, type(None), torch.Size, torch.dtype, torch.device)
MAPPINGS = (dict, OrderedDict)
SEQUENCES = (list, tuple, set, Counter)
TENSORS = (Tensor, torch.nn.Parameter)


def write_nest(path: Path, nest: Any) -> Written:
    """Writes a nest whole or not at all, and only what can be read back."""
    place = _culprit(nest)
    if place is not None:
        raise _refused(path, place)

    def readable(draft: Path) -> None:
        try:
            torch.load(draft, map_location="cpu", weights_only=True, mmap=True)
        except pickle.UnpicklingError:
            raise _refused(path, "something in it") from None

    packed = _packed(nest, {})
    return write_durably(path, lambda stream: torch.save(packed, stream), readable)


def read_nest(path: Path, *, mapped: bool = False) -> Any:
    """Reads a file of tensors and plain values onto the CPU; code in it is refused.

    With `mapped`, tensors are read from the disk only where they are looked at.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except FileNotFoundError:
        raise AlgorithmError(f"there is no file {str(path)!r}") from None
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, AttributeError, TypeError) as error:
        said = str(error).strip().split("\n")[0].split(". ")[0]
        raise AlgorithmError(f"{path} is no file of tensors that torch.save wrote ({said})") from None


def _refused(path: Path, what: str) -> AlgorithmError:
    return AlgorithmError(
        f"{path.name} cannot be written: {what} is no whole tensor or plain value; convert it (torch.from_numpy, "
        "float, ._asdict(), .state_dict(), .full_tensor()) or leave it out"
    )


def _packed(value: Any, seen: dict[tuple[Any, ...], Tensor]) -> Any:
    """The same nest with tensors on the CPU, without history, each in a memory of its own size."""
    if isinstance(value, Tensor):
        key = (value.data_ptr(), value.dtype, value.device, value.shape, value.stride())
        if key not in seen:
            own = value.detach().cpu()
            if own.untyped_storage().nbytes() != own.numel() * own.element_size():
                own = own.clone()
            seen[key] = own
        return seen[key]
    if type(value) in MAPPINGS:
        return {key: _packed(v, seen) for key, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_packed(v, seen) for v in value)
    return value


def _culprit(value: Any, place: str = "") -> str | None:
    """Where in a nest something lies that is neither a tensor nor a plain value, and what it is."""
    if type(value) in MAPPINGS:
        below = [(f"{place}.{key}" if place else str(key), v) for key, v in value.items()]
    elif type(value) in SEQUENCES:
        below = [(f"{place}[{i}]", v) for i, v in enumerate(value)]
    else:
        return None if type(value) in (*PLAIN, *TENSORS) else f"{place or 'the state'}, a {type(value).__name__},"
    return next((found for at, v in below if (found := _culprit(v, at)) is not None), None)
