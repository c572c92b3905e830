"""The exact routes to a product with the Hessian of one batch, and the check some of them need (see `curvature`)."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dissensus.probes.errors import ProbeError
from dissensus.probes.landscape import Landscape

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Built:
    """A product (block (k, d) -> block) for one batch, and what it took."""

    product: Product
    bytes: int
    """What keeping it holds in memory, at most."""
    route: str = ""
    reason: str = ""


def build(landscape: Landscape, index: int, route: str, block: int) -> Built:
    """The product of one batch by the wanted route, or by the first one where that fails. Call it inside `scope()`."""
    try:
        built = ROUTES[route](landscape, index)
        trial = torch.randn(
            (min(2, block), landscape.size), generator=torch.Generator().manual_seed(0), dtype=landscape.point.dtype
        ).to(landscape.point.device)
        result = built.product(trial)
        if route != FIRST:
            _agree(result, _double_backward(landscape, index).product(trial))
        return Built(built.product, built.bytes, route)
    except Exception as failure:
        reason = f"{route}: {type(failure).__name__}: {(str(failure).splitlines() or [''])[0]}"
        if route == FIRST:
            raise ProbeError(
                f"the loss cannot be differentiated twice on batch {index} ({reason}); look for a custom "
                "autograd.Function without a second derivative, or for a fused kernel"
            ) from failure
    built = build(landscape, index, FIRST, block)
    return Built(built.product, built.bytes, built.route, reason)


def _double_backward(landscape: Landscape, index: int) -> Built:
    leaf = landscape.point.clone().requires_grad_()
    (slope,) = torch.autograd.grad(
        landscape.at(index, leaf), leaf, create_graph=True, allow_unused=True, materialize_grads=True
    )
    nodes = _graph(slope)
    if any(node.name() == "torch::autograd::Error" for node in nodes):
        # autograd would leave this part of the Hessian out, without an error
        raise ProbeError("a backward pass is marked once_differentiable")

    def back(v: Tensor, *, batched: bool = False) -> Tensor:
        (row,) = torch.autograd.grad(
            slope, leaf, v, retain_graph=True, is_grads_batched=batched, allow_unused=True, materialize_grads=True
        )
        return row

    together = True

    def product(block: Tensor) -> Tensor:
        nonlocal together
        if not slope.requires_grad:  # the loss is linear in the parameters
            return torch.zeros_like(block)
        if together and len(block) > 1:
            try:
                return back(block, batched=True)
            except RuntimeError:  # a backward that cannot be batched
                together = False
        return torch.stack([back(v) for v in block])

    return Built(product, _saved(nodes))


def _linearized(landscape: Landscape, index: int) -> Built:
    gradient = torch.func.grad(lambda flat: landscape.at(index, flat))
    with warnings.catch_warnings():  # torch warns about its own insides here
        warnings.simplefilter("ignore")
        _, push = torch.func.linearize(gradient, landscape.point)
    graphs = [c.cell_contents for c in push.__closure__ or () if isinstance(c.cell_contents, nn.Module)]
    held = {id(t): t.numel() * t.element_size() for graph in graphs for t in _checked(graph)}
    return Built(_rows(push), sum(held.values()))


def _forward_over_reverse(landscape: Landscape, index: int) -> Built:
    gradient = torch.func.grad(lambda flat: landscape.at(index, flat))

    def push(v: Tensor) -> Tensor:
        return torch.func.jvp(gradient, (landscape.point,), (v,))[1]

    def product(block: Tensor) -> Tensor:
        with landscape.scope(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _rows(push)(block)

    return Built(product, 0)


FIRST = "double-backward"
ROUTES: dict[str, Callable[[Landscape, int], Built]] = {
    FIRST: _double_backward,
    "linearized": _linearized,
    "forward-over-reverse": _forward_over_reverse,
}


def _agree(result: Tensor, truth: Tensor) -> None:
    """Half the digits must agree: rounding stays far below, a wrong program far above."""
    distance, scale = float((result - truth).norm()), float(truth.norm())
    if not distance <= torch.finfo(truth.dtype).eps ** 0.5 * scale:
        raise ProbeError(f"its product is {distance / max(scale, 1e-300):.2g} away from the double-backward one")


def _fresh(node: Any) -> bool:
    """Whether a traced tensor is made anew in every run, and not a view of a constant or of the input."""
    while node.op == "call_function":
        aliases = isinstance(node.target, torch._ops.OpOverload) and any(
            made.alias_info is not None for made in node.target._schema.returns
        )
        if not aliases and node.target is not operator.getitem:
            return True
        node = node.args[0]
    return False


def _graph(slope: Tensor) -> list[Any]:
    """All nodes behind a gradient."""
    seen, open_ends = set(), [slope.grad_fn]
    while open_ends:
        node = open_ends.pop()
        if node is not None and node not in seen:
            seen.add(node)
            open_ends += [parent for parent, _ in node.next_functions]
    return list(seen)


def _saved(nodes: list[Any]) -> int:
    """The bytes of the tensors that a graph keeps, every storage once."""
    storages = {}
    for node in nodes:
        for name in dir(node):
            kept = getattr(node, name) if name.startswith("_saved_") or name == "saved_tensors" else None
            for t in kept if isinstance(kept, (list, tuple)) else [kept]:
                if isinstance(t, Tensor):
                    storages[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
    return sum(storages.values())


def _rows(push: Product) -> Product:
    """A map of vectors as a map of blocks; a block of one goes around `vmap`."""

    def product(block: Tensor) -> Tensor:
        out = push(block[0])[None] if len(block) == 1 else torch.vmap(push, randomness="same")(block)
        return out.detach()

    return product


def _checked(traced: nn.Module) -> list[Tensor]:
    """Refuses a traced program that writes to its constants or draws random numbers; returns the constants it keeps.

    Views become copies where needed: batching changes the strides they were traced with.
    """
    held: list[Tensor] = []
    for part in traced.modules():
        held += [*part.parameters(recurse=False), *part.buffers(recurse=False)]
        held += [t for t in vars(part).values() if isinstance(t, Tensor)]
        if not isinstance(part, torch.fx.GraphModule):
            continue
        for node in part.graph.nodes:
            call: Any = node.target
            if not isinstance(call, torch._ops.OpOverload):
                continue
            overwrites = call._schema.is_mutable and not _fresh(node.args[0])
            if overwrites or torch.Tag.nondeterministic_seeded in call.tags:
                raise ProbeError(f"the traced program is not a pure function: it calls {call}")
            if call in (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default):
                node.target = torch.ops.aten.reshape.default
        part.recompile()
    return held
