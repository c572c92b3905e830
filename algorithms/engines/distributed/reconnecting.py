"""A new group of the transport among processes that have agreed on one, whatever has become of the old one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist

from dissensus.algorithms.engines.distributed.letterbox import Letterbox, Place
from dissensus.algorithms.engines.distributed.membership import Members, Membership

CONNECTS_WITHIN = 30.0
"""Seconds in which a group that was agreed upon must stand."""
ASKED_EVERY = 0.02
"""Seconds between two questions to the store."""
_gloo: Any = dist


class Groups(NamedTuple):
    """What stands. A group of one process is None."""

    been: Any
    """Those that have been there before; of no meaning to one that comes."""
    full: Any
    """All members."""


class Reconnecting:
    """Makes groups of gloo. They meet in a store of whoever decided, and need it no more once they stand."""

    def __init__(self, box: Letterbox, *, timeout: float) -> None:
        self._box, self._timeout = box, timeout
        self._stores: list[Any] = []
        """All that were opened: somebody may be late for one."""

    def meets(self) -> Place:
        """Opens a store in this process."""
        self._stores.append(_gloo.TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False))
        return Place(self._box.place.host, self._stores[-1].port)

    def connected(self, members: Members, membership: Membership) -> Groups | None:
        """The groups, or None if they do not come to be: somebody is gone again, or wants another one."""
        numbers, me = members.numbers, self._box.number
        been = [q for q in numbers if q not in members.newcomers]
        until = time.monotonic() + CONNECTS_WITHIN
        with suppress(RuntimeError):
            store = self._stores[-1] if members.leader == me else None
            if store is None:
                store = _gloo.TCPStore(*members.meets, is_master=False, timeout=timedelta(seconds=5))
            store = _gloo.PrefixStore(f"dissensus/{members.generation}", store)
            store.set(f"here/{me}", "")
            asked = time.monotonic()
            while not (there := store.check([f"here/{q}" for q in numbers])) and not membership.called:
                if time.monotonic() - asked > 1.0:
                    asked = time.monotonic()
                    if asked > until or not membership.lives(members):
                        break
                time.sleep(ASKED_EVERY)
            # gloo cannot be stopped once it connects: all do so or none, as the first of them finds
            if store.compare_set("all", "", "connect" if there else "go away") != b"connect":
                return None
            before = self._group(store, "been", been) if me in been and members.newcomers else None
            full = self._group(store, "full", numbers)
            return Groups(before if members.newcomers else full, full)
        return None

    def _group(self, store: Any, name: str, numbers: Sequence[int]) -> Any:
        if len(numbers) == 1:
            return None
        limit, place = timedelta(seconds=CONNECTS_WITHIN), numbers.index(self._box.number)
        group = _gloo.ProcessGroupGloo(_gloo.PrefixStore(name, store), place, len(numbers), limit)
        group.set_timeout(timedelta(seconds=self._timeout))
        return group
