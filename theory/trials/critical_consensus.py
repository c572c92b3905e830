"""The exact descent of the mean of workers apart: on quadratics, and on the worst functions of one dimension."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np

from dissensus.theory.bounds.critical_consensus import ControlledRun, DistantStep, MeanStep
from dissensus.theory.trials import graphs
from dissensus.theory.trials.base import Draws, Trial, trial
from dissensus.theory.trials.consensus_floor import Run, curvatures


class _Quadratics:
    r"""Workers on $f_i(x) = \frac12 x^\top H_i x - b_i^\top x$ about a mean at zero, one step with isotropic noise."""

    def __init__(self, draws: Draws) -> None:
        self.n, self.d = draws.integer(2, 8), draws.integer(1, 3)
        self.smoothness = draws.real(1e-2, 1e1, log=True)
        rng = draws.generator()
        h = curvatures(draws, self.n, self.d, -self.smoothness, self.smoothness)
        mean = h.mean(axis=0)
        lowest = float(np.linalg.eigvalsh(mean)[0])
        floor = 1e-2 * self.smoothness
        if lowest < floor:  # F must be bounded below: lift all, then shrink all back below L
            h = h + (floor - lowest) * np.eye(self.d)
            h *= self.smoothness / max(self.smoothness, float(np.abs(np.linalg.eigvalsh(h)).max()))
        self.h, self.mean = h, h.mean(axis=0)
        self.b = rng.normal(size=(self.n, self.d)) * draws.real(1e-2, 1e1, log=True)
        self.slope = -self.b.mean(axis=0)
        self.excess = float(self.slope @ np.linalg.solve(self.mean, self.slope)) / 2.0
        self.lr = draws.real(1e-3, 1.0, log=True) / self.smoothness
        apart = graphs.apart(rng.normal(size=(self.n, self.d)))
        if draws.choice((False, True)):  # the direction in which unlike curvatures turn against the slope
            towards = np.einsum("ijk,k->ij", h - self.mean, -self.slope)
            apart = apart if np.linalg.norm(towards) < 1e-12 else graphs.apart(towards)
        self.apart = apart / math.sqrt(float((apart**2).sum()) / self.n)
        steep = float(np.linalg.norm(self.slope))
        gain = (1.0 - self.lr * self.smoothness / 2.0) * steep**2
        # at most nine tenths of what centralized SGD gains are lost to noise
        share = draws.choice((0.0, 1.0)) * draws.real(0.01, 0.9)
        self.noise = share * gain * 2.0 * self.n / (self.smoothness * self.lr)
        self.facts = MeanStep(self.n, self.smoothness, self.lr, steep, self.noise)

    def change(self, scale: float) -> float:
        """The expected change of F at the mean in one step from workers so far apart."""
        pull = self.slope + scale * np.einsum("ijk,ik->j", self.h, self.apart) / self.n
        moved = -self.lr * pull
        spread = self.lr**2 * self.noise / self.n * float(np.trace(self.mean)) / self.d
        return float(self.slope @ moved + moved @ self.mean @ moved / 2.0) + spread / 2.0


@trial("descent-at-distance")
def distant(draws: Draws) -> Trial:
    """Quadratics of unlike curvatures."""
    q, scale = _Quadratics(draws), draws.real(1e-3, 1e2, log=True)
    scale *= q.facts.slope / q.smoothness
    problem = DistantStep(**q.facts.__dict__, consensus_distance=scale**2, excess=q.excess)
    return Trial(problem, graphs.resolved(q.excess + q.change(scale), problem.excess + abs(q.change(scale))))


@trial("critical-consensus-distance")
def critical(draws: Draws) -> Trial:
    """The scale of a fixed shape at which half of the sure gain is lost, as the root of a quadratic."""
    q = _Quadratics(draws)
    unit, half = q.facts.slope / q.smoothness, q.facts.centralized / 2.0
    at = [q.change(s * unit) + half for s in (0.0, 1.0, 2.0)]
    curve, tilt = (at[2] - 2 * at[1] + at[0]) / 2.0, (4 * at[1] - 3 * at[0] - at[2]) / 2.0
    curve, tilt = graphs.resolved(curve, abs(at[0])), graphs.resolved(tilt, abs(at[0]))
    roots = [float(r.real) for r in np.roots([curve, tilt, at[0]]) if abs(r.imag) < 1e-9 and r.real > 0.0]
    return Trial(q.facts, (min(roots) * unit) ** 2 if roots else math.inf)


class _Kinked:
    r"""The worst there is: F falls like $\frac L2 x^2$ before the mean, half of the workers stand where theirs is -L.

    Worker A stands at s > 0 with the slope G + Lx for x < 0 and G - Lx for x > 0, worker B at -s with the slope G + Lx;
    so both have the gradient G - Ls, and F has the slope G + Lx for x < 0 and G for x > 0.
    """

    def __init__(self, draws: Draws) -> None:
        self.n = 2 * draws.integer(1, 3)
        self.smoothness, self.slope = draws.real(1e-2, 1e1, log=True), draws.real(1e-2, 1e1, log=True)
        self.lr = draws.real(1e-2, 1.0, log=True) / self.smoothness
        self.noise = draws.choice((0.0, 1.0)) * (draws.real(1e-3, 0.5, log=True) * self.slope) ** 2
        self.facts = MeanStep(self.n, self.smoothness, self.lr, self.slope, self.noise)
        self.excess = self.slope**2 / (2.0 * self.smoothness)

    def change(self, scale: float) -> float:
        """The mean over all signs of independent noise of one size."""
        found = []
        for signs in product((-1.0, 1.0), repeat=self.n):
            x = -self.lr * (self.slope - self.smoothness * scale + math.sqrt(self.noise) * sum(signs) / self.n)
            found.append(self.slope * x + (self.smoothness * x**2 / 2.0 if x < 0.0 else 0.0))
        return float(np.mean(found))


@trial("descent-at-distance", "worst functions")
def distant_kinked(draws: Draws) -> Trial:
    """Attained while no noise throws the mean back."""
    q = _Kinked(draws)
    scale = draws.real(1e-3, 1.0, log=True) * q.slope / q.smoothness
    problem = DistantStep(**q.facts.__dict__, consensus_distance=scale**2, excess=q.excess)
    return Trial(problem, q.excess + q.change(scale))


@trial("critical-consensus-distance", "worst functions")
def critical_kinked(draws: Draws) -> Trial:
    """By bisection on the distance; attained while no noise throws the mean back."""
    q = _Kinked(draws)
    half = q.facts.centralized / 2.0
    low, high = 0.0, 2.0 * q.slope / q.smoothness
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (low, middle) if q.change(middle) + half > 0.0 else (middle, high)
    return Trial(q.facts, high**2)


@trial("controlled-descent")
def controlled(draws: Draws) -> Trial:
    """ATC on quadratics with as many rounds of exchange as keep the distance below the critical one at all times."""
    w = graphs.connected(draws, 2, 6)
    n, d, steps = len(w), draws.integer(1, 2), draws.integer(1, 40)
    smoothness, rng = draws.real(1e-2, 1e1, log=True), draws.generator()
    h = curvatures(draws, n, d, 0.01 * smoothness, smoothness)
    push, noise = draws.choice((0.0, 1.0)) * rng.normal(size=(n, d)), draws.choice((0.0, 1.0)) * draws.real(1e-2, 1e1)
    lr, start = draws.real(1e-2, 1.0, log=True) / smoothness, rng.normal(size=d) * draws.real(1e-2, 1e1, log=True)
    run = Run(w, h, push, start, lr, noise, "atc")
    mean, centre = h.mean(axis=0), push.mean(axis=0)
    for _ in range(6):
        distances, slopes = _slopes(run, steps, mean, centre)
        if (distances <= lr * noise / (n * smoothness) + slopes / (2.0 * smoothness**2)).all():
            break
        run = replace(run, w=run.w @ run.w)
    else:
        distances, slopes = _slopes(replace(run, w=graphs.average(n)), steps, mean, centre)
    best = np.linalg.solve(mean, centre)
    excess = float((start - best) @ mean @ (start - best)) / 2.0
    return Trial(ControlledRun(n, smoothness, lr, steps, excess, noise), float(slopes.mean()))


def _slopes(run: Run, steps: int, mean: np.ndarray, centre: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Consensus distances and mean squared gradients at the mean, before each of the steps."""
    moments = run.moments(steps - 1)
    at, spread = run.centre(*moments)
    slopes = ((at @ mean - centre) ** 2).sum(axis=1) + np.einsum("kl,tlk->t", mean @ mean, spread)
    return run.distances(*moments), slopes
