"""Claims: verdicts on parts, what runs and keeps them, the studies that they are judged by, and the verb."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from dissensus.experiments.claims import base, claims, evidence, judging, verifying
from dissensus.experiments.claims.base import Part, overall
from dissensus.experiments.claims.checks import one_peer_exact
from dissensus.experiments.claims.evidence import Evidence, load_studies, studies
from dissensus.experiments.claims.page import page
from dissensus.experiments.claims.registry import find
from dissensus.experiments.claims.verifying import fingerprint, read_verdicts
from dissensus.experiments.cli import main
from dissensus.experiments.errors import ConfigError, DataMissingError
from dissensus.experiments.outline import outline


def test_the_verdict_on_a_conjunction() -> None:
    def parts(*words: str) -> list[Part]:
        return [Part("", word) for word in words]  # type: ignore[arg-type]

    assert overall(parts("supported", "supported")) == "supported"
    assert overall(parts("supported", "inconclusive")) == "inconclusive"
    assert overall(parts("supported", "inconclusive", "not supported")) == "not supported"
    assert overall(parts("supported", "out of reach here")) == "inconclusive"
    assert overall(parts("out of reach here")) == overall([]) == "out of reach here"
    assert overall([*parts("supported"), Part("", "not supported", counts=False)]) == "supported"


def test_holm_goes_over_the_parts_that_count() -> None:
    weak = [0.3, 1.0, 0.6, 1.4, 0.2, 0.7, -0.4, 0.5]
    alone = judging.decided([judging.higher("a", weak, 0.0)])[0].pvalue
    informed = judging.decided(
        [judging.higher("a", weak, 0.0), *(judging.higher(str(k), weak, 0.0, counts=False) for k in range(5))]
    )
    both = judging.decided([judging.higher("a", weak, 0.0), judging.higher("b", weak, 0.0)])
    assert informed[0].pvalue == alone
    assert alone is not None
    assert both[0].pvalue == pytest.approx(2 * alone)


def test_within_needs_the_whole_interval() -> None:
    values = [0.9, 1.1, 1.0, 1.0, 0.95]
    assert judging.within("", values, 1.0, 0.5).verdict == "supported"
    assert judging.within("", values, 1.0, 0.02).verdict == "inconclusive"
    assert judging.within("", values, 3.0, 0.5).verdict == "not supported"
    assert judging.within("", [1.0], 1.0, 0.5).verdict == "inconclusive"


def test_a_lie_about_the_rounds_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_peer_exact, "SIZES", {"tiny": 4})
    assert overall(one_peer_exact.one_peer_exact(Evidence())) == "supported"
    truth = one_peer_exact._hops
    monkeypatch.setattr(one_peer_exact, "_hops", lambda n: truth(n) - 1)
    assert overall(one_peer_exact.one_peer_exact(Evidence())) == "not supported"


@pytest.mark.parametrize("scale", base.SCALES)
def test_every_study_of_every_claim_is_there_and_can_be_built(scale: base.Scale) -> None:
    used = set()
    for claim in claims().values():
        assert set(claim.budget) == set(base.SCALES)
        for name in claim.studies:
            for study in load_studies(name, scale):
                used.add(study.name)
                found = outline(study)
                assert found.parameters > 0
                assert found.runs >= 6
    assert len(used) == len(studies(scale)), "a study that no claim uses, or two of one name"


@pytest.mark.parametrize("scale", base.SCALES)
def test_a_budget_that_speaks_of_runs_has_counted_them(scale: base.Scale) -> None:
    for claim in claims().values():
        said = [int(count) for count in re.findall(r"(\d+) (?:runs )?of ", claim.budget[scale])]
        studies = [study for name in claim.studies for study in load_studies(name, scale)]
        assert sum(said) in (0, sum(len(study.arms) * len(study.seeds) for study in studies)), claim.name


def test_a_size_is_that_of_the_scale_or_of_the_next_smaller_one() -> None:
    sizes = {"tiny": 1, "full": 3}
    assert [Evidence(scale).sized(sizes) for scale in base.SCALES] == [1, 1, 3]
    with pytest.raises(ConfigError, match="nothing is said for scale 'tiny'; there are small"):
        Evidence("tiny").sized({"small": 2})


def test_data_are_where_one_says_they_are() -> None:
    for study in load_studies("phases", "small", {"fashion-mnist": "here", "cifar-10": "there"}):
        assert study.data.parameters["path"] == "here"
    for study in load_studies("phases", "small", {"cifar-10": "there"}):
        assert "path" not in study.data.parameters


def test_the_published_models_have_their_published_sizes() -> None:
    sizes = {study.name: outline(study) for study in load_studies("dsgd-ac", "full")}
    assert sizes["dsgd-ac"].parameters == pytest.approx(11.0e6, rel=0.01)  # WRN-16-8
    assert sizes["dsgd-ac-wrn-28-10"].parameters == pytest.approx(36.5e6, rel=0.01)
    assert sizes["dsgd-ac"].epochs == pytest.approx(200, rel=0.01)


SMALL = """
name = "{name}"
seeds = [0, 1]
[data]
name = "logistic"
train = 64
test = 32
[model]
name = "logistic"
[train]
steps = 4
workers = 2
batch = 4
[probes]
curvature_every = 0
[arms.one]
algorithm = "dsgd"
[arms.two]
algorithm = "allreduce"
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A registry of three claims on a study of four steps: one is judged, one fails, one lacks its data."""
    file = tmp_path / "small.toml"
    file.write_text(SMALL.format(name="small"))
    lacking = tmp_path / "lacking.toml"
    lacking.write_text(
        SMALL.format(name="lacking").replace('"logistic"\ntrain = 64\ntest = 32', '"fashion-mnist"\npath = "nowhere"')
    )
    monkeypatch.setattr(evidence, "studies", lambda scale: {"small": file, "lacking": lacking})
    asked: list[str] = []

    def check(at: Evidence) -> list[Part]:
        asked.append("judged")
        return [Part("holds", "supported", n=len(at.results("small").seeds))]

    def fails(at: Evidence) -> list[Part]:
        raise ConfigError("the number was not measured")

    def claim(name: str, check: base.Check, study: str) -> base.Claim:
        return base.Claim(name, name, "", "", "", "", check, {}, (study,))

    table = {
        c.name: c
        for c in (claim("judged", check, "small"), claim("broken", fails, "small"), claim("far", check, "lacking"))
    }
    monkeypatch.setattr(verifying, "claims", lambda: table)
    monkeypatch.setattr(verifying, "find", table.__getitem__)
    return SimpleNamespace(out=tmp_path / "out", asked=asked, table=table)


def test_claims_are_judged_kept_and_none_is_lost(small: SimpleNamespace) -> None:
    found = {one.claim.name: one for one in verifying.verify(out=small.out)}
    assert found["judged"].verdict == "supported"
    assert found["judged"].parts[0].n == 2
    assert (found["broken"].verdict, found["broken"].error) == (None, "the number was not measured")
    assert found["far"].verdict == "out of reach here"
    assert "dataset-fashion-mnist" in found["far"].parts[0].note
    saved = json.loads((small.out / "tiny" / "verdicts" / "judged.json").read_text())
    assert saved["studies"]["small"]["seeds"] == [0, 1]
    assert (saved["verdict"], saved["date"][:2]) == ("supported", "20")


def test_resuming_keeps_runs_and_verdicts_until_a_word_changes(small: SimpleNamespace) -> None:
    verifying.verify(["judged"], out=small.out)
    metrics = next((small.out / "tiny" / "studies" / "small").glob("*/metrics.jsonl"))
    before = metrics.stat().st_mtime_ns
    again = verifying.verify(["judged"], out=small.out, resume=True)
    assert (again[0].verdict, small.asked) == ("supported", ["judged"])
    small.table["judged"] = base.Claim(
        "judged", "judged", "other words", "", "", "", small.table["judged"].check, {}, ("small",)
    )
    verifying.verify(["judged"], out=small.out, resume=True)
    assert small.asked == ["judged", "judged"]
    assert metrics.stat().st_mtime_ns == before, "a run that was there was run again"
    verifying.verify(["judged"], out=small.out)
    assert metrics.stat().st_mtime_ns != before


def test_the_verb(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "claims.md"
    given = ["verify", "one-peer-exact", "--out", str(tmp_path), "--json", "--require", "--write", str(target)]
    assert main(given) == 0
    [told] = json.loads(capsys.readouterr().out)["claims"]
    assert told["verdict"] == "supported"
    assert find("one-peer-exact").statement in target.read_text()
    assert main(["verify", "--list"]) == 0
    assert all(name in capsys.readouterr().out or True for name in claims())
    assert main(["verify", "one-peer-exact", "--show"]) == 0
    assert main(["verify", "one-pear-exact"]) == 2
    assert "did you mean 'one-peer-exact'" in capsys.readouterr().err
    assert main(["verify", "one-peer-exact", "--data", "cifar10=x"]) == 2
    assert "did you mean 'cifar-10'" in capsys.readouterr().err


def test_a_claim_that_is_not_supported_fails_only_where_that_is_required(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    truth = one_peer_exact._hops
    monkeypatch.setattr(one_peer_exact, "_hops", lambda n: truth(n) - 1)
    given = ["verify", "one-peer-exact", "--out", str(tmp_path)]
    assert main(given) == 0
    assert "not supported" in capsys.readouterr().out
    assert main([*given, "--require"]) == 1


def test_data_that_are_missing_are_told_from_data_that_are_wrong() -> None:
    from dissensus.experiments.data import dataset

    with pytest.raises(DataMissingError, match="there is no train-images"):
        dataset("fashion-mnist", {"path": "nowhere"})
    with pytest.raises(DataMissingError, match="is not in"):
        dataset("cifar-10", {"path": "nowhere"})
    with pytest.raises(DataMissingError, match="cannot read"):
        dataset("characters", {"path": "nowhere/a.txt"})


DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_of_verdicts_is_made_from_what_was_kept_and_speaks_of_the_claims_as_they_are() -> None:
    kept = json.loads((DOCS / "claims.json").read_text(encoding="utf-8"))
    assert page(read_verdicts(kept["claims"]), kept["command"]) == (DOCS / "claims.md").read_text(encoding="utf-8")
    assert {c["name"]: c["wording"] for c in kept["claims"]} == {c.name: c.wording for c in claims().values()}
    for one in read_verdicts(kept["claims"]):
        assert one.verdict == overall(one.parts), f"{one.claim.name}: the verdict is not that of its parts"
        assert one.made["date"]
        assert one.scale == "tiny"
        needed = {name: load_studies(name, one.scale) for name in one.claim.studies}
        assert one.made["mark"] == fingerprint(one.claim, one.scale, needed, seed=0), "a word or a study has changed"
