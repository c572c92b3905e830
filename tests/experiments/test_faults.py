"""Faults and options of the engine from a configuration: they reach it, and every arm of a seed sees the same."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dissensus.experiments.cell import Setup
from dissensus.experiments.config import Study
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.faults import participation, with_faults
from dissensus.experiments.loading import load
from dissensus.experiments.prediction import predict
from dissensus.experiments.records import Run
from dissensus.experiments.runner import run_cell
from dissensus.experiments.sections import Faults
from dissensus.theory import topology


def study(**sections: Any) -> Study:
    usual: dict[str, Any] = {
        "model": {"name": "mlp", "width": 4},
        "train": {"steps": 6, "workers": 6, "batch": 8},
        "probes": {"every": 6, "curvature_every": 0, "samples": 64, "noise_batches": 4},
        "arms": {"dsgd": {"algorithm": "dsgd"}, "tracking": {"algorithm": "gradient-tracking"}},
    }
    given: Any = {k: {**usual.get(k, {}), **v} if k != "arms" else v for k, v in {**usual, **sections}.items()}
    return load(**given)


def test_without_faults_nothing_is_wrapped_and_the_digest_stays() -> None:
    ring = topology("ring", 6)
    assert with_faults(ring, None, 0) is ring
    assert with_faults(ring, Faults(), 0) is ring
    assert participation(6, Faults(), 0) is None
    assert "faults" not in study().model_dump(exclude_none=True)


def test_links_fail_as_often_as_was_said_and_alike_in_every_arm() -> None:
    built = study(faults={"drop": 0.3})
    a, b = (Setup.build(built.cell(arm, 0)) for arm in ("dsgd", "tracking"))
    gone = 0
    for t in range(200):
        w = a.topology[t].dense()
        assert np.array_equal(w, b.topology[t].dense())
        np.testing.assert_allclose(w.sum(axis=0), 1.0, atol=1e-12)
        gone += 6 - np.count_nonzero(np.triu(w, 1))
    assert gone / 1200 == pytest.approx(0.3, abs=4 * np.sqrt(0.21 / 1200))
    other = Setup.build(built.cell("dsgd", 0).model_copy(update={"seeds": (1,)}))
    assert any(not np.array_equal(a.topology[t].dense(), other.topology[t].dense()) for t in range(5))


def test_workers_are_away_and_one_is_slow() -> None:
    who = participation(6, Faults(away=0.25, straggler=2, every=3), 0)
    assert who is not None
    there = np.stack([who(t) for t in range(600)])
    assert there[:, 2].mean() == pytest.approx(0.75 / 3, abs=0.08)
    assert there[:, 0].mean() == pytest.approx(0.75, abs=0.08)
    assert not there[np.arange(600) % 3 != 0, 2].any()
    long = participation(6, Faults(away=0.25, stay=20.0), 0)
    assert long is not None
    assert (
        np.abs(np.diff(np.stack([long(t) for t in range(600)]).astype(int), axis=0)).sum()
        < 6 * 600 * 2 * 0.25 / 20 * 1.5
    )
    with pytest.raises(ConfigError, match=r"faults.straggler is a worker, 0 to 5, got 6"):
        participation(6, Faults(straggler=6), 0)


def test_a_run_with_faults_is_recorded_and_runs_again_to_the_bit(tmp_path: Path) -> None:
    cell = study(faults={"drop": 0.2, "away": 0.2, "straggler": 1}, train={"clip": 0.5, "accumulate": 2}).cell(
        "dsgd", 0
    )
    first, second = (run_cell(cell, tmp_path / name) for name in ("a", "b"))
    assert first.status == second.status == "ok", first.error
    hashes = [Run.read(r.path).summary["parameters_hash"] for r in (first, second)]
    assert hashes[0] == hashes[1]
    assert (first.path / "config.toml").read_text().count("straggler = 1") == 1
    setup = Setup.build(cell)
    assert predict(setup, {0: (np.ones(1), np.ones(1))}, [0.1], [1.0]) is None
    assert setup.engine._clip == 0.5
    assert setup.engine._gradients.accumulate == 2


def test_options_of_the_engine_come_from_the_configuration() -> None:
    engine = Setup.build(study(train={"autocast": "bfloat16", "on_nan": "isolate"}).cell("dsgd", 0)).engine
    assert engine._gradients.autocast is torch.bfloat16
    assert engine._presence._on_nan == "isolate"
    with pytest.raises(ConfigError, match=r"train.clip"):
        study(train={"clip": 0})
    with pytest.raises(ConfigError, match=r"faults.drpo"):
        study(faults={"drpo": 0.1})


def test_an_isolated_worker_is_in_the_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = study(train={"on_nan": "isolate"}).cell("dsgd", 0)
    batch = Setup.batch

    def poisoned(self: Setup, t: int) -> Any:
        x, y = batch(self, t)
        if t == 3:
            x = x.clone()
            x[4] = torch.nan
        return x, y

    monkeypatch.setattr(Setup, "batch", poisoned)
    done = run_cell(cell, tmp_path)
    assert done.status == "ok", done.error
    assert Run.read(done.path).summary["isolated"] == {"4": 3}
