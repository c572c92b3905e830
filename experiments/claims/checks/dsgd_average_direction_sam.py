r"""In the mean DSGD moves as average-direction SAM does, whose perturbations have the workers' covariance.

The mean of the workers moves along the mean of their gradients, and at $x_i = \bar x + c\,e_i$ this is

$$ \frac1n\sum_i \nabla L(\bar x + c\,e_i) = \nabla L(\bar x) + D(c), \qquad
   S(c) = \operatorname E_{\epsilon\sim N(0, c^2\Sigma)} \nabla L(\bar x+\epsilon) - \nabla L(\bar x), \qquad
   P(c) = \nabla\,\tfrac{c^2}2\operatorname{tr}(H\Sigma), \quad \Sigma = \frac1n\sum_i e_i e_i^\top. $$

All three agree to the order $c^2$. The next term of D has the third moments of the workers' own positions and is of
order $c^3$; a normal distribution has none, and S differs from P by $c^4$. So relative differences to D vanish like c,
which is what the claim says; whether they are small at $c=1$, the disagreement that there really is, it does not say,
and that is measured, too.

S is an average over pairs $\pm\epsilon$, drawn in blocks whose second moments are made exact, so that what is left to
chance is of order $c^4$, too; the spread over blocks is its error. Everything is computed on the whole training set,
in float64, at points that a run visits. Workers, rate, batch and model are those that a study has where its file says
nothing, and were not chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap

from dissensus.algorithms import simulate
from dissensus.algorithms.engines.columns import Columns
from dissensus.algorithms.engines.stacked import StackedEngine
from dissensus.algorithms.streams import stream
from dissensus.experiments.claims.base import Part
from dissensus.experiments.claims.evidence import Evidence
from dissensus.experiments.claims.judging import decided, exactly, higher, within
from dissensus.experiments.claims.registry import claim
from dissensus.experiments.data import dataset
from dissensus.experiments.models import cross_entropy, model

WORKERS, BATCH, LR, WIDTH = 8, 16, 0.1, 64
SCALED = (0.25, 0.125, 0.0625)
"""The c from which the order is read off."""
STRONGER = 8.0
COSINE, SIZE, ORDER, ROUNDING = 0.9, 0.25, 0.9, 1e-10


@dataclass(frozen=True)
class Size:
    """How much is run and drawn."""

    runs: int
    looks: tuple[int, ...]
    """After how many steps."""
    blocks: int = 4
    pairs: int = 32
    """Of a block; at least as many as workers."""


SIZES = {
    "tiny": Size(6, (50, 300)),
    "small": Size(20, (50, 300, 1000, 3000), 8, 128),
    "full": Size(40, (50, 300, 1000, 3000, 10_000), 16, 256),
}


@dataclass(frozen=True)
class Around:
    """A loss on all data, the mean of the workers, and where they are relative to it."""

    template: nn.Module
    of: Callable[[nn.Module, tuple[Tensor, Tensor]], Tensor]
    data: tuple[Tensor, Tensor]
    mean: Tensor
    away: Tensor
    """(n, d)."""

    @cached_property
    def columns(self) -> Columns:
        """How a vector is cut into parameters."""
        return Columns.of(self.template)

    def loss(self, x: Tensor) -> Tensor:
        """L at a vector of parameters."""

        def scores(inputs: Tensor) -> Tensor:
            return functional_call(self.template, self.columns.unflatten(x), (inputs,))

        return self.of(cast("nn.Module", scores), self.data)

    def gradients(self, away: Tensor) -> Tensor:
        """The gradients at the mean and so far from it, one a row."""
        return vmap(grad(self.loss), chunk_size=16)(self.mean + away)

    @cached_property
    def at_mean(self) -> Tensor:
        """The gradient at the mean."""
        return self.gradients(torch.zeros_like(self.mean)[None])[0]

    def drift(self, c: float) -> Tensor:
        """D: what the mean of the gradients has besides that of the mean."""
        return (self.gradients(c * self.away) - self.at_mean).mean(0)

    def normal(self, c: float, blocks: list[Tensor]) -> tuple[Tensor, float]:
        """S, and the relative error of its blocks' mean."""
        drawn = []
        for scores in blocks:
            away = c * scores @ self.away / len(self.away) ** 0.5
            drawn.append((self.gradients(torch.cat([away, -away])) - self.at_mean).mean(0))
        found = torch.stack(drawn)
        error = found.std(0).norm() / len(drawn) ** 0.5
        return found.mean(0), float(error / found.mean(0).norm())

    @cached_property
    def penalty(self) -> Tensor:
        """P at c = 1, by automatic differentiation of the quadratic forms."""

        def form(x: Tensor, e: Tensor) -> Tensor:
            return jvp(lambda at: jvp(self.loss, (at,), (e,))[1], (x,), (e,))[1]

        thirds = vmap(lambda e: grad(form)(self.mean, e), chunk_size=4)(self.away)
        return thirds.mean(0) / 2


