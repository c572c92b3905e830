r"""The gradient of a batch recorded as a straight program, and its derivative along blocks of vectors.

The gradient $\nabla\ell$ is computed once while every operation below autograd is written down, with what it read and
made. $Hv$ is the derivative of that program along v: operation after operation, a linear map of tangents whose
coefficients are the recorded numbers (see `tangents`). So nothing of the gradient is computed again, a block of vectors
is one more dimension of ordinary tensor operations, and what does not depend on the parameters costs nothing.

It is forward over reverse, with the arithmetic of a double backward, but without autograd's graph, and the operations
may be merged: where one factor of a product is the same for all vectors, the block is one larger product.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from dissensus.probes.batch_sum import OVERWRITTEN
from dissensus.probes.errors import ProbeError

aten = torch.ops.aten
Tangents = list[Any]
Push = Callable[[Tangents], Any]
Key = tuple[Any, ...]

LINEAR_IN: dict[Any, tuple[int, ...]] = {
    aten.nll_loss_backward.default: (0,),
    aten.threshold_backward.default: (0,),
    aten.max_pool2d_with_indices_backward.default: (0,),
    aten.embedding_dense_backward.default: (0,),
    aten.native_dropout_backward.default: (0,),
    **dict.fromkeys(
        (
            aten.empty_like.default,
            aten.zeros_like.default,
            aten.ones_like.default,
            aten.full_like.default,
            aten.new_empty.default,
            aten.new_zeros.default,
            aten.new_ones.default,
            aten.new_full.default,
            aten.new_empty_strided.default,
        ),
        (),
    ),
}
"""Operations that read other arguments only for a shape or a sign."""

PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default)
"""Operations whose last two arguments' tangents make a tensor that is nobody else's."""

_SPELT_OUT = get_decompositions([aten.native_group_norm, aten.native_group_norm_backward])
"""Operations without a forward derivative, recorded as the arithmetic they stand for."""


@dataclass
class Recorded:
    """One operation with a moving argument: what it read and made, and the slots of what moves."""

    call: Any
    args: list[Any]
    kwargs: dict[str, Any]
    made: Any
    into: list[Any]
    """The slots of the arguments: a number, None for what stands still, a list for a list of tensors."""
    out: list[int | None]
    own: frozenset[int] = frozenset()
    """Arguments whose tangents nobody else reads, now or later: they may be written over."""


class Program:
    """The recorded gradient as a map of blocks of vectors (k, d) to blocks of Hessian products."""

    def __init__(
        self, operations: list[Recorded], start: int, end: int | None, rule: Callable[[Recorded], Push]
    ) -> None:
        needed, steps = {end}, []
        for operation in reversed(operations):
            if needed.intersection(slot for slot in operation.out if slot is not None):
                steps.append(operation)
                needed.update(slot for slot in tree_flatten(operation.into)[0] if slot is not None)
        steps.reverse()
        last, readers = dict[int, int](), Counter[int]()
        for at, operation in enumerate(steps):
            slots = [slot for slot in tree_flatten(operation.into)[0] if slot is not None]
            last.update(dict.fromkeys(slots, at))
            readers.update(slots)
        fresh = {s for step in steps if step.call in PRODUCTS and step.into[-2:] != [None, None] for s in step.out}
        fresh = {slot for slot in fresh if readers[slot] == 1}
        for step in steps:
            step.own = frozenset(i for i, slot in enumerate(step.into) if not isinstance(slot, list) and slot in fresh)
        self._start, self._end = start, end
        self._steps = [
            (rule(operation), operation.into, operation.out, [slot for slot, when in last.items() if when == at])
            for at, operation in enumerate(steps)
        ]
        self._joined = _widths(steps[-1]) if steps else []
        """The lengths of what the gradient is joined from, if that is the last step."""
        self.bytes = _held(steps)
        """What the recorded numbers take, at most."""
        still = [t for step in steps for t in tree_flatten(step.args)[0] if isinstance(t, Tensor)]
        self._versions = [(t, t._version) for t in {id(t): t for t in still}.values() if not t.is_inference()]

    @torch.no_grad()
    def __call__(self, block: Tensor) -> Tensor:
        """The derivative of the gradient along every row."""
        made = self.pieces(block)
        return made[0] if len(made) == 1 else torch.cat(made, 1)

    @torch.no_grad()
    def pieces(self, block: Tensor) -> list[Tensor]:
        """The same in its columns, side by side: a gradient is mostly joined from parameters, and need not be here."""
        if self._end is None:
            return [torch.zeros_like(block)]
        if any(t._version != version for t, version in self._versions):
            raise ProbeError(OVERWRITTEN)
        values: dict[int, Any] = {self._start: block}
        for push, into, out, done in self._steps[: -1 if self._joined else None]:
            made = push([_found(values, slot) for slot in into])
            if len(out) == 1:
                values[out[0]] = made  # type: ignore[index]
            else:
                values.update({slot: t for slot, t in zip(out, made, strict=True) if slot is not None})
            for slot in done:
                if slot != self._end:
                    del values[slot]
        if not self._joined:
            return [values[self._end].reshape(block.shape)]
        parts = zip(_found(values, self._steps[-1][1][0]), self._joined, strict=True)
        return [block.new_zeros(len(block), width) if part is None else part for part, width in parts]


def record(loss: Callable[[Tensor], Tensor], point: Tensor) -> tuple[list[Recorded], int, int | None]:
    """Runs the gradient of a loss and writes down what moves with the point: the operations, first and last slot."""
    recorder = _Recorder(point.requires_grad_())
    with recorder:
        value = loss(point)
        recorder.backward = True
        (found,) = torch.autograd.grad(value, point, allow_unused=True, materialize_grads=True)
    return recorder.operations, 0, recorder.slots.get(_key(found))


class _Recorder(TorchDispatchMode):
    """Writes down every operation that reads something that moves."""

    def __init__(self, point: Tensor) -> None:
        super().__init__()
        self.operations: list[Recorded] = []
        self.slots: dict[Key, int] = {_key(point): 0}
        self.backward = False
        """Whether the backward pass has begun."""
        self._count = 0
        self._point = point
        self._alive: list[Any] = [point]  # an address says what is there as long as nothing is freed
        self._patched: set[int] = set()
        self._seen = {point.untyped_storage().data_ptr()}
        self._spelling = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._passes(func, args)
        if func._schema.is_mutable:
            return self._in_place(func, args, kwargs)
        if func in _SPELT_OUT and any(self._slot(arg) is not None for arg in args):
            self._spelling = True
            with self:
                made = _SPELT_OUT[func](*args, **kwargs)
            self._spelling = False
            return made
        made = func(*args, **kwargs)
        self._see(args, kwargs, made)
        self._write(func, args, kwargs, made)
        return made

    def _write(self, func: Any, args: Any, kwargs: dict[str, Any], made: Any) -> None:
        reads = LINEAR_IN.get(func)
        into = [self._slot(arg) if reads is None or i in reads else None for i, arg in enumerate(args)]
        if all(slot is None for slot in tree_flatten(into, is_leaf=lambda s: s is None)[0]):
            return
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise ProbeError(f"it draws random numbers: {func}")
        if any(self._slot(value) is not None for value in kwargs.values()):
            raise ProbeError(f"it passes a moving tensor by name to {func}")
        results = list(made) if isinstance(made, (list, tuple)) else [made]
        out: list[int | None] = []
        for result in results:
            moves = isinstance(result, Tensor) and result.is_floating_point() and result.numel() > 0
            moves = moves and not (func is aten.nll_loss_forward.default and len(out) == 1)  # the sum of weights
            if isinstance(result, Tensor) and (result.is_complex() or (moves and result.dtype != self._point.dtype)):
                raise ProbeError(f"it goes through {result.dtype} numbers: {func}")
            self._count += moves
            out.append(self._count if moves else None)
            if moves:
                self.slots[_key(result)] = self._count
        self.operations.append(Recorded(func, list(args), kwargs, made, into, out))

    def _passes(self, func: Any, args: Any) -> None:
        """Refuses what moves but has no derivative for autograd, and what comes into the backward pass unseen."""
        if self._spelling or func is aten.detach.default:  # autograd keeps results so
            return
        for arg in tree_flatten(args)[0]:
            if not isinstance(arg, Tensor):
                continue
            if self.backward:
                if arg.is_floating_point() and arg.numel() and arg.untyped_storage().data_ptr() not in self._seen:
                    raise ProbeError(f"its backward pass reads what no operation made (checkpoints): {func}")
            elif torch.is_grad_enabled() and arg.is_leaf and arg is not self._point and self._slot(arg) is not None:
                raise ProbeError(f"it holds back a derivative before {func}")

    def _see(self, *values: Any) -> None:
        """Keeps tensors alive, and in mind."""
        self._alive.append(values)
        self._seen.update(t.untyped_storage().data_ptr() for t in tree_flatten(values)[0] if isinstance(t, Tensor))

    def _slot(self, arg: Any) -> Any:
        if isinstance(arg, Tensor):
            slot = self.slots.get(key := _key(arg))
            if slot is None and key[1] in self._patched:
                raise ProbeError("it reads through another view what was written in place")
            return slot
        if isinstance(arg, (list, tuple)) and any(isinstance(t, Tensor) for t in arg):
            slots = [self._slot(t) for t in arg]
            return None if all(slot is None for slot in slots) else slots
        return None

    def _in_place(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """What was read before is copied, and the operation is written down as the one that makes a new tensor."""
        written = [
            args[i]
            for i, argument in enumerate(func._schema.arguments[: len(args)])
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        written += [value for name, value in kwargs.items() if isinstance(value, Tensor) and name.startswith("out")]
        places = {t.untyped_storage().data_ptr() for t in written if isinstance(t, Tensor)}
        for operation in self.operations:
            operation.args = [_copied(arg, places) for arg in operation.args]
            operation.made = _copied(operation.made, places)
        moving = any(slot is not None for slot in tree_flatten([self._slot(arg) for arg in args])[0])
        if not moving:
            made = func(*args, **kwargs)
            self._see(args, kwargs, made)
            return made
        name = func._schema.name.split("::")[-1]
        if not name.endswith("_") or len(written) != 1 or not isinstance(written[0], Tensor):
            raise ProbeError(f"it writes in place: {func}")
        target, plain = written[0], getattr(getattr(torch.ops.aten, name[:-1], None), func._overloadname, None)
        aliases = [key for key in self.slots if key[1] in places and key != _key(target)]
        if plain is None or aliases:
            raise ProbeError(f"it writes in place into a part of a tensor: {func}")
        before = [arg.clone() if arg is target else arg for arg in args]
        self.slots.update(
            {_key(b): s for b, a in zip(before, args, strict=True) if (s := self._slot(a)) is not None and b is not a}
        )
        made = func(*args, **kwargs)
        self._see(args, before, made)
        self._write(plain, before, kwargs, made)
        self._patched.update(places)
        return made


def _key(t: Any) -> Key:
    """Where a tensor lies and how it reads what is there: the same for all that see the same numbers."""
    return (t.data_ptr(), t.untyped_storage().data_ptr(), t.dtype, tuple(t.shape), t.stride())


def _copied(value: Any, places: set[int]) -> Any:
    if isinstance(value, Tensor):
        return copy.copy(value).clone() if value.untyped_storage().data_ptr() in places else value
    if isinstance(value, (list, tuple)):
        return [_copied(part, places) for part in value]
    return value


def _found(values: dict[int, Any], slot: Any) -> Any:
    if slot is None:
        return None
    return [_found(values, part) for part in slot] if isinstance(slot, list) else values[slot]


def _widths(last: Recorded) -> list[int]:
    rows = last.call is aten.cat.default and isinstance(last.made, Tensor) and last.made.dim() == 1
    return [part.numel() for part in last.args[0]] if rows else []


def _held(steps: Sequence[Recorded]) -> int:
    storages = {}
    for step in steps:
        for t in tree_flatten((step.args, step.made))[0]:
            if isinstance(t, Tensor):
                storages[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
    return 2 * sum(storages.values())  # the coefficients are as many again, at most
