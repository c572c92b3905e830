"""The local move: any elementwise `torch.optim.Optimizer`, run as it is on the rows of all workers at once.

The optimizer owns one stacked tensor per param group, so its memory has one row per worker too, and nothing couples the
rows as long as its update is elementwise. Whether it is one is not believed but tried, on a handful of numbers, before
the first step. A move returns a new tensor and writes into none of its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dissensus.algorithms.engines.columns import Columns
from dissensus.algorithms.errors import AlgorithmError

OptimizerFactory = Callable[[Any], torch.optim.Optimizer]
Options = Mapping[str, Any]
Groups = Callable[[str, torch.Size], Options]
"""(name, shape) of a parameter -> the options of its param group: `lambda name, shape: {"weight_decay": 0.0}`."""

NOT_ELEMENTWISE = {
    "LBFGS": "it searches along a line with dot products over all numbers",
    "Adafactor": "its second moment is factored over the rows and columns of a matrix",
    "Muon": "it orthogonalises whole matrices",
    "SparseAdam": "it needs sparse gradients",
}


class Move:
    """One optimizer over the stacked workers. Engines alone hold one: its memory changes with every move."""

    def __init__(self, factory: OptimizerFactory, size: int, columns: Columns, groups: Groups | None = None) -> None:
        ranges = _ranges(columns, groups)
        self._ranges = [(lo, hi) for lo, hi, _ in ranges]
        empty = [torch.zeros(size, hi - lo, dtype=columns.dtype, device=columns.device) for lo, hi, _ in ranges]
        self._blocks = [torch.nn.Parameter(e) for e in empty]
        self.optimizer = _build(factory, self._blocks, [options for _, _, options in ranges])
        self._own_gradient = _try(factory)
        base = float(self.optimizer.defaults["lr"]) if "lr" in self.optimizer.defaults else 1.0
        self.base_lr = base
        """The learning rate the optimizer was built with; a group's own rate counts relative to it."""
        self._scales = [float(g.get("lr", base)) / base if base else 1.0 for g in self.optimizer.param_groups]

    def __call__(self, x: Tensor, g: Tensor, lr: float) -> Tensor:
        """One step of the optimizer from x along g, as a new tensor."""
        moved = x.detach().clone()
        if self._own_gradient:
            g = g.clone()
        for group, scale in zip(self.optimizer.param_groups, self._scales, strict=True):
            group["lr"] = lr if scale == 1.0 else lr * scale
        for block, (lo, hi) in zip(self._blocks, self._ranges, strict=True):
            block.data = moved[:, lo:hi]
            block.grad = g[:, lo:hi]
        self.optimizer.step()
        for block in self._blocks:
            block.grad = None
        return moved

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's memory, as copies."""
        return _copied(self.optimizer.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts a memory back."""
        self.optimizer.load_state_dict(_copied(dict(state)))


def _ranges(columns: Columns, groups: Groups | None) -> list[tuple[int, int, dict[str, Any]]]:
    """Runs of neighbouring columns with the same options: (first, last + 1, options)."""
    found: list[tuple[int, int, dict[str, Any]]] = []
    at = 0
    for name, shape, count in zip(columns.names, columns.shapes, columns.counts, strict=True):
        options = dict(groups(name, shape)) if groups else {}
        if "params" in options:
            raise AlgorithmError(f"the options of parameter {name!r} must not contain 'params'")
        if found and found[-1][2] == options:
            found[-1] = (found[-1][0], at + count, options)
        else:
            found.append((at, at + count, options))
        at += count
    return found


def _build(factory: OptimizerFactory, blocks: Sequence[Tensor], options: Sequence[Options]) -> torch.optim.Optimizer:
    plain = len(blocks) == 1 and not options[0]
    given = list(blocks) if plain else [{"params": [b], **o} for b, o in zip(blocks, options, strict=True)]
    try:
        built = factory(given)
    except ValueError as error:
        raise AlgorithmError(f"the optimizer cannot run on stacked workers: {error}") from error
    if not isinstance(built, torch.optim.Optimizer):
        raise AlgorithmError(
            f"optimizer must be a function of parameters that returns a torch.optim.Optimizer, got "
            f"{type(built).__name__}; write functools.partial(torch.optim.SGD, lr=0.1)"
        )
    name = type(built).__name__
    if name in NOT_ELEMENTWISE:
        raise AlgorithmError(f"optimizer {name} is not elementwise: {NOT_ELEMENTWISE[name]}; use SGD, Adam or AdamW")
    return built


def _try(factory: OptimizerFactory) -> bool:
    """Steps the optimizer on 12 numbers, together and one by one; returns whether it writes into gradients."""
    generator = torch.Generator().manual_seed(0)
    start, gradients = (torch.randn(*s, 3, 4, generator=generator, dtype=torch.float64) for s in ((), (3,)))
    together, written = _trial(factory, [start], gradients[:, None])
    alone, _ = _trial(factory, list(start.reshape(12, 1, 1)), gradients.reshape(3, 12, 1, 1))
    if not torch.allclose(together[0].reshape(-1), torch.cat(alone).reshape(-1), rtol=1e-9, atol=1e-12):
        name = type(factory([torch.nn.Parameter(start.clone())])).__name__
        raise AlgorithmError(
            f"optimizer {name} is not elementwise (or draws random numbers): a number moves differently when others "
            "are present, so stacked workers would influence each other; use SGD, Adam or AdamW"
        )
    return written


def _trial(factory: OptimizerFactory, start: list[Tensor], gradients: Tensor) -> tuple[list[Tensor], bool]:
    parameters = [torch.nn.Parameter(s.clone()) for s in start]
    optimizer, written = factory(parameters), False
    for step in gradients:
        for p, g in zip(parameters, step, strict=True):
            p.grad = g.clone()
        optimizer.step()
        written |= any(not torch.equal(p.grad, g) for p, g in zip(parameters, step, strict=True) if p.grad is not None)
    return [p.detach() for p in parameters], written


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {k: _copied(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copied(v) for v in value)
    return value
