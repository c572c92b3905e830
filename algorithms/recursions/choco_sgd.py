r"""CHOCO-SGD: workers exchange compressed differences, and every worker remembers what its neighbours know of it.

Every worker keeps $\hat x$, what the others know of it, and $s = \sum_j w_{ij} \hat x_j$, the mixture of what it knows
of the others. Only $q$ travels, which is what makes $s$ computable without sending $\hat x$:

| order | recursion, $x^{1/2} = x - \alpha u(g(x))$ |
|---|---|
| `gossip-first` | $x^+ = x^{1/2} + \gamma_c (s - \hat x),\quad q = Q(x^+ - \hat x)$ |
| `compress-first` | $q = Q(x^{1/2} - \hat x),\quad x^+ = x^{1/2} + \gamma_c (s^+ - \hat x^+)$ |

and $\hat x^+ = \hat x + q$, $s^+ = s + W q$; both start at zero. The mean of $x$ is kept by the gossip whatever $Q$
does. That $s$ is $W\hat x$ needs one and the same $W$ at every step: the topology must be static. $\gamma_c$ is the
consensus step, not the adaptive factor of DSGD-AC.

The compressors Q and their quality ω are in `compression`: `top-k`, `random-k`, `sign`, `quantized`, `identity`. Those
that draw take worker i's numbers of step t from the stream (seed, "compress", t, i). The local optimizer starts from
the own point; neither its memory nor its weight decay is ever compressed or mixed.

Reference: Koloskova, Stich and Jaggi 2019, arXiv:1902.00340 (`compress-first`); Koloskova, Lin, Stich and Jaggi 2020,
arXiv:1907.09356 (`gossip-first`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dissensus.algorithms.compression import Compressor, compressor
from dissensus.algorithms.errors import AlgorithmError
from dissensus.algorithms.protocol import DenseProblem, Gradient, Local, Mix, RandomGenerator, Step
from dissensus.algorithms.registry import register
from dissensus.theory.errors import nearest
from dissensus.theory.mixing import Stochasticity

ORDERS = ("gossip-first", "compress-first")
STREAM = "compress"


class Known(NamedTuple):
    """What the neighbours know."""

    own: Tensor
    """x̂: what the others know of this worker."""
    mixture: Tensor
    """s = W x̂: the mixture of what this worker knows of the others."""


@register("choco-sgd")
@dataclass(frozen=True)
class ChocoSgd:
    """CHOCO-SGD with a compressor by name."""

    compressor: str = "top-k"
    ratio: float = 0.1
    """The share of numbers that top-k and random-k send."""
    bits: int = 4
    """Bits per number of `quantized`, the sign among them."""
    consensus_step: float = 0.3
    order: Literal["gossip-first", "compress-first"] = "gossip-first"
    _compress: Compressor = field(init=False, repr=False, compare=False)

    name: ClassVar[str]
    reference: ClassVar[str] = "Koloskova et al. 2019 and 2020, arXiv:1902.00340, arXiv:1907.09356"
    promise: ClassVar[Stochasticity | None] = "doubly"
    static: ClassVar[bool] = True
    columnwise: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise AlgorithmError(
                f"order must be gossip-first or compress-first, got {self.order!r}{nearest(str(self.order), ORDERS)}"
            )
        if not 0.0 < self.consensus_step <= 1.0:
            raise AlgorithmError(f"consensus_step must lie in (0, 1], got {self.consensus_step}")
        object.__setattr__(self, "_compress", compressor(self.compressor, self.ratio, self.bits))

    @property
    def stochastic(self) -> bool:
        """Whether the compressor draws: equal workers with equal batches then do not stay equal."""
        return self._compress.draws

    def init(self, x: Tensor) -> Known:
        """Nobody knows anything."""
        return Known(torch.zeros_like(x), torch.zeros_like(x))

    def step(self, x: Tensor, state: Known, local: Local) -> Step[Known]:
        """Gradient, move, then gossip and compression in the chosen order."""
        g = yield Gradient(x)
        half = local.move(x, g)
        generators = local.generators(STREAM) if self._compress.draws else ()
        if self.order == "gossip-first":
            x_new = half + self.consensus_step * (state.mixture - state.own)
            q = self._compress(x_new - state.own, generators)
            return x_new, Known(state.own + q, state.mixture + (yield Mix(q)))
        q = self._compress(half - state.own, generators)
        known = Known(state.own + q, state.mixture + (yield Mix(q)))
        return half + self.consensus_step * (known.mixture - known.own), known

    def reformed(self, x: Tensor, state: Known) -> tuple[Tensor, Known]:
        """Among other workers nobody knows anything: s was the mixture of another W."""
        del state
        return x, self.init(x)

    def deployed(self, x: Tensor, state: Known) -> Tensor:
        """The point itself."""
        del state
        return x

    def matrix_form(self, problem: DenseProblem, steps: int) -> np.ndarray:
        """The recursion with x̂ of every neighbour at hand, so without s: x+ = x½ + γ (W - I) x̂."""
        x, known = problem.x0, np.zeros_like(problem.x0)
        trajectory = [x]
        for t in range(steps):
            pull = self.consensus_step * (problem.mixing(t) - np.eye(len(x)))
            half = problem.move(t, x, problem.gradient(t, x), problem.lr(t))
            streams = problem.generators(t, STREAM) if self._compress.draws else [None] * len(x)
            if self.order == "gossip-first":
                x = half + pull @ known
                known = known + self._dense(x - known, streams)
            else:
                known = known + self._dense(half - known, streams)
                x = half + pull @ known
            trajectory.append(x)
        return np.stack(trajectory)

    def _dense(self, rows: np.ndarray, streams: Sequence[RandomGenerator | None]) -> np.ndarray:
        return np.stack([self._compress.dense(row, stream) for row, stream in zip(rows, streams, strict=True)])
