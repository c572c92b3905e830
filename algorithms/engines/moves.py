"""The local move: any elementwise `torch.optim.Optimizer`, run as it is on the rows of all workers at once.

The optimizer owns one parameter per strip of the layout, with all workers as rows, so its memory has one row per worker
too, and nothing couples the rows as long as its update is elementwise. Whether it is one is not believed but tried, on
a handful of numbers, before the first step. A move returns a new tensor and writes into none of its arguments, unless
it is told that nobody reads the point any more.

Workers with options of their own (`per_worker`) are rows of their own: neighbouring workers with equal options share a
parameter. A learning rate schedule of `torch.optim.lr_scheduler` works on `optimizer` as on any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from dissensus.algorithms.engines import watching
from dissensus.algorithms.engines.columns import Columns
from dissensus.algorithms.engines.layout import Layout, Options
from dissensus.algorithms.errors import AlgorithmError
from dissensus.theory.errors import nearest

OptimizerFactory = Callable[[Any], torch.optim.Optimizer]
Groups = Callable[[str, torch.Size], Options]
"""(name, shape) of a parameter -> the options of its param group: `lambda name, shape: {"weight_decay": 0.0}`."""

NOT_ELEMENTWISE = {
    "LBFGS": "it searches along a line with dot products over all numbers",
    "Adafactor": "its second moment is factored over the rows and columns of a matrix",
    "Muon": "it orthogonalises whole matrices",
    "SparseAdam": "it needs sparse gradients",
}


@dataclass(frozen=True)
class Piece:
    """Rows and columns of a strip that have one parameter in the optimizer."""

    rows: slice
    columns: slice
    parameter: torch.nn.Parameter
    """Holds numbers during a move only: otherwise all that was moved last would stay alive until the next step."""
    blank: Tensor
    """What it holds otherwise: as many numbers, in the memory of one."""
    group: int
    """Which param group of the optimizer it is in."""
    options: int
    """Which options of the layout it has."""


def decay_of(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> float:
    """The weight decay that SGD adds to the gradients of a param group; 0 for whatever is not SGD."""
    return float(group["weight_decay"]) if isinstance(optimizer, torch.optim.SGD) else 0.0


def options_of(columns: Columns, groups: Groups | None) -> list[Options]:
    """The options of every parameter's param group."""
    found: list[Options] = []
    for name, shape in zip(columns.names, columns.shapes, strict=True):
        options = dict(groups(name, shape)) if groups else {}
        if "params" in options:
            raise AlgorithmError(f"the options of parameter {name!r} must not contain 'params'")
        found.append(options)
    return found


