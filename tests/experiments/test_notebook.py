"""The notebook runs as a script, its figures are there, and the executed copy is of this very script."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from dissensus.experiments.threads import threads

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
KINDS = {"largest-eigenvalue", "trace", "sam", "average", "adaptive-sam", "adaptive-average"}
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
    assert (FOLDER / "sharpness.ipynb").stat().st_size < 400_000


def test_a_small_setting_of_it_runs_and_draws(
    execute: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (FOLDER / "sharpness.py").read_text(encoding="utf-8")
    usual = next(line for line in text.split("\n") if line.startswith("STEPS, SAMPLES, POINTS = "))
    monkeypatch.chdir(tmp_path)
    with threads(1):
        made = execute.executed(text.replace(usual, "STEPS, SAMPLES, POINTS = 18, 48, 5"), Path("sharpness-figures"))
    assert {path.stem for path in Path("sharpness-figures").glob("*.png")} == FIGURES
    outputs = [out for cell in made["cells"] for out in cell.get("outputs", [])]
    assert sum(out["output_type"] == "display_data" for out in outputs) == len(FIGURES)
    check_invariance("".join(out.get("text", "") for out in outputs))


def check_invariance(printed: str) -> None:
    """The adaptive measures are the same for a network that was rescaled, the plain ones are not."""
    rows = [line.split() for line in printed.split("\n")]
    pairs = {row[0]: (float(row[1]), float(row[2])) for row in rows if len(row) == 3 and row[0] in KINDS}
    assert set(pairs) == KINDS
    for kind, (before, after) in pairs.items():
        if kind.startswith("adaptive"):
            assert before == pytest.approx(after, rel=1e-4)
        else:
            assert after > 2 * before


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
    check_invariance(done.stdout)
