"""One member of the class that a certificate is about: functions, mixing and a start that can be run in numpy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from dissensus.theory.certificates.recursions import tracked

if TYPE_CHECKING:
    from dissensus.theory.certificates.setting import Setting
    from dissensus.theory.topology import Topology


class Instance(ABC):
    """n workers of a class. The optimum is 0 and F is 0 there."""

    setting: Setting
    topology: Topology
    start: np.ndarray
    """(n, d)."""
    tracker: np.ndarray | None
    """(n, d): the tracking variable at the start, where the criterion is a rate."""

    @property
    def size(self) -> int:
        """The number of workers."""
        return len(self.start)

    @abstractmethod
    def gradient(self, x: np.ndarray) -> np.ndarray:
        """The gradient of every worker at its row of x."""

    @abstractmethod
    def objective(self, x: np.ndarray) -> float:
        """F at one point (d,)."""

    def mix(self, x: np.ndarray, t: int) -> np.ndarray:
        """The exchange of step t."""
        return self.topology[t] @ x

    def run(self) -> np.ndarray:
        """The method on this instance in float64, (steps + 1, n, d)."""
        walk = self.setting.recursion()(self, self.start, self.setting.lr)
        return np.stack(list(islice(walk, self.setting.steps + 1)))

    def measured(self, run: np.ndarray | None = None) -> float:
        """The criterion of a run, by default of one in float64: not above the certificate."""
        criterion = self.setting.criterion
        if criterion == "rate":
            return self._rate()
        x = self.run() if run is None else run
        means = x.mean(axis=1)
        if criterion == "objective":
            return float(np.mean([self.objective(m) for m in means[:-1]]))
        if criterion == "last":
            return self.objective(means[-1])
        if criterion == "average":
            return self.objective(means.mean(axis=0))
        off = {"consensus": x[-1] - means[-1], "distance": x[-1], "mean": means[-1:]}[criterion]
        return float((off**2).sum(axis=1).mean())

    def _rate(self) -> float:
        """By which the measure of tracking falls."""
        assert self.tracker is not None
        walk = tracked(self, self.start, self.tracker, self.setting.lr)
        weight = float(self.setting.weight)
        ends = [next(walk), next(islice(walk, self.setting.steps - 1, None))]
        first, last = (((x**2).sum() + weight * ((y - g.mean(axis=0)) ** 2).sum()) / self.size for x, y, g in ends)
        return float(last / first)
