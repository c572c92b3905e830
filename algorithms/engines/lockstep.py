"""One step of an algorithm, strip by strip: every strip runs its own generator, and they meet where columns meet.

Only two requests concern more than the columns of a strip: `Gradient`, which needs the whole model, and `Norm`. There
the strips wait for each other; in between each strip runs by itself to the next, while what it works on is cached.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from torch import Tensor

from dissensus.algorithms.errors import AlgorithmError
from dissensus.algorithms.protocol import Gradient, Norm, Request, Step

TOGETHER = (Gradient, Norm)
"""What concerns more than the columns of a strip."""
Meeting = Generator[Sequence[Gradient] | Sequence[Norm], Sequence[Any], None]
"""Yields what all strips ask for together, one request each, and is sent the answers."""


def lockstep(
    recursions: Sequence[Step[Any]],
    alone: Callable[[int, Request], Any],
    finish: Callable[[int, Tensor, Any], None],
    asked: Sequence[Request] | None = None,
) -> Meeting:
    """Runs the generators of all strips to their ends.

    Args:
        recursions: one generator per strip.
        alone: answers what strip k asks for by itself.
        finish: takes the new points and the new state of strip k, before the next strip goes on.
        asked: what every recursion has asked for already, if they were begun before.
    """
    answers: Sequence[Any] = [None] * len(recursions)
    while True:
        together: list[Any] = []
        for k, recursion in enumerate(recursions):
            try:
                request = recursion.send(answers[k]) if asked is None else asked[k]
                while type(request) not in TOGETHER:
                    request = recursion.send(alone(k, request))
            except StopIteration as end:
                finish(k, *end.value)
            else:
                together.append(request)
        if not together:
            return
        if len(together) < len(recursions) or len({type(request) for request in together}) > 1:
            raise AlgorithmError(
                "the strips of one step asked for different things: an algorithm whose requests depend on the numbers "
                "of its columns must say columnwise = False"
            )
        answers, asked = (yield together), None
