"""Who failed first, from words alone: processes that died, that speak late, and that never say anything."""

from types import SimpleNamespace
from typing import Any

import pytest

from dissensus.algorithms.engines.distributed import last_words, peers
from dissensus.algorithms.engines.distributed.last_words import LAST_WORDS, LastWords, Words


class Box:
    """A letterbox of process 0: who has written, and where nobody listens any more."""

    def __init__(self, written: dict[int, tuple[int, int | None]], dead: tuple[int, ...]) -> None:
        self.number, self._dead = 0, dead
        self._written = {q: {"step": t, "peer": peer, "said": ""} for q, (t, peer) in written.items()}

    def letter(self, kind: str, number: int) -> dict[str, Any] | None:
        return self._written.get(number) if kind == LAST_WORDS else None

    def send(self, place: int, letter: dict, *, patience: float) -> SimpleNamespace:
        return SimpleNamespace(outcome="refused" if place in self._dead else "delivered")

    def wait(self, seconds: float) -> None:
        pass


def first(own: tuple[int, int], written: dict[int, tuple[int, int | None]], dead: tuple[int, ...]) -> Words:
    box: Any = Box(written, dead)
    places: Any = {q: q for q in range(1, 5)}
    return LastWords(box, places).first(Words(own[0], 0, own[1], ""))


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_words, "LISTENS", 0.02)


@pytest.mark.parametrize("step", [6, 5, 7])
def test_one_that_is_slow_to_speak_is_not_taken_for_the_one_that_died(step: int) -> None:
    """Process 1 ends because 2 has died, and has not said so yet; 3 has, a step before, after or at the same."""
    found = first((6, 1), {3: (step, 2)}, dead=(2,))
    assert (found.number, found.peer) == (3, 2)


def test_one_that_hangs_is_named_where_nobody_died() -> None:
    found = first((6, 1), {3: (7, 1)}, dead=())
    assert (found.step, found.peer) == (6, 1)


def test_an_accusation_is_followed_to_the_one_without_words() -> None:
    found = first((8, 1), {1: (7, 3), 3: (6, 2)}, dead=(2,))
    assert (found.number, found.peer, found.step) == (3, 2, 6)


def test_one_that_left_with_words_is_the_first() -> None:
    found = first((8, 1), {1: (7, 1)}, dead=(1,))
    assert (found.number, found.step) == (1, 7)


def test_who_is_woken_by_words_finds_them() -> None:
    happened: list[str] = []
    wire: Any = SimpleNamespace(_ends=False, _interrupted=None, interrupt=lambda: happened.append("woken"))
    wire.box = SimpleNamespace(
        letter=lambda kind, number: {} if len(happened) > 2 else None, wait=lambda s: happened.append("not yet")
    )
    peers._end(wire, 3)
    assert happened == ["not yet"] * 3 + ["woken"]
    assert wire._interrupted == 3
