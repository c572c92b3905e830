"""Worst cases instead of chance: the instance behind a certificate, run, and the certified value beside it.

A random instance is seldom bad. Here the setting alone is random: what is measured is the run that attains the exact
worst case over all functions and all mixing matrices of the class, so that the slack is the looseness of the bound
itself. Where functions have bounded slope no run is rebuilt (it would depend on which subgradient is taken), and what
is measured is the criterion at the instance that the solver found, less the accuracy to which it respects the class.
"""

from __future__ import annotations

from typing import Any

from dissensus.theory.certificates.certificate import LARGEST_GAP, certificate_of
from dissensus.theory.certificates.guarantees import guarantees
from dissensus.theory.certificates.setting import Setting, setting
from dissensus.theory.certificates.worst_case import worst_case
from dissensus.theory.topology import from_matrices
from dissensus.theory.trials.base import Draws, Trial, trial
from dissensus.theory.trials.doubly_stochastic import one_peer_exponential, one_peer_ring

FAMILY, SOLVER, MOST = "certificate", "clarabel", 60
"""Name of the families, what they need, and how many instances of each are worth their time."""


def certified(of: Setting, bound: str) -> Trial:
    """The facts of the class, the worst run of it, and the certified value."""
    guarantee = next(g for g in guarantees(of) if g.bound == bound)
    found = certificate_of(of)
    if not found.certified:  # an unproven instance is still one of the class, if it was rebuilt
        value = 0.0 if of.lipschitz is not None or found.multipliers is None else worst_case(found).measured()
        return Trial(guarantee.problem, guarantee.of(value))
    value = guarantee.of(found.value)
    if of.lipschitz is not None:
        return Trial(guarantee.problem, guarantee.of(found.primal), rounding=LARGEST_GAP * value, certified=value)
    return Trial(guarantee.problem, guarantee.of(worst_case(found).measured()), certified=value)


def _class(draws: Draws) -> dict[str, Any]:
    """A contraction, units, and few steps."""
    return {
        "contraction": draws.choice((0.0, draws.real(0.0, 0.9), 1.0 - draws.real(1e-2, 1.0, log=True))),
        "smoothness": draws.real(0.1, 10.0, log=True),
        "distance": draws.real(0.1, 10.0, log=True),
        "steps": draws.integer(1, 4),
    }


def _heterogeneity(draws: Draws, of: dict[str, Any]) -> float:
    """About as steep as the functions are at the start, or nothing."""
    scale = of["smoothness"] * of["distance"]
    return draws.choice((0.0, (scale * draws.real(0.03, 10.0, log=True)) ** 2))


@trial("convex-descent", FAMILY, needs=SOLVER, most=MOST)
def convex_descent(draws: Draws) -> Trial:
    """The average excess, both orders, up to the largest learning rate."""
    of, order = _class(draws), draws.choice(("awc", "atc"))
    first = 1.0 if order == "awc" else of["contraction"]
    memory = first * sum(of["contraction"] ** k for k in range(of["steps"] - 1))
    lr = draws.choice((1.0, draws.real(0.03, 1.0, log=True))) * 0.999 / (of["smoothness"] * max(1.0, memory))
    return certified(setting(**of, lr=lr, order=order, heterogeneity=_heterogeneity(draws, of)), "convex-descent")


@trial("periodic-convex-descent", FAMILY, needs=SOLVER, most=MOST)
def periodic(draws: Draws) -> Trial:
    """One-peer schedules of few workers, each told apart."""
    n, steps, order = draws.integer(2, 4), draws.integer(1, 3), draws.choice(("awc", "atc"))
    rounds = draws.choice((one_peer_exponential, one_peer_ring))(n)
    lr = draws.choice((1.0, draws.real(0.03, 1.0, log=True))) * 0.999 / max(1.0, steps - 1.0)
    of = setting(topology=from_matrices(rounds), steps=steps, lr=lr, order=order, heterogeneity=draws.real(0.0, 4.0))
    return certified(of, "periodic-convex-descent")


@trial("yuan-ling-yin-deviation", FAMILY, needs=SOLVER, most=MOST)
def deviation(draws: Draws) -> Trial:
    """Disagreement; functions are strongly convex, or have their minimum together."""
    of, lr = _settled(draws)
    return certified(setting(**of, lr=lr, criterion="consensus"), "yuan-ling-yin-deviation")


@trial("strongly-convex-neighbourhood", FAMILY, needs=SOLVER, most=MOST)
def neighbourhood(draws: Draws) -> Trial:
    """Where the mean is after some steps."""
    of, lr = _settled(draws, curved=True)
    lr = min(lr, 2.0 / (of["smoothness"] + of["convexity"]) * (1.0 - 1e-12))
    return certified(setting(**of, lr=lr, criterion="mean"), "strongly-convex-neighbourhood")


def _settled(draws: Draws, *, curved: bool = False) -> tuple[dict[str, Any], float]:
    """A class in which DGD descends its potential, and a learning rate with which it does."""
    of = _class(draws)
    share = draws.real(0.02, 0.9, log=True)
    of["convexity"] = of["smoothness"] * (share if curved or draws.choice((True, False)) else 0.0)
    of["heterogeneity"] = _heterogeneity(draws, of) if of["convexity"] else 0.0
    most = (1.0 - of["contraction"]) / of["smoothness"] * (1.0 - 1e-12)
    return of, most * draws.choice((1.0, draws.real(0.03, 1.0, log=True)))


@trial("subgradient-descent", FAMILY, needs=SOLVER, most=MOST)
def subgradients(draws: Draws) -> Trial:
    """The average iterate, bounded slopes."""
    return certified(_steep(draws, draws.choice(("awc", "atc"))), "subgradient-descent")


@trial("subgradient-recalled", FAMILY, needs=SOLVER, most=MOST)
def subgradients_recalled(draws: Draws) -> Trial:
    """The same against the known form."""
    return certified(_steep(draws, "awc"), "subgradient-recalled")


def _steep(draws: Draws, order: str) -> Setting:
    of = _class(draws)
    slope = of.pop("smoothness")
    lr = draws.real(0.1, 3.0, log=True) * of["distance"] / (slope * of["steps"] ** 0.5)
    return setting(**of, lr=lr, order=order, lipschitz=slope, criterion="average")


@trial("gradient-tracking-error", FAMILY, needs=SOLVER, most=MOST)
def tracking(draws: Draws) -> Trial:
    """The distance to the optimum of gradient tracking."""
    of = _class(draws)
    of["convexity"] = of["smoothness"] * draws.real(0.02, 0.9, log=True)
    lr = draws.real(0.01, 1.0, log=True) / of["smoothness"]
    of["heterogeneity"] = _heterogeneity(draws, of)
    return certified(setting("gradient-tracking", **of, lr=lr, criterion="distance"), "gradient-tracking-error")
