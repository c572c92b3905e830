"""`dissensus probe`: what it measures equals the functions of the room, from every kind of subject; errors."""

import importlib
import importlib.machinery
import importlib.util
import io
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from dissensus.algorithms.engines.views import POLICIES
from dissensus.experiments.cell import Setup
from dissensus.experiments.cli import main
from dissensus.experiments.instruments import INSTRUMENTS
from dissensus.experiments.loading import load
from dissensus.experiments.records import Run
from dissensus.experiments.runner import run_cell
from dissensus.experiments.state import STATE_FILE, finished, save_state
from dissensus.experiments.subject import of_model
from dissensus.probes import Curvature, alignment, consensus_distance, envelope, hessian_trace

CONFIG = {
    "name": "tiny",
    "data": {"name": "digits", "partition": "dirichlet", "alpha": 0.5},
    "model": {"name": "mlp", "width": 5},
    "optimizer": {"name": "sgd", "momentum": 0.9},
    "lr": {"peak": 0.1},
    "train": {"steps": 12, "workers": 4, "batch": 8},
    "probes": {"every": 6, "curvature_every": 6, "samples": 256, "noise_batches": 4, "trace_error": 0.3},
    "arms": {"dsgd": {"algorithm": "dsgd"}},
}
QUICK = ("--rtol", "0.3", "--k", "2", "--points", "3", "--steps", "3")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    outcome = run_cell(load(**CONFIG).cell("dsgd", 0), tmp_path_factory.mktemp("runs"))
    assert outcome.status == "ok"
    finished(Run.read(outcome.path), again=True)
    return outcome.path


@pytest.fixture
def bare(ran: Path, tmp_path: Path) -> Path:
    path = tmp_path / ran.name
    shutil.copytree(ran, path)
    (path / STATE_FILE).unlink()
    return path


