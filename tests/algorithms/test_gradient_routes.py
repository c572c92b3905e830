"""vmap and loop give the same gradients, buffers and random numbers, and neither leaves a trace on the generators."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dissensus.algorithms import AlgorithmError, StackedEngine, StepRecord

N = 4
MOMENTUM = partial(torch.optim.SGD, lr=0.05, momentum=0.9)


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)).double()


def convolutions() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout2d(0.2), nn.Conv2d(4, 4, 3),
        nn.BatchNorm2d(4, momentum=0.3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10),
    ).double()  # fmt: skip


def cross_entropy(model: nn.Module, batch: tuple) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def images(n: int, t: int, b: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(t)
    return torch.randn(n, b, 1, 8, 8, generator=g, dtype=torch.float64), torch.randint(0, 10, (n, b), generator=g)


def engine(model: nn.Module, schedules: dict, n: int = N, loss: Any = cross_entropy, **options: Any) -> StackedEngine:
    options = {"algorithm": "dsgd", "optimizer": MOMENTUM, "seed": 5} | options
    return StackedEngine(model, loss, topology=schedules["ring"](n), **options)


def run(e: StackedEngine, steps: int, batch: Callable[[int, int], tuple] = images) -> list[StepRecord]:
    return [e.step(batch(e.size, t)) for t in range(steps)]


def same(a: StackedEngine, b: StackedEngine) -> None:
    # float64 and different kernels (batched or not): a few thousand roundings over the run
    torch.testing.assert_close(a.x, b.x, rtol=1e-10, atol=1e-10)
    assert a.buffers.keys() == b.buffers.keys()
    for name, value in a.buffers.items():
        torch.testing.assert_close(value, b.buffers[name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("model", [mlp, convolutions])
def test_vmap_equals_loop(model: Callable[[], nn.Module], schedules: dict) -> None:
    a, b = (engine(model(), schedules, gradients=route) for route in ("vmap", "loop"))
    records = [run(e, 20) for e in (a, b)]
    for one, other in zip(*records, strict=True):
        torch.testing.assert_close(one.losses, other.losses, rtol=1e-10, atol=1e-12)
    same(a, b)


def test_batch_norm_keeps_the_statistics_of_every_worker(schedules: dict) -> None:
    e = engine(convolutions(), schedules, gradients="vmap", algorithm="allreduce", optimizer=torch.optim.SGD, lr=0.0)
    run(e, 3)
    for i in range(N):
        alone = convolutions()
        torch.manual_seed(0)
        for t in range(3):
            alone(images(N, t)[0][i])
        torch.testing.assert_close(e.buffers["1.running_mean"][i], alone[1].running_mean, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(e.buffers["1.running_var"][i], alone[1].running_var, rtol=1e-12, atol=1e-14)
        assert e.buffers["1.num_batches_tracked"][i] == 3
    assert not torch.equal(e.buffers["1.running_mean"][0], e.buffers["1.running_mean"][1])


@pytest.mark.parametrize("chunk", [1, 3, 4, 100])
def test_chunks_change_nothing(chunk: int, schedules: dict) -> None:
    a, b = engine(convolutions(), schedules, gradients="vmap"), engine(
        convolutions(), schedules, gradients="vmap", chunk=chunk
    )  # fmt: skip
    run(a, 5)
    run(b, 5)
    same(a, b)


DRAWS: dict[str, Callable[[nn.Module, Any], torch.Tensor]] = {
    "dropout": lambda m, b: cross_entropy(m, (F.dropout(b[0], 0.3), b[1])),
    "alpha_dropout": lambda m, b: cross_entropy(m, (F.alpha_dropout(b[0], 0.3, training=True), b[1])),
    "feature_dropout": lambda m, b: cross_entropy(m, (F.dropout2d(b[0], 0.3), b[1])),
    "randn_like": lambda m, b: cross_entropy(m, (b[0] + torch.randn_like(b[0]), b[1])),
    "rand": lambda m, b: cross_entropy(m, (b[0] * torch.rand(b[0].shape, dtype=b[0].dtype), b[1])),
    "randn": lambda m, b: cross_entropy(m, (b[0] + torch.randn(b[0].shape, dtype=b[0].dtype), b[1])),
    "randint": lambda m, b: cross_entropy(m, (b[0], torch.randint(0, 10, b[1].shape))),
    "normal": lambda m, b: cross_entropy(m, (b[0] + torch.normal(torch.zeros_like(b[0]), 1.0), b[1])),
    "gumbel": lambda m, b: F.gumbel_softmax(m(b[0]), dim=-1)[:, 0].log().mean(),
    "uniform_": lambda m, b: cross_entropy(m, (b[0] * torch.empty_like(b[0]).uniform_(0.5, 1), b[1])),
    "mixup": lambda m, b: cross_entropy(m, (b[0] + b[0][torch.randint(0, 6, (6,))], b[1])),
}


@pytest.mark.parametrize("draw", sorted(DRAWS))
def test_random_numbers_do_not_depend_on_the_route(draw: str, schedules: dict) -> None:
    a, b = (engine(mlp(), schedules, loss=DRAWS[draw], gradients=route) for route in ("vmap", "loop"))
    first, second = run(a, 3), run(b, 3)
    assert first[0].losses.unique().numel() == N
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one.losses, other.losses, rtol=1e-10, atol=1e-12)
    same(a, b)


@pytest.mark.parametrize("route", ["vmap", "loop"])
def test_a_workers_masks_do_not_depend_on_who_stands_beside_it(route: str, schedules: dict) -> None:
    few, many = (engine(convolutions(), schedules, n=n, gradients=route) for n in (2, 4))
    batch = images(4, 0)
    losses = many.step(batch).losses
    torch.testing.assert_close(
        few.step((batch[0][:2], batch[1][:2])).losses, losses[:2], rtol=1e-12, atol=1e-12
    )  # fmt: skip


@pytest.mark.parametrize("route", ["vmap", "loop"])
def test_masks_differ_between_workers_steps_and_seeds(route: str, schedules: dict) -> None:
    same_batch = tuple(f[:1].expand(N, *f.shape[1:]) for f in images(N, 0))
    seen = []
    for seed in (0, 1):
        e = engine(convolutions(), schedules, gradients=route, seed=seed, lr=0.0)
        seen += [e.step(same_batch).losses, e.step(same_batch).losses]
    assert torch.cat(seen).unique().numel() == 4 * N


@pytest.mark.parametrize("route", ["vmap", "loop", "auto"])
def test_the_global_generator_is_not_touched(route: str, schedules: dict) -> None:
    e = engine(convolutions(), schedules, gradients=route)
    before = torch.get_rng_state()
    run(e, 3)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("route", ["vmap", "loop"])
def test_a_loss_that_fails_after_drawing_leaves_the_generator_as_it_was(route: str, schedules: dict) -> None:
    e = engine(mlp(), schedules, gradients=route, loss=lambda m, b: m(torch.rand_like(b[0])))
    before = torch.get_rng_state()
    with pytest.raises(AlgorithmError, match="must return a scalar"):
        run(e, 1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("route", ["vmap", "loop"])
def test_the_state_of_the_global_generator_does_not_matter(route: str, schedules: dict) -> None:
    ends = []
    for seed in (1, 2):
        e = engine(convolutions(), schedules, gradients=route)
        torch.manual_seed(seed)
        run(e, 3)
        ends.append(e.x)
    assert torch.equal(*ends)


def test_auto_decides_once_and_changes_nothing(schedules: dict) -> None:
    e = engine(convolutions(), schedules, gradients="auto")
    assert e.route == "auto"
    run(e, 3)
    assert e.route in ("vmap", "loop")
    twin = engine(convolutions(), schedules, gradients=e.route)
    run(twin, 3)
    assert torch.equal(e.x, twin.x)


class Branching(nn.Module):
    """Cannot be vmapped: the branch depends on a value."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1, 8, 8, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self.w
        return y if y.sum() > 0 else -y


