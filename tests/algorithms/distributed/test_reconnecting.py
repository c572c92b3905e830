"""A group of the transport comes to be for all that have agreed on it, or for none."""

from typing import Any

import pytest

from dissensus.algorithms.engines.distributed.letterbox import Letterbox
from dissensus.algorithms.engines.distributed.membership import Members
from dissensus.algorithms.engines.distributed.reconnecting import Groups, Reconnecting


class Called:
    """A membership that others want anew, or not; `meanwhile` happens as that is looked up."""

    def __init__(self, called: bool, meanwhile: Any = None) -> None:
        self._called, self._meanwhile = called, meanwhile or (lambda: None)

    @property
    def called(self) -> bool:
        self._meanwhile()
        return self._called


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, Members]:
    """Two that have agreed on a group, and whose connections always stand."""
    monkeypatch.setattr(Reconnecting, "_group", lambda self, store, name, numbers: name)
    boxes = [Letterbox(0), Letterbox(1)]
    zero, one = (Reconnecting(box, timeout=10.0) for box in boxes)
    return zero, one, Members(1, {q: box.place for q, box in enumerate(boxes)}, meets=zero.meets())


def test_nobody_connects_to_one_that_was_called_away(two: tuple[Any, Any, Members]) -> None:
    zero, one, members = two
    assert zero.connected(members, Called(True)) is None
    assert one.connected(members, Called(False)) is None


def test_one_that_is_called_away_as_the_others_connect_connects_first(two: tuple[Any, Any, Members]) -> None:
    zero, one, members = two
    found: list[Groups | None] = []
    called = Called(True, lambda: found.append(one.connected(members, Called(False))))
    assert [zero.connected(members, called), *found] == [Groups("full", "full")] * 2
