"""An evaluation against direct computation: which weights, which buffers, every sample once, and no trace."""

import math
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dissensus.algorithms import AlgorithmError, StackedEngine
from dissensus.algorithms.engines.evaluation import Evaluation, evaluate
from dissensus.theory import topology

N = 4
Batch = tuple[Tensor, Tensor]


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)
    ).double()  # fmt: skip


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def accuracy(model: nn.Module, batch: Batch) -> Tensor:
    return model(batch[0]).argmax(dim=1) == batch[1]


def per_sample(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def samples(seed: int, *shape: int) -> Batch:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, 6, generator=g, dtype=torch.float64), torch.randint(0, 3, shape, generator=g)


def trained(n: int = N, steps: int = 4, model: nn.Module | None = None) -> StackedEngine:
    engine = StackedEngine(
        model or network(), cross_entropy, algorithm="dsgd", topology=topology("ring", n),
        optimizer=partial(torch.optim.SGD, lr=0.3, momentum=0.5), gradients="loop",
    )  # fmt: skip
    for t in range(steps):
        engine.step(samples(t, n, 9))
    return engine


def held_out() -> list[Batch]:
    x, y = samples(99, 23)
    return [(x[lo : lo + 8], y[lo : lo + 8]) for lo in (0, 8, 16)]


METRICS = {"loss": cross_entropy, "accuracy": accuracy}
WORSE: dict[str, Any] = {"accuracy": "smaller"}


def directly(model: nn.Module) -> dict[str, float]:
    """Both figures from one forward pass over all samples at once."""
    x, y = samples(99, 23)
    with torch.no_grad():
        scores = model(x)
    return {
        "loss": float(F.cross_entropy(scores, y)),
        "accuracy": int((scores.argmax(dim=1) == y).sum()) / 23,
    }


def everything(engine: StackedEngine) -> list[bytes]:
    """Every bit there is: parameters, buffers, state, optimizer, modes, generators."""
    found: list[bytes] = []

    def collect(value: Any) -> None:
        if isinstance(value, Tensor):
            found.append(value.detach().contiguous().view(-1).numpy().tobytes())
        elif isinstance(value, dict):
            for key in value:
                collect(value[key])
        elif isinstance(value, list | tuple):
            for v in value:
                collect(v)
        else:
            found.append(repr(value).encode())

    collect(engine.state_dict())
    collect([engine.x, engine.buffers])
    collect([torch.get_rng_state(), np.random.get_state()[1].tobytes(), random.getstate()])  # type: ignore[index]  # noqa: NPY002
    collect([torch.is_grad_enabled(), torch.get_default_dtype()])
    return found


@pytest.mark.parametrize("workers", ["loop", "vmap"])
@pytest.mark.parametrize("bn", ["average", "local", "frozen", "recalibrate"])
def test_it_equals_direct_computation(bn: Any, workers: Any) -> None:
    engine = trained()
    calibration = [samples(7, 11)] if bn == "recalibrate" else None
    found = evaluate(engine, METRICS, held_out(), bn=bn, calibration=calibration, worse=WORSE, workers=workers)
    with engine.consensus(bn=bn, batches=calibration) as model:
        average = directly(model)
    apart: list[dict[str, float]] = []
    for i in range(N):
        with engine.worker(i) as model:
            apart.append(directly(model))
    for name, worst in (("loss", max), ("accuracy", min)):
        m, values = found[name], [a[name] for a in apart]
        assert m.consensus == pytest.approx(average[name], rel=1e-13)
        assert m.per_worker == pytest.approx(values, rel=1e-13)
        assert m.local_mean == pytest.approx(sum(values) / N, rel=1e-13)
        assert m.worst == pytest.approx(worst(values), rel=1e-13)
        assert m.worst_worker == values.index(worst(values))
    assert found["accuracy"].per_worker == tuple(a["accuracy"] for a in apart), "a share is exact"
    assert (found.samples, found.batches, found.bn, found.step, found.size) == (23, 3, bn, 4, N)
    assert len({m.consensus for m in found.metrics.values()} | set(found["loss"].per_worker)) == N + 2


