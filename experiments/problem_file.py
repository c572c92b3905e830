"""The arrays of a quadratic problem as somebody else's file holds them: read, checked, and refused with the place.

Nothing is repaired. A matrix that is not symmetric has no single gradient to be right about, so it is refused, as is
what is not finite, has a shape that fits nothing, or holds something other than real numbers.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dissensus.experiments.errors import ConfigError
from dissensus.theory.errors import nearest

REQUIRED = ("A", "b", "x0")
OPTIONAL = ("noise",)
NAMES = (*REQUIRED, *OPTIONAL)
ROUNDING = 64
"""The two halves of a symmetric matrix may differ by so many units of rounding of its largest entry."""
SHAPES = "A (n, d, d), b (n, d), x0 (d,) or (n, d) and, where there is noise, noise (T, n, d)"


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a problem from an .npz file; arrays of other names in it are left alone."""
    try:
        stream = path.open("rb")
    except FileNotFoundError:
        beside = sorted(p.name for p in path.parent.glob("*.npz")) if path.parent.is_dir() else []
        raise ConfigError(f"no problem file {str(path)!r}{nearest(path.name, beside)}") from None
    except OSError as error:
        raise ConfigError(f"cannot read the problem file {str(path)!r}: {error.strerror or error}") from None
    with stream:
        try:
            held = np.load(stream, allow_pickle=False)
        except (ValueError, EOFError, OSError, zipfile.BadZipFile):
            raise ConfigError(f"{path}: not an .npz file; numpy.savez writes one, with {SHAPES}") from None
        if not isinstance(held, np.lib.npyio.NpzFile):
            raise ConfigError(f"{path}: a single array, not an .npz file; numpy.savez writes one, with {SHAPES}")
        with held:
            _check_names(path, held.files)
            return {name: _read(path, held, name) for name in NAMES if name in held.files}


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes an .npz file whole or not at all: into a neighbour first, then moved over."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as stream:
            np.savez(stream, allow_pickle=False, **arrays)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def numbers(name: str, value: Any) -> np.ndarray:
    """The array in float64, in memory of its own; refused if it is not finite real numbers."""
    try:
        given = np.asarray(value)
    except ValueError:  # nested lists of different lengths
        given = np.empty(0, dtype=object)
    if given.dtype.kind not in "fiu":
        what = "objects" if given.dtype.kind == "O" else str(given.dtype)
        ragged = ": all workers must have matrices and vectors of one shape" if what == "objects" else ""
        raise ConfigError(f"{name} must be an array of real numbers, got {what}{ragged}")
    with np.errstate(over="ignore"):
        array = np.array(given, dtype=np.float64, order="C")
    if not np.isfinite(array).all():
        at = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise ConfigError(f"{_entry(name, at)} is {array[at]}: every number must be finite")
    return array


def check_shapes(a: np.ndarray, b: np.ndarray, x0: np.ndarray, noise: np.ndarray | None) -> None:
    """Refuses arrays that are not of one n and one d."""
    if a.ndim != 3 or a.shape[1] != a.shape[2] or 0 in a.shape:
        raise ConfigError(f"A must have the shape (n, d, d), one square matrix per worker, got {a.shape}")
    n, d = a.shape[:2]
    if b.shape != (n, d):
        raise ConfigError(f"b must have the shape (n, d) = ({n}, {d}), as A has {a.shape}, got {b.shape}")
    if x0.shape not in ((d,), (n, d)):
        raise ConfigError(f"x0 must have the shape ({d},) or ({n}, {d}), as A has {a.shape}, got {x0.shape}")
    if noise is not None and (noise.ndim != 3 or noise.shape[1:] != (n, d)):
        raise ConfigError(f"noise must have the shape (T, n, d) = (T, {n}, {d}), as A has {a.shape}, got {noise.shape}")


def check_symmetric(a: np.ndarray, unit: float) -> None:
    """Refuses a matrix whose halves differ by more than rounding; `unit` is that of the type it was given in."""
    largest = abs(a).max(axis=(1, 2), keepdims=True)
    apart = abs(a - a.swapaxes(1, 2)) > ROUNDING * unit * largest
    if apart.any():
        i, j, k = (int(at) for at in np.argwhere(apart)[0])
        raise ConfigError(
            f"A of worker {i} is not symmetric: A[{i}, {j}, {k}] = {a[i, j, k]}, A[{i}, {k}, {j}] = {a[i, k, j]}; "
            "x'Ax/2 has the gradient Ax only if it is: give (A + A')/2 if that is what is meant"
        )


def _check_names(path: Path, held: Iterable[str]) -> None:
    strange = [name for name in held if name not in NAMES]
    for name in REQUIRED:
        if name not in held:
            there = f"; it holds {', '.join(strange)}" if strange else ""
            near = nearest(name, strange) if strange and "did you mean" in nearest(name, strange) else there
            raise ConfigError(f"{path}: there is no array {name!r}{near or '; it needs ' + SHAPES}")
    if "noise" not in held:
        for name in strange:
            if nearest(name.lower(), OPTIONAL).startswith("; did you mean"):
                raise ConfigError(f"{path}: there is no use for an array {name!r}; did you mean 'noise'?")


def _read(path: Path, held: Mapping[str, Any], name: str) -> np.ndarray:
    try:
        return held[name]
    except ValueError as error:
        if "pickle" not in str(error):
            raise ConfigError(f"{path}: the array {name!r} cannot be read: {error}") from None
        raise ConfigError(
            f"{path}: {name} holds objects, not numbers: all workers must have matrices and vectors of one shape"
        ) from None
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ConfigError(f"{path}: the array {name!r} cannot be read: {error}") from None


def _entry(name: str, at: tuple[int, ...]) -> str:
    return f"{name}[{', '.join(map(str, at))}]" if at else name
