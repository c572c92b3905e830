r"""A loss split at the model's output, $\ell = c(z(\theta))$, for any `loss(model, batch)`.

The loss is run twice with a stand-in for the model. The first stand-in calls the model and keeps what it returns; the
second calls nothing and returns the kept outputs as free variables, with the random state the model left. So z holds
the floating-point tensors of all calls in order (a loss may call the model several times), and c is the rest of the
loss. What the loss reads of the parameters without calling the model (a penalty on weights) is no function of z: it is
reported in `aside`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from dissensus.probes.errors import ProbeError
from dissensus.probes.landscape import Landscape


@dataclass(frozen=True)
class Call:
    """One call of the model: what went in, and what came out."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: list[Any]
    spec: Any
    moving: tuple[int, ...]
    """Which leaves of the output depend on the parameters."""
    random: Tensor
    """The random state after the call."""


@dataclass(frozen=True)
class Split:
    """z(theta) with its graph, and c(z) with its own."""

    calls: tuple[Call, ...]
    outputs: tuple[Tensor, ...]
    """z, as functions of the flat vector."""
    free: tuple[Tensor, ...]
    """The same values as leaves."""
    loss: Tensor
    """c, as a function of `free`."""
    aside: bool
    """Whether the loss reads the parameters other than through the outputs."""


class StandIn:
    """Looks like the model to a loss; what happens when it is called is up to `answer`."""

    def __init__(self, model: nn.Module, answer: Any) -> None:
        self.__dict__["_model"], self.__dict__["_answer"] = model, answer

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        return type(self.__dict__["_model"])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What `answer` makes of the model and the arguments."""
        return self.__dict__["_answer"](self.__dict__["_model"], args, kwargs)

    forward = __call__

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_model"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_model"], name, value)

    def __getitem__(self, index: Any) -> Any:
        return self.__dict__["_model"][index]

    def __len__(self) -> int:
        return len(self.__dict__["_model"])

    def __iter__(self) -> Any:
        return iter(self.__dict__["_model"])


def split(landscape: Landscape, batch: Any, flat: Tensor, index: int = 0) -> Split:
    """Splits the loss of a batch at the outputs of the model. Call it inside `scope()`."""
    calls: list[Call] = []

    def record(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        made = model(*args, **kwargs)
        leaves, spec = tree_flatten(made)
        moving = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.requires_grad)
        calls.append(Call(args, kwargs, leaves, spec, moving, torch.get_rng_state()))
        return made

    whole = landscape.on(batch, flat, lambda model: StandIn(model, record), seed=index)
    outputs = tuple(call.leaves[i] for call in calls for i in call.moving)
    if not outputs:
        what = (
            "never calls model(...)" if not calls else "gets no tensor from model(...) that depends on the parameters"
        )
        raise ProbeError(
            f"the loss cannot be split at the model's output: it {what}; let loss(model, batch) call model(...) and "
            "work on the tensors it returns"
        )
    if any(output.dtype != outputs[0].dtype for output in outputs):
        found = ", ".join(sorted({str(output.dtype) for output in outputs}))
        raise ProbeError(f"the model returns tensors of several dtypes ({found}); cast them to one")
    free = tuple(output.detach().clone().requires_grad_() for output in outputs)
    ready, left = iter(free), iter(calls)

    def play(_: nn.Module, __: tuple[Any, ...], ___: dict[str, Any]) -> Any:
        call = next(left)
        leaves = [next(ready) if i in call.moving else leaf for i, leaf in enumerate(call.leaves)]
        torch.set_rng_state(call.random)
        return tree_unflatten(leaves, call.spec)

    reading = flat.detach().clone().requires_grad_()
    loss = landscape.on(batch, reading, lambda model: StandIn(model, play), seed=index)
    distance = float((loss - whole).detach().abs())
    if distance > 100 * torch.finfo(whole.dtype).eps * float(whole.detach().abs()):
        raise ProbeError(
            "the loss cannot be split at the model's output: on the outputs of the model it is "
            f"{float(loss.detach()):.9g}, with the model {float(whole.detach()):.9g}"
        )
    if not loss.requires_grad:
        raise ProbeError("the loss does not depend on what model(...) returns; use it without detach or .item()")
    (aside,) = torch.autograd.grad(loss, reading, retain_graph=True, create_graph=True, allow_unused=True)
    return Split(tuple(calls), outputs, free, loss, aside is not None)
