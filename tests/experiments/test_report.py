import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from dissensus.experiments.comparison import Question, compare, rule, verdict
from dissensus.experiments.config import Study
from dissensus.experiments.demo import demo_study, run_demo
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.loading import load, write
from dissensus.experiments.quantities import EXPECTED, QUANTITIES, QUANTITY
from dissensus.experiments.records import STUDY_FILE, Recorder, Which
from dissensus.experiments.report import write_report
from dissensus.experiments.results import Results
from dissensus.experiments.statistics import paired
from dissensus.experiments.tables import arms_rows, arms_table, verdict_table

EFFECT = {"test_accuracy": 0.05, "test_loss": -0.1, "hessian_trace": -5.0, "top_eigenvalue": -1.0}


def written(root: Path, *, swapped: bool = False, seeds: int = 6, broken: bool = False, effect: float = 1.0) -> Path:
    """A study whose runs were never trained: numbers with a known difference between the arms."""
    arms = {"base": {"algorithm": "dsgd", "label": "DSGD"}, "treat": {"algorithm": "dsgd-ac", "label": "AC <2>"}}
    study = load(name="made", seeds=list(range(seeds)), arms=arms, train={"steps": 20})
    for cell in study.cells():
        arm, _, seed = cell.only
        _write_run(root, cell, effect * (arm == ("base" if swapped else "treat")), seed, broken)
    write(study, root / "made" / STUDY_FILE)
    return root / "made"


def _write_run(root: Path, cell: Study, shift: float, seed: int, broken: bool) -> None:
    rng = np.random.default_rng([seed, cell.only[0] == "base"])
    with Recorder.create(root, cell) as recorder:
        recorder.meta(parameters=10, train_samples=5, test_samples=5, versions={"torch": "0"})
        for step in (0, 10, 20):
            jitter = 0.001 * rng.standard_normal()
            for quantity in QUANTITIES:
                value = 1.0 + 0.1 * seed + jitter + shift * EFFECT.get(quantity.name, 0.0)
                recorder.metric(step, quantity.name, value, which=cast("Which", quantity.which), bn="none")
            recorder.metric(step, "lr", 0.1, which="workers")
            recorder.metric(step, "test_accuracy", 0.5, which="mean")
            recorder.metric(step, "test_accuracy", 0.4, which="worst")
            recorder.metric(step, "alignment_numerator", 0.5, which="workers")
    failed = broken and seed == 0 and cell.only[0] == "base"
    recorder.summary("failed" if failed else "ok", error="worker 1 <has> the loss nan", wall_s=1.0, probe_s=0.5)


def words(root: Path, **how: bool) -> dict[str, str]:
    return {f.question.quantity.name: f.word for f in compare(Results.read(written(root, **how)))}


def test_a_difference_is_supported_and_flips_when_the_labels_are_swapped(tmp_path: Path) -> None:
    right, wrong = words(tmp_path / "a"), words(tmp_path / "b", swapped=True)
    for quantity in EFFECT:
        assert right[quantity] == "supported"
        assert wrong[quantity] == "not supported"
    for quantity in set(right) - set(EFFECT):
        assert right[quantity] == wrong[quantity] == "inconclusive"
    assert set(right) == set(EXPECTED)


def test_two_identical_arms_are_not_found_different(tmp_path: Path) -> None:
    found = compare(Results.read(written(tmp_path, effect=0.0)))
    assert {f.word for f in found} == {"inconclusive"}


def test_the_verdict_reads_direction_and_corrected_p() -> None:
    up = paired([2.0, 3.1, 4.0], [1.0, 2.0, 3.2])
    higher, lower = (Question(QUANTITY["test_loss"], direction) for direction in ("higher", "lower"))
    assert verdict(up, 0.01, higher) == "supported"
    assert verdict(up, 0.01, lower) == "not supported"
    assert verdict(up, 0.06, higher) == "inconclusive"


