"""Reads IDX, the format of MNIST and its kin: big-endian, `00 00 <type> <rank>`, the sizes, then the numbers.

Only unsigned bytes (type 08) are read, plain or gzipped. Every length is checked before it is believed.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from dissensus.experiments.errors import ConfigError

_BYTES = 0x08
_GZIP = b"\x1f\x8b"


def read_idx(path: Path, rank: int) -> np.ndarray:
    """The array of a file, which must have this many axes."""
    raw = _content(path)
    if len(raw) < 4 or raw[:2] != b"\0\0":
        raise ConfigError(f"{path} is no IDX file: it begins with {raw[:4].hex(' ') or 'nothing'}, not with 00 00")
    kind, axes = raw[2], raw[3]
    if kind != _BYTES:
        raise ConfigError(f"{path} holds numbers of type {kind:#04x}; only unsigned bytes ({_BYTES:#04x}) are read")
    if axes != rank:
        raise ConfigError(f"{path} has {axes} axes, expected {rank}: {'images' if rank == 3 else 'labels'} are wanted")
    begin = 4 + 4 * rank
    sizes = np.frombuffer(raw[4:begin], dtype=">u4").tolist() if len(raw) >= begin else []
    wanted = begin + (math.prod(sizes) if sizes else 0)
    if not sizes or len(raw) != wanted:
        state = "cut off" if len(raw) < wanted or not sizes else "too long"
        raise ConfigError(f"{path} is {state}: {len(raw)} bytes for sizes {sizes}, expected {wanted}; get it again")
    return np.frombuffer(raw, dtype=np.uint8, offset=begin).reshape(sizes)


def _content(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if raw[:2] == _GZIP else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ConfigError(f"{path} is damaged: {error}; get it again") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
