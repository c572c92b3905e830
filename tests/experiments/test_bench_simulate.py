"""The benchmark of the simulation: what it times does the same work, its numbers follow from its times.

No time is asserted.
"""

import contextlib
import json
import time
from typing import Any

import numpy as np
import pytest
import torch

from dissensus.algorithms.protocol import Await, Gradient, Note, Post
from dissensus.experiments.bench import simulate_memory
from dissensus.experiments.bench.simulate import bench_simulate
from dissensus.experiments.bench.simulate_agreement import Ours, agreement, difference_to_big_step
from dissensus.experiments.bench.simulate_limit import Observed, against_the_limit, verdict
from dissensus.experiments.bench.simulate_loop import against_loops
from dissensus.experiments.bench.simulate_memory import activations, allocated, memory
from dissensus.experiments.bench.simulate_models import CASES, starting_points
from dissensus.experiments.bench.simulate_rivals import DENSE_UP_TO, OPTIMIZERS, BigStep, PythonLoop, TunedLoop
from dissensus.experiments.bench.timing import race, spread
from dissensus.experiments.cli import bench as verb
from dissensus.experiments.cli import main
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.threads import threads
from dissensus.theory.registry import topology

NARROW = "mlp 64-64-10, b=16"
SPREAD = {"median", "min", "max", "runs"}


def consistent(row):
    """Every row says who was timed, how often, that all agree, and a limit that is met or not."""
    assert row["agree"] is True, row["difference"]
    for lap in row["seconds"].values():
        assert set(lap) == SPREAD
        assert 0 < lap["min"] <= lap["median"] <= lap["max"]
        assert lap["runs"] >= 1
    assert {row["met"], row["met_by_fastest"]} <= {True, False}
    assert {"case", "kind", "n", "b", "d", "optimizer", "threads", "route", "limit"} <= set(row)
    json.dumps(row, allow_nan=False)


# --- the rivals do the work they are said to do ---


def dense_dsgd(case, start, batch, steps, lr, momentum):
    """x+ = W x - lr m, m = momentum m + g(x): float64, the gradients from the module at every worker's own point."""
    w = topology("ring", len(start))[0].dense()
    x, m = start.double().numpy(), np.zeros(start.shape)
    for _ in range(steps):
        rows = []
        for i, point in enumerate(x):
            model = case.model().double()
            torch.nn.utils.vector_to_parameters(torch.from_numpy(point), model.parameters())
            inputs, labels = batch[0][i].double(), batch[1][i]
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            rows.append(torch.cat([p.grad.reshape(-1) for p in model.parameters()]).numpy())
        m = momentum * m + np.stack(rows)
        x = w @ x - lr * m
    return x


@pytest.mark.parametrize("n", [5, DENSE_UP_TO + 1])
@pytest.mark.parametrize("kind", [PythonLoop, TunedLoop, Ours])
def test_loops_follow_the_dense_recursion(kind, n):
    case = CASES[NARROW]
    start, batch, factory = starting_points(case, n), case.samples(n), OPTIMIZERS["momentum"]
    if kind is Ours:
        contender = Ours(case, n, factory, batch, start=start)
    else:
        contender = kind(case, topology("ring", n), factory, batch, start)
    for _ in range(3):
        contender.step()
    expected = dense_dsgd(case, start, batch, 3, 0.01, 0.9)
    moved = np.abs(expected - start.double().numpy()).max()
    # single precision: a few roundings of numbers up to 1, held against how far the workers went
    np.testing.assert_allclose(contender.x.double().numpy(), expected, rtol=0, atol=2e-4 * moved)


@pytest.mark.parametrize("name", CASES)
def test_every_model_takes_the_same_step_in_the_engine_and_in_both_loops(name):
    case, n = CASES[name], 3
    start, batch, factory = starting_points(case, n), case.samples(n), OPTIMIZERS["momentum"]
    assert batch[0].shape[:2] == (n, case.batch)
    ring = topology("ring", n)
    others = {
        "tuned": TunedLoop(case, ring, factory, batch, start),
        "ours": Ours(case, n, factory, batch, start=start, gradients="loop"),
    }
    assert agreement(PythonLoop(case, ring, factory, batch, start), others, start)["agree"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"algorithm": "allreduce"},
        {"algorithm": "local-sgd"},
        {"optimizer": OPTIMIZERS["sgd"]},
        {"lr": 0.0101},
        {"topology": topology("complete", 5)},
        {"start": None},
    ],
    ids=str,
)
def test_a_contender_that_does_something_else_is_found_out(wrong):
    case, n = CASES[NARROW], 5
    start, batch, factory = starting_points(case, n), case.samples(n), OPTIMIZERS["momentum"]
    found = agreement(
        PythonLoop(case, topology("ring", n), factory, batch, start),
        {"wrong": Ours(case, n, factory, batch, **({"start": start} | wrong))},
        start,
    )
    assert found["agree"] is False
    assert found["difference"]["wrong"] > 1e-4


