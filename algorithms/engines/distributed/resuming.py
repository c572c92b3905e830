r"""Going on from a checkpoint: as if nothing had happened, or, where that is said, with another number of workers.

With as many workers as were saved, each gets its own state back, and the run goes on as the uninterrupted one would
have. With another number this is refused unless one of two ways is chosen:

`average`: every new worker starts at the average of what the old ones deploy, $\frac1n \sum_i x_i$, with the average of
their buffers. The disagreement is gone, and so is every memory: of the optimizer (its options stay, as the schedule
had set them), of the algorithm, of the generators, and of `extra` whatever differed between the workers.

`subset`, for fewer: the first m workers go on, each with its own model, optimizer, generators and `extra`.

Under both the algorithm's memory starts anew, because it speaks of all workers together: the trackers of
gradient tracking sum to the gradients of all n, and over a part of them they would be wrong for ever; what CHOCO's
neighbours know of each other belongs to a mixing matrix that is no more. Push-sum starts with weights 1 at its
de-biased models $x_i / w_i$. What stays is a single number that is the same for all and so speaks of the run: DSGD-AC's
largest learning rate, without which its consensus would be that of another schedule. The step stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from dissensus.algorithms.engines import views
from dissensus.algorithms.engines.distributed.checkpoint import STATE, Checkpoint, State, latest, places
from dissensus.algorithms.errors import AlgorithmError
from dissensus.theory.errors import nearest

Resume = Literal["exact", "average", "subset"]
WAYS = ("exact", "average", "subset")


def found_at(place: Path | str) -> Checkpoint:
    """The checkpoint in a directory, or the last complete one of a folder of them."""
    place = Path(place)
    if (place / STATE).exists():
        return Checkpoint.read(place)
    found = latest(place)
    if found is None:
        incomplete = len(places(place)[1])
        why = f"{incomplete} incomplete, without {STATE}" if incomplete else "no directory step_..."
        raise AlgorithmError(f"there is no complete checkpoint in {place} ({why}): name another folder, or start anew")
    return found


def load(
    place: Path | str | Checkpoint,
    workers: Iterable[int],
    *,
    size: int,
    resume: Resume = "exact",
    expect: Mapping[str, Any] | None = None,
    may_differ: Collection[str] = (),
) -> tuple[Checkpoint, dict[int, State]]:
    """The states that these workers go on from.

    Args:
        place: a checkpoint, or a folder of them, of which the last complete one is taken.
        workers: the workers of this process, among the `size` there are now.
        size: how many workers the run has now.
        resume: what to do where that is another number than was saved: see the top of this file.
        expect: facts that must be as they were saved (`algorithm`, `topology`, ...) if every worker goes on exactly.
        may_differ: which of them need not be.
    """
    if resume not in WAYS:
        raise AlgorithmError(f"resume must be 'exact', 'average' or 'subset', got {resume!r}{nearest(resume, WAYS)}")
    found = place if isinstance(place, Checkpoint) else found_at(place)
    workers = list(workers)
    for worker in workers:
        if not 0 <= worker < size:
            raise AlgorithmError(f"there is no worker {worker}: workers are counted from 0 to {size - 1}")
    if size == found.size and len(found.files) == size:
        _check_facts(found, expect or {}, may_differ)
        return found, {i: found.state(i) for i in workers}
    isolated = found.facts.get("isolated") or ()
    able = [i for i in found.workers if i not in isolated]
    _check_size(found, able, size, resume)
    if resume == "average":
        same = averaged([found.state(i, mapped=True) for i in able], str(found.path)) if workers else {}
        return found, dict.fromkeys(workers, same)
    return found, {i: alone_with(found.state(able[i])) for i in workers}


def deployed(state: State) -> dict[str, Tensor]:
    """The parameters a worker would deploy."""
    return {**state["parameters"], **(state.get("deployed") or {})}


def averaged(states: Sequence[State], where: str = "the states") -> State:
    """The state at the average of workers, without memory."""
    models = [deployed(state) for state in states]
    buffers = [state.get("buffers") or {} for state in states]
    return {
        "parameters": pooled(models, "average", where),
        "buffers": pooled(buffers, "average", where),
        "names": states[0].get("names"),
        "optimizer": _options([state.get("optimizer") for state in states]),
        "algorithm": _of_the_run(states),
        "extra": _shared([state.get("extra") for state in states]),
    }


def alone_with(state: State) -> State:
    """The state of a worker that goes on without those the algorithm's memory also speaks of."""
    kept = {key: state.get(key) for key in ("buffers", "names", "optimizer", "generators", "extra")}
    return {"parameters": deployed(state), **kept, "algorithm": _of_the_run([state])}


