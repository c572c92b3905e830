"""What `verify` keeps, and what it says when runs, data or checks are missing: nothing is hidden, nothing is stale."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dissensus.experiments.claims import base, verifying
from dissensus.experiments.claims.base import OutOfReachError, Part
from dissensus.experiments.claims.checks import one_peer_exact
from dissensus.experiments.claims.evidence import Evidence
from dissensus.experiments.claims.page import page
from dissensus.experiments.claims.verifying import Ran, read_verdicts
from dissensus.experiments.cli import main
from dissensus.experiments.config import Study
from dissensus.experiments.errors import ConfigError, DataMissingError
from dissensus.experiments.loading import load
from dissensus.experiments.records import write_json
from dissensus.experiments.results import Results

PARTS = [Part("first", "supported", 1.0, (0.5, 1.5), n=2), Part("second", "supported", n=2, note="said of it")]


def study(name: str = "small", **more: Any) -> Study:
    """A study of four steps with two arms and two seeds."""
    return load(
        name=name, seeds=[0, 1], data={"name": "logistic", "train": 64, "test": 32}, model={"name": "logistic"},
        train={"steps": 4, "workers": 2, "batch": 4}, probes={"curvature_every": 0},
        arms={"one": {"algorithm": "dsgd"}, "two": {"algorithm": "allreduce"}}, **more,
    )  # fmt: skip


@pytest.fixture
def claimed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """One claim on `studies`, whose check does what `answer` does; `asked` has the evidence of every time it was."""
    held = SimpleNamespace(studies=[study()], answer=lambda at: list(PARTS), asked=[])

    def check(at: Evidence) -> list[Part]:
        held.asked.append(at)
        return held.answer(at)

    table = {"it": base.Claim("it", "A title", "", "", "", "", check, {}, ("small",))}
    monkeypatch.setattr(verifying, "claims", lambda: table)
    monkeypatch.setattr(verifying, "find", table.__getitem__)
    monkeypatch.setattr(verifying, "load_studies", lambda name, scale, places: held.studies)
    held.file = tmp_path / "tiny" / "verdicts" / "it.json"

    def verify(**more: Any) -> verifying.Verified:
        [found] = verifying.verify(["it"], out=tmp_path, **more)
        return found

    held.verify = verify
    return held


def without_runs(monkeypatch: pytest.MonkeyPatch, ran: Ran | None = None) -> None:
    """No study is run; what came of it is said."""
    some: list[Any] = [object()]
    monkeypatch.setattr(verifying, "_run", lambda *_, **__: ran or Ran(some, "", ""))


def test_a_verdict_stays_until_a_study_or_the_seed_changes(
    claimed: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_runs(monkeypatch)
    claimed.studies.append(study("small-other"))
    claimed.verify(seed=3)
    assert claimed.verify(seed=3, resume=True).parts == tuple(PARTS)
    assert [at.seed for at in claimed.asked] == [3]
    claimed.verify(seed=4, resume=True)
    claimed.studies[1] = study("small-other", lr={"peak": 0.2})
    claimed.verify(seed=4, resume=True)
    assert [at.seed for at in claimed.asked] == [3, 4, 4]


@pytest.mark.parametrize(
    "change",
    [
        None,
        {"parts": [1]},
        {"parts": [{"statement": "", "verdict": "supported", "interval": [1]}]},
        {"verdict": "not supported"},
        {"error": "one run failed"},
    ],
)
def test_what_cannot_be_read_or_does_not_follow_is_judged_again(
    claimed: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any] | None
) -> None:
    without_runs(monkeypatch)
    claimed.verify()
    tree: Any = json.loads(claimed.file.read_text()) | change if change else [[]]
    claimed.file.write_text(json.dumps(tree))
    assert claimed.verify(resume=True).verdict == "supported"
    assert len(claimed.asked) == 2
    assert json.loads(claimed.file.read_text())["verdict"] == "supported"


def test_a_run_that_failed_is_said_and_runs_again_with_resume(
    claimed: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = verifying.run_study

    def broken(*given: Any, **more: Any) -> Sequence[Any]:
        *others, last = truth(*given, **more)
        write_json(last.path / "summary.json", {"status": "failed", "arm": last.arm, "seed": 1, "error": "NaN"})
        return [*others, replace(last, status="failed", error="NaN")]

    monkeypatch.setattr(verifying, "run_study", broken)
    found = claimed.verify()
    assert found.verdict == "supported"
    assert claimed.asked[0].results("small").seeds == [0]
    assert "study small: 1 of 4 runs did not end well; the first: two, seed 1: NaN" in found.error
    assert found.error in page([found], "")
    assert found.error in page(read_verdicts([json.loads(claimed.file.read_text())]), "")
    monkeypatch.setattr(verifying, "run_study", truth)
    again = claimed.verify(resume=True)
    assert again.error == ""
    assert claimed.asked[1].results("small").seeds == [0, 1]


def test_runs_that_another_process_has_begun_anew_are_said(
    claimed: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = verifying.run_study

    def disturbed(*given: Any, **more: Any) -> Sequence[Any]:
        outcomes = truth(*given, **more)
        (outcomes[-1].path / "summary.json").unlink()
        return outcomes

    monkeypatch.setattr(verifying, "run_study", disturbed)
    assert "study small: 4 runs ended well, but only 3 are there to read" in claimed.verify().error


def test_data_that_came_are_noticed_with_resume(claimed: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> None:
        raise DataMissingError("it is not here")

    with monkeypatch.context() as patched:
        patched.setattr(verifying, "dataset", away)
        found = claimed.verify()
    assert (found.verdict, found.error) == ("out of reach here", "")
    assert found.parts[0].note == "study small: it is not here"
    assert claimed.verify(resume=True).verdict == "supported"


def test_data_that_are_broken_lose_no_other_claim(claimed: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ConfigError("the file is cut off")

    monkeypatch.setattr(verifying, "dataset", broken)
    found = claimed.verify()
    assert (found.verdict, found.error) == (None, "study small: the file is cut off")


def test_a_variant_without_data_is_no_variant_that_supports(
    claimed: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    some: list[Any] = [object()]
    without_runs(monkeypatch, Ran(some, "", "study other: there is no such file"))
    found = claimed.verify()
    assert found.verdict == "inconclusive"
    assert "there is no such file" in page([found], "")


@pytest.mark.parametrize(
    ("failure", "verdict", "error"),
    [
        (ZeroDivisionError("by nought"), None, "ZeroDivisionError: by nought; 1 of 4 runs failed"),
        (ConfigError("not measured"), None, "not measured; 1 of 4 runs failed"),
        (OutOfReachError("needs root"), "out of reach here", "1 of 4 runs failed"),
    ],
)
def test_a_check_that_fails_says_why_and_what_else_went_wrong(
    claimed: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, failure: Exception, verdict: str | None, error: str
) -> None:
    some: list[Results | Any] = [object()]
    without_runs(monkeypatch, Ran(some, "1 of 4 runs failed", ""))

    def fails(at: Evidence) -> list[Part]:
        raise failure

    claimed.answer = fails
    found = claimed.verify()
    assert (found.verdict, found.error) == (verdict, error)


def test_a_study_of_two_claims_runs_once(
    claimed: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran = []
    monkeypatch.setattr(verifying, "_run", lambda variants, *_, **__: ran.append(variants) or Ran([variants], "", ""))
    first = verifying.claims()["it"]
    monkeypatch.setitem(verifying.claims(), "other", replace(first, name="other"))
    assert len(verifying.verify(out=tmp_path)) == len(claimed.asked) == 2
    assert len(ran) == 1


def test_a_study_without_any_run_is_no_verdict(claimed: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    without_runs(monkeypatch, Ran([], "all of them failed", ""))
    found = claimed.verify()
    assert (found.verdict, found.error, claimed.asked) == (None, "all of them failed", [])
    assert "not judged" in page([found], "")


def test_the_page_has_every_part_in_its_table_and_brackets_what_informs() -> None:
    claim = base.Claim("it", "A title", "", "", "", "", lambda at: [], {})
    parts = (*PARTS, Part("third", "not supported", counts=False))
    written = page([verifying.Verified(claim, "tiny", "supported", parts, 1.0)], "")
    rows = [line for line in written.splitlines() if line.startswith("|")]
    assert "| first | supported | +1 | 0.5 to 1.5 | – | 2 seeds |" in rows
    assert "| second | supported | – | – | – | 2 seeds |" in rows
    assert "| (third) | (not supported) | – | – | – | – |" in rows
    assert "| [A title](#it) | supported | 2 of 2 | 2 seeds | tiny | – |" in rows
    assert "- second: said of it" in written


def test_a_page_has_a_name_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("claims.json", ".", "claims"):
        assert main(["verify", "one-peer-exact", "--out", str(tmp_path), "--write", str(tmp_path / name)]) == 2
        assert "ends with .md" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_check_that_fails_is_one_json_object_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_peer_exact, "SIZES", {"tiny": "many"})
    page_file = tmp_path / "claims.md"
    given = ["verify", "one-peer-exact", "--out", str(tmp_path), "--write", str(page_file)]
    assert main([*given, "--json"]) == 1
    [told] = json.loads(capsys.readouterr().out)["claims"]
    assert (told["verdict"], told["error"][:10]) == (None, "TypeError:")
    assert "TypeError" in page_file.read_text()
    assert main(given) == 1
    assert "verify: one-peer-exact: TypeError" in capsys.readouterr().err
