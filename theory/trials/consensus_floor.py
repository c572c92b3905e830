"""Exact moments of DSGD on quadratics from agreement: no sampling, two matrix products a step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import block_diag

from dissensus.theory.bounds.consensus_floor import Convex, LocalSteps, Smooth, SmoothSteps
from dissensus.theory.bounds.consensus_step import Order
from dissensus.theory.trials import graphs
from dissensus.theory.trials.base import Draws, Trial, trial
from dissensus.theory.trials.consensus_step import ORDERS


@dataclass(frozen=True)
class Run:
    r"""DSGD on $f_i(x) = \frac12 x^\top H_i x - b_i^\top x$ with isotropic noise, from one point."""

    w: np.ndarray
    curvature: np.ndarray
    """One H per worker."""
    push: np.ndarray
    """One b per worker."""
    start: np.ndarray
    lr: float
    noise: float
    order: Order

    def moments(self, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance of all workers' coordinates at steps 0 to `steps`."""
        n, d = self.push.shape
        mix = np.kron(self.w, np.eye(d))
        slope = np.asarray(block_diag(*self.curvature))
        if self.order == "atc":
            a, through = mix @ (np.eye(n * d) - self.lr * slope), self.lr * mix
        else:
            a, through = mix - self.lr * slope, self.lr * np.eye(n * d)
        drive, fresh = through @ self.push.ravel(), through @ through.T * self.noise / d
        means, covariances = np.zeros((steps + 1, n * d)), np.zeros((steps + 1, n * d, n * d))
        means[0] = np.tile(self.start, n)
        for t in range(steps):
            means[t + 1] = a @ means[t] + drive
            if self.noise > 0.0:
                covariances[t + 1] = a @ covariances[t] @ a.T + fresh
        return means, covariances

    def centre(self, means: np.ndarray, covariances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance of the mean of the workers, at every step."""
        n, d = self.push.shape
        return means.reshape(-1, n, d).mean(axis=1), covariances.reshape(-1, n, d, n, d).mean(axis=(1, 3))

    def distances(self, means: np.ndarray, covariances: np.ndarray) -> np.ndarray:
        """The expected consensus distance at every step.

        It is a difference of numbers that workers have in common: what it surely is after their rounding, and the
        rounding of what they had in common before.
        """
        n, d = self.push.shape
        rows = means.reshape(-1, n, d)
        lengths = np.linalg.norm(rows - rows.mean(axis=1, keepdims=True), axis=(1, 2))
        fixed = np.maximum(0.0, lengths - 1e-13 * np.maximum.accumulate(np.linalg.norm(rows, axis=(1, 2))))
        whole = np.trace(covariances, axis1=1, axis2=2)
        common = n * np.trace(self.centre(means, covariances)[1], axis1=1, axis2=2)
        return (fixed**2 + np.maximum(0.0, whole - common - 1e-13 * whole)) / n

    def heterogeneity(self, means: np.ndarray, covariances: np.ndarray) -> np.ndarray:
        """The expected mean square of the workers' gradients about their mean, at the mean of the workers."""
        centre, spread = self.centre(means, covariances)
        unlike = graphs.apart(self.curvature)
        slopes = np.einsum("ijk,tk->tij", unlike, centre) - graphs.apart(self.push)
        wide = np.einsum("kl,tlk->t", (unlike.transpose(0, 2, 1) @ unlike).sum(axis=0), spread)
        return ((slopes**2).sum(axis=(1, 2)) + wide) / len(self.w)

    def after(self, steps: int) -> tuple[np.ndarray, float]:
        """Consensus distances at steps 0 to `steps`, and the largest heterogeneity in that time."""
        moments = self.moments(steps)
        return self.distances(*moments), float(self.heterogeneity(*moments).max())


def curvatures(draws: Draws, n: int, d: int, low: float, high: float) -> np.ndarray:
    """Symmetric matrices with eigenvalues in [low, high], alike or not; both ends are reached as often as not."""
    rng, made = draws.generator(), []
    ends = draws.choice((False, True))
    for _ in range(1 if draws.choice((False, True)) else n):
        values = rng.choice([low, high], size=d) if ends else rng.uniform(low, high, size=d)
        q = np.linalg.qr(rng.normal(size=(d, d)))[0]
        made.append((q * values) @ q.T)
    return np.array(made * (n // len(made)))


def _run(draws: Draws, w: np.ndarray, order: Order, lr: float, low: float, high: float) -> Run:
    n, d = len(w), draws.integer(1, 2)
    rng = draws.generator()
    push = rng.normal(size=(n, d)) * draws.choice((0.0, 1.0)) * draws.real(1e-2, 1e1, log=True)
    noise = draws.choice((0.0, 1.0)) * draws.real(1e-2, 1e1, log=True)
    return Run(w, curvatures(draws, n, d, low, high), push, rng.normal(size=d), lr, noise, order)


def _facts(run: Run, smoothness: float, heterogeneity: float) -> Smooth:
    n, lam = len(run.w), graphs.contraction(run.w)
    return Smooth(n, lam, smoothness, run.lr, run.noise, heterogeneity, run.order)


def _from_agreement(run: Run, smoothness: float, steps: int) -> Trial:
    distances, unlike = run.after(steps)
    p = _facts(run, smoothness, unlike)
    return Trial(SmoothSteps(**p.__dict__, steps=steps), float(distances[-1]))


@trial("consensus-from-agreement")
def from_agreement(draws: Draws) -> Trial:
    """Curvatures of both signs, any step size."""
    w, order = graphs.mixing(draws, 2, 7), draws.choice(ORDERS)
    smoothness, lr = draws.real(1e-2, 1e1, log=True), draws.real(1e-3, 1.0, log=True)
    return _from_agreement(_run(draws, w, order, lr, -smoothness, smoothness), smoothness, draws.integer(1, 12))


@trial("consensus-from-agreement", "slowest mode")
def slowest_from_agreement(draws: Draws) -> Trial:
    """One negative curvature and heterogeneity along the slowest mode: attained without noise."""
    n, order = draws.integer(2, 7), draws.choice(ORDERS)
    w = graphs.even(n, draws.real(0.0, 1.0))
    smoothness, lr = draws.real(1e-2, 1e1, log=True), draws.real(1e-3, 1.0, log=True)
    push = graphs.slowest(w)[:, None] * draws.real(1e-2, 1e1, log=True)
    noise = draws.choice((0.0, 1.0)) * draws.real(1e-2, 1e1, log=True)
    run = Run(w, np.full((n, 1, 1), -smoothness), push, np.zeros(1), lr, noise, order)
    return _from_agreement(run, smoothness, draws.integer(1, 12))


@trial("consensus-floor")
def floor(draws: Draws) -> Trial:
    """Curvatures of both signs, steps within what the bound asks for."""
    w, order = graphs.connected(draws, 2, 7) if draws.choice((True, False)) else _directed(draws), draws.choice(ORDERS)
    lam, smoothness = graphs.contraction(w), draws.real(1e-2, 1e1, log=True)
    room = min(3.0, 1.0 / max(lam, 1e-6) - 1.0) if order == "atc" else 1.0 - lam
    lr = draws.real(1e-3, 0.999, log=True) * room / smoothness
    run = _run(draws, w, order, lr, -smoothness, smoothness)
    return _worst(run, smoothness, 40)


def _directed(draws: Draws) -> np.ndarray:
    n = draws.integer(2, 7)
    return 0.9 * graphs.directed(draws, n) + 0.1 * graphs.average(n)


def _worst(run: Run, smoothness: float, steps: int) -> Trial:
    distances, unlike = run.after(steps)
    return Trial(_facts(run, smoothness, unlike), float(distances.max()))


@trial("consensus-floor", "noise alone")
def noise_floor(draws: Draws) -> Trial:
    """No curvature, no heterogeneity; all modes alike: attained as time goes on."""
    n, order = draws.integer(2, 7), draws.choice(ORDERS)
    w = graphs.even(n, draws.real(-1.0 / (n - 1), 0.8))
    lr, noise = draws.real(1e-2, 1.0, log=True), draws.real(1e-2, 1e1, log=True)
    return _worst(Run(w, np.zeros((n, 1, 1)), np.zeros((n, 1)), np.zeros(1), lr, noise, order), 0.0, 70)


@trial("consensus-floor", "heterogeneity alone")
def unlike_floor(draws: Draws) -> Trial:
    """One negative curvature, heterogeneity along the slowest mode: attained as time goes on."""
    n, order = draws.integer(2, 7), draws.choice(ORDERS)
    w = graphs.even(n, lam := draws.real(0.0, 0.8))
    smoothness = draws.real(1e-2, 1e1, log=True)
    # small steps, so that the mean, which the curvature repels, keeps its digits
    lr = draws.real(1e-2, 0.5, log=True) * min(0.1, 1.0 - lam) / smoothness
    push = graphs.slowest(w)[:, None]
    return _worst(Run(w, np.full((n, 1, 1), -smoothness), push, np.zeros(1), lr, 0.0, order), smoothness, 120)


@trial("consensus-floor-convex")
def convex_floor(draws: Draws) -> Trial:
    """Curvatures between zero and L, unlike from worker to worker, steps up to the edge of stability."""
    w, order = graphs.connected(draws, 2, 7), draws.choice(ORDERS)
    smoothness = draws.real(1e-2, 1e1, log=True)
    convexity = draws.choice((0.0, 1.0)) * draws.real(0.01, 1.0) * smoothness
    room = 2.0 if order == "atc" else 1.0 + float(graphs.modes(w)[0])
    lr = draws.real(1e-3, 0.999, log=True) * room / smoothness
    return _convex(_run(draws, w, order, lr, convexity, smoothness), convexity, smoothness, 40)


@trial("consensus-floor-convex", "noise alone")
def convex_noise_floor(draws: Draws) -> Trial:
    """One curvature, all modes alike, noise: attained as time goes on."""
    n, order = draws.integer(2, 7), draws.choice(ORDERS)
    w = graphs.even(n, lam := draws.real(-1.0 / (n - 1), 0.8))
    smoothness = draws.real(1e-2, 1e1, log=True)
    lr = draws.real(0.05, 0.9) * (1.0 + lam) / smoothness
    run = Run(w, np.full((n, 1, 1), smoothness), np.zeros((n, 1)), np.zeros(1), lr, 1.0, order)
    return _convex(run, smoothness, smoothness, 70)


@trial("consensus-floor-convex", "heterogeneity alone")
def convex_unlike_floor(draws: Draws) -> Trial:
    """Hardly any curvature, and heterogeneity along the slowest mode: nearly attained."""
    n, order = draws.integer(2, 7), draws.choice(ORDERS)
    w, smoothness = graphs.even(n, draws.real(0.0, 0.8)), draws.real(1e-2, 1e1, log=True)
    push = graphs.slowest(w)[:, None]
    run = Run(w, np.full((n, 1, 1), smoothness), push, np.zeros(1), 1e-3 / smoothness, 0.0, order)
    return _convex(run, smoothness, smoothness, 120)


def _convex(run: Run, convexity: float, smoothness: float, steps: int) -> Trial:
    distances, unlike = run.after(steps)
    ends = graphs.modes(run.w)
    problem = Convex(
        size=len(run.w),
        lambda_2=float(ends[-1]),
        lambda_min=float(ends[0]),
        smoothness=smoothness,
        lr=run.lr,
        convexity=convexity,
        noise=run.noise,
        heterogeneity=unlike,
        order=run.order,
    )
    return Trial(problem, float(distances.max()))


@trial("local-drift")
def local(draws: Draws) -> Trial:
    """Curvatures of both signs."""
    smoothness = draws.real(1e-2, 1e1, log=True)
    return _local(draws, -smoothness, smoothness, draws.real(1e-3, 1.0, log=True))


@trial("local-drift", "one negative curvature")
def local_slowest(draws: Draws) -> Trial:
    """What two workers differ in grows as fast as it can: attained, also with noise alone."""
    smoothness = draws.real(1e-2, 1e1, log=True)
    return _local(draws, -smoothness, -smoothness, draws.real(1e-3, 1.0, log=True))


@trial("local-drift-convex")
def local_convex(draws: Draws) -> Trial:
    """Curvatures between zero and L, steps up to 2/L."""
    smoothness = draws.real(1e-2, 1e1, log=True)
    return _local(draws, 0.0, smoothness, draws.real(1e-3, 2.0, log=True) / smoothness)


@trial("local-drift-convex", "hardly any curvature")
def local_linear(draws: Draws) -> Trial:
    """Nearly linear functions: nearly attained."""
    return _local(draws, 0.0, 1e-9, draws.real(1e-3, 1.0, log=True))


def _local(draws: Draws, low: float, high: float, lr: float) -> Trial:
    n, steps = draws.integer(2, 6), draws.integer(1, 12)
    run = _run(draws, np.eye(n), "awc", lr, low, high)
    distances, unlike = run.after(steps)
    problem = LocalSteps(n, max(abs(low), abs(high)), lr, steps, run.noise, unlike)
    return Trial(problem, float(distances[-1]))
