"""The tables beside the page, recomputed from the raw records with pandas and scipy alone."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from dissensus.experiments.cli import main
from dissensus.experiments.comparison import compare
from dissensus.experiments.latex import booktabs, latex
from dissensus.experiments.results import Results
from dissensus.experiments.table_files import write_tables

NASTY = "a_b 50 % & #1 $x$ {y} ~^\\ <γ|Ξ> − “é” 学 ⁻⁹ [z] *ą"
ARMS = {
    "base": {"algorithm": "dsgd", "label": NASTY},
    "other": {"algorithm": "dsgd", "gamma": 0.5, "label": "[w]"},
    "treat": {"algorithm": "dsgd-ac", "label": "*t"},
}
LEAST = {"test_loss": 0.05}


@pytest.fixture
def folder(made, noisy) -> Path:
    folder = made("tables", ARMS, noisy(treat=0.1, base=-0.02), seeds=5, decision={"minimum_effect": LEAST})
    results = Results.read(folder)
    write_tables(results, compare(results), folder / "tables")
    return folder


def raw(folder: Path) -> pd.DataFrame:
    """The last record of everything, with nothing but pandas; directories are called arm-sSEED-hash."""
    parts = []
    for name in ("metrics", "probes"):
        for path in sorted(folder.glob(f"*-s*-*/{name}.jsonl")):
            found = re.fullmatch(r"(.+)-s(\d+)-\w{8}", path.parent.name)
            assert found
            parts.append(pd.read_json(path, lines=True, precise_float=True).assign(arm=found[1], seed=int(found[2])))
    rows = pd.concat(parts, ignore_index=True)
    return rows.loc[rows.groupby(["arm", "seed", "name", "which"])["step"].idxmax()]


def test_the_numbers_are_those_of_the_records(folder: Path) -> None:
    last, keys = raw(folder), ["arm", "seed", "quantity", "which"]
    table = pd.read_csv(folder / "tables" / "finals.csv").set_index(keys).sort_index()
    expected = last.rename(columns={"name": "quantity"}).set_index(keys).sort_index()
    assert list(table.index) == list(expected.index)
    for column in ("value", "stderr"):
        np.testing.assert_allclose(table[column], expected[column], rtol=1e-12)
    np.testing.assert_array_equal(table["step"], expected["step"])

    arms = pd.read_csv(folder / "tables" / "arms.csv").set_index(["arm", "quantity", "which"]).sort_index()
    grouped = last.groupby(["arm", "name", "which"])["value"]
    half = stats.t.ppf(0.975, 4) * grouped.sem()
    for column, values in {
        "n": grouped.count(), "mean": grouped.mean(), "sd": grouped.std(),
        "low": grouped.mean() - half, "high": grouped.mean() + half,
    }.items():  # fmt: skip
        np.testing.assert_allclose(arms[column], values.sort_index(), rtol=1e-12, atol=1e-12)


def test_the_p_values_are_scipys(folder: Path) -> None:
    last = raw(folder)
    table = pd.read_csv(folder / "tables" / "verdicts.csv")
    assert len(table) == 14
    for row in table.to_dict("records"):
        chosen = last[(last["name"] == row["quantity"]) & (last["which"] == row["which"])]
        by_arm = chosen.pivot_table("value", "seed", "arm")
        edge = LEAST.get(row["quantity"], 0.0) * (1 if row["expected"] == "higher" else -1)
        ours, theirs = by_arm[row["treatment"]], by_arm[row["control"]]
        assert row["t_pvalue"] == pytest.approx(stats.ttest_rel(ours, theirs + edge).pvalue, abs=1e-12)
        assert row["mean_difference"] == pytest.approx((ours - theirs).mean(), abs=1e-12)
    ranked = table.sort_values("t_pvalue")
    holm = np.minimum(np.maximum.accumulate(ranked["t_pvalue"] * np.arange(14, 0, -1)), 1.0)
    np.testing.assert_allclose(ranked["corrected_pvalue"], holm, atol=1e-12)  # 5 seeds: the signs have no say


def test_text_tables_hold_every_row_and_survive_any_label(folder: Path) -> None:
    tables = folder / "tables"
    for name, rows in (("arms", 8), ("verdicts", 14), ("configuration", 2)):
        lines = [line for line in (tables / f"{name}.md").read_text().splitlines() if line.startswith("|")]
        assert len(lines) == rows + 2
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
        tex = (tables / f"{name}.tex").read_text()
        inner = tex.split("\\midrule\n")[1].split("\\bottomrule")[0].splitlines()
        assert len(inner) == rows
        assert len({len(re.findall(r"(?<!\\)&", line)) for line in inner}) == 1
    assert r"a\_b 50 \% \& \#1 \$x\$ \{y\}" in (tables / "arms.tex").read_text()
    assert r"a\_b 50 % & #1 $x$ {y} ~^\\ \<γ\|Ξ\>" in (tables / "arms.md").read_text()


def test_symbols_become_mathematics() -> None:
    assert latex("(3.5 ± 1.7)·10⁻⁹") == r"(3.5 $\pm$ 1.7)$\cdot$10$^{-9}$"
    assert latex("Ξ, λ max, ΑΒ, ϕ, ς, ά, 8 × 2, L₂, ł, ą, Đ, ¼, ϝ, 学") == (
        r"$\Xi$, $\lambda$ max, AB, $\phi$, $\sigma$, $\alpha$, 8 $\times$ 2, L$_{2}$, ł, a, ?, ?, ?, ?"
    )
    assert latex("[x] *") == "{[}x{]} {*}"  # else an argument of the line before
    assert latex("two\nlines\t\x07") == "two lines ?"
    assert booktabs(["a", "b"], [["[x]", "*"]], note="50 %\nmore").startswith("% 50 %\n% more\n\\begin{tabular}{lr}\n")


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_pdflatex_sets_the_tables(folder: Path) -> None:
    names = ("arms", "verdicts", "configuration")
    letters = "".join(map(chr, range(0x20, 0x500)))
    (folder / "tables" / "letters.tex").write_text(booktabs(["x"], [[letters[k : k + 40]] for k in range(0, 1200, 40)]))
    body = "\n\n".join(rf"\input{{tables/{name}}}" for name in (*names, "letters"))
    paper = f"\\documentclass{{article}}\n\\usepackage{{booktabs}}\n\\begin{{document}}\n{body}\n\\end{{document}}\n"
    (folder / "paper.tex").write_text(paper)
    done = subprocess.run(
        ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "paper.tex"], cwd=folder, capture_output=True
    )
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]
    assert "Missing character" not in (folder / "paper.log").read_text(errors="replace")


def test_where_tables_go_on_the_command_line(made, noisy, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    folder = str(made("where", ARMS, noisy(), seeds=1))
    assert main(["report", folder, "--no-tables"]) == 0
    assert not (Path(folder) / "tables").exists()
    capsys.readouterr()
    assert main(["report", folder, "--to", str(tmp_path / "page.html"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tables"] == str(tmp_path / "page-tables")
    assert len(pd.read_csv(tmp_path / "page-tables" / "verdicts.csv")) == 0
    assert not pd.read_csv(tmp_path / "page-tables" / "arms.csv")["low"].notna().to_numpy().any()
    assert main(["report", folder, "--no-tables", "--tables", "x"]) == 2
    assert "give one of them" in capsys.readouterr().err
