"""Grids: the product written out by hand, what is refused, and that the written study is the same study."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from dissensus.experiments.config import Study
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.loading import load, write

ARMS: dict[str, Any] = {
    "dsgd": {"algorithm": "dsgd"},
    "ac": {"algorithm": "dsgd-ac", "p": 9.0, "label": "DSGD-AC", "changes": {"train": {"batch": 4}}},
}
SWEEP = """
[grid]
"lr.peak" = [0.05, 0.1]
topology.name = ["ring", "complete"]
"arms.ac.p" = [1.0, 2.0, 3.0]
[arms.dsgd]
algorithm = "dsgd"
"""


def sweep(grid: Any, *overrides: str, **sections: Any) -> Study:
    return load((), overrides, **({"arms": ARMS, "grid": grid} | sections))


def test_the_product_is_every_combination_once_and_in_order() -> None:
    study = sweep({"lr.peak": [0.05, 0.1], "arms.ac.p": [1.0, 2.0, 3.0], "topology": {"name": ["ring", "complete"]}})
    assert list(study.arms) == [*(f"dsgd-{i}" for i in range(1, 5)), *(f"ac-{i:02}" for i in range(1, 13))]
    cells = [study.cell(arm, 0) for arm in study.arms]
    found = [(c.lr.peak, c.only[1].parameters.get("p"), c.topology.name, c.train.batch) for c in cells]
    expected = [(lr, None, name, 16) for lr in (0.05, 0.1) for name in ("ring", "complete")]
    points = itertools.product((0.05, 0.1), (1.0, 2.0, 3.0), ("ring", "complete"))
    assert found == expected + [(*point, 4) for point in points]
    assert study.label("ac-12") == "DSGD-AC, lr.peak 0.1, p 3, topology.name complete"
    assert study.label("dsgd-1") == "dsgd, lr.peak 0.05, topology.name ring"
    assert study.treatment == "ac-12"


def test_an_arm_that_no_key_speaks_of_stays_as_it_is() -> None:
    study = sweep({"arms.ac.p": [1.0, 2.0], "arms.ac.changes.lr.peak": [0.3]})
    assert list(study.arms) == ["dsgd", "ac-1", "ac-2"]
    assert study.cell("ac-2", 0).lr.peak == 0.3
    assert study.label("ac-2") == "DSGD-AC, p 2, lr.peak 0.3"
    assert study.cell("dsgd", 0) == load(arms=ARMS).cell("dsgd", 0), "its runs are those without a grid"


def test_the_written_study_has_equal_cells_and_no_grid(tmp_path: Path) -> None:
    study = sweep({"lr.peak": [0.05, 0.1], "optimizer.betas": [[0.9, 0.99], [0.8, 0.9]]}, "optimizer.name=adam")
    write(study, tmp_path / "study.toml")
    again = load(tmp_path / "study.toml")
    assert "grid" not in (tmp_path / "study.toml").read_text()
    assert again == study
    assert [c.digest for c in again.cells()] == [c.digest for c in study.cells()]
    assert len({c.digest for c in study.cells()}) == 8
    cell = study.cell("ac-1", 0)
    write(cell, tmp_path / "config.toml")
    assert load(tmp_path / "config.toml").digest == cell.digest


def test_later_files_and_overrides_replace_a_list(tmp_path: Path) -> None:
    first, second = tmp_path / "a.toml", tmp_path / "b.toml"
    first.write_text(SWEEP)
    second.write_text('[grid]\nlr.peak = [0.5]\n[arms.ac]\nalgorithm = "dsgd-ac"\n')
    study = load([first, second], ["grid.arms.ac.p=[4.0]", 'grid.topology.name=["torus"]', "train.workers=4"])
    assert [study.cell(arm, 0).topology.name for arm in study.arms] == ["torus", "torus"]
    assert (study.cell("ac-1", 0).lr.peak, study.arms["ac-1"].parameters) == (0.5, {"p": 4.0})


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"lr.peka": [1]}, r"arguments: grid: unknown key 'lr\.peka'; did you mean 'peak'\?"),
        ({"trian.steps": [1]}, r"grid: unknown key 'trian\.steps'; did you mean 'train'\?"),
        ({"faults.dorp": [0.1]}, r"grid: unknown key 'faults\.dorp'; did you mean 'drop'\?"),
        ({"topology.nmae": ["ring"]}, r"arguments: grid: .*topology.nmae: .*'nmae'; did you mean 'name'\?"),
        ({"arms.ca.p": [1.0]}, r"grid: 'arms\.ca\.p': there is no arm 'ca'; did you mean 'ac'\?"),
        ({"arms.ac.q": [1.0]}, r"\[arms\.ac-1\] algorithm 'dsgd-ac' has no parameter 'q'"),
        ({"arms.ac.changes.lr.peka": [1]}, r"grid: unknown key 'lr\.peka'; did you mean 'peak'\?"),
        ({"arms.ac.label": ["a"]}, r"'arms\.ac\.label' cannot be varied: name a parameter of the arm"),
        ({"arms.ac": [1]}, r"'arms\.ac' cannot be varied"),
        ({"lr.peak": []}, r"grid: 'lr\.peak' has no values: an empty list leaves no arm"),
        ({"lr.peak": [0.1, 0.2, 0.1]}, r"grid: 'lr\.peak' lists 0\.1 twice"),
        ({"lr.peak": 0.1}, r"grid: 'lr\.peak' must be a list of values, got 0\.1: write \[0\.1\]"),
        ({"lr": [0.1]}, r"grid: 'lr' is a section: vary one of its keys, such as 'lr\.peak'"),
        ({"seeds": [[1]]}, r"grid: 'seeds' belongs to the whole study"),
        ({"name": ["a"]}, r"grid: 'name' belongs to the whole study"),
        ({"decision.level": [0.1]}, r"grid: 'decision\.level' belongs to the whole study"),
        ({"train.batch": [3]}, r"grid: arm 'ac' sets 'train\.batch' itself, in its changes: leave one of the two out"),
        ({"lr.peak": [1], "arms.ac.changes.lr.peak": [2]}, r"grid: 'lr\.peak' is varied twice in arm 'ac'"),
        ({"train.steps": [0]}, r"arms\.dsgd-1\.changes: train\.steps: Input should be greater than or equal to 1"),
        ([1], r"grid must be a table of keys with lists of values, got \[1\]"),
    ],
)
def test_a_grid_that_cannot_be_is_refused_with_its_place(grid: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sweep(grid)


def test_a_name_that_is_taken_and_a_treatment_that_became_several() -> None:
    taken = ARMS | {"ac-2": {"algorithm": "dsgd"}}
    with pytest.raises(ConfigError, match=r"the arms of 'ac' are numbered, and there is 'ac-2' already"):
        sweep({"arms.ac.p": [1.0, 2.0]}, arms=taken)
    with pytest.raises(ConfigError, match=r"'ac' is an arm that the grid multiplies: name one of ac-1, ac-2$"):
        sweep({"arms.ac.p": [1.0, 2.0]}, decision={"treatment": "ac"})
    with pytest.raises(ConfigError, match=r"decision\.controls: 'ac' is an arm that the grid multiplies"):
        sweep({"arms.ac.p": [1.0, 2.0]}, decision={"treatment": "dsgd", "controls": ["ac"]})
    assert sweep({"arms.ac.p": [1.0, 2.0]}, decision={"treatment": "ac-1"}).treatment == "ac-1"
    assert sweep({"arms.ac.p": [1.0, 2.0]}, decision={"treatment": "dsgd"}).treatment == "dsgd"


def test_one_value_on_the_command_line_does_not_silently_lose_against_the_grid() -> None:
    with pytest.raises(ConfigError, match=r"--lr\.peak: the grid varies 'lr\.peak'.*--grid\.lr\.peak '\[\.\.\.\]'"):
        sweep({"lr.peak": [0.1, 0.2]}, "lr.peak=0.5")


def test_every_size_is_checked_not_only_the_first() -> None:
    with pytest.raises(ConfigError, match=r"\[topology\] .*6"):
        sweep({"train.workers": [8, 6]}, "topology.name=hypercube")