def test_every_p_value_is_corrected_over_the_whole_page(tmp_path: Path) -> None:
    found = compare(Results.read(written(tmp_path)))
    raw = np.array([f.test.t_pvalue for f in found])
    ranked = np.argsort(raw)
    expected = np.minimum(np.maximum.accumulate(raw[ranked] * np.arange(len(raw), 0, -1)), 1.0)
    np.testing.assert_allclose(np.array([f.corrected for f in found])[ranked], expected)
    assert json.loads(json.dumps([f.to_dict() for f in found]))[0]["verdict"] == found[0].word


def test_a_failed_run_takes_its_seed_out_of_every_arm_and_is_named(tmp_path: Path) -> None:
    folder = written(tmp_path, broken=True)
    results = Results.read(folder)
    assert results.seeds == [1, 2, 3, 4, 5]
    assert all(len(runs) == 5 for runs in results.by_arm.values())
    page = write_report(folder).path.read_text()
    assert "base, seed 0: failed. worker 1 &lt;has&gt; the loss nan" in page


def failed(folder: Path, runs: str) -> None:
    for summary in folder.glob(f"{runs}-*/summary.json"):
        summary.write_text('{"status": "failed", "error": "the loss is nan"}')


def test_an_arm_that_finished_nothing_is_left_out_and_does_not_hand_its_role_on(tmp_path: Path) -> None:
    folder = written(tmp_path)
    failed(folder, "treat")
    report = write_report(folder)
    assert report.results.order == ("base",)
    assert (report.results.treatment, report.findings) == ("treat", [])
    page = report.path.read_text()
    assert page.count("treat, seed") == 6
    assert "without leaving out treat:" in page


def test_of_arms_without_a_common_seed_those_that_finished_most_are_shown(tmp_path: Path) -> None:
    folder = written(tmp_path, seeds=3)
    failed(folder, "treat-s0")
    failed(folder, "base-s[12]")
    results = Results.read(folder)
    assert (results.order, results.seeds, results.left_out) == (("treat",), [1, 2], ["base"])


