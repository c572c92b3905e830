"""The test of the runtime model is tested on processes that obey it, and on some that do not. No time is asserted."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dissensus.experiments.bench import network_keeper, runtime, runtime_replays
from dissensus.experiments.bench.distributed_contenders import SCHEDULES
from dissensus.experiments.bench.network import NetworkError, hosts
from dissensus.experiments.bench.runtime import PARTS, Padded, bench_runtime, validation, verdict
from dissensus.experiments.bench.runtime_replays import (
    ASSUMED,
    PUBLISHED,
    counted,
    emulated_rows,
    published_rows,
    replays,
)
from dissensus.experiments.cli import main
from dissensus.experiments.cli.bench_runtime import show_runtime
from dissensus.experiments.errors import ConfigError
from dissensus.theory.registry import topology
from dissensus.theory.runtime import all_reduce_times, even_rounds, finish_times

SPREAD = {"median", "min", "max", "runs"}
LOCAL = {"800mbit": 0.11, "400mbit": 0.11, "200mbit": 0.12}
WHOLE = {"800mbit": 0.1, "400mbit": 0.2, "200mbit": 0.4}
DRAWS = 8_000
"""Steps of the fake: the mean of so many longest of four is within some 0.3 %."""


class Obedient:
    """Processes whose times obey the recursions exactly; what they draw has nothing to do with what `pace` draws."""

    def __init__(self, rate, size):
        self.rate, self.size, self.plan = rate, size, {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def build(self, case, names, plan):
        self.names, self.plan = names, plan

    def run(self, name, steps):
        assert name in self.names
        return self.seconds(name), 0.0

    def seconds(self, name):
        whole, local = WHOLE[self.rate], LOCAL[self.rate]
        exchange = whole * (self.size - 1 if self.plan["schedule"] == "complete" else 1)
        alone = {"local": local, "exchange, whole": exchange, "exchange, 4 MB": 1.2 * exchange}
        if name in alone or name == "all-reduce":
            assert self.plan["sigma"] == 0
            return alone.get(name, 1.5 * whole)
        score = np.random.default_rng(5).standard_normal((DRAWS, self.size))
        computed = Padded(local - self.plan["seconds"], self.plan["seconds"], self.plan["sigma"]).at(score)
        if name == "ddp":
            return all_reduce_times(1.5 * whole, computed, buckets=runtime.BUCKETS)[-1] / DRAWS
        return self.ours(even_rounds(topology(SCHEDULES[self.plan["schedule"]], self.size), exchange), computed)

    def ours(self, rounds, computed):
        return finish_times(rounds, computed)[-1].mean() / DRAWS


class Sequential(Obedient):
    """Exchanges only when it has computed: the sum instead of the longer of both."""

    def ours(self, rounds, computed):
        return finish_times(rounds, computed, order="atc")[-1].mean() / DRAWS


@contextmanager
def nowhere(n, rate, delay_ms):
    assert delay_ms == 0
    yield rate


def on(monkeypatch, kind: Any):
    monkeypatch.setattr(runtime, "hosts", nowhere)
    monkeypatch.setattr(runtime, "Group", lambda size, rate: kind(rate, size))


def test_processes_that_obey_the_recursions_are_predicted(monkeypatch):
    on(monkeypatch, Obedient)
    found = validation(steps=12)
    cases = {(row["rate"], row["sigma"], row["schedule"]) for row in found}
    assert len(cases) == len(found) == 14
    for row in found:
        exact = 1e-3 if row["sigma"] == 0 else 1e-2  # the scatter of both simulations
        assert max(abs(off) for off in row["off"].values()) < exact, row
        others = 3 if row["schedule"] == "complete" else 1
        assert row["exchange_seconds"] == others * WHOLE[row["rate"]]  # the better of both ways
        assert row["speedup_measured"] == row["measured"]["ddp"] / row["measured"]["ours"]
    said = verdict(found)
    assert said["both_close"] == said["of"] == 14
    assert said["right"] == said["differ"] > 0
    assert {row["speedup_measured"] > 1 for row in found} == {True, False}, "each of both wins somewhere"
    json.dumps(found, allow_nan=False)


def test_processes_that_do_not_overlap_are_found_out(monkeypatch):
    on(monkeypatch, Sequential)
    monkeypatch.setattr(runtime, "SIGMAS", (0.0,))
    found = validation(steps=12)
    assert all(row["off"]["ours"] < -runtime.WITHIN for row in found)
    said = verdict(found)
    assert said["both_close"] == said["close"]["ours"] == 0
    assert said["close"]["ddp"] == said["of"] == 7
    quickest = next(row for row in found if row["rate"] == "800mbit")
    assert quickest["off"]["ours"] == pytest.approx(0.11 / 0.21 - 1, abs=1e-3)


def row(predicted, measured, ours=0.0, ddp=0.0):
    return {"speedup_predicted": predicted, "speedup_measured": measured, "off": {"ours": ours, "ddp": ddp}}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([row(1.5, 1.2)], {"differ": 1, "right": 1}),
        ([row(0.9, 1.2)], {"differ": 1, "right": 0}),
        ([row(0.9, 0.5)], {"differ": 1, "right": 1}),
        ([row(1.01, 0.94)], {"differ": 1, "right": 0}),
        ([row(0.5, 1.04), row(2.0, 0.96)], {"differ": 0, "right": 0}),  # there is no winner
        ([row(1.0, 1.2)], {"differ": 1, "right": 0}),  # a tie is not a winner
        ([row(1.2, 1.2, 0.09, -0.09)], {"both_close": 1, "close": {"ours": 1, "ddp": 1}}),
        ([row(1.2, 1.2, 0.09, -0.11), row(1.2, 1.2)], {"both_close": 1, "close": {"ours": 2, "ddp": 1}, "of": 2}),
        ([row(1.2, 1.2, 0.11, 0.0)], {"both_close": 0, "close": {"ours": 0, "ddp": 1}, "within": 0.1}),
    ],
)
def test_verdict(rows, said):
    assert verdict(rows).items() >= said.items()


# --- the simulator ---


def test_speeds_are_rates_and_say_how_many_runs(monkeypatch, capsys):
    quick = runtime.pace
    monkeypatch.setattr(runtime, "pace", lambda *a, iterations, **k: quick(*a, iterations=40, **k))
    found = runtime.simulator(repeats=2)
    assert len(found) == 4
    for one in found:
        assert set(one.worker_iterations_per_second) == set(one.share_of_copying) == SPREAD
        assert one.worker_iterations_per_second["runs"] == one.share_of_copying["runs"] == 2
        assert one.worker_iterations_per_second["min"] > 0


# --- replays ---


@pytest.fixture(scope="module")
def replayed():
    return replays()


def test_replays_are_the_same_again(replayed):
    noisy, at = next((one, at) for at, one in enumerate(ASSUMED) if one.deviation)
    again = [row for page in PUBLISHED for row in published_rows(page, noisy)]
    assert json.dumps(again, allow_nan=False) == json.dumps(replayed["published"][at]["rows"], allow_nan=False)
    assert json.dumps(list(emulated_rows())) == json.dumps(replayed["emulated"])


def test_the_row_that_computing_is_solved_from_is_met_and_does_not_count(replayed):
    for one in replayed["published"]:
        kept = [row for row in one["rows"] if row["counts"]]
        assert one["of"] == len(kept) == 6
        assert one["right"] == sum(row["right"] for row in kept)
        for row in one["rows"]:
            if not row["counts"] and row["compute_solvable"]:
                assert row["predicted"]["all-reduce"] == pytest.approx(row["published"]["all-reduce"], rel=1e-6)
            assert row["right"] == all(row["pairs_right"].values())
            assert len(row["pairs_right"]) == 3


def test_everything_assumed_is_said_once_for_all_clusters(replayed):
    for one, assumed in zip(replayed["published"], ASSUMED, strict=True):
        assert one["assumed"]["name"] == assumed.name
        assert set(one["assumed"]) >= {"bytes_per_number", "reached", "overlapped", "parameters", "inside", "latency"}
        assert {row["cluster"] for row in one["rows"]} == {page.cluster for page in PUBLISHED}


def test_orders_and_ties():
    times: Any = {"all-reduce": 1.0, "exponential": 1.04, "aer": 0.9}
    assert runtime_replays._order(times) == "aer < all-reduce ~ exponential"
    assert runtime_replays._sign(times, "all-reduce", "aer") == 1
    assert runtime_replays._sign(times, "aer", "all-reduce") == -1
    assert runtime_replays._sign(times, "exponential", "all-reduce") == 0


def test_a_page_that_obeys_the_model_is_right_in_every_row():
    page, assumed = PUBLISHED[-1], ASSUMED[0]
    own = {
        n: tuple(1000 * t for t in runtime_replays._iterations(page, n, 0.1 * 8 / n, assumed).values())
        for n in page.times
    }
    obeying: Any = runtime_replays.Published(page.cluster, page.per_node, page.gigabits, own)  # pyright: ignore
    rows = published_rows(obeying, assumed)
    assert counted(rows) == {
        "of": 2, "right": 2, "pairs_right": dict.fromkeys(rows[0]["pairs_right"], 2), "pairs_opposed": 0,
        "contradicted": [],
    }  # fmt: skip
    for row in rows:
        assert row["compute_seconds"] == pytest.approx(0.1 * 8 / row["n"], rel=1e-6)
        assert row["ratio_predicted"] == pytest.approx(row["ratio_published"], rel=1e-6)


def test_assumptions_that_contradict_the_page_are_right_nowhere():
    page = PUBLISHED[-1]
    rows = published_rows(page, replace(ASSUMED[0], name="a slow network", reached=0.5))
    assert not any(row["compute_solvable"] or row["right"] or any(row["pairs_right"].values()) for row in rows)
    assert counted(rows)["contradicted"] == [page.cluster]


def test_a_card_that_four_share_puts_one_peer_exponential_behind_all_reduce():
    (sixteen,) = (row for row in published_rows(PUBLISHED[-1], ASSUMED[0]) if row["n"] == 16)
    # two of four rounds send 4 V over the card and wait for it, the others compute; all-reduce sends 2 V 15/16
    transfer = 4 * 65e6 * 4 / 3.125e9
    assert sixteen["predicted"]["exponential"] == pytest.approx((transfer + sixteen["compute_seconds"]) / 2, rel=0.05)
    assert sixteen["pairs_opposed"] == ["all-reduce, exponential"]


def test_emulated_rows_follow_from_what_was_measured_alone(replayed):
    rows = {row["setting"]: row for row in replayed["emulated"]}
    slow = rows["200 Mbit/s"]["predicted"]
    assert slow["ring"] == slow["one-peer-exp"] == pytest.approx(0.420, rel=1e-4)  # the exchange, computing hidden
    assert rows["no stragglers"]["predicted"]["ddp"] == pytest.approx(0.064)
    assert not rows["no stragglers"]["counts"]
    pauses = next(row for row in replayed["emulated"] if row["setting"].startswith("exponential") and row["n"] == 8)
    harmonic = sum(1 / k for k in range(1, 9))
    assert pauses["predicted"]["ddp"] == pytest.approx(0.070 + 0.050 * harmonic + 0.012, rel=1e-3)
    for row in replayed["emulated"]:
        for who, off in row["off"].items():
            assert off == pytest.approx(row["predicted"][who] / row["measured"][who] - 1)


# --- the whole ---


def test_the_whole_in_one_object_and_as_tables(monkeypatch, capsys, replayed):
    on(monkeypatch, Obedient)
    monkeypatch.setattr(runtime, "SCHEDULES_AT", {"200mbit": ("ring", "one-peer-exp")})
    speed = {"median": 7e8, "min": 6e8, "max": 8e8, "runs": 5}
    monkeypatch.setattr(runtime, "simulator", lambda repeats: [runtime.Speed("16 workers", speed, speed)])
    monkeypatch.setattr(runtime, "replays", lambda: replayed)
    result = bench_runtime("small")
    assert set(PARTS) <= set(json.loads(json.dumps(result, allow_nan=False)))
    show_runtime(result)
    shown = capsys.readouterr().out
    for words in ("700", "600 to 800", "200mbit, noise 0.3, one-peer-exp", "within 10 %: 4 of 4", "1 Gbit/s"):
        assert words in shown
    assert shown.index("within 10 %") < shown.index("published iterations")
    assert f"winner right: {result['validation']['right']} of {result['validation']['differ']}" in shown


def test_where_no_network_may_be_built_it_says_so(monkeypatch, capsys):
    def not_permitted(*_, **__):
        raise NetworkError("not permitted")

    monkeypatch.setattr(runtime, "hosts", not_permitted)
    assert main(["bench", "runtime", "--only", "validation"]) == 0
    assert "validation: skipped, not permitted" in capsys.readouterr().out


def test_the_command_line_prints_one_object(monkeypatch, capsys):
    monkeypatch.setattr(runtime, "replays", dict)
    assert main(["bench", "runtime", "--only", "replays", "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == {"scale", "cores", "torch", "skipped", "replays"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scale": "huge"}, "scale must be 'small' or 'full', got 'huge'"),
        ({"parts": ("wire",)}, "parts must be among simulator, validation, replays, got 'wire'"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(ConfigError, match=message):
        bench_runtime(**arguments)


def test_unknown_parts_on_the_command_line(capsys):
    assert main(["bench", "runtime", "--only", "wire"]) == 2
    assert "parts must be among simulator, validation, replays" in capsys.readouterr().err


def test_an_interrupt_leaves_no_namespace():
    try:
        with hosts(1):
            pass
    except NetworkError as error:
        pytest.skip(str(error))
    command = [sys.executable, "-m", "dissensus", "bench", "runtime", "--only", "validation"]
    bench = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    mine = f"dissensus-{bench.pid}-*"
    assert until(lambda: len(list(network_keeper.FOLDER.glob(mine))) == runtime.WORKERS + 1)  # and the bridge's
    os.killpg(bench.pid, signal.SIGINT)  # as a terminal does: to everybody
    assert bench.wait(timeout=30) == 130
    assert until(lambda: not list(network_keeper.FOLDER.glob(mine)))


def until(check, within=30.0):
    end = time.monotonic() + within
    while not check() and time.monotonic() < end:
        time.sleep(0.05)
    return check()
