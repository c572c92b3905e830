"""The rule of decision in the study file, on whole run directories: it can be fooled by nothing but the numbers."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest

from dissensus.experiments.comparison import compare, power, rule
from dissensus.experiments.config import resolved
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.loading import load, write
from dissensus.experiments.quantities import EXPECTED
from dissensus.experiments.records import STUDY_FILE, Run
from dissensus.experiments.report import write_report
from dissensus.experiments.results import Results
from dissensus.experiments.statistics import detectable_effect
from dissensus.experiments.study import run_study
from dissensus.experiments.table_files import write_tables

ARMS = {"a": {"algorithm": "dsgd"}, "b": {"algorithm": "dsgd-ac"}}
THREE = {**ARMS, "c": {"algorithm": "dsgd-ac", "p": 2.0}}
OPPOSITE = {"supported": "not supported", "not supported": "supported", "inconclusive": "inconclusive"}


def verdicts(folder: Path) -> dict[tuple[str, str], str]:
    """What the tables beside a page say, read from the file."""
    results = Results.read(folder)
    write_tables(results, compare(results), folder / "tables")
    with (folder / "tables" / "verdicts.csv").open() as stream:
        return {(row["control"], row["quantity"]): row["verdict"] for row in csv.DictReader(stream)}


def test_swapped_labels_flip_every_verdict(made, noisy, tmp_path: Path) -> None:
    right = made("right", ARMS, noisy(b=0.3))
    wrong = tmp_path / "wrong" / "right"
    shutil.copytree(right, wrong)
    for seed in range(6):
        a, b = next(right.glob(f"a-s{seed}-*")), next(right.glob(f"b-s{seed}-*"))
        for name in ("metrics.jsonl", "probes.jsonl"):
            shutil.copy(a / name, wrong / b.name / name)
            shutil.copy(b / name, wrong / a.name / name)
    there, back = verdicts(right), verdicts(wrong)
    assert set(there.values()) == {"supported", "not supported"}
    assert back == {key: OPPOSITE[word] for key, word in there.items()}
    for folder, said in ((right, there), (wrong, back)):
        page = write_report(folder).path.read_text()
        for word in OPPOSITE:
            assert page.count(f">{word}</td>") == list(said.values()).count(word)


@pytest.mark.parametrize("least", [0.0, 0.002])
def test_identical_arms_are_never_supported(made, noisy, least: float) -> None:
    value = noisy()
    folder = made(
        "same", ARMS, lambda arm, seed, quantity: value("a", seed, quantity),
        decision={"minimum_effect": dict.fromkeys(EXPECTED, least)},
    )  # fmt: skip
    assert "supported" not in verdicts(folder).values()


def null_study(like: Results, rng: np.random.Generator) -> Results:
    """The same runs with numbers in which the arms do not differ, skewed ones for half of the quantities."""
    runs = []
    shared = {(seed, name): rng.normal() for seed in like.seeds for name in EXPECTED}
    for run in like.runs:
        rows = [
            {**row, "value": shared[run.seed, row["name"]] + 0.5 * noise(rng, at)} for at, row in enumerate(ends(run))
        ]
        runs.append(Run(run.path, run.study, {}, rows, [], run.summary))
    return Results.of(runs, like.order)


def ends(run: Run) -> list[dict]:
    return [row for row in (*run.metrics, *run.probes) if row["step"] == 20 and row["name"] in EXPECTED
            and row["which"] in ("consensus", "workers")]  # fmt: skip


def noise(rng: np.random.Generator, at: int) -> float:
    return float(rng.standard_exponential() if at % 2 else rng.standard_normal())


def test_false_positives_of_whole_studies(made, noisy) -> None:
    """Nominal 5 %: in 200 null studies of 5 seeds and 14 statements, at most 10 % may decide anything at all.

    With two controls that share a treatment, as on a page; single statements, not corrected, keep to the same.
    """
    like, rng = Results.read(made("null", THREE, noisy(), seeds=5)), np.random.default_rng(0)
    decided, single, asked = 0, 0, 0
    for _ in range(200):
        found = compare(null_study(like, rng), resamples=9)
        assert len(found) == 14
        decided += any(f.word != "inconclusive" for f in found)
        single += sum(f.test.verdict(0.05) != "inconclusive" for f in found)
        asked += len(found)
    assert decided <= 20
    assert single <= 0.1 * asked


def test_what_is_expected_stands_in_the_file(made, noisy) -> None:
    folder = made(
        "asked", THREE, noisy(b=0.3),
        decision={"expect": {"test_loss": "higher", "train_loss": "lower"}, "treatment": "b", "controls": ["a"]},
    )  # fmt: skip
    assert verdicts(folder) == {("a", "test_loss"): "supported", ("a", "train_loss"): "not supported"}
    assert compare(Results.read(folder))[1].statement == "b has a lower training loss than a"
    write(load(folder / STUDY_FILE), folder / STUDY_FILE)
    assert len(verdicts(folder)) == 2
    assert load((), arms=ARMS).decision.expected == EXPECTED
    # what is not said does not enter the names of run directories
    assert resolved(load((), arms=ARMS).decision) == {"level": 0.05, "note": ""}


def test_the_smallest_difference_that_counts(made, noisy) -> None:
    """The difference is 0.3 with a standard error of about 0.01."""
    for least, word in [(0.0, "supported"), (0.2, "supported"), (0.3, "inconclusive"), (0.5, "not supported")]:
        for direction, effect in [("higher", 0.3), ("lower", -0.3)]:
            folder = made(
                f"least-{direction}-{100 * least:.0f}", ARMS, noisy(b=effect),
                decision={"expect": {"test_accuracy": direction}, "minimum_effect": {"test_accuracy": least}},
            )  # fmt: skip
            (found,) = compare(Results.read(folder))
            assert found.word == word, (least, direction)
    assert found.statement == "b has a lower test accuracy than a, by more than 50 points"
    assert found.detectable is not None
    assert found.detectable[0] == pytest.approx(
        0.5 + detectable_effect(6) * float(np.std(found.test.differences, ddof=1))
    )
    assert "is larger than that" in rule(Results.read(folder), 1)


def test_the_page_says_what_so_many_seeds_can_find(made, noisy) -> None:
    results = Results.read(made("power", ARMS, noisy(b=0.3)))
    text = power(results, 7)
    for level in (0.05, 0.05 / 7):
        assert f"{detectable_effect(6, level):.1f} times as large" in text
    finding = compare(results)[0]
    spread = np.std(finding.test.differences, ddof=1)
    assert finding.detectable == pytest.approx([detectable_effect(6, level) * spread for level in (0.05, 0.05 / 7)])


@pytest.mark.parametrize(
    ("decision", "message"),
    [
        ({"expect": {"test_acuracy": "higher"}}, "there is no quantity 'test_acuracy'; did you mean 'test_accuracy'?"),
        ({"expect": {"test_loss": "smaller"}}, "'higher' or 'lower', got 'smaller'"),
        ({"expect": {}}, "at least 1 item"),
        ({"minimum_effect": {"hesian_trace": 1}}, "no quantity 'hesian_trace'; did you mean 'hessian_trace'?"),
        ({"minimum_effect": {"test_loss": -1}}, "greater than or equal to 0"),
        ({"minimum_effect": {"train_loss": 1}}, "of which nothing is expected: add it to expect"),
        ({"controls": ["dsgd"]}, "decision.controls = 'dsgd' is no arm"),
        ({"controls": ["b"]}, "decision.controls names 'b', which is the treatment itself"),
        ({"level": 0.9}, "less than or equal to 0.5"),
    ],
)
def test_a_decision_that_cannot_be_meant_is_refused(decision: dict, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load((), arms=ARMS, decision=decision)
    assert message in str(caught.value)


def test_a_rule_that_is_younger_than_runs_is_told(tmp_path: Path) -> None:
    """Seeds that are added, or a level that is raised, once numbers were there: the page says how many were."""
    quick = {
        "name": "young",
        "data": {"name": "logistic", "train": 64, "test": 32},
        "model": {"name": "logistic"},
        "train": {"steps": 2, "workers": 2, "batch": 4},
        "probes": {"curvature_every": 0, "noise_batches": 0},
        "arms": ARMS,
    }
    before = load(**quick, seeds=[0, 1])
    run_study(before, tmp_path)
    folder = tmp_path / "young"
    assert "before arms, seeds and rule" not in write_report(folder, with_tables=False).path.read_text()
    noted = load(**quick, seeds=[0, 1], decision={"note": "words decide nothing", "treatment": "b"})
    assert noted.rule == before.rule
    run_study(load(**quick, seeds=[0, 1, 2]), tmp_path, resume=True)
    assert len(Results.read(folder).before_the_rule) == 4
    assert (
        "4 of 6 runs were begun before arms, seeds and rule" in write_report(folder, with_tables=False).path.read_text()
    )
    write(load(**quick, seeds=[0, 1, 2], decision={"level": 0.1}), folder / STUDY_FILE)
    assert len(Results.read(folder).before_the_rule) == 6
