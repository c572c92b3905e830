r"""An algorithm without an engine: every request answered by its definition, on any cut of the stacked block.

`Bare` cuts the workers into groups of rows (one process each) and the columns into buckets, runs one generator of the
algorithm for every piece, in lockstep, and answers a request once all pieces have made it. What an algorithm computes
must not depend on the cut. An engine that is `greedy` overwrites what an algorithm has handed on, as it may with one
that says `in_place`, and lets nobody look at a gradient. Gradients come from a formula whose numbers are a worker's
own,

$$ g_{ik}(t, a, x) = c_{ik}\sin(x_k) + \tfrac12 x_{k+1} + \xi_{tik} + a/5 $$

for the a-th gradient asked for in step t; the local move is plain SGD.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dissensus.algorithms.protocol import Algorithm, Await, Gradient, Mean, Mix, Norm, Note, Post, toward
from dissensus.algorithms.streams import stream
from dissensus.testing.laws.verdict import Broken, require
from dissensus.theory.topology import Topology


class Path(NamedTuple):
    """What a run leaves behind: all of it over steps 0 ... steps, workers in the first dimension."""

    raw: list[Tensor]
    deployed: list[Tensor]
    states: list[tuple[Tensor, ...]]


@dataclass
class Trace:
    """What the algorithm asked for over a run."""

    exchanges: list[int] = field(default_factory=list)
    """How many messages each step sent."""
    hops: list[int] = field(default_factory=list)
    """How many of them, one after the other: how far news can travel in a step."""
    gradients: list[int] = field(default_factory=list)
    means: int = 0
    norms: int = 0
    draws: int = 0
    plain: bool = True
    """Whether every move goes from a point along the very gradient that was taken at it."""
    touched: list[tuple[str, Tensor, Tensor]] = field(default_factory=list)
    """Everything the algorithm was given or has given away, and what it was at that moment."""

    def keep(self, what: str, value: Any) -> None:
        """Remembers a tensor as it is now."""
        if isinstance(value, Tensor):
            self.touched.append((what, value, value.clone()))


@dataclass(frozen=True, eq=False)
class Handed:
    """A gradient that may be handed on and not looked at."""

    value: Tensor


class _Local:
    """What the workers of one piece know and can do."""

    def __init__(self, bare: Bare, t: int, rows: Sequence[int], trace: Trace) -> None:
        self.t, self._bare, self._rows, self._trace = t, bare, rows, trace
        self.lr = self.rate = bare.lr
        self.decay = 0.0
        self.taken: list[tuple[Tensor, Tensor]] = []

    def generators(self, purpose: str) -> list[torch.Generator]:
        self._trace.draws += 1
        return [stream(self._bare.seed, purpose, self.t, i) for i in self._rows]

    def move(self, x: Tensor, g: Tensor | Handed) -> Tensor:
        if self._bare.greedy:
            moved = x - self.lr * (g.value if isinstance(g, Handed) else g)
            x.fill_(torch.nan)
            return moved
        assert isinstance(g, Tensor)
        self._trace.plain &= any(torch.equal(x, at) and torch.equal(g, found) for at, found in self.taken)
        self._trace.keep("the point it moves from", x)
        self._trace.keep("the direction it moves along", g)
        return x - self.lr * g


@dataclass
class Bare:
    """n workers, an algorithm, a schedule, and nothing else."""

    algorithm: Algorithm
    topology: Topology
    x0: Tensor
    lr: float = 0.1
    seed: int = 0
    slope: float = 1.0
    """Zero turns all gradients off."""
    greedy: bool = False
    """Whether what is handed on is overwritten."""

    def __post_init__(self) -> None:
        n, d = self.x0.shape
        g = torch.Generator().manual_seed(self.seed)
        self.coefficients = torch.rand(n, d, generator=g, dtype=torch.float64).to(self.x0.dtype) + 0.5
        self.noise = torch.randn(64, n, d, generator=g, dtype=torch.float64).to(self.x0.dtype)
        self.trace = Trace()

    def gradient(self, t: int, again: int, x: Tensor) -> Tensor:
        """The formula of the module."""
        coupled = self.coefficients * x.sin() + 0.5 * x.roll(-1, dims=1)
        return self.slope * (coupled + self.noise[t % len(self.noise)] + 0.2 * again)

    def mix(self, t: int, value: Tensor) -> Tensor:
        """Row by row: what worker i makes of what it hears."""
        w = self.topology[t]
        heard = [sum((weight * value[j] for j, weight in w.row(i)), torch.zeros_like(value[0])) for i in range(w.size)]
        return torch.stack(heard)

    def run(
        self, steps: int, rows: Sequence[Sequence[int]] | None = None, columns: Sequence[Sequence[int]] | None = None
    ) -> Path:
        """Runs all pieces (groups of workers x buckets of columns) in lockstep."""
        n, d = self.x0.shape
        pieces = [(list(r), list(c)) for r in rows or [range(n)] for c in columns or [range(d)]]
        whole = _Whole(pieces, n, d)
        x = whole.cut(self.x0)
        states = [self.algorithm.init(part) for part in x]
        path = Path([], [], [])
        for t in range(steps + 1):
            path.raw.append(whole.put(x))
            path.deployed.append(whole.put([self.algorithm.deployed(a, s) for a, s in zip(x, states, strict=True)]))
            path.states.append(tuple(whole.put(list(fields)) for fields in zip(*states, strict=True)))
            if t < steps:
                x, states = self._step(t, x, states, whole)
        return path

    def _step(self, t: int, x: list[Tensor], states: list[Any], whole: _Whole) -> tuple[list[Tensor], list[Any]]:
        trace = self.trace
        locals_ = [_Local(self, t, rows, trace) for rows, _ in whole.pieces]
        for part, state in zip(x, states, strict=True):
            trace.keep("x", part)
            for name, value in zip(getattr(state, "_fields", ()), state, strict=False):
                trace.keep(f"the state's {name}", value)
        running: list[Any] = [self.algorithm.step(*args) for args in zip(x, states, locals_, strict=True)]
        counts = {"messages": 0, "hops": 0, "gradients": 0}
        answers: list[Any] = [None] * len(running)
        open_posts = 0
        while True:
            asked, ended = [], []
            for generator, answer in zip(running, answers, strict=True):
                try:
                    asked.append(generator.send(answer))
                except StopIteration as end:
                    ended.append(end.value)
            if ended:
                require(not asked, f"step {t}: one piece of the workers ended its step while another asked for more")
                trace.exchanges.append(counts["messages"])
                trace.hops.append(counts["hops"])
                trace.gradients.append(counts["gradients"])
                return [e[0] for e in ended], [e[1] for e in ended]
            kinds = {type(a).__name__ for a in asked}
            require(len(kinds) == 1, f"step {t}: pieces of the workers asked for different things: {sorted(kinds)}")
            open_posts, answers = self._answer(t, asked, whole, counts, open_posts, locals_)

    def _answer(
        self, t: int, asked: list[Any], whole: _Whole, counts: dict[str, int], posts: int, locals_: list[_Local]
    ) -> tuple[int, list[Any]]:
        first, trace = asked[0], self.trace
        if isinstance(first, Note):
            return posts, [None] * len(asked)
        if isinstance(first, Await):
            counts["hops"] += posts > 0  # messages that were posted together travel together
            answer = [toward(a.ticket[0], a.ticket[1], a.share) for a in asked]
            if self.greedy:
                for a in asked:
                    a.ticket[0].fill_(torch.nan)
            for part in answer:
                trace.keep("the answer to Await", part)
            return 0, answer
        parts = [a.at if isinstance(a, Gradient) else a.value for a in asked]
        gradients = any(isinstance(part, Handed) for part in parts)
        parts = [part.value if isinstance(part, Handed) else part for part in parts]
        for part in parts:
            trace.keep(f"what it gave to {type(first).__name__}", part)
        value = whole.put(parts)
        if isinstance(first, Gradient):
            answer = whole.cut(self.gradient(t, counts["gradients"], value))
            counts["gradients"] += 1
            for local, at, found in zip(locals_, parts, answer, strict=True):
                local.taken.append((at.clone(), found.clone()))
        elif isinstance(first, Mix | Post):
            counts["messages"] += 1
            counts["hops"] += isinstance(first, Mix)
            mixed = whole.cut(self.mix(t, value))
            if isinstance(first, Post):
                return posts + 1, list(zip(parts, mixed, strict=True))
            answer = [toward(own, new, a.share) for own, new, a in zip(parts, mixed, asked, strict=True)]
        elif isinstance(first, Mean):
            trace.means += 1
            answer = whole.cut(value.mean(dim=0, keepdim=True).expand_as(value).clone())
        elif isinstance(first, Norm):
            trace.norms += 1
            answer = whole.cut(torch.linalg.vector_norm(value, dim=1, keepdim=True))
        else:
            raise Broken(f"step {t}: it asked for {type(first).__name__}, which is no request of the protocol")
        for part in answer:
            trace.keep(f"the answer to {type(first).__name__}", part)
        if self.greedy and isinstance(first, Mix | Mean):
            for part in parts:
                part.fill_(torch.nan)
        if self.greedy and (gradients or isinstance(first, Gradient)):
            answer = [Handed(part) for part in answer]
        return posts, answer


class _Whole:
    """Cuts a tensor with one row per worker into pieces, and puts pieces together again."""

    def __init__(self, pieces: list[tuple[list[int], list[int]]], n: int, d: int) -> None:
        self.pieces, self.n, self.d = pieces, n, d

    def cut(self, value: Tensor) -> list[Tensor]:
        """A tensor as wide as the model is cut both ways; any other (a scalar per worker) by workers only."""
        wide = value.ndim > 1 and value.shape[1] == self.d
        return [value[rows][:, columns].clone() if wide else value[rows].clone() for rows, columns in self.pieces]

    def put(self, parts: list[Tensor]) -> Tensor:
        """The whole tensor of which these are the pieces."""
        wide = parts[0].ndim > 1 and parts[0].shape[1] == len(self.pieces[0][1])
        for part, (rows, columns) in zip(parts, self.pieces, strict=True):
            require(
                isinstance(part, Tensor) and part.ndim > 0 and len(part) == len(rows),
                f"a tensor with one row per worker, {len(rows)} rows, was expected, got "
                f"{tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__}",
            )
            del columns
        width = (self.d,) if wide else tuple(parts[0].shape[1:])
        value = torch.empty(self.n, *width, dtype=parts[0].dtype)
        for part, (rows, columns) in zip(parts, self.pieces, strict=True):
            if wide:
                value[np.ix_(rows, columns)] = part.detach()
            else:
                value[rows] = part.detach()
        return value
