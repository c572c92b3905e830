"""`dissensus plan --calibrate FILE.json`: measures these machines, as one of the processes or by starting them."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from dissensus.experiments.cli.output import print_json, print_table
from dissensus.experiments.cli.parsing import UsageError
from dissensus.experiments.cli.together import as_one_of_them, check_not_started, start

if TYPE_CHECKING:
    from dissensus.experiments.planning.calibration import Calibration


def calibrate(args: argparse.Namespace) -> int:
    """Starts the processes, or is one of them."""
    from dissensus.experiments.cli.plan import parameters_of
    from dissensus.experiments.processes import check_backend, count

    there = count()
    parameters_of(args.parameters)
    if args.nproc is not None and args.nproc < 2:
        raise UsageError(f"plan: links are between processes: --nproc must be at least 2, got {args.nproc}")
    check_not_started("plan", args.nproc)
    if (there or args.nproc or 1) < 2:
        raise UsageError("plan: links are between processes: start them by torchrun, or here with --nproc N")
    if not args.calibrate.parent.is_dir():
        raise UsageError(f"plan: {args.calibrate} cannot be written: {args.calibrate.parent} is no folder")
    if args.backend is not None:
        check_backend(args.backend)
    if there is not None:
        return as_one_of_them("plan", lambda: _measure(args))
    return start("plan", args.given, args.nproc or 2)


def _measure(args: argparse.Namespace) -> int:
    from dissensus.experiments.cli.plan import parameters_of
    from dissensus.experiments.planning.measuring import measure
    from dissensus.experiments.processes import joined

    with joined(args.backend) as processes:
        say = (lambda text: print(text, file=sys.stderr)) if processes.first else None
        found = measure(processes, parameters=parameters_of(args.parameters), progress=say)
        if processes.first:
            found.to_file(args.calibrate)
            _show(found, args)
    return 0


def _show(found: Calibration, args: argparse.Namespace) -> None:
    if args.json:
        print_json({"file": str(args.calibrate), **asdict(found)})
        return
    print_table(
        f"{found.workers} processes, {found.backend}",
        ["message", "latency, ms", "Gbit/s", "worst residual"],
        [
            [fit.kind, round(1e3 * fit.latency_seconds, 4), 8e-9 * fit.bandwidth, f"{fit.worst_residual:.0%}"]
            for fit in found.fits
        ],
    )
    print(f"a step computes {1e3 * found.mean_seconds:.4g} ms ({found.compute.name})")
    for note in found.notes:
        print(note)
    print(f"written: {args.calibrate}; plan with it: dissensus plan MODEL --cluster {args.calibrate}")
