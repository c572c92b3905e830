"""Named random streams: every random number here belongs to a key, and the key alone decides it.

`stream(seed, "order", worker, epoch)` is the same generator whether that worker lives in a process of its own or is one
row among a thousand, and whether the run was resumed or not. Keys are words and whole numbers; two keys that differ
anywhere give streams that have nothing to do with each other.
"""

from __future__ import annotations

import hashlib
import json

import numpy as np
import torch

from dissensus.algorithms.errors import AlgorithmError

Key = str | int


def stream_seed(seed: int, *key: Key) -> int:
    """The 63-bit seed of a stream: a hash of the whole key."""
    return int.from_bytes(_digest(seed, key)[:8], "little") >> 1


def stream(seed: int, *key: Key, device: torch.device | str = "cpu") -> torch.Generator:
    """A torch generator at the start of the stream of that key."""
    return torch.Generator(device=device).manual_seed(stream_seed(seed, *key))


def numpy_stream(seed: int, *key: Key) -> np.random.Generator:
    """A numpy generator at the start of the stream of that key."""
    return np.random.default_rng(np.frombuffer(_digest(seed, key), dtype=np.uint32))


def _digest(seed: int, key: tuple[Key, ...]) -> bytes:
    for part in (seed, *key):
        if isinstance(part, bool) or not isinstance(part, str | int):
            raise AlgorithmError(f"the key of a random stream is made of words and whole numbers, got {part!r}")
    return hashlib.sha256(json.dumps([seed, *key]).encode()).digest()
