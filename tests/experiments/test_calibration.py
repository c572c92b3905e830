"""What is measured of machines: lines through rows, the file, the order of measuring, and real processes."""

import dataclasses
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dissensus.algorithms.engines.distributed.wire import Wire
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.planning.calibration import TRUSTED, Calibration, Fit, Row, fitted, remarks
from dissensus.experiments.planning.measuring import SIZES, Case, measure, pairings, training_step, turns
from dissensus.experiments.processes import Processes
from dissensus.theory.runtime.compute import mean

sys.path.insert(0, str(Path(__file__).parents[1] / "distributed"))
Pool: Any = importlib.import_module("pool").Pool

HERE = Path(__file__)
LATENCIES, BANDWIDTHS = st.floats(1e-6, 1e-2), st.floats(1e6, 1e11)


def rows(kind: str, seconds: Callable[[int], float]) -> list[Row]:
    return [Row(kind, size, seconds(size), 0.0) for size in SIZES]


def made(**changes: Any) -> Calibration:
    exchange = rows("exchange", lambda size: 1e-4 + size / 1e9)
    reduce = rows("all-reduce", lambda size: 3e-4 + size / 7e8 + 0.3 * (size > 1 << 20))
    usual = Calibration(
        date="2026-11-19T08:00:00+00:00",
        torch="2.9.0",
        backend="gloo",
        workers=2,
        hosts={"one": 1, "two": 1},
        parameters=None,
        compute_seconds=((0.1, 0.1 + 1e-16, 0.12), (0.3, 1 / 3, 0.2)),
        rows=(*reduce, *exchange),
        fits=(fitted("all-reduce", reduce), fitted("exchange", exchange)),
        notes=("one thing",),
    )
    return dataclasses.replace(usual, **changes)


@given(LATENCIES, BANDWIDTHS)
def test_a_line_is_recovered(latency: float, bandwidth: float) -> None:
    line = fitted("exchange", rows("exchange", lambda size: latency + size / bandwidth))
    seen = latency * bandwidth  # bytes that take as long as the latency; far outside the sizes one of both is invisible
    rounding = 1e-12 * max(1.0, SIZES[-1] / seen, seen / SIZES[0])
    assert line.worst_residual < 1e-12
    assert line.latency_seconds == pytest.approx(latency, rel=rounding)
    assert line.bandwidth == pytest.approx(bandwidth, rel=rounding)


@given(st.floats(4e3, 1.6e7), BANDWIDTHS, st.integers(0, 1 << 30))
def test_five_percent_of_noise_move_a_line_by_as_much(crossing: float, bandwidth: float, seed: int) -> None:
    latency = crossing / bandwidth
    noise = 1 + 0.05 * np.random.default_rng(seed).uniform(-1, 1, len(SIZES))
    true = [latency + size / bandwidth for size in SIZES]
    noisy = [Row("exchange", size, t * e, 0.0) for size, t, e in zip(SIZES, true, noise, strict=True)]
    line = fitted("exchange", noisy)
    assert [line.seconds(size) for size in SIZES] == pytest.approx(true, rel=0.06)
    # where all but one or two sizes are on one side, the other figure rests on those alone
    assert line.latency_seconds == pytest.approx(latency, rel=0.15)
    assert line.bandwidth == pytest.approx(bandwidth, rel=0.15)
    assert remarks([line], noisy) == []


def test_nothing_negative_is_fitted() -> None:
    faster = fitted("exchange", rows("exchange", lambda size: 1.0 / (1 + size / 1e8)))
    assert faster.seconds_per_byte == 0
    assert faster.bandwidth == float("inf")
    assert faster.link.seconds(1e9) == faster.latency_seconds
    assert fitted("exchange", rows("exchange", lambda size: (size / 1e8) ** 2)).latency_seconds >= 0


