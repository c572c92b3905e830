"""A verb that runs in many processes: this one starts the others, or is one of them."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence

from dissensus.experiments.cli.parsing import UsageError


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
