"""Checks on studies that never ran: planted results must be supported, and turned round where labels are swapped."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dissensus.experiments.claims.base import Part, overall
from dissensus.experiments.claims.checks import (
    adaptive_consensus_with_adamw,
    connections,
    consensus_control,
    consensus_error_kept,
    dominant_alignment,
    dsgd_ac_accuracy,
    dsgd_ac_flatter,
    envelope_penalty,
    quasi_global_momentum,
)
from dissensus.experiments.claims.quantities import at_equal_loss
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.loading import load
from dissensus.experiments.records import Run
from dissensus.experiments.results import Results

Path_ = Sequence[tuple[int, float]]
"""Values by step; a single number is the value at the end."""
WHICH = {"test_accuracy": "consensus", "test_loss": "consensus", "train_loss": "consensus"}
END = 100


def planted(name: str, arms: Mapping[str, Mapping[str, Sequence[float | Path_]]]) -> Results:
    """Results with `arms[arm][quantity]`, one entry per seed; `quantity@which` names other weights."""
    count = {len(values) for quantities in arms.values() for values in quantities.values()}
    assert len(count) == 1
    study = load(
        name=name,
        seeds=list(range(count.pop())),
        train={"steps": END},
        arms={arm: {"algorithm": "dsgd"} for arm in arms},
    )
    runs = [
        Run(Path(f"{arm}-{seed}"), study.cell(arm, seed), {}, _rows(quantities, seed), [], {"status": "ok"})
        for arm, quantities in arms.items()
        for seed in study.seeds
    ]
    return Results.of(runs, study.arms)


def swapped(results: Results, one: str, other: str) -> Results:
    """The same numbers with the labels of two arms exchanged."""
    names = {one: other, other: one}
    study = {run.arm: run.study for run in results.runs}
    runs = [
        Run(run.path, study[names.get(run.arm, run.arm)].model_copy(update={"seeds": (run.seed,)}), run.meta,
            run.metrics, run.probes, run.summary)
        for run in results.runs
    ]  # fmt: skip
    return Results.of(runs, results.order)


def _rows(quantities: Mapping[str, Sequence[float | Path_]], seed: int) -> list[dict[str, Any]]:
    rows = []
    for key, values in quantities.items():
        name, _, which = key.partition("@")
        value = values[seed]
        path = [(END, value)] if isinstance(value, int | float) else value
        about = which or WHICH.get(name, "workers")
        rows += [{"step": t, "which": about, "name": name, "value": float(v)} for t, v in path]
    return rows


SEEDS = 6
STEP = 0.002
"""The scatter of planted numbers over seeds, in units of their size."""


def around(value: float, turn: int = 0) -> list[float]:
    """Numbers around a value, one per seed, the same scatter in another order for another turn."""
    scatter = np.random.default_rng(turn).standard_normal(SEEDS)
    return [value * (1 + STEP * float(s)) for s in scatter]


def arms(**quantities: dict[str, float]) -> dict:
    """`quantities[name][arm] = value` as numbers around that value."""
    names = list(dict.fromkeys(arm for values in quantities.values() for arm in values))
    return {
        arm: {
            name.replace("_at_", "@"): around(values[arm], turn)
            for turn, (name, values) in enumerate(quantities.items(), start=7 * at)
            if arm in values
        }
        for at, arm in enumerate(names)
    }


def three(ac: float, dsgd: float, centralized: float) -> dict[str, float]:
    return {"centralized": centralized, "dsgd": dsgd, "dsgd-ac": ac}


def falling(tree: dict, names: tuple[str, ...]) -> dict:
    """The same with these quantities measured on the way, too, where they were larger."""
    for quantities in tree.values():
        for name in names:
            quantities[name] = [[(0, 4 * v), (END // 2, 2 * v), (END, v)] for v in quantities[name]]
    return tree


ENDS = arms(
    train_loss=three(0.3, 0.2, 0.1),
    hessian_trace=three(20, 30, 40),
    top_eigenvalue=three(2, 3, 4),
    average_sharpness=three(0.1, 0.2, 0.3),
)
FLATTER = planted("dsgd-ac", falling(ENDS, ("train_loss", "hessian_trace", "top_eigenvalue")))
BETTER = planted("dsgd-ac", arms(test_accuracy=three(0.95, 0.9, 0.85), test_loss=three(0.3, 0.4, 0.5)))
PENALTY = planted("dsgd-ac", arms(envelope=three(2, 1, 1), alignment_normalised=three(3, 30, 1)))
ALIGNED = planted(
    "dsgd-ac",
    arms(
        alignment_normalised=three(50, 30, 1),
        captured=three(0.6, 0.2, 0.2),
        captured_chance=three(0.01, 0.01, 0.01),
    ),
)
PHASES = planted("phases", arms(test_accuracy={"tight": 0.97, "middle": 0.972, "late": 0.971, "early": 0.90}))
GAIN = planted(
    "language",
    arms(test_loss={"plain": 2.0, "adaptive": 2.4}, train_loss={"plain": 1.9, "adaptive": 2.3}),
)
MOMENTA = planted(
    "label-skew",
    arms(
        test_accuracy={"local": 0.80, "quasi-global": 0.90},
        test_accuracy_at_mean={"local": 0.70, "quasi-global": 0.85},
        test_loss={"local": 0.5, "quasi-global": 0.4},
        train_loss={"local": 0.4, "quasi-global": 0.3},
    ),
)
NEIGHBOURS = planted(
    "connections",
    arms(
        test_accuracy={"n2": 0.9, "n4": 0.9, "n8": 0.9, "n16": 0.9, "n31": 0.9},
        test_accuracy_at_mean={"n2": 0.6, "n4": 0.68, "n8": 0.76, "n16": 0.84, "n31": 0.92},
        norm_dispersion={"n2": 0.5, "n4": 0.4, "n8": 0.3, "n16": 0.2, "n31": 0.1},
    ),
)
PLANTED: dict[str, tuple[Callable[[Results], list[Part]], Results, tuple[str, str]]] = {
    "flatter": (dsgd_ac_flatter.flatter, FLATTER, ("dsgd-ac", "dsgd")),
    "accuracy": (dsgd_ac_accuracy.better, BETTER, ("dsgd-ac", "dsgd")),
    "envelope": (envelope_penalty.penalty, PENALTY, ("dsgd-ac", "dsgd")),
    "alignment": (dominant_alignment.aligned, ALIGNED, ("dsgd-ac", "dsgd")),
    "phases": (consensus_control.phases, PHASES, ("early", "middle")),
    "no gain": (adaptive_consensus_with_adamw.no_gain, GAIN, ("adaptive", "plain")),
    "momenta": (quasi_global_momentum.better, MOMENTA, ("quasi-global", "local")),
    "connections": (connections.slopes, NEIGHBOURS, ("n2", "n31")),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_supported_and_with_labels_swapped_it_is_not(name: str) -> None:
    judge, results, (one, other) = PLANTED[name]
    assert overall(judge(results)) == "supported"
    assert overall(judge(swapped(results, one, other))) == "not supported"


COUNTED = {
    "flatter": 10,
    "accuracy": 2,
    "envelope": 1,
    "alignment": 3,
    "phases": 5,
    "no gain": 1,
    "momenta": 2,
    "connections": 2,
}
"""How many parts of a claim have a say."""


@pytest.mark.parametrize("name", PLANTED)
def test_what_informs_has_no_say(name: str) -> None:
    judge, results, _ = PLANTED[name]
    assert sum(part.counts for part in judge(results)) == COUNTED[name]


def test_slopes_are_per_doubling() -> None:
    assert connections.slopes(NEIGHBOURS)[0].effect == pytest.approx(8.0, abs=0.3)


def test_a_share_is_held_against_chance() -> None:
    [share] = [part for part in dominant_alignment.aligned(ALIGNED) if "above chance" in part.statement]
    assert share.effect == pytest.approx(0.6 - 0.01, abs=0.005)


@pytest.mark.parametrize("name", [name for name in PLANTED if name != "no gain"])
def test_identical_arms_support_nothing(name: str) -> None:
    judge, results, _ = PLANTED[name]
    first = results.runs[0].arm
    same = {run.seed: run for run in results.runs if run.arm == first}
    runs = [type(run)(run.path, run.study, run.meta, same[run.seed].metrics, [], run.summary) for run in results.runs]
    compared = [part for part in judge(Results.of(runs, results.order)) if part.counts and _compares(part)]
    assert compared
    assert {part.verdict for part in compared} == {"inconclusive"}


def _compares(part: Part) -> bool:
    """Whether a part holds two arms against each other, rather than one against a number or with a margin."""
    return not any(word in part.statement for word in ("above 1,", "chance", "not worse"))


def test_arms_without_a_difference_gain_nothing() -> None:
    same = planted("language", arms(test_loss={"plain": 2.0, "adaptive": 2.0}, train_loss={"plain": 1, "adaptive": 1}))
    quiet = planted(
        "language",
        {
            "plain": {"test_loss": [2.0] * 6, "train_loss": [1.0] * 6},
            "adaptive": {"test_loss": [2.0 + 1e-5 * k for k in range(6)], "train_loss": [1.0] * 6},
        },
    )
    assert overall(adaptive_consensus_with_adamw.no_gain(same)) == "inconclusive"  # too noisy for two thousandths
    assert overall(adaptive_consensus_with_adamw.no_gain(quiet)) == "supported"


def test_exponents_of_a_power_law_are_found() -> None:
    steps = list(range(0, 101, 5))
    rate = {t: 0.5 * (1 + math.cos(math.pi * t / 101)) for t in steps}
    powers = {"dsgd": 2.0, "p1": 1.0, "p2": 0.0, "p3": -1.0}

    def arm(power: float, theory: float) -> dict:
        return {
            "consensus_distance@workers": [
                [(t, (1 + 1e-5 * s * t * (5 - power)) * rate[t] ** power) for t in steps] for s in range(5)
            ],
            "consensus_distance@theory": [[(t, rate[t] ** theory) for t in steps] for _ in range(5)],
            "lr": [[(t, rate[t]) for t in steps] for _ in range(5)],
        }

    right = planted("exponents", {name: arm(power, power) for name, power in powers.items()})
    parts = consensus_error_kept.kept(right)
    assert overall(parts) == "supported"
    fitted = [part for part in parts if "exponent" in part.statement]
    assert [part.effect for part in fitted] == pytest.approx([0.0] * 4, abs=0.01)
    wrong = planted("exponents", {name: arm(power, power + 0.5) for name, power in powers.items()})
    assert {part.verdict for part in consensus_error_kept.kept(wrong) if "exponent" in part.statement} == {
        "not supported"
    }


def test_equal_training_loss_is_met_on_the_way() -> None:
    """An arm whose trace is exp(-loss) along its whole path shows just that at the other's final loss."""
    falling = [(t, 1.0 - 0.009 * t) for t in range(0, 101, 10)]
    fits = {"train_loss": [falling] * 2, "hessian_trace": [[(t, math.exp(-v)) for t, v in falling]] * 2}
    stops = {"train_loss": [0.437, 0.5], "hessian_trace": [3.0, 4.0]}
    results = planted("paths", {"fits": fits, "stops": stops})
    ours, theirs = at_equal_loss(results, "hessian_trace", "fits", "stops")
    assert ours == pytest.approx([-0.437, -0.5], abs=1e-12)
    assert np.exp(theirs) == pytest.approx([3.0, 4.0])


