"""What an engine in blocks does with its options, what it reports of all workers, and what it refuses."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pool import Pool
from test_blocks import WITHIN, batch, cross_entropy, distance, engine_of, held, network, together
from torch import Tensor, nn

from dissensus.algorithms import AlgorithmError, OnOff, StackedEngine, Straggler, evaluate
from dissensus.algorithms.engines import layout
from dissensus.algorithms.engines.distributed.timeline import Timeline, write_trace
from dissensus.algorithms.engines.distributed.wire import Wire

HERE, N = Path(__file__), 4


def options_of(case: str) -> dict[str, Any]:
    sgd, adam = partial(torch.optim.SGD, lr=0.1, momentum=0.9), partial(torch.optim.Adam, lr=0.01, eps=1e-3)
    start = torch.randn(N, 87, generator=torch.Generator().manual_seed(3), dtype=torch.float64) / 3
    found: dict[str, dict[str, Any]] = {
        "clip": {"clip": 0.1, "start": start},
        "accumulate": {"accumulate": 3},
        "loop": {"gradients": "loop"},
        "per-worker": {"per_worker": [{"lr": 0.05 * (i + 1), "momentum": 0.2 * i} for i in range(N)], "lr": None},
        "groups": {"optimizer": sgd, "groups": lambda name, shape: {"weight_decay": 0.1} if len(shape) > 1 else {}},
        "away": {"participation": OnOff(N, away=0.4, stay=2.0, seed=1)},
        "straggler": {"participation": Straggler(N, worker=1, every=3), "optimizer": adam, "lr": 0.01},
        "isolate": {"on_nan": "isolate"},
    }
    return found[case]


def train(engine: StackedEngine, steps: int, spoiled: tuple[int, int] = (-1, -1)) -> dict[str, Tensor]:
    """Steps on the batches of `test_blocks`; worker spoiled[1] finds a number that is none at step spoiled[0]."""
    losses = []
    for t in range(steps):
        inputs, targets = batch(t, engine.workers)
        if t == spoiled[0] and spoiled[1] in engine.workers:
            inputs[spoiled[1] - engine.workers.start, 0, 0] = torch.nan
        losses.append(engine.step((inputs, targets)).losses.nan_to_num(nan=-1.0))
    return held(engine, losses)


def script(case: str, name: str, graph: str, wired: bool = True) -> tuple[dict[str, Tensor], dict[int, int]]:
    wire = Wire(timeout=30) if wired else None
    engine = engine_of(N, name, {}, graph, wire=wire, **options_of(case))
    spoiled = (7, 2) if case == "isolate" else (-1, -1)
    return train(engine, 20, spoiled), engine.isolated


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(
    ("case", "name", "graph"),
    [
        ("clip", "dsgd", "ring"),
        ("accumulate", "dsgd", "ring"),
        ("loop", "dsgd", "ring"),
        ("per-worker", "dsgd", "exponential"),
        ("groups", "gradient-tracking", "ring"),
        ("away", "dsgd", "ring"),
        ("away", "allreduce", "ring"),
        ("straggler", "gradient-tracking", "ring"),
        ("isolate", "dsgd", "ring"),
        ("isolate", "allreduce", "ring"),
        ("isolate", "sgp", "one-peer-exponential"),
        ("isolate", "gradient-tracking", "ring"),
        ("isolate", "allreduce", "one-peer-exponential"),
    ],
)
def test_an_option_means_the_same_in_blocks(case: str, name: str, graph: str, count: int, processes: Pool) -> None:
    found = processes.run(count, f"{HERE}:script", case=case, name=name, graph=graph)
    expected, isolated = script(case, name, graph, wired=False)
    for which, error in distance(together([rows for rows, _ in found]), expected).items():
        assert error < WITHIN, f"{which} differs by {error}"
    assert all(one == isolated for _, one in found)
    assert isolated == ({2: 7} if case == "isolate" else {})


def stopping() -> str:
    """The sentence with which this process ends, at once and not at the time-out."""
    engine = engine_of(N, "dsgd", {}, "ring", wire=Wire(timeout=20))
    try:
        train(engine, 20, (7, 2))
    except AlgorithmError as error:
        torch.distributed.destroy_process_group()
        return str(error)
    return ""


def test_a_number_that_is_not_finite_is_told_by_worker_and_step_in_every_process(processes: Pool) -> None:
    outcomes = processes.outcomes(2, f"{HERE}:stopping", timeout=60.0)
    said = [str(outcome.value) for outcome in outcomes]
    assert "worker 2 has the loss nan at step 7; no other worker has received anything of it" in said[1]
    assert "process 0 lost its peer at step" in said[0]
    assert "worker 2 has the loss nan at step 7" in said[0]


def wide(kept: int, wired: bool = True) -> tuple[dict[str, Tensor], int, list[int]]:
    """A model whose columns are cut into several messages."""
    before, wire = (layout.TOGETHER, layout.MESSAGE), Wire(timeout=30) if wired else None
    layout.TOGETHER = layout.MESSAGE = kept
    try:
        engine = engine_of(N, "gradient-tracking", {}, "ring", wire=wire, clip=1.0)
    finally:
        layout.TOGETHER, layout.MESSAGE = before
    found = train(engine, 10)
    where = engine._workers.layout
    return found, 0 if wire is None else wire.timeline.counts["messages"], [s.width for s in where.strips]


@pytest.mark.parametrize("count", [2, 4])
def test_a_model_of_several_messages(count: int, processes: Pool) -> None:
    found = processes.run(count, f"{HERE}:wide", kept=32)
    assert [widths for _, _, widths in found] == [[32, 32, 23]] * count
    # two exchanges a step of three strips, to one process where there are two and to two where there are four
    assert [messages for _, messages, _ in found] == [10 * 2 * 3 * (1 if count == 2 else 2)] * count
    expected, _, widths = wide(1 << 20, wired=False)
    assert widths == [87]
    assert max(distance(together([own for own, _, _ in found]), expected).values()) < WITHIN


def packed() -> tuple[list[int], list[int]]:
    """The strips of a model of many middle-sized parameters, in blocks and not."""
    model = nn.Sequential(*(nn.Linear(150, 150) for _ in range(20)))
    options = {"algorithm": "dsgd", "topology": engine_of(N, "dsgd", {}, "ring").topology}
    engines = [StackedEngine(model, cross_entropy, wire=wire, **options) for wire in (Wire(timeout=30), None)]
    blocks, whole = ([s.width for s in engine._workers.layout.strips] for engine in engines)
    return blocks, whole


def test_messages_are_not_tiny(processes: Pool) -> None:
    blocks, whole = processes.run(2, f"{HERE}:packed")[0]
    assert sum(blocks) == sum(whole) == 20 * (150 * 150 + 150)
    assert len(blocks) == 1
    assert len(whole) == 21, "in one process every large parameter has a block of its own, where they are many numbers"


def looks() -> dict[str, Any]:
    """What is told of all workers, and of this process's."""
    engine = engine_of(N, "sgp", {}, "one-peer-exponential", wire=Wire(timeout=30))
    for t in range(5):
        engine.step(batch(t, engine.workers))
    probe = [tuple(part[0] for part in batch(99, range(1)))]
    seen, alone = engine.snapshot(), engine.snapshot(1)
    found = evaluate(engine, cross_entropy, probe)
    with engine.consensus() as model:
        consensus = model.state_dict()
    own = engine.workers.start
    with engine.worker(own) as model:
        worker = nn.utils.parameters_to_vector(model.parameters()).detach()
    try:
        with engine.worker((own + 2) % N):
            refused = ""
    except AlgorithmError as error:
        refused = str(error)
    return {
        "workers": engine.workers,
        "shape": tuple(engine.x.shape),
        "x": seen.x,
        "of process 1": len(alone.x),
        "mean": engine.mean,
        "consensus": consensus,
        "evaluated": (found["cross_entropy"].consensus, *found["cross_entropy"].per_worker),
        "worker": worker,
        "refused": refused,
        "lengths": [len(v) for v in (*engine.buffers.values(), *engine.state, *engine.state_dict()["state"].values())],
    }


