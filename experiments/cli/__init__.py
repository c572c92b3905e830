"""The command line: `dissensus VERB ...`, one file a verb, loaded only when it is called.

Exit codes: 0 done, 1 a check failed, 2 wrong use or bad input (one sentence on standard error), 130 Ctrl-C. With
`--json` a verb prints one JSON object on standard output and nothing else there.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from dissensus.experiments.cli.parsing import Parser, UsageError

VERBS: dict[str, str] = {
    "demo": "train, probe and report: the whole thread on real data in under two minutes",
    "simulate": "train n workers in this process: a configuration file, or exact quadratics (--problem)",
    "train": "the same run on many processes: under torchrun, or started here with --nproc",
    "plan": "when decentralization pays: schedules ranked on a cluster, machines measured, workers placed",
    "topology": "who mixes with whom: validity, spectrum, contraction, traffic",
    "theory": "what theory says: stationary disagreement, exponents, bounds, certificates, the ledger of tightness",
    "probe": "curvature and disagreement of a finished run, a file of weights, or a model",
    "export": "the consensus model of a run or checkpoint as plain safetensors, for anybody to load",
    "study": "arms x seeds from a configuration file, with paired statistics",
    "diff": "what differs between two configurations, two studies or two runs, key by key",
    "report": "rebuild the report of a finished run directory",
    "verify": "claims of the literature, put to the test: verdicts with effect, interval, seeds",
    "bench": "speed, as ratios against a peer or a physical limit in the same run",
}
"""Every verb and its line of help, so that `--help` need not load any of them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()  # a full disk or a reader that went away is told here, not at the end of Python
    except UsageError as error:
        print(f"dissensus: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("dissensus: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        _give_up_output()
        return 0
    except OSError as error:
        _give_up_output()
        at = f"{error.filename}: " if error.filename is not None else ""
        print(
            f"dissensus: {' '.join(arguments[:1])}: cannot read or write: {at}{error.strerror or error}",
            file=sys.stderr,
        )
        return 2


def _give_up_output() -> None:
    """Where standard output cannot be written, what is still in its buffer goes nowhere."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if arguments[0] == "--version":
        from importlib.metadata import version

        print(f"dissensus {version('dissensus')}")
        return 0
    from dissensus.theory.errors import DissensusError, nearest

    verb, rest = arguments[0], arguments[1:]
    if verb not in VERBS:
        raise UsageError(f"unknown verb {verb!r}{nearest(verb, VERBS)}")
    module = importlib.import_module(f"dissensus.experiments.cli.{verb}")
    summary, parts = VERBS[verb], getattr(module, "PARTS", None)
    if parts is not None:
        if not rest or rest[0] in ("-h", "--help"):
            print(_parts(verb, parts))
            return 0
        part, rest = rest[0], rest[1:]
        if part not in parts:
            raise UsageError(f"{verb}: unknown part {part!r}{nearest(part, parts)}")
        module, summary, verb = importlib.import_module(f"{module.__name__}.{part}"), parts[part], f"{verb} {part}"
    parser = Parser(prog=f"dissensus {verb}", description=f"{summary[0].upper()}{summary[1:]}.")
    module.configure(parser)
    try:
        return module.run(parser.read(rest))
    except DissensusError as error:
        raise UsageError(f"{verb}: {error}") from None


def _parts(verb: str, parts: dict[str, str]) -> str:
    width = max(map(len, parts))
    lines = [f"usage: dissensus {verb} PART [options]", "", f"{VERBS[verb][0].upper()}{VERBS[verb][1:]}.", ""]
    lines += [f"  {part:<{width}}  {summary}" for part, summary in parts.items()]
    return "\n".join([*lines, "", f"`dissensus {verb} PART --help` tells the rest."])


def _overview() -> str:
    width = max(map(len, VERBS))
    lines = [
        "usage: dissensus VERB [options]",
        "",
        "What happens when the workers that train one model may disagree.",
        "",
    ]
    lines += [f"  {verb:<{width}}  {summary}" for verb, summary in VERBS.items()]
    lines += [
        "",
        "`dissensus VERB --help` tells the rest. Exit codes: 0 done, 1 check failed, 2 wrong use, 130 Ctrl-C.",
    ]
    return "\n".join(lines)
