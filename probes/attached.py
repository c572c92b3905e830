r"""Instruments attached to a training run: look when it is due, leave no trace, keep within a share of the time.

An `Attached` holds named looks, functions of a module at rest (`lambda model: hessian_trace(Curvature(model, ...))`),
and a schedule. After every step it is shown the engine; when a look is due it enters the consensus view, or a single
worker's, and hands what was found, with its cost in seconds, to `record`. With `share=0.15` a look waits for its next
turn if it would take probing above 15 % of the time since the start, at the cost it had last; what was left out is
recorded as left out. A look that fails does not end the training: its sentence is recorded in place of a value.

Any layout will do that has `t` and `consensus()`, and `worker(i)` where single workers are asked for. On many ranks
every rank attaches the same looks, at the same steps, to its share of the data (see `AcrossRanks`), and enters `after`
at every step; all then record the same numbers, so it is enough that one of them writes. A share of time is decided by
the group's first rank for all, or ranks would part: some waiting in a product that others never come to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, cast

from torch import nn

from dissensus.probes.errors import ProbeError
from dissensus.probes.schedule import Schedule, Share

Look = Callable[[nn.Module], Any]
"""What returns an Estimate or an Eigenpair, a number, or several of them by name."""
Line = dict[str, Any]


class Watched(Protocol):
    """What training has to show: the step it stands before, and modules to look at."""

    @property
    def t(self) -> int:
        """How many steps were done."""
        ...

    def consensus(self) -> AbstractContextManager[nn.Module]:
        """The average of the workers, in place for as long as one looks."""
        ...


class Attached:
    """Looks that are due by a schedule, at the consensus model and at chosen workers."""

    def __init__(
        self,
        looks: Mapping[str, Look],
        when: Schedule,
        *,
        record: Callable[[Line], Any],
        workers: Iterable[int] = (),
        share: float | None = None,
        group: Any = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._looks, self._when, self._record = dict(looks), when, record
        self._which: list[int | None] = [None, *workers]
        self._share, self._clock = Share(share, group=group, clock=clock), clock

    @property
    def seconds(self) -> float:
        """The time spent on looking so far."""
        return self._share.seconds

    def after(self, engine: Watched, *, final: bool = False) -> list[Line]:
        """Looks if it is due, or at any rate where `final`; returns the lines that were recorded."""
        if self._which != [None]:
            _single(engine)
        if not (final or self._when.due(engine.t)):
            return []
        lines = []
        for which in self._which:
            due = [name for name in self._looks if final or self._share.allows((name, which))]
            lines += [self._left_out(name, which, engine.t) for name in self._looks if name not in due]
            if not due:
                continue
            entered = self._clock()
            with engine.consensus() if which is None else _single(engine)(which) as module:
                overhead = (self._clock() - entered) / len(due)
                for name in due:
                    lines += self._look(name, which, module, engine.t, overhead)
        for line in lines:
            self._record(line)
        return lines

    def _look(self, name: str, which: int | None, module: nn.Module, t: int, overhead: float) -> list[Line]:
        began, error = self._clock(), None
        found: Any = {}
        try:
            found = self._looks[name](module)
        except ProbeError as failure:
            error = str(failure)
        took = self._clock() - began + overhead
        self._share.spent((name, which), took)
        about = {"step": t, "which": _name(which), "seconds": round(took, 6)}
        if error is not None:
            return [{**about, "name": name, "value": None, "error": error}]
        several = found if isinstance(found, Mapping) else {name: found}
        return [{**about, **_plain(value), "name": key} for key, value in several.items()]

    def _left_out(self, name: str, which: int | None, t: int) -> Line:
        return {"step": t, "which": _name(which), "name": name, "value": None, "left_out": "no time left in its share"}


def _single(engine: Watched) -> Callable[[int], AbstractContextManager[nn.Module]]:
    """The engine's view of one worker, or an error that says where there is one."""
    view = getattr(engine, "worker", None)
    if not callable(view):
        what = type(engine).__name__
        raise ProbeError(f"{what} has no view of a single worker: leave workers out, or train in the stacked engine")
    return cast(Callable[[int], AbstractContextManager[nn.Module]], view)


def _name(which: int | None) -> str:
    return "consensus" if which is None else f"worker {which}"


def _plain(value: Any) -> Line:
    return value.to_dict() if hasattr(value, "to_dict") else {"value": float(value)}
