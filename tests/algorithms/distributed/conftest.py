"""What lies in this folder can be imported by its name, by tests and by the processes they start; crowds of members."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from crowds import Clock, Crowd
from transports import ByHand, Town, allow, transport

from dissensus.algorithms.engines.distributed import membership


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(membership, "PROBED_EVERY", 0.1)
    monkeypatch.setattr(membership, "time", clock := Clock())
    return clock


@pytest.fixture
def crowd(clock: Clock) -> Iterator[Callable[..., Crowd]]:
    del clock
    made: list[Crowd] = []

    def make(n: int, **options: float) -> Crowd:
        made.append(Crowd(n, **options))
        return made[-1]

    yield make
    for one in made:
        one.threads.shutdown(cancel_futures=True)
        one.gone(*range(one.n))


@pytest.fixture
def window(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    allow(monkeypatch, 2)
    return partial(allow, monkeypatch)


@pytest.fixture
def group() -> Iterator[ByHand]:
    yield from transport(ByHand())


@pytest.fixture
def town() -> Iterator[Town]:
    yield from transport(Town())
