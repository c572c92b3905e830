"""Who failed first. A transport notices a loss at the neighbours only, names nobody, and one loss makes others.

Whoever ends leaves *last words* in the letterboxes of all others before it goes: at which step it lost whom, or that it
ends on its own account. Who then finds a peer gone looks for that peer's words, and for the words of whom these accuse,
and so on, up to one who left none. All survivors so come to the same first failure, not to the one it caused at their
side. Nothing of this needs the process that holds the store.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from dissensus.algorithms.engines.distributed.letterbox import Letterbox, Place

LISTENS = 2.0
"""Seconds in which a peer that lives can say why it has left."""
AT_MOST = 5.0
"""Seconds after which the search for the first failure ends where it is."""
LAST_WORDS, PING = "last words", "are you there"


End = Literal["spoke", "dead", "silent"]
"""How whoever is accused has ended: with words, without (nobody listens where it was), or not a word as yet."""


class Words(NamedTuple):
    """Why a process ends."""

    step: int
    number: int
    """Whose words these are."""
    peer: int | None
    """Who was lost; itself if it ends on its own account, None if that is not known."""
    said: str


class LastWords:
    """The last words of this process and of the others."""

    def __init__(self, box: Letterbox, places: Mapping[int, Place]) -> None:
        self._box, self._places = box, places

    def leave(self, step: int, peer: int | None, said: str) -> Words:
        """Tells everybody. Where it is not known who was lost, it is who does not answer and has said nothing."""
        if peer is None:
            answers = self._box.send_all(self._places, {"kind": PING})
            missing = [q for q, one in answers.items() if one.outcome != "delivered" and self._heard(q) is None]
            if missing:
                peer, said = missing[0], f"{said}; process {missing[0]} does not answer"
        self._box.send_all(self._places, {"kind": LAST_WORDS, "step": step, "peer": peer, "said": said})
        return Words(step, self._box.number, peer, said)

    def first(self, own: Words) -> Words:
        """What failed first, as far as can be told; `own` if nobody failed before."""
        until = time.monotonic() + AT_MOST
        found, end = self._followed(own, own, until)
        if end == "spoke":
            return found
        # a death may have had another one behind it, of whoever else noticed only that; and one that is silent may
        # be slow to say why it goes, where one that is dead has no more to say
        others = [self._followed(words, own, until) for words in self._all_heard() if end == "silent" or words < found]
        gone = [(found, end), *(one for one in others if one[1] != "spoke")]
        return min(gone, key=lambda one: (one[1] != "dead", one[0]))[0]

    def _followed(self, start: Words, own: Words, until: float) -> tuple[Words, End]:
        """Where accusations lead to: to one who said why it ends, or to one who is gone without a word."""
        chain = {own.number: own, start.number: start}
        last = start
        while last.peer is not None and last.peer not in chain:
            found = self._of(last.peer, until)
            if isinstance(found, str):
                return last, found
            chain[found.number] = last = found
        if last.peer == last.number:
            return last, "spoke"
        if last.peer is None:
            return min((words for words in self._all_heard() if words.step <= last.step), default=last), "spoke"
        return min(chain.values()), "spoke"

    def _all_heard(self) -> list[Words]:
        return [words for q in self._places if (words := self._heard(q)) is not None]

    def _heard(self, number: int) -> Words | None:
        letter: dict[str, Any] | None = self._box.letter(LAST_WORDS, number)
        return None if letter is None else Words(letter["step"], number, letter["peer"], letter["said"])

    def _of(self, number: int, until: float) -> Words | Literal["dead", "silent"]:
        """The words of a process: those it has left, or leaves soon if it lives; or how it is gone without any."""
        until = min(until, time.monotonic() + LISTENS)
        while (found := self._heard(number)) is None and time.monotonic() < until:
            if self._box.send(self._places[number], {"kind": PING}, patience=1.0).outcome == "refused":
                return self._heard(number) or "dead"
            self._box.wait(0.1)
        return found or "silent"


def reason_of(said: str) -> str:
    """What a transport says of a loss, in a few words."""
    if "Connection closed" in said or "Connection reset" in said or "Broken pipe" in said:
        return "its connection is closed, so it has died or left"
    if "imed out" in said or "imeout" in said:
        return "nothing happened until the time-out, so it hangs or has gone another way"
    return said.strip().split("\n")[0][:200]
