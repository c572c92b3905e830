"""The command line: exit codes, errors of one sentence, JSON alone on standard output."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from dissensus.experiments.cli import VERBS, main
from dissensus.experiments.cli.theory import PARTS

KEYS = {
    "name",
    "n",
    "period",
    "row_stochastic",
    "column_stochastic",
    "doubly_stochastic",
    "symmetric",
    "connected",
    "contraction",
    "spectral_gap",
    "effective_neighbors",
    "exact_after",
    "messages_per_step",
}


def read(capsys: pytest.CaptureFixture, *line: str) -> dict:
    assert main(list(line)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.count("\n") == 1
    return json.loads(out)


def refused(capsys: pytest.CaptureFixture, *line: str) -> str:
    assert main(list(line)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("dissensus: ")
    assert err.count("\n") == 1, "an error is one sentence"
    return err


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "theory"])
def test_every_verb_explains_itself(verb: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as left:
        main([verb, "--help"])
    assert left.value.code == 0
    assert f"dissensus {verb}" in capsys.readouterr().out


@pytest.mark.parametrize("part", PARTS)
def test_every_part_of_the_theory_explains_itself(part: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as left:
        main(["theory", part, "--help"])
    assert left.value.code == 0
    assert f"dissensus theory {part}" in capsys.readouterr().out


def test_the_verb_theory_lists_its_parts(capsys: pytest.CaptureFixture) -> None:
    for line in (["theory"], ["theory", "--help"]):
        assert main(line) == 0
        told = capsys.readouterr().out
        assert all(summary in told for summary in PARTS.values())


def test_an_unknown_part_names_the_nearest(capsys: pytest.CaptureFixture) -> None:
    assert "unknown part 'stationery'; did you mean 'stationary'?" in refused(capsys, "theory", "stationery")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("topolgy", "unknown verb 'topolgy'; did you mean 'topology'?"),
        ("topology", "which one?"),
        ("topology ring", "how many workers?"),
        ("topology rign --n 4", "unknown topology 'rign'; did you mean 'ring'?"),
        ("topology ring --n 0", "n must be at least 1, got 0"),
        ("topology ring --n four", "invalid int value: 'four'"),
        ("topology one-peer-ring --n 7", "the nearest that work are 6 and 8"),
        ("topology ring --n 4 --jsn", "did you mean 'json'?"),
        ("topology torus --n 12 --row 3", "takes no --row; did you mean 'rows'?"),
        ("topology torus --n 12 --rows three", "--rows got 'three'"),
        ("topology torus --n 12 --rows 3 --rows 4", "--rows is given twice"),
        ("topology ring --n 4 extra", "unexpected argument 'extra'"),
        ("topology ring --n 4 --gamma 1.5", "gamma must lie in [0, 1], got 1.5"),
        ("topology --file absent.npy", "absent.npy"),
        ("topology ring --n 4 --file absent.npy", "not both"),
        ("theory stationary --lr 0.1 --curvature 1,x", "--curvature wants numbers"),
        ("theory stationary --lr 0.1 --curvature 1,2 --noise 1", "--curvature has 2 values, but --noise has 1"),
        ("theory stationary", "--lr"),
        ("bench theory --jso", "unknown option --jso; did you mean 'json'?"),
        ("study absent.toml", "no configuration file 'absent.toml'"),
        ("report absent", "absent"),
        ("demo --seeds 0", "at least one seed"),
    ],
)
def test_wrong_use_is_told_in_one_sentence(
    line: str, says: str, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert says in refused(capsys, *line.split())


def test_topology_json_has_every_key(capsys: pytest.CaptureFixture) -> None:
    ring = read(capsys, "topology", "ring", "--n", "8", "--json")
    assert set(ring) >= KEYS
    assert ring["name"] == "ring"
    assert ring["contraction"] == pytest.approx(1 / 3 + 2 / 3 * np.cos(np.pi / 4), rel=1e-12)
    assert "rounds" not in ring


def test_topology_weights_are_listed_by_receiver(capsys: pytest.CaptureFixture) -> None:
    hop = read(capsys, "topology", "one_peer_exponential", "--n", "4", "--weights", "--json")
    first = {(i, j): w for i, j, w in hop["rounds"][0]}
    assert first == {(i, j % 4): 0.5 for i in range(4) for j in (i, i - 1)}
    assert len(hop["rounds"]) == hop["period"] == 2


def test_topology_keys_gamma_and_compare(capsys: pytest.CaptureFixture) -> None:
    torus = ["topology", "torus", "--n", "12", "--rows", "3", "--json"]
    got, full = read(capsys, *torus, "--gamma", "0.5", "--compare", "ring", "complete"), read(capsys, *torus)
    assert got["spectral_gap"] == pytest.approx(full["spectral_gap"] / 2, rel=1e-12)
    assert [r["n"] for r in got["compare"]] == [12, 12]
    assert got["compare"][1]["contraction"] == pytest.approx(0.5, rel=1e-12)


def test_topology_from_a_file_and_its_faults(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.npy", tmp_path / "bad.csv"
    np.save(good, np.array([[0.5, 0.5, 0.0], [0.25, 0.5, 0.25], [0.25, 0.0, 0.75]]))
    got = read(capsys, "topology", "--file", str(good), "--json")
    assert got["doubly_stochastic"]
    assert not got["symmetric"]
    bad.write_text("0.5,0.5\n0.5,0.501\n")
    assert "row 1 sums to 1.001, expected 1" in refused(capsys, "topology", "--file", str(bad))


def test_every_builtin_is_listed(capsys: pytest.CaptureFixture) -> None:
    listed = read(capsys, "topology", "--list", "--json")
    promised = (
        "complete ring path star grid torus hypercube exponential one-peer-exponential one-peer-hypercube "
        "one-peer-ring aer ring-lattice erdos-renyi random-regular geometric base-k equitopo directed-ring "
        "hierarchical random-gossip matcha"
    )
    assert set(promised.split()) <= set(listed)


def test_topology_draws_a_figure(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    where = tmp_path / "aer.png"
    assert main(["topology", "aer", "--n", "8", "--workers-per-node", "2", "--figure", str(where)]) == 0
    assert where.read_bytes()[:4] == b"\x89PNG"
    assert str(where) in capsys.readouterr().out


def test_theory_stationary_prints_the_golden_variance(capsys: pytest.CaptureFixture) -> None:
    line = "theory stationary --topology complete --n 2 --lr 0.1 --momentum 0.9 --curvature 1 --noise 1 --json"
    got = read(capsys, *line.split())
    assert set(got) >= {"consensus_distance", "envelope", "alignment", "modes"}
    assert set(got["modes"][0]) >= {"lambda", "curvature", "variance"}
    assert got["consensus_distance"] == pytest.approx(0.02777777778 / 2, rel=1e-9)


def test_ctrl_c_exits_with_130_and_leaves_a_record(tmp_path: Path) -> None:
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    line = [
        sys.executable,
        "-m",
        "dissensus",
        "demo",
        "--seeds",
        "1",
        "--steps",
        "100000",
        "--quiet",
        "--processes",
        "1",
    ]
    running = subprocess.Popen(
        [*line, "--out", str(tmp_path)], env=env, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("demo/*/metrics.jsonl")) and time.monotonic() < deadline:
            time.sleep(0.2)
        time.sleep(1.0)
        os.killpg(running.pid, signal.SIGINT)
        _, err = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 130, err
    assert "Traceback" not in err
    summaries = [json.loads(p.read_text()) for p in tmp_path.glob("demo/*/summary.json")]
    assert [s["status"] for s in summaries] == ["interrupted"]


def test_the_last_line_of_the_demo_is_the_path_of_its_report(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "dissensus", "demo", "--seeds", "2", "--steps", "20", "--out", str(tmp_path)]
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240)
    assert done.returncode == 0, done.stdout
    assert done.stdout.rstrip("\n").rsplit("\n", 1)[-1] == str(tmp_path / "demo" / "report.html")


STUDY = """
name = "tiny"
seeds = [0, 1]
train = { steps = 12, workers = 4, batch = 4 }
probes = { every = 6, curvature_every = 0 }