def test_what_an_engine_tells_of_all_workers(processes: Pool) -> None:
    found = processes.run(2, f"{HERE}:looks")
    engine = engine_of(N, "sgp", {}, "one-peer-exponential")
    for t in range(5):
        engine.step(batch(t, engine.workers))
    probe = [tuple(part[0] for part in batch(99, range(1)))]
    evaluated = evaluate(engine, cross_entropy, probe)["cross_entropy"]
    with engine.consensus() as model:
        consensus = model.state_dict()
    close = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-13)
    for rank, one in enumerate(found):
        assert one["workers"] == range(2 * rank, 2 * rank + 2)
        assert one["shape"] == (2, 87)
        assert one["lengths"] == [2] * 5
        close(one["x"], engine.x)
        close(one["mean"], engine.mean)
        close(one["worker"], engine.x[2 * rank])
        for key, value in consensus.items():
            close(one["consensus"][key], value)
        np.testing.assert_allclose(one["evaluated"], (evaluated.consensus, *evaluated.per_worker), rtol=1e-12)
        assert torch.equal(one["x"], found[0]["x"])
        there = "2 to 3" if rank else "0 to 1"
        assert f"worker {2 - 2 * rank} is in another process: this one has the workers {there}" in one["refused"]
    assert [one["of process 1"] for one in found] == [0, N]


