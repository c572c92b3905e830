"""The benchmark of many processes: what it times does the same work, its rows follow from its times.

No time is asserted.
"""

import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dissensus.experiments.bench import distributed, distributed_memory
from dissensus.experiments.bench.distributed import PARTS, bench_distributed, measured
from dissensus.experiments.bench.distributed_contenders import CONTENDERS, missing
from dissensus.experiments.bench.distributed_limits import Limit, verdict
from dissensus.experiments.bench.distributed_memory import LIMITS, memory
from dissensus.experiments.bench.distributed_models import MODELS, Pace, factor
from dissensus.experiments.bench.distributed_settings import Setting, settings
from dissensus.experiments.bench.distributed_waiting import waiting_allows
from dissensus.experiments.bench.distributed_worker import AHEAD
from dissensus.experiments.bench.network import CONGESTION, NetworkError
from dissensus.experiments.cli import main
from dissensus.experiments.cli.bench_distributed import show_distributed
from dissensus.experiments.errors import ConfigError

SPREAD = {"median", "min", "max", "runs"}
HERE = tuple(name for name in CONTENDERS if name not in missing())
FEW = tuple(n for n in ("local", "exchange, whole", "ours", "ours, bfloat16", "ddp", "decent-dp") if n in HERE)
SMALL = Setting(
    "loopback", 2, "0.1M", "sgd", "ring", FEW, (Limit("sum", 1.1), Limit("ddp", 1.3), Limit("decent-dp", 1.0))
)


# --- rows follow from times ---


TIMES = {
    "local": [0.10, 0.12, 0.11],
    "exchange, whole": [0.06, 0.05, 0.07],
    "exchange, 4 MB": [0.20, 0.20, 0.20],
    "ours": [0.16, 0.18, 0.17],
    "ddp": [0.26, 0.22, 0.24],
    "ddp, small buckets": [0.23, 0.23, 0.21],
    "decent-dp": [0.168, 0.169, 0.167],
}


@pytest.mark.parametrize(
    ("limit", "ratio", "met"),
    [
        (Limit("sum", 1.1), 0.17 / 0.17, True),
        (Limit("sum", 0.9), 0.17 / 0.17, False),
        (Limit("max", 1.1), 0.17 / 0.11, False),
        (Limit("max", 1.6), 0.17 / 0.11, True),
        (Limit("ddp", 1.3), 0.23 / 0.17, True),
        (Limit("ddp", 1.4), 0.23 / 0.17, False),
        (Limit("decent-dp", 1.0), 0.168 / 0.17, True),  # nearer than can be told apart
        (Limit("decent-dp", 1.1), 0.168 / 0.17, False),
    ],
)
def test_verdict(limit, ratio, met):
    row = verdict(limit, TIMES)
    assert row["ratio"] == pytest.approx(ratio)
    assert row["met"] is met
    assert row["limit"] == limit.said
    assert set(row["ratio_by_round"]) == SPREAD
    assert row["ratio_by_round"]["runs"] == 3
    assert row["note"] == ""


def test_verdict_by_round_and_by_the_fastest():
    row = verdict(Limit("decent-dp", 1.3), TIMES)
    assert row["ratio_by_round"]["max"] == pytest.approx(0.168 / 0.16)
    assert row["ratio_by_round"]["min"] == pytest.approx(0.169 / 0.18)
    assert row["ratio_of_fastest"] == pytest.approx(0.167 / 0.16)


def test_a_limit_without_its_contenders_says_so():
    row = verdict(Limit("decent-dp", 1.3, "ours, fused"), {k: v for k, v in TIMES.items() if k != "decent-dp"})
    assert row["ratio"] is row["met"] is None
    assert row["note"] == "without decent-dp, ours, fused"


def test_slower_than_can_be_told_apart():
    times = TIMES | {"decent-dp": [0.97 * 0.17] * 3}
    assert verdict(Limit("decent-dp", 1.0), times)["met"] is False


def consistent(row, setting):
    assert row["agree"] is True, row["difference"]
    assert (row["part"], row["n"], row["model"]) == (setting.part, setting.size, setting.model)
    assert set(row["seconds"]) == set(row["core_seconds"]) == set(row["steps_in_a_block"]) == set(setting.contenders)
    for lap in (*row["seconds"].values(), *row["core_seconds"].values()):
        assert set(lap) == SPREAD
        assert 0 < lap["min"] <= lap["median"] <= lap["max"]
    median = {name: lap["median"] for name, lap in row["seconds"].items()}
    limit = next(one for one in setting.limits if one.said == row["limit"])
    if limit.needs() <= set(median):
        assert row["ratio"] == pytest.approx(limit.ratio(median))
        assert row["met"] == limit.met(row["ratio"])
    json.dumps(row, allow_nan=False)


