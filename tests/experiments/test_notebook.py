"""The notebooks: every script has its executed copy and that is of this very script; `make notebooks` executes them."""

import re
from pathlib import Path

import jupytext
import nbformat
import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
SCRIPTS = sorted(FOLDER.glob("*.py"))
LARGEST = 400_000
HERE = re.compile(r"/(root|home|tmp|work|Users)/\w")


def test_scripts_and_notebooks_come_in_pairs() -> None:
    assert SCRIPTS
    assert {p.stem for p in SCRIPTS} == {p.stem for p in FOLDER.glob("*.ipynb")}, "run make notebooks REFRESH=1"
    assert {p.suffix for p in FOLDER.iterdir() if p.is_file()} == {".py", ".ipynb"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.stem)
def test_the_executed_copy_is_of_this_script(script: Path) -> None:
    told = "run make notebooks REFRESH=1"
    path = script.with_suffix(".ipynb")
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [(cell.cell_type, cell.source) for cell in notebook.cells]
    assert cells == [(cell.cell_type, cell.source) for cell in jupytext.read(script).cells], told
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), told
    outputs = [out for cell in code for out in cell.outputs]
    assert not [out for out in outputs if out.output_type == "error" or out.get("name") == "stderr"]
    pictures = [out for out in outputs if "image/png" in out.get("data", {})]
    assert len(pictures) == script.read_text(encoding="utf-8").count("\nshow(") >= 2
    words = [
        str(out.get("text", "")) + str({k: v for k, v in out.get("data", {}).items() if "image" not in k})
        for out in outputs
    ]
    assert not [text for text in words if HERE.search(text)], "an output holds a path of one machine"
    assert path.stat().st_size < LARGEST