def test_what_was_not_measured_leaves_a_claim_open() -> None:
    """The same runs without the way there: every part that is left holds, and the claim is not supported by it."""
    ends = arms(train_loss=three(0.3, 0.2, 0.1), hessian_trace=three(20, 30, 40), top_eigenvalue=three(2, 3, 4))
    parts = dsgd_ac_flatter.flatter(planted("dsgd-ac", ends))
    assert {part.verdict for part in parts if part.counts} == {"supported", "out of reach here"}
    assert overall(parts) == "inconclusive"


def test_an_unmeasured_quantity_is_an_error_with_its_name() -> None:
    with pytest.raises(ConfigError, match="envelope of arm 'dsgd-ac' was not measured"):
        envelope_penalty.penalty(BETTER)


def test_a_study_with_the_arms_of_a_claim_is_asked_it() -> None:
    from dissensus.experiments.claims.reported import claim_rows

    rows = {row.title: row for row in claim_rows(FLATTER)}
    assert [row.verdict for row in rows.values()] == ["supported"]  # the others need what was not measured
    assert any("smaller Hessian trace than dsgd" in part for row in rows.values() for part in row.parts)
    turned = claim_rows(swapped(FLATTER, "dsgd-ac", "dsgd"))
    assert [row.verdict for row in turned] == ["not supported"]
    assert claim_rows(MOMENTA)[0].verdict == "supported"
    assert claim_rows(planted("other", {"a": {"test_loss": [1.0, 2.0]}, "b": {"test_loss": [1.0, 2.0]}})) == []