def test_rows_of_a_setting_on_the_loopback():
    rows = measured(SMALL, rounds=2, block=0.0)
    assert [row["limit"] for row in rows] == [limit.said for limit in SMALL.limits]
    for row in rows:
        consistent(row, SMALL)
        assert all(lap["runs"] == 2 for lap in row["seconds"].values())
        assert all(steps == 2 for steps in row["steps_in_a_block"].values())
        assert row["waiting_allows"] is None


@pytest.mark.parametrize(
    "shape",
    [{"rate": "200mbit", "congestion": "reno"}, {"delay_ms": 2.0, "seconds": 0.002, "sigma": 0.3}],
)
def test_rows_of_a_setting_on_a_network(shape):
    contenders = tuple(name for name in FEW if name != "ddp")
    setting = replace(SMALL, part="latency", contenders=contenders, limits=(Limit("max", 1.1),), **shape)
    try:
        (row,) = measured(setting, rounds=1, block=0.0)
    except NetworkError as error:
        pytest.skip(str(error))
    consistent(row, setting)
    assert (row["rate"], row["delay_ms"]) == (setting.rate, setting.delay_ms)
    assert row["congestion"] in ((setting.congestion,) if setting.congestion else CONGESTION)


# --- what waiting costs by itself ---


def ended_by_hand(computed, first):
    """When the workers of a ring of pairs, (0 1)(2 3) and (1 2)(3 0) in turn, have ended each step."""
    e = [0.0] * 4
    found = [e]
    for k, c in enumerate(computed):
        other = [1, 0, 3, 2] if (first + k) % 2 == 0 else [3, 2, 1, 0]
        e = [max(e[i] + c[i], e[other[i]]) for i in range(4)]
        found.append(e)
    return found


def test_waiting_alone_follows_from_the_draws_of_the_steps_that_are_timed():
    setting = Setting("noise", 4, "0.1M", "sgd", "ring", FEW, (), seconds=0.05, sigma=0.3)
    ours, ddp, steps = [3, 12, 40], [5, 14, 33], 7
    drawn = [[factor(0.3, t, i) for i in range(4)] for t in range(60)]
    times = []
    for at in ours:
        e = ended_by_hand(drawn[at : at + AHEAD + steps], at)
        times.append(sum(e[-1]) - sum(e[AHEAD]))
    slowest = [sum(4 * max(drawn[t]) for t in range(at + AHEAD, at + AHEAD + steps)) for at in ddp]
    assert waiting_allows(setting, ours, ddp, steps) == pytest.approx(sorted(slowest)[1] / sorted(times)[1])
    assert waiting_allows(replace(setting, sigma=0.0), ours, ddp, steps) == pytest.approx(1.0)


def test_the_draws_are_those_by_which_workers_pause():
    pace = Pace(0.5, 0.3, worker=2)
    for step in range(3):
        pace.begin()
        assert pace.now == 0.5 * factor(0.3, step, 2)


def test_a_row_with_noise_counts_the_steps_of_its_blocks(monkeypatch):
    seen = []
    monkeypatch.setattr(distributed, "waiting_allows", lambda *found: seen.append(found) or 1.25)
    held = (Limit("ddp", 1.3),)
    noisy = replace(SMALL, part="noise", contenders=("ours", "ddp"), limits=held, seconds=0.03, sigma=0.3)
    (row,) = measured(noisy, rounds=2, block=0.0)
    consistent(row, noisy)
    assert row["waiting_allows"] == 1.25
    first = AHEAD + 1  # to find out how long a step takes
    assert seen == [(noisy, [first, first + AHEAD + 2], [first, first + AHEAD + 2], 2)]


def test_on_a_network_messages_go_over_its_wire():
    rate, case = 20e6, MODELS["0.1M"]
    setting = replace(SMALL, rate="20mbit", contenders=("exchange, whole",), limits=(Limit("max", 1.1),))
    try:
        (row,) = measured(setting, rounds=1, block=0.0)
    except NetworkError as error:
        pytest.skip(str(error))
    # half of what the wire takes for the message: a statement about where it went, not about speed
    assert row["seconds"]["exchange, whole"]["min"] >= 0.5 * 32 * case.d / rate


# --- memory ---


