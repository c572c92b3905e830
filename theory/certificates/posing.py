"""From a setting to its program: the recursion is run on unknown points, and criterion and limits are written down."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import islice

import numpy as np

from dissensus.theory.certificates.program import Criterion, Limit, Program, Square, gathered
from dissensus.theory.certificates.recursions import tracked
from dissensus.theory.certificates.setting import Setting
from dissensus.theory.certificates.world import Given, Point, Range, World
from dissensus.theory.mixing import MixingMatrix

ONE = Fraction(1)


def pose(of: Setting) -> Program:
    """The semidefinite program whose value is the worst case of a setting."""
    rate, ends = of.criterion == "rate", of.range
    mixing = (
        Range(*ends, constant=not of.time_varying) if ends is not None else Given(lambda t: exact(of.mixing[t]))  # type: ignore[index]
    )
    length = 1.0
    if not rate:
        step = math.sqrt(of.heterogeneity) / of.smoothness if of.lipschitz is None else of.lr * of.lipschitz
        length = _power(max(of.distance, step))
    slope = _power(of.smoothness) * length if of.lipschitz is None else _power(of.lipschitz)
    world = World(
        of.size,
        mixing,
        convexity=Fraction(of.convexity),
        heterogeneous=not rate and (of.heterogeneity > 0 or of.lipschitz is not None),
        capacity=(of.size or 1) * (8 * of.steps + 16),
    )
    criterion, limits = _rate(of, world) if rate else _from_one_point(of, world, length, slope)
    kappa = Fraction(0) if of.lipschitz is not None else 1 / (2 * (Fraction(of.smoothness) - Fraction(of.convexity)))
    return gathered(world, criterion, limits, kappa=kappa, length=length, slope=slope)


def _from_one_point(of: Setting, world: World, length: float, slope: float) -> tuple[Criterion, tuple[Limit, ...]]:
    start = world.common()
    points = of.recursion()(world, start, Fraction(of.lr))
    walked = list(islice(points, of.steps if of.criterion == "objective" else of.steps + 1))
    last = walked[-1]
    if of.criterion == "objective":
        criterion = _objective(of, world, walked, length * slope)
    elif of.criterion == "last":
        criterion = _objective(of, world, [last], length * slope)
    elif of.criterion == "average":
        middle = np.stack(walked).sum(axis=0) * Fraction(1, len(walked))
        criterion = _objective(of, world, [middle], length * slope)
    else:
        mean = world.mean(last)
        off = {"consensus": last - mean, "distance": last, "mean": mean}[of.criterion]
        criterion = Criterion({}, (Square(ONE, off),), length**2)
    limits = [Limit("distance", (Square(ONE, start),), Fraction(of.distance) ** 2, length**2)]
    if of.lipschitz is not None:
        most = Fraction(of.lipschitz) ** 2
        slopes = [world.slopes, *(s.gradient + world.slopes for s in world.samples)]
        for k, g in enumerate(slopes):
            for i in range(world.rows):
                own = np.where(np.arange(world.rows)[:, None] == i, g, 0)
                limits.append(Limit(f"slope {k}.{i}", (Square(Fraction(world.rows), own),), most, slope**2))
    elif of.heterogeneity > 0:
        limits.append(Limit("heterogeneity", (Square(ONE, world.slopes),), Fraction(of.heterogeneity), slope**2))
    return criterion, tuple(limits)


def _objective(of: Setting, world: World, points: list[Point], unit: float) -> Criterion:
    """The mean over these points of F at the mean of the workers, above its minimum."""
    values: dict[int, Fraction] = {}
    share, squares = Fraction(1, len(points)), []
    for x in points:
        mean = world.mean(x)
        k = world.index(mean)
        values[k] = values.get(k, Fraction(0)) + share
        if of.convexity:
            squares.append(Square(share * Fraction(of.convexity) / 2, mean))
    return Criterion(values, tuple(squares), unit)


def _rate(of: Setting, world: World) -> tuple[Criterion, tuple[Limit, ...]]:
    """The measure of tracking after K steps, where it is at most 1 at the start.

    The slopes at the optimum cancel in the differences of gradients that tracking sees, and the start is anywhere: they
    are left out.
    """
    x = world.local()
    y = world.mean(world.gradient(x)) + world.balanced("gradient")
    walk = tracked(world, x, y, Fraction(of.lr))
    first, last = (
        (Square(ONE, x), Square(of.weight, y - world.mean(g)))
        for x, y, g in (next(walk), next(islice(walk, of.steps - 1, None)))
    )
    return Criterion({}, last, 1.0), (Limit("measure", first, ONE, 1.0),)


def exact(matrix: MixingMatrix) -> np.ndarray:
    """A mixing matrix in exact numbers: the own weight is what the others leave, so that rows sum to one exactly."""
    w = matrix.dense()
    rows = np.empty(w.shape, dtype=object)
    for i, j in np.ndindex(*w.shape):
        rows[i, j] = Fraction(float(w[i, j]))
    for i in range(len(rows)):
        rows[i, i] += 1 - rows[i].sum()
    return rows


def _power(value: float) -> float:
    """The power of two nearest to a number on a logarithmic scale."""
    return 2.0 ** round(math.log2(value))