[arms.dsgd]
algorithm = "dsgd"

[arms.ac]
algorithm = "dsgd-ac"
p = 2.0
"""


def test_study_simulate_and_report_speak_json_alone(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file, out = tmp_path / "tiny.toml", str(tmp_path / "runs")
    file.write_text(STUDY)
    one = read(capsys, "simulate", str(file), "--arm", "ac", "--seed", "1", "--out", out, "--json")
    assert one["status"] == "ok"
    assert (Path(one["path"]) / "summary.json").exists()
    all_runs = read(capsys, "study", str(file), "--out", out, "--processes", "1", "--json")
    assert [r["status"] for r in all_runs["runs"]] == ["ok"] * 4
    again = read(capsys, "report", str(Path(out) / "tiny"), "--json")
    assert again["findings"] == all_runs["findings"]
    assert {f["verdict"] for f in again["findings"]} <= {"supported", "not supported", "inconclusive"}


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ("--train.stesp 5", "unknown key 'train.stesp'; did you mean 'steps'?"),
        ("--arms.ac.q 3", "'q'"),
        ("--arm acc", "no arm 'acc'; did you mean 'ac'?"),
        ("", "say which with --arm"),
        ("--topology.name rign --arm ac", "unknown topology 'rign'; did you mean 'ring'?"),
    ],
)
def test_a_wrong_key_of_a_study_is_named(extra: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file = tmp_path / "tiny.toml"
    file.write_text(STUDY)
    assert says in refused(capsys, "simulate", str(file), *extra.split())


def test_parameters_of_drawn_topologies_can_be_set(capsys: pytest.CaptureFixture) -> None:
    half = read(capsys, *["topology", "matcha", "--n", "8", "--budget", "0.5", "--graph", "torus", "--json"])
    less = read(capsys, *["topology", "matcha", "--n", "8", "--budget", "0.25", "--graph", "torus", "--json"])
    assert less["contraction"] > half["contraction"]
    assert (
        read(capsys, *["topology", "random-gossip", "--mode", "maximal", "--n", "8", "--json"])["messages_per_step"]
        == 8
    )


def test_every_listed_parameter_is_a_flag(capsys: pytest.CaptureFixture) -> None:
    from dissensus.theory import catalogue

    for name, entry in catalogue().items():
        assert all(p.kind is p.KEYWORD_ONLY for p in entry.parameters.values()), name


def test_keys_may_come_before_the_name_and_go_with_a_file(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    assert read(capsys, *["topology", "--n", "12", "--rows", "3", "torus", "--json"])["diameter"] == 3
    edges = tmp_path / "path.json"
    edges.write_text('{"edges": [[0, 1], [1, 2]]}')
    got = read(capsys, "topology", "--file", str(edges), "--rule", "lazy", "--weights", "--json")
    assert got["rounds"][0][0] == [0, 0, pytest.approx(5 / 6)]
    assert "goes alone" in refused(capsys, *["topology", "--list", "--foo", "3"])
    assert "--promise is for --file" in refused(capsys, *["topology", "ring", "--n", "5", "--promise", "column"])
