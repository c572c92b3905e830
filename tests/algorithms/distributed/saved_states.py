"""Worker states that are a function of step and worker alone, and meetings of threads, for the tests of checkpoints."""

import threading
from collections.abc import Callable
from typing import Any

import torch


def state(step: int, worker: int, width: int = 50) -> dict[str, Any]:
    """The state of a worker after a step: parameters, buffers, memory, position."""
    g = torch.Generator().manual_seed(1000 * step + worker)
    weight = torch.randn(width, 4, generator=g)
    return {
        "parameters": {"weight": weight, "bias": torch.randn(4, generator=g, dtype=torch.float64)},
        "buffers": {"mean": torch.randn(4, generator=g), "count": torch.tensor(step)},
        "optimizer": {
            "state": {0: {"momentum_buffer": torch.randn(width, 4, generator=g)}},
            "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": [0, 1]}],
        },
        "algorithm": {"received": torch.randn(width * 4 + 4, generator=g), "lr": torch.tensor([0.1])},
        "names": ["weight", "bias", "mean", "count"],
        "extra": {"position": step * 7, "order": "shuffled", "worker": worker},
    }


def equal(a: Any, b: Any) -> bool:
    """Whether two nests are the same to the bit."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and a == b


def in_threads(count: int, act: Callable[[int, Callable[[Any], list]], Any], timeout: float = 60) -> list[Any]:
    """What each of some threads returns or raises; they meet through the function they are given."""
    barrier = threading.Barrier(count, timeout=timeout)
    said: list[Any] = [None] * count
    came: list[Any] = [None] * count

    def run(i: int) -> None:
        def together(value: Any) -> list:
            said[i] = value
            barrier.wait()
            heard = list(said)
            barrier.wait()
            return heard

        try:
            came[i] = act(i, together)
        except Exception as error:
            came[i] = error

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(timeout)
    assert not any(t.is_alive() for t in threads), "a thread hangs in a meeting"
    return came
