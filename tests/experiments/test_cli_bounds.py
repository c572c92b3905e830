"""`dissensus theory bound` and `dissensus theory ledger`: what they print, compute, and refuse."""

import json
import math
import shlex
from pathlib import Path

import pytest

from dissensus.experiments.cli import main
from dissensus.theory import bounds
from dissensus.theory.ledger import Row


def answer(capsys: pytest.CaptureFixture, line: str) -> dict:
    assert main(["theory", *shlex.split(line), "--json"]) == 0
    out, err = capsys.readouterr()
    assert (out.count("\n"), err) == (1, "")
    return json.loads(out)


def test_the_list_holds_every_bound(capsys: pytest.CaptureFixture) -> None:
    listed = answer(capsys, "bound")["bounds"]
    assert list(listed) == list(bounds.catalogue())
    assert all(
        {"statement", "assumptions", "reference", "provenance", "facts", "kind"} <= set(b) for b in listed.values()
    )
    assert main(["theory", "bound"]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in listed)


def test_a_bound_tells_what_it_needs(capsys: pytest.CaptureFixture) -> None:
    told = answer(capsys, "bound gap-ring")
    assert told["facts"] == {"size": None}
    assert main(["theory", "bound", "convex-descent"]) == 0
    out = capsys.readouterr().out
    assert "--heterogeneity (default 0)" in out
    assert "step size: " in out


def test_a_closed_form_by_hand(capsys: pytest.CaptureFixture) -> None:
    for line in ("bound gap-ring --size 8", "bound gap-ring --topology ring --n 8", "bound gap-ring --topology ring"):
        assert answer(capsys, line)["value"] == pytest.approx(4 / 3 * math.sin(math.pi / 8) ** 2, rel=1e-14)


def test_a_topology_fills_in_its_contraction(capsys: pytest.CaptureFixture) -> None:
    rest = "--lr 0.05 --smoothness 2 --steps 50 --distance 3"
    by_name = answer(capsys, f"bound convex-descent --topology ring --n 8 {rest}")
    contraction = (1 + 2 * math.cos(math.pi / 4)) / 3
    assert by_name["problem"]["contraction"] == pytest.approx(contraction, rel=1e-12)
    assert by_name["problem"]["size"] == 8
    by_hand = answer(capsys, f"bound convex-descent --contraction {contraction!r} --size 8 {rest}")
    assert by_name["value"] == pytest.approx(by_hand["value"], rel=1e-12)
    assert (
        answer(capsys, f"bound convex-descent --topology ring --contraction 0.1 {rest}")["problem"]["contraction"]
        == 0.1
    )


def test_a_bound_that_does_not_apply_names_the_assumption(capsys: pytest.CaptureFixture) -> None:
    line = "bound convex-descent --contraction 0.9 --lr 1 --smoothness 2 --steps 50 --distance 3"
    said = answer(capsys, line)
    assert (said["applies"], said["value"]) == (False, None)
    assert any("step size" in failing for failing in said["failing"])
    assert main(["theory", *line.split()]) == 0
    assert "does not apply (step size" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("bound convex-desent", "unknown bound 'convex-desent'; did you mean 'convex-descent'?"),
        (
            "bound convex-descent --lr 0.1",
            "'convex-descent' also needs --contraction, --smoothness, --steps, --distance",
        ),
        ("bound convex-descent --smothness 1", "takes no --smothness; did you mean 'smoothness'?"),
        ("bound gap-ring --size many", "--size got 'many'"),
        ("bound --size 3", "--size belongs to a bound; name one first"),
        ("bound gap-ring --n 4", "--n is the size of a topology; name one with --topology"),
        ("bound gap-ring --topology rign", "unknown topology 'rign'; did you mean 'ring'?"),
        ("bound top-k-loss --topology ring", "needs nothing that a topology knows"),
        ("bound convex-descent --topology random-gossip --n 8 --lr 1", "draws its rounds anew"),
        ("ledger gap-rign", "no trials for a bound 'gap-rign'; did you mean 'gap-ring'?"),
        ("ledger --instances 0", "--instances must be at least 1"),
    ],
)
def test_wrong_use_is_one_sentence(line: str, says: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["theory", *line.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert err.count("\n") == 1


def test_the_ledger_counts_and_writes_its_page(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    page = tmp_path / "ledger.md"
    line = f"ledger gap-ring convex-descent --instances 20 --searches 10 --processes 1 --write {page}"
    said = answer(capsys, line)
    assert said["violations"] == 0
    assert {row["bound"] for row in said["rows"]} == {"gap-ring", "convex-descent"}
    assert all(row["violations"] == 0 and (row["smallest"] or math.inf) >= 1 - 1e-9 for row in said["rows"])
    text = page.read_text()
    assert "**0 violations**" in text
    assert "### `convex-descent`" in text
    assert text.count("| [gap-ring](#gap-ring) |") == sum(row["bound"] == "gap-ring" for row in said["rows"])
    again = answer(capsys, line.replace("--processes 1", "--processes 2"))
    assert again == said, "the same seed gives the same rows, whatever the number of processes"


def test_a_broken_bound_ends_with_exit_code_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    row = Row("gap-ring", "general", "equal", "classical", 10, 0, 1, 0.5, 1.0, 1.0, None)
    monkeypatch.setattr("dissensus.theory.ledger.ledger", lambda *_, **__: [row])
    assert main(["theory", "ledger"]) == 1
    assert "gap-ring" in capsys.readouterr().out