def test_the_consensus_is_recalibrated_and_the_workers_keep_their_own_statistics() -> None:
    engine = trained()
    calibration = [samples(7, 11)]
    found = {bn: evaluate(engine, METRICS, held_out(), bn=bn) for bn in ("average", "local", "frozen")}
    found["recalibrate"] = evaluate(engine, METRICS, held_out(), bn="recalibrate", calibration=calibration)
    assert len({f["loss"].consensus for f in found.values()}) == 4
    assert len({f["loss"].per_worker for f in found.values()}) == 1


def test_a_short_batch_counts_by_its_samples() -> None:
    engine = trained()
    whole = [samples(99, 23)]
    for metric in (cross_entropy, per_sample):
        one, other = (evaluate(engine, metric, batches)[metric.__name__] for batches in (held_out(), whole))
        assert one.consensus == pytest.approx(other.consensus, rel=1e-13)
        assert one.per_worker == pytest.approx(other.per_worker, rel=1e-13)
    empty = [*held_out(), samples(1, 0)]
    assert (
        evaluate(engine, cross_entropy, empty)["cross_entropy"]
        == evaluate(engine, cross_entropy, held_out())["cross_entropy"]
    )


@pytest.mark.parametrize("workers", ["loop", "vmap"])
def test_it_leaves_no_trace(workers: Any) -> None:
    engine, untouched = trained(), trained()

    def intrusive(model: nn.Module, batch: Batch) -> Tensor:
        model.train()
        if workers == "loop":
            next(model.parameters()).data.fill_(3.0)
            model[1].running_mean.fill_(9.0)  # type: ignore[index,union-attr]
        torch.rand(3)
        np.random.rand(2)  # noqa: NPY002
        random.random()
        return batch[0].sum(dim=1)

    def shuffled() -> Any:
        for batch in held_out():
            order = torch.randperm(len(batch[0]))
            random.random()
            yield batch[0][order], batch[1][order]

    torch.manual_seed(5)
    before = everything(engine)
    evaluate(engine, {"intrusive": intrusive, **METRICS}, shuffled(), workers=workers)
    assert everything(engine) == before
    evaluate(engine, METRICS, shuffled(), bn="recalibrate", calibration=shuffled(), workers=workers)
    assert everything(engine) == before
    for t in range(4, 6):
        engine.step(samples(t, N, 9))
        untouched.step(samples(t, N, 9))
    assert torch.equal(engine.x, untouched.x)


@pytest.mark.parametrize("workers", ["loop", "vmap"])
def test_a_metric_that_fails_leaves_no_trace_either(workers: Any) -> None:
    engine = trained()
    calls = []

    def fails(model: nn.Module, batch: Batch) -> Tensor:
        torch.rand(1)
        calls.append(model.training)
        if len(calls) == 4:
            raise ZeroDivisionError
        return model(batch[0]).sum()

    before = everything(engine)
    with pytest.raises(ZeroDivisionError):
        evaluate(engine, fails, held_out(), workers=workers)
    assert everything(engine) == before
    assert not any(calls), "eval mode"


@pytest.mark.parametrize("workers", ["loop", "vmap"])
def test_one_metric_cannot_disturb_another(workers: Any) -> None:
    """What a metric does to the module it is handed is gone when the next worker is looked at."""
    engine = trained()

    def switches_on_dropout(model: nn.Module, batch: Batch) -> Tensor:
        model.train()
        return batch[0].sum(dim=1)

    alone = evaluate(engine, METRICS, held_out(), workers=workers)
    beside = evaluate(engine, {"first": switches_on_dropout, **METRICS}, held_out(), workers=workers)
    assert {name: beside[name] for name in METRICS} == dict(alone.metrics)


def test_both_ways_to_run_the_workers_agree_and_draw_the_same_numbers() -> None:
    engine = trained()

    def noisy(model: nn.Module, batch: Batch) -> Tensor:
        return cross_entropy(model, (batch[0] + torch.randn(batch[0].shape, dtype=torch.float64), batch[1]))

    for metric in (cross_entropy, noisy):
        loop = evaluate(engine, metric, held_out())[metric.__name__]
        for chunk in (None, 1, 3):
            vmap = evaluate(engine, metric, held_out(), workers="vmap", chunk=chunk)[metric.__name__]
            assert vmap.per_worker == pytest.approx(loop.per_worker, rel=1e-12)
    same = trained(steps=0)
    got = evaluate(same, noisy, held_out())["noisy"]
    assert set(got.per_worker) == {got.consensus}, "equal models see equal noise"


