"""`StackedEngine` through its public face, to be altered: its arguments, its state, its answers to an algorithm.

Nothing in here knows how the engine is built inside, so the mutants stay what they are however it is rebuilt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor, nn

from dissensus.algorithms.engines.stacked import StackedEngine
from dissensus.testing.mutants.mutant import MUTANTS, Mutant
from dissensus.theory.topology import Topology, from_matrices


def broken_engine(name: str, breaks: str, *killed_by: str) -> Callable[[type], type]:
    """Adds an engine to the list of mutants."""

    def add(cls: type) -> type:
        MUTANTS.append(Mutant(name, breaks, "engine", lambda: cls, lambda: StackedEngine, killed_by))
        return cls

    return add


def altered_rounds(
    topology: Topology, change: Callable[[list[np.ndarray]], list[np.ndarray]], promise: Any = None
) -> Topology:
    """A periodic topology with other dense rounds."""
    rounds = change([w.dense() for w in topology])
    return from_matrices(rounds, name=topology.name, promise=promise or topology.promise, may_disconnect=True)


def walk(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same nest of dicts, lists and tuples with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {k: walk(v, change) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(walk(v, change) for v in value)
    return value


class Altered(StackedEngine):
    """Passes its arguments through `changed` and its loss through `losing`."""

    def __init__(self, model: nn.Module, loss: Any, **options: Any) -> None:
        self.given = model
        super().__init__(model, self.losing(loss), **self.changed(dict(options)))

    def changed(self, options: dict[str, Any]) -> dict[str, Any]:
        """Other arguments."""
        return options

    def losing(self, loss: Any) -> Any:
        """Another loss."""
        return loss

    def reload(self, **parts: Any) -> None:
        """Replaces parts of its state."""
        StackedEngine.load_state_dict(self, {**StackedEngine.state_dict(self), **parts})
