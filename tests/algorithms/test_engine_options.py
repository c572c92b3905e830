"""Clipping, micro-batches, mixed precision, schedulers, options by worker, numbers that are not finite."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dissensus.algorithms import AlgorithmError, StackedEngine
from dissensus.algorithms.engines import layout
from dissensus.theory import from_function, topology

N, B = 6, 8
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def loss(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def batch(t: int = 0, b: int = B) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(t)
    return torch.randn(N, b, 5, generator=g, dtype=torch.float64), torch.randint(0, 3, (N, b), generator=g)


def built(model: nn.Module | None = None, graph: Any = None, **options: Any) -> StackedEngine:
    usual: dict[str, Any] = {"algorithm": "dsgd", "optimizer": SGD, "gradients": "vmap"} | options
    return StackedEngine(model or mlp(), loss, topology=graph or topology("ring", N), **usual)


def gradients(engine: StackedEngine, data: Any) -> Tensor:
    """What the engine moves along, read off one step of plain SGD without mixing."""
    before = engine.x
    engine.step(data)
    return before - engine.x


ALONE = {"algorithm": "dsgd", "optimizer": partial(torch.optim.SGD, lr=1.0)}


def alone(**options: Any) -> StackedEngine:
    from dissensus.algorithms import algorithm

    given: dict[str, Any] = ALONE | {"algorithm": algorithm("dsgd", gamma=0.0)} | options
    return built(**given)


def test_every_worker_is_clipped_by_itself() -> None:
    free = gradients(alone(), batch())
    norms = free.norm(dim=1)
    largest = float(norms.median())
    clipped = gradients(alone(clip=largest), batch())
    torch.testing.assert_close(clipped, free * (largest / norms).clamp(max=1.0)[:, None], rtol=1e-12, atol=1e-14)
    small = norms < largest
    torch.testing.assert_close(clipped[small], free[small], rtol=1e-14, atol=1e-14)
    nothing = alone(clip=1.0)
    still = gradients(nothing, (torch.zeros(N, B, 5, dtype=torch.float64), torch.zeros(N, B, dtype=torch.long)))
    assert torch.isfinite(still).all()
    with pytest.raises(AlgorithmError, match="clip is the largest norm of a gradient and must be positive, got 0"):
        built(clip=0)


@pytest.mark.parametrize("route", ["vmap", "loop"])
def test_micro_batches_have_the_gradient_of_the_whole(route: str) -> None:
    whole, parts = gradients(alone(gradients=route), batch()), gradients(alone(gradients=route, accumulate=4), batch())
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-14)
    a, b = alone(gradients=route), alone(gradients=route, accumulate=2)
    assert torch.allclose(a.step(batch()).losses, b.step(batch()).losses, rtol=1e-12, atol=0)
    with pytest.raises(
        AlgorithmError, match="a batch of 8 samples per worker cannot be cut into 3 equal micro-batches"
    ):
        alone(accumulate=3).step(batch())
    with pytest.raises(AlgorithmError, match="accumulate must be at least 1 micro-batch, got 0"):
        alone(accumulate=0)


def test_micro_batches_draw_numbers_of_their_own_and_batch_norm_sees_each() -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3)).double()

    engines = [built(model(), gradients=route, accumulate=2) for route in ("vmap", "loop")]
    for e in engines:
        e.step(batch())
    torch.testing.assert_close(engines[0].x, engines[1].x, rtol=1e-12, atol=1e-14)
    assert engines[0].buffers["1.num_batches_tracked"].tolist() == [2] * N
    once = built(model())
    once.step(batch())
    assert not torch.allclose(once.x, engines[0].x, atol=1e-6)


@pytest.mark.parametrize("route", ["vmap", "loop"])
def test_mixed_precision_computes_the_loss_in_bfloat16_and_moves_in_full(route: str) -> None:
    single = [batch(t) for t in range(3)]
    plain, mixed = (built(mlp().float(), gradients=route, autocast=cast) for cast in (None, torch.bfloat16))
    for x, y in single:
        a, b = plain.step((x.float(), y)), mixed.step((x.float(), y))
        assert b.losses.dtype == torch.float32
        assert 0 < (a.losses - b.losses).abs().max() < 0.05
    assert mixed.x.dtype == torch.float32
    assert 0 < (plain.x - mixed.x).abs().max() < 0.02
    with pytest.raises(AlgorithmError, match=r"autocast must be torch.bfloat16, got torch.float16: .* losses scaled"):
        built(autocast=torch.float16)


def test_a_scheduler_of_torch_sets_the_rate() -> None:
    by_hand = built(lr=lambda t: 0.1 * 0.5**t)
    scheduled = built()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(scheduled.optimizer, gamma=0.5)
    for t in range(4):
        assert by_hand.step(batch(t)).lr == pytest.approx(scheduled.step(batch(t)).lr, rel=1e-15)
        scheduler.step()
    torch.testing.assert_close(by_hand.x, scheduled.x, rtol=1e-14, atol=1e-15)


def test_a_scheduler_scales_the_groups_and_adaptive_consensus_sees_it() -> None:
    def head_slower(name: str, shape: torch.Size) -> dict[str, float]:
        del shape
        return {"lr": 0.02} if name.startswith("2") else {}

    gammas = []
    by_hand = built(algorithm="dsgd-ac", lr=lambda t: 0.1 * 0.5**t, groups=head_slower)
    scheduled = built(algorithm="dsgd-ac", groups=head_slower)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(scheduled.optimizer, gamma=0.5)
    for t in range(3):
        by_hand.step(batch(t))
        gammas.append(scheduled.step(batch(t)).gamma)
        scheduler.step()
    assert gammas == pytest.approx([1.0, 0.125, 0.125**2])
    torch.testing.assert_close(by_hand.x, scheduled.x, rtol=1e-13, atol=1e-15)


def test_workers_with_options_of_their_own_move_like_themselves() -> None:
    rates = [0.1, 0.1, 0.05, 0.2, 0.2, 0.2]
    own = [{"lr": r, "weight_decay": 0.1 * i} for i, r in enumerate(rates)]
    from dissensus.algorithms import algorithm

    apart = algorithm("dsgd", gamma=0.0)
    mixed = built(algorithm=apart, per_worker=own, lr=lambda t: 0.1 / (1 + t))
    for t in range(3):
        mixed.step(batch(t))
    for i in range(N):
        one = built(
            algorithm=apart,
            optimizer=partial(torch.optim.SGD, lr=rates[i], momentum=0.9, weight_decay=0.1 * i),
            lr=lambda t, i=i: rates[i] / (1 + t),
        )
        for t in range(3):
            one.step(batch(t))
        torch.testing.assert_close(mixed.x[i], one.x[i], rtol=1e-13, atol=1e-15)


def test_quasi_global_momentum_divides_by_each_workers_rate() -> None:
    rates = [0.1, 0.3, 0.1, 0.1, 0.2, 0.2]
    engine = built(algorithm="qg-dsgdm", optimizer=torch.optim.SGD, per_worker=[{"lr": r} for r in rates], lr=None)
    before = engine.x
    engine.step(batch())
    expected = 0.1 * (before - engine.x) / torch.tensor([100 * r for r in rates], dtype=torch.float64)[:, None] * 100
    scale = engine.state.momentum / expected
    assert torch.allclose(scale, scale[0, 0].expand_as(scale), rtol=1e-9)


class Poisoned(nn.Module):
    """A model whose loss is whatever the batch adds to it, and whose gradient can be infinite while the loss is not."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.root = mlp(), nn.Parameter(torch.zeros(1, dtype=torch.float64))