@claim(
    "dsgd-average-direction-sam",
    title="DSGD equals average-direction SAM in drift",
    statement=(
        "The mean of DSGD's workers moves along the gradient of the loss averaged over normal perturbations with the "
        "workers' own covariance, up to terms of third order in the disagreement; so it descends the loss plus half "
        "the trace of Hessian times covariance. On a quadratic loss there is no such term."
    ),
    source=(
        "Zhu et al. 2023, arXiv:2306.02913. The abstract and the text of an earlier version were read; the formula "
        "with the normal distribution is recalled, and confirmed by a note on a later paper that quotes it"
    ),
    measured=(
        "at points that runs of DSGD on digits visit: the drift of the workers' gradients, that of normal "
        "perturbations (pairs, with their error) and the gradient of the penalty; with the disagreement as it is and "
        "scaled by c"
    ),
    rule=(
        f"at c = 1 the cosine of the first two is above {COSINE} and the ratio of their lengths within {SIZE} of 1; "
        f"the relative differences to both others vanish at least like c to the power {ORDER}; the engine's step is "
        "that gradient, and on a quadratic loss both drifts are rounding"
    ),
    budget={"tiny": "a minute", "small": "an hour", "full": "several hours"},
)
def dsgd_average_direction_sam(at: Evidence) -> list[Part]:
    """Runs, and looks."""
    size = at.sized(SIZES)
    rows, errors, steps, flat = [], [], [], []
    for seed in range(at.seed, at.seed + size.runs):
        blocks = _blocks(size, seed)
        engine, points = _run(seed, size)
        found = [_measured(here, blocks) for here in points]
        rows.append({key: float(np.mean([one[key] for one in found])) for key in found[0]})
        errors.append(max(one["error"] for one in found))
        steps.append(_stepped(engine, points[-1]))
        flat.append(max(_flat(here, blocks) for here in _run(seed, size, squared=True)[1]))
    table = {key: [row[key] for row in rows] for key in rows[0]}
    looks = f"each the mean of looks after {', '.join(map(str, size.looks))} steps"
    drawn = f"relative error of S by its blocks at most {max(errors):.1e}"
    return [
        *decided(
            [
                higher(
                    f"at c = 1 both point the same way: cosine above {COSINE}", table["cosine"], COSINE,
                    unit=f"cosine, above {COSINE}",
                    note=f"mean cosine {np.mean(table['cosine']):.4f}, {looks}; {drawn}",
                ),
                higher(
                    "the difference to SAM's drift vanishes like c", table["order"], ORDER,
                    unit=f"slope, above {ORDER}", note=f"mean slope {np.mean(table['order']):.3f}; with the third "
                    "moments of the workers' positions it is 1",
                ),
                higher(
                    "so does that to the gradient of half the trace of Hessian times covariance", table["order_p"],
                    ORDER, unit=f"slope, above {ORDER}", note=f"mean slope {np.mean(table['order_p']):.3f}",
                ),
                higher(
                    f"cosine above {COSINE} with {STRONGER:g} times the disagreement there is", table["stronger"],
                    COSINE, unit=f"cosine, above {COSINE}", note=f"mean cosine {np.mean(table['stronger']):.3f}",
                    counts=False,
                ),
            ]
        ),
        within(f"at c = 1 their lengths are in ratio 1, within {SIZE}", table["ratio"], 1.0, SIZE, unit="D over S"),
        exactly(
            "what the mean of the engine's workers moves by is this gradient",
            max(steps) <= ROUNDING, max(steps), unit="relative error", n=len(steps),
        ),
        exactly(
            "on a quadratic loss both drifts are rounding", max(flat) <= ROUNDING, max(flat),
            unit="of what workers' gradients differ by", n=len(flat),
        ),
        within(
            "the drift is less than a tenth of the gradient at the mean", table["share"], 0.0, 0.1, unit="share",
            note=f"at c = 1, where D differs from S by {np.mean(table['apart']):.1%} of S", counts=False,
        ),
    ]  # fmt: skip


