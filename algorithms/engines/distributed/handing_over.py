"""What a process that was started again takes over from a neighbour: everything, as it stands when a step begins."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from dissensus.algorithms.engines.distributed.rounds import Rounds
from dissensus.algorithms.engines.distributed.wire import TAGS, Wire
from dissensus.theory.topology import Topology


class Host(Protocol):
    """Whose exchange it is: what is done with its worker when the group changes."""

    @property
    def parts(self) -> int:
        """How many parts (buckets) a step begins with, one after the other."""
        ...

    @property
    def isolated(self) -> bool:
        """Whether its worker is cut off from the others."""
        ...

    def align(self, source: int) -> None:
        """Makes workers equal that are meant to be: what was lost may have been answered on some of them only."""
        ...

    def reform(self, k: int) -> None:
        """Lets the algorithm's memory of part k start anew, for another group."""
        ...

    def give(self, step: int, to: int) -> Any:
        """Everything process `to` needs to begin that step, in tensors and plain values."""
        ...

    @property
    def facts(self) -> Mapping[str, Any]:
        """What must be the same everywhere."""
        ...

    def welcome(self, facts: Mapping[str, Any]) -> None:
        """Refuses, in a process that comes, facts of the others that are not its own."""
        ...

    def receive(self, given: Any) -> None:
        """Takes that over."""
        ...


def donor(topology: Topology, size: int, newcomer: int, been: Sequence[int], isolated: Sequence[int] = ()) -> int:
    """Who gives to a newcomer: its first neighbour in the topology that has been there, or else whoever has.

    Nobody who is isolated does, as long as there are others: it stands where it was when it was cut off.
    """
    been = [q for q in been if q not in isolated] or been
    rounds = Rounds(topology, newcomer, size)
    near = {q for t in range(topology.period or size) for q, _ in rounds[t].receives}
    return min((q for q in been if q in near), default=min(been))


def hand_over(wire: Wire, given: Any, to: int, step: int) -> None:
    """Sends tensors and plain values to a newcomer, aside from the exchanges that may be under way already."""
    packed = io.BytesIO()
    torch.save(given, packed)
    data = torch.frombuffer(packed.getbuffer(), dtype=torch.uint8)
    for message in (torch.tensor([len(data)]), data):
        wire.land(wire.post([(to, message)], [], what="handing over", step=step, tag=TAGS))


def take_over(wire: Wire, giver: int, step: int) -> Any:
    """The other side."""

    def received(into: Tensor) -> Tensor:
        wire.land(wire.post([], [(giver, into)], what="taking over", step=step, tag=TAGS))
        return into

    size = int(received(torch.zeros(1, dtype=torch.int64)))
    data = received(torch.empty(size, dtype=torch.uint8))
    return torch.load(io.BytesIO(data.numpy().tobytes()), map_location="cpu", weights_only=True)
