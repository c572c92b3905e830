"""The optimizer's memory of every single worker, in terms of the model's parameters: it fits into any other layout.

    {"state": {"momentum_buffer": {name of a parameter: tensor, ...}, ...}, "clocks": {"step": ...},
     "param_groups": [{"lr": ..., ...}, ...]}

A *clock* is what the optimizer keeps once for all numbers of a worker (the step of Adam). Options are those of the
worker's param groups, in the order in which the engine was given them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dissensus.algorithms.engines.layout import Layout
from dissensus.algorithms.engines.moves import Move, Piece, is_stacked
from dissensus.algorithms.errors import AlgorithmError

Memory = Mapping[str, Any]


def memories(move: Move, layout: Layout) -> list[dict[str, Any]]:
    """The memory of every row, as copies."""
    found: list[dict[str, Any]] = [{"state": {}, "clocks": {}, "param_groups": {}} for _ in range(layout.size)]
    strips: dict[str, list[Tensor]] = {}
    known: dict[str, list[Tensor]] = {}
    for k, pieces in enumerate(move.pieces):
        for piece in pieces:
            options = {key: value for key, value in move.group(piece).items() if key != "params"}
            for i in range(piece.rows.start, piece.rows.stop):
                found[i]["param_groups"][piece.options] = options
            for name, value in move.optimizer.state.get(piece.parameter, {}).items():
                if is_stacked(value, piece):
                    room = strips.setdefault(name, _strips(layout, value.dtype))
                    room[k][piece.rows, piece.columns] = value
                    known.setdefault(name, _strips(layout, torch.bool))[k][piece.rows, piece.columns] = True
                elif value is not None:
                    _tick(found, piece, name, value)
    for name, room in strips.items():
        whole, there = layout.columns.unflatten(layout.join(room)), layout.columns.unflatten(layout.join(known[name]))
        for i, one in enumerate(found):
            one["state"][name] = {key: v[i].clone() for key, v in whole.items() if bool(there[key][i].all())}
    for one in found:
        one["param_groups"] = [dict(options) for _, options in sorted(one["param_groups"].items())]
    return found


def remember(move: Move, layout: Layout, saved: Sequence[Memory]) -> None:
    """Puts the memories of all rows back; what is not in them starts anew."""
    names = sorted({name for one in saved for name in one.get("state", {})})
    strips = {name: _cut(layout, [one.get("state", {}).get(name, {}) for one in saved]) for name in names}
    for k, pieces in enumerate(move.pieces):
        for piece in pieces:
            rows = range(piece.rows.start, piece.rows.stop)
            group = move.group(piece)
            for key, value in _options(saved[rows.start], piece).items():
                if key in group:
                    group[key] = value
            state: dict[str, Any] = {}
            for name, (numbers, known) in strips.items():
                if bool(known[k][piece.rows, piece.columns].all()):
                    state[name] = numbers[k][piece.rows, piece.columns].clone()
            clocks = [saved[i].get("clocks", {}) for i in rows]
            if any(not _same(clock, clocks[0]) for clock in clocks):
                raise AlgorithmError(
                    f"rows {rows.start} to {rows.stop - 1} have optimizers that took different numbers of steps: they "
                    "go on only with a participation, as they were saved"
                )
            if state or clocks[0]:
                state |= {name: v.clone() if isinstance(v, Tensor) else v for name, v in clocks[0].items()}
                move.optimizer.state[piece.parameter] = state
            else:
                move.optimizer.state.pop(piece.parameter, None)


def _cut(layout: Layout, rows: Sequence[Mapping[str, Tensor]]) -> tuple[list[Tensor], list[Tensor]]:
    """One kind of memory of all rows by strip, and where there is any."""
    columns = layout.columns
    dtype = next(v.dtype for own in rows for v in own.values()) if any(rows) else columns.dtype
    numbers, known = torch.zeros(len(rows), columns.size, dtype=dtype), torch.zeros(len(rows), columns.size)
    for place, there, own in zip(numbers, known, rows, strict=True):
        views, marks = columns.unflatten(place), columns.unflatten(there)
        for name, value in own.items():
            if name not in views or views[name].shape != value.shape:
                raise AlgorithmError(
                    f"the optimizer's memory is of a parameter {name!r} of shape {tuple(value.shape)}, which the model "
                    "does not train"
                )
            views[name].copy_(value)
            marks[name].fill_(1.0)
    return layout.cut(numbers, dtype), [part.bool() for part in layout.cut(known)]


def _strips(layout: Layout, dtype: torch.dtype) -> list[Tensor]:
    return [torch.zeros(layout.size, s.width, dtype=dtype, device=layout.columns.device) for s in layout.strips]


def _tick(found: list[dict[str, Any]], piece: Piece, name: str, value: Any) -> None:
    for i in range(piece.rows.start, piece.rows.stop):
        clocks = found[i]["clocks"]
        if name in clocks and not _same({name: clocks[name]}, {name: value}):
            raise AlgorithmError(
                f"the optimizer keeps {name!r} apart for parts of one worker, so a worker's memory cannot be told in "
                "terms of the model; save the engine's whole state_dict() instead"
            )
        clocks[name] = value.clone() if isinstance(value, Tensor) else value


def _options(saved: Memory, piece: Piece) -> Mapping[str, Any]:
    groups = saved.get("param_groups") or []
    return groups[piece.options] if piece.options < len(groups) else {}


def _same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    if a.keys() != b.keys():
        return False
    return all(
        torch.equal(v, b[k]) if isinstance(v, Tensor) and isinstance(b[k], Tensor) else v == b[k] for k, v in a.items()
    )