def poisoned_loss(model: Any, b: Any) -> Tensor:
    x, y, add, times = b
    return loss(model.net, (x, y)) + add + (model.root.abs() + 1 - times).sqrt().sum()


def poison(t: int, worker: int, *, gradient: bool = False) -> Any:
    add, times = torch.zeros(N, dtype=torch.float64), torch.zeros(N, dtype=torch.float64)
    (times if gradient else add)[worker] = 1.0 if gradient else torch.nan
    return (*batch(t), add, times)


def poisonable(**options: Any) -> StackedEngine:
    usual: dict[str, Any] = {"algorithm": "dsgd", "optimizer": SGD, "gradients": "loop"} | options
    graph = usual.pop("graph", topology("ring", N))
    model = Poisoned()
    with torch.no_grad():
        model.root.fill_(1.0)
    return StackedEngine(model, poisoned_loss, topology=graph, **usual)


@pytest.mark.parametrize("order", ["awc", "atc", "cta"])
def test_a_loss_that_is_not_a_number_stops_before_it_is_sent(order: str) -> None:
    from dissensus.algorithms import algorithm

    engine = poisonable(algorithm=algorithm("dsgd", order=order))
    engine.step((*batch(0), torch.zeros(N).double(), torch.zeros(N).double()))
    before = engine.x
    with pytest.raises(AlgorithmError, match="worker 3 has the loss nan at step 1; no other worker has received"):
        engine.step(poison(1, 3))
    assert torch.equal(engine.x, before)
    engine.step((*batch(1), torch.zeros(N).double(), torch.zeros(N).double()))
    assert engine.t == 2


