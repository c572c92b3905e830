"""The exact routes to a product with the Hessian of one batch, and the check some of them need (see `curvature`)."""

from __future__ import annotations

import operator
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from dissensus.probes import tangents_layers, tangents_softmax  # noqa: F401 - they register their rules
from dissensus.probes.batch_sum import Built, Product
from dissensus.probes.errors import ProbeError
from dissensus.probes.graphs import Pullback, nodes_behind, saved_bytes
from dissensus.probes.landscape import Landscape
from dissensus.probes.program import Program, record
from dissensus.probes.tangents import rule_of


def build(landscape: Landscape, index: int, route: str, *, lasting: bool = True) -> Built:
    """The product of one batch by the wanted route, or by the first one where that fails. Call it inside `scope()`.

    What does not last is not worth the setup of a recording.
    """
    if route == DIFFERENCE:
        return _differenced(landscape, index)
    try:
        built = ROUTES[FIRST if route == DEFAULT and not lasting else route](landscape, index)
        if route == FIRST or lasting:
            if route == FIRST:
                built.product(_trials(landscape))
            else:
                _compare(landscape, built.product, _double_backward(landscape, index).product)
        return Built(built.product, built.bytes, route)
    except Exception as failure:
        reason = f"{route}: {type(failure).__name__}: {(str(failure).splitlines() or [''])[0]}"
        if route == FIRST or not lasting:
            raise ProbeError(
                f"the loss cannot be differentiated twice on batch {index} ({reason}); look for a custom "
                "autograd.Function without a second derivative, or for a fused kernel; route='finite-difference' needs "
                "one derivative only"
            ) from failure
    built = build(landscape, index, FIRST)
    return Built(built.product, built.bytes, built.route, reason)


def fastest(landscape: Landscape, index: int, block: int | None) -> tuple[str, int]:
    """The route and the width of a block with the least measured time per vector here and now."""
    best = (float("inf"), FIRST, 1)
    for route in (DEFAULT, FIRST):
        built = build(landscape, index, route)
        for width in WIDTHS if block is None else (block,):
            v = torch.ones(width, landscape.size).to(landscape.point)
            built.product(v)
            begin = time.perf_counter()
            for _ in range(REPEATS):
                built.product(v)
            best = min(best, ((time.perf_counter() - begin) / width, built.route, width))
    return best[1:]


def _double_backward(landscape: Landscape, index: int) -> Built:
    leaf = landscape.point.clone().requires_grad_()
    (slope,) = torch.autograd.grad(
        landscape.at(index, leaf), leaf, create_graph=True, allow_unused=True, materialize_grads=True
    )
    if any(node.name() == "torch::autograd::Error" for node in nodes_behind(slope)):
        # autograd would leave this part of the Hessian out, without an error
        raise ProbeError("a backward pass is marked once_differentiable")
    back = Pullback(slope, leaf)

    def product(block: Tensor) -> Tensor:
        if not slope.requires_grad:  # the loss is linear in the parameters
            return torch.zeros_like(block)
        return back(block)

    return Built(product, saved_bytes(slope))


def _linearized(landscape: Landscape, index: int) -> Built:
    gradient = torch.func.grad(lambda flat: landscape.at(index, flat))
    with warnings.catch_warnings():  # torch warns about its own insides here
        warnings.simplefilter("ignore")
        _, push = torch.func.linearize(gradient, landscape.point)
    graphs = [c.cell_contents for c in push.__closure__ or () if isinstance(c.cell_contents, nn.Module)]
    held = {id(t): t.numel() * t.element_size() for graph in graphs for t in _checked(graph)}
    return Built(_rows(push), sum(held.values()))


def _recorded(landscape: Landscape, index: int) -> Built:
    def loss(flat: Tensor) -> Tensor:
        value = landscape.at(index, flat)
        if any(isinstance(node, BackwardCFunction) for node in nodes_behind(value)):
            raise ProbeError("a custom autograd.Function has a derivative of its own")
        return value

    operations, start, end = record(loss, landscape.point.clone())
    with torch.no_grad():
        program = Program(operations, start, end, rule_of)
    return Built(program, program.bytes)