def branching_loss(model: nn.Module, batch: tuple) -> torch.Tensor:
    return model(batch[0]).square().mean()


def test_auto_takes_the_loop_where_vmap_cannot(schedules: dict) -> None:
    e = engine(Branching(), schedules, loss=branching_loss, gradients="auto")
    run(e, 2)
    assert e.route == "loop"


def permuted(model: nn.Module, batch: tuple) -> torch.Tensor:
    return cross_entropy(model, (batch[0] + batch[0][torch.randperm(6)], batch[1]))


def sampled(model: nn.Module, batch: tuple) -> torch.Tensor:
    return cross_entropy(model, (batch[0], model(batch[0]).detach().softmax(dim=-1).multinomial(1)[:, 0]))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (permuted, "aten::randperm does not draw one row per worker"),
        (sampled, r"aten::multinomial draws on shape \(24, 10\), not one row per worker"),
    ],
)
def test_draws_that_vmap_does_not_stack_go_through_the_loop(loss: Any, message: str, schedules: dict) -> None:
    chosen = engine(mlp(), schedules, loss=loss, gradients="auto")
    run(chosen, 1)
    assert chosen.route == "loop"
    with pytest.raises(AlgorithmError, match=message + r"\); use gradients="):
        run(engine(mlp(), schedules, loss=loss, gradients="vmap"), 1)


