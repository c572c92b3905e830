"""Rules of decision where they could be too lenient: no effect at all, several studies, numbers that are missing."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dissensus.experiments import statistics
from dissensus.experiments.claims import judging
from dissensus.experiments.claims.checks import (
    connections,
    consensus_control,
    consensus_error_kept,
    dsgd_ac_accuracy,
    dsgd_ac_flatter,
    quasi_global_momentum,
)
from dissensus.experiments.claims.judging import decided, higher, together, within
from dissensus.experiments.claims.quantities import at_equal_loss, final, measured, path
from dissensus.experiments.claims.reported import claim_rows
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.loading import load
from dissensus.experiments.records import Run
from dissensus.experiments.results import Results
from dissensus.experiments.statistics import StatisticsError, detectable_effect

ARMS = ("centralized", "dsgd", "dsgd-ac")
END = 100


class Made:
    """Results of a study that never ran: a path for each quantity, arm and seed, as `[(step, value), ...]`."""

    def __init__(self, name: str, arms: tuple[str, ...], seeds: int) -> None:
        arm = {name: {"algorithm": "dsgd"} for name in arms}
        self.study = load(name=name, seeds=list(range(seeds)), train={"steps": END}, arms=arm)
        self.cells = {(arm, seed): self.study.cell(arm, seed) for arm in arms for seed in self.study.seeds}

    def results(self, quantities: dict) -> Results:
        """`quantities[name, which](arm, seed)` is its path."""
        runs = []
        for (arm, seed), cell in self.cells.items():
            rows = [
                {"step": t, "which": which, "name": name, "value": float(v)}
                for (name, which), of in quantities.items()
                for t, v in of(arm, seed)
            ]
            runs.append(Run(Path(f"{arm}-{seed}"), cell, {}, rows, [], {"status": "ok"}))
        return Results.of(runs, self.study.arms)


def test_without_any_effect_a_claim_is_decided_in_one_case_of_twenty(monkeypatch: pytest.MonkeyPatch) -> None:
    """200 studies of five seeds without an effect: at most 10 % have any part that is not inconclusive."""
    monkeypatch.setattr(statistics, "_bca", lambda *_: ((0.0, 0.0), "t"))  # intervals decide nothing,
    monkeypatch.setattr(statistics, "_sign_flips", lambda *_: 2.0**-4)  # nor do sign flips with five pairs
    made, rng, found = Made("dsgd-ac", ARMS, 5), np.random.default_rng(0), {"flatter": 0, "accuracy": 0}

    def end(scale: float, digits: int = 9):
        return lambda arm, seed: [(END, round(1 + scale * rng.standard_normal(), digits))]

    def on_the_way(arm: str, seed: int):
        return [(t, math.exp(0.2 * rng.standard_normal() - 5 * t / END)) for t in (0, 50, END)]

    for _ in range(200):
        results = made.results(
            {
                ("train_loss", "consensus"): on_the_way,
                ("hessian_trace", "consensus"): on_the_way,
                ("top_eigenvalue", "consensus"): on_the_way,
                ("average_sharpness", "consensus"): end(0.2),
                ("test_accuracy", "consensus"): end(0.005, 3),  # as coarse as a small test set makes it
                ("test_loss", "consensus"): end(0.1),
            }
        )
        for name, judge, count in (("flatter", dsgd_ac_flatter.flatter, 10), ("accuracy", dsgd_ac_accuracy.better, 2)):
            words = [part.verdict for part in judge(results) if part.counts]
            assert len(words) == count
            found[name] += any(word != "inconclusive" for word in words)
    assert max(found.values()) <= 20, found


def test_two_studies_are_corrected_together_and_told_apart() -> None:
    values = [0.3, 1.0, 0.6, 1.4, 0.2, 0.7, -0.4, 0.5]
    one, other = (Made(name, ("a",), 8).results({("x", "workers"): lambda arm, seed: [(END, values[seed])]})
                  for name in ("first", "second"))  # fmt: skip

    def ask(results: Results) -> list[judging.Asked]:
        return [higher("x is positive", final(results, "x", "a"), 0.0)]

    [alone], both = together([one], ask), together([one, other], ask)
    assert alone.statement == "x is positive"
    assert [part.statement for part in both] == ["x is positive (first)", "x is positive (second)"]
    assert alone.pvalue is not None
    assert [part.pvalue for part in both] == pytest.approx([2 * alone.pvalue] * 2)
    assert (alone.verdict, {part.verdict for part in both}) == ("supported", {"inconclusive"})


def test_every_variant_of_a_study_is_asked_under_its_name() -> None:
    values = {"test_accuracy": 0.9, "test_loss": 0.3}
    both = [
        Made(name, ARMS, 6).results(
            {
                (key, "consensus"): lambda arm, seed, v=v: [(END, v + 1e-3 * seed * len(arm))]
                for key, v in values.items()
            }
        )
        for name in ("dsgd-ac", "dsgd-ac-wide")
    ]
    parts = dsgd_ac_accuracy.better(*both)
    assert len({part.statement for part in parts}) == len(parts) == 8
    assert sum(part.statement.endswith("(dsgd-ac-wide)") for part in parts) == 4


def test_the_level_is_that_of_the_rule() -> None:
    [part] = decided([higher("", [0.9, 0.1, 0.6, -0.1, 0.2], 0.0)])
    assert part.pvalue is not None
    assert 0.05 < part.pvalue < 0.2
    assert part.verdict == "inconclusive"
    [part] = decided([higher("", [0.9, 0.1, 0.6, -0.1, 0.2], 0.0)], level=0.2)
    assert part.verdict == "supported"


def test_what_is_within_may_inform_only_and_has_to_be_a_number() -> None:
    assert not within("", [1.0, 1.1], 1.0, 0.5, counts=False).counts
    with pytest.raises(StatisticsError, match="an exponent"):
        within("an exponent", [1.0, float("nan"), 1.0], 1.0, 0.5)


def test_the_power_note_is_of_the_strictest_level() -> None:
    assert f"d_z = {detectable_effect(5, 0.025):.1f}" in judging.power_note(5, 2)


def test_a_number_that_one_run_lacks_is_an_error_and_not_a_part_less() -> None:
    def lacking(arm: str, seed: int):
        return [(END, float("nan") if (arm, seed) == ("dsgd-ac", 1) else 1.0)]

    results = Made("dsgd-ac", ARMS, 3).results(
        {("train_loss", "consensus"): lambda *_: [(END, 1.0)], ("hessian_trace", "consensus"): lacking}
    )
    assert measured(results, "hessian_trace", "dsgd-ac")
    with pytest.raises(ConfigError, match="hessian_trace of arm 'dsgd-ac' was not measured in every run"):
        dsgd_ac_flatter.flatter(results)
    bare = Made("dsgd-ac", ARMS, 3).results({("train_loss", "consensus"): lambda *_: [(END, 1.0)]})
    with pytest.raises(ConfigError, match="measured none of hessian_trace"):
        dsgd_ac_flatter.flatter(bare)


def test_an_arm_that_never_ended_well_is_not_left_out_of_a_slope() -> None:
    both = Made("connections", ("n2", "n4"), 3).results({("test_accuracy", "mean"): lambda *_: [(END, 0.5)]})
    with pytest.raises(ConfigError, match="no arm 'n8'"):
        connections.slopes(both)


def test_equal_loss_is_the_last_time_that_loss_was_there() -> None:
    """A loss that rises in between is met where it falls for the last time, and at the times of both measurements."""

    def loss(arm: str, seed: int):
        return (
            [(0, 2.0), (20, 0.5), (40, 1.5), (60, 1.5), (80, 0.5), (90, 0.3), (END, 0.1)]
            if arm == "a"
            else [(END, 1.0)]
        )

    def trace(arm: str, seed: int):
        return [(0, 1.0), (20, 2.0), (40, 3.0), (80, 4.0), (END, 5.0)] if arm == "a" else [(END, 7.0)]

    def of_workers(arm: str, seed: int):
        return [(t, 9.0) for t in (0, 20, 40, 60, 80, 90, END)]

    results = Made("paths", ("a", "b"), 2).results(
        {
            ("train_loss", "consensus"): loss,
            ("hessian_trace", "consensus"): trace,
            ("train_loss", "workers"): of_workers,
        }
    )
    ours, theirs = at_equal_loss(results, "hessian_trace", "a", "b")
    assert ours == pytest.approx([0.5 * (math.log(3) + math.log(4))] * 2)
    assert np.exp(theirs) == pytest.approx([7.0] * 2)


def test_an_arm_that_was_always_below_has_no_equal_loss() -> None:
    losses = {"a": [(0, 0.9), (END, 0.1)], "b": [(0, 0.9), (END, 1.0)]}
    results = Made("paths", ("a", "b"), 2).results(
        {
            ("train_loss", "consensus"): lambda arm, seed: losses[arm],
            ("hessian_trace", "consensus"): lambda *_: [(0, 1.0), (END, 2.0)],
        }
    )
    with pytest.raises(ConfigError, match="no equal training loss: one arm ended at 1"):
        at_equal_loss(results, "hessian_trace", "a", "b")


def test_a_path_has_the_steps_at_which_every_seed_was_measured() -> None:
    results = Made("paths", ("a",), 2).results(
        {("x", "workers"): lambda arm, seed: [(0, 1.0), (50 - seed, 2.0), (END, 3.0)]}
    )
    steps, values = path(results, "x", "a")
    assert (steps.tolist(), values.tolist()) == ([0, END], [[1.0, 3.0]] * 2)


def test_final_numbers_are_the_consensus_models_unless_workers_are_meant() -> None:
    made = Made("label-skew", ("quasi-global", "local"), 6)
    turned = made.results(
        {
            ("test_accuracy", "mean"): lambda arm, seed: [(END, 0.8 + 0.1 * (arm == "local") + 1e-3 * seed * len(arm))],
            ("test_accuracy", "consensus"): lambda arm, seed: [
                (END, 0.9 - 0.1 * (arm == "local") + 1e-3 * seed * len(arm))
            ],
            ("test_loss", "consensus"): lambda *_: [(END, 1.0)],
            ("train_loss", "consensus"): lambda *_: [(END, 1.0)],
        }
    )
    assert final(turned, "test_accuracy", "local")[0] == pytest.approx(0.8)
    consensus, single, *_ = quasi_global_momentum.better(turned)
    assert (consensus.verdict, single.verdict) == ("supported", "not supported")


def level(*names: str, of: Callable[[str], float]) -> dict:
    """Quantities of the consensus model at the end that differ by arm, and a little by seed."""
    return {(name, "consensus"): lambda arm, seed: [(END, of(arm) + 1e-3 * seed * len(arm))] for name in names}


def test_one_seed_answers_no_claim() -> None:
    def answers(seeds: int) -> int:
        made = Made("label-skew", ("quasi-global", "local"), seeds)
        losses = level("test_loss", "train_loss", "test_accuracy", of=len)
        single = {("test_accuracy", "mean"): lambda arm, seed: [(END, 0.5 + 1e-3 * seed * len(arm))]}
        return len(claim_rows(made.results({**losses, **single})))

    assert (answers(1), answers(2)) == (0, 1)


def test_every_phase_is_asked_and_wrong_labels_have_no_say() -> None:
    points = {"tight": 0.9, "early": 0.8, "middle": 0.9, "late": 0.7}
    made = Made("phases", tuple(points), 6).results(level("test_accuracy", of=points.__getitem__))
    parts = consensus_control.phases(made)
    late = [part.verdict for part in parts if part.counts and "loose at the end" in part.statement]
    assert late == ["not supported"] * 2
    assert sum(part.counts for part in parts) == 5
    wrong = consensus_control.wrong_labels(made)
    assert len(wrong) == 3
    assert not any(part.counts for part in wrong)


def test_flatter_at_equal_loss_is_flatter_in_the_right_direction() -> None:
    factor = {"dsgd-ac": 1.0, "dsgd": 2.0, "centralized": 4.0}

    def trace(arm: str, seed: int):
        return [(t, factor[arm] * (1 + 1e-3 * seed * len(arm))) for t in (0, 50, END)]

    def loss(arm: str, seed: int):
        return [(0, 2.0), (50, 1.0), (END, 0.1 * len(arm))]

    made = Made("dsgd-ac", ARMS, 6).results({("train_loss", "consensus"): loss, ("hessian_trace", "consensus"): trace})
    equal = [
        part
        for part in dsgd_ac_flatter.flatter(made)
        if "equal training loss" in part.statement and part.effect is not None
    ]
    assert [part.verdict for part in equal] == ["supported"] * 2
    assert [part.effect for part in equal] == pytest.approx([-math.log(2), -math.log(4)], abs=0.05)


def test_errors_are_followed_from_half_time_on_and_exponents_up_to_nine_tenths() -> None:
    steps = range(0, END + 1, 5)
    rate = {t: 0.5 * (1 + math.cos(math.pi * t / (END + 1))) for t in steps}
    power = {"dsgd": 3.0, "p1": 2.0, "p2": 1.0, "p3": 0.5}

    def distance(arm: str, seed: int):
        return [(t, 9.0 if t < 50 else 4.0 if t > 90 else rate[t] ** power[arm]) for t in steps]

    made = Made("exponents", tuple(power), 3).results(
        {
            ("consensus_distance", "workers"): distance,
            ("consensus_distance", "theory"): lambda *_: [(t, 1.0) for t in steps],
            ("lr", "workers"): lambda *_: rate.items(),
        }
    )
    parts = consensus_error_kept.kept(made)
    risen = {arm: math.log10(4.0 / rate[50] ** power[arm]) for arm in power}
    told = [risen["dsgd"] + 3, risen["p3"] + 1, risen["p2"] + 1, risen["p1"] - risen["dsgd"]]
    assert [part.effect for part in parts] == pytest.approx([*told, *power.values()])
