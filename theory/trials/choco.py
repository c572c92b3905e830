"""Compressed gossip: exact second moments with a compressor that sends numbers by chance, and runs with top-k.

Where each number is sent or not by a coin of its own, the second moments of what workers hold and what is known of it
obey a linear recursion, coordinate by coordinate, and the compressor's quality omega is met with equality.
"""

from __future__ import annotations

import numpy as np

from dissensus.theory.bounds.choco import ChocoRate, ChocoRun, Gossip
from dissensus.theory.trials import graphs
from dissensus.theory.trials.base import Draws, Trial, trial


def _facts(w: np.ndarray, omega: float) -> dict[str, float]:
    beta = float(np.linalg.norm(np.eye(len(w)) - w, 2))
    return {"contraction": graphs.contraction(w), "laplacian_norm": beta, "omega": omega}


def step(moments: np.ndarray, w: np.ndarray, gamma: float, omega: float) -> np.ndarray:
    """The second moments of (x, known) after one step."""
    n = len(w)
    zero, one = np.zeros((n, n)), np.eye(n)
    move = np.block([[one, gamma * (w - one)], [zero, one]])  # x+ = x + gamma (W - I) known
    tell = np.block([[one, zero], [omega * one, (1.0 - omega) * one]])  # known+ = known + omega (x+ - known), expected
    moved = move @ moments @ move.T
    unknown = np.block([-one, one])
    spread = np.diag(unknown @ moved @ unknown.T)
    after = tell @ moved @ tell.T
    after[n:, n:] += omega * (1.0 - omega) * np.diag(spread)
    return after


def _lengths(moments: np.ndarray) -> tuple[float, float]:
    n = len(moments) // 2
    rest, unknown = np.eye(n) - graphs.average(n), np.hstack([np.eye(n), -np.eye(n)])
    return float(np.trace(rest @ moments[:n, :n])), float(np.trace(unknown @ moments @ unknown.T))


def _gossip(draws: Draws, w: np.ndarray, x: np.ndarray, known: np.ndarray, omega: float, gamma: float) -> Trial:
    steps, z = draws.integer(1, 20), np.concatenate([x, known])
    moments = z @ z.T
    before = _lengths(moments)
    for _ in range(steps):
        moments = step(moments, w, gamma, omega)
    problem = ChocoRun(
        **_facts(w, omega),
        consensus_step=gamma,
        steps=steps,
        disagreement=float(np.sqrt(max(0.0, before[0]))),
        unknown=float(np.sqrt(max(0.0, before[1]))),
    )
    scale = float(np.trace(moments)) + sum(before)
    return Trial(problem, float(np.sqrt(graphs.surely(_lengths(moments)[0], scale))))


def _mixes(draws: Draws, high: int = 7) -> np.ndarray:
    return graphs.connected(draws, 2, high)


@trial("choco-consensus")
def gossip(draws: Draws) -> Trial:
    """Any start, any knowledge."""
    w, rng = _mixes(draws), draws.generator()
    x = graphs.random_state(draws, len(w), 1)
    known = x * draws.choice((0.0, 1.0)) + rng.normal(size=x.shape) * draws.choice((0.0, 1.0))
    return _gossip(draws, w, x, known, draws.real(0.01, 1.0), draws.real(1e-3, 1.0, log=True))


@trial("choco-consensus", "no compression")
def gossip_plain(draws: Draws) -> Trial:
    """Everybody knows everything: a weakened exchange along its slowest mode, attained."""
    w = graphs.even(draws.integer(2, 7), draws.real(0.0, 0.99))
    x = graphs.slowest(w)[:, None]
    return _gossip(draws, w, x, x, 1.0, draws.real(1e-3, 1.0, log=True))


@trial("choco-consensus", "ignorance on the slowest mode")
def gossip_ignorant(draws: Draws) -> Trial:
    """What is not known pushes outwards along the only mode that there is: attained in the first step."""
    n = draws.integer(2, 7)
    w = graphs.even(n, draws.real(-1.0 / (n - 1), 0.9))
    mode = graphs.slowest(w)[:, None]
    known = mode * (1.0 - draws.real(0.0, 3.0))
    return _gossip(draws, w, mode, known, draws.real(0.01, 1.0), draws.real(1e-3, 1.0, log=True))