def _measured(here: Around, blocks: list[Tensor]) -> dict[str, float]:
    """The numbers of one point."""
    drift, (normal, error) = here.drift(1.0), here.normal(1.0, blocks)
    apart, apart_p = [], []
    for c in SCALED:
        scaled, sam = here.drift(c), here.normal(c, blocks)[0]
        apart.append(float((scaled - sam).norm() / sam.norm()))
        penalty = c * c * here.penalty
        apart_p.append(float((scaled - penalty).norm() / penalty.norm()))
    return {
        "cosine": _cosine(drift, normal),
        "stronger": _cosine(here.drift(STRONGER), here.normal(STRONGER, blocks)[0]),
        "ratio": float(drift.norm() / normal.norm()),
        "apart": float((drift - normal).norm() / normal.norm()),
        "share": float(drift.norm() / here.at_mean.norm()),
        "order": float(np.polyfit(np.log(SCALED), np.log(apart), 1)[0]),
        "order_p": float(np.polyfit(np.log(SCALED), np.log(apart_p), 1)[0]),
        "error": error,
    }


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.cosine_similarity(a, b, dim=0))


def _blocks(size: Size, seed: int) -> list[Tensor]:
    """Normal scores, (pairs, n) a block, stretched so that the mean of z z' is the identity."""
    made = []
    for k in range(size.blocks):
        z = torch.randn(size.pairs, WORKERS, dtype=torch.float64, generator=stream(seed, "claim", "normal", k))
        root = torch.linalg.cholesky(z.T @ z / len(z))
        made.append(torch.linalg.solve_triangular(root, z.T, upper=False).T)
    return made


def _run(seed: int, size: Size, *, squared: bool = False) -> tuple[StackedEngine, list[Around]]:
    """One run of DSGD on a ring and the points it visits; a linear model's squared loss is quadratic."""
    found = dataset("digits")
    data = (found.train_x.double(), found.train_y)
    shape, classes = tuple(found.train_x.shape[1:]), found.classes
    name, parameters = ("linear", {}) if squared else ("mlp", {"width": WIDTH})
    template = model(name, shape, classes, seed, parameters).double()
    loss = _squared if squared else cross_entropy
    points: list[Around] = []

    def look(engine: StackedEngine, _: object) -> None:
        if engine.t in size.looks:
            mean = engine.x.mean(0)
            points.append(Around(template, loss, data, mean, engine.x - mean))

    made = simulate(
        template, loss, data, algorithm="dsgd", topology="ring", workers=WORKERS, steps=max(size.looks), lr=LR,
        batch_size=BATCH, seed=seed, on_step=look,
    )  # fmt: skip
    return made.engine, points


def _squared(module: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    scores = module(batch[0])
    return (scores - nn.functional.one_hot(batch[1], scores.shape[-1])).square().sum(-1).mean() / 2


def _stepped(engine: StackedEngine, here: Around) -> float:
    """How far a step of the engine, with all data at every worker, is from minus the rate times gradient and drift."""
    before = engine.x.mean(0)
    engine.step(tuple(field.expand(WORKERS, *field.shape) for field in here.data))
    told = -LR * (here.at_mean + here.drift(1.0))
    return float((engine.x.mean(0) - before - told).norm() / told.norm())


def _flat(here: Around, blocks: list[Tensor]) -> float:
    """The larger drift, in units of what the gradients of the workers differ by."""
    apart = (here.gradients(here.away) - here.at_mean).norm(dim=1).mean()
    return float(max(here.drift(1.0).norm(), here.normal(1.0, blocks)[0].norm()) / apart)
