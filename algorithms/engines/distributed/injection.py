r"""Failures on purpose: a plan of who dies, hangs, dawdles or computes nonsense, and when.

    injection = Injection.of("kill 1 at 5; stop 2 at 7; sleep 3 lognormal 0.3 of 50ms; nan 0 at 9")
    for t in range(steps):
        loss.backward()
        injection(worker, t, model)     # between backward and step
        opt.step()

| a part of a plan | what happens to the worker, at that step |
|---|---|
| `kill 1 at 5` | it is killed (SIGKILL): nothing is put in order |
| `kill 1 at 5 after 20ms` | the same so much later, in whatever it is doing then: in the middle of a message |
| `stop 1 at 5` | it is stopped (SIGSTOP): alive for its kernel, silent for everybody |
| `hang 1 at 5` | its loop stands still, its other threads do not |
| `leave 1 at 5` | its process ends as if all were well |
| `skip 1 at 5` | the answer is True: the loop is to leave this step out |
| `nan 1 at 5` | its gradients are not numbers |
| `sleep 1 50ms`, `sleep 1 50ms at 5` | it sleeps, at every step or at that one |
| `sleep 1 exponential of 50ms` | it sleeps at every step, 50 ms on average |
| `sleep 1 lognormal 0.3 of 50ms` | the same, with $e^{\sigma Z - \sigma^2/2}$ times 50 ms, $\sigma$ = 0.3 |

`all` stands for every worker. Parts are separated by `;`. How long somebody sleeps is a function of seed, worker, step
and place in the plan. Without a plan, `DISSENSUS_INJECT` is one; without either nothing happens.
"""

from __future__ import annotations

import math
import os
import re
import signal
import threading
import time
from dataclasses import dataclass

from torch import nn

from dissensus.algorithms.errors import AlgorithmError
from dissensus.algorithms.streams import numpy_stream
from dissensus.theory.errors import nearest

VARIABLE = "DISSENSUS_INJECT"
ACTIONS = ("kill", "stop", "hang", "leave", "skip", "nan", "sleep")
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
FOREVER = 3600.0
_TIME = r"(?P<{}>\d+(?:\.\d+)?)(?P<{}_unit>us|ms|s)"
_EVENT = re.compile(rf"(?P<step>\d+)(?: after {_TIME.format('later', 'later')})?")
_LAW = r"(?:(?P<law>exponential|lognormal (?P<sigma>\d+(?:\.\d+)?)) of )?"
_SLEEP = re.compile(rf"{_LAW}{_TIME.format('mean', 'mean')}(?: at (?P<step>\d+))?")


@dataclass(frozen=True)
class Part:
    """One thing that happens."""

    action: str
    worker: int | None
    """Whose; None for everybody."""
    step: int | None = None
    """When; None for every step."""
    seconds: float = 0.0
    """How long it sleeps on average, or how much later it is killed."""
    law: str = ""
    sigma: float = 0.0


@dataclass(frozen=True)
class Injection:
    """A plan of failures."""

    parts: tuple[Part, ...] = ()
    seed: int = 0

    @classmethod
    def of(cls, plan: str | None = None, *, seed: int = 0) -> Injection:
        """Reads a plan, or the one in the environment."""
        text = os.environ.get(VARIABLE, "") if plan is None else plan
        return cls(tuple(_read(part.strip()) for part in text.split(";") if part.strip()), seed)

    def __call__(self, worker: int, step: int, model: nn.Module | None = None) -> bool:
        """Does what is planned for a worker at a step; returns whether its loop is to skip the step."""
        skips = False
        for place, part in enumerate(self.parts):
            if part.worker not in (None, worker) or part.step not in (None, step):
                continue
            if part.action == "sleep":
                time.sleep(self.slept(place, worker, step))
            elif part.action == "skip":
                skips = True
            elif part.action == "nan":
                _spoil(model)
            else:
                _end(part)
        return skips

    def slept(self, place: int, worker: int, step: int) -> float:
        """For how many seconds a worker sleeps at a step, by the part of the plan at that place."""
        part = self.parts[place]
        if not part.law:
            return part.seconds
        drawn = numpy_stream(self.seed, "injection", place, worker, step)
        if part.law == "exponential":
            return part.seconds * float(drawn.exponential())
        return part.seconds * math.exp(part.sigma * float(drawn.standard_normal()) - part.sigma**2 / 2)


def _end(part: Part) -> None:
    if part.action == "kill" and part.seconds:
        threading.Timer(part.seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
    elif part.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif part.action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif part.action == "hang":
        time.sleep(FOREVER)
    else:
        os._exit(0)


def _spoil(model: nn.Module | None) -> None:
    if model is None:
        raise AlgorithmError("the plan spoils gradients, but it was given no model: injection(worker, step, model)")
    for p in model.parameters():
        if p.grad is not None:
            p.grad.fill_(math.nan)


def _read(text: str) -> Part:
    action, _, rest = text.partition(" ")
    if action not in ACTIONS:
        raise AlgorithmError(f"injection {text!r}: nothing is called {action!r}{nearest(action, ACTIONS)}")
    who, _, rest = rest.strip().partition(" ")
    if who != "all" and not who.isdigit():
        raise AlgorithmError(f"injection {text!r}: a worker is a whole number, or 'all', got {who!r}")
    worker = None if who == "all" else int(who)
    if action == "sleep":
        found = _SLEEP.fullmatch(rest)
        if found is None:
            raise AlgorithmError(f"injection {text!r}: expected 'sleep {who} 50ms', or '… lognormal 0.3 of 50ms'")
        step = None if found["step"] is None else int(found["step"])
        law = "" if found["law"] is None else found["law"].split()[0]
        seconds = float(found["mean"]) * UNITS[found["mean_unit"]]
        return Part(action, worker, step, seconds, law, float(found["sigma"] or 0.0))
    found = _EVENT.fullmatch(rest.removeprefix("at ")) if rest.startswith("at ") else None
    if found is None or (found["later"] and action != "kill"):
        raise AlgorithmError(f"injection {text!r}: expected '{action} {who} at 5'")
    later = float(found["later"]) * UNITS[found["later_unit"]] if found["later"] else 0.0
    return Part(action, worker, int(found["step"]), later)
