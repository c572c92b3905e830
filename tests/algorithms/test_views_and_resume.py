"""Looking leaves no trace, and a resumed run equals the uninterrupted one, both to the bit."""

import io
import random
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dissensus.algorithms import AlgorithmError, StackedEngine, algorithm, algorithms

N = 4
ADAM = partial(torch.optim.Adam, lr=0.01)
MOMENTUM = partial(torch.optim.SGD, lr=0.05, momentum=0.9)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.4), nn.Linear(48, 5)
    ).double()  # fmt: skip


def loss(model: nn.Module, batch: tuple) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def images(t: int, n: int = N) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(t)
    return torch.randn(n, 7, 1, 6, 6, generator=g, dtype=torch.float64), torch.randint(0, 5, (n, 7), generator=g)


def trained(schedules: dict, name: str = "dsgd", steps: int = 3, optimizer: Any = MOMENTUM, **options: Any) -> Any:
    topology = schedules["ring" if algorithms()[name].static else "one-peer-exponential"](N)
    options = {"gradients": "vmap", "lr": lambda t: 0.05 / (1 + t)} | options
    engine = StackedEngine(
        network(), loss, algorithm=algorithm(name), topology=topology, optimizer=optimizer, **options
    )  # fmt: skip
    for t in range(steps):
        engine.step(images(t))
    return engine


def numpy_state() -> list[int]:
    return np.random.get_state(legacy=False)["state"]["key"].tolist()  # noqa: NPY002


def draw_from_every_generator() -> None:
    torch.rand(3)
    np.random.rand(3)  # noqa: NPY002
    random.random()