@trial("choco-consensus", "top-k with gradients")
def pushed(draws: Draws) -> Trial:
    """The recursion itself with the largest numbers sent and bounded pushes."""
    w, d, rng = _mixes(draws), draws.integer(1, 6), draws.generator()
    n, k, gamma, steps = len(w), draws.integer(1, d), draws.real(1e-3, 1.0, log=True), draws.integer(1, 20)
    x, known, push = graphs.random_state(draws, n, d), np.zeros((n, d)), draws.real(1e-2, 1.0, log=True)
    rows = np.arange(n)[:, None]
    outward = draws.choice((False, True))
    problem = ChocoRun(
        **_facts(w, k / d),
        consensus_step=gamma,
        steps=steps,
        disagreement=float(np.linalg.norm(graphs.apart(x))),
        unknown=float(np.linalg.norm(x)),
        push=push,
    )
    for _ in range(steps):
        g = graphs.apart(x) if outward else rng.normal(size=x.shape)
        x = x + push * g / max(float(np.linalg.norm(g)), 1e-300) + gamma * (w @ known - known)
        news = x - known
        largest = np.argsort(-np.abs(news), axis=1)[:, :k]
        sent = np.zeros_like(news)
        sent[rows, largest] = news[rows, largest]
        known = known + sent
    return Trial(problem, graphs.surely(float(np.linalg.norm(graphs.apart(x))), float(np.linalg.norm(x))))


@trial("choco-rate-published")
def published(draws: Draws) -> Trial:
    """Both lengths together at the published step."""
    w, rng = _mixes(draws), draws.generator()
    x = graphs.random_state(draws, len(w), 1)
    z = np.concatenate([x, x * draws.choice((0.0, 1.0)) + rng.normal(size=x.shape) * draws.choice((0.0, 1.0))])
    steps, omega = draws.integer(1, 60), draws.real(0.01, 1.0)
    moments = z @ z.T
    problem = ChocoRate(**_facts(w, omega), steps=steps, initial=sum(_lengths(moments)))
    for _ in range(steps):
        moments = step(moments, w, problem.consensus_step, omega)
    return Trial(problem, graphs.surely(sum(_lengths(moments)), float(np.trace(moments))))


@trial("choco-stable-step")
def stable(draws: Draws) -> Trial:
    """The least step at which second moments no longer vanish, by the spectral radius of their recursion."""
    w, omega = _mixes(draws, 4), draws.real(0.01, 1.0)
    problem, low = Gossip(**_facts(w, omega)), 0.0
    for high in np.geomspace(1e-4, 1.0, 17):
        if radius(w, float(high), omega) >= 1.0:
            break
        low = float(high)
    else:
        return Trial(problem, 1.0)
    for _ in range(20):
        middle = (low + high) / 2.0
        low, high = (low, middle) if radius(w, middle, omega) >= 1.0 else (middle, high)
    return Trial(problem, float(high))


def radius(w: np.ndarray, gamma: float, omega: float) -> float:
    """Spectral radius of the recursion of second moments, for workers whose mean is zero."""
    n = len(w)
    basis = np.linalg.svd(np.eye(n) - graphs.average(n))[0][:, : n - 1]
    move = np.block([[np.eye(n - 1), gamma * basis.T @ (w - np.eye(n))], [np.zeros((n, n - 1)), np.eye(n)]])
    unknown = np.hstack([basis, -np.eye(n)]) @ move
    tell = np.vstack([np.zeros((n - 1, 2 * n - 1)), unknown])
    mean = move + omega * tell
    operator = np.kron(mean, mean)
    for i in range(n):
        unit = np.zeros((2 * n - 1, 1))
        unit[n - 1 + i] = 1.0
        operator += omega * (1.0 - omega) * np.kron(unit, unit) @ np.kron(unknown[[i]], unknown[[i]])
    return float(np.abs(np.linalg.eigvals(operator)).max())