def _forward_over_reverse(landscape: Landscape, index: int) -> Built:
    gradient = torch.func.grad(lambda flat: landscape.at(index, flat))

    def push(v: Tensor) -> Tensor:
        return torch.func.jvp(gradient, (landscape.point,), (v,))[1]

    def product(block: Tensor) -> Tensor:
        with landscape.scope(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _rows(push)(block)

    return Built(product, 0)


class _Differenced:
    """Central differences of gradients, with the difference to the doubled step as a measure of their error."""

    def __init__(self, landscape: Landscape, index: int) -> None:
        self._landscape, self._index = landscape, index
        self.error = 0.0

    def __call__(self, block: Tensor) -> Tensor:
        point = self._landscape.point
        step = torch.finfo(point.dtype).eps ** (1 / 3) * (1 + float(point.norm()))
        with self._landscape.scope():
            return torch.stack([self._row(v, step) for v in block])

    def _row(self, v: Tensor, step: float) -> Tensor:
        length = float(v.norm())
        if length == 0:
            return torch.zeros_like(v)
        near, far = (self._slope(v / length, h) * length for h in (step, 2 * step))
        error, scale = float((near - far).norm()) / 3, float(near.norm())
        self.error = max(self.error, error / scale if scale else 0.0)
        return near

    def _slope(self, v: Tensor, h: float) -> Tensor:
        rows = []
        for sign in (1, -1):
            leaf = (self._landscape.point + sign * h * v).requires_grad_()
            loss = self._landscape.at(self._index, leaf)
            (row,) = torch.autograd.grad(loss, leaf, allow_unused=True, materialize_grads=True)
            rows.append(row)
        return (rows[0] - rows[1]) / (2 * h)


def _differenced(landscape: Landscape, index: int) -> Built:
    return Built(_Differenced(landscape, index), 0, DIFFERENCE, notes=("products by finite differences: see .error",))


FIRST = "double-backward"
DEFAULT = "recorded"
DIFFERENCE = "finite-difference"
AUTO = "auto"
WIDTHS = (1, 4, 16)
"""Widths of a block that are tried by measurement."""
REPEATS = 3
FLATTEST = 1e-6
"""The least height of a parameter, relative to the steepest, that a trial makes up for."""
ROUNDING = 100
"""Units of rounding of the largest entry that a product may be off anywhere."""
ROUTES: dict[str, Callable[[Landscape, int], Built]] = {
    FIRST: _double_backward,
    "recorded": _recorded,
    "linearized": _linearized,
    "forward-over-reverse": _forward_over_reverse,
}


def _trials(landscape: Landscape) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randn((2, landscape.size), generator=draw, dtype=landscape.point.dtype).to(landscape.point.device)


def _compare(landscape: Landscape, product: Product, truth: Product) -> None:
    """Compares two random products, parameter by parameter.

    In the second vector every parameter weighs as much less as it curves more, so that the steep ones do not hide
    what is wrong with the flat ones. Rounding stays far below the tolerance.
    """
    trials, sizes = _trials(landscape), [shape.numel() for shape in landscape.shapes.values()]
    expected = truth(trials[:1])
    heights = torch.stack([_height(part) for part in expected[0].split(sizes)])
    share = heights / heights.max() if heights.max() > 0 else torch.ones_like(heights)
    flat = share <= torch.finfo(share.dtype).eps ** 0.75  # nothing but rounding, not to be made larger
    factors = torch.where(flat, 1.0, 1 / share.clamp(min=FLATTEST))
    trials[1] *= factors.repeat_interleave(torch.tensor(sizes, device=factors.device))
    expected = torch.cat([expected, truth(trials[1:])])
    for found, row in zip(product(trials), expected, strict=True):
        _agree(found, row, sizes)


def _agree(found: Tensor, truth: Tensor, sizes: list[int]) -> None:
    """Two thirds of the digits must agree in every parameter, as far as rounding allows next to the largest one."""
    eps, whole = torch.finfo(truth.dtype).eps, _height(truth)
    for mine, other in zip(found.split(sizes), truth.split(sizes), strict=True):
        distance, scale = _height(mine - other), _height(other)
        if not distance <= eps ** (2 / 3) * scale + ROUNDING * eps * whole:
            raise ProbeError(
                f"its product is {float(distance / scale.clamp(min=1e-300)):.2g} away from the double-backward one"
            )


def _height(part: Tensor) -> Tensor:
    """The largest entry: unlike a norm, it neither overflows nor vanishes with the scale."""
    return part.abs().max() if part.numel() else part.new_zeros(())


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
