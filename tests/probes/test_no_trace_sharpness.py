"""Sharpness, slices and heterogeneity leave model, gradients, buffers, flags, hooks and random states as they were."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dissensus.probes import Curvature
from dissensus.probes.heterogeneity import heterogeneity
from dissensus.probes.modes import curvature_by_mode
from dissensus.probes.sharpness import sharpness
from dissensus.probes.slices import loss_slice
from dissensus.theory import topology


def loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def scene():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.3), nn.ReLU(), nn.Linear(5, 3))
    model.register_forward_hook(lambda *_: None)
    batches = [(torch.randn(8, 4), torch.randint(0, 3, (8,))) for _ in range(4)]
    loss(model, batches[0]).backward()
    model[2].eval()
    d = sum(p.numel() for p in model.parameters())
    return model, batches, 0.1 * torch.randn(4, d)


LOOKS = {
    "sharpness": lambda m, b, x, mode: sharpness(m, loss, b, x=x, m=4, steps=3, mode=mode, rtol=1.0, max_samples=12),
    "slice": lambda m, b, x, mode: loss_slice(m, loss, b, 2, points=3, workers=x, mode=mode),
    "heterogeneity": lambda m, b, x, mode: heterogeneity(m, loss, [b[:2], b[2:]], mode=mode),
    "modes": lambda m, b, x, mode: curvature_by_mode(Curvature(m, loss, b, mode=mode), x, topology("ring", 4)),
}


def seen(model: nn.Module):
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    gradients = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    flags = [(m.training, list(m._forward_hooks)) for m in model.modules()]
    return {n: t.detach().clone() for n, t in tensors.items()}, {n: id(t) for n, t in tensors.items()}, gradients, flags


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("look", LOOKS)
def test_nothing_is_left_behind(look, mode):
    model, batches, x = scene()
    kept, before = copy.deepcopy(batches), seen(model)
    legacy: Any = np.random.get_state()  # noqa: NPY002
    state = torch.get_rng_state(), random.getstate(), legacy[1].copy()
    LOOKS[look](model, batches, x, mode)
    after = seen(model)
    for name, value in before[0].items():
        assert torch.equal(value, after[0][name]), name
        assert before[1][name] == after[1][name], name
    for name, value in before[2].items():
        now = after[2][name]
        assert value is now or (value is not None and now is not None and torch.equal(value, now)), name
    assert before[3] == after[3]
    assert torch.equal(torch.get_rng_state(), state[0])
    assert random.getstate() == state[1]
    legacy = np.random.get_state()  # noqa: NPY002
    assert (legacy[1] == state[2]).all()
    for one, other in zip(kept, batches, strict=True):
        assert torch.equal(one[0], other[0])


@pytest.mark.parametrize("look", LOOKS)
def test_the_callers_modes_do_not_reach_in(look):
    def numbers():
        model, batches, x = scene()
        return LOOKS[look], model, batches, x

    read, *given = numbers()
    plain = str(read(*given, "eval"))
    read, *given = numbers()
    with torch.no_grad():
        assert str(read(*given, "eval")) == plain
