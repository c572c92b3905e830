"""What is asked of a certificate: method, class of functions, class of mixing, and what is made as bad as can be."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dissensus.theory.certificates.recursions import Recursion, d2, dsgd, extra, gradient_tracking
from dissensus.theory.errors import MixingError, nearest
from dissensus.theory.topology import Topology

CRITERIA = ("objective", "last", "average", "distance", "mean", "consensus", "rate")
METHODS: dict[str, Callable[[str], Recursion]] = {
    "dsgd": dsgd,
    "gradient-tracking": lambda _: gradient_tracking,
    "extra": lambda _: extra,
    "d2": lambda _: d2,
}
"""Every method as a function of the order, which only DSGD has."""
ALIASES = {"dgd": "dsgd", "diging": "gradient-tracking", "exact-diffusion": "d2"}
ORDERS = ("awc", "atc", "cta")
ONE_MATRIX = ("extra", "d2")
"""Methods that remember what was mixed and stand on the same W at every step."""
MOST_UNKNOWNS = 128
"""Workers told apart times samples: above it the Gram matrix is beyond an interior-point method."""


@dataclass(frozen=True, eq=False)
class Setting:
    r"""A method after K steps on the worst functions of a class with the worst mixing matrix of a class.

    Functions are $\mu$-strongly convex and L-smooth, or convex with subgradients of norm at most `lipschitz`. All
    workers start at one point with $\lVert x^0-x^\star\rVert \le D$, and
    $\frac1n\sum_i\lVert\nabla f_i(x^\star)\rVert^2 \le \zeta^2$.
    """

    method: str
    order: str
    mixing: Topology | tuple[float, float]
    """A topology, or the range [low, high] of all eigenvalues of W but the one of consensus."""
    steps: int
    lr: float
    smoothness: float
    convexity: float
    distance: float
    heterogeneity: float
    r"""$\zeta^2$; not used with `lipschitz`, which bounds these gradients too."""
    criterion: str
    size: int | None = None
    """How many workers are told apart; none in the compact form."""
    time_varying: bool = False
    """Whether every exchange may use another W of the range."""
    lipschitz: float | None = None

    def __post_init__(self) -> None:
        name = self.method.replace("_", "-").lower()
        object.__setattr__(self, "method", ALIASES.get(name, name))
        for what, value, known in (
            ("method", self.method, [*METHODS, *ALIASES]),
            ("order", self.order, ORDERS),
            ("criterion", self.criterion, CRITERIA),
        ):
            if value not in known:
                raise MixingError(f"unknown {what} {value!r} of a certificate{nearest(value, known)}")
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 1:
            raise MixingError(f"steps must be a whole number of at least 1, got {self.steps!r}")
        for what in ("lr", "smoothness", "distance", "lipschitz"):
            value = getattr(self, what)
            if value is not None and not 0.0 < value < math.inf:
                raise MixingError(f"{what} must be positive and finite, got {value!r}")
        if not 0.0 <= self.heterogeneity < math.inf:
            raise MixingError(f"heterogeneity is a mean square, finite and not negative, got {self.heterogeneity!r}")
        if not 0.0 <= self.convexity < self.smoothness:
            raise MixingError(
                f"convexity must be at least 0 and below the smoothness {self.smoothness:g}, got {self.convexity!r}"
            )
        if self.lipschitz is not None and self.convexity > 0:
            raise MixingError(
                f"functions of bounded slope are not strongly convex: with lipschitz = {self.lipschitz:g} the "
                f"convexity is 0, got {self.convexity:g}"
            )
        if self.criterion == "rate" and (self.method != "gradient-tracking" or self.lipschitz is not None):
            raise MixingError(
                "criterion 'rate' is that of gradient-tracking on smooth functions, which has a measure that falls; "
                f"for {self.method} {'of bounded slope ' if self.lipschitz else ''}take 'distance'"
            )
        self._check_mixing()

    def _check_mixing(self) -> None:
        mixing = self.mixing
        if isinstance(mixing, Topology):
            if mixing.promise != "doubly":
                raise MixingError(
                    f"a certificate needs doubly stochastic rounds, but {mixing!r} is {mixing.promise} stochastic"
                )
            if self.size not in (None, mixing.size):
                raise MixingError(f"the topology has {mixing.size} workers, but size = {self.size}; leave size out")
            if self.method in ONE_MATRIX and not mixing.is_static:
                raise MixingError(f"{self.method} needs the same W at every step, but {mixing!r} is not static")
            object.__setattr__(self, "size", mixing.size)
        else:
            low, high = mixing
            if not -1.0 <= low <= high <= 1.0:
                raise MixingError(f"eigenvalues must lie in [-1, 1], the low end first, got [{low:g}, {high:g}]")
            if self.size is not None and self.size < 2:
                raise MixingError(f"a class of mixing matrices needs at least 2 workers, got size = {self.size}")
            if self.time_varying and self.method in ONE_MATRIX:
                raise MixingError(f"{self.method} needs the same W at every step: it has no time-varying class")
        if (self.size or 1) * (2 * self.steps + 2) > MOST_UNKNOWNS:
            told = "the compact form" if self.size is None else f"{self.size} workers told apart"
            raise MixingError(
                f"{told} over {self.steps} steps is too large a program; take fewer steps"
                + ("" if self.size is None else ", or a contraction: the compact form does not grow with n")
            )

    @property
    def range(self) -> tuple[Fraction, Fraction] | None:
        """The exact ends of the class of W, or none where W is given."""
        return None if isinstance(self.mixing, Topology) else (Fraction(self.mixing[0]), Fraction(self.mixing[1]))

    @property
    def weight(self) -> Fraction:
        r"""$\alpha/L$, the weight of the tracking error in the measure of `rate`."""
        return Fraction(self.lr) / Fraction(self.smoothness)

    def recursion(self) -> Recursion:
        """The method as a recursion on unknown, or known, points."""
        return METHODS[self.method](self.order)


def setting(
    method: str = "dsgd",
    *,
    steps: int,
    lr: float,
    contraction: float | None = None,
    eigenvalues: tuple[float, float] | None = None,
    topology: Topology | None = None,
    order: str = "awc",
    smoothness: float = 1.0,
    convexity: float = 0.0,
    lipschitz: float | None = None,
    distance: float = 1.0,
    heterogeneity: float = 1.0,
    criterion: str = "objective",
    size: int | None = None,
    time_varying: bool = False,
) -> Setting:
    r"""A setting, from one of the three ways to say what mixes.

    Args:
        method: dsgd (dgd), gradient-tracking (diging), extra or d2.
        steps: K.
        lr: the learning rate.
        contraction: all symmetric W whose eigenvalues but that of consensus lie in [-contraction, contraction].
        eigenvalues: all symmetric W whose eigenvalues but that of consensus lie in (low, high).
        topology: the rounds of this topology and no others.
        order: of dsgd: awc, atc or cta.
        smoothness: L.
        convexity: mu; 0 for convex functions.
        lipschitz: bounds the subgradients of convex functions that need not be smooth; L is then not used.
        distance: D, of the common start to the optimum.
        heterogeneity: the mean square of the workers' gradients at the optimum.
        criterion: `objective`: the mean over steps 0 to K - 1 of F at the mean of the workers, above its minimum.
            `last`: the same at step K. `average`: F at the mean over workers and steps 0 to K. `distance`: the mean
            over workers of the squared distance to the optimum at step K. `mean`: that of the mean of the workers.
            `consensus`: the mean over workers of the squared distance to their mean. `rate`: of gradient tracking from
            anywhere, by which its measure falls over K steps.
        size: tells so many workers apart; without it the compact form stands for every number of them.
        time_varying: whether every exchange may use another W of the class.
    """
    given = [v for v in (contraction, eigenvalues, topology) if v is not None]
    if len(given) != 1:
        raise MixingError(f"say what mixes in one way, contraction, eigenvalues or topology: got {len(given)} of them")
    mixing: Any = topology
    if contraction is not None:
        if not 0.0 <= contraction <= 1.0:
            raise MixingError(f"contraction must lie in [0, 1], got {contraction!r}")
        mixing = (-float(contraction), float(contraction))
    elif eigenvalues is not None:
        if len(eigenvalues) != 2:
            raise MixingError(
                f"eigenvalues are a range (low, high), got {len(eigenvalues)} numbers; name a topology to fix them all"
            )
        mixing = (float(eigenvalues[0]), float(eigenvalues[1]))
    return Setting(
        method,
        order,
        mixing,
        steps,
        float(lr),
        float(smoothness),
        float(convexity),
        float(distance),
        float(heterogeneity),
        criterion,
        size,
        time_varying,
        None if lipschitz is None else float(lipschitz),
    )
