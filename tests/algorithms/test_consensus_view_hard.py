"""The consensus view of models that make it hard: odd buffers, ties, frozen parts; bodies that nest, fail and train."""

import copy
import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dissensus.algorithms import AlgorithmError, StackedEngine
from dissensus.theory import topology

N = 3
POLICIES = ("average", "local", "frozen", "recalibrate")
LOWEST = torch.finfo(torch.float32).min


class Odd(nn.Module):
    """Every kind of normalisation, buffer, tie and freeze that a model may bring along."""

    constant: Tensor
    count: Tensor
    phase: Tensor
    flag: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.untrained = nn.Linear(4, 4).requires_grad_(False)
        self.cumulative = nn.BatchNorm1d(4, momentum=None)  # type: ignore[arg-type]
        self.usual = nn.BatchNorm1d(4, momentum=0.3)
        self.stateless = nn.BatchNorm1d(4, track_running_stats=False)
        self.groups = nn.GroupNorm(2, 4)
        self.pretrained = nn.BatchNorm1d(4).requires_grad_(False)
        self.instance = nn.InstanceNorm1d(4, track_running_stats=True)
        self.dropout = nn.Dropout(0.3)
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("phase", torch.tensor([1.0 + 0.0j, 0.0 + 1.0j]))
        self.register_buffer("flag", torch.tensor([True, False]))
        self.register_buffer("mask", torch.full((2, 2), LOWEST))
        self.register_buffer("constant", torch.tensor([0.1, 0.7, 1e-3]))
        self.register_buffer("spread", torch.arange(3.0).expand(2, 3))
        self.register_buffer("passing", torch.zeros(2), persistent=False)
        self.register_buffer("nothing", None)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.count += 1
            self.phase *= 1j + x.detach().mean()
            self.flag |= torch.tensor([False, True])
        x = self.cumulative(self.untrained(self.pretrained(self.first(x))))
        x = self.dropout(self.stateless(self.usual(self.second(x))))
        return self.groups(self.instance(torch.stack([x, x * x], dim=2)).sum(dim=2))


def odd_model() -> Odd:
    torch.manual_seed(0)
    model = Odd()
    with torch.no_grad():
        model.pretrained.running_mean.fill_(0.1)  # type: ignore[union-attr]
        model.pretrained.running_var.fill_(2.3)  # type: ignore[union-attr]
    model.pretrained.eval()
    return model


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    return (model(batch) - batch).square().mean()


def batches(count: int, seed: int = 50) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(6, 4, generator=g) for _ in range(count)]


def trained(steps: int = 3, model: Odd | None = None) -> StackedEngine:
    engine = StackedEngine(
        model or odd_model(), loss, algorithm="dsgd", topology=topology("ring", N),
        optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9), gradients="loop",
    )  # fmt: skip
    for t in range(steps):
        engine.step(torch.stack(batches(N, t)))
    return engine


def bits(value: Any) -> list[bytes]:
    """Everything below a value, to the bit (a -0 is not a 0, a NaN is itself)."""
    if isinstance(value, Tensor):
        flat = value.detach().contiguous().view(-1)
        flat = torch.view_as_real(flat).contiguous() if flat.is_complex() else flat
        return [repr((value.dtype, tuple(value.shape), value.requires_grad)).encode(), flat.numpy().tobytes()]
    if isinstance(value, dict):
        return [b for k, v in value.items() for b in (repr(k).encode(), *bits(v))]
    if isinstance(value, list | tuple):
        return [b for v in value for b in bits(v)]
    return [repr(value).encode()]


def module_bits(model: nn.Module) -> list[bytes]:
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return bits([tensors, [(n, m.training) for n, m in model.named_modules()], [p.grad for p in model.parameters()]])


def everything(engine: StackedEngine, model: nn.Module) -> list[bytes]:
    generators = [torch.get_rng_state(), np.random.get_state()[1].tobytes(), random.getstate()]  # type: ignore[index]  # noqa: NPY002
    return [
        *bits([engine.state_dict(), engine.x, engine.buffers, generators, torch.is_grad_enabled()]),
        *module_bits(model),
    ]


def draw() -> None:
    torch.rand(3)
    np.random.rand(3)  # noqa: NPY002
    random.random()