def test_the_big_step_is_the_gradient_of_all_samples_and_a_move_of_all_numbers():
    to_big_step = difference_to_big_step(CASES[NARROW])
    assert to_big_step is not None
    assert to_big_step < 1e-9
    normalised = next(case for case in CASES.values() if case.normalised)
    assert difference_to_big_step(normalised) is None
    case = CASES[NARROW]
    big = BigStep(case, 3, OPTIMIZERS["sgd"], case.samples(3))
    before = big.block.detach().clone()
    big.step()
    assert big.block.shape == (3, big.gradient().numel())
    torch.testing.assert_close(before - big.block.detach(), torch.full_like(before, 1e-5), rtol=1e-2, atol=0)
    assert [len(laps) for laps in big.parts.values()] == [1, 1]


# --- rows follow from times ---


def test_limit_row():
    row = against_the_limit(CASES[NARROW], 3, "momentum", OPTIMIZERS["momentum"], 1, 0.0, 2)
    consistent(row)
    assert row["cores_had"] > 0
    assert row["part"] == "limit"
    assert set(row["seconds"]) == {"big step", "ours", "ours, observed"}
    assert set(row["parts_of_ours"]) == {"gradients", "mixing", "move", "rest"}
    assert set(row["parts_of_big_step"]) == {"gradient", "optimizer"}
    assert all(lap["runs"] == row["seconds"]["ours"]["runs"] == 2 for lap in row["parts_of_ours"].values())
    assert row["ratio"] == row["seconds"]["ours"]["median"] / row["seconds"]["big step"]["median"]
    assert set(row["difference"]) == {"ours", "ours, observed", "big step"}


@pytest.mark.parametrize(
    ("kind", "big", "ours", "limit", "met"),
    [
        (NARROW, 0.0100, 0.0149, "1.5 x", True),
        (NARROW, 0.0100, 0.0151, "1.5 x", False),
        ("cnn 8x8, b=16", 0.0100, 0.0199, "2.0 x", True),
        ("gpt 2 layers, b=8", 0.0100, 0.0201, "2.0 x", False),
        (NARROW, 0.0049, 0.0078, "3 ms more", True),
        ("cnn 8x8, b=16", 0.0049, 0.0080, "3 ms more", False),
        (NARROW, 0.0001, 0.0030, "3 ms more", True),
    ],
)
def test_verdict(kind, big, ours, limit, met):
    laps = {"big step": spread([big, big, 9.0]), "ours": spread([ours, ours, 0.5 * ours])}
    found = verdict(CASES[kind], laps)
    assert (found["limit"], found["met"]) == (limit, met)
    assert found["ratio"] == pytest.approx(ours / big)
    assert found["ratio_of_fastest"] == pytest.approx(0.5 * ours / big)
    assert found["more_seconds"] == pytest.approx(ours - big)


def test_the_clock_beside_the_algorithm_accounts_for_the_whole_step():
    class Asking:
        """Asks for everything once, and takes its own time."""

        def step(self, x, state, local):
            time.sleep(0.002)
            ticket = yield Post(x)
            g = yield Gradient(x)
            yield Note("seen", 1.0)
            mixed = yield Await(ticket)
            return local.move(mixed, g), state

    class Alone:
        t = 7

        def move(self, x, g):
            time.sleep(0.003)
            return x

    asking: Any = Asking()
    alone: Any = Alone()
    observed = Observed(asking)

    def in_lockstep():
        """Two strips of columns: both ask for their gradients before both get them."""
        strips = [observed.step(torch.zeros(1, 1), None, alone) for _ in range(2)]
        for strip in strips:
            assert isinstance(next(strip), Post)
            assert isinstance(strip.send("ticket"), Gradient)
        time.sleep(0.020)
        for strip in strips:
            assert isinstance(strip.send("g"), Note)
            assert isinstance(strip.send(None), Await)
            time.sleep(0.006)
            with contextlib.suppress(StopIteration):
                strip.send("mixed")

    begin = time.perf_counter()
    observed.whole(in_lockstep)
    whole = time.perf_counter() - begin
    least = {"gradients": 0.020, "mixing": 2 * 0.006, "move": 2 * 0.003, "rest": 2 * 0.002}
    assert {name: len(laps) for name, laps in observed.parts.items()} == dict.fromkeys(least, 1)
    parts = {name: laps[0] for name, laps in observed.parts.items()}
    assert all(parts[name] >= seconds for name, seconds in least.items()), parts
    assert sum(parts.values()) <= whole


