"""Whatever is public leaves no trace: swept by discovery, so that a new probe is under this law from its first day."""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dissensus.probes as probes
from dissensus.probes import Curvature, Fisher, GaussNewton, ProbeError
from dissensus.theory import topology


def points(model, n=4):
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    return flat + 0.1 * torch.randn(n, len(flat), generator=torch.Generator().manual_seed(2), dtype=flat.dtype)


def even(batches):
    size = min(len(b[0]) if isinstance(b, tuple) else len(b) for b in batches)
    return [tuple(t[:size] for t in b) if isinstance(b, tuple) else b[:size] for b in batches]


def of_hessian(look):
    """A use of a probe that takes an operator."""
    return lambda m, f, b, mode: look(Curvature(m, f, b, mode=mode))


def of_points(look):
    """A use of a probe that takes the workers' parameters."""
    return lambda m, f, b, mode: look(points(m))


def of_gauss_newton(look):
    return lambda m, f, b, mode: _unless(ProbeError, lambda: look(GaussNewton(m, f, b, mode=mode)))


def one_vector(m):
    return torch.ones(1, sum(p.numel() for p in m.parameters() if p.requires_grad)).to(next(m.parameters()))


def watched(m, f, b, mode):
    """The whole way of a look during training, on an engine that stands still."""

    class Standing:
        t = 0

        def consensus(self):
            return contextlib.nullcontext(m)

        worker: Any = None

    looks = {"top": lambda module: probes.top_eigenvalues(Curvature(module, f, b, mode=mode), 1)[0].value}
    lines = probes.Attached(looks, probes.Every(1), record=lambda line: None).after(Standing())
    return [line["value"] for line in lines]


USES = {
    "Attached": watched,
    "Curvature": of_hessian(lambda op: [op.dense(), op.gradient()]),
    "Difference": lambda m, f, b, mode: probes.Difference(
        Curvature(m, f, b, mode=mode), Curvature(m, f, b, mode=mode, route="double-backward")
    ).matvec(one_vector(m)),
    "Fisher": lambda m, f, b, mode: _unless(ProbeError, lambda: Fisher(m, f, b, mode=mode).dense()),
    "GaussNewton": lambda m, f, b, mode: GaussNewton(m, f, b, mode=mode).dense(),
    "alignment": lambda m, f, b, mode: (
        probes.alignment(Curvature(m, f, b, mode=mode), points(m), max_matvecs=40).rayleigh
    ),
    "average_sharpness": lambda m, f, b, mode: (
        probes.average_sharpness(m, f, b, probes.Sphere(0.1), mode=mode, rtol=1.0, max_pairs=12).value
    ),
    "by_mode": of_points(lambda x: [mode.to_dict() for mode in probes.by_mode(x, topology("ring", 4))]),
    "by_parameter": lambda m, f, b, mode: list(probes.by_parameter(points(m), m).items()) and None,
    "captured": of_points(lambda x: probes.captured(x, torch.eye(x.shape[1], dtype=x.dtype)[:2])),
    "consensus_distance": of_points(lambda x: probes.consensus_distance(x).xi),
    "covariance_envelope": lambda m, f, b, mode: (
        probes.covariance_envelope(Curvature(m, f, b, mode=mode), points(m)).value
    ),
    "curvature_by_mode": lambda m, f, b, mode: [
        found.to_dict()
        for found in probes.curvature_by_mode(Curvature(m, f, b, mode=mode), points(m), topology("ring", 4))
    ],
    "disagreement_angles": of_points(
        lambda x: probes.disagreement_angles(x, torch.eye(x.shape[1], dtype=x.dtype)[:2]).to_dict()
    ),
    "dispersion": lambda m, f, b, mode: probes.dispersion([1.0, 2.0]).gini,
    "envelope": lambda m, f, b, mode: probes.envelope(m, f, b, points(m), mode=mode).value,
    "fastest_block": of_hessian(lambda op: probes.fastest_block(op, (1, 2), 1) and None),
    "frobenius_norm": of_hessian(lambda op: probes.frobenius_norm(op, rtol=1.0, max_matvecs=24).value),
    "gauss_newton_layer_traces": of_gauss_newton(
        lambda op: [found.value for found in probes.gauss_newton_layer_traces(op).values()]
    ),
    "gauss_newton_trace": of_gauss_newton(lambda op: probes.gauss_newton_trace(op).value),
    "hessian_diagonal": of_hessian(lambda op: probes.hessian_diagonal(op, rtol=1.0, max_matvecs=40).values),
    "hessian_trace": of_hessian(lambda op: probes.hessian_trace(op, max_matvecs=40, method="deflated").value),
    "heterogeneity": lambda m, f, b, mode: probes.heterogeneity(m, f, [b, b[::-1]], mode=mode).to_dict(),
    "layer_traces": of_hessian(lambda op: _layers(op)),
    "loss_slice": lambda m, f, b, mode: probes.loss_slice(m, f, b, 2, points=3, workers=points(m), mode=mode).to_dict(),
    "noise_measure": lambda m, f, b, mode: torch.tensor(
        probes.noise_measure(m, f, even(b), batches=b, mode=mode, steps=3).weights
    ),
    "norm_dispersion": lambda m, f, b, mode: list(probes.norm_dispersion(points(m), m).items()) and None,
    "principal_angles": of_points(
        lambda x: probes.principal_angles(*(torch.eye(x.shape[1], dtype=x.dtype)[k : k + 2] for k in (0, 1))).to_dict()
    ),
    "principal_directions": of_points(lambda x: probes.principal_directions(x)[0]),
    "random_directions": of_hessian(lambda op: probes.random_directions(op.landscape, 2)),
    "schedule": lambda m, f, b, mode: probes.schedule("log 3", steps=9, steps_per_epoch=2).due(9),
    "sharpness": lambda m, f, b, mode: [
        found.value
        for found in probes.sharpness(m, f, b, x=points(m), steps=2, rtol=1.0, max_samples=12, mode=mode).values()
    ],
    "spectral_density": of_hessian(lambda op: list(probes.spectral_density(op, probes=2, steps=4, deflate=4).nodes)),
    "top_eigenvalues": of_hessian(lambda op: probes.top_eigenvalues(op, 2)[0].vector),
    "worst_case_sharpness": lambda m, f, b, mode: probes.worst_case_sharpness(m, f, b, steps=2, mode=mode).value,
    **{
        f"Curvature, {route}": lambda m, f, b, mode, route=route: Curvature(m, f, b, mode=mode, route=route).matvec(
            one_vector(m)
        )
        for route in ("double-backward", "forward-over-reverse", "finite-difference")
    },
}
"""Every public name that is given a model, data or parameters; some by several ways."""