def at_root_zero(engine: StackedEngine) -> StackedEngine:
    saved = engine.state_dict()
    column = engine.columns.size - 1 if engine.columns.names[-1] == "root" else 0
    saved["x"][:, column] = 0.0
    engine.load_state_dict(saved)
    return engine


def test_a_gradient_that_is_infinite_is_named_before_anything_moves() -> None:
    engine = at_root_zero(poisonable())
    before = engine.x
    with pytest.raises(AlgorithmError, match="worker 2 has a gradient that is not finite at step 0"):
        engine.step(poison(0, 2, gradient=True))
    assert torch.equal(engine.x, before)


@pytest.mark.parametrize("kind", ["loss", "gradient"])
@pytest.mark.parametrize("order", ["awc", "atc"])
def test_an_isolated_worker_stays_and_the_others_go_on_among_themselves(kind: str, order: str) -> None:
    from dissensus.algorithms import algorithm

    engine = at_root_zero(poisonable(algorithm=algorithm("dsgd", order=order), on_nan="isolate"))
    clean = (torch.zeros(N).double(), torch.zeros(N).double())
    engine.step((*batch(0), *clean))
    before = engine.x
    record = engine.step(poison(1, 3, gradient=kind == "gradient"))
    assert engine.isolated == {3: 1}
    assert record.there is not None
    assert record.there.tolist() == [True, True, True, False, True, True]
    for t in range(2, 6):
        engine.step((*batch(t), *clean))
    assert torch.equal(engine.x[3], before[3])
    assert torch.isfinite(engine.x).all()
    rest = [0, 1, 2, 4, 5]
    torch.testing.assert_close(engine.mean, engine.x[rest].mean(dim=0))
    with engine.consensus() as model:
        average = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    torch.testing.assert_close(average, engine.mean)
    twin = poisonable(algorithm=algorithm("dsgd", order=order), on_nan="isolate")
    twin.load_state_dict(engine.state_dict())
    assert twin.isolated == {3: 1}
    for e in (engine, twin):
        e.step((*batch(9), *clean))
    assert torch.equal(engine.x, twin.x)


def test_the_others_step_as_if_the_isolated_worker_had_never_been() -> None:
    """From the step on, the ring of six is the path of the five others, with the weights given back."""
    import numpy as np

    clean = (torch.zeros(N).double(), torch.zeros(N).double())
    engine = poisonable(on_nan="isolate", optimizer=partial(torch.optim.SGD, lr=0.1))
    engine.step(poison(0, 5))
    w = topology("ring", N)[0].dense()
    links = w * (1 - np.eye(N))
    links[5] = links[:, 5] = 0
    left = links + np.diag(1 - links.sum(axis=1))
    other = poisonable(graph=from_function(lambda t: left, N), optimizer=partial(torch.optim.SGD, lr=0.1))
    other.step((*batch(0), *clean))
    rest = [0, 1, 2, 3, 4]
    torch.testing.assert_close(engine.x[rest], other.x[rest], rtol=1e-13, atol=1e-15)


