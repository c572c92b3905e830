"""Look without touching: everything a loss may disturb is put back, to the bit, when the look is over.

Inside, the model is in the stated mode, attention runs on torch's mathematical kernel and compiled modules run eagerly
(only these can be differentiated twice), checkpointed functions are called plainly, and autocast, no-grad and inference
modes of the caller do not reach in.
Parameters and gradients need no restoring: the loss is evaluated on copies (see `landscape`).
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

Mode = Literal["eval", "train"]


@contextlib.contextmanager
def untouched(model: nn.Module, mode: Mode) -> Iterator[None]:
    """The model in `mode`, and afterwards everything as it was: modules, buffers, flags, random states."""
    with contextlib.ExitStack() as stack:
        stack.callback(_remember_modules(model))
        stack.callback(_remember_randomness())
        fast = torch.backends.mha.get_fastpath_enabled()
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        torch.backends.mha.set_fastpath_enabled(False)
        stack.enter_context(undisturbed())
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(_eager())
        stack.enter_context(_kept())
        model.train(mode == "train")
        yield


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Inside, the caller's inference, no-grad and autocast modes are off."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))  # and with it, gradients on
        stack.enter_context(torch.autocast("cpu", enabled=False))
        if torch.cuda.is_initialized():
            stack.enter_context(torch.autocast("cuda", enabled=False))
        yield


def reseed(seed: int) -> None:
    """Seeds what layers draw from, so that the same look sees the same random numbers."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the global state is what a user's loss may draw from


def _remember_modules(model: nn.Module) -> Callable[[], None]:
    """Returns what puts every module's attributes, parameters, buffers and flags back (by identity)."""
    tables: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for module in model.modules():
        own = vars(module)
        tables.append((own, dict(own)))
        tables.extend((own[key], dict(own[key])) for key in ("_parameters", "_buffers"))

    def restore() -> None:
        for table, before in tables:
            for key in [key for key in table if key not in before]:
                del table[key]
            for key, value in before.items():
                if key not in table or table[key] is not value:
                    table[key] = value

    return restore


def _remember_randomness() -> Callable[[], None]:
    cpu, python, legacy = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def restore() -> None:
        torch.set_rng_state(cpu)
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002
        if cuda:
            torch.cuda.set_rng_state_all(cuda)

    return restore


@contextlib.contextmanager
def _eager() -> Iterator[None]:
    """Compiled functions run as they were written, where torch offers the switch (2.6 on).

    Without its compiler loaded nothing is compiled, and the switch would load it (seconds).
    """
    stance: Any = getattr(torch.compiler, "set_stance", None)
    if stance is None or "torch._dynamo" not in sys.modules:
        yield
        return
    with stance("force_eager"):
        yield


@contextlib.contextmanager
def _kept() -> Iterator[None]:
    """Checkpointed functions are called plainly.

    They would be called again in the backward pass, when the parameters they find are no longer those looked at.
    """
    library: Any = sys.modules.get("torch.utils.checkpoint")
    changed = {
        name: plain
        for name, plain in (("_checkpoint_without_reentrant_generator", _once), ("CheckpointFunction", _Plain))
        if hasattr(library, name)
    }
    before = {name: getattr(library, name) for name in changed}
    try:
        for name, plain in changed.items():
            setattr(library, name, plain)
        yield
    finally:
        for name, own in before.items():
            setattr(library, name, own)


def _once(*_: Any, **__: Any) -> Iterator[None]:
    yield


class _Plain:
    @staticmethod
    def apply(function: Callable[..., Any], _: bool, *args: Any) -> Any:
        return function(*args)
