"""Runs code blocks and command lines of pages, each in a process of its own that begins with everything imported.

A request is a line of JSON on standard input, `{"folder": ..., "code": ...}` or `{"folder": ..., "arguments": [...]}`;
the answer a line on standard output: the exit code, and what was said on standard error and standard output. A process
is forked for each request, so nothing that a block registers, draws or switches on reaches the next one, and none pays
for an import.
"""

import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path

ROOMS = ("theory", "algorithms", "probes", "experiments", "testing")
OURS = ("dissensus.experiments.cell", "dissensus.experiments.planning.ranking", "dissensus.theory.certificates")
ALSO = ("cvxpy", "matplotlib.figure", "pandas", "scipy.optimize", "sklearn.datasets", "torch._dynamo", "torch.func")
SECONDS = 240


def answer(request: dict) -> tuple[int, str, str]:
    """Forks, waits, and tells how it ended."""
    said, printed = (Path(request["folder"], name) for name in ("stderr", "stdout"))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = _inside(request, said, printed)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, said.read_text(), printed.read_text()


def _inside(request: dict, said: Path, printed: Path) -> int:
    signal.alarm(SECONDS)
    for stream, path in ((0, "/dev/null"), (1, str(printed)), (2, str(said))):
        os.dup2(os.open(path, os.O_RDONLY if stream == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    os.chdir(request["folder"])
    try:
        if "arguments" in request:
            from dissensus.experiments.cli import main

            return main(request["arguments"])
        exec(compile(request["code"], "block", "exec"), {"__name__": "__main__"})
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    """Imports, then serves until standard input ends."""
    for name in (*(f"dissensus.{room}" for room in ROOMS), *OURS, *ALSO):
        importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
