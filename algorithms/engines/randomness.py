"""Random numbers per worker under `vmap`: what the model draws for worker i comes from worker i's own generator.

`vmap` draws the masks of all workers in one call, so a mask would depend on how many workers stand beside it and on
their order. Here every random operation that reaches the device with the workers stacked in front is taken apart into
one draw per worker, made as that worker would make it alone: the numbers are those of a loop over the workers, bit for
bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

T = TypeVar("T")


class PerWorker(TorchDispatchMode):
    """While active, a seeded random operation on (n, ...) is n operations on (...), each with its own generator."""

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        super().__init__()
        self._default = default_generator(device)
        self._states: list[Tensor] = []
        for seed in seeds:
            self._default.manual_seed(seed)
            self._states.append(self._default.get_state())

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Runs the operation as it is, or worker by worker if it draws."""
        del types
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        n, drawn = len(self._states), []
        if not any(isinstance(a, Tensor | list | tuple) for a in args):
            raise RuntimeError(f"under vmap, {func._schema.name} does not draw one row per worker")
        for i in range(n):
            own = [_of_worker(func._schema.name, a, i, n) for a in args]
            self._default.set_state(self._states[i])
            drawn.append(func(*own, **kwargs))
            self._states[i] = self._default.get_state()
        if args and isinstance(args[0], Tensor) and func._schema.name.split("::")[-1].endswith("_"):
            return args[0]
        if isinstance(drawn[0], tuple):
            return tuple(torch.stack(part) for part in zip(*drawn, strict=True))
        return torch.stack(drawn)


def _of_worker(name: str, argument: Any, i: int, n: int) -> Any:
    """Worker i's part of an argument: a row of a stacked tensor, a size without the worker dimension."""
    if isinstance(argument, Tensor):
        if argument.ndim == 0 or argument.shape[0] != n:
            raise RuntimeError(f"under vmap, {name} draws on shape {tuple(argument.shape)}, not one row per worker")
        return argument[i]
    if isinstance(argument, list | tuple | torch.Size) and argument and all(isinstance(a, int) for a in argument):
        if argument[0] != n:
            raise RuntimeError(f"under vmap, {name} draws size {list(argument)}, not one row per worker")
        return list(argument[1:])
    return argument


def default_generator(device: torch.device) -> torch.Generator:
    """The generator that operations on a device draw from when none is named."""
    if device.type == "cuda":
        torch.cuda.init()
        return torch.cuda.default_generators[device.index or 0]
    return torch.default_generator


@contextmanager
def global_state(device: torch.device) -> Iterator[Callable[[int], Any]]:
    """Lends out the default generator of a device: yields how to seed it, and puts its state back."""
    generator = default_generator(device)
    state = generator.get_state()
    try:
        yield generator.manual_seed
    finally:
        generator.set_state(state)


def without_drawing(run: Callable[[], T], device: torch.device) -> T | None:
    """What a function returns if it draws nothing from the default generator; otherwise `None`, as if never called."""
    generator = default_generator(device)
    state = generator.get_state()
    try:
        found = run()
    except BaseException:
        generator.set_state(state)
        raise
    if torch.equal(state, generator.get_state()):
        return found
    generator.set_state(state)
    return None
