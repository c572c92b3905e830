"""Who is in the group: those that are left agree on a new one, and a process that was started again is let in.

Whoever loses a peer, and whoever wants in, tells everybody "here", with its step and the number of the attempt; whoever
hears of an attempt later than its own joins it. An attempt ends when of all members each is here or lost:

| a member | is lost |
|---|---|
| refuses letters | for certain: it is gone |
| leaves two letters in a row unanswered | as far as can be told: stopped, or cut off |
| answers, but does not come here within the time-out | as far as can be told: stuck |

Then the lowest that is here decides, and writes to all: who the members are, from which step on they mix again (one
that nobody has begun), and where the new group meets. Whoever is not in that list is out, and is told so.

Two groups that both believe to be the run would be worse than none. So those that are here must be more than half of
the members that are not gone for certain, or exactly half with the lowest of them; otherwise they stop. A member killed
on a machine that lives is gone for certain; of two processes of which one hangs, the first goes on without the second,
but not the second without the first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dissensus.algorithms.engines.distributed.last_words import PING
from dissensus.algorithms.engines.distributed.letterbox import Letterbox, Place
from dissensus.algorithms.errors import AlgorithmError

HERE, VERDICT, VISIT = "here", "verdict", "visit"
CALLED = "called by the others"
"""The reason of whoever has none of its own."""
PROBED_EVERY = 1.0
"""Seconds between two looks at whether those that are waited for still live."""
UNANSWERED = 2
"""A member that leaves so many letters in a row unanswered is lost."""


NOWHERE = Place("", 0)


class LeftOutError(AlgorithmError):
    """The others go on without this process, or nobody can."""


@dataclass(frozen=True)
class Members:
    """A group, once it is agreed upon."""

    generation: int
    """The attempt that led to it; 0 at the start."""
    places: Mapping[int, Place]
    """The members by number, in order, with their letterboxes."""
    step: int = 0
    """The first step at which they mix."""
    count: int = 0
    """How far they had come with what all processes do together before there was this group."""
    newcomers: tuple[int, ...] = ()
    isolated: tuple[int, ...] = ()
    """Whose numbers were not finite, so that nobody hears them."""
    meets: Place = NOWHERE
    """Where the group of the transport meets."""
    leader: int = 0
    """Who decided."""
    why: str = ""
    """What was wrong with the group before."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The members."""
        return tuple(self.places)


