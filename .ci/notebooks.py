"""Executes the notebooks from their scripts, two at a time, each in a kernel and a folder of its own.

`python .ci/notebooks.py` fails if a cell fails or a notebook takes longer than two minutes, and says how long each
took; `--refresh` also writes the .ipynb files beside the scripts, whole; names choose some of them.
"""

import argparse
import os
import re
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
SECONDS = 120
AT_ONCE = 2
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def executed(script: Path) -> tuple[nbformat.NotebookNode, float]:
    """The notebook of a script with its outputs, and the seconds that took."""
    notebook = jupytext.read(script)
    with tempfile.TemporaryDirectory() as scratch:
        began = time.perf_counter()
        quiet = ["--log-level=ERROR"]
        where = {"metadata": {"path": scratch}}
        NotebookClient(notebook, timeout=2 * SECONDS, resources=where, extra_arguments=quiet).execute()
        took = time.perf_counter() - began
    for at, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{at}", nbformat.NotebookNode()
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = nbformat.from_dict({"kernelspec": kernel, "language_info": {"name": "python"}})
    return notebook, took


def run(script: Path, refresh: bool) -> str:
    """Executes one script, and returns what is wrong with it, or nothing."""
    try:
        notebook, took = executed(script)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        return COLOUR.sub("", f"{script.name}: a cell failed\n{error}")
    print(f"{script.name}: {took:.0f} s", flush=True)
    if refresh:
        target = script.with_suffix(".ipynb")
        beside = target.with_suffix(".part")
        nbformat.write(notebook, beside)
        beside.replace(target)
    return f"{script.name}: {took:.0f} s, and {SECONDS} are allowed" if took > SECONDS else ""


def main() -> int:
    """Executes all, or those that are named."""
    parser = argparse.ArgumentParser(description="execute the notebooks in docs/notebooks")
    parser.add_argument("names", nargs="*", help="such as first-hour; all unless given")
    parser.add_argument("--refresh", action="store_true", help="write the .ipynb files")
    args = parser.parse_args()
    scripts = [FOLDER / f"{name}.py" for name in args.names] or sorted(FOLDER.glob("*.py"))
    missing = [script.name for script in scripts if not script.exists()]
    if missing or not scripts:
        print(f"there is no {' and no '.join(missing) or 'notebook'} in {FOLDER}", file=sys.stderr)
        return 2
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore::DeprecationWarning"}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        wrong = list(filter(None, pool.map(lambda script: run(script, args.refresh), scripts)))
    for what in wrong:
        print(what, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