def test_a_bad_line_is_told_and_times_come_from_the_rows() -> None:
    found = made()
    line = found.fit("all-reduce")
    said = remarks(found.fits, found.rows)
    assert line.worst_residual > TRUSTED
    assert len(said) == 1
    assert said[0].startswith("all-reduce: latency + bytes / bandwidth is off by")
    own = {row.bytes: row.seconds for row in found.rows if row.kind == "all-reduce"}
    assert [found.seconds("all-reduce", size) for size in own] == pytest.approx(list(own.values()), rel=1e-12)
    between = found.seconds("all-reduce", 2048)
    assert between == pytest.approx(np.sqrt(own[1024] * own[4096])), "half way on logarithmic scales"
    assert found.seconds("all-reduce", 0) == pytest.approx(own[1024])
    assert found.seconds("all-reduce", 4 * SIZES[-1]) == pytest.approx(4 * own[SIZES[-1]])


def test_times_that_vary_are_told() -> None:
    found = made()
    vary = [dataclasses.replace(row, spread=0.4) for row in found.rows]
    said = remarks(found.fits[1:], vary)
    assert said == ["half of all sizes vary by more than 40% between repeats: measure again while nothing else runs"]
    assert remarks(found.fits[1:], [*found.rows, *vary[1:]]) == []


def test_a_good_line_is_used_and_what_is_unknown_is_refused() -> None:
    found = made()
    assert found.seconds("exchange", 0) == pytest.approx(1e-4)
    assert found.seconds("exchange", 1e9) == pytest.approx(1 + 1e-4)
    with pytest.raises(ConfigError, match=r"kind 'exchnge' was not measured; did you mean 'exchange'\?"):
        found.seconds("exchnge", 1)
    with pytest.raises(ConfigError, match="finite number of bytes, at least 0, got -1"):
        found.seconds("exchange", -1)
    with pytest.raises(ConfigError, match=r"one process was measured.*calibrate with as many as will train"):
        made(rows=(), fits=()).seconds("exchange", 1)
    with pytest.raises(ConfigError, match="at least two sizes, exchange has 1"):
        fitted("exchange", found.rows[-1:])


def test_computing_times_are_relative_to_each_worker() -> None:
    found = made(compute_seconds=((1.0, 3.0), (4.0, 12.0)))
    assert found.mean_seconds == 5.0
    assert found.speeds.tolist() == [0.4, 1.6]
    assert found.compute.samples.tolist() == pytest.approx([0.5, 0.5, 1.5, 1.5])
    assert mean(found.compute) == pytest.approx(1.0)


@given(st.lists(st.floats(5e-324, 1e300), min_size=2, max_size=5), LATENCIES)
def test_a_file_gives_back_every_bit(tmp_path_factory: pytest.TempPathFactory, times: list[float], one: float) -> None:
    path = tmp_path_factory.getbasetemp() / "calibration.json"
    line = Fit("exchange", one, 0.0, one)
    there = made(compute_seconds=(tuple(times), (one, one)), rows=(Row("exchange", 4, one, one),), fits=(line,))
    there.to_file(path)
    assert Calibration.from_file(path) == there
    tree = json.loads(path.read_text())
    assert tree["compute_seconds"] == [times, [one, one]], "plain lists"
    assert tree["rows"] == [{"kind": "exchange", "bytes": 4, "seconds": one, "spread": one}]
    assert [p.name for p in path.parent.glob(".calibration*")] == [], "nothing is left beside it"


CHANGED: dict[str, tuple[Mapping[str, Any], str]] = {
    "another schema": ({"schema_version": 2}, "schema_version is 2, this version reads 1: calibrate again"),
    "a missing key": ({"rows": None}, "there is no key 'rows': calibrate again, or add it"),
    "a key misspelt": ({"hosts": None, "host": {}}, "unknown key 'host'; did you mean 'hosts'"),
    "text for a number": ({"workers": "2"}, 'workers must be a whole number of at least 1, got "2"'),
    "true for a number": ({"workers": True}, "workers must be a whole number of at least 1, got true"),
    "no worker": ({"workers": 0}, "workers must be a whole number of at least 1, got 0"),
    "a number for text": ({"torch": 2.9}, "torch must be a string, got 2.9"),
    "too few samples": ({"compute_seconds": [[1.0, 2.0], [1.0]]}, r"compute_seconds\[1\] must be a list of at least 2"),
    "a time of 0": ({"compute_seconds": [[1.0, 0], [1.0, 1.0]]}, r"compute_seconds\[0\]\[1\] must be a number above 0"),
    "not a number": ({"compute_seconds": [[1.0, float("nan")], [1.0, 1.0]]}, r"must be a number above 0, got NaN"),
    "other workers": ({"compute_seconds": [[1.0, 1.0]]}, "compute_seconds needs one list per worker, 2, got 1"),
    "other hosts": ({"hosts": {"one": 3}}, "hosts have 3 workers together, and workers is 2"),
    "hosts as a list": ({"hosts": ["one"]}, r'hosts must be an object with HOST, got \["one"\]'),
    "a row short": ({"rows": [{"kind": "exchange", "bytes": 4, "seconds": 1}]}, r"no key 'rows\[0\].spread'"),
    "a row too long": ({"rows": [{"second": 1}]}, r"unknown key 'rows\[0\].second'; did you mean 'seconds'"),
    "a fit too few": ({"fits": []}, "the same kinds, and one of them has no 'all-reduce'"),
}


