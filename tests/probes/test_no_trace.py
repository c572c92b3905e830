"""Whatever is public leaves no trace: swept by discovery, so that a new probe is under this law from its first day."""

from __future__ import annotations

import copy
import inspect
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dissensus.probes as probes
from dissensus.probes import Curvature, ProbeError
from dissensus.probes.fisher import Fisher
from dissensus.probes.gauss_newton import GaussNewton
from dissensus.probes.gauss_newton_trace import gauss_newton_layer_traces, gauss_newton_trace


def points(model, n=3):
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    return flat + 0.1 * torch.randn(n, len(flat), generator=torch.Generator().manual_seed(2), dtype=flat.dtype)


def even(batches):
    size = min(len(b[0]) if isinstance(b, tuple) else len(b) for b in batches)
    return [tuple(t[:size] for t in b) if isinstance(b, tuple) else b[:size] for b in batches]


USES = {
    "Curvature": lambda m, f, b, mode: [
        Curvature(m, f, b, mode=mode).dense(),
        Curvature(m, f, b, mode=mode).gradient(),
    ],
    "fastest_block": lambda m, f, b, mode: probes.fastest_block(Curvature(m, f, b, mode=mode), (1, 2), 1) and None,
    "hessian_trace": lambda m, f, b, mode: (
        probes.hessian_trace(Curvature(m, f, b, mode=mode), max_matvecs=40, method="deflated").value
    ),
    "layer_traces": lambda m, f, b, mode: _layers(Curvature(m, f, b, mode=mode)),
    "top_eigenvalues": lambda m, f, b, mode: probes.top_eigenvalues(Curvature(m, f, b, mode=mode), 2)[0].vector,
    "alignment": lambda m, f, b, mode: (
        probes.alignment(Curvature(m, f, b, mode=mode), points(m), max_matvecs=40).rayleigh
    ),
    "captured": lambda m, f, b, mode: probes.captured(points(m), torch.eye(points(m).shape[1])[:2]),
    "covariance_envelope": lambda m, f, b, mode: (
        probes.covariance_envelope(Curvature(m, f, b, mode=mode), points(m)).value
    ),
    "envelope": lambda m, f, b, mode: probes.envelope(m, f, b, points(m), mode=mode).value,
    "noise_measure": lambda m, f, b, mode: torch.tensor(
        probes.noise_measure(m, f, even(b), batches=b, mode=mode, steps=3).weights
    ),
    "consensus_distance": lambda m, f, b, mode: probes.consensus_distance(points(m)).xi,
    "by_parameter": lambda m, f, b, mode: probes.by_parameter(points(m), m) and None,
    "norm_dispersion": lambda m, f, b, mode: probes.norm_dispersion(points(m), m) and None,
    "dispersion": lambda m, f, b, mode: probes.dispersion([1.0, 2.0]).gini,
}
OPERATORS = {
    "GaussNewton": lambda m, f, b, mode: GaussNewton(m, f, b, mode=mode).dense(),
    "Fisher": lambda m, f, b, mode: _unless(ProbeError, lambda: Fisher(m, f, b, mode=mode).dense()),
    "gauss_newton_trace": lambda m, f, b, mode: _unless(
        ProbeError, lambda: gauss_newton_trace(GaussNewton(m, f, b, mode=mode)).value
    ),
    "gauss_newton_layer_traces": lambda m, f, b, mode: _unless(
        ProbeError, lambda: [t.value for t in gauss_newton_layer_traces(GaussNewton(m, f, b, mode=mode)).values()]
    ),
    **{
        f"Curvature, {route}": lambda m, f, b, mode, route=route: Curvature(m, f, b, mode=mode, route=route).matvec(
            torch.ones(1, sum(p.numel() for p in m.parameters() if p.requires_grad)).to(next(m.parameters()))
        )
        for route in ("double-backward", "forward-over-reverse", "finite-difference")
    },
}
VALUES = {
    "AcrossRanks",
    "Alignment",
    "Difference",
    "Disagreement",
    "Dispersion",
    "Eigenpair",
    "Estimate",
    "Matrix",
    "NoiseMeasure",
    "Operator",
    "ProbeError",
}


def _unless(error, run):
    """What a probe returns or says: neither may leave a trace."""
    try:
        return run()
    except error as refused:
        return str(refused)


def _layers(op):
    found = probes.layer_traces(op, {k: s.numel() for k, s in op.landscape.shapes.items()}, probes=4)
    return [made.value for made in found.values()]


