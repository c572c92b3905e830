"""The model of a run or a checkpoint as plain `.safetensors` that loads with `strict=True` into the bare module.

    module.load_state_dict(safetensors.torch.load_file("model.safetensors"), strict=True)

The model is the consensus: the average of what the workers deploy, with their buffers pooled as everywhere else; or one
worker's. Every name of the module's `state_dict` is there with numbers of its own: the format has no shared memory, so
tied weights are written once for each of their names. What the file is of is in its metadata.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from dissensus.algorithms.engines.distributed.checkpoint import STATE, Checkpoint, latest
from dissensus.algorithms.engines.distributed.resuming import deployed, pooled
from dissensus.experiments.checkpoints import FOLDER
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.records import Run
from dissensus.experiments.state import STATE_FILE, finished

SUFFIX = ".safetensors"
Buffers = Literal["average", "local"]


@dataclass(frozen=True)
class Exported:
    """A model that was written."""

    out: Path
    source: Path
    """The run directory or checkpoint it is from."""
    which: str
    """`consensus`, or `worker 3`."""
    bn: str
    """Where the buffers come from: `average`, `local` (worker 0's), `worker 3's own`, or `none`."""
    step: int
    workers: int
    left_out: tuple[int, ...]
    """Workers that are no part of the consensus: isolated, or gone when the checkpoint was saved."""
    tensors: int
    numbers: int
    bytes: int


@dataclass(frozen=True)
class _Held:
    """What a source holds: the tensors of a model, and what is known of them."""

    source: Path
    tensors: Mapping[str, Tensor]
    has_buffers: bool
    step: int
    workers: int
    left_out: tuple[int, ...]


def export(
    place: Path, out: Path, *, bn: Buffers = "average", worker: int | None = None, again: bool = False
) -> Exported:
    """Writes the model of a run directory, a checkpoint, or a folder of them; a run without weights `again`."""
    out = Path(out)
    if out.suffix != SUFFIX:
        raise ConfigError(f"{out} would be written as safetensors: give it a name that ends in {SUFFIX}")
    held = _held(Path(place), bn, worker, again=again)
    which = "consensus" if worker is None else f"worker {worker}"
    buffers = "none" if not held.has_buffers else bn if worker is None else f"worker {worker}'s own"
    about = {
        "format": "pt",
        "which": which,
        "bn": buffers,
        "step": str(held.step),
        "workers": str(held.workers),
        "left_out": str(list(held.left_out)),
        "source": held.source.name,
        "dissensus": metadata.version("dissensus"),
    }
    write_safetensors(out, held.tensors, about)
    numbers = sum(value.numel() for value in held.tensors.values())
    facts = (held.step, held.workers, held.left_out, len(held.tensors), numbers, out.stat().st_size)
    return Exported(out, held.source, which, buffers, *facts)


def write_safetensors(out: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    """Writes tensors by name, whole or not at all; each has its numbers side by side and to itself."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    draft = out.with_name(f".{out.name}.{os.getpid()}")
    apart = {name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}
    try:
        try:
            save_file(apart, draft, dict(about))
        except KeyError as error:
            name = next((n for n, value in tensors.items() if str(value.dtype) == str(error.args[0])), "a tensor")
            raise ConfigError(f"{name!r} is {error.args[0]}, which safetensors has no name for: convert it") from None
        except SafetensorError as error:
            raise ConfigError(f"{out} could not be written: {error}") from None
        with draft.open("rb") as stream:
            os.fsync(stream.fileno())
        os.replace(draft, out)
    finally:
        draft.unlink(missing_ok=True)


def _held(place: Path, bn: Buffers, worker: int | None, *, again: bool) -> _Held:
    """A checkpoint, a run at its end, or the last checkpoint of a run that has not come to one, or of a folder."""
    is_run = (place / "config.toml").exists()
    if again and not is_run:
        raise ConfigError(f"{place} is no run directory, which alone can be trained again: leave --again out")
    if (place / STATE).exists():
        return _of_checkpoint(Checkpoint.read(place), bn, worker)
    last = latest(place / FOLDER) or latest(place)
    if is_run and (last is None or again or (place / STATE_FILE).exists()):
        return _of_run(place, bn, worker, again=again)
    if last is not None:
        return _of_checkpoint(last, bn, worker)
    runs = sorted(file.parent for file in place.glob("**/config.toml")) if place.is_dir() else []
    hint = f"; it holds {len(runs)} runs, such as {runs[0]}" if runs else ""
    raise ConfigError(f"{place} is no run directory and holds no complete checkpoint{hint}")


def _of_run(place: Path, bn: Buffers, worker: int | None, *, again: bool) -> _Held:
    engine = finished(Run.read(place), again=again).engine
    _check_worker(worker, range(engine.size), place)
    with engine.consensus(bn) if worker is None else engine.worker(worker) as model:
        left_out = tuple(sorted(engine.isolated)) if worker is None else ()
        return _Held(place, model.state_dict(), bool(engine.buffers), engine.t, engine.size, left_out)


def _of_checkpoint(found: Checkpoint, bn: Buffers, worker: int | None) -> _Held:
    isolated = found.facts.get("isolated") or []
    left_out = tuple(i for i in range(found.size) if i not in found.files or i in isolated)
    _check_worker(worker, found.workers, found.path)
    chosen = [worker] if worker is not None else [i for i in found.workers if i not in left_out]
    if not chosen:
        raise ConfigError(f"{found.path} holds no worker that is not isolated: name one with --worker")
    states = [found.state(i, mapped=True) for i in chosen]
    parameters = pooled([deployed(state) for state in states], "average", str(found.path))
    buffers = pooled([state.get("buffers") or {} for state in states], bn, str(found.path))
    held = {**parameters, **buffers}
    names = states[0].get("names") or list(held)
    lacking = next((name for name in names if name not in held), None)
    if lacking is not None:
        raise ConfigError(
            f"{found.path} has no tensor {lacking!r}, which the state_dict of the bare model needs; what a module adds "
            f"to it by itself (get_extra_state) cannot go into a {SUFFIX} file"
        )
    left_out = left_out if worker is None else ()
    kept = {name: held[name] for name in names}
    return _Held(found.path, kept, not buffers.keys().isdisjoint(kept), found.step, found.size, left_out)


def _check_worker(worker: int | None, known: Collection[int], place: Path) -> None:
    if worker is not None and worker not in known:
        raise ConfigError(f"there is no worker {worker}: {place} holds workers {', '.join(map(str, known))}")
