"""`dissensus plan --calibrate FILE.json`: measures these machines, as one of the processes or by starting them."""

from __future__ import annotations

import argparse
import sys
import traceback
from dataclasses import asdict
from typing import TYPE_CHECKING

from dissensus.experiments.cli.output import print_json, print_table
from dissensus.experiments.cli.parsing import UsageError

if TYPE_CHECKING:
    from dissensus.experiments.planning.calibration import Calibration


def calibrate(args: argparse.Namespace) -> int:
    """Starts the processes, or is one of them."""
    from dissensus.experiments.cli.plan import parameters_of
    from dissensus.experiments.processes import check_backend, count, launched

    there = count()
    parameters_of(args.parameters)
    if args.nproc is not None and args.nproc < 2:
        raise UsageError(f"plan: links are between processes: --nproc must be at least 2, got {args.nproc}")
    if args.nproc is not None and there is not None and not launched():
        raise UsageError(f"plan: {there} processes were started already (by torchrun?): leave --nproc out")
    if (there or args.nproc or 1) < 2:
        raise UsageError("plan: links are between processes: start them by torchrun, or here with --nproc N")
    if not args.calibrate.parent.is_dir():
        raise UsageError(f"plan: {args.calibrate} cannot be written: {args.calibrate.parent} is no folder")
    if args.backend is not None:
        check_backend(args.backend)
    if there is not None:
        return _one_of_them(args)
    from dissensus.experiments.launcher import launch

    ending = launch([sys.executable, "-m", "dissensus", "plan", *args.given], args.nproc)
    if ending.said:
        print(f"dissensus: plan: {ending.said}", file=sys.stderr)
    return ending.code


def _one_of_them(args: argparse.Namespace) -> int:
    from dissensus.experiments.errors import ConfigError
    from dissensus.experiments.processes import end
    from dissensus.theory.errors import DissensusError

    try:
        return _measure(args)
    except KeyboardInterrupt:
        print("dissensus: interrupted", file=sys.stderr)
        end(130)
    except (DissensusError, UsageError) as error:
        print(f"dissensus: plan: {error}", file=sys.stderr)
        end(2 if isinstance(error, UsageError | ConfigError) else 1)
    except Exception:
        traceback.print_exc()
        end(1)


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