def test_everybody_isolated_ends_the_run() -> None:
    engine = poisonable(on_nan="isolate")
    add = torch.full((N,), torch.nan, dtype=torch.float64)
    with pytest.raises(AlgorithmError, match="every worker is isolated at step 0: the last one has the loss nan"):
        engine.step((*batch(0), add, torch.zeros(N).double()))
    with pytest.raises(
        AlgorithmError, match="on_nan must be 'stop' or 'isolate', got 'isolat'; did you mean 'isolate'"
    ):
        poisonable(on_nan="isolat")


@pytest.mark.parametrize("halfway", [False, True])
def test_points_that_overflow_stop_the_run(halfway: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "OWN_BLOCK", 1)
    monkeypatch.setattr(layout, "TOGETHER", 0)

    def rates(name: str, shape: torch.Size) -> dict[str, float]:
        del shape
        return {"lr": 1e-3 if name == "0.weight" and halfway else 3e38}

    engine = StackedEngine(
        mlp().float(),
        lambda m, b: 1e3 * loss(m, b),
        algorithm="dsgd",
        topology=topology("ring", N),
        optimizer=torch.optim.SGD,
        groups=rates,
    )
    x, y = batch()
    saved = engine.state_dict()
    with pytest.raises(AlgorithmError, match="worker 0 has parameters that are not finite at step 0"):
        engine.step((x.float(), y))
    if halfway:
        with pytest.raises(AlgorithmError, match="stopped halfway through step 0 and cannot go on; load a state_dict"):
            engine.step((x.float(), y))
    else:
        assert torch.equal(engine.x, saved["x"])
    engine.load_state_dict(saved)
    assert torch.equal(engine.x, saved["x"])
    with pytest.raises(AlgorithmError, match="worker 0 has parameters that are not finite at step 0"):
        engine.step((x.float(), y))


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("optimizer", [SGD, partial(torch.optim.Adam, lr=0.01)])
def test_an_error_after_the_move_is_halfway_through_the_step(
    optimizer: Any, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The points are as they were, the optimizer's memory is a step ahead."""
    from dissensus.algorithms import algorithm

    def lost(*_: Any) -> Tensor:
        raise error("lost")

    engine, twin = (built(algorithm=algorithm("dsgd", order="atc"), optimizer=optimizer) for _ in range(2))
    for e in (engine, twin):
        e.step(batch(0))
    saved = engine.state_dict()
    with monkeypatch.context() as patched:
        patched.setattr(engine._presence, "take", lost)
        with pytest.raises(error, match="lost"):
            engine.step(batch(1))
    assert torch.equal(engine.x, saved["x"])
    with pytest.raises(
        AlgorithmError, match=r"stopped halfway through step 1 and cannot go on; .* state_dict \(lost\)"
    ):
        engine.step(batch(1))
    engine.load_state_dict(saved)
    for e in (engine, twin):
        e.step(batch(1))
    assert torch.equal(engine.x, twin.x)


@pytest.mark.parametrize("route", ["vmap", "loop"])
def test_an_unused_parameter_has_the_gradient_zero_and_a_frozen_one_none(route: str) -> None:
    """So weight decay shrinks the unused one, and nothing changes the frozen one."""

    class Some(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.unused = mlp(), nn.Parameter(torch.ones(3, dtype=torch.float64))
            self.frozen = nn.Parameter(torch.ones(3, dtype=torch.float64), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

    for decay in (0.0, 0.5):
        for factory in (SGD, partial(torch.optim.AdamW, lr=0.1)):
            engine = built(Some(), optimizer=partial(factory, weight_decay=decay), gradients=route)
            engine.step(batch(0))
            expected = torch.full((3,), 1 - 0.1 * decay, dtype=torch.float64)
            torch.testing.assert_close(engine.unflatten(engine.mean)["unused"], expected, rtol=1e-14, atol=0.0)
            assert decay or torch.equal(engine.unflatten(engine.x[0])["unused"], expected)
            with engine.worker(1) as model:
                assert torch.equal(dict(model.named_parameters())["frozen"], torch.ones(3, dtype=torch.float64))