@pytest.mark.parametrize(("worse", "bad"), [("larger", math.inf), ("smaller", -math.inf)])
def test_a_worker_that_is_not_a_number_is_the_worst(worse: Any, bad: float) -> None:
    engine = trained()
    values = iter([0.5, 1.0, bad, math.nan, math.nan])

    def scripted(model: nn.Module, batch: Batch) -> Tensor:
        del model, batch
        return torch.tensor(next(values), dtype=torch.float64)

    found = evaluate(engine, scripted, [samples(0, 5)], worse=worse)["scripted"]
    assert found.consensus == 0.5
    assert math.isnan(found.worst)
    assert found.worst_worker == 2
    assert math.isnan(found.local_mean)
    values = iter([0.5, 1.0, bad, 1.0, 1.0])
    infinite = evaluate(engine, scripted, [samples(0, 5)], worse=worse)["scripted"]
    assert (infinite.worst, infinite.worst_worker) == (bad, 1)


def test_a_worker_that_was_cut_off_is_named_and_not_averaged() -> None:
    engine = StackedEngine(
        network(), cross_entropy, algorithm="dsgd", topology=topology("ring", N),
        optimizer=partial(torch.optim.SGD, lr=0.3), gradients="loop", on_nan="isolate",
    )  # fmt: skip
    for t in range(3):
        x, y = samples(t, N, 9)
        x[2] = float("nan") if t == 1 else x[2]
        engine.step((x, y))
    found = evaluate(engine, METRICS, held_out())
    assert found.isolated == (2,)
    assert "consensus: the average of 3 workers (2 isolated), buffers averaged" in str(found)
    with engine.consensus() as model:
        assert found["loss"].consensus == pytest.approx(directly(model)["loss"], rel=1e-13)
    assert len(found["loss"].per_worker) == N
    assert all(math.isfinite(v) for v in found["loss"].per_worker)


def test_ties_go_to_the_first_worker() -> None:
    engine = trained(steps=0)
    found = evaluate(engine, METRICS, held_out(), worse=WORSE)
    assert found["loss"].worst_worker == found["accuracy"].worst_worker == 0
    assert found["loss"].worst == found["loss"].consensus


def test_one_worker_is_its_own_consensus() -> None:
    engine = trained(n=1)
    found = evaluate(engine, METRICS, held_out(), worse=WORSE)
    for m in found.metrics.values():
        assert m.consensus == m.local_mean == m.worst == m.per_worker[0]
        assert m.worst_worker == 0


def test_whole_numbers_and_truth_values_are_summed_exactly() -> None:
    engine = trained()

    def right(model: nn.Module, batch: Batch) -> Tensor:
        return (model(batch[0]).argmax(dim=1) == batch[1]).to(torch.int32)

    found = evaluate(engine, {"share": accuracy, "right": right}, held_out(), workers="vmap")
    assert found["share"] == found["right"]
    assert all((v * 23) == round(v * 23) for v in found["share"].per_worker)


def test_other_batches_and_models_without_buffers() -> None:
    torch.manual_seed(0)
    engine = StackedEngine(
        nn.Linear(6, 3).double(), lambda m, b: F.cross_entropy(m(b["x"]), b["y"]), algorithm="dsgd",
        topology=topology("ring", 3), optimizer=partial(torch.optim.SGD, lr=0.1), gradients="loop",
    )  # fmt: skip
    x, y = samples(0, 3, 5)
    engine.step({"x": x, "y": y})
    found = evaluate(engine, lambda m, b: F.cross_entropy(m(b["x"]), b["y"]), [{"x": x[0], "y": y[0]}])
    assert found.bn == "none"
    assert found.samples == 5
    assert list(found.metrics) == ["metric"]
    pairs = [{"x": x[0], "y": y[0]}, {"x": x[1][:2], "y": y[1][:2]}]
    by_hand = evaluate(engine, lambda m, b: F.cross_entropy(m(b["x"]), b["y"]), pairs, samples=lambda b: 1)
    assert by_hand.samples == 2


def test_the_table_says_which_is_which() -> None:
    engine = trained()
    text = str(evaluate(engine, METRICS, held_out(), bn="recalibrate", calibration=[samples(7, 11)], worse=WORSE))
    lines = text.splitlines()
    assert lines[0].split("  ")[-1] == "worst worker"
    assert "consensus" in lines[0]
    assert "local mean" in lines[0]
    assert lines[1].startswith("loss")
    assert lines[1].endswith("(larger is worse)")
    assert lines[2].endswith("(smaller is worse)")
    assert "step 4, 23 samples in 3 batches" in text
    assert "consensus: the average of 4 workers, normalisation statistics measured anew" in text
    assert "local mean: 4 workers evaluated apart, each with its own buffers, then averaged" in text


