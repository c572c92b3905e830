"""Reads a pickle that holds nothing but plain values and arrays of bytes, and runs nothing of it.

A pickle is a program that may call anything it can name. Here it can name three things, and each is a stand-in that
only keeps what it is given: an array (its shape and its bytes), a dtype (unsigned bytes, or it is refused) and the
Latin-1 encoding by which Python 3 spells bytes in protocol 2. numpy itself is not reached.
"""

from __future__ import annotations

import io
import math
import pickle
from typing import Any

import numpy as np


class _Dtype:
    """A dtype as it is spelt in a pickle: accepted if it is the unsigned byte."""

    def __init__(self, code: Any, *_: Any) -> None:
        if code not in ("u1", b"u1", "|u1", b"|u1"):
            raise pickle.UnpicklingError(f"arrays of {code!r} are not read, only of unsigned bytes")

    def __setstate__(self, state: Any) -> None:
        """What numpy remembers of a dtype beside its code says nothing new about bytes."""


class _Array:
    """An array as it is spelt in a pickle: a shape and bytes."""

    value: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, columns_first, raw = state
        plain = isinstance(dtype, _Dtype) and isinstance(raw, bytes) and not columns_first
        if not plain or not all(isinstance(s, int) and s >= 0 for s in shape) or math.prod(shape) != len(raw):
            raise pickle.UnpicklingError(f"an array of shape {shape} does not match its bytes")
        self.value = np.frombuffer(raw, dtype=np.uint8).reshape(shape)


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _encode(text: Any, encoding: Any) -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError(f"encoding {encoding!r} is not read")
    return text.encode("latin1")


_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
}


class _Plain(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        """The stand-in, or a refusal."""
        if (module_name, global_name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}, which data has no need of")
        return _ALLOWED[module_name, global_name]

    def persistent_load(self, pid: Any) -> Any:
        """Nothing lives outside of the file."""
        raise pickle.UnpicklingError(f"it refers to {pid!r}, outside of itself")


def read_pickle(raw: bytes) -> dict[str, Any]:
    """The dictionary of a pickle with keys as text and arrays as numpy arrays; `pickle.UnpicklingError` otherwise."""
    try:
        tree = _Plain(io.BytesIO(raw), encoding="bytes").load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # what a damaged program raises is without end
        raise pickle.UnpicklingError(f"{type(error).__name__}: {error}") from None
    if not isinstance(tree, dict):
        raise pickle.UnpicklingError(f"it holds a {type(tree).__name__}, not a dictionary")
    plain = {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in tree.items()}
    return {key: value.value if isinstance(value, _Array) else value for key, value in plain.items()}
