"""When a run looks at curvature, at whom, and what it leaves out for lack of time."""

from pathlib import Path

import pytest

from dissensus.experiments.config import Study
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.loading import load
from dissensus.experiments.records import Run
from dissensus.experiments.runner import run_cell

STEPS = 12


def tiny(*overrides: str) -> Study:
    return load(
        (),
        overrides,
        name="looks",
        data={"name": "digits"},
        model={"name": "mlp", "width": 4},
        lr={"peak": 0.1},
        train={"steps": STEPS, "workers": 3, "batch": 8},
        probes={"every": 6, "curvature_every": 0, "samples": 64, "noise_batches": 3, "trace_error": 0.5},
        arms={"dsgd": {"algorithm": "dsgd"}},
    ).cell("dsgd", 0)


def done(tmp_path: Path, *overrides: str) -> Run:
    outcome = run_cell(tiny(*overrides), tmp_path)
    assert outcome.status == "ok", outcome.error
    return Run.read(outcome.path)


@pytest.mark.parametrize(
    ("override", "steps"),
    [
        ("probes.curvature_every=5", [0, 5, 10, 12]),
        ("probes.curvature_at=log 4", [0, 1, 2, 5, 12]),
        ("probes.curvature_at=every 9", [0, 9, 12]),
        ("probes.curvature_at=epoch", [0, 12]),
        ("probes.curvature_at=never", [12]),
    ],
)
def test_curvature_is_looked_at_by_the_schedule_and_at_the_end(override: str, steps: list[int], tmp_path: Path) -> None:
    run = done(tmp_path, override)
    assert run.series("hessian_trace", which="consensus")[0] == steps
    plain = done(tmp_path / "plain")
    assert run.summary["parameters_hash"] == plain.summary["parameters_hash"], "looking changes nothing"


def test_single_workers_have_records_of_their_own(tmp_path: Path) -> None:
    run = done(tmp_path, "probes.curvature_of=[0,2]")
    single = [row for row in run.probes if row["which"] == "single"]
    assert [(row["step"], row["name"], row["worker"]) for row in single] == [
        (STEPS, "hessian_trace", 0),
        (STEPS, "hessian_trace", 2),
    ]
    consensus = run.last("hessian_trace")
    assert consensus is not None
    assert consensus["which"] == "consensus"
    assert len({consensus["value"], *(row["value"] for row in single)}) == 3
    assert run.series("hessian_trace")[1] == [consensus["value"]]


def test_a_share_of_the_time_leaves_looks_out_and_says_so(tmp_path: Path) -> None:
    run = done(tmp_path, "probes.curvature_every=1", "probes.share=0.001")
    looked, _ = run.series("hessian_trace", which="consensus")
    left, _ = run.series("curvature_left_out")
    assert looked == [0, STEPS], "the first, whose cost nobody knew, and the end"
    assert left == list(range(1, STEPS))


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("probes.curvature_at=sometimes", "no schedule 'sometimes'; there are 'never'"),
        ("probes.curvature_of=[3]", "worker 3, but workers are counted from 0 to 2"),
        ("probes.share=0", "share"),
    ],
)
def test_what_cannot_be_is_refused_before_it_runs(override: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("[", r"\[")):
        tiny(override)