BAD: list[tuple[str, Callable[[StackedEngine], Any]]] = [
    ("metrics is empty", lambda e: evaluate(e, {}, held_out())),
    ("no sample to evaluate on", lambda e: evaluate(e, METRICS, [])),
    ("worse must be .larger. or .smaller., got .higher.", lambda e: evaluate(e, METRICS, [], worse="higher")),  # type: ignore[arg-type]
    ("worse names 'acuracy', which is no metric; did you mean 'accuracy'",
     lambda e: evaluate(e, METRICS, [], worse={"acuracy": "smaller"})),
    ("workers must be 'loop' or 'vmap'", lambda e: evaluate(e, METRICS, [], workers="all")),  # type: ignore[arg-type]
    ("chunk must be at least 1", lambda e: evaluate(e, METRICS, [], workers="vmap", chunk=0)),
    (r"pass calibration=\[...\]", lambda e: evaluate(e, METRICS, held_out(), bn="recalibrate")),
    ("bn must be one of", lambda e: evaluate(e, METRICS, held_out(), bn="mean")),  # type: ignore[arg-type]
    ("must return a tensor, got float", lambda e: evaluate(e, {"m": lambda m, b: 1.0}, held_out())),  # type: ignore[dict-item,return-value]
    (r"one value per sample, \(8,\), got shape \(8, 6\)", lambda e: evaluate(e, {"m": lambda m, b: b[0]}, held_out())),
    ("one whole number", lambda e: evaluate(e, {"m": lambda m, b: accuracy(m, b).sum()}, held_out())),
    ("must be real", lambda e: evaluate(e, {"m": lambda m, b: b[0][:, 0] + 0j}, held_out())),
    ("without a tensor in it", lambda e: evaluate(e, METRICS, [("text", 3)])),
    ("cannot be vectorised over workers", lambda e: evaluate(
        e, {"m": lambda m, b: torch.tensor(cross_entropy(m, b).item())}, held_out(), workers="vmap")),
    ("metric 'los' was not evaluated; did you mean 'loss'", lambda e: evaluate(e, METRICS, held_out())["los"]),
]  # fmt: skip


@pytest.mark.parametrize(("message", "wrong"), BAD, ids=[m[:25] for m, _ in BAD])
def test_what_cannot_be_evaluated_is_refused(message: str, wrong: Callable[[StackedEngine], Any]) -> None:
    engine = trained(steps=1)
    with pytest.raises(AlgorithmError, match=message):
        wrong(engine)


def test_errors_of_the_model_come_through() -> None:
    engine = trained(steps=1)
    for workers in ("loop", "vmap"):
        with pytest.raises(RuntimeError, match=r"shapes|size"):
            evaluate(engine, METRICS, [(torch.zeros(2, 5).double(), torch.zeros(2).long())], workers=workers)  # type: ignore[arg-type]
    assert isinstance(evaluate(engine, METRICS, held_out()), Evaluation)


@pytest.mark.parametrize("on", [True, False])
def test_inside_an_autocast_every_worker_has_its_own_weights(on: bool) -> None:
    """Autocast keeps low-precision copies of parameters until it ends, and all workers take turns in one module."""
    engine = StackedEngine(
        network().float(), cross_entropy, algorithm="dsgd", topology=topology("ring", N),
        optimizer=partial(torch.optim.SGD, lr=0.3), gradients="loop",
    )  # fmt: skip
    for t in range(3):
        x, y = samples(t, N, 9)
        engine.step((x.float(), y))
    x, y = samples(99, 23)
    expected = []
    for i in range(N):
        with engine.worker(i) as model, torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            expected.append(float(cross_entropy(model, (x.float(), y))))
    assert len(set(expected)) == N

    def casting(model: nn.Module, batch: Batch) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return cross_entropy(model, batch)

    with torch.autocast("cpu", torch.bfloat16, enabled=on):
        found = evaluate(engine, casting, [(x.float(), y)])
    assert found["casting"].per_worker == pytest.approx(expected, rel=1e-6)
