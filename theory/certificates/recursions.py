r"""The recursions whose worst case can be certified, written on unknown points.

| name | recursion |
|---|---|
| `dsgd`, order `awc` | $x^{t+1} = W x^t - \alpha g(x^t)$ |
| `dsgd`, order `atc` | $x^{t+1} = W (x^t - \alpha g(x^t))$ |
| `dsgd`, order `cta` | $x^{t+1} = W x^t - \alpha g(W x^t)$ |
| `gradient-tracking` | $x^{t+1} = W x^t - \alpha y^t,\quad y^{t+1} = W y^t + g(x^{t+1}) - g(x^t),\quad y^0 = g(x^0)$ |
| `extra` | $x^{t+2} = (I+W) x^{t+1} - \tfrac{I+W}2 x^t - \alpha(g(x^{t+1}) - g(x^t))$, first a step `awc` |
| `d2` | $x^{t+2} = W(2x^{t+1} - x^t - \alpha(g(x^{t+1}) - g(x^t)))$, first a step `atc` |

Every function yields $x^0, x^1, \dots$ without end and asks the space for no more than the points taken from it need.

Reference: DGD, Nedić and Ozdaglar 2009; DIGing, arXiv:1607.03218; EXTRA, arXiv:1404.6264; D², arXiv:1803.07068.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

Point = TypeVar("Point", bound=Any)
"""A point of all workers: unknown vectors in exact coordinates, or numbers."""


class Space(Protocol):
    """Where a recursion runs: it mixes, and has gradients."""

    def mix(self, x: Any, t: int) -> Any:
        """What the exchange of step t makes of x."""
        ...

    def gradient(self, x: Any) -> Any:
        """The workers' gradients at x."""
        ...


Recursion = Callable[[Space, Any, Any], Iterator[Any]]
"""(space, start, learning rate) -> points."""


def dsgd(order: str) -> Recursion:
    """DSGD with exact gradients, in one of the three orders."""

    def walk(space: Space, x: Point, lr: Any) -> Iterator[Point]:
        t = 0
        while True:
            yield x
            if order == "awc":
                x = space.mix(x, t) - lr * space.gradient(x)
            elif order == "atc":
                x = space.mix(x - lr * space.gradient(x), t)
            else:
                mixed = space.mix(x, t)
                x = mixed - lr * space.gradient(mixed)
            t += 1

    return walk


def gradient_tracking(space: Space, x: Point, lr: Any) -> Iterator[Point]:
    """DIGing from the workers' own gradients."""
    for at, _, _ in tracked(space, x, space.gradient(x), lr):
        yield at


def tracked(space: Space, x: Point, y: Point, lr: Any) -> Iterator[tuple[Point, Point, Point]]:
    """DIGing from any tracking variable: points, tracking variables, gradients."""
    g, t = space.gradient(x), 0
    while True:
        yield x, y, g
        x = space.mix(x, t) - lr * y
        latest = space.gradient(x)
        y = space.mix(y, t) + latest - g
        g, t = latest, t + 1


def extra(space: Space, x: Point, lr: Any) -> Iterator[Point]:
    """EXTRA with the second matrix (I + W)/2."""
    yield x
    g, mixed = space.gradient(x), space.mix(x, 0)
    before, x, t, half = x, mixed - lr * g, 1, lr / (2 * lr)
    while True:
        yield x
        latest, now = space.gradient(x), space.mix(x, t)
        before, x = x, x + now - half * (before + mixed) - lr * (latest - g)
        g, mixed, t = latest, now, t + 1


def d2(space: Space, x: Point, lr: Any) -> Iterator[Point]:
    """D², in the form with one exchange per step."""
    yield x
    g = space.gradient(x)
    before, x, t = x, space.mix(x - lr * g, 0), 1
    while True:
        yield x
        latest = space.gradient(x)
        before, x = x, space.mix(2 * x - before - lr * (latest - g), t)
        g, t = latest, t + 1
