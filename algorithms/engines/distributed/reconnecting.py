"""A new group of the transport among processes that have agreed on one, whatever has become of the old one."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from dissensus.algorithms.engines.distributed.letterbox import Letterbox, Place
from dissensus.algorithms.engines.distributed.membership import Members, Membership

CONNECTS_WITHIN = 30.0
"""Seconds in which a group that was agreed upon must stand."""
ASKED_EVERY = 0.02
"""Seconds between two questions to the store."""
_gloo: Any = dist


class Reconnecting:
    """Makes groups of gloo. They meet in a store of whoever decided, and need it no more once they stand."""

    def __init__(self, box: Letterbox, *, timeout: float) -> None:
        self._box, self._timeout = box, timeout
        self._store: Any = None

    def meets(self) -> Place:
        """Opens a store in this process."""
        self._store = _gloo.TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False)
        return Place(self._box.place.host, self._store.port)

    def connected(self, members: Members, membership: Membership) -> Any:
        """The group, or None if it does not come to be: somebody is gone again, or wants another one."""
        numbers = members.numbers
        me, until = numbers.index(self._box.number), time.monotonic() + CONNECTS_WITHIN
        limit, brief = timedelta(seconds=CONNECTS_WITHIN), timedelta(seconds=5)
        with suppress(RuntimeError):
            store = self._store
            if members.leader != self._box.number:
                store = _gloo.TCPStore(*members.meets, is_master=False, timeout=brief)
            store = _gloo.PrefixStore(f"dissensus/{members.generation}", store)
            store.set(f"here/{me}", "")
            asked = time.monotonic()
            # gloo cannot be stopped once it connects: it does so when all are there
            while not store.check([f"here/{q}" for q in range(len(numbers))]):
                if time.monotonic() - asked > 1.0:
                    asked = time.monotonic()
                    if asked > until or not membership.lives(members):
                        return None
                if membership.called:
                    return None
                time.sleep(ASKED_EVERY)
            group = _gloo.ProcessGroupGloo(store, me, len(numbers), limit)
            group.set_timeout(timedelta(seconds=self._timeout))
            return group
        return None
