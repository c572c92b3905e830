"""`dissensus plan`: it predicts what the model says, ranks by what it predicts, and refuses in sentences."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dissensus.experiments.cli import main
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.planning.calibration import Calibration
from dissensus.experiments.planning.machines import PRESETS, Stated, machine
from dissensus.experiments.planning.ranking import AS_FAST, MODELS, make_plan, recommended
from dissensus.theory import topology
from dissensus.theory.runtime import Cluster, Constant, Link, LogNormal, all_reduce_pace, pace, rounds_on

GB = 1e9 / 8
FLAT = Cluster(8, 1, Link(0, GB), Link(0, GB), name="flat")
CLUSTER = """
nodes = 2
workers_per_node = 4
cards = 2
[inside]
gbit_per_second = 100
latency_microseconds = 10
[between]
gbit_per_second = 10
[compute]
seconds = 0.05
deviation = 0.2
"""


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["plan", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["plan", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


# ---- predictions


def test_without_noise_a_plan_is_arithmetic() -> None:
    found = make_plan(Stated(FLAT, 0.5, Constant()), 25_000_000, topologies=["one-peer-ring", "ring"])
    assert found.all_reduce_seconds == pytest.approx(14 * 1e8 / 8 / GB)
    assert found.gamma == pytest.approx(2.8)
    assert found.iteration_all_reduce == pytest.approx(0.5 + 1.4)
    assert found.iteration_all_reduce_overlapped == pytest.approx(max(0.5 + 0.14, 0.5 * 0.46 + 1.4))
    first, second = found.rows
    assert (first.topology, second.topology) == ("one-peer-ring", "ring")
    assert first.iteration_seconds == pytest.approx(0.8, rel=1e-5)
    assert second.iteration_seconds == pytest.approx(1.6, rel=1e-5)
    assert first.guaranteed_speedup == pytest.approx(first.speedup, rel=1e-4)
    assert first.exchange_seconds == pytest.approx(0.8)


def test_with_noise_it_is_the_runtime_model() -> None:
    stated = Stated(PRESETS["a40-25g"][0], 0.1, LogNormal(0.2))
    found = make_plan(stated, 25_557_032, topologies=["one-peer-exponential"], order="atc", message_bytes=2)
    rounds = rounds_on(topology("one-peer-exponential", 16), stated.cluster, 2 * 25_557_032)
    units = [type(one)(one.senders, one.delay / 0.1) for one in rounds]
    direct = pace(units, LogNormal(0.2), order="atc", iterations=2000)
    (row,) = found.rows
    assert row.iteration_seconds == pytest.approx(0.1 * direct.value[0, 0], rel=1e-9)
    assert found.iteration_all_reduce == pytest.approx(0.1 * all_reduce_pace(LogNormal(0.2), 16, found.gamma))
    assert row.speedup_without_overlap == pytest.approx(found.iteration_all_reduce / row.iteration_seconds)
    assert row.guaranteed_speedup <= row.speedup
    assert row.neighbours_per_second == pytest.approx((row.effective_neighbours or 0) / row.iteration_seconds)


def test_local_steps_make_an_exchange_cheaper_and_mix_less() -> None:
    often, rarely = (
        make_plan(Stated(FLAT, 0.5, LogNormal(0.1)), 25_000_000, topologies=["one-peer-exponential"], every=h).rows[0]
        for h in (1, 4)
    )
    assert rarely.topology == "one-peer-exponential, every 4"
    rounds = [
        type(one)(one.senders, one.delay / 0.5) for one in rounds_on(topology("one-peer-exponential", 8), FLAT, 1e8)
    ]
    direct = pace(rounds, LogNormal(0.1), every=4, iterations=4000)
    assert rarely.iteration_seconds == pytest.approx(0.5 * direct.value[0, 0], rel=0.01)
    assert rarely.iteration_seconds < often.iteration_seconds
    assert (rarely.effective_neighbours or 9) < (often.effective_neighbours or 0)
    assert rarely.guaranteed_speedup <= rarely.speedup


def test_rows_are_in_order_and_what_does_not_fit_is_left_out_with_the_reason() -> None:
    found = make_plan(Stated(Cluster(7, 1, Link(0, GB), Link(0, GB)), 0.1, LogNormal(0.1)), 10**6)
    times = [row.iteration_seconds for row in found.rows]
    assert times == sorted(times)
    assert {"one-peer-hypercube", "hypercube"} <= set(found.left_out)
    assert {"ring", "complete"} <= {row.topology for row in found.rows}


def test_a_worker_that_is_always_slower_slows_all_schedules() -> None:
    speeds = np.array([1, 1, 1, 1, 1, 1, 1, 1.5])
    found = make_plan(Stated(FLAT, 0.1, LogNormal(0.01), speeds), 1000, topologies=["one-peer-ring"])
    (row,) = found.rows
    assert row.iteration_seconds == pytest.approx(0.15, rel=0.02)
    assert row.speedup * 0.9 < row.guaranteed_speedup <= row.speedup
    assert found.iteration_all_reduce == pytest.approx(0.15, rel=0.02)


def test_the_recommendation_keeps_all_reduce_where_nothing_is_gained() -> None:
    quick = Cluster(2, 4, Link(0, 1e15), Link(0, 1e15))
    assert make_plan(Stated(quick, 0.1, Constant()), 10**6).recommendation.startswith("Keep all-reduce")
    slow = make_plan(Stated(FLAT, 0.5, LogNormal(0.1)), 25_000_000)
    assert slow.recommendation.startswith(f"Use {slow.rows[0].topology} with order awc")
    assert recommended([], 0.2, 5, "awc") == "All-reduce, 200 ms an iteration: no schedule fits 5 workers."


def test_of_schedules_that_are_as_fast_the_one_that_mixes_best_is_recommended() -> None:
    found = make_plan(Stated(Cluster(8, 1, Link(0, 1e12), Link(0, 1e12)), 0.5, LogNormal(0.3)), 10**6)
    near = [row for row in found.rows if row.iteration_seconds <= AS_FAST * found.rows[0].iteration_seconds]
    best = max(near, key=lambda row: row.effective_neighbours or 0)
    assert len(near) > 1
    assert found.recommendation.startswith(f"Use {best.topology} ")


# ---- machines


def test_a_cluster_file_is_what_it_says(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text(CLUSTER)
    found = machine(str(file))
    assert isinstance(found, Stated)
    assert found.cluster == Cluster(2, 4, Link(1e-5, 100 * GB), Link(0, 10 * GB), 2, "my")
    assert (found.seconds, found.compute) == (0.05, LogNormal(0.2))
    other = machine(str(file), seconds=1.0, deviation=0.0)
    assert (other.seconds, other.compute) == (1.0, LogNormal(0.0))


def calibration() -> Calibration:
    def rows(kind: str, latency: float, rate: float) -> list[dict[str, Any]]:
        return [{"kind": kind, "bytes": 4**k, "seconds": latency + 4**k / rate, "spread": 0.0} for k in range(5, 13)]

    from dissensus.experiments.planning.calibration import Row

    lines = [*rows("all-reduce", 2e-3, 1e8), *rows("exchange", 1e-3, 2e8)]
    samples = tuple(tuple(0.1 * s * (1 + 0.1 * np.sin(k)) for k in range(50)) for s in (1.0, 1.0, 1.0, 1.2))
    return calibrated(tuple(Row(**line) for line in lines), samples)


def calibrated(rows: tuple[Any, ...], samples: tuple[tuple[float, ...], ...]) -> Calibration:
    from dissensus.experiments.planning.calibration import fitted

    kinds = dict.fromkeys(row.kind for row in rows)
    return Calibration(
        workers=4,
        hosts={"one": 4},
        backend="gloo",
        torch="2.13.0",
        date="2026-01-01T00:00:00+00:00",
        parameters=1000,
        compute_seconds=samples,
        rows=rows,
        fits=tuple(fitted(kind, [row for row in rows if row.kind == kind]) for kind in kinds),
        notes=(),
    )


def test_a_calibration_is_planned_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calibration().to_file(tmp_path / "here.json")
    found = planned(capsys, "1M", "--cluster", str(tmp_path / "here.json"), "--topology", "one-peer-ring", "ring")
    assert found["workers"] == 4
    assert found["all_reduce_seconds"] == pytest.approx(2e-3 + 4e6 / 1e8, rel=1e-3)
    pair, ring = found["rows"]
    assert pair["exchange_seconds"] == pytest.approx(1e-3 + 4e6 / 2e8, rel=1e-3)
    assert ring["exchange_seconds"] == pytest.approx(1e-3 + 8e6 / 2e8, rel=1e-3)
    assert found["compute_seconds"] == pytest.approx(0.105, rel=0.02)


def test_messages_between_hosts_are_those_that_were_measured_there(tmp_path: Path) -> None:
    from dissensus.experiments.planning.calibration import Row

    whole = calibration()
    more = [
        Row(kind, 4**k, latency + 4**k / rate, 0.0)
        for kind, latency, rate in (("exchange-between", 5e-3, 1e8), ("exchange-between-all", 5e-3, 5e7))
        for k in range(5, 13)
    ]
    spread = replace(whole, hosts={"one": 2, "two": 2}, rows=(*whole.rows, *more))
    spread = replace(spread, fits=calibrated(spread.rows, whole.compute_seconds).fits)
    spread.to_file(tmp_path / "two.json")
    found = machine(str(tmp_path / "two.json"))
    assert found.per_node == 2
    inside, between = found.rounds(topology("one-peer-hypercube", 4), 1e6)
    np.testing.assert_allclose(inside.delay, 1e-3 + 1e6 / 2e8, rtol=1e-6)
    np.testing.assert_allclose(between.delay, 5e-3 + 1e6 / 5e7, rtol=1e-6)
    even, odd = found.rounds(topology("one-peer-ring", 4), 1e6)
    np.testing.assert_allclose(even.delay, 1e-3 + 1e6 / 2e8, rtol=1e-6)
    np.testing.assert_allclose(odd.delay, 5e-3 + 1e6 / 5e7, rtol=1e-6)  # 1 with 2 and 3 with 0: two leave each host


# ---- the command


def test_presets_and_models_plan(capsys: pytest.CaptureFixture[str]) -> None:
    listed = planned(capsys, "--list")
    assert set(listed["clusters"]) == set(PRESETS)
    assert {name: one["parameters"] for name, one in listed["models"].items()} == {k: n for k, (n, _) in MODELS.items()}
    for name in PRESETS:
        few = ("--topology", "one-peer-exponential", "aer")
        found = planned(capsys, "wrn-16-8", "--cluster", name, "--compute", "0.1", "--sigma", "0.1", *few)
        assert len(found["rows"]) == 2
        assert found["workers"] == PRESETS[name][0].size
    assert main(["plan", "124M", "--cluster", "a100-ib", "--compute", "0.2"]) == 0
    out = capsys.readouterr().out
    assert "124,000,000 parameters" in out
    assert out.rstrip().splitlines()[-1].startswith(("Use ", "Keep "))


def test_placement_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    latency = np.full((4, 4), 1e-2)
    latency[:2, :2] = latency[2:, 2:] = 1e-4
    order = np.ix_([0, 2, 1, 3], [0, 2, 1, 3])
    np.savez(tmp_path / "l.npz", latency_seconds=latency[order], bandwidth_bytes_per_second=np.full((4, 4), 1e9))
    found = planned(capsys, "--place", str(tmp_path / "l.npz"), "--topology", "one-peer-hypercube", "--bytes", "1e6")
    assert found["seconds"] <= found["seconds_of_identity"]
    assert sorted(found["assignment"]) == [0, 1, 2, 3]
    staged = planned(capsys, "--place", str(tmp_path / "l.npz"), "--pipeline", "2x2")
    assert staged["placed"] == "2 stages of 2"
    assert main(["plan", "--place", str(tmp_path / "l.npz"), "--pipeline", "2x2"]) == 0
    assert "worker i lives on device" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "asked for nothing; give one of MODEL"),
        (("resnet50", "--list"), "asked for MODEL and --list"),
        (("resnet5",), "did you mean 'resnet50'"),
        (("0",), "neither a number of parameters"),
        (("resnet50",), "which cluster?"),
        (("resnet50", "--cluster", "a40-25"), "did you mean 'a40-25g'"),
        (("resnet50", "--cluster", "a40-25g"), "give --compute SECONDS"),
        (("resnet50", "--cluster", "a40-25g", "--compute", "0"), "--compute must be a number > 0"),
        (("resnet50", "--cluster", "a40-25g", "--compute", "1", "--topology", "rin"), "did you mean"),
        (("resnet50", "--cluster", "a40-25g", "--compute", "1", "--begins", "2"), "begins after a share in"),
        (("--calibrate", "x.json"), "start them by torchrun, or here with --nproc N"),
        (("--calibrate", "x.json", "--nproc", "1"), "--nproc must be at least 2"),
        (("--calibrate", "nowhere/x.json", "--nproc", "2"), "nowhere is no folder"),
        (("--place", "dt-fm-data-center", "--topology", "ring"), "did you mean 'dt-fm-data-centre'"),
        (("--place", "dt-fm-data-centre"), "give --topology with one name, or --pipeline SxD"),
        (("--place", "dt-fm-data-centre", "--pipeline", "8"), "as in 8x8"),
    ],
)
def test_wrong_use_is_one_sentence(arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in refused(capsys, *arguments)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nodes = 2\nworkers_per_nod = 4\n[between]\ngbit_per_second = 1", "did you mean 'workers_per_node'"),
        ("nodes = 0\nworkers_per_node = 4\n[between]\ngbit_per_second = 1", "nodes: "),
        ("nodes = 2\nworkers_per_node = 4\n[between]\ngbit = 1", "between.gbit"),
        ("nodes = ", "no valid TOML"),
    ],
)
def test_a_wrong_file_is_named_with_the_key(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said) as error:
        machine(str(file))
    assert str(file) in str(error.value)


def test_pictures_are_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--compute", "0.3", "--sigma", "0.1", "--figures", str(tmp_path), "--topology", "one-peer-exponential"]
    planned(capsys, "wrn-16-8", "--cluster", "a40-25g", *options)
    assert {p.name for p in tmp_path.iterdir()} == {"timeline.png", "surface.png", "size.png"}
