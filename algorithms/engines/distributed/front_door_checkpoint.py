"""Checkpoints of a training loop of one's own, behind the front door: two lines.

    begin = load_training("checkpoints", opt, model)         # begin.step is 0 where nothing has been saved yet
    for t in range(begin.step, steps):
        ...
        if t % 100 == 99:
            save_training("checkpoints", opt, model, extra={"position": ...})

Both are called by every process, after `decentralize`. Kept are the model's parameters and buffers (those too that its
`state_dict` leaves out), the optimizer's and the algorithm's memory, the step, the generators of this process, and
`extra`: whatever else the loop needs to go on, such as its place in the data, the `state_dict()` of a scheduler.
The loop that goes on is then the one that was never interrupted, to the bit on a CPU.

Where several processes are one worker (`node_groups`), `inside` is their group: they hold one model, which is kept
once, and each has generators and an `extra` of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from dissensus.algorithms.engines.distributed.bare_model import bare_names, fill, tensors_of
from dissensus.algorithms.engines.distributed.checkpoint import Checkpoint, State, latest
from dissensus.algorithms.engines.distributed.front_door import Decentralized
from dissensus.algorithms.engines.distributed.handshake import fingerprint
from dissensus.algorithms.engines.distributed.peers import PeerError
from dissensus.algorithms.engines.distributed.resuming import Resume, deployed, load
from dissensus.algorithms.engines.distributed.saving import Together, alone, meet, save
from dissensus.algorithms.engines.distributed.wire import Wire
from dissensus.algorithms.engines.generators import generators, restore_generators
from dissensus.algorithms.errors import AlgorithmError
from dissensus.theory.errors import nearest

log = logging.getLogger("dissensus")


class Resumed(NamedTuple):
    """Where a loop goes on."""

    step: int
    """The step that `save_training` was called with; 0 where nothing has been saved."""
    extra: Any
    """What `save_training` was given, or `None`."""
    path: Path | None
    """The checkpoint, or `None`."""


def save_training(
    folder: Path | str,
    opt: Decentralized,
    model: nn.Module,
    *,
    step: int | None = None,
    extra: Any = None,
    keep: int | None = 3,
    inside: dist.ProcessGroup | None = None,
) -> Path | None:
    """Writes a checkpoint between two steps; it is complete when this returns.

    Where a process is lost meanwhile and the others go on without it, they give this checkpoint up and return None.

    Args:
        folder: where the checkpoints are: one folder for all processes.
        opt: what `decentralize` returned.
        model: the model it was given, or the bare one.
        step: the number of the checkpoint; as many steps as the optimizer has made unless given.
        extra: tensors and plain values that the loop wants back.
        keep: how many checkpoints stay, `None` for all.
        inside: the group of the processes that are this worker together, if there are several.
    """
    number = opt.t if step is None else step
    within = alone if inside is None else _meeting(Wire(inside), opt)
    beside = within({"generators": generators(), "extra": extra})
    failed = f"the checkpoint step_{number:06d} could not be written"
    states: dict[int, State] = {}

    def collect() -> int | None:
        state = {**_state(opt, model), "generators": [one["generators"] for one in beside]}
        states[opt.worker] = {**state, "extra": extra if inside is None else [one["extra"] for one in beside]}
        return opt.worker if opt.held.isolated else None

    def write() -> str:
        between = _meeting(opt.wire, opt)
        isolated = sorted(i for i in meet(between, failed, collect) if i is not None)
        facts = {**_facts(opt), "t": opt.t, "isolated": isolated}
        return str(save(folder, number, states, size=opt.topology.size, facts=facts, together=between, keep=keep))

    def write_or_give_up() -> str | None:
        try:
            with opt.wire.operation():
                return write()
        except PeerError as error:
            if opt.wire.guard is None:
                raise
            log.warning("%s: %s", failed, error)
            return None

    first = inside is None or dist.get_rank(inside) == 0
    written = meet(within, failed, lambda: write_or_give_up() if first else None)[0]
    return None if written is None else Path(written)


def load_training(
    folder: Path | str,
    opt: Decentralized,
    model: nn.Module,
    *,
    resume: Resume = "exact",
    may_differ: Collection[str] = (),
    inside: dist.ProcessGroup | None = None,
) -> Resumed:
    """Puts the last complete checkpoint into a model and an optimizer that have just been built.

    A process that was started again and has been taken in by the others has everything from them: nothing is loaded.

    Args:
        folder: where the checkpoints are.
        opt: what `decentralize` returned, before its first step.
        model: the model it was given, or the bare one.
        resume: what to do where the number of workers is another one: `exact` (refuse), `average`, `subset`; what
            these mean is told in `resuming`.
        may_differ: what may be another than was saved: "algorithm", "topology".
        inside: the group of the processes that are this worker together, if there are several.
    """
    unknown = next((key for key in may_differ if key not in _facts(opt)), None)
    if unknown is not None:
        raise AlgorithmError(f"may_differ has {unknown!r}{nearest(unknown, _facts(opt))}")
    if opt.t > 0 and opt.wire.guard is not None:
        return Resumed(opt.t, None, None)
    if opt.t > 0:
        raise AlgorithmError(f"the optimizer has made {opt.t} steps already: load what is in {folder} into a new one")
    together = _meeting(opt.wire, opt)
    failed = f"the checkpoint in {folder} could not be loaded"

    def look() -> str | None:
        found = latest(folder)
        return None if found is None else found.path.name

    name = meet(together, failed, look)[0]
    if name is None:
        return Resumed(0, None, None)

    def take() -> tuple[Checkpoint, State]:
        found, states = load(
            Checkpoint.read(Path(folder) / name),
            [opt.worker],
            size=opt.topology.size,
            resume=resume,
            expect=_facts(opt),
            may_differ=may_differ,
        )
        _put(found, states[opt.worker], opt, model)
        return found, states[opt.worker]

    taken: list[tuple[Checkpoint, State]] = []
    meet(together, failed, lambda: taken.append(take()))
    found, state = taken[0]
    rank = 0 if inside is None else dist.get_rank(inside)
    kept = state.get("generators") or []
    if rank < len(kept):
        restore_generators(kept[rank])
    extra = state.get("extra")
    return Resumed(found.step, extra[rank] if inside is not None and extra else extra, found.path)


def _meeting(wire: Wire, opt: Decentralized) -> Together:
    return partial(wire.gather, what="checkpoint", step=opt.t)


def _facts(opt: Decentralized) -> dict[str, str]:
    return {
        "algorithm": opt.algorithm.name,
        "topology": f"{opt.topology.name} of {opt.topology.size} workers, rounds {fingerprint(opt.topology)}",
    }


def _state(opt: Decentralized, model: nn.Module) -> dict[str, Any]:
    """This worker's state, under the names of the bare model."""
    names, whole, of_model = dict(_names_in(opt, model)), opt.state_dict(), tensors_of(model)
    own, held = dict(whole.pop("dissensus")), of_model["parameters"]
    point = {names[name]: value for name, value in own.pop("point").items()}
    memory = {field: _renamed(value, names) for field, value in own.pop("state").items()}
    return {
        "parameters": {**held, **point},
        "deployed": {name: held[name] for name, value in point.items() if not torch.equal(value, held[name])},
        "buffers": of_model["buffers"],
        "names": of_model["names"],
        "optimizer": whole,
        "algorithm": memory,
        "engine": {"front door": own, "point": list(point), "model": of_model["others"]},
    }


