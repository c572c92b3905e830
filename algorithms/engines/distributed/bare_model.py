"""The tensors of a module under the names of the bare model, whatever it is wrapped in, and how they are put back.

`DistributedDataParallel` puts `module.` in front of names and `torch.compile` `_orig_mod.`; a checkpoint knows neither,
so that one written with them can be read without. Kept are all parameters and buffers, the buffers too that a
`state_dict` leaves out, and what modules add to it by themselves (`get_extra_state`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dissensus.algorithms.errors import AlgorithmError
from dissensus.theory.errors import nearest

WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel)


def bare_names(model: nn.Module) -> Callable[[str], str]:
    """A name in the model -> the name in the bare one."""
    paths = [path for path, module in model.named_modules() if isinstance(module, WRAPPERS)]
    inside = {f"{path}.module." if path else "module.": f"{path}." if path else "" for path in paths}

    def bare(name: str) -> str:
        for wrapped in sorted(inside, key=len, reverse=True):
            if name.startswith(wrapped):
                name = inside[wrapped] + name.removeprefix(wrapped)
        return name.replace("_orig_mod.", "")

    return bare


def tensors_of(model: nn.Module) -> dict[str, Any]:
    """Parameters, buffers, the names of the `state_dict` and what is in it besides; tied ones under all their names."""
    bare = bare_names(model)
    parameters = {bare(name): p.detach() for name, p in model.named_parameters(remove_duplicate=False)}
    buffers = {bare(name): b.detach() for name, b in model.named_buffers(remove_duplicate=False)}
    kept = {bare(name): value for name, value in model.state_dict().items()}
    others = {name: value for name, value in kept.items() if name not in parameters and name not in buffers}
    return {"parameters": parameters, "buffers": buffers, "names": list(kept), "others": others}


def fill(model: nn.Module, held: Mapping[str, Tensor], others: Mapping[str, Any], where: str) -> None:
    """Puts parameters and buffers, by bare names, into a model in place; every name and shape must fit."""
    bare, target = bare_names(model), model.state_dict()
    buffers = dict(model.named_buffers(remove_duplicate=False))
    wanted = {**dict(model.named_parameters(remove_duplicate=False)), **buffers}
    for name, value in wanted.items():
        saved = held.get(bare(name))
        if saved is None:
            raise AlgorithmError(f"{where} has no {bare(name)!r}{nearest(bare(name), held)}")
        if saved.shape != value.shape:
            raise AlgorithmError(
                f"{where}: {bare(name)!r} has shape {tuple(saved.shape)}, in the model {tuple(value.shape)}"
            )
    known = {bare(name) for name in wanted}
    strange = next((name for name in held if name not in known), None)
    if strange is not None:
        raise AlgorithmError(f"{where} holds {strange!r}, which the model has not{nearest(strange, known)}")
    for name in target:
        target[name] = {**held, **others}.get(bare(name), target[name])
    model.load_state_dict(target)
    with torch.no_grad():
        for name, buffer in buffers.items():
            if name not in target:
                buffer.copy_(held[bare(name)])
