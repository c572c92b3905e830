"""Where the parameters and buffers of a model hang, so that the numbers of a worker can be hung there instead.

`torch.func.functional_call` does the same and looks for the places anew at every call, which takes as long as the whole
gradient of a small model. Here they are looked up once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


class Slots:
    """The places of every tensor of a model by its first name; a tied one hangs in several."""

    def __init__(self, model: nn.Module) -> None:
        named = (*model.named_parameters(), *model.named_buffers())
        names = {id(value): name for name, value in named}
        self._of: dict[str, list[tuple[dict[str, Any], str]]] = {name: [] for name, _ in named}
        for module in model.modules():
            for held in (module._parameters, module._buffers):
                for leaf, value in held.items():
                    if value is not None:
                        self._of[names[id(value)]].append((held, leaf))

    @contextmanager
    def holding(self, values: Mapping[str, Tensor]) -> Iterator[None]:
        """Hangs these tensors into the model, and puts back what was there."""
        before = [(held, leaf, held[leaf]) for name in values for held, leaf in self._of[name]]
        try:
            for name, value in values.items():
                for held, leaf in self._of[name]:
                    held[leaf] = value
            yield
        finally:
            for held, leaf, value in before:
                held[leaf] = value

    def left(self, name: str) -> Tensor | None:
        """What hangs there now: a module may write into a buffer, or hang a new one in its place."""
        held, leaf = self._of[name][0]
        return held[leaf]
