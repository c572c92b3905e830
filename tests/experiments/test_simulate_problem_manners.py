"""How `dissensus simulate --problem` speaks: what it tells, what it refuses, and how it writes.

The numbers themselves are held against recursions in `test_simulate_problem_cli`.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from dissensus.experiments.cli import main
from dissensus.experiments.problem import Problem

N, D, STEPS = 8, 5, 100


@pytest.fixture(scope="module")
def quadratics() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(11)
    half = rng.normal(size=(N, D, D)) / math.sqrt(D)
    return {
        "A": 0.3 * np.eye(D) + half @ half.transpose(0, 2, 1) / 2,
        "b": rng.normal(size=(N, D)),
        "x0": rng.normal(size=(N, D)),
        "noise": 0.3 * rng.normal(size=(STEPS, N, D)),
    }


@pytest.fixture(scope="module")
def file(quadratics: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("problem") / "problem.npz"
    np.savez(path, allow_pickle=False, **quadratics)
    return path


def read(capsys: pytest.CaptureFixture, file: Path, line: str) -> dict:
    assert main(["simulate", "--problem", str(file), "--json", *line.split()]) == 0
    out, err = capsys.readouterr()
    assert (out.count("\n"), err) == (1, "")
    return json.loads(out)


def test_what_is_told(file: Path, quadratics: dict[str, np.ndarray], tmp_path: Path, capsys) -> None:
    from dissensus.experiments.models import parameters_hash

    out = tmp_path / "x.npz"
    line = "--algorithm dsgd-ac --algorithm.p 2 --topology torus --topology.rows 2 --optimizer.nesterov"
    line += f" --optimizer.momentum 0.9 --lr 0.05 --lr.schedule cosine --steps 30 --workers 8 --trajectory {out}"
    said = read(capsys, file, line)
    x = np.load(out)["x"][-1]
    mean = x.mean(axis=0)
    a, b = quadratics["A"], quadratics["b"]
    best = np.linalg.solve(a.mean(axis=0), b.mean(axis=0))

    def loss(i: int, at: np.ndarray) -> float:
        return float(at @ a[i] @ at / 2 - b[i] @ at)

    assert said["problem"] == str(file)
    assert said["algorithm"] == "dsgd-ac"
    assert (said["algorithm_parameters"]["p"], said["algorithm_parameters"]["start"]) == (2, 0)
    assert said["topology"] == "torus"
    assert (said["topology_parameters"]["rows"], said["topology_parameters"]["cols"]) == (2, 4)
    assert said["optimizer"] == "sgd"
    assert said["optimizer_parameters"]["nesterov"] is True
    assert said["optimizer_parameters"]["weight_decay"] == 0
    assert "lr" not in said["optimizer_parameters"]
    assert said["lr"] == 0.05
    assert said["lr_schedule"] == {"schedule": "cosine", "warmup": 0, "warmup_from": 0.1, "last": 0.0}
    assert said["parameters_hash"] == parameters_hash(torch.from_numpy(x))
    assert said["consensus_distance"] == pytest.approx(np.mean([np.sum((row - mean) ** 2) for row in x]), rel=1e-12)
    assert said["mean_loss"] == pytest.approx(np.mean([loss(i, x[i]) for i in range(N)]), rel=1e-12)
    assert said["loss_at_mean"] == pytest.approx(np.mean([loss(i, mean) for i in range(N)]), rel=1e-12)
    assert said["loss_at_optimum"] == pytest.approx(np.mean([loss(i, best) for i in range(N)]), rel=1e-12)
    assert said["distance_to_optimum"] == pytest.approx(np.linalg.norm(mean - best), rel=1e-12)
    without = read(capsys, file, line.rsplit(" --trajectory", 1)[0])
    assert without.pop("trajectory") is None
    for key in ("wall_s", "trajectory"):
        for one in (said, without):
            one.pop(key, None)
    assert said == without, "the same with and without a trajectory"


def test_single_precision_is_near_and_says_so(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    runs = {}
    for dtype in ("float32", "float64"):
        out = tmp_path / f"{dtype}.npz"
        line = f"--algorithm dsgd --topology ring --lr 0.1 --steps 100 --dtype {dtype} --trajectory {out}"
        assert read(capsys, file, line)["dtype"] == dtype
        runs[dtype] = np.load(out)["x"]
        assert runs[dtype].dtype == dtype
    # a contraction: errors of a few units of rounding per step do not add up beyond some tens of them
    apart = abs(runs["float32"] - runs["float64"]).max()
    assert 0 < apart < 100 * np.finfo(np.float32).eps * abs(runs["float64"]).max()


def test_without_an_optimum_nothing_is_said_of_it(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    np.savez(tmp_path / "flat.npz", A=np.zeros((3, 2, 2)), b=np.ones((3, 2)), x0=np.arange(2))
    said = read(capsys, tmp_path / "flat.npz", "--algorithm dsgd --topology ring --lr 0 --steps 2")
    assert said["distance_to_optimum"] is None
    assert said["loss_at_optimum"] is None
    assert said["consensus_distance"] == 0.0
    assert (said["lr"], said["lr_schedule"]) == (0.0, None)


def test_a_run_takes_one_thread_and_gives_the_others_back(file, capsys, monkeypatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    read(capsys, file, USUAL)
    assert asked == [1, 7]


def test_phases_of_gamma_are_lists_in_a_list(file: Path, capsys: pytest.CaptureFixture) -> None:
    hashes = {}
    for gamma in ("0.3", "[[0,0.3]]", "[[0,0.3],[5,0.1]]", "[[5,0.1]]"):
        said = read(capsys, file, f"{USUAL} --algorithm.gamma {gamma}")
        assert said["algorithm_parameters"]["gamma"] == json.loads(gamma)
        hashes[gamma] = said["parameters_hash"]
    assert hashes["0.3"] == hashes["[[0,0.3]]"]
    assert len(set(hashes.values())) == 3
    adam = f"{USUAL} --optimizer adam --optimizer.betas"
    told = [read(capsys, file, f"{adam} {betas}") for betas in ("[0.8,0.9]", "0.8,0.9", "[0.8,0.9", "(0.8,0.9)")]
    assert [said["optimizer_parameters"]["betas"] for said in told] == [[0.8, 0.9]] * 4


def test_people_get_a_table(file: Path, capsys: pytest.CaptureFixture) -> None:
    line = f"simulate --problem {file} --algorithm dsgd --topology ring --lr 0.1 --steps 3"
    assert main(line.split()) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for what in ("dsgd on ring", "parameters hash", "distance to optimum", "algorithm: order", "optimizer: momentum"):
        assert what in out


def test_a_run_that_leaves_the_finite_fails_with_worker_and_step(file, tmp_path, capsys) -> None:
    (tmp_path / "free.npz").write_bytes(file.read_bytes())
    Problem(Problem.load(file).A, Problem.load(file).b, Problem.load(file).x0).save(tmp_path / "free.npz")
    out = tmp_path / "out.npz"
    line = f"simulate --problem {tmp_path / 'free.npz'} --algorithm dsgd --topology ring --lr 1e6 --steps 500"
    assert main([*line.split(), "--trajectory", str(out), "--json"]) == 1
    told, complaint = capsys.readouterr()
    said = json.loads(told)
    assert said["status"] == "failed"
    assert said["error"] in complaint
    assert complaint.startswith("dissensus: simulate: worker ")
    assert " at step " in complaint
    assert complaint.count("\n") == 1
    assert list(tmp_path.glob("*out*")) == [], "nothing is left that looks like a trajectory"
    assert main(line.split()) == 1
    told, complaint = capsys.readouterr()
    assert told == ""
    assert "at step" in complaint


USUAL = "--algorithm dsgd --topology ring --lr 0.1 --steps 10"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "--problem also needs --algorithm, --lr, --steps"),
        ("--algorithm dsgd --topology ring --lr 0.1", "--problem also needs --steps"),
        ("--algorithm dsgd --lr 0.1 --steps 10", "algorithm 'dsgd' mixes: who with whom? give --topology NAME"),
        (f"{USUAL} x.toml", "give either --problem or a configuration, not both (got x.toml)"),
        (f"{USUAL} --arm a", "--arm goes with a configuration"),
        (f"{USUAL} --out runs", "--out goes with a configuration; --problem has --trajectory"),
        (USUAL.replace("dsgd", "dsdg"), "unknown algorithm 'dsdg'; did you mean 'dsgd'?"),
        (USUAL.replace("ring", "rign"), "unknown topology 'rign'; did you mean 'ring'?"),
        (f"{USUAL} --optimizer sgdd", "unknown optimizer 'sgdd'; did you mean 'sgd'?"),
        (f"{USUAL} --algorithm.gama 0.5", "algorithm 'dsgd' has no parameter 'gama'; did you mean 'gamma'?"),
        (f"{USUAL} --algorithm.gamma 1.5", "gamma must lie in [0, 1], got 1.5"),
        (f"{USUAL} --algorithm.gamma nan", "gamma must lie in [0, 1], got nan"),
        (f"{USUAL} --algorithm.gamma [[5,1],[0,0.1]]", "phases of gamma come in rising order: step 0 follows step 5"),
        (f"{USUAL} --algorithm.gamma [[5,1],[6]]", "gamma by phases is [[step, gamma], ...], got (6,) in it"),
        (f"{USUAL} --algorithm.gamma [[5,1],6", "gamma"),
        (f"{USUAL} --algorithm.order atx", "order must be one of awc, atc, cta, got 'atx'; did you mean 'atc'?"),
        (USUAL.replace("dsgd", "dsgd-ac") + " --algorithm.p three", "'dsgd-ac': parameter 'p'"),
        (USUAL.replace("dsgd", "dsgd-ac") + " --algorithm.capture 3", "capture must be 'window' or 'published', got 3"),
        (USUAL.replace("dsgd", "qg-dsgdm") + " --algorithm.nesterov maybe", "parameter 'nesterov': input should be a"),
        (USUAL.replace("dsgd", "local_sgd") + " --algorithm.period 2.5", "period must be a whole number of steps"),
        (f"{USUAL} --algorithm.gamma 0.5 --algorithm.gamma 0.6", "--algorithm.gamma is given twice"),
        (USUAL.replace("ring", "torus") + " --topology.row 2", "'torus' has no parameter 'row'; did you mean 'rows'?"),
        (USUAL.replace("ring", "torus") + " --topology.rows two", "rows must be a whole number, got 'two'"),
        (USUAL.replace("ring", "torus") + " --topology.rows 3", "3"),
        (f"{USUAL} --optimizer.momentm 0.9", "no parameter 'momentm'; did you mean 'momentum'?"),
        (f"{USUAL} --optimizer.momentum much", "parameter 'momentum': input should be a valid number, got 'much'"),
        (f"{USUAL} --optimizer.momentum -1", "Invalid momentum value: -1"),
        (f"{USUAL} --optimizer.nesterov", "Nesterov momentum requires a momentum"),
        (f"{USUAL} --optimizer.lr 0.2", "the learning rate is --lr 0.2, not --optimizer.lr"),
        (f"{USUAL} --optimizer.weight_decay 0 --optimizer.weight-decay 1", "--optimizer.weight_decay is given twice"),
        (USUAL.replace("dsgd", "dadam") + " --optimizer sgd", "algorithm 'dadam' has an Adam at every worker"),
        (f"{USUAL} --optimizer lbfgs", "optimizer LBFGS is not elementwise"),
        (f"{USUAL} --lr.peak 0.2", "the learning rate is --lr 0.2, not --lr.peak"),
        (f"{USUAL} --lr.warmpu 2", "there is no --lr.warmpu; did you mean 'warmup'?"),
        (f"{USUAL} --lr.schedule cosin", "--lr.schedule: input should be 'constant' or 'cosine', got 'cosin'"),
        (f"{USUAL} --lr.warmup 10", "--lr.warmup 10 must be shorter than --steps 10"),
        (USUAL.replace("0.1", "0") + " --lr.warmup 2", "--lr: input should be greater than 0, got 0"),
        (USUAL.replace("0.1", "-0.1"), "--lr must be a number that is not negative, got -0.1"),
        (USUAL.replace("0.1", "nan"), "--lr must be a number that is not negative, got nan"),
        (USUAL.replace("0.1", "inf"), "--lr must be a number that is not negative, got inf"),
        (USUAL.replace("0.1", "fast"), "invalid float value: 'fast'"),
        (USUAL.replace("10", "-1"), "steps must be at least 0, got -1"),
        (USUAL.replace("10", "101"), "noise holds 100 steps, but 101 are asked for"),
        (f"{USUAL} --dtype float16", "invalid choice: 'float16'"),
        (f"{USUAL} --workers 4", "is one of 8 workers, but --workers says 4"),
        (f"{USUAL} --trajectory absent/out.npz", "--trajectory absent/out.npz cannot be written: absent is no folder"),
        (f"{USUAL} --trajectory .", "--trajectory . cannot be written: it is a folder"),
        (f"{USUAL} --topolgy.rows 2", "unknown option --topolgy.rows; did you mean 'topology.rows'?"),
        (f"{USUAL} --trajectry out.npz", "unknown option --trajectry; did you mean 'trajectory'?"),
        (f"{USUAL} --algorithm. 2", "unknown option --algorithm."),
        ("--algorithm dsgd --topology random-digraph --lr 0.1 --steps 3", "is only column stochastic; use sgp"),
        ("--algorithm choco-sgd --topology one-peer-ring --lr 0.1 --steps 3", "use a static topology"),
    ],
)
def test_wrong_use_is_one_sentence(line: str, says: str, file: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["simulate", "--problem", str(file), *line.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("dissensus: simulate: ")
    assert err.count("\n") == 1
    assert says in err


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            "--algorithm dsgd",
            "--algorithm goes with --problem FILE.npz; with a configuration it is --arms.",
        ),
        ("x.toml --steps 3", "--steps goes with --problem FILE.npz; with a configuration it is --train.steps"),
        ("x.toml --trajectory a.npz", "--trajectory goes with --problem FILE.npz; a configuration leaves records"),
        ("", "what? give CONFIG.toml, or --problem FILE.npz"),
        ("--problem absent.npz --algorithm dsgd --topology ring --lr 1 --steps 1", "no problem file 'absent.npz'"),
    ],
)
def test_without_a_problem(line: str, says: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["simulate", *line.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("dissensus: simulate: ")
    assert err.count("\n") == 1
    assert says in err


def test_a_file_that_is_wrong_is_named_with_the_place(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "p.npz"
    np.savez(path, A=np.array([[[1.0, 2.0], [0.0, 1.0]]]), b=np.ones((1, 2)), x0=np.ones(2))
    assert main(["simulate", "--problem", str(path), *USUAL.split()]) == 2
    assert f"dissensus: simulate: {path}: A of worker 0 is not symmetric: A[0, 0, 1] = 2.0" in capsys.readouterr().err


def test_a_trajectory_is_written_whole_or_not_at_all(file, tmp_path, capsys, monkeypatch) -> None:
    out = tmp_path / "out.npz"
    np.savez(out, x=np.zeros(3))

    def interrupted(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", interrupted)
    assert main(["simulate", "--problem", str(file), *USUAL.split(), "--trajectory", str(out), "--json"]) == 2
    told, complaint = capsys.readouterr()
    assert told == ""
    assert "cannot read or write: No space left on device" in complaint
    assert [p.name for p in tmp_path.iterdir()] == ["out.npz"]
    np.testing.assert_array_equal(np.load(out)["x"], np.zeros(3))