@pytest.mark.parametrize("case", CHANGED)
def test_a_file_that_was_changed_is_refused(case: str, tmp_path: Path) -> None:
    changes, said = CHANGED[case]
    path = tmp_path / "it.json"
    made().to_file(path)
    tree = {k: v for k, v in (json.loads(path.read_text()) | changes).items() if v is not None or k == "parameters"}
    path.write_text(json.dumps(tree))
    with pytest.raises(ConfigError, match=said) as refused:
        Calibration.from_file(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert "\n" not in str(refused.value)


def test_what_is_no_calibration_is_refused(tmp_path: Path) -> None:
    made().to_file(tmp_path / "cluster.json")
    with pytest.raises(ConfigError, match=r"no calibration '.*clister.json'; did you mean 'cluster.json'\?"):
        Calibration.from_file(tmp_path / "clister.json")
    (tmp_path / "text.json").write_text("name = 3")
    with pytest.raises(ConfigError, match=r"text.json: not JSON: .*dissensus plan --calibrate"):
        Calibration.from_file(tmp_path / "text.json")
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(ConfigError, match=r"list.json: the whole must be an object with schema_version, .*got \[1\]"):
        Calibration.from_file(tmp_path / "list.json")
    with pytest.raises(ConfigError, match="cannot read the calibration"):
        Calibration.from_file(tmp_path)
    with pytest.raises(ConfigError, match="cannot write the calibration"):
        made().to_file(tmp_path / "nowhere" / "it.json")


def test_who_exchanges_with_whom() -> None:
    assert pairings(["a"] * 3) == {"exchange": [1, 0, None]}
    assert pairings(["a", "a", "b", "b"]) == {
        "exchange": [1, 0, 3, 2],
        "exchange-between": [2, None, 0, None],
        "exchange-between-all": [2, 3, 0, 1],
    }
    for one_each in (["a", "b"], ["a", "b", "c", "d", "e"]):
        found = pairings(one_each)
        assert list(found) == ["exchange", "exchange-between"], "with one worker each all of them is the same"
        assert found["exchange"] == found["exchange-between"]
    assert pairings(["a", "b", "b", "a", "b"]) == {
        "exchange": [1, 0, 3, 2, None],
        "exchange-between": [1, 0, None, None, None],
        "exchange-between-all": [1, 0, 3, 2, None],
    }


def test_every_round_has_every_case_in_an_order_of_its_own() -> None:
    cases = [Case(kind, size) for kind in ("all-reduce", "exchange") for size in SIZES]
    orders = turns(cases, 10)
    assert all(sorted(order, key=cases.index) == cases for order in orders)
    assert len({tuple(order) for order in orders}) == 10
    assert orders == turns(cases, 10), "the same everywhere"


class Pretended:
    """A wire whose clock says what was planted; the other process is as this one."""

    rank, size, alone, backend = 0, 2, False, "gloo"

    def __init__(self, drift: float = 0.0, step: float = 0.01) -> None:
        self.now, self._drift, self._step = 0.0, drift, step
        self.said: list[Case] = []

    def clock(self) -> float:
        return self.now

    def gather(self, value: Any, *, what: str, step: int = 0) -> list[Any]:
        return [value, value]

    def sum(self, value: torch.Tensor, *, what: str, step: int) -> None:
        if what != "meeting":
            self._take(what, value, 1e-3, 1e8)

    def post(self, sends: Any, receives: Any, *, what: str, step: int) -> None:
        assert sends[0][0] == receives[0][0] == 1
        assert sends[0][1].shape == receives[0][1].shape
        self._take(what, sends[0][1], 2e-4, 1e9)

    def land(self, flight: None) -> None:
        pass

    def compute(self) -> None:
        self.now += self._step

    def _take(self, what: str, value: torch.Tensor, latency: float, bandwidth: float) -> None:
        self.said.append(Case(what, 4 * value.numel()))
        self.now += (latency + 4 * value.numel() / bandwidth) * (1 + self._drift * self.now)

    def measure(self, **options: Any) -> Calibration:
        processes = Processes(cast(Wire, self))
        return measure(processes, compute=self.compute, clock=self.clock, host="a", **options)


def test_what_was_planted_is_measured() -> None:
    told: list[str] = []
    found = Pretended().measure(steps=20, repeats=4, budget=1e3, progress=told.append)
    assert (found.workers, found.hosts, found.backend, found.parameters) == (2, {"a": 2}, "gloo", None)
    assert found.torch == torch.__version__
    assert found.notes == ()
    assert [(row.kind, row.bytes) for row in found.rows] == [(k, s) for k in ("all-reduce", "exchange") for s in SIZES]
    assert found.seconds("all-reduce", 1e8) == pytest.approx(1.001)
    assert found.seconds("exchange", 1e9) == pytest.approx(1.0002)
    assert max(row.spread for row in found.rows) < 1e-9
    assert found.mean_seconds == pytest.approx(0.01)
    assert [len(own) for own in found.compute_seconds] == [20, 20]
    assert told == ["computing", *(f"messages, round {k} of 4" for k in range(1, 5))]


def test_the_slowest_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def gather(self: Pretended, value: Any, *, what: str, step: int = 0) -> list[Any]:
        slow = (
            {case: [3 * lap for lap in laps] for case, laps in value.items()} if what == "times of messages" else value
        )
        return [value, [2 * lap for lap in value] if what == "computing times" else slow]

    monkeypatch.setattr(Pretended, "gather", gather)
    found = Pretended().measure(steps=4, repeats=3, budget=1e3)
    assert found.seconds("all-reduce", 1e8) == pytest.approx(3 * 1.001)
    assert found.speeds.tolist() == pytest.approx([2 / 3, 4 / 3])


def test_a_drift_of_the_machines_falls_on_all_alike() -> None:
    wire = Pretended(drift=0.04)
    found = wire.measure(steps=2, repeats=25, budget=1e9)
    assert 1 + 0.04 * wire.now > 2, "at the end everything takes more than twice as long"
    assert max(line.worst_residual for line in found.fits) < 0.12
    ratio = [found.seconds("all-reduce", size) / found.seconds("exchange", size) for size in (0, 1e9)]
    assert ratio == pytest.approx([5.0, 10.0], rel=0.12)


def test_what_there_is_no_time_for_is_left_out_and_told() -> None:
    found = Pretended().measure(steps=1000, repeats=10, budget=5.0)
    sizes = {row.bytes for row in found.rows}
    assert sizes == set(SIZES[: len(sizes)]), "the largest are left out"
    assert 2 <= len(sizes) < len(SIZES)
    steps, messages = found.notes
    assert steps.startswith("200 of 1000 steps of computing were taken: one takes 0.01 s")
    assert messages == (
        f"no time in 5 s for messages of {', '.join(map(str, SIZES[len(sizes) :]))} bytes: "
        f"what is said of more than {max(sizes)} is extrapolated"
    )


@pytest.mark.parametrize("budget", [0.5, 2.0, 8.0, 40.0])
def test_the_time_there_is_is_kept(budget: float) -> None:
    wire = Pretended(step=0.001)
    wire.measure(repeats=10, budget=budget)
    assert wire.now < 1.2 * budget


def test_with_next_to_no_time_the_least_is_measured() -> None:
    found = Pretended().measure(steps=10, repeats=10, budget=1e-3)
    assert {row.bytes for row in found.rows} == set(SIZES[:2])
    assert [len(own) for own in found.compute_seconds] == [2, 2]
    assert "3 of 10 rounds of messages were measured: there was no time for more" in found.notes


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sizes": [1024]}, r"at least two different positive multiples of 4 bytes, got \[1024\]"),
        ({"sizes": [1024, 1026]}, "multiples of 4 bytes"),
        ({"repeats": 2}, "repeats >= 3, steps >= 2 and a budget above 0 s, got 2, 200 and 120 s"),
        ({"budget": 0.0}, "a budget above 0 s"),
    ],
)
def test_what_cannot_be_measured_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Pretended().measure(**options)