def test_allocated_counts_what_is_alive_at_once_in_the_later_steps(monkeypatch):
    monkeypatch.setattr(distributed_memory.dist, "barrier", lambda: None)
    megabyte = 2**18

    class Hungry:
        """Keeps one megabyte; a step takes two more, but the first ones take nine."""

        def __init__(self):
            self.kept, self.steps = torch.ones(megabyte), 0

        def step(self):
            self.steps += 1
            return torch.ones(megabyte * (9 if self.steps < 3 else 2)).numel()

    make: Any = Hungry
    assert distributed_memory._allocated(make) == 3 * 2**20


def test_memory_row():
    row = memory("local", "sgd", "2.4M")
    per = row["bytes_per_parameter"]
    assert per["allocated"] == pytest.approx(8, abs=0.5)  # parameters and gradients
    assert per["resident"] >= 7.5
    assert row["limit"] is row["met"] is None
    json.dumps(row, allow_nan=False)


@pytest.mark.slow
def test_a_message_that_is_delivered_counts_once():
    per = memory("ours", "sgd", "50M")["bytes_per_parameter"]
    assert per["allocated"] == pytest.approx(12, abs=0.2)
    assert per["resident"] == pytest.approx(12, abs=0.5)


def test_a_row_of_memory_with_a_limit(monkeypatch):
    found = [{"resident": 12.0, "allocated": 12.6, "at_rest": 12.0}, {"resident": 11.0, "allocated": 9, "at_rest": 8}]
    d = MODELS["50M"].d
    monkeypatch.setattr(distributed_memory, "_found", lambda *_: [{k: v * d for k, v in one.items()} for one in found])
    row = memory("ours", "sgd", "50M")
    assert row["met"] is False
    assert row["ratio"] == pytest.approx(12.6 / 12.5)
    assert row["limit"] == "ours, sgd: at most 12.5 bytes per parameter"
    assert memory("ours, fused", "adam", "50M")["met"] is True
    assert {case: LIMITS[case] for case in LIMITS} == {
        ("ours", "sgd"): 12.5,
        ("ours, fused", "sgd"): 9.0,
        ("ours, fused", "adam"): 18.0,
    }


def test_a_process_that_cannot_measure_says_why(monkeypatch):
    failed = "memory of 'nobody' with 'sgd' could not be measured"
    with pytest.raises(RuntimeError, match=f"{failed}: KeyError: 'nobody'"):
        memory("nobody", "sgd", "0.1M")
    monkeypatch.setattr(distributed_memory, "TIME_OUT", 0.01)
    with pytest.raises(RuntimeError, match=rf"{failed} within 0\.01 seconds"):
        memory("nobody", "sgd", "0.1M")


# --- the whole ---


def test_every_setting_can_be_run_and_every_statement_is_held():
    full = list(settings("full"))
    assert len({(s.part, s.name, s.contenders) for s in full}) == len(full)
    for setting in [*full, *settings("small")]:
        assert set(setting.contenders) <= set(CONTENDERS)
        assert setting.model in MODELS
        assert setting.limits
        assert {limit.who for limit in setting.limits} <= set(CONTENDERS)
        assert setting.part in PARTS
    assert {s.size for s in full if s.part == "loopback"} == {2, 4, 8}
    assert {s.model for s in full if s.part == "loopback"} == {"0.1M", "5M", "50M"}
    assert {s.optimizer for s in full if s.part == "loopback"} == {"sgd", "adam"}
    held = {(s.part, s.rate, s.delay_ms, limit.yardstick, limit.who, limit.times) for s in full for limit in s.limits}
    assert {
        ("loopback", None, 0.0, "sum", "ours", 1.1),
        ("loopback", None, 0.0, "decent-dp", "ours", 1.3),
        ("loopback", None, 0.0, "decent-dp", "ours", 1.1),
        ("bandwidth", "200mbit", 0.0, "max", "ours", 1.1),
        ("bandwidth", "200mbit", 0.0, "decent-dp", "ours, bfloat16", 1.6),
        ("bandwidth", "800mbit", 0.0, "ddp", "ours", 1.3),
        ("latency", None, 20.0, "decent-dp", "ours", 1.5),
        ("noise", None, 0.0, "ddp", "ours", 1.3),
    } <= held