def read(capsys: pytest.CaptureFixture, *line: str) -> dict:
    assert main(["probe", *line, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


def refused(capsys: pytest.CaptureFixture, *line: str) -> str:
    assert main(["probe", *line]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("dissensus: probe: ")
    assert err.count("\n") == 1, "an error is one sentence"
    return err


def test_a_run_is_measured_as_its_own_engine_would_be(ran: Path, capsys: pytest.CaptureFixture) -> None:
    got = read(capsys, str(ran), "--what", "trace,disagreement,envelope,alignment,eig", "--rtol", "0.3", "--k", "2")
    setup = finished(Run.read(ran))
    engine, loss = setup.engine, setup.data.task.loss
    with engine.consensus() as module:
        op = Curvature(module, loss, setup.probe_batches)
        trace = hessian_trace(op, rtol=0.3, max_matvecs=2000, seed=0)
        aligned = alignment(op, engine.x, trace=trace)
        gap = envelope(module, loss, setup.envelope_batches, engine.x, dtype=torch.float64)
    assert got["trace"]["value"] == trace.value
    assert got["disagreement"]["xi"] == consensus_distance(engine.x).xi
    assert got["alignment"]["normalised"]["value"] == aligned.normalised.value
    assert got["alignment"]["numerator"] == aligned.numerator
    assert got["envelope"]["measured"]["value"] == pytest.approx(gap.value, rel=1e-12)
    assert len(got["eig"]["pairs"]) == 2
    assert (got["workers"], got["topology"], got["samples"]) == (4, "ring", 256)
    top = Run.read(ran).last("top_eigenvalue")
    assert top is not None
    assert got["eig"]["pairs"][0]["value"] == pytest.approx(top["value"], rel=2e-3)


def test_everything_is_measured_and_drawn(ran: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    got = read(capsys, str(ran), "--what", "all", *QUICK, "--figures", str(tmp_path))
    assert set(INSTRUMENTS) <= set(got)
    assert set(got["seconds"]) == set(INSTRUMENTS)
    names = {Path(path).stem for path in got["figures"]}
    assert {"density", "slice", "plane", "workers-plane", "modes", "training"} <= names
    assert all(Path(path).read_bytes()[:4] == b"\x89PNG" for path in got["figures"])
    assert sum(mode["energy"] for mode in got["modes"]["modes"]) == pytest.approx(got["disagreement"]["xi"], rel=1e-6)
    assert len(got["workers-plane"]["marks"]) == 4
    assert np.shape(got["plane"]["values"]) == (3, 3)
    assert got["heterogeneity"]["plain"] > 0
    again = read(capsys, str(ran), "--what", "all", *QUICK)
    for volatile in ("seconds", "figures"):
        del got[volatile], again[volatile]
    assert got == again, "the same seed gives the same bits"


def test_people_get_a_table(ran: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["probe", str(ran), *QUICK]) == 0
    out = capsys.readouterr().out
    assert "consensus after 12 steps" in out
    assert "4 workers on ring" in out
    for row in ("trace", "eig pairs 1", "disagreement xi", "envelope measured", "alignment normalised"):
        assert row in out


def test_a_run_without_weights_is_trained_again_to_the_same_bits(bare: Path, capsys: pytest.CaptureFixture) -> None:
    said = refused(capsys, str(bare))
    assert "holds no weights (no state.pt): train it once more with --again (12 steps)" in said
    got = read(capsys, str(bare), "--again", "--what", "disagreement")
    assert (bare / STATE_FILE).exists()
    assert read(capsys, str(bare), "--what", "disagreement")["disagreement"] == got["disagreement"]
    last = Run.read(bare).last("consensus_distance")
    setup = finished(Run.read(bare))
    assert last is not None
    assert got["disagreement"]["xi"] == consensus_distance(setup.engine.x).xi


def test_a_state_of_another_run_is_not_believed(bare: Path, capsys: pytest.CaptureFixture) -> None:
    cell = Run.read(bare).study
    save_state(bare, Setup.build(cell).engine)
    assert "is not the state its summary speaks of: parameters" in refused(capsys, str(bare))
    (bare / STATE_FILE).write_bytes(b"nonsense")
    assert "is no file of tensors that torch.save wrote" in refused(capsys, str(bare))


def test_code_in_a_file_is_not_run(bare: Path, capsys: pytest.CaptureFixture) -> None:
    torch.save({"x": Run}, bare / STATE_FILE)
    assert "is no file of tensors that torch.save wrote" in refused(capsys, str(bare))


def test_a_single_worker_is_another_model(ran: Path, capsys: pytest.CaptureFixture) -> None:
    mean, own = (read(capsys, str(ran), "--what", "trace", *more) for more in ((), ("--worker", "2")))
    assert mean["trace"]["value"] != own["trace"]["value"]
    assert "worker 2 after 12 steps" in own["subject"]
    assert "there is no worker 4" in refused(capsys, str(ran), "--worker", "4")


MLP = ("--model", "mlp", "--model.width", "5", "--data", "digits", "--samples", "256")


def test_weights_of_every_kind_come_to_the_same(ran: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    setup = finished(Run.read(ran))
    with setup.engine.consensus() as module:
        state = {k: v.clone() for k, v in module.state_dict().items()}
    each = []
    for i in range(4):
        with setup.engine.worker(i) as module:
            each.append({k: v.clone() for k, v in module.state_dict().items()})
    kinds = {
        "plain": state,
        "wrapped": {"state_dict": {f"module.{k}": v for k, v in state.items()}, "epoch": 3},
        "compiled": {f"_orig_mod.{k}": v for k, v in state.items()},
        "workers": each,
        "stacked": {"x": setup.engine.x, "buffers": {}},
        "tensor": setup.engine.x,
    }
    what = ("--what", "eig", "--k", "1")
    expected = read(capsys, str(ran), *what)["eig"]["pairs"][0]["value"]
    for kind, saved in kinds.items():
        file = tmp_path / f"{kind}.pt"
        torch.save(saved, file)
        got = read(capsys, str(file), *MLP, *what)
        assert got["eig"]["pairs"][0]["value"] == pytest.approx(expected, rel=1e-4), kind
        assert got["workers"] == (4 if kind in ("workers", "stacked", "tensor") else None)
    got = read(capsys, str(tmp_path / "workers.pt"), *MLP, "--what", "disagreement")
    assert got["disagreement"]["xi"] == pytest.approx(consensus_distance(setup.engine.x).xi)
    whole = read(capsys, str(ran / STATE_FILE), *MLP, "--what", "disagreement")
    assert whole["disagreement"]["xi"] == consensus_distance(setup.engine.x).xi


def test_buffers_of_the_consensus_follow_the_policy(tmp_path: Path) -> None:
    common = {"model_parameters": {"depth": 8}, "data_parameters": {"images": True}, "samples": 64}
    states = []
    for seed in (0, 1):
        net = of_model("resnet", "digits", seed=seed, **common).model
        with torch.no_grad():
            for buffer in net.buffers():
                if buffer.is_floating_point():
                    buffer += 1 + seed
        states.append({k: v.clone() for k, v in net.state_dict().items()})
    path = tmp_path / "two.pt"
    torch.save(states, path)
    (name,) = [k for k in states[0] if k.endswith("running_mean")][:1]
    found = {bn: of_model("resnet", "digits", weights=path, bn=bn, **common) for bn in POLICIES}
    means = {bn: float(dict(s.model.named_buffers())[name].mean()) for bn, s in found.items()}
    assert (means["average"], means["local"], means["frozen"]) == (1.5, 1.0, 0.0)
    assert means["recalibrate"] not in (1.5, 1.0, 0.0)
    assert all(subject.bn == bn for bn, subject in found.items())
    own = of_model("resnet", "digits", weights=path, worker=1, **common)
    assert float(dict(own.model.named_buffers())[name].mean()) == 2.0
    assert own.bn == "worker 1's own"
    for subject in found.values():
        point = torch.cat([p.detach().reshape(-1) for p in subject.model.parameters()])
        assert subject.x is not None
        torch.testing.assert_close(point, subject.x.mean(0))


def test_a_model_at_its_start_and_a_configuration_are_one(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file = tmp_path / "a.toml"
    file.write_text(
        'name = "a"\n[data]\nname = "digits"\n[model]\nname = "mlp"\nwidth = 5\n[probes]\nsamples = 256\n'
        '[arms.dsgd]\nalgorithm = "dsgd"\n'
    )
    what = ("--what", "trace", "--rtol", "0.3")
    named = read(capsys, "mlp", "--model.width", "5", "--data", "digits", "--samples", "256", *what)
    configured = read(capsys, str(file), *what)
    assert named["trace"] == configured["trace"]
    assert named["trace"] != read(capsys, str(file), *what, "--seed", "1")["trace"]


def test_precision_parameters_and_listing(ran: Path, capsys: pytest.CaptureFixture) -> None:
    got = read(capsys, str(ran), "--what", "trace", "--dtype", "float64", "--parameters", "3.*", "--rtol", "0.01")
    assert got["trace"]["dtype"] == "float64"
    setup = finished(Run.read(ran))
    with setup.engine.consensus() as module:
        dense = Curvature(module, setup.data.task.loss, setup.probe_batches, "3.*", dtype=torch.float64).dense()
    assert got["trace"]["value"] == pytest.approx(float(dense.trace()), rel=0.02)
    assert main(["probe", "--list", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == set(INSTRUMENTS)
    assert main(["probe", "--list"]) == 0
    assert "heterogeneity" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "of what? give a run directory, a file of weights, CONFIG.toml, or the name of a model"),
        ("mlq --data digits", "'mlq' is no run directory, file or model; did you mean 'mlp'?"),
        ("mlp", "on which data? say --data NAME"),
        ("mlp --data digit", "unknown data set 'digit'; did you mean 'digits'?"),
        ("mlp --data digits --what trase", "unknown instrument 'trase' in --what; did you mean 'trace'?"),
        ("mlp --data digits --what ,", "--what names no instrument"),
        ("mlp --data digits --model.widht 4", "model 'mlp' has no parameter 'widht'; did you mean 'width'?"),
        ("mlp --data digits --modl.width 4", "unknown option --modl.width; did you mean 'model.width'?"),
        ("mlp --data digits --what alignment", "alignment is about several workers"),
        ("mlp --data digits --what modes", "modes is about several workers"),
        ("mlp --data digits --what heterogeneity", "heterogeneity is about workers with data of their own"),
        ("mlp --data digits --rtol 0", "--rtol must be positive, got 0"),
        ("mlp --data digits --radius -1", "--radius must be positive, got -1"),
        ("mlp --data digits --k 0", "must be at least 1, got 0"),
        ("mlp --data digits --again", "--again is for a run directory"),
        ("mlp --data digits --worker 1", "is one model, there is no worker 1: leave --worker out"),
        ("mlp --model cnn --data digits", "--model goes with a file of weights"),
        ("gone.pt", "which model are the weights in gone.pt of? say --model NAME --data NAME"),
        ("gone.pt --model mlp --data digits", "there is no file 'gone.pt'"),
        ("gone.pt --weights b.pt --model mlp --data digits", "are two files of weights; give one"),
        ("gone.safetensors --model mlp --data digits", "safetensors"),
        ("gone.toml", "no configuration file 'gone.toml'"),
        ("empty", "empty is no run directory: it has no config.toml"),
        ("mlp --data digits --jso", "unknown option --jso; did you mean 'json'?"),
        ("mlp --data digits --figures file.txt", "--figures is a folder to write into, file.txt is a file"),
        ("mlp --data digits --what trace --figures out --samples 64", "nothing that was measured is a figure"),
    ],
)
def test_wrong_use_is_told_in_one_sentence(
    line: str, says: str, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("words")
    assert says in refused(capsys, *line.split())


def test_wrong_use_of_a_run(ran: Path, capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    assert "a run directory says everything itself: leave --model out" in refused(capsys, str(ran), "--model", "mlp")
    assert "leave --data.noise out" in refused(capsys, str(ran), "--data.noise", "0.1")
    assert f"it holds 1 runs, such as {ran}" in refused(capsys, str(ran.parent))
    halted = tmp_path / "halted"
    shutil.copytree(ran, halted)
    (halted / "summary.json").unlink()
    assert "did not end well (interrupted): run its configuration again" in refused(capsys, str(halted))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: s.pop("1.bias"), "has no tensor '1.bias'"),
        (lambda s: s.update({"1.bias": torch.zeros(4)}), "'1.bias' has shape (4,), the model (5,)"),
        (lambda s: s.update({"9.bias": torch.zeros(4)}), "holds '9.bias', which the model has not"),
        (lambda s: s.clear(), "has no tensor '1.weight'"),
    ],
)
def test_weights_that_do_not_fit_are_named(change, says, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    state = of_model("mlp", "digits", model_parameters={"width": 5}).model.state_dict()
    change(state)
    torch.save(dict(state), tmp_path / "w.pt")
    assert says in refused(capsys, str(tmp_path / "w.pt"), *MLP)


def test_safetensors_are_read_where_the_package_is(tmp_path: Path, capsys, monkeypatch) -> None:
    state = of_model("mlp", "digits", model_parameters={"width": 5}).model.state_dict()
    file = tmp_path / "w.safetensors"
    if importlib.util.find_spec("safetensors") is None:  # a stand-in that reads what torch wrote
        package, reader = (ModuleType(name) for name in ("safetensors", "safetensors.torch"))
        package.__spec__ = importlib.machinery.ModuleSpec("safetensors", None)
        reader.load_file = lambda path: torch.load(io.BytesIO(path.read_bytes()), weights_only=True)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "safetensors", package)
        monkeypatch.setitem(sys.modules, "safetensors.torch", reader)
        torch.save(dict(state), file)
    else:
        importlib.import_module("safetensors.torch").save_file(dict(state), str(file))
    torch.save(dict(state), tmp_path / "w.pt")
    what = ("--what", "eig", "--k", "1")
    tensors, plain = (read(capsys, str(tmp_path / name), *MLP, *what) for name in ("w.safetensors", "w.pt"))
    assert tensors["eig"] == plain["eig"]


@pytest.mark.parametrize(
    ("saved", "says"),
    [
        (torch.zeros(3, 4), "x has shape (3, 4), the model has 385 trainable parameters"),
        ([], "is an empty list: one state_dict per worker is expected"),
        (3, "holds a int: expected tensors by name"),
    ],
)
def test_stacked_weights_that_do_not_fit(saved, says, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    torch.save(saved, tmp_path / "w.pt")
    assert says in refused(capsys, str(tmp_path / "w.pt"), *MLP)
