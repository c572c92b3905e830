"""`dissensus export CHECKPOINT|RUN --out model.safetensors`: the consensus model for anybody to load."""

from __future__ import annotations

import argparse
from pathlib import Path

from dissensus.experiments.cli.output import print_json
from dissensus.experiments.cli.parsing import Parser, UsageError

EXAMPLE = """\
For example:
  dissensus export runs/first/dsgd-s0-0a1b2c3d --out model.safetensors
  dissensus export checkpoints/step_000100 --out worker.safetensors --worker 3
and in Python, into the bare module:
  module.load_state_dict(safetensors.torch.load_file("model.safetensors"), strict=True)"""


def configure(parser: Parser) -> None:
    """The options of the verb."""
    parser.epilog = EXAMPLE
    parser.add_argument(
        "source", type=Path, metavar="CHECKPOINT|RUN", help="a run directory, a checkpoint, or a folder of checkpoints"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.safetensors", help="where the model goes")
    parser.add_argument(
        "--bn", choices=["average", "local"], help="buffers of the consensus: averaged (default), or worker 0's"
    )
    parser.add_argument("--worker", type=int, help="one worker's model with its own buffers, in place of the consensus")
    parser.add_argument("--again", action="store_true", help="train a run that kept no weights once more")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def run(args: argparse.Namespace) -> int:
    """Writes the file and says what is in it."""
    from dataclasses import asdict

    from dissensus.experiments.export import export

    if args.bn is not None and args.worker is not None:
        raise UsageError("export: --bn is for the consensus, and --worker has its own buffers: leave one of them out")
    done = export(args.source, args.out, bn=args.bn or "average", worker=args.worker, again=args.again)
    if args.json:
        print_json(asdict(done) | {"out": str(done.out), "source": str(done.source)})
        return 0
    left_out = f", without {', '.join(map(str, done.left_out))}" if done.left_out else ""
    whose = done.which if args.worker is not None else f"consensus of {done.workers} workers{left_out}"
    buffers = "" if done.bn == "none" else f"; buffers: {done.bn}"
    print(f"{whose} after {done.step} steps: {done.numbers} numbers in {done.tensors} tensors{buffers}")
    print(done.out)
    return 0
