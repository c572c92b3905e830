"""The notebook runs as a script, its figures are there, and the executed copy is of this very script."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
FIGURES = {"density", "slices", "workers", "modes", "training"}


@pytest.fixture(scope="module")
def execute() -> ModuleType:
    spec = importlib.util.spec_from_file_location("execute_notebook", FOLDER / "execute.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_cells_are_executed_in_one_namespace(execute: ModuleType, tmp_path: Path) -> None:
    text = (
        "# ---\n# header\n# ---\n\n# %% [markdown]\n# # Title\n#\n# words\n\n# %%\nx = 2\nprint(x)\n\n# %%\n"
        f"from pathlib import Path\nPath({str(tmp_path)!r}, 'a.png').write_bytes(b'png')\nprint(x + 1)\n"
    )
    made = execute.executed(text, tmp_path)
    words, first, second = made["cells"]
    assert words == {"cell_type": "markdown", "id": "cell-0", "metadata": {}, "source": "# Title\n\nwords"}
    assert first["outputs"] == [{"output_type": "stream", "name": "stdout", "text": "2\n"}]
    assert [out["output_type"] for out in second["outputs"]] == ["stream", "display_data"]
    assert second["outputs"][1]["data"] == {"image/png": "cG5n"}
    assert (first["execution_count"], second["execution_count"]) == (1, 2)
    assert made["nbformat"] == 4


def test_the_executed_copy_is_of_this_script(execute: ModuleType) -> None:
    notebook = json.loads((FOLDER / "sharpness.ipynb").read_text(encoding="utf-8"))
    script = execute.cells((FOLDER / "sharpness.py").read_text(encoding="utf-8"))
    assert [(cell["cell_type"], cell["source"]) for cell in notebook["cells"]] == script, "run execute.py again"
    pictures = [
        out for cell in notebook["cells"] for out in cell.get("outputs", []) if "image/png" in out.get("data", {})
    ]
    assert len(pictures) == len(FIGURES)


@pytest.mark.slow
def test_the_notebook_runs_as_a_script(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", str(FOLDER / "sharpness.py")],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert {path.stem for path in (tmp_path / "sharpness-figures").glob("*.png")} == FIGURES
    same = next(line for line in done.stdout.split("\n") if line.startswith("adaptive-sam"))
    before, after = same.split()[1:]
    assert float(before) == pytest.approx(float(after), rel=1e-4)
