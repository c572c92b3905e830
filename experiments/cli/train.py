"""`dissensus train CONFIG.toml ...`: the run of `simulate` on many processes, under torchrun or with `--nproc N`.

Under torchrun every process calls this with the same arguments. With `--nproc` this process starts the others, waits
for them and ends as they do. With neither, one process has all workers.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from dissensus.experiments.cli import problem
from dissensus.experiments.cli.parsing import Parser, UsageError
from dissensus.experiments.cli.running import cell_of, configure_cell, train_cell
from dissensus.experiments.cli.together import as_one_of_them, check_processes, check_shares, configure_processes, start


def configure(parser: Parser) -> None:
    """The options of the verb."""
    parser.epilog = (
        "Every option of `simulate` means here what it means there. For example:\n"
        "  dissensus train study.toml --arm dsgd --train.workers 8 --nproc 4\n"
        "  torchrun --nproc-per-node 4 -m dissensus train study.toml --arm dsgd --train.workers 8\n"
        f"{problem.EXAMPLE.format(verb='train').replace('--json', '--nproc 2 --json')}"
    )
    configure_cell(parser)
    group = configure_processes(parser)
    group.add_argument("--trace", type=Path, metavar="FILE.json", help="gets the timeline of all processes; costs time")


def run(args: argparse.Namespace) -> int:
    """Starts the processes, or is one of them."""
    from dissensus.experiments.processes import count

    there = count()
    check_processes(args)
    if args.trace is not None and not args.trace.parent.is_dir():
        raise UsageError(f"train: --trace {args.trace} cannot be written: {args.trace.parent} is no folder")
    if args.problem is None:
        problem.refuse_without_problem(args)
    _check_workers(args, there or args.nproc or 1)
    if there is not None:
        return as_one_of_them("train", lambda: _train(args))
    return start("train", args.given, args.nproc or 1) if (args.nproc or 1) > 1 else _train(args)


def _train(args: argparse.Namespace) -> int:
    """Joins the others, trains with them, and leaves them."""
    from dissensus.experiments.processes import joined
    from dissensus.experiments.runner import run_cell
    from dissensus.experiments.timing import write_traces

    with joined(args.backend, timeout=args.timeout, traced=args.trace is not None) as processes:
        if args.problem is not None:
            code = problem.run(args, processes)
            if code == 0:
                write_traces(processes, args.trace)
        elif processes.first:
            code = train_cell(args, cell_of(args), processes=processes, trace=args.trace)
        else:
            code = 0
            out = args.out or Path("runs")
            run_cell(cell_of(args), out, processes=processes, resume=args.resume, trace=args.trace)
        processes.leave(code)
    return code


def _check_workers(args: argparse.Namespace, processes: int) -> None:
    """Reads everything there is to be wrong, and refuses a number of workers that cannot be shared evenly."""
    if args.problem is not None:
        workers = problem.planned(args).problem.size
        what = f"the {workers} workers of --problem {args.problem}"
    else:
        workers = cell_of(args).train.workers
        what = f"train.workers = {workers}"
    check_shares("train", what, workers, processes, given=args.problem is not None)