def test_loop_row():
    row = against_loops(CASES[NARROW], 3, "momentum", OPTIMIZERS["momentum"], 1, 0.0, 2)
    consistent(row)
    median = {name: lap["median"] for name, lap in row["seconds"].items()}
    assert set(median) == {"python loop", "tuned python loop", "ours, auto", "ours, vmap", "ours, loop"}
    assert row["times_faster_than_python_loop"] == median["python loop"] / median["ours, auto"]
    faster = min(median["python loop"], median["tuned python loop"])
    assert row["times_slower_than_faster_loop"] == median["ours, auto"] / faster
    assert row["limit"] == "at most 1.05 x slower"
    assert row["met"] == (row["times_slower_than_faster_loop"] <= 1.05)
    assert row["route"] in ("vmap", "loop")


def test_a_race_takes_turns_and_warms_up_what_is_short():
    seen = []

    def contender(name, seconds=0.0):
        return lambda: (seen.append(name), time.sleep(seconds))

    times = race({"a": contender("a"), "slow": contender("slow", 0.03)}, 0.05, least=3)
    assert {name: len(t) for name, t in times.items()} == {"a": 3, "slow": 3}
    warm, rounds = seen[:2], "".join("s" if name == "slow" else "a" for name in seen[2:])
    assert warm == ["a", "slow"]
    assert rounds == "aas" + "saa" + "aas"  # `a` runs once unmeasured; another one begins every round
    assert len(race({"a": contender("a")}, 60.0, most=4)["a"]) == 4
    assert len(race({"slow": contender("slow", 0.03)}, 0.001, least=9)["slow"]) == 2


def test_threads_are_put_back():
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


# --- memory ---


def test_allocated_counts_what_is_alive_at_once():
    megabyte = 2**18

    def run():
        first = torch.ones(megabyte)
        second = torch.ones(2 * megabyte)
        del first
        third = torch.ones(megabyte)
        return second.numel() + third.numel()

    assert allocated(run) == 3 * 2**20


def test_activations_are_those_of_a_plain_module():
    few, many = (activations(CASES[NARROW], workers) for workers in (64, 128))
    hidden_twice = 4 * 16 * 2 * 64  # before and after the ReLU, of one worker
    assert 64 * hidden_twice <= few < 64 * 2 * hidden_twice
    assert many - few == pytest.approx(few, rel=0.1)


@pytest.fixture(scope="module")
def row_of_memory():
    return memory("mlp 64-133-10, b=16", 64, 16)


def test_memory_row(row_of_memory):
    row = row_of_memory
    assert row["agree"]
    assert row["d"] == 64 * 133 + 133 + 133 * 10 + 10
    assert row["bytes_of_n_d"] == 4 * 64 * row["d"]
    assert row["units"]["allocated"] >= 2  # the points and their gradients at the least
    for kind in ("resident", "allocated"):
        expected = (row[f"{kind}_bytes"] - row["activation_bytes"]) / row["bytes_of_n_d"]
        assert row["units_without_activations"][kind] == expected
    assert row["met"] == all(value <= 4 for value in row["units_without_activations"].values())
    json.dumps(row, allow_nan=False)


def test_a_process_that_cannot_measure_says_why(monkeypatch):
    failed = "memory of 'mlp 64-64-10, b=16' with 2 workers could not be measured"
    with pytest.raises(RuntimeError, match=f"{failed}: KeyError: 'newton'"):
        memory(NARROW, 2, None, optimizer="newton")
    monkeypatch.setattr(simulate_memory, "TIME_OUT", 0.01)
    with pytest.raises(RuntimeError, match=rf"{failed} within 0\.01 seconds"):
        memory(NARROW, 2, None)


# --- the whole ---


def test_the_whole_in_one_object_and_as_tables(row_of_memory, capsys):
    result = bench_simulate("small", threads=(1,), parts=("limit",), only="mlp 64-")
    assert json.loads(json.dumps(result))["scale"] == "small"
    assert result["threads"] == [1]
    assert [(row["part"], row["optimizer"]) for row in result["rows"]] == [("limit", "momentum")]
    result["rows"].append(row_of_memory)
    result["rows"].append(against_loops(CASES[NARROW], 2, "momentum", OPTIMIZERS["momentum"], 1, 0.0, 1))
    verb._show_simulation(result)
    shown = capsys.readouterr().out
    assert "a step of n workers against one gradient on all their samples" in shown
    assert "loops over n modules" in shown
    assert "the largest memory of a step" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scale": "huge"}, "scale must be 'small' or 'full', got 'huge'"),
        ({"parts": ("limits",)}, "parts must be among limit, processes, loop, memory, got 'limits'"),
        ({"threads": (0,)}, r"threads must name at least one count of at least 1, got \[0\]"),
        ({"threads": ()}, r"threads must name at least one count of at least 1, got \[\]"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(ConfigError, match=message):
        bench_simulate(**arguments)


def test_parts_belong_to_one_benchmark(capsys):
    assert main(["bench", "theory", "--only", "limit"]) == 2
    assert "--only limit is for `bench simulate`; `bench theory` has no parts" in capsys.readouterr().err