def snapshot(engine: StackedEngine) -> list[torch.Tensor]:
    """Every tensor there is, the three generators included."""
    found: list[torch.Tensor] = []

    def collect(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found.append(value.clone())
        elif isinstance(value, dict):
            for v in value.values():
                collect(v)
        elif isinstance(value, list | tuple):
            for v in value:
                collect(v)
        elif isinstance(value, int | float):
            found.append(torch.tensor(value, dtype=torch.float64))

    collect(engine.state_dict())
    collect([engine.x, engine.mean, torch.get_rng_state(), numpy_state(), random.getstate()[1]])
    return found


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("bn", ["average", "local", "frozen", "recalibrate"])
def test_a_view_leaves_no_trace(bn: str, schedules: dict) -> None:
    engine, untouched = trained(schedules), trained(schedules)
    before = snapshot(engine)
    with engine.consensus(bn=bn, batches=[(images(0)[0][0], images(0)[1][0])]) as model:
        model.train()
        for _ in range(3):
            loss(model, (images(5)[0][0], images(5)[1][0])).backward()
        torch.optim.SGD(model.parameters(), lr=1.0).step()
        draw_from_every_generator()
        with engine.worker(2) as inner:
            inner[1].running_mean.fill_(9.0)
            torch.rand(5)
    assert equal(before, snapshot(engine))
    for t in range(3, 6):
        engine.step(images(t))
        untouched.step(images(t))
    assert equal(snapshot(engine), snapshot(untouched))


def test_views_are_separate_models(schedules: dict) -> None:
    engine = trained(schedules)
    with engine.consensus() as average:
        kept = {k: v.clone() for k, v in average.state_dict().items()}
        with engine.worker(1) as one, engine.worker(2) as two:
            assert not torch.equal(next(one.parameters()), next(two.parameters()))
        assert all(torch.equal(v, kept[k]) for k, v in average.state_dict().items())
    engine.step(images(3))
    assert all(torch.equal(v, kept[k]) for k, v in average.state_dict().items()), "it can be kept after the block"


def test_generators_are_restored_when_the_block_fails(schedules: dict) -> None:
    engine = trained(schedules)
    before = snapshot(engine)

    def fails() -> None:
        with engine.consensus():
            draw_from_every_generator()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert equal(before, snapshot(engine))


def test_the_consensus_model_is_the_average(schedules: dict) -> None:
    engine = trained(schedules)
    model: Any
    with engine.consensus() as model:
        assert not any(m.training for m in model.modules())
        assert type(model) is nn.Sequential
        got = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
        assert torch.equal(got, engine.x.mean(dim=0))
        assert torch.equal(got, engine.mean)
        buffers = dict(model.named_buffers())
        assert torch.equal(buffers["1.running_var"], engine.buffers["1.running_var"].mean(dim=0))
        assert int(buffers["1.num_batches_tracked"]) == 3
    with engine.consensus(bn="local") as model:
        assert torch.equal(model[1].running_var, engine.buffers["1.running_var"][0])
    with engine.consensus(bn="frozen") as model:
        assert torch.equal(model[1].running_var, torch.ones(3, dtype=torch.float64))
    with engine.worker(3) as model:
        assert torch.equal(torch.cat([p.detach().reshape(-1) for p in model.parameters()]), engine.x[3])
        assert torch.equal(model[1].running_mean, engine.buffers["1.running_mean"][3])


def test_recalibration_is_the_plain_average_of_batch_statistics(schedules: dict) -> None:
    engine = trained(schedules)
    batches = [(x, y) for x, y in zip(*images(9), strict=True)]
    with engine.consensus(bn="recalibrate", batches=batches) as model:
        features = [model[0](x) for x, _ in batches]
        mean = torch.stack([f.mean(dim=(0, 2, 3)) for f in features]).mean(dim=0)
        variance = torch.stack([f.var(dim=(0, 2, 3)) for f in features]).mean(dim=0)
        torch.testing.assert_close(model[1].running_mean, mean, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(model[1].running_var, variance, rtol=1e-12, atol=1e-14)
        assert model[1].momentum == 0.1
        assert not model[1].training


def test_push_sum_deploys_the_debiased_model(schedules: dict) -> None:
    engine = StackedEngine(
        network(), loss, algorithm="sgp", topology=schedules["column-stochastic"](N), optimizer=MOMENTUM,
        gradients="vmap",
    )  # fmt: skip
    for t in range(3):
        engine.step(images(t))
    assert float(engine.state.weight.std()) > 0.1
    with engine.worker(0) as model:
        got = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    assert torch.equal(got, engine.x[0])
    assert not torch.equal(got, engine.state_dict()["x"][0])


@pytest.mark.parametrize("route", ["vmap", "loop"])
@pytest.mark.parametrize("name", sorted(algorithms()))
@pytest.mark.parametrize("optimizer", [MOMENTUM, ADAM], ids=["momentum", "adam"])
def test_resume_equals_uninterrupted(name: str, optimizer: Any, route: str, schedules: dict) -> None:
    if hasattr(algorithms()[name], "families"):
        optimizer = ADAM
    whole = trained(schedules, name, 4, optimizer, gradients=route)
    file = io.BytesIO()
    torch.save(whole.state_dict(), file)
    file.seek(0)
    resumed = trained(schedules, name, 0, optimizer, gradients="auto", seed=99)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    torch.manual_seed(1234)  # whatever else has drawn in between
    for t in range(4, 8):
        a, b = whole.step(images(t)), resumed.step(images(t))
        assert torch.equal(a.losses, b.losses)
        assert a.gamma == b.gamma
        assert a.t == b.t == t
    assert equal(snapshot(whole), snapshot(resumed))


def test_a_state_dict_is_a_copy(schedules: dict) -> None:
    engine = trained(schedules)
    saved = engine.state_dict()
    copies = {k: v.clone() for k, v in saved.items() if isinstance(v, torch.Tensor)}
    momentum = saved["optimizer"]["state"][0]["momentum_buffer"].clone()
    engine.step(images(3))
    assert all(torch.equal(saved[k], v) for k, v in copies.items())
    assert torch.equal(saved["optimizer"]["state"][0]["momentum_buffer"], momentum)
    engine.load_state_dict(saved)
    engine.step(images(3))
    assert torch.equal(saved["optimizer"]["state"][0]["momentum_buffer"], momentum)


def test_errors_of_views_and_states(schedules: dict) -> None:
    engine = trained(schedules)
    with pytest.raises(AlgorithmError, match="there is no worker 4: workers are counted from 0 to 3"), engine.worker(4):
        pass
    with pytest.raises(AlgorithmError, match="bn must be one of average, local, frozen, recalibrate, got 'mean'"):
        engine.consensus(bn="mean").__enter__()  # type: ignore[arg-type]
    with pytest.raises(AlgorithmError, match=r'bn="recalibrate" needs batches .* pass batches='):
        engine.consensus(bn="recalibrate").__enter__()
    with pytest.raises(AlgorithmError, match=r'bn="recalibrate" got no batch'):
        engine.consensus(bn="recalibrate", batches=[]).__enter__()
    with pytest.raises(AlgorithmError, match="the state is of algorithm 'dsgd', not 'allreduce'"):
        trained(schedules, "allreduce").load_state_dict(engine.state_dict())
    smaller = StackedEngine(
        network(), loss, algorithm="dsgd", topology=schedules["ring"](3), optimizer=MOMENTUM
    )  # fmt: skip
    with pytest.raises(
        AlgorithmError, match=r"the state has \(workers, parameters\) = \(4, \d+\), expected \(3, \d+\)"
    ):
        smaller.load_state_dict(engine.state_dict())
    with pytest.raises(AlgorithmError, match=r"expected \d+ columns, got 3"):
        engine.unflatten(torch.zeros(3))


def test_a_snapshot_is_a_copy(schedules: dict) -> None:
    engine = trained(schedules)
    before = snapshot(engine)
    seen = engine.snapshot()
    for value in (seen.x, *seen.buffers.values()):
        value.fill_(7)
    assert equal(before, snapshot(engine))