def rows(t: int, count: int) -> list[Any]:
    """The states of the workers of this process after t steps, and what comes of going on from them."""
    options: dict[str, Any] = {"optimizer": partial(torch.optim.Adam, lr=0.01, eps=1e-3), "lr": 0.01}
    engine = engine_of(count, "gradient-tracking", {}, "ring", wire=Wire(timeout=30), **options)
    for k in range(t):
        engine.step(batch(k, engine.workers))
    saved = engine.save_rows()
    again = engine_of(count, "gradient-tracking", {}, "ring", wire=Wire(timeout=30), seed=5, **options)
    again.load_rows(saved)
    ends = []
    for one in (engine, again):
        losses = [one.step(batch(k, one.workers)).losses for k in range(t, 2 * t)]
        ends.append(held(one, losses))
    return [saved, ends, all(torch.equal(ends[0][k], ends[1][k]) for k in ends[0])]


def test_saved_rows_go_on_to_the_bit_and_in_any_other_layout(processes: Pool) -> None:
    found = processes.run(2, f"{HERE}:rows", t=6, count=N)
    assert all(same for _, _, same in found)
    saved = {i: state for own, _, _ in found for i, state in own.items()}
    assert sorted(saved) == list(range(N))
    for i in range(N // 2, N):  # every process measures for itself which route is the fastest
        saved[i]["extra"]["engine"] |= {"route": "loop", "chunk": 1}
    options: dict[str, Any] = {"optimizer": partial(torch.optim.Adam, lr=0.01, eps=1e-3), "lr": 0.01}
    engine = engine_of(N, "gradient-tracking", {}, "ring", **options)
    engine.load_rows(saved)
    assert (engine.t, engine.route) == (6, saved[0]["extra"]["engine"]["route"])
    losses = [engine.step(batch(k, engine.workers)).losses for k in range(6, 12)]
    errors = distance(held(engine, losses), together([ends[0] for _, ends, _ in found]))
    assert max(errors.values()) < WITHIN, errors


def traced(folder: str) -> None:
    wire = Wire(timeout=30, timeline=Timeline(traced=True))
    engine = engine_of(N, "dsgd", {}, "ring", wire=wire)
    train(engine, 5)
    engine.snapshot()  # what is watched by a thread has landed by then, or soon
    spans = wire.gather(list(wire.timeline.spans), what="trace")
    if wire.rank == 0:
        write_trace(Path(folder) / "trace.json", dict(enumerate(spans)))


def test_a_trace_shows_messages_under_way_while_gradients_are_taken(processes: Pool, tmp_path: Path) -> None:
    processes.run(2, f"{HERE}:traced", folder=str(tmp_path))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    for process in range(2):
        own = [e for e in events if e["pid"] == process and e["ph"] == "X"]
        names = {e["name"] for e in own}
        assert names >= {"gradient", "post", "flight", "wait", "mix", "move", "step"}
        gradients = {e["args"]["step"]: e for e in own if e["name"] == "gradient"}
        posts = {e["args"]["step"]: e for e in own if e["name"] == "post"}
        waits = {e["args"]["step"]: e for e in own if e["name"] == "wait" and e["args"]["what"] == "exchange"}
        assert sorted(gradients) == sorted(posts) == sorted(waits) == list(range(5))
        for t, gradient in gradients.items():
            assert posts[t]["ts"] + posts[t]["dur"] <= gradient["ts"], "the message left before the gradient began"
            assert gradient["ts"] + gradient["dur"] <= waits[t]["ts"], "and is waited for after it"


def uneven() -> str:
    try:
        engine_of(5, "dsgd", {}, "ring", wire=Wire(timeout=20))
    except AlgorithmError as error:
        return str(error)
    return ""


def test_workers_that_cannot_be_shared_evenly_are_refused(processes: Pool) -> None:
    said = processes.run(2, f"{HERE}:uneven")
    assert all("5 workers cannot be shared evenly among 2 processes" in one for one in said)


def unlike() -> str:
    wire = Wire(timeout=20)
    try:
        engine_of(N, "dsgd", {"gamma": 0.5 + 0.1 * wire.rank}, "ring", wire=wire)
    except AlgorithmError as error:
        return str(error)
    return ""


def test_processes_that_mean_different_things_end_before_the_first_step(processes: Pool) -> None:
    said = processes.run(2, f"{HERE}:unlike")
    assert all("process 1 differs from process 0 in the algorithm" in one for one in said)


def test_a_batch_of_all_workers_is_refused_by_a_block(processes: Pool) -> None:
    said = processes.run(2, f"{HERE}:whole_batch")
    assert all(
        "every tensor of a batch needs the worker dimension first, (2, ...), got (4, 6, 6)" in one for one in said
    )


def whole_batch() -> str:
    engine = engine_of(N, "dsgd", {}, "ring", wire=Wire(timeout=20))
    try:
        engine.step(batch(0, range(N)))
    except AlgorithmError as error:
        return str(error)
    return ""


def test_the_template_is_the_network() -> None:
    assert sum(p.numel() for p in network().parameters()) == 87
