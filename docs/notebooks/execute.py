"""Turns a notebook in percent format into an executed .ipynb: `python execute.py sharpness.py` beside the script.

Cells run one after another in one namespace, as the script would; what they print, and the figures they write into
`sharpness-figures` (or another folder, `FIGURES` in the script), become their outputs. Needs nothing but the script's
own imports; where jupytext and nbclient are at hand, `jupytext --to ipynb --execute` does the same.
"""

import base64
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from pathlib import Path


def cells(text: str) -> list[tuple[str, str]]:
    """The (kind, source) of every cell; the header is left out."""
    found = []
    for part in re.split(r"(?m)^# %%", text)[1:]:
        head, _, body = part.partition("\n")
        kind = "markdown" if "[markdown]" in head else "code"
        body = body.strip("\n")
        if kind == "markdown":
            body = "\n".join(re.sub(r"^# ?", "", line) for line in body.split("\n"))
        found.append((kind, body))
    return found


def executed(text: str, figures: Path) -> dict:
    """The notebook as nbformat 4.5 says, with outputs; a failing cell ends it with its own error."""
    space: dict = {"__name__": "__main__"}
    made, count, before = [], 0, set()
    for at, (kind, source) in enumerate(cells(text)):
        cell = {"cell_type": kind, "id": f"cell-{at}", "metadata": {}, "source": source}
        if kind == "code":
            count += 1
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(source, f"cell {count}", "exec"), space)  # noqa: S102
            new = sorted(set(figures.glob("*.png")) - before, key=lambda path: path.stat().st_mtime)
            before.update(new)
            shown = "\n".join(line for line in out.getvalue().split("\n") if line not in map(str, new))
            outputs = [{"output_type": "stream", "name": "stdout", "text": shown}] if shown.strip() else []
            for path in new:
                picture = {"image/png": base64.b64encode(path.read_bytes()).decode()}
                outputs.append({"output_type": "display_data", "data": picture, "metadata": {}})
            cell |= {"execution_count": count, "outputs": outputs}
        made.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def main(name: str) -> None:
    """Executes the script in an empty folder and writes the notebook beside it."""
    script = Path(name).resolve()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        notebook = executed(script.read_text(encoding="utf-8"), Path(f"{script.stem}-figures"))
        os.chdir(script.parent)
    target = script.with_suffix(".ipynb")
    target.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(target)


if __name__ == "__main__":
    main(sys.argv[1])