@pytest.mark.parametrize("parameters", [6, 1000, 100_000])
def test_the_perceptron_has_as_many_parameters_as_asked_for(parameters: int) -> None:
    state = torch.get_rng_state()
    step, count = training_step(parameters, torch.device("cpu"))
    step()
    assert count == pytest.approx(parameters, rel=0.05)
    assert torch.equal(state, torch.get_rng_state()), "nobody else's random numbers are touched"
    with pytest.raises(ConfigError, match="at least 6 parameters, got 5"):
        training_step(5, torch.device("cpu"))


def test_one_process_measures_computing_alone() -> None:
    found = measure(Processes(), steps=4, parameters=1000, repeats=3, budget=10.0)
    assert (found.workers, found.rows, found.fits, found.backend) == (1, (), (), "")
    assert found.speeds.tolist() == [1.0]
    assert found.notes == ("one process was measured, so nothing is known of messages",)


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    spread = "PYTEST_XDIST_WORKER" in os.environ
    pool = Pool(tmp_path_factory.getbasetemp().parent / "processes.lock" if spread else None)
    yield pool
    pool.close()


def measuring(sizes: list[int], hosts: int) -> Calibration:
    crew = Processes(Wire(timeout=20.0))
    assert crew.wire is not None
    options: dict[str, Any] = {"steps": 10, "repeats": 3, "parameters": 5000, "budget": 10.0}
    return measure(crew, sizes=sizes, host=f"host {crew.wire.rank % hosts}", **options)


