"""A verb that runs in many processes: this one starts the others, or is one of them."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Sequence

from dissensus.experiments.cli.parsing import Parser, UsageError


def configure_processes(parser: Parser) -> argparse._ArgumentGroup:
    """The options of a verb whose workers are shared by processes."""
    group = parser.add_argument_group("the processes", "Each has equally many workers, with neighbouring numbers.")
    group.add_argument("--nproc", type=int, metavar="N", help="start N processes here; torchrun starts them itself")
    group.add_argument("--backend", choices=["gloo", "nccl"], help="default nccl where there are CUDA devices")
    group.add_argument(
        "--timeout", type=float, default=300.0, metavar="S", help="a message that takes longer has failed (default 300)"
    )
    return group


def check_processes(args: argparse.Namespace) -> None:
    """Refuses what cannot be, before any process is started."""
    from dissensus.experiments.processes import check_backend

    if args.nproc is not None and args.nproc < 1:
        raise UsageError(f"{args.verb}: --nproc is a number of processes, at least 1, got {args.nproc}")
    check_not_started(args.verb, args.nproc)
    if not args.timeout > 0:
        raise UsageError(f"{args.verb}: --timeout is a number of seconds above 0, got {args.timeout:g}")
    if args.backend is not None:
        check_backend(args.backend)


def check_shares(verb: str, what: str, workers: int, processes: int, *, given: bool = False) -> None:
    """Refuses a number of workers that cannot be shared evenly, with what works; `given` workers cannot be changed."""
    if workers % processes == 0:
        return
    fitting = [str(n) for n in range(1, workers + 1) if workers % n == 0]
    more = "" if given else f", or {-(-workers // processes) * processes} workers"
    raise UsageError(
        f"{verb}: {what} cannot be shared evenly by {processes} processes: start {', '.join(fitting)} of them{more}"
    )


def as_one_of_them(verb: str, act: Callable[[], int]) -> int:
    """Acts as one of several processes, which ends at once where something fails, so that the others notice."""
    from dissensus.experiments.errors import ConfigError
    from dissensus.experiments.processes import end
    from dissensus.theory.errors import DissensusError

    try:
        return act()
    except KeyboardInterrupt:
        print("dissensus: interrupted", file=sys.stderr)
        end(130)
    except (DissensusError, UsageError) as error:
        print(f"dissensus: {verb}: {error}", file=sys.stderr)
        end(2 if isinstance(error, UsageError | ConfigError) else 1)
    except Exception:
        traceback.print_exc()
        end(1)


def check_not_started(verb: str, nproc: int | None) -> None:
    """Refuses to start processes where somebody else has done so."""
    from dissensus.experiments.processes import count, launched

    if nproc is not None and count() is not None and not launched():
        raise UsageError(f"{verb}: {count()} processes were started already (by torchrun?): leave --nproc out")


def start(verb: str, given: Sequence[str], nproc: int) -> int:
    """Starts so many processes of the same command line, and returns how they end."""
    from dissensus.experiments.launcher import launch

    ending = launch([sys.executable, "-m", "dissensus", verb, *given], nproc)
    if ending.said:
        print(f"dissensus: {verb}: {ending.said}", file=sys.stderr)
    return ending.code
