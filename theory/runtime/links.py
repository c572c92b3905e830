r"""What an exchange costs on a cluster: latency, bandwidth, and cards that several workers share.

`nodes` machines with `per_node` workers each; a link inside a node and one between nodes, each with a latency (s) and a
bandwidth (bytes/s, each way). Worker i lives on node i // per_node. What is assumed, all of it ours:

- A message of V bytes takes latency + V/bandwidth. The messages of one round that leave (or enter) one worker share its
  link inside the node; those that leave (or enter) one node share its card, `cards` of which every node has.
- A ring all-reduce among g workers sends 2(g-1) pieces of V/g, each when the one before has come:
  $2(g-1)\,(\text{latency} + V/(g \cdot \text{bandwidth}))$ with the slowest link on the way; on the ring one message at
  a time leaves each node.
- An exchange between two is one message each way, at the same time.

So for one-peer exchange between nodes $\omega = n/(2(n-1))$ where one worker lives on each node: half of all-reduce.
Where L workers share a card and all of them talk to another node, it is L times as much; that is what schedules that
alternate between machines (AER) avoid, and `round_on` counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dissensus.theory.errors import MixingError
from dissensus.theory.mixing import MixingMatrix
from dissensus.theory.runtime.recursion import Round
from dissensus.theory.topology import Topology

HORIZON = 64
"""Rounds of a schedule that is drawn anew at every step, or is longer than this, that stand for all."""


@dataclass(frozen=True)
class Link:
    """A way for messages."""

    latency: float
    """Seconds before the first byte arrives."""
    bandwidth: float
    """Bytes per second, each way."""

    def __post_init__(self) -> None:
        if not (np.isfinite(self.latency) and self.latency >= 0 and self.bandwidth > 0):
            raise MixingError(
                "a link needs a latency >= 0 in seconds and a bandwidth > 0 in bytes/s, "
                f"got {self.latency} and {self.bandwidth}"
            )

    def seconds(self, size: float) -> float:
        """How long a message of so many bytes takes when it is alone."""
        return self.latency + size / self.bandwidth


@dataclass(frozen=True)
class Cluster:
    """Machines, workers on them, and the links inside and between."""

    nodes: int
    per_node: int
    inside: Link
    between: Link
    cards: int = 1
    """Network cards of a node, shared by its workers."""
    name: str = "cluster"

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.per_node < 1 or self.cards < 1:
            raise MixingError(
                "a cluster needs at least one node, worker and card, "
                f"got {self.nodes} x {self.per_node}, {self.cards} cards"
            )

    @property
    def size(self) -> int:
        """How many workers."""
        return self.nodes * self.per_node

    def all_reduce(self, size: float) -> float:
        """Seconds of a ring all-reduce of so many bytes among all workers."""
        return self.group_all_reduce(range(self.size), size)

    def group_all_reduce(self, group: Sequence[int], size: float, sharing: int = 1) -> float:
        """The same among some, when `sharing` rings use the card of a node at the same time."""
        g, nodes = len(group), {i // self.per_node for i in group}
        if g == 1:
            return 0.0
        pieces, piece = 2 * (g - 1), size / g
        links = [self.between] if len(nodes) == g else [self.inside, self.between] if len(nodes) > 1 else [self.inside]
        slowest = max(
            link.latency + piece * (max(1.0, sharing / self.cards) if link is self.between else 1.0) / link.bandwidth
            for link in links
        )
        return pieces * slowest

    def round_on(self, w: MixingMatrix, size: float, *, groups: bool = False) -> Round:
        """One round of exchange of so many bytes: who waits for whom, and how long.

        `groups`: where all workers mix completely among some of them each, they do it by all-reduces, as decent-dp
        does; otherwise everybody sends messages to whoever hears it, as `dissensus.decentralize` does.
        """
        if w.size != self.size:
            raise MixingError(
                f"{self.name} has {self.size} workers and the topology {w.size}: give it nodes or workers anew"
            )
        receiver, sender = w.weights.tocoo().coords
        other = receiver != sender
        receiver, sender = receiver[other], sender[other]
        senders = _padded(w.size, receiver, sender)
        members = [tuple(sorted({int(j) for j in row} | {i})) for i, row in enumerate(senders)] if groups else []
        if groups and all(members[j] == one for one in set(members) for j in one):
            return Round(senders, self._in_groups(members, size))
        return Round(senders, self._by_messages(receiver, sender, size))

    def _by_messages(self, receiver: np.ndarray, sender: np.ndarray, size: float) -> np.ndarray:
        n, node = self.size, lambda i: i // self.per_node
        far = node(receiver) != node(sender)
        out, into = np.bincount(sender[~far], minlength=n), np.bincount(receiver[~far], minlength=n)
        near_seconds = self.inside.latency + np.maximum(out[sender], into[receiver]) * size / self.inside.bandwidth
        leave, enter = (np.bincount(node(x[far]), minlength=self.nodes) for x in (sender, receiver))
        crowd = np.maximum(leave[node(sender)], enter[node(receiver)]) / self.cards
        far_seconds = self.between.latency + np.maximum(crowd, 1.0) * size / self.between.bandwidth
        delay = np.zeros(n)
        seconds = np.where(far, far_seconds, near_seconds)
        np.maximum.at(delay, receiver, seconds)
        np.maximum.at(delay, sender, seconds)
        heard = np.bincount(receiver, minlength=n) > 0
        return np.where(heard, delay, 0.0)

    def _in_groups(self, members: Sequence[tuple[int, ...]], size: float) -> np.ndarray:
        groups = set(members)
        crossing = np.zeros(self.nodes)
        for group in groups:
            nodes = {i // self.per_node for i in group}
            for at in nodes if len(nodes) > 1 else ():
                crossing[at] += 1
        found = {
            group: self.group_all_reduce(
                group, size, int(max((crossing[i // self.per_node] for i in group), default=1)) or 1
            )
            for group in groups
        }
        return np.array([found[group] for group in members])


def rounds_on(topology: Topology, cluster: Cluster, size: float, *, groups: bool = False) -> list[Round]:
    """The rounds of a topology on a cluster, for models of so many bytes."""
    period = min(topology.period or HORIZON, HORIZON)
    return [cluster.round_on(topology[t], size, groups=groups) for t in range(period)]


def even_rounds(topology: Topology, delay: float) -> list[Round]:
    """The rounds of a topology where every exchange takes as long as every other, whoever hears how many."""
    period = min(topology.period or HORIZON, HORIZON)
    found = []
    for t in range(period):
        receiver, sender = topology[t].weights.tocoo().coords
        other = receiver != sender
        senders = _padded(topology.size, receiver[other], sender[other])
        found.append(Round(senders, np.full(topology.size, float(delay))))
    return found


def _padded(n: int, receiver: np.ndarray, sender: np.ndarray) -> np.ndarray:
    """Whom each hears, as a rectangle: rows are filled up with their own number."""
    order = np.argsort(receiver, kind="stable")
    receiver, sender = receiver[order], sender[order]
    counts = np.bincount(receiver, minlength=n)
    found = np.repeat(np.arange(n)[:, None], max(1, int(counts.max(initial=0))), axis=1)
    starts = np.concatenate([[0], np.cumsum(counts)])
    found[receiver, np.arange(len(receiver)) - starts[receiver]] = sender
    return found
