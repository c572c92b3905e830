"""Studies that were never trained: whole run directories with numbers of a test's own."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from dissensus.experiments.config import Study
from dissensus.experiments.loading import load, write
from dissensus.experiments.quantities import QUANTITIES
from dissensus.experiments.records import STUDY_FILE, Recorder, Which

Made = Callable[..., Path]
STEPS = (0, 10, 20)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """`made(name, arms, value, seeds=6, decision={})`; `value(arm, seed, quantity)` is what is measured at the end."""

    def make(
        name: str,
        arms: Mapping[str, Any],
        value: Callable[[str, int, str], float],
        *,
        seeds: int = 6,
        decision: Mapping[str, Any] | None = None,
    ) -> Path:
        study = load(
            name=name, seeds=list(range(seeds)), arms=dict(arms), train={"steps": 20}, decision=dict(decision or {})
        )
        for cell in study.cells():
            _record(tmp_path, cell, value)
        write(study, tmp_path / name / STUDY_FILE)
        return tmp_path / name

    return make


def _record(root: Path, cell: Study, value: Callable[[str, int, str], float]) -> None:
    arm, _, seed = cell.only
    with Recorder.create(root, cell) as recorder:
        recorder.meta(parameters=10, train_samples=5, test_samples=5, versions={"torch": "0"})
        for step in STEPS:
            for quantity in QUANTITIES:
                number, which = value(arm, seed, quantity.name) * (1 + (20 - step) / 20), cast("Which", quantity.which)
                if quantity.name in ("hessian_trace", "top_eigenvalue", "envelope", "alignment_normalised"):
                    sure = {"value": number, "stderr": 0.01, "interval": [number - 0.02, number + 0.02], "seed": 7}
                    recorder.probe(step, quantity.name, sure, which=which, bn="none")
                else:
                    recorder.metric(step, quantity.name, number, which=which, bn="none")
            recorder.metric(step, "lr", 0.1, which="workers")
            recorder.metric(step, "alignment_numerator", 0.5, which="workers")
        recorder.metric(20, "test_accuracy", 0.5, which="mean")
        recorder.metric(20, "test_accuracy", 0.4, which="worst")
    recorder.summary("ok", wall_s=1.0, probe_s=0.5)


@pytest.fixture
def noisy() -> Callable[..., Callable[[str, int, str], float]]:
    """Values around 1 with noise by arm, seed and quantity, shifted by `effect[arm]`."""

    def values(**effect: float) -> Callable[[str, int, str], float]:
        def value(arm: str, seed: int, quantity: str) -> float:
            rng = np.random.default_rng([seed, *map(ord, arm + quantity)])
            return 1.0 + 0.1 * seed + 0.02 * float(rng.standard_normal()) + effect.get(arm, 0.0)

        return value

    return values
