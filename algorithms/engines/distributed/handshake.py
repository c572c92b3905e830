"""Before the first step the processes compare what must be the same everywhere, and end together where it is not.

Every process says what it has; everybody gets everything and comes to the same conclusion, so that each of them ends
with the same sentence, which names the process and the difference. A process that cannot even say what it has (its own
arguments were refused) tells the others why.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any, TypeVar

import torch
from torch import nn

from dissensus.algorithms.engines.distributed.wire import Wire
from dissensus.algorithms.errors import AlgorithmError
from dissensus.algorithms.protocol import Algorithm
from dissensus.theory.topology import Topology

T = TypeVar("T")
ROUNDS = 64
"""So many rounds of a schedule without a period go into its fingerprint."""


def together(wire: Wire, build: Callable[[], T]) -> T:
    """Builds something in every process, or in none: where one of them fails, all end with its sentence."""
    built: T | None = None
    error: Exception | None = None
    try:
        built = build()
    except Exception as failure:
        error = failure
    said = wire.gather(None if error is None else str(error) or type(error).__name__, what="handshake")
    if error is not None:
        raise error
    for process, sentence in enumerate(said):
        if sentence is not None:
            raise AlgorithmError(f"process {process} could not start: {sentence}")
    assert built is not None
    return built


def agree(wire: Wire, facts: Mapping[str, Any]) -> None:
    """Compares facts over all processes; every process raises the same error where they differ."""
    everybody = wire.gather(dict(facts), what="handshake")
    first = everybody[0]
    for process, theirs in enumerate(everybody):
        compare(process, theirs, first, "process 0")


def compare(process: int, theirs: Mapping[str, Any], first: Mapping[str, Any], others: str) -> None:
    """Refuses facts of a process that are not those of the others."""
    for key in {**first, **theirs}:
        mine, own = first.get(key), theirs.get(key)
        if mine != own:
            what, there, here = _where(key, mine, own)
            raise AlgorithmError(
                f"process {process} differs from {others} in {what}: it has {here}, {others} has {there}; start all of "
                "them with the same model, algorithm, topology and options"
            )


def facts_of(
    named: Sequence[tuple[str, nn.Parameter]], algorithm: Algorithm, topology: Topology, **options: Any
) -> dict[str, Any]:
    """What has to be equal: parameters, algorithm, topology, versions, and these options."""
    return {
        "the versions": {"dissensus": metadata.version("dissensus"), "torch": str(torch.__version__)},
        "the number of parameters": len(named),
        "the parameters": {
            f"number {i}": f"{name}, shape {tuple(p.shape)}, {p.dtype}, stride {p.stride()}, {p.device.type}"
            for i, (name, p) in enumerate(named)
        },
        "the algorithm": described(algorithm),
        "the topology": f"{topology.name} of {topology.size} workers, rounds {fingerprint(topology)}",
        **{key.replace("_", " "): str(value) for key, value in options.items()},
    }


def check_model(model: nn.Module, *, fused: bool) -> None:
    """Refuses models whose parameters this engine cannot lay out, or whose gradients come too late for it."""
    for name, p in model.named_parameters():
        if hasattr(p, "placements"):
            raise AlgorithmError(
                f"parameter {name!r} is sharded (a DTensor): a worker must hold whole parameters; shard nothing "
                "inside a worker and average its gradients with DDP instead (see node_groups)"
            )
    if fused and isinstance(model, nn.parallel.DistributedDataParallel):
        raise AlgorithmError(
            "fused=True moves before DDP has averaged the gradients inside a worker; use fused=False with it"
        )


def described(algorithm: Any) -> str:
    """An algorithm with its parameters; a function among them by its name and what it does, not by its address."""
    if not dataclasses.is_dataclass(algorithm):
        return repr(algorithm)
    values = {f.name: getattr(algorithm, f.name) for f in dataclasses.fields(algorithm) if f.repr}
    return f"{type(algorithm).__name__}({', '.join(f'{key}={_value(value)}' for key, value in values.items())})"


def _value(value: Any) -> str:
    code = getattr(value, "__code__", None)
    if code is None:
        return repr(value) if not callable(value) else getattr(value, "__qualname__", type(value).__qualname__)
    digest = hashlib.sha256(code.co_code + repr((code.co_names, _constants(code))).encode()).hexdigest()[:8]
    return f"{value.__qualname__} [{digest}]"


def _constants(code: Any) -> list[Any]:
    """The constants of a function, those of functions inside it among them."""
    return [_constants(one) if hasattr(one, "co_consts") else one for one in code.co_consts]


def fingerprint(topology: Topology) -> str:
    """Sixteen hexadecimal digits that change with any weight of a period, or of the first rounds."""
    rounds = [topology[t].triplets() for t in range(topology.period or ROUNDS)]
    return hashlib.sha256(repr(rounds).encode()).hexdigest()[:16]


def _where(key: str, mine: Any, own: Any) -> tuple[str, str, str]:
    """The narrowest place at which two facts differ, with both values."""
    if not isinstance(mine, dict) or not isinstance(own, dict):
        return key, _said(mine), _said(own)
    for part in {**mine, **own}:
        if mine.get(part) != own.get(part):
            return f"{key} ({part})", _said(mine.get(part)), _said(own.get(part))
    return key, _said(mine), _said(own)


def _said(value: Any) -> str:
    return "none" if value is None else str(value)