class Move:
    """One optimizer over the stacked workers. Engines alone hold one: its memory changes with every move."""

    def __init__(
        self,
        factory: OptimizerFactory,
        layout: Layout,
        per_worker: Sequence[Options] | None = None,
        *,
        apart: bool = False,
    ) -> None:
        """`apart` gives every worker a parameter of its own, so that one that is away keeps its own clock (Adam's)."""
        workers = _runs(per_worker, layout.size)
        kind = {"dtype": layout.columns.dtype, "device": layout.columns.device}
        self.pieces: list[list[Piece]] = []
        """By strip."""
        held: dict[int, list[torch.nn.Parameter]] = {}
        for strip in layout.strips:
            pieces = []
            for columns, group in strip.pieces:
                for k, (run, _) in enumerate(workers):
                    for rows in [slice(i, i + 1) for i in range(run.start, run.stop)] if apart else [run]:
                        shape = rows.stop - rows.start, columns.stop - columns.start
                        blank = torch.zeros((), **kind).expand(shape)
                        p = torch.nn.Parameter(blank)
                        pieces.append(Piece(rows, columns, p, blank, group * len(workers) + k, group))
                        held.setdefault(pieces[-1].group, []).append(p)
            self.pieces.append(pieces)
        given = [{**options, **own} for options in layout.options for _, own in workers]
        order = sorted(held)
        self.optimizer = _build(factory, [held[g] for g in order], [given[g] for g in order])
        self._own_gradient = _try(factory)
        self._groups = list(self.optimizer.param_groups)
        self._params = [list(group["params"]) for group in self._groups]
        self._place = {g: i for i, g in enumerate(order)}
        base = float(self.optimizer.defaults["lr"]) if "lr" in self.optimizer.defaults else 1.0
        self.base_lr = base
        """The learning rate the optimizer was built with; a group's own rate counts relative to it."""
        self._scales = [float(g.get("lr", base)) / base if base else 1.0 for g in self._groups]
        self._moving = next((i for i, scale in enumerate(self._scales) if scale), 0)  # the rate is read off this group
        self._size = layout.size

    def begin(self, lr: float | None) -> float:
        """Sets the learning rate of a step, or leaves what a scheduler has set; returns that rate."""
        if lr is None:
            at = self._moving
            return float(self._groups[at].get("lr", self.base_lr)) / (self._scales[at] or 1.0)
        for group, scale in zip(self._groups, self._scales, strict=True):
            group["lr"] = lr if scale == 1.0 else lr * scale
        return float(lr)

    def __call__(self, k: int, x: Tensor, g: Tensor, there: Tensor | None = None, *, over: bool = False) -> Tensor:
        """One step of the optimizer for strip k, from x along g; for those that are there.

        As a new tensor, or `over` x itself, where nobody reads it any more.
        """
        moved = x.detach()
        if not over:
            moved = moved.clone(memory_format=torch.contiguous_format)
        if self._own_gradient:
            g = g.clone()
        chosen: dict[int, list[torch.nn.Parameter]] = {}
        apart: list[tuple[Tensor, Tensor]] = []
        for piece in self.pieces[k]:
            if there is not None and not bool(there[piece.rows].any()):
                continue
            part = (piece.rows, piece.columns)
            whole = piece.parameter.shape == moved.shape
            point, along = (moved, g) if whole else (moved[part], g[part])
            if self.group(piece).get("fused"):  # such a kernel takes the numbers as they follow each other in memory
                along = along.contiguous()
                if not point.is_contiguous():
                    point = point.contiguous()
                    apart.append((moved[part], point))
            piece.parameter.data, piece.parameter.grad = point, along
            chosen.setdefault(self._place[piece.group], []).append(piece.parameter)
        try:
            self.optimizer.param_groups = [self._groups[i] for i in chosen]
            for i, parameters in chosen.items():
                self._groups[i]["params"] = parameters
            watching.move(self.optimizer)
            for place, copied in apart:
                place.copy_(copied)
        finally:
            self.optimizer.param_groups = self._groups
            for i in chosen:
                self._groups[i]["params"] = self._params[i]
            for piece in self.pieces[k]:
                piece.parameter.grad = None
                piece.parameter.data = piece.blank
        return moved

    def group(self, piece: Piece) -> dict[str, Any]:
        """The param group of a piece."""
        return self._groups[self._place[piece.group]]

    def rate(self, k: int) -> float | Tensor:
        """The learning rate that strip k moves with: a number, or a column or more where workers or columns differ."""
        return self._of_strip(k, lambda group: float(group.get("lr", self.base_lr)))

    def decay(self, k: int) -> float | Tensor:
        """The weight decay that SGD adds to the gradient of strip k."""
        return self._of_strip(k, lambda group: decay_of(self.optimizer, group))

    def _of_strip(self, k: int, option: Callable[[dict[str, Any]], float]) -> float | Tensor:
        pieces = self.pieces[k]
        values = [option(self.group(p)) for p in pieces]
        if len(set(values)) == 1:
            return values[0]
        width = max(p.columns.stop for p in pieces) if len({(p.columns.start) for p in pieces}) > 1 else 1
        like = pieces[0].parameter
        found = torch.empty(self._size, width, dtype=like.dtype, device=like.device)
        for piece, value in zip(pieces, values, strict=True):
            found[piece.rows, piece.columns if width > 1 else slice(None)] = value
        return found

    def keeping(self, k: int, rows: Tensor) -> Callable[[], None]:
        """Remembers the memory of these workers (a mask) for strip k; what is returned puts it back."""
        before: list[tuple[Piece, Tensor, dict[str, Tensor]]] = []
        for piece in self.pieces[k]:
            mask = rows[piece.rows]
            state = self.optimizer.state.get(piece.parameter, {})
            own = {name: v[mask].clone() for name, v in state.items() if is_stacked(v, piece)}
            before.append((piece, mask, own))

        def put_back() -> None:
            for piece, mask, own in before:
                for name, v in self.optimizer.state.get(piece.parameter, {}).items():
                    if is_stacked(v, piece):
                        v[mask] = own.get(name, 0.0)

        return put_back

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's memory, as copies."""
        return _copied(self.optimizer.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts a memory back."""
        self.optimizer.load_state_dict(_copied(dict(state)))
        self._groups = list(self.optimizer.param_groups)
        self._params = [list(group["params"]) for group in self._groups]
        self.optimizer.param_groups = self._groups


def own_rate(factory: OptimizerFactory) -> float:
    """The learning rate that an optimizer is built with."""
    return float(_build(factory, [[torch.nn.Parameter(torch.zeros(1))]], [{}]).defaults.get("lr", 1.0))


def _runs(per_worker: Sequence[Options] | None, size: int) -> list[tuple[slice, Options]]:
    """Runs of neighbouring workers with the same options."""
    if per_worker is None:
        return [(slice(0, size), {})]
    if len(per_worker) != size:
        raise AlgorithmError(f"per_worker has options for {len(per_worker)} workers, but there are {size}")
    found, at = [], 0
    for options, members in groupby(per_worker):
        count = len(list(members))
        if "params" in options:
            raise AlgorithmError(f"the options of worker {at} must not contain 'params'")
        found.append((slice(at, at + count), dict(options)))
        at += count
    return found


def _build(
    factory: OptimizerFactory, held: Sequence[list[torch.nn.Parameter]], options: Sequence[Options]
) -> torch.optim.Optimizer:
    plain = len(held) == 1 and not options[0]
    given = list(held[0]) if plain else [{"params": p, **o} for p, o in zip(held, options, strict=True)]
    try:
        built = factory(given)
    except (ValueError, TypeError) as error:
        raise AlgorithmError(f"the optimizer cannot run on stacked workers: {error}") from error
    if not isinstance(built, torch.optim.Optimizer):
        raise AlgorithmError(
            f"optimizer must be a function of parameters that returns a torch.optim.Optimizer, got "
            f"{type(built).__name__}; write functools.partial(torch.optim.SGD, lr=0.1)"
        )
    name = type(built).__name__
    if name in NOT_ELEMENTWISE:
        raise AlgorithmError(f"optimizer {name} is not elementwise: {NOT_ELEMENTWISE[name]}; use SGD, Adam or AdamW")
    for own in options:
        for key in own:
            if key not in built.defaults:
                raise AlgorithmError(f"optimizer {name} has no option {key!r}{nearest(key, built.defaults)}")
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


def is_stacked(value: Any, piece: Piece) -> bool:
    """Whether the optimizer remembers this number by number, rather than once for the whole piece."""
    return isinstance(value, Tensor) and value.shape == piece.parameter.shape


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {k: _copied(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copied(v) for v in value)
    return value