def test_tables_recompute_from_the_raw_lines(tmp_path: Path) -> None:
    folder = written(tmp_path)
    values = []
    for path in sorted(folder.glob("treat-*/metrics.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        values.append(next(r["value"] for r in rows if r["name"] == "test_loss" and r["step"] == 20))
    header, rows = arms_rows(Results.read(folder))
    shown = dict(zip(header, rows[1], strict=True))
    assert shown["arm"] == "AC <2>"
    assert float(shown["test loss"].split(" ")[0]) == pytest.approx(np.mean(values), abs=0.005)
    np.testing.assert_allclose(
        Results.read(folder).final("test_loss", which="consensus", arm="treat"), values, rtol=1e-12
    )


class Outside(HTMLParser):
    """Collects whatever a browser would fetch, and the tags left open."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.open: list[str] = []
        self.images = 0

    def handle_starttag(self, tag: str, attrs: list) -> None:
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)
        for key, value in attrs:
            if key in ("src", "href", "data", "srcset", "poster") and not (value or "").startswith("data:"):
                self.fetched.append(f"{tag} {key}={value}")
        self.images += tag == "img"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_self_contained_and_whole(tmp_path: Path) -> None:
    page = write_report(written(tmp_path)).path.read_text()
    reader = Outside()
    reader.feed(page)
    assert reader.fetched == []
    assert reader.open == []
    assert reader.images == 5
    assert "http" not in re.sub(r'src="data:[^"]*"', "", page)
    assert "url(" not in page
    assert "$" not in re.sub(r'src="data:[^"]*"', "", page)
    assert "AC &lt;2&gt;" in page
    for name in ("learning", "consensus", "curvature", "envelope", "topology"):
        assert f'<figure id="{name}">' in page


def test_the_rule_stands_before_the_results_and_knows_the_number_of_seeds(tmp_path: Path) -> None:
    report = write_report(written(tmp_path))
    page = report.path.read_text()
    assert page.index("is supported if the mean difference has the stated sign") < page.index('class="text verdict')
    assert "over all 7 statements of this page" in page
    assert "permutation test" not in rule(report.results, 7)  # 6 seeds: 2^-5 is above 0.05 / 7
    assert "or the permutation test of signs" in rule(report.results, 1)


def test_one_seed_gives_a_page_without_verdicts(tmp_path: Path) -> None:
    report = write_report(written(tmp_path, seeds=1))
    assert report.findings == []
    assert "that takes a treatment, a control and at least two seeds" in report.path.read_text()


def test_runs_of_an_earlier_version_of_the_study_are_left_out(tmp_path: Path) -> None:
    folder = written(tmp_path)
    old = load(folder / STUDY_FILE, ["lr.peak=0.7"])
    for cell in old.cells():
        _write_run(tmp_path, cell, 100.0, 0, broken=False)
    assert all(len(runs) == 6 for runs in Results.read(folder).by_arm.values())


def test_runs_of_another_study_alone_are_not_a_report(tmp_path: Path) -> None:
    folder = written(tmp_path, seeds=1)
    write(load(folder / STUDY_FILE, ["lr.peak=0.7"]), folder / STUDY_FILE)
    with pytest.raises(ConfigError, match=r"none of the 2 runs in .* belongs to the study of its study\.toml"):
        Results.read(folder)


def test_what_cannot_be_reported_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no run directory"):
        Results.read(tmp_path)
    with pytest.raises(ConfigError, match="there are no runs to report"):
        Results.of([])
    folder = written(tmp_path, seeds=1, broken=True)
    failed(folder, "treat")
    with pytest.raises(ConfigError, match="has no seed that all of its arms finished: base seed 0 failed worker 1"):
        write_report(folder)
    other = load(folder / STUDY_FILE, ["name=other"]).cells()[0]
    _write_run(tmp_path, other, 0.0, 0, broken=False)
    runs = [*Results.read(folder).runs, *Results.read(tmp_path / "other").runs]
    with pytest.raises(ConfigError, match="these runs belong to different studies: made, other"):
        Results.of(runs)


def test_only_the_keys_that_differ_are_listed(tmp_path: Path) -> None:
    assert Results.read(written(tmp_path)).differences() == {
        "arms.arm.algorithm": {"DSGD": "dsgd", "AC <2>": "dsgd-ac"}
    }


def test_the_demo_runs_through_at_a_small_scale(tmp_path: Path) -> None:
    from io import StringIO

    from rich.console import Console

    done = run_demo(tmp_path, seeds=1, steps=20, processes=1)
    assert [o.status for o in done.outcomes] == ["ok"] * 3
    assert done.report_path == tmp_path / "demo" / "report.html"
    text = StringIO()
    console = Console(file=text, width=120)
    console.print(done.table)
    console.print(done.verdicts)
    for words_ in ("centralized SGD", "DSGD-AC", "tr H", "consensus distance"):
        assert words_ in text.getvalue()
    assert "Predicted over measured" in done.report_path.read_text()


def test_the_demo_compares_like_with_like() -> None:
    study = demo_study(2)
    cells = [study.cell(arm, 0) for arm in study.arms]
    for key in ("data", "model", "topology", "optimizer", "lr", "train", "probes"):
        assert len({repr(getattr(cell, key)) for cell in cells}) == 1
    assert study.train.workers * study.train.batch == 128
    with pytest.raises(ConfigError, match="the demo needs at least one seed, got 0"):
        demo_study(0)


def test_terminal_tables_have_a_column_per_arm(tmp_path: Path) -> None:
    results = Results.read(written(tmp_path))
    table = arms_table(results)
    assert [str(c.header) for c in table.columns] == ["", "DSGD", "AC <2>"]
    assert table.row_count == len(QUANTITIES)
    assert verdict_table(compare(results)).row_count == 1 + 7
