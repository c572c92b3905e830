"""What is compared at the end of training: every number's name in the records, its words, its weights and its unit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from dissensus.theory.errors import nearest

Direction = Literal["higher", "lower"]


@dataclass(frozen=True)
class Quantity:
    """A number of the records, and how people are told of it."""

    name: str
    header: str
    which: str
    """The weights it speaks of: `consensus` or `workers`."""
    higher: str
    """What an arm with more of it has."""
    lower: str
    scale: float = 1.0
    """From the unit of the records to that of the page."""
    unit: str = ""
    """What is said behind a difference."""

    def words(self, direction: Direction) -> str:
        """What an arm that lies in this direction has."""
        return self.higher if direction == "higher" else self.lower


QUANTITIES = (
    Quantity(
        "test_accuracy", "test accuracy (%)", "consensus",
        "higher test accuracy", "lower test accuracy", scale=100.0, unit=" points",
    ),
    Quantity("test_loss", "test loss", "consensus", "higher test loss", "lower test loss", unit=" nats"),
    Quantity("train_loss", "training loss", "consensus", "higher training loss", "lower training loss", unit=" nats"),
    Quantity("hessian_trace", "tr H", "consensus", "larger Hessian trace (sharper)", "smaller Hessian trace (flatter)"),
    Quantity(
        "top_eigenvalue", "λ max", "consensus",
        "larger largest eigenvalue (sharper)", "smaller largest eigenvalue (flatter)",
    ),
    Quantity(
        "consensus_distance", "consensus distance Ξ", "workers",
        "larger consensus distance", "smaller consensus distance",
    ),
    Quantity(
        "envelope", "envelope", "workers",
        "larger Hessian-weighted envelope", "smaller Hessian-weighted envelope", unit=" nats",
    ),
    Quantity(
        "alignment_normalised", "alignment", "workers",
        "stronger normalised alignment", "weaker normalised alignment",
    ),
)  # fmt: skip

QUANTITY = {quantity.name: quantity for quantity in QUANTITIES}

EXPECTED: Mapping[str, Direction] = {
    "test_accuracy": "higher",
    "test_loss": "lower",
    "hessian_trace": "lower",
    "top_eigenvalue": "lower",
    "consensus_distance": "higher",
    "envelope": "higher",
    "alignment_normalised": "higher",
}
"""What the adaptive-consensus papers claim of the treatment; that the opposite can come out, and is then said, is the
point."""


def check_known(names: Iterable[str]) -> None:
    """Refuses a quantity that is not compared, naming the nearest that is."""
    for name in names:
        if name not in QUANTITY:
            raise ValueError(f"there is no quantity {name!r}{nearest(name, QUANTITY)}")