def ravage(model: Any) -> None:
    """What a body may do to the module: train it with everything on, and write into whatever it holds."""
    model.train()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.5)
    for batch in batches(2, 77):
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
    draw()
    with torch.no_grad():
        model.untrained.weight.fill_(5.0)
        model.pretrained.running_mean.fill_(float("nan"))
        model.count.fill_(99)
        model.usual.momentum = 0.9
    model.requires_grad_(False)


@pytest.mark.parametrize("bn", POLICIES)
def test_a_body_that_trains_the_module_leaves_no_trace(bn: Any) -> None:
    model = odd_model()
    engine, untouched = trained(model=model), trained()
    before = everything(engine, model)
    for _ in range(2):
        with engine.consensus(bn=bn, batches=batches(2)) as view:
            ravage(view)
        assert everything(engine, model) == before
    torch.manual_seed(11)
    for t in range(3, 5):
        engine.step(torch.stack(batches(N, t)))
        untouched.step(torch.stack(batches(N, t)))
    assert bits(engine.state_dict()) == bits(untouched.state_dict())


@pytest.mark.parametrize("bn", POLICIES)
def test_a_body_that_raises_leaves_no_trace(bn: Any) -> None:
    model = odd_model()
    engine = trained(model=model)
    before = everything(engine, model)

    def fails() -> None:
        with engine.consensus(bn=bn, batches=batches(2)) as view:
            ravage(view)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fails()
    assert everything(engine, model) == before


@pytest.mark.parametrize("outer", POLICIES)
@pytest.mark.parametrize("inner", POLICIES)
def test_views_nest(outer: Any, inner: Any) -> None:
    model = odd_model()
    engine = trained(model=model)
    before = everything(engine, model)
    with engine.consensus(bn=outer, batches=batches(2)) as a:
        draw()
        middle, held = everything(engine, model), module_bits(a)
        with engine.consensus(bn=inner, batches=batches(3)) as b, engine.worker(1) as c:
            ravage(b)
            ravage(c)
        assert everything(engine, model) == middle
        assert module_bits(a) == held
        ravage(a)
        with engine.consensus(bn=outer, batches=batches(2)) as again:
            assert module_bits(again) == held, "what was done to one view is not seen by the next"
    assert everything(engine, model) == before


def test_batches_that_fail_while_statistics_are_measured_leave_no_trace() -> None:
    model = odd_model()
    engine = trained(model=model)
    before = everything(engine, model)

    def failing() -> Iterator[Tensor]:
        draw()
        yield batches(1)[0]
        raise ZeroDivisionError

    def enter(given: Any) -> None:
        with engine.consensus(bn="recalibrate", batches=given):
            raise AssertionError("the body must not run")

    with pytest.raises(ZeroDivisionError):
        enter(failing())
    with pytest.raises(AlgorithmError, match="got no batch"):
        enter([])
    with pytest.raises(AlgorithmError, match="needs batches"):
        enter(None)
    with pytest.raises(AlgorithmError, match="bn must be one of"), engine.consensus(bn="mean"):  # type: ignore[arg-type]
        pass
    assert everything(engine, model) == before


def test_the_view_is_in_eval_mode_and_tied_frozen_and_unsaved_parts_are_there() -> None:
    engine = trained()
    view: Any
    for bn in POLICIES:
        with engine.consensus(bn=bn, batches=batches(2)) as view:  # type: ignore[arg-type]
            assert not any(m.training for m in view.modules())
            assert view.second.weight is view.first.weight
            got = torch.cat([p.detach().reshape(-1) for p in view.parameters() if p.requires_grad])
            assert torch.equal(got, engine.mean)
            reference = odd_model()
            for part in ("untrained.weight", "untrained.bias", "pretrained.weight", "pretrained.bias"):
                assert torch.equal(view.get_parameter(part), reference.get_parameter(part))
                assert not view.get_parameter(part).requires_grad
            assert view.nothing is None
            assert {n for n, _ in view.named_buffers()} == {n for n, _ in reference.named_buffers()}
            assert view.cumulative.momentum is None
            assert view.usual.momentum == 0.3
            assert all(p.grad is None for p in view.parameters())