class Membership:
    """The membership of this process."""

    def __init__(
        self, box: Letterbox, places: Mapping[int, Place], *, timeout: float, meets: Callable[[], Place]
    ) -> None:
        """`meets` opens the place where the group of the transport meets, when this process is to decide."""
        self.now = Members(0, dict(sorted(places.items())))
        self.attempt = 0
        """The last attempt that this process took part in."""
        self.on_call: Callable[[], None] = _nothing
        """Called when the others want a new group, in another thread."""
        self._box, self._timeout, self._meets, self._heard_of = box, timeout, meets, 0
        self.facts: Mapping[str, Any] = {}
        """What members have in common, for those that want to become one."""
        box.takes, box.on_letter, box.answer = self._takes, self._on_letter, self._answer

    @property
    def called(self) -> bool:
        """Whether others make, or have made, a new group."""
        return self._heard_of > self.attempt

    def agree(
        self,
        step: int,
        count: int,
        why: str,
        *,
        lost: int | None = None,
        newcomer: bool = False,
        isolated: bool = False,
    ) -> Members:
        """Agrees with the others on the next group.

        `step` and `count` say how far this process has come; `why` it wants another group, and whom it has lost.
        """
        while True:
            self.attempt = self._heard_of = max(self.attempt + 1, self._heard_of)
            own = {
                "kind": HERE,
                "attempt": self.attempt,
                "generation": self.now.generation,
                "place": self._box.place,
                "step": step,
                "count": count,
                "newcomer": newcomer,
                "isolated": isolated,
                "why": why,
                "lost": lost,
            }
            meeting = _Attempt(self._box, self.now.places, own)
            verdict = self._met(meeting)
            if verdict is not None:
                return self._read(verdict)
            if meeting.overtaken:
                self.visit()

    def commit(self, members: Members) -> None:
        """The group stands."""
        self.now = members

    def visit(self) -> Mapping[str, Any]:
        """For a process that is no member: learns from the members who they are, and what they have in common."""
        posted = self._box.send_all(self.now.places, {"kind": VISIT})
        told = [one.answer for one in posted.values() if one.outcome == "delivered"]
        if not told:
            raise LeftOutError("nobody of the run answers any more: there is nothing to join")
        latest = max(told, key=lambda one: one["generation"])
        self._heard_of = self.attempt = max(one["attempt"] for one in told)
        self.commit(Members(latest["generation"], _places(latest)))
        return latest["facts"]

    def lives(self, members: Members) -> bool:
        """Whether nobody of a group to be is gone."""
        found = self._box.send_all(members.places, {"kind": PING}, patience=1.0)
        return all(one.outcome != "refused" for one in found.values())

    def _answer(self, letter: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "attempt": self.attempt,
            "generation": self.now.generation,
            "places": [[q, *place] for q, place in self.now.places.items()],
            **({"facts": self.facts} if letter["kind"] == VISIT else {}),
        }

    def _takes(self, letter: dict[str, Any]) -> bool:
        number, before = letter["from"], self._box.letter(letter["kind"], letter["from"])
        if letter["kind"] == HERE:
            later = letter["newcomer"] or letter["generation"] > self.now.generation
            if not later and self.now.places.get(number) != Place(*letter["place"]):
                return False  # somebody the others went on without
        if letter["kind"] in (HERE, VERDICT) and before and before.get("place") == letter.get("place"):
            return letter["attempt"] >= before["attempt"]  # letters may overtake each other
        return True

    def _on_letter(self, letter: dict[str, Any]) -> None:
        if letter["kind"] == HERE and letter["attempt"] > self._heard_of:
            self._heard_of = letter["attempt"]
            threading.Thread(target=self.on_call).start()

    def _met(self, meeting: _Attempt) -> dict[str, Any] | None:
        """The verdict of an attempt; None if a later one has begun."""
        until = time.monotonic() + self._timeout
        while not self.called:
            for verdict in self._box.letters(VERDICT).values():
                if verdict["attempt"] == self.attempt:
                    return verdict
            meeting.tell()
            if meeting.overtaken:
                return None
            here, missing = meeting.here(), meeting.missing()
            voters = [q for q, one in here.items() if not one["newcomer"]]
            if not voters and not missing:
                raise LeftOutError("nobody of the run answers any more: there is nothing to join")
            if not voters and time.monotonic() > until:
                raise LeftOutError(
                    f"{_named(missing)} of the run let nobody in for {self._timeout:g} s: they live, but come not to "
                    "their next step"
                )
            if voters and min(voters) == self._box.number and (not missing or time.monotonic() > until):
                verdict = self._decided(here, meeting.gone)
                self._box.send_all({q: Place(*one["place"]) for q, one in here.items()}, verdict)
                return None if self.called else verdict
            self._box.wait(0.1)
        return None

    def _decided(self, here: Mapping[int, Mapping[str, Any]], gone: Collection[int]) -> dict[str, Any]:
        newcomers = [q for q, one in here.items() if one["newcomer"]]
        voters = [q for q in here if q not in newcomers]
        certain = [q for q in self.now.places if q not in gone and q not in newcomers]
        present = [q for q in certain if q in voters]
        verdict = {"kind": VERDICT, "attempt": self.attempt, "from": self._box.number}
        half = 2 * len(present) == len(certain)
        if 2 * len(present) < len(certain) or (half and certain[0] not in present):
            doubtful = _named([q for q in certain if q not in present])
            return verdict | {
                "refused": f"of {_named(list(self.now.places))} only {_named(present)} can go on, and nobody can tell "
                f"what {doubtful} will do: stopped, lest there be two groups that both go on"
            }
        return verdict | {
            "generation": self.attempt,
            "places": [[q, *here[q]["place"]] for q in sorted(here)],
            "step": max(here[q]["step"] for q in voters) + 1,
            "count": max(here[q]["count"] for q in voters),
            "newcomers": sorted(newcomers),
            "isolated": sorted(q for q in voters if here[q]["isolated"]),
            "meets": self._meets(),
            "leader": self._box.number,
            "why": _reason(here),
        }

    def _read(self, verdict: Mapping[str, Any]) -> Members:
        if "refused" in verdict:
            raise LeftOutError(verdict["refused"])
        places = _places(verdict)
        if places.get(self._box.number) != self._box.place:
            raise LeftOutError(
                f"the others went on without process {self._box.number}, which did not answer for {self._timeout:g} s; "
                "start it again to let it join them"
            )
        rest = {key: verdict[key] for key in ("step", "count", "leader", "why")}
        rest |= {key: tuple(verdict[key]) for key in ("newcomers", "isolated")}
        return Members(verdict["generation"], places, meets=Place(*verdict["meets"]), **rest)


