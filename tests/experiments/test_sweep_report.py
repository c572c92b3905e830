"""The page of a study with more arms than colours, and the section of the claims."""

import numpy as np
import pytest

from dissensus.experiments.claim_rows import ClaimRow
from dissensus.experiments.comparison import compare
from dissensus.experiments.curves import Finals
from dissensus.experiments.figures.style import GREY, PALETTE
from dissensus.experiments.figures.sweep import sweep_figure
from dissensus.experiments.pictures import pictures
from dissensus.experiments.report import page, write_report
from dissensus.experiments.results import Results
from dissensus.experiments.selection import by_accuracy, in_colour
from dissensus.experiments.tables import arms_table, configuration_rows, verdict_table


@pytest.fixture
def wide(made, noisy):
    """Twelve arms, `arm3` best and `arm8` worst, two of which share a label."""
    arms = {f"arm{k}": {"algorithm": "dsgd-ac", "p": float(k + 1)} for k in range(12)}
    arms["arm1"]["label"] = arms["arm2"]["label"] = "twin"
    value = noisy(arm3=0.5, arm8=-0.5)
    return lambda **decision: made("wide", arms, value, seeds=3, decision=decision)


def test_treatment_controls_best_and_worst_have_the_colours(wide) -> None:
    assert in_colour(Results.read(wide())) == ["arm3", "arm8", "arm11"]
    results = Results.read(wide(treatment="arm0", controls=["arm5", "arm6"]))
    assert in_colour(results) == ["arm0", "arm3", "arm5", "arm6", "arm8"]
    ranked = by_accuracy(results)
    assert (ranked[0], ranked[-1]) == ("arm3", "arm8")
    assert {f.control for f in compare(results)} == {"arm5", "arm6"}


def test_a_page_of_many_arms_counts_and_folds(wide) -> None:
    report = write_report(wide())
    text = report.path.read_text()
    assert "<title>wide: 12 arms</title>" in text
    assert "arm11, against 11 arms" in text
    assert "<summary>All 77 statements</summary>" in text
    assert "Naming the controls in [decision]" in text
    assert '<figure id="sweep">' in text
    assert '<figure id="curvature">' not in text
    assert "and the best (arm3) and the worst (arm8) of all 12 arms" in text
    assert "Grey: the means of 9 other arms" in text
    assert arms_table(report.results).row_count == 12
    assert verdict_table(report.findings).row_count == 7
    header, rows = configuration_rows(report.results)
    assert header == ["arm", "p"]
    assert [row[0] for row in rows[:3]] == ["arm0", "twin (arm1)", "twin (arm2)"]


def test_every_arm_is_drawn_once_in_colour_or_grey(wide) -> None:
    results = Results.read(wide())
    (left, *_) = pictures(results)[0].figure.axes
    lines = [line for line in left.lines if len(np.asarray(line.get_xdata()))]
    assert [line.get_color() for line in lines].count(GREY) == 9
    assert [line.get_color() for line in lines if line.get_color() != GREY] == list(PALETTE[:3])
    legend = left.get_legend()
    assert legend is not None
    assert [t.get_text() for t in legend.get_texts()] == ["arm3", "arm8", "arm11", "9 other arms"]


def test_a_row_shows_the_mean_and_students_interval() -> None:
    rng = np.random.default_rng(0)
    arms = {f"a{k}": Finals(rng.normal(k, 1, 4), np.zeros(4)) for k in range(9)}
    figure = sweep_figure({"test_accuracy": arms, "hessian_trace": arms}, ["a7"])
    ax = figure.axes[0]
    assert [label.get_text() for label in ax.get_yticklabels()] == list(arms)
    assert ax.get_ylim() == (8.6, -0.6)  # the first row on top
    found = {}
    for line in ax.lines:
        x, y = np.asarray(line.get_xdata(), dtype=float), np.asarray(line.get_ydata(), dtype=float)
        if len(x) == 2 and y[0] == y[1]:
            found[round(y[0])] = tuple(sorted(x))
    assert len(found) == 9
    for row, finals in enumerate(arms.values()):
        assert found[row] == pytest.approx(finals.interval)
    assert PALETTE[0] in {line.get_color() for line in ax.lines}


def test_claims_have_a_section_where_there_are_any(made, noisy) -> None:
    results = Results.read(
        made("claims", {"a": {"algorithm": "dsgd"}, "b": {"algorithm": "dsgd-ac"}}, noisy(), seeds=2)
    )
    assert "Claims" not in page(results, [], [])
    row = ClaimRow("Flatter <C1>", "tr H is smaller", "not supported", ("+3 in 2 to 4", "few"), "somebody, 2026")
    text = page(results, [], [], [row])
    section = text[text.index('<h2 id="claims">') : text.index("<h2>Figures</h2>")]
    assert text.index("What the comparison says") < text.index('<h2 id="claims">')
    for words in ("Flatter &lt;C1&gt;", "tr H is smaller", "+3 in 2 to 4", "few", "somebody, 2026"):
        assert words in section
    assert '<td class="text verdict against">not supported</td>' in section