def test_real_processes_measure_the_same(processes: Any, tmp_path: Path) -> None:
    sizes = [1024, 65536, 1 << 23]
    one, other = processes.run(2, f"{HERE}:measuring", sizes=sizes, hosts=1)
    assert one == other
    assert (one.workers, one.hosts, one.backend) == (2, {"host 0": 2}, "gloo")
    assert one.parameters == pytest.approx(5000, rel=0.05)
    assert [len(own) for own in one.compute_seconds] == [10, 10]
    for kind in ("all-reduce", "exchange"):
        own = [row for row in one.rows if row.kind == kind]
        assert [row.bytes for row in own] == sizes
        assert 0 < own[0].seconds < own[-1].seconds, "a kilobyte is quicker than eight megabytes"
        assert 0 < one.seconds(kind, 1024) < one.seconds(kind, 1 << 23)
    assert one.mean_seconds > 0
    one.to_file(tmp_path / "it.json")
    assert Calibration.from_file(tmp_path / "it.json") == one


def test_processes_of_several_hosts_measure_between_them(processes: Any) -> None:
    found = processes.run(4, f"{HERE}:measuring", sizes=[1024, 4096], hosts=2)
    assert all(one == found[0] for one in found)
    assert found[0].hosts == {"host 0": 2, "host 1": 2}
    assert [fit.kind for fit in found[0].fits] == ["all-reduce", "exchange", "exchange-between", "exchange-between-all"]


def failing() -> str:
    crew = Processes(Wire(timeout=20.0))

    def step() -> None:
        if not crew.first:
            raise RuntimeError("there is no memory for it")

    try:
        measure(crew, compute=step)
    except (RuntimeError, ValueError) as error:
        return str(error)
    return ""


def test_where_one_cannot_compute_all_end_with_its_sentence(processes: Any) -> None:
    said = processes.run(2, f"{HERE}:failing")
    assert said == ["process 1 could not start: there is no memory for it", "there is no memory for it"]


def test_sizes_are_geometric() -> None:
    assert (SIZES[0], SIZES[-1]) == (1024, 64 << 20)
    assert {b // a for a, b in pairwise(SIZES)} == {4}
