"""Letters of members come late, twice and in any order: what they agree on does not depend on it."""

from collections.abc import Callable
from typing import Any

import pytest
from crowds import Crowd, here

from dissensus.algorithms.engines.distributed.membership import HERE, VERDICT, Membership


def test_who_is_called_knows_by_whom(crowd: Callable[..., Crowd]) -> None:
    """Else it would agree with the others, and without the one that comes."""
    two = crowd(2)
    member, box, seen = two.members[0], two.boxes[0], list[bool]()

    class Kept(dict[Any, Any]):
        def __setitem__(self, key: Any, letter: Any) -> None:
            seen.append(member.called)
            super().__setitem__(key, letter)

    box._kept = Kept()
    two.boxes[1].send(box.place, here(two, 1, attempt=1))
    assert (seen, member.called) == ([False], True)


def test_a_letter_that_was_overtaken_is_not_news(crowd: Callable[..., Crowd]) -> None:
    two = crowd(2)
    for attempt in (2, 1):
        two.boxes[1].send(two.places[0], here(two, 1, attempt))
        two.boxes[1].send(two.places[0], {"kind": VERDICT, "attempt": attempt})
    assert [two.boxes[0].letters(kind)[1]["attempt"] for kind in (HERE, VERDICT)] == [2, 2]
    again = two.anew(1)
    again._box.send(two.places[0], here(two, 1, attempt=1))
    assert two.boxes[0].letters(HERE)[1]["place"] == [*again._box.place], "it does not count from its first life"


def test_a_verdict_on_an_attempt_that_was_left_is_not_taken_for_the_next(
    crowd: Callable[..., Crowd], monkeypatch: pytest.MonkeyPatch
) -> None:
    two = crowd(2)
    late = {"kind": VERDICT, "attempt": 1, "refused": "too late"}
    for one in two.members:
        one.attempt = one._heard_of = 1

    def begin(one: Membership, attempt: int) -> None:
        two.boxes[0].send(two.places[1], late)  # it comes at the last moment
        vars(one)["attempt"] = attempt

    monkeypatch.setattr(Membership, "attempt", property(lambda one: vars(one)["attempt"], begin), raising=False)
    assert {one.generation for one in two.agree(0, 1)} == {2}
