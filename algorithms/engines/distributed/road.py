"""The transport's own way to another process: messages go as they are, or in pieces of which a few are under way.

In pieces they go where TCP stalls (see `pace`). A piece is what goes to a process and what comes from it in exchange,
and is under way until both are over: so neither direction gets far ahead of the other. Pieces have their turn in the
order of the messages: the transport matches those of one step by their order alone. A thread gives it to them, and
waits for those before them: the loop computes meanwhile. It stays for a moment when all have had theirs, because a
thread that is there is woken in no time, and to start one takes a tenth of a millisecond.

All roads of a process share its link, so those of an earlier step go first: pieces of a later one wait until these are
over on all other roads, but for what travels. What is needed first so comes first, and the link still has something to
carry while the loop computes. Nobody waits for ever, because no message of a step waits for one of a later step, here
or elsewhere.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from dissensus.algorithms.engines.distributed.beside import beside
from dissensus.algorithms.engines.distributed.pace import PIECE_BYTES, Pace

NEVER = (1 << 31) - 1
"""The tag of a message that nobody sends."""
FOREVER = timedelta(days=365)
RECEIVING, SENDING = "receiving from", "sending to"
LINGER = 0.05
"""Seconds that a thread stays when nothing is waiting any more."""
MANY = 4
"""So many pieces in a row tell how fast a link is."""


def break_off(group: Any, place: int) -> None:
    """Closes the connections of a group of gloo, from any thread: whoever waits for them, at any end, is told.

    Nothing does that but a time-out: one is brought about.
    """
    with suppress(RuntimeError):
        group.recv([torch.empty(1)], place, NEVER).wait(timedelta(milliseconds=1))


class Half:
    """One direction of a piece. Several may wait for it, where a work of the transport must be waited for once."""

    def __init__(self, road: Road, post: Callable[[], Any], doing: str, size: int) -> None:
        self.doing, self.size = doing, size
        self.ended = 0.0
        """When it was seen to have come, or gone."""
        self._post: Callable[[], Any] | None = post
        self._road, self._work, self.error = road, None, ""
        self._posted, self._turn = threading.Event(), threading.Lock()

    @property
    def started(self) -> bool:
        """Whether it has had its turn, or never will."""
        return self._posted.is_set()

    def start(self) -> bool:
        """It is its turn; whether it had not had it before."""
        if self.started:
            return False
        assert self._post is not None
        self._work, self._post = self._post(), None
        self._posted.set()
        return True

    def fail(self, error: str) -> None:
        """Its turn will not come."""
        self.error, self._post, self.ended = error, None, time.perf_counter()
        self._posted.set()

    def wait(self, limit: timedelta | None = None) -> None:
        """Until it has come, or gone, or for so long."""
        seconds = self._road.limit if limit is None else limit.total_seconds()
        if not (self._posted.wait(seconds) and self._turn.acquire(timeout=seconds)):
            self._road.shut()
            raise RuntimeError("timed out")
        try:
            if not self.ended:
                self._land(timedelta(seconds=seconds))
        finally:
            self._turn.release()
        if self.error:
            raise RuntimeError(self.error)

    def _land(self, limit: timedelta) -> None:
        assert self._work is not None
        try:
            self._work.wait(limit)
        except RuntimeError as error:
            self.error = str(error)
        self._work, self.ended = None, time.perf_counter()


class Piece:
    """What comes, and what goes in exchange."""

    def __init__(self, road: Road, step: float, come: Half | None, go: Half | None) -> None:
        self.road, self.step, self.come, self.go = road, step, come, go
        self.halves = [half for half in (come, go) if half is not None]
        self.size = max(half.size for half in self.halves)
        self.began, self.alone = math.inf, False
        """When it had its turn, and whether both directions began then, with nothing under way before them."""

    @property
    def error(self) -> str:
        """What went wrong, if anything did."""
        return next((half.error for half in self.halves if half.error), "")

    @property
    def ended(self) -> float:
        """When both were seen to be over; zero before."""
        times = [half.ended for half in self.halves]
        return max(times) if all(times) else 0.0


class Roads:
    """The ways of this process to the others of a group of gloo."""

    def __init__(self, group: Any, *, limit: float, in_pieces: bool = True) -> None:
        """A piece has `limit` seconds unless it is told otherwise. All processes go `in_pieces`, or none."""
        self.group, self.limit, self.in_pieces = group, limit, in_pieces
        self.lock = threading.Lock()
        self._all: dict[tuple[int, bool], Road] = {}

    def to(self, place: int, *, aside: bool = False) -> Road:
        """To the process with that place in the group; another one for what is said `aside`, out of any order."""
        with self.lock:
            found = self._all.get((place, aside))
            if found is None:
                found = self._all[place, aside] = Road(self, place)
            return found

    def before(self, road: Road, step: float) -> Piece | None:
        """A piece under way elsewhere that must be over before one of this step is posted; with the lock."""
        others = (other.blocks(step) for other in self._all.values() if other is not road)
        return next((piece for piece in others if piece is not None), None)


class Road:
    """This process's end of the way to another one."""

    def __init__(self, roads: Roads, place: int) -> None:
        self.limit, self.pace = roads.limit, Pace()
        self._roads, self._group, self._place = roads, roads.group, place
        self._pieces: deque[Piece] = deque()
        """Those that are not over, as far as anybody has looked."""
        self._attended = self._idle = False
        """Whether a thread sees to it that those that are waiting get their turn, and whether it has nothing to do."""
        self._more = threading.Condition(roads.lock)
        """Somebody has something to do for it."""
        self._error = ""

    def carry(self, incoming: Sequence[Tensor], outgoing: Sequence[Tensor], step: float, tag: int) -> list[Half]:
        """Receives and sends contiguous tensors, each in their order; what is to be waited for.

        They wait for those of an earlier `step`, and no message of that step may wait for them, at any process. What
        this end receives and sends in one call, the other one sends and receives in one call.
        """
        recv, send, now = self._group.recv, self._group.send, time.perf_counter()
        cut = _cut if self._roads.in_pieces else iter
        comes = [Half(self, partial(recv, [v], self._place, tag), RECEIVING, v.nbytes) for v in cut(incoming)]
        goes = [Half(self, partial(send, [v], self._place, tag), SENDING, v.nbytes) for v in cut(outgoing)]
        if not self._roads.in_pieces:
            for half in (*comes, *goes):
                half.start()
            return [*comes, *goes]
        pieces = [Piece(self, step, come, go) for come, go in zip_longest(comes, goes)]
        with self._roads.lock:
            if not self._error:
                self._pieces += pieces
                if self._idle:
                    self._idle = False
                    self._more.notify()
                elif self._attended or len(pieces) == 1:
                    self._go_on()
            if self._error:
                raise RuntimeError(self._error)
            if self._waiting and not self._attended:
                self._attended = True
                beside(partial(self._attend, now), self.shut)
        return [half for piece in pieces for half in piece.halves]

    def shut(self) -> None:
        """Ends whatever waits, at both ends and from any thread."""
        break_off(self._group, self._place)

    def blocks(self, step: float) -> Piece | None:
        """The first piece here, if pieces of that step must wait elsewhere for those before it; with the lock."""
        first = self._first
        if first is None or first.step >= step:
            return None
        left = sum(piece.size for piece in self._pieces if piece.step < step)
        return first if left > self.pace.ahead else None

    @property
    def _first(self) -> Piece | None:
        while self._pieces and self._pieces[0].ended:
            error = self._pieces.popleft().error
            if error:
                self._fail(error)
        return self._pieces[0] if self._pieces else None

    @property
    def _waiting(self) -> bool:
        """Whether some have not had their turn."""
        return bool(self._pieces) and self._pieces[-1].began == math.inf

    def _go_on(self) -> None:
        """Lets those have their turn that may be under way now; with the lock."""
        window, awaited, first, now = self.pace.window, self.pace.awaited, self._first, time.perf_counter()
        sends, full, before, free = list[Half](), False, 0, -math.inf
        try:
            for piece in self._pieces:
                if piece.began == math.inf:
                    if piece is not first and before + piece.size > awaited:
                        break
                    if piece.step > free and self._roads.before(self, piece.step):
                        break
                    free = max(free, piece.step)
                    fresh = piece.come is not None and piece.come.start()
                    full = piece is not first and before + piece.size > window
                    if not full:
                        piece.began, piece.alone = now, piece is first and fresh and piece.go is not None
                        sends += [] if piece.go is None else [piece.go]
                before += piece.size
            for half in sends:  # the word that more is awaited would have to wait behind them
                half.start()
        except RuntimeError as error:
            self._fail(str(error))

    def _fail(self, error: str) -> None:
        """Nothing more goes this way; with the lock."""
        self._error = self._error or error
        for piece in self._pieces:
            for half in piece.halves:
                if not half.started:
                    half.fail(self._error)
        self._pieces.clear()

    def _attend(self, since: float) -> None:
        """Gives those that are waiting their turn, in a thread of its own, until none has come for a while."""
        more = True
        while more:
            self._give_turns(since)
            with self._roads.lock:
                more = self._comes()

    def _give_turns(self, since: float) -> None:
        """Until nothing is waiting; what was seen to be carried meanwhile tells the pace."""
        seen: list[Piece] = []
        while (piece := self._next()) is not None:
            try:
                for half in piece.halves:
                    half.wait(FOREVER)
            except RuntimeError as error:
                with self._roads.lock:
                    piece.road._fail(str(error))
                continue
            if piece.road is not self:
                continue
            if piece.alone:
                self.pace.took(piece.ended - piece.began)
            if piece.began >= since:  # others may have come long before anybody looked
                seen.append(piece)
        if len(seen) >= MANY:
            self.pace.carried(sum(piece.size for piece in seen[1:]), seen[-1].ended - seen[0].ended)

    def _comes(self) -> bool:
        """Whether something is waiting, now or in a moment; if not, the thread is gone. With the lock."""
        if not self._waiting:
            self._idle = True
            self._more.wait(LINGER)
            self._attended, self._idle = not self._idle, False
        return self._attended

    def _next(self) -> Piece | None:
        """What is to be waited for, as long as some are waiting."""
        with self._roads.lock:
            while True:
                self._go_on()
                first = self._first
                if first is None or not self._waiting:
                    return None
                piece = first if first.began < math.inf else self._roads.before(self, first.step)
                if piece is not None:
                    return piece


def _cut(messages: Iterable[Tensor]) -> Iterator[Tensor]:
    for whole in messages:
        each = max(1, PIECE_BYTES // whole.element_size())
        yield from whole.view(-1).split(each) if whole.numel() > each else (whole,)
