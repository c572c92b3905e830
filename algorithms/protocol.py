r"""The language in which an algorithm is written: one step is a generator that yields where something travels.

An algorithm is written once, as the recursion of its paper on *stacked workers*: `x` has one row per worker of this
process and one column per parameter. Whatever a worker cannot do by itself it asks for by yielding a request, and the
engine answers it:

| request | answer |
|---|---|
| `Gradient(at)` | the stochastic gradients of the local losses at the rows of `at`, on this step's batches |
| `Mix(value, share)` | the rows of $W_\gamma\,\mathrm{value}$: an exchange with this step's neighbours, waited for |
| `Post(value)` then `Await(ticket, share)` | the same exchange in two halves: what lies between them hides it |
| `Mean(value)` | every row replaced by the mean over all workers (an all-reduce) |
| `Norm(value)` | the 2-norm of every row, as a column |
| `Note(name, value)` | nothing: the engine records it (the gamma of this step) |

with $W_\gamma = (1-\gamma) I + \gamma W_t$, where the share $\gamma$ of the mixture that is taken is 1 unless told
otherwise. So DSGD in the order adapt-while-communicate reads, line by line, as its equation $x^+ = W x - \alpha\,g(x)$:

    ticket = yield Post(x)
    g = yield Gradient(x)
    mixed = yield Await(ticket)
    return local.move(mixed, g), state

The order of the algorithm *is* the order of these lines; nothing else states it, and nothing else can contradict it.

Where the workers live is the engine's business. With all n rows in one process, `Mix` is a sparse product and
`Gradient` a vmap or a loop; with one row a process, `Mix` is a pair of messages. An engine may also run one generator
per bucket of columns, in lockstep, because apart from `Norm` nothing couples columns (an algorithm that couples them in
another way, like a compressor of whole messages, says so with `columnwise = False`). And a training loop that is not
ours ("`loss.backward(); opt.step()`") drives the same generator from the outside: `step()` sends the gradient in, runs
to the end, and advances the next step up to its `Gradient`, so what an algorithm posts before its gradient is in flight
under the next forward and backward without a word about streams in the algorithm. What an algorithm asks of the
learning rate before its gradient is asked when that gradient is due, after the loop's scheduler has spoken: only a
`Post` that comes first of all is answered at once.

An algorithm says `in_place = True` if it only *hands on* points and gradients: whatever it has given to `Mix`, `Post`,
`Mean` or `move` it does not read again, and with a gradient it does nothing but pass it to `move` or `Mean`. An engine
may then overwrite what it was given: a step needs no copy of the parameters beside what is in flight.

Laws every algorithm obeys: no argument is written to; no Python branch on a tensor's value; state is a NamedTuple of
tensors with one row per worker; all exchanges of a step use the same round $W_t$.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from dissensus.algorithms.errors import AlgorithmError
from dissensus.theory.mixing import Stochasticity


@dataclass(frozen=True, eq=False)
class Gradient:
    """Asks for the stochastic gradients of the local losses at the rows of `at`."""

    at: Tensor


@dataclass(frozen=True, eq=False)
class Mix:
    """Asks for one exchange with this step's neighbours, and waits for it."""

    value: Tensor
    share: float | Tensor = 1.0
    """γ: how much of the mixture is taken, a number or a column; the rest of a row is the worker's own."""


@dataclass(frozen=True, eq=False)
class Post:
    """Starts an exchange; the answer is a ticket."""

    value: Tensor


@dataclass(frozen=True, eq=False)
class Await:
    """Waits for the exchange of a ticket."""

    ticket: Any
    share: float | Tensor = 1.0
    """As in `Mix`."""


@dataclass(frozen=True, eq=False)
class Mean:
    """Asks for the mean over all workers, in every row."""

    value: Tensor


@dataclass(frozen=True, eq=False)
class Norm:
    """Asks for the 2-norm of every row, over all columns of the model, as a column."""

    value: Tensor


@dataclass(frozen=True, eq=False)
class Note:
    """Tells what was used at this step, to be recorded. There is no answer."""

    name: str
    value: Tensor | float
    """A number, or a column with one row per worker."""


Request = Gradient | Mix | Post | Await | Mean | Norm | Note