class _Attempt:
    """What one process knows of the others in one attempt."""

    def __init__(self, box: Letterbox, places: Mapping[int, Place], own: Mapping[str, Any]) -> None:
        self._box, self._own, self._began = box, own, time.monotonic()
        self._waits_for = {q: place for q, place in places.items() if q != box.number}
        self.gone: set[int] = set()
        self.overtaken = False
        """Whether the others were done with this attempt before they heard of a newcomer that it is here."""
        self._silent: dict[int, int] = {}
        self._told: set[int] = set()
        self._probed = -PROBED_EVERY

    def tell(self) -> None:
        """Says "here" to all that have not heard it, and looks now and then whether those that have still live."""
        targets = {q: place for q, place in self._waits_for.items() if q not in self.gone}
        if time.monotonic() - self._probed < PROBED_EVERY:
            targets = {q: place for q, place in targets.items() if q not in self._told and q not in self._silent}
        else:
            self._probed = time.monotonic()
        for q, one in self._box.send_all(targets, self._own).items():
            if one.outcome == "delivered":
                self._told.add(q)
                self._silent.pop(q, None)
                self._check(one.answer)
            elif one.outcome == "refused":
                self.gone.add(q)
            else:
                self._silent[q] = self._silent.get(q, 0) + 1

    def here(self) -> dict[int, Mapping[str, Any]]:
        """Who is here and lives, in order."""
        found: dict[int, Mapping[str, Any]] = {self._box.number: self._own}
        for q, one in self._box.letters(HERE).items():
            if one["attempt"] != self._own["attempt"]:
                continue
            if one["newcomer"] and self._waits_for.get(q) != Place(*one["place"]):
                self._waits_for[q] = Place(*one["place"])
                self.gone.discard(q)
            if not self._lost(q):
                found[q] = one
        return dict(sorted(found.items()))

    def missing(self) -> list[int]:
        """Who is neither here nor lost."""
        here = self.here()
        return [q for q in self._waits_for if q not in here and not self._lost(q)]

    def _lost(self, q: int) -> bool:
        return q in self.gone or self._silent.get(q, 0) >= UNANSWERED

    def _check(self, answer: Mapping[str, Any]) -> None:
        """Ends this process if the others have gone on without it; one that only comes tries again."""
        without = _places(answer).get(self._box.number) != self._box.place
        if self._own["newcomer"]:
            self.overtaken |= without and answer["generation"] >= self._own["attempt"]
        elif without and answer["generation"] > self._own["generation"]:
            raise LeftOutError(
                f"the others went on without process {self._box.number}, which did not answer them in time; start it "
                "again to let it join them"
            )


def _reason(here: Mapping[int, Mapping[str, Any]]) -> str:
    """Of all reasons that of a process which has lost one that is not here, and not one that was called away."""
    reasons = [one for one in here.values() if one["why"] != CALLED] or list(here.values())
    return next(
        (one["why"] for one in reasons if one["lost"] is not None and one["lost"] not in here), reasons[0]["why"]
    )


def _places(told: Mapping[str, Any]) -> dict[int, Place]:
    return {q: Place(host, port) for q, host, port in told["places"]}


def _named(numbers: Sequence[int]) -> str:
    return f"process {numbers[0]}" if len(numbers) == 1 else f"processes {', '.join(map(str, numbers))}"


def _nothing() -> None:
    return