NEVER_LOOKS = {
    *("Alignment", "Angles", "Density", "DiagonalEstimate", "Disagreement", "Dispersion", "Eigenpair", "Estimate"),
    *("Heterogeneity", "ModeCurvature", "ModeEnergy", "NoiseMeasure", "Slice"),
    *("Ball", "Diagonal", "Gaussian", "LowRank", "Sphere", "Workers"),
    *("Epochs", "Every", "LogSpaced", "Never"),
    *("Matrix", "Operator", "ProbeError"),
    "AcrossRanks",  # between processes: swept with its own tests
}
"""Classes that hold what was found or asked for."""


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
    assert public == {use for use in USES if "," not in use} | NEVER_LOOKS
    assert not [name for name in NEVER_LOOKS if not inspect.isclass(getattr(probes, name))]
    assert all(inspect.getdoc(getattr(probes, name)) for name in public)


SWEPT = [
    *itertools.product(("batch norm in train", "dropout in train", "tied weights", "frozen layer"), sorted(USES)),
    *(
        ("encoder layer", use)
        for use in ("Curvature", "Fisher", "GaussNewton", "envelope", "heterogeneity", "loss_slice")
    ),
]


@pytest.mark.parametrize(("name", "use"), SWEPT)
def test_no_trace_and_same_bits_again(name, use, scenes):
    build, loss, batches, mode = scenes[name]
    torch.manual_seed(3)
    model = stirred(build().double())
    data = copy.deepcopy(batches)
    before = fingerprint(model)
    first = USES[use](model, loss, batches, mode)
    after = fingerprint(model)
    assert [key for key in before if not same(before[key], after[key])] == []
    assert same(list(batches), list(data))
    torch.manual_seed(99)  # the caller's random state has no say
    assert same(first, USES[use](model, loss, batches, mode))


@pytest.mark.parametrize("use", sorted(USES))
def test_the_modes_of_the_caller_have_no_say(use, scenes):
    build, loss, batches, mode = scenes["mlp"]
    torch.manual_seed(3)
    model = build()
    batches = [(x.float(), y) for x, y in batches]
    truth = USES[use](model, loss, batches, mode)
    for context in (torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)):
        with context():
            assert same(truth, USES[use](model, loss, batches, mode))


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
