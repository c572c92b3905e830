"""`dissensus simulate --problem` as an outsider drives it, against the oracle of an author who had not seen the inside.

Names and keys are those that must work; what comes back in the trajectory file must be the recursion.
"""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dissensus.experiments.cli import main
from dissensus.theory import topology


def _load() -> Any:
    """The oracle beside this file: the import mode of the suite puts no folder of tests on the path."""
    spec = importlib.util.spec_from_file_location("blind_oracle", Path(__file__).with_name("blind_oracle.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


oracle = _load()
STEPS, N = oracle.STEPS, 8

# what is typed after --algorithm -> the oracle's path of (problem, rounds, rates)
SPOKEN: dict[str, Callable[..., np.ndarray]] = {
    "allreduce --optimizer sgd": lambda q, w, lrs: oracle.allreduce(q, oracle.Sgd(), lrs),
    "sam --algorithm.rho 0.2 --optimizer sgd": lambda q, w, lrs: oracle.sam(q, w, oracle.Sgd(), lrs, 0.2),
    "dsgd --algorithm.order cta --optimizer sgd --optimizer.momentum 0.9": lambda q, w, lrs: oracle.dsgd(
        q, w, oracle.Sgd(0.9), lrs, "cta"
    ),
    "dsgd-ac --algorithm.gamma 0.3 --optimizer sgd": lambda q, w, lrs: oracle.dsgd(q, w, oracle.Sgd(), lrs, gamma=0.3),
    "dadam --optimizer.eps 0.01": lambda q, w, lrs: oracle.dsgd(q, w, oracle.Adam(eps=0.01), lrs),
    "dsgd --optimizer adam --optimizer.eps 0.01": lambda q, w, lrs: oracle.dsgd(q, w, oracle.Adam(eps=0.01), lrs),
    "dsgd --optimizer accum-adam --optimizer.accum_steps 3": lambda q, w, lrs: oracle.dsgd(
        q, w, oracle.AccumAdam(3), lrs
    ),
    "dsgd --optimizer accum-adamw --optimizer.accum_steps 3 --optimizer.weight_decay 0.1": lambda q, w, lrs: (
        oracle.dsgd(q, w, oracle.AccumAdam(3, weight_decay=0.1, decoupled=True), lrs)
    ),
    "qg-dsgdm --algorithm.beta 0.8 --algorithm.nu 0.2 --optimizer sgd": lambda q, w, lrs: oracle.qg_dsgdm(
        q, w, lrs, 0.8, 0.2
    ),
    "gradient-tracking --optimizer sgd": lambda q, w, lrs: oracle.gradient_tracking(q, w, oracle.Sgd(), lrs),
    "sgp --optimizer sgd --optimizer.momentum 0.8 --optimizer.nesterov true": lambda q, w, lrs: oracle.push_sum(
        q, w, oracle.Sgd(0.8, nesterov=True), lrs
    ),
    "local-sgd --algorithm.period 4 --optimizer sgd --optimizer.weight_decay 0.1": lambda q, w, lrs: oracle.local_sgd(
        q, oracle.Sgd(weight_decay=0.1), lrs, 4
    ),
}


@pytest.mark.parametrize(("spoken", "noise"), [*[(spoken, True) for spoken in SPOKEN], (next(iter(SPOKEN)), False)])
def test_the_command_line(spoken: str, noise: bool, tmp_path: Path) -> None:
    """`simulate --problem`, as an outsider drives it: one start for all workers, with and without noise."""
    schedule = topology("one-peer-exponential", N)
    q = oracle.quadratics(N, noise=noise, equal_start=True)
    np.savez(tmp_path / "in.npz", A=q.a, b=q.b, x0=q.x0[0], **({"noise": q.noise} if noise else {}))
    line = f"--topology one-peer-exponential --lr 0.05 --steps {STEPS} --dtype float64 --json"
    files = ["--problem", str(tmp_path / "in.npz"), "--trajectory", str(tmp_path / "out.npz")]
    assert main(["simulate", *files, "--algorithm", *spoken.split(), *line.split()]) == 0
    truth = SPOKEN[spoken](q, [schedule[t].dense() for t in range(STEPS)], [0.05] * STEPS)
    assert oracle.distance(np.load(tmp_path / "out.npz")["x"], truth) < 1e-10