def test_the_whole_in_one_object_and_as_tables(monkeypatch, capsys):
    lacking = replace(SMALL, part="bandwidth", rate="1mbit", delay_ms=0.0)
    large = replace(SMALL, size=10**9)
    monkeypatch.setattr(distributed, "settings", lambda scale: [SMALL, lacking, large])
    monkeypatch.setattr(distributed, "_effort", lambda scale, setting: (1, 0.0))
    monkeypatch.setattr(distributed, "hosts", not_permitted)
    counted = {"resident": 12.0, "allocated": 12.6, "at_rest": 12.0}
    monkeypatch.setattr(distributed_memory, "_found", lambda *_: [counted])
    result = bench_distributed("small")
    assert json.loads(json.dumps(result))["scale"] == "small"
    assert result["skipped"]["bandwidth"] == "not permitted"
    assert "GB, and" in result["skipped"][large.name]
    assert [row["part"] for row in result["rows"]][:3] == ["loopback"] * 3
    show_distributed(result)
    shown = capsys.readouterr().out
    for words in ("0.1M, n=2, sgd, ring", "what ours is held to", "bytes per parameter", "skipped, not permitted"):
        assert words in shown
    assert bench_distributed("small", parts=("loopback",), only="nothing has this name")["rows"] == []


def test_a_setting_that_fails_does_not_take_the_others_along(monkeypatch, capsys):
    def failing(setting, *_):
        if setting.size == 4:
            raise RuntimeError("worker process 3 ended")
        return []

    monkeypatch.setattr(distributed, "settings", lambda scale: [replace(SMALL, size=4), SMALL])
    monkeypatch.setattr(distributed, "measured", failing)
    assert main(["bench", "distributed", "--only", "loopback"]) == 1
    assert "loopback: 0.1M, n=4, sgd, ring: failed, worker process 3 ended" in capsys.readouterr().out


def test_a_row_of_memory_that_fails_does_not_take_the_others_along(monkeypatch, capsys):
    def failing(who, optimizer, model):
        if who == "ours":
            raise RuntimeError("worker process 1 ended")
        return {"part": "memory", "setting": "done"}

    monkeypatch.setattr(distributed, "memory", failing)
    assert main(["bench", "distributed", "--only", "memory", "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["failed"] == {"memory: 50M, n=2, sgd, ours": "worker process 1 ended"}
    assert [row["setting"] for row in printed["rows"]] == ["done"]


def test_an_interrupt_keeps_the_settings_that_were_done(monkeypatch, capsys):
    done = {"part": "loopback", "setting": "done"}

    def interrupted(setting, *_):
        if setting.size == 4:
            raise KeyboardInterrupt
        return [done]

    monkeypatch.setattr(distributed, "settings", lambda scale: [SMALL, replace(SMALL, size=4), SMALL])
    monkeypatch.setattr(distributed, "measured", interrupted)
    assert main(["bench", "distributed", "--json"]) == 130
    printed = json.loads(capsys.readouterr().out)
    assert printed["rows"] == [done]
    assert printed["interrupted"]


def not_permitted(*_, **__):
    raise NetworkError("not permitted")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scale": "huge"}, "scale must be 'small' or 'full', got 'huge'"),
        ({"parts": ("loop",)}, "parts must be among loopback, bandwidth, latency, noise, memory, got 'loop'"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(ConfigError, match=message):
        bench_distributed(**arguments)


def test_unknown_parts_on_the_command_line(capsys):
    assert main(["bench", "distributed", "--only", "wire"]) == 2
    assert "parts must be among loopback, bandwidth" in capsys.readouterr().err


def test_the_command_line_prints_one_object(monkeypatch, capsys):
    said = {"rows": [], "skipped": {}, "failed": {}, "cores": math.inf}
    monkeypatch.setattr(distributed, "bench_distributed", lambda scale, parts: said | {"parts": list(parts)})
    assert main(["bench", "distributed", "--only", "noise", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == said | {"cores": None, "parts": ["noise"]}


def test_options_that_are_not_there_yet_do_not_stop_the_rest(monkeypatch):
    monkeypatch.setattr(distributed, "missing", lambda: {"ours, bfloat16": "not there yet"})
    seen = SimpleNamespace(names=None)

    class Alone:
        """Stands in for the processes."""

        taken = dict.fromkeys(FEW, 0)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def build(self, case, names, plan):
            seen.names = names

        def run(self, name, steps):
            return 0.01, 0.005

    monkeypatch.setattr(distributed, "Group", lambda size: Alone())
    monkeypatch.setattr(distributed, "agreement", lambda *_: {"difference": {}, "agree": {}, "rounded": {}})
    assert len(measured(SMALL, 1, 0.0)) == 3
    assert seen.names == [name for name in FEW if name != "ours, bfloat16"]
