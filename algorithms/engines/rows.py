"""The state of every single worker, in terms of the model's names: for checkpoints, and fit for any layout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from dissensus.algorithms.engines.memories import memories, remember
from dissensus.algorithms.engines.moves import Move
from dissensus.algorithms.engines.workers import Workers
from dissensus.algorithms.errors import AlgorithmError


def save_rows(
    template: nn.Module, workers: Workers, move: Move, here: range, about: Mapping[str, Any]
) -> dict[int, dict[str, Any]]:
    """The states of the workers `here`, as copies; `about` is what they have in common. Tied tensors have all names."""
    frozen = {name: p.detach().clone() for name, p in template.named_parameters() if not p.requires_grad}
    of_parameters = _names(template.named_parameters(remove_duplicate=False))
    of_buffers = _names(template.named_buffers(remove_duplicate=False))
    found = {}
    for row, (i, memory) in enumerate(zip(here, memories(move, workers.layout), strict=True)):
        own = workers.row(row)
        parameters, buffers = own["parameters"] | frozen, own["buffers"]
        found[i] = {
            **own,
            "parameters": {name: parameters[first] for name, first in of_parameters.items()},
            "buffers": {name: buffers[first] for name, first in of_buffers.items()},
            "names": list(template.state_dict()),
            "optimizer": memory,
            "extra": {"engine": dict(about)},
        }
        if "deployed" in own:
            deployed = own["deployed"] | frozen
            found[i]["deployed"] = {name: deployed[first] for name, first in of_parameters.items()}
    return found


def _names(named: Iterable[tuple[str, Tensor]]) -> dict[str, str]:
    """Every name of a tensor -> its first name, by which the engine knows it."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(value), name) for name, value in named}


def load_rows(workers: Workers, move: Move, here: range, saved: Mapping[int, Mapping[str, Any]]) -> Mapping[str, Any]:
    """Takes over the states of the workers `here`; returns what they have in common, and the first one's route."""
    missing = [i for i in here if i not in saved]
    if missing:
        raise AlgorithmError(f"there is no state of worker {missing[0]}, which is one of this process")
    rows = [saved[i] for i in here]
    about = [(own.get("extra") or {}).get("engine") for own in rows]
    if about[0] is None or any(_shared(other) != _shared(about[0]) for other in about):
        raise AlgorithmError(f"the states of workers {here.start} to {here.stop - 1} are not of one engine at one step")
    if about[0]["algorithm"] != workers.algorithm.name:
        raise AlgorithmError(f"the state is of algorithm {about[0]['algorithm']!r}, not {workers.algorithm.name!r}")
    workers.load_rows(rows)
    remember(move, workers.layout, [own.get("optimizer") or {} for own in rows])
    return about[0]


def _shared(about: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What must be the same for all workers: every process has measured for itself how it takes gradients fastest."""
    return None if about is None else {key: value for key, value in about.items() if key not in ("route", "chunk")}