def pooled(workers: Sequence[Mapping[str, Tensor]], policy: views.BatchNormPolicy, where: str) -> dict[str, Tensor]:
    """Tensors by name, pooled over the workers as the consensus model has them; one name at a time is in memory."""
    found = {}
    for name, first in workers[0].items():
        for one in workers:
            if name not in one or one[name].shape != first.shape or one[name].dtype != first.dtype:
                raise AlgorithmError(f"{where}: the workers do not hold the same model: {name!r} differs between them")
        rows = torch.stack([one[name] for one in (workers if policy == "average" else workers[:1])])
        found[name] = views.pooled({name: rows}, policy, {})[name].clone()
    return found


def _check_facts(found: Checkpoint, expect: Mapping[str, Any], may_differ: Collection[str]) -> None:
    for key, value in expect.items():
        if key in found.facts and key not in may_differ and found.facts[key] != value:
            raise AlgorithmError(
                f"{found.path} was saved with {key} {found.facts[key]!r}, this run has {value!r}: give it the same, or "
                f"say may_differ=[{key!r}]"
            )


def _check_size(found: Checkpoint, able: Sequence[int], size: int, resume: Resume) -> None:
    """Refuses what `resume` does not cover, with what does."""
    lost = sorted(set(range(found.size)) - set(able))
    what = f"{found.path} holds {len(able)} workers" + (f" of {found.size} (lost or isolated: {lost})" if lost else "")
    average = f"resume='average' (all {size} start at the average of the {len(able)}, without memory)"
    subset = "resume='subset' (the first of them go on, each with its own model and optimizer)"
    if not able:
        raise AlgorithmError(f"{what}: there is nothing to go on from; take an earlier checkpoint")
    if resume == "subset" and size > len(able):
        raise AlgorithmError(f"{what}, and resume='subset' is for fewer, not for {size}: say {average}")
    if resume == "exact" and size > len(able):
        other = f"start {found.size} workers again" if not lost else f"start at most {len(able)} with {subset}"
        raise AlgorithmError(f"{what}, but there are {size} now: say {average}, or {other}")
    if resume == "exact":
        raise AlgorithmError(f"{what}, but there are {size} now: say {average}, or {subset}")


def _options(memories: Sequence[Any]) -> Any:
    """The options of the optimizers' groups where all workers have the same ones; no memory."""
    if all(isinstance(one, Mapping) and "param_groups" in one for one in memories):
        groups = _agreed([one["param_groups"] for one in memories])
        return None if groups is None else {"param_groups": groups}
    return None


def _of_the_run(states: Sequence[State]) -> dict[str, Tensor]:
    """What of the algorithm's memory is one number, the same for all, and no weight of a biased model."""
    biased = any(
        not torch.equal(value, state["parameters"][name])
        for state in states
        for name, value in (state.get("deployed") or {}).items()
    )
    fields = [state.get("algorithm") or {} for state in states]
    columns = sum(p.numel() for p in states[0]["parameters"].values())
    if biased or columns == 1:
        return {}
    return {
        name: value.clone()
        for name, value in fields[0].items()
        if isinstance(value, Tensor) and value.numel() == 1 and _agreed([own.get(name) for own in fields]) is not None
    }


def _shared(extras: Sequence[Any]) -> Any:
    """What all have; of dictionaries the entries that all have."""
    first = extras[0]
    if not all(isinstance(extra, Mapping) for extra in extras):
        return _agreed(extras)
    kept = {key: _agreed([extra.get(key) for extra in extras]) for key in first}
    return {key: value for key, value in kept.items() if value is not None}


def _agreed(nests: Sequence[Any]) -> Any:
    """What all have, or `None`."""
    return nests[0] if all(_same(nests[0], other) for other in nests[1:]) else None


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and a == b