def test_vmap_that_cannot_says_what_to_do(schedules: dict) -> None:
    e = engine(Branching(), schedules, loss=branching_loss, gradients="vmap")
    with pytest.raises(AlgorithmError, match=r"cannot be vectorised over workers .* use gradients=\"loop\""):
        run(e, 1)


class Counter(nn.Module):
    """Keeps buffers by writing anew instead of in place, has a frozen and an unused parameter and a tied one."""

    count: torch.Tensor
    frozen: nn.Parameter

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(64, 64, bias=False).double()
        self.b = nn.Linear(64, 64, bias=False).double()
        self.b.weight = self.a.weight
        self.frozen = nn.Parameter(torch.full((64,), 0.5, dtype=torch.float64), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(64, dtype=torch.float64), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        self.count = self.count + 1
        self.seen = 0.5 * self.seen + x.detach().mean(dim=0)
        return self.b(torch.tanh(self.a(x * self.frozen)))


@pytest.mark.parametrize("route", ["vmap", "loop"])
def test_unusual_modules(route: str, schedules: dict) -> None:
    e = engine(Counter(), schedules, loss=branching_loss, gradients=route, algorithm="allreduce")
    run(e, 3)
    assert e.columns.names == ("unused", "a.weight")
    assert e.buffers["count"].tolist() == [3] * N
    assert not torch.equal(e.buffers["seen"][0], e.buffers["seen"][1])
    assert torch.equal(e.unflatten(e.mean)["unused"], torch.ones(3, dtype=torch.float64))
    plain = Counter()
    opt = MOMENTUM([p for p in plain.parameters() if p.requires_grad])
    for t in range(3):
        opt.zero_grad()
        torch.stack([branching_loss(plain, (images(N, t)[0][i],)) for i in range(N)]).mean().backward()
        opt.step()
    torch.testing.assert_close(e.unflatten(e.mean)["a.weight"], plain.a.weight.detach(), rtol=1e-10, atol=1e-12)


def test_batches_may_be_trees(schedules: dict) -> None:
    def loss(model: nn.Module, batch: dict) -> torch.Tensor:
        return F.cross_entropy(model(batch["in"][0]), batch["out"])

    a = engine(mlp(), schedules, gradients="vmap")
    b = engine(mlp(), schedules, loss=loss, gradients="vmap")
    x, y = images(N, 0)
    a.step((x, y))
    b.step({"in": [x], "out": y})
    assert torch.equal(a.x, b.x)


def test_the_template_is_not_written_to(schedules: dict) -> None:
    model = convolutions()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    e = engine(model, schedules)
    run(e, 3)
    with e.consensus() as average:
        next(average.parameters()).data.fill_(7.0)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("route", ["vmap", "loop"])
def test_inside_an_autocast_of_the_caller_every_worker_has_its_own_weights(
    route: str, on: bool, schedules: dict
) -> None:
    """It keeps low-precision copies of parameters until it ends, and the loop puts all workers into one model."""
    start = torch.randn(N, 1210, generator=torch.Generator().manual_seed(0)) / 8
    ours, theirs = (
        engine(mlp().float(), schedules, gradients=route, start=start, autocast=cast)
        for cast in (torch.bfloat16, None if on else torch.bfloat16)
    )
    for t in range(2):
        x, y = images(N, t)
        told = ours.step((x.float(), y)).losses
        with torch.autocast("cpu", torch.bfloat16, enabled=on):
            assert torch.equal(theirs.step((x.float(), y)).losses, told)
    assert torch.equal(ours.x, theirs.x), "and what is exchanged is not cast"