def test_what_the_policies_make_of_each_kind_of_buffer() -> None:
    engine = trained()
    own = engine.buffers
    view: Any
    with engine.consensus(bn="average") as view:
        for name in ("usual.running_mean", "cumulative.running_var", "phase"):
            assert own[name].std(dim=0).abs().max() > 0
            torch.testing.assert_close(view.get_buffer(name), own[name].mean(dim=0), rtol=0, atol=0)
        assert view.count.tolist() == 3
        assert view.count.dtype == torch.int64
        assert view.flag.tolist() == [True, True]
        assert int(view.usual.num_batches_tracked) == 3
    with engine.consensus(bn="local") as view:
        for name, b in view.named_buffers():
            assert bits(b) == bits(own[name][0]), name
    with engine.consensus(bn="frozen") as view:
        for name, b in view.named_buffers():
            assert bits(b) == bits(odd_model().get_buffer(name)), name


def test_a_buffer_that_all_workers_agree_on_is_not_changed_by_averaging() -> None:
    """A sum over workers would round a constant, and turn the lowest number there is into minus infinity."""
    engine = trained()
    view: Any
    with engine.consensus(bn="average") as view:
        for name in ("mask", "constant", "spread", "passing", "pretrained.running_mean", "pretrained.running_var"):
            assert bits(view.get_buffer(name)) == bits(odd_model().get_buffer(name)), name


def test_a_layer_that_stood_still_in_training_keeps_its_statistics_when_others_are_measured_anew() -> None:
    engine = trained()
    view: Any
    with engine.consensus(bn="recalibrate", batches=batches(2)) as view:
        assert view.pretrained.running_mean.tolist() == odd_model().pretrained.running_mean.tolist()  # type: ignore[union-attr]
        assert int(view.pretrained.num_batches_tracked) == 0
        assert int(view.usual.num_batches_tracked) == 2


def test_statistics_measured_anew_are_those_of_the_averaged_network_layer_after_layer() -> None:
    engine = trained()
    given = batches(3)
    view: Any
    with engine.consensus(bn="recalibrate", batches=iter(given)) as view:
        with torch.no_grad():
            before = [view.untrained(view.pretrained(view.first(x))) for x in given]
            mean = torch.stack([z.mean(dim=0) for z in before]).mean(dim=0)
            variance = torch.stack([z.var(dim=0) for z in before]).mean(dim=0)
            torch.testing.assert_close(view.cumulative.running_mean, mean)
            torch.testing.assert_close(view.cumulative.running_var, variance)
            # while statistics are measured, a layer passes on what its own batch says, not the average so far
            hidden = [
                (z - z.mean(dim=0)) / (z.var(dim=0, unbiased=False) + 1e-5).sqrt() * view.cumulative.weight
                + view.cumulative.bias
                for z in before
            ]
            after = [view.second(z) for z in hidden]
            torch.testing.assert_close(view.usual.running_mean, torch.stack([z.mean(dim=0) for z in after]).mean(dim=0))
            torch.testing.assert_close(view.usual.running_var, torch.stack([z.var(dim=0) for z in after]).mean(dim=0))
        assert view.count.tolist() == 3, "only normalisation layers are in training mode"


def test_measuring_does_not_depend_on_the_generators_and_draws_no_dropout() -> None:
    engine = trained()
    seen = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        with engine.consensus(bn="recalibrate", batches=batches(2)) as view:
            seen.append(module_bits(view))
    assert seen[0] == seen[1]


def test_a_view_can_be_made_without_gradients_and_of_a_copied_engine() -> None:
    engine = trained()
    with torch.no_grad(), engine.consensus() as quiet:
        held = module_bits(quiet)
        assert not torch.is_grad_enabled()
    with engine.consensus() as view:
        assert module_bits(view) == held
        copied = copy.deepcopy(view)
        ravage(copied)
        assert module_bits(view) == held


def test_a_buffer_with_a_gradient_flag_can_be_looked_at() -> None:
    class Flagged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("scale", torch.ones(4).requires_grad_())

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * self.get_buffer("scale")

    engine = StackedEngine(
        Flagged(), loss, algorithm="dsgd", topology=topology("ring", N),
        optimizer=partial(torch.optim.SGD, lr=0.1), gradients="loop",
    )  # fmt: skip
    engine.step(torch.stack(batches(N)))
    with engine.consensus() as view:
        assert torch.equal(view.get_buffer("scale"), torch.ones(4))