def fingerprint(model):
    """Everything that must be the same, bits and identities."""
    modules = list(model.modules())
    legacy: Any = np.random.get_state()  # noqa: NPY002
    return {
        "state": {k: t.clone() for k, t in model.state_dict().items()},
        "identities": [id(t) for t in [*model.parameters(), *model.buffers()]],
        "versions": [t._version for t in [*model.parameters(), *model.buffers()]],
        "grads": [None if p.grad is None else (id(p.grad), p.grad.clone()) for p in model.parameters()],
        "requires": [p.requires_grad for p in model.parameters()],
        "training": [m.training for m in modules],
        "hooks": [{k: list(v.items()) for k, v in vars(m).items() if k.endswith("_hooks")} for m in modules],
        "attributes": [{k: id(v) for k, v in vars(m).items()} for m in modules],
        "torch": torch.get_rng_state(),
        "numpy": [str(part) for part in legacy] + [legacy[1].tolist()],
        "python": random.getstate(),
        "modes": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")),
        "attention": (torch.backends.mha.get_fastpath_enabled(), torch.backends.cuda.flash_sdp_enabled()),
    }


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def stirred(model):
    """A model in the middle of things: gradients on some parameters, mixed training flags, hooks in an order."""
    parameters = list(model.parameters())
    parameters[0].grad = torch.ones_like(parameters[0])
    modules = list(model.modules())
    for i, module in enumerate(modules):
        module.training = i % 2 == 0
    modules[-1].register_forward_hook(lambda m, i, o: None)
    modules[-1].register_forward_pre_hook(lambda m, i: None)
    parameters[-1].register_hook(lambda g: g) if parameters[-1].requires_grad else None
    return model


def test_every_public_name_is_swept():
    public = {name for name in probes.__all__ if not name.startswith("_")}
    assert set(USES) <= public <= set(USES) | set(OPERATORS) | VALUES
    assert all(inspect.getdoc(getattr(probes, name)) for name in public)


@pytest.mark.parametrize("use", sorted({**USES, **OPERATORS}))
@pytest.mark.parametrize(
    "name", ["batch norm in train", "dropout in train", "encoder layer", "tied weights", "frozen layer"]
)
def test_no_trace_and_same_bits_again(use, name, scenes):
    build, loss, batches, mode = scenes[name]
    torch.manual_seed(3)
    model = stirred(build().double())
    data = copy.deepcopy(batches)
    before = fingerprint(model)
    first = {**USES, **OPERATORS}[use](model, loss, batches, mode)
    after = fingerprint(model)
    assert [key for key in before if not same(before[key], after[key])] == []
    assert same(list(batches), list(data))
    torch.manual_seed(99)  # the caller's random state has no say
    assert same(first, {**USES, **OPERATORS}[use](model, loss, batches, mode))


@pytest.mark.parametrize("use", sorted({**USES, **OPERATORS}))
@pytest.mark.parametrize(
    "context", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)]
)
def test_the_modes_of_the_caller_have_no_say(use, context, scenes):
    build, loss, batches, mode = scenes["mlp"]
    torch.manual_seed(3)
    model = build()
    batches = [(x.float(), y) for x, y in batches]
    truth = {**USES, **OPERATORS}[use](model, loss, batches, mode)
    with context():
        assert same(truth, {**USES, **OPERATORS}[use](model, loss, batches, mode))


def test_no_trace_after_an_error(scenes):
    build, _, batches, _ = scenes["dropout in train"]
    model = stirred(build().double())
    before = fingerprint(model)

    def broken(m, batch):
        np.random.rand()  # noqa: NPY002
        m(batch[0])
        raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        Curvature(model, broken, batches, mode="train")
    assert [key for key, value in before.items() if not same(value, fingerprint(model)[key])] == []


def test_what_a_loss_does_to_the_model_is_undone(scenes):
    """Losses that flip modes, count calls, hang tensors on modules, or replace buffers."""
    build, loss, batches, _ = scenes["batch norm in train"]
    model = build().double()
    model.calls = 0

    def meddling(m, batch):
        m.eval()
        m.calls += 1
        m.last = m(batch[0])
        m[1].running_mean = torch.zeros(4, dtype=torch.float64)
        random.random()
        return loss(m, batch)

    before = fingerprint(model)
    Curvature(model, meddling, batches).dense()
    assert [key for key, value in before.items() if not same(value, fingerprint(model)[key])] == []
    assert not hasattr(model, "last")


def test_training_with_probes_is_training_without(scenes):
    build, loss, batches, _ = scenes["batch norm in train"]

    def train(probed):
        torch.manual_seed(0)
        model = nn.Sequential(*build(), nn.Dropout(0.3)).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(6):
            if probed:
                probes.top_eigenvalues(Curvature(model, loss, batches), 1)
                probes.envelope(model, loss, batches, points(model))
            optimizer.zero_grad()
            loss(model, batches[step % 2]).backward()
            optimizer.step()
        return model.state_dict()

    assert same(dict(train(False)), dict(train(True)))


def test_probe_errors_are_value_errors():
    assert issubclass(ProbeError, ValueError)