RandomGenerator = torch.Generator
S = TypeVar("S", bound=tuple)
Step = Generator[Request, Any, tuple[Tensor, S]]


class Stateless(NamedTuple):
    """The state of an algorithm that remembers nothing between steps."""


class Local(Protocol):
    """What a worker knows and can do by itself at this step."""

    @property
    def t(self) -> int:
        """The step, counted from 0."""
        ...

    @property
    def lr(self) -> float:
        """The learning rate of this step, as the schedule has it."""
        ...

    @property
    def rate(self) -> float | Tensor:
        """The learning rate that every row moves with: `lr`, or a column where workers have rates of their own."""
        ...

    @property
    def decay(self) -> float | Tensor:
        """The weight decay that `move` adds to the gradient where it is SGD, like `rate`; 0 where it is not."""
        ...

    def generators(self, purpose: str) -> list[RandomGenerator]:
        """One random generator per row, each at the start of the stream (seed, purpose, step, worker).

        An algorithm that draws says `columnwise = False`: what is drawn must not depend on how columns are cut.
        """
        ...

    def move(self, x: Tensor, g: Tensor) -> Tensor:
        """One step of the local optimizer (any elementwise `torch.optim.Optimizer`) from `x` along `g`."""
        ...


def toward(x: Tensor, mixed: Tensor, share: float | Tensor) -> Tensor:
    """(1 - γ) x + γ mixed, exact at γ = 0 and at γ = 1: what engines make of a share."""
    if isinstance(share, Tensor):
        return torch.lerp(x, mixed, share.to(x.dtype))
    return mixed if share == 1.0 else torch.lerp(x, mixed, share)


def no_generators(t: int, purpose: str) -> list[RandomGenerator]:
    """What a problem without random numbers answers."""
    raise AlgorithmError(f"the problem has no generators, but {purpose!r} is drawn at step {t}: pass generators=")


@dataclass(frozen=True)
class DenseProblem:
    """What a dense matrix form is run on: everything as float64 numpy, one row per worker."""

    x0: np.ndarray
    gradient: Callable[[int, np.ndarray], np.ndarray]
    """The gradients used at step t at the rows of a point."""
    mixing: Callable[[int], np.ndarray]
    """The dense W_t."""
    lr: Callable[[int], float]
    move: Callable[[int, np.ndarray, np.ndarray, float], np.ndarray]
    """The local optimizer as a numpy recursion with its own memory: (t, x, g, lr) -> x_new."""
    generators: Callable[[int, str], list[RandomGenerator]] = field(default=no_generators)
    """(t, purpose) -> the generators a worker draws from, for algorithms that do."""
    decay: float = 0.0
    """The weight decay that `move` adds to the gradient."""


class Algorithm(Protocol[S]):
    """A frozen dataclass of hyper-parameters with the recursion of one step. See the module's table of requests."""

    name: ClassVar[str]
    reference: ClassVar[str]
    promise: ClassVar[Stochasticity | None]
    """What it needs of every round: `doubly` for most, `column` for push-sum, `None` if it never mixes."""
    static: ClassVar[bool]
    """Whether every round must be the same matrix (an algorithm that remembers W times what was sent)."""
    columnwise: ClassVar[bool]
    """Whether columns are coupled by nothing but `Norm`."""
    in_place: ClassVar[bool]
    """Whether it only hands on points and gradients, so that an engine may overwrite them; may be left out: no."""
    equal: ClassVar[bool]
    """Whether workers that are equal stay equal, and must be made so when something was lost; may be left out: no."""
    common: ClassVar[tuple[str, ...]]
    """Fields of the state that speak of the schedule, not of a worker: who is away keeps up with them; may be left
    out: none."""

    def init(self, x: Tensor) -> S:
        """The state before the first step, from the workers' starting points."""
        ...

    def step(self, x: Tensor, state: S, local: Local) -> Step[S]:
        """One step: yields requests, returns the new points and the new state."""
        ...

    def deployed(self, x: Tensor, state: S) -> Tensor:
        """The model a worker would deploy: `x` itself, but for push-sum the de-biased x / w."""
        ...

    def matrix_form(self, problem: DenseProblem, steps: int) -> np.ndarray:
        """The recursion of the paper in dense float64 numpy, written independently: its oracle.

        Returns the deployed points, of shape (steps + 1, n, d).
        """
        ...