def _put(found: Checkpoint, state: State, opt: Decentralized, model: nn.Module) -> None:
    """Puts a worker's state into model and optimizer; one without an engine's part starts the algorithm anew."""
    names = {bare: name for name, bare in _names_in(opt, model)}
    engine, whole = state.get("engine"), dict(opt.state_dict())
    fresh = whole.pop("dissensus")
    if engine is not None and "front door" not in engine:
        raise AlgorithmError(f"{found.path} was not written by save_training: load it with the engine that wrote it")
    opt.settle()
    fill(model, {**deployed(state), **state["buffers"]}, {} if engine is None else engine["model"], str(found.path))
    if engine is not None:
        point = {names[name]: state["parameters"][name] for name in engine["point"]}
        memory = {field: _renamed(value, names) for field, value in state["algorithm"].items()}
        own = {**engine["front door"], "point": point, "state": memory}
    else:
        point = {name: state["parameters"][bare] for bare, name in names.items() if name in fresh["point"]}
        own = {**fresh, "t": found.facts["t"], "point": point, "state": {**_anew(opt), **state["algorithm"]}}
    saved = state["optimizer"]
    if saved is not None and "state" in saved:
        whole = saved
    elif saved is not None:
        whole["param_groups"] = _options(whole["param_groups"], saved["param_groups"], found)
    opt.load_state_dict({**whole, "dissensus": own})


def _anew(opt: Decentralized) -> dict[str, Any]:
    """The algorithm's memory before its first step at the parameters as they are."""
    probe = opt.algorithm.init(torch.zeros(1, 3))
    rows = {name: opt.algorithm.init(p.detach().reshape(1, -1)) for name, p in opt.named}
    memory: dict[str, Any] = {}
    for k, field in enumerate(getattr(probe, "_fields", ())):
        if probe[k].shape == (1, 3):
            shapes = {name: p.shape for name, p in opt.named}
            memory[field] = {name: row[k].reshape(shapes[name]) for name, row in rows.items()}
        else:
            memory[field] = next(iter(rows.values()))[k]
    return memory


def _options(now: list[dict[str, Any]], saved: list[dict[str, Any]], found: Checkpoint) -> list[dict[str, Any]]:
    """The param groups of now with the options that were saved."""
    if len(now) != len(saved):
        raise AlgorithmError(f"{found.path} has {len(saved)} param groups, the optimizer has {len(now)}")
    return [{**one, **was, "params": one["params"]} for one, was in zip(now, saved, strict=True)]


def _names_in(opt: Decentralized, model: nn.Module) -> list[tuple[str, str]]:
    """(the name that the optimizer has for a parameter, its name in the bare model)."""
    bare = bare_names(model)
    of = {id(p): bare(name) for name, p in model.named_parameters()}
    lacking = next((name for name, p in opt.named if id(p) not in of), None)
    if lacking is not None:
        raise AlgorithmError(f"the optimizer trains {lacking!r}, which is no parameter of this model: pass its model")
    return [(name, of[id(p)]) for name, p in opt.named]


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    return {names[name]: v for name, v in value.items()} if isinstance(value, Mapping) else value
