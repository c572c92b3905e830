r"""AccumAdam against Adam where local batches are small: the noise of an update, and what training makes of it.

*At a frozen point* of a network the optimizers see independent batches with replacement, far beyond their memories, and
the point stays where it is. u is the update of a step at rate 1. What can be compared is its noise relative to what it
moves in the mean,

$$ \frac{\sum_k \operatorname{Var} u_k}{\sum_k (\operatorname E u_k)^2} , $$

since rates are chosen for each optimizer. At the same betas AccumAdam remembers s times as many gradients, so that less
noise has to be expected; against Adam with as long a memory, as in the paper's translation runs, it only informs.
The variance at equal rates is measured, too, and has no say. A calculation said beforehand that it may well grow: the
numerator has less noise, but a second moment of averaged gradients is smaller, so that every step is longer.

The second moment that is committed can be told exactly: at batches of b samples and windows of s steps its mean is that
of batches of s b samples, $\mu^2 + \sigma^2/(s b)$ by coordinate.

*In training* the batch of all workers together is the same in all arms. What is expected is the order of the published
training losses: DAdam ends above all-reduce with Adam, AccumAdam below DAdam and not above all-reduce; and a better
test loss than DAdam's. Losses are compared by their logarithms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from dissensus.algorithms import AccumAdam, simulate
from dissensus.algorithms.streams import stream
from dissensus.experiments.claims.base import Part
from dissensus.experiments.claims.evidence import Evidence
from dissensus.experiments.claims.judging import Asked, decided, higher, lower, within
from dissensus.experiments.claims.registry import claim
from dissensus.experiments.data import dataset
from dissensus.experiments.models import cross_entropy, model
from dissensus.experiments.results import Results

BATCH, WINDOW, WIDTH, WRONG = 4, 4, 16, 0.2
"""Samples of a local batch, steps of a window (half of 8 workers), units, the share of labels that are wrong."""
BETAS = (0.9, 0.999)
MATCHED = (0.974, 0.999)
"""DAdam's in the paper's translation runs: with windows of 4, as long a memory of gradients as AccumAdam's."""
MOMENT, BESIDE = 0.05, 0.02
"""Within what the committed second moment is to be, and how much of a loss is "not above"."""


@dataclass(frozen=True)
class Size:
    """How much is drawn at frozen points."""

    points: int
    streams: int
    before: int
    """Steps until moments are settled."""
    steps: int
    trained: int = 100
    """Steps of training before a point is frozen."""


SIZES = {"tiny": Size(6, 16, 2000, 500), "small": Size(20, 64, 8000, 4000), "full": Size(40, 128, 20_000, 10_000)}


@claim(
    "accum-adam",
    title="AccumAdam tames the updates of small local batches and helps DAdam at a fixed global batch",
    statement=(
        "With small local batches, committing Adam's moments from averages over windows of steps makes updates less "
        "noisy relative to what they move in the mean. At a fixed global batch DAdam with Adam trains worse than "
        "all-reduce with Adam; with AccumAdam it trains better than with Adam, and at least as well as all-reduce."
    ),
    source=(
        "Wang et al. 2024, arXiv:2410.11998. The recursion is that of the released code; the order of losses and "
        "accuracies was read off published tables (ResNet-50, translation); that accumulation is there against the "
        "variance of small batches is recalled, and variance of what is not known to us"
    ),
    measured=(
        "at frozen points of a digits network: noise of updates over streams of batches, and the committed second "
        "moment; in training: the consensus model's final losses, paired by seed"
    ),
    rule=(
        "noise over mean of the update is lower than Adam's at the same betas; the second moment is that of batches so "
        f"many times as large within {MOMENT}; training loss: DAdam above all-reduce, AccumAdam below DAdam and no "
        f"more than {BESIDE} (logarithm) above all-reduce; test loss: AccumAdam below DAdam. The plain "
        "variance at equal rates and the comparison with Adam's longer memory only inform: which variance is meant is "
        "not known, and the first part alone is nearly certain, because its memory is longer"
    ),
    budget={
        "tiny": "half a minute",
        "small": "an hour",
        "full": "a cluster: 9 runs of GPT-2, each 16 GPUs for a day or two",
    },
    studies=("accum",),
)
def accum_adam(at: Evidence) -> list[Part]:
    """Looks at frozen points, and compares the arms."""
    size = at.sized(SIZES)
    rows = [_frozen(seed, size) for seed in range(at.seed, at.seed + size.points)]
    noise = {key: np.array([row[key] for row in rows]) for key in rows[0]}
    asked = [
        lower(
            f"noise over mean of an update is lower than Adam's, windows of {WINDOW}, local batches of {BATCH}",
            np.log(noise["relative"]), 0.0, unit="log of the ratio", note=_ratio(noise["relative"]),
        ),
        lower(
            "so is its variance, where both have the same rate", np.log(noise["plain"]), 0.0, unit="log of the ratio",
            note=_ratio(noise["plain"]), counts=False,
        ),
        lower(
            f"noise over mean is lower than that of Adam with betas {MATCHED}", np.log(noise["matched"]), 0.0,
            unit="log of the ratio", note=_ratio(noise["matched"]), counts=False,
        ),
    ]  # fmt: skip
    for found in at.found.get("accum", ()):
        asked += _trained(found)
    return [
        *decided(asked),
        within(
            "the committed second moment is that of batches so many times as large", noise["moment"], 1.0, MOMENT,
            unit="ratio", note=f"Adam's own is {noise['adam_moment'].mean():.2f} times that",
        ),
    ]  # fmt: skip


def _ratio(found: np.ndarray) -> str:
    return f"ratio {np.exp(np.log(found).mean()):.2f}, from {found.min():.2f} to {found.max():.2f}"


def _trained(found: Results) -> Iterator[Asked]:
    """What the arms of one study are held against."""

    def final(name: str, arm: str) -> np.ndarray:
        return found.final(name, which="consensus", arm=arm)

    def log(name: str, arm: str) -> np.ndarray:
        return np.log(final(name, arm))

    who, unit = found.first.study, "log of the ratio"
    where = f"{who.train.workers} workers, {who.data.name}"
    yield higher(
        f"DAdam's final training loss is above all-reduce's ({where})",
        log("train_loss", "dadam"), log("train_loss", "allreduce"), unit=unit,
        note=_means(found, "train_loss"),
    )  # fmt: skip
    yield lower(
        f"AccumAdam's is below DAdam's ({where})", log("train_loss", "accum-adam"), log("train_loss", "dadam"),
        unit=unit,
    )  # fmt: skip
    yield lower(
        f"AccumAdam's is not above all-reduce's ({where})",
        log("train_loss", "accum-adam"), log("train_loss", "allreduce"), minimum=-BESIDE, unit=unit,
    )  # fmt: skip
    yield lower(
        f"AccumAdam's test loss is below DAdam's ({where})", log("test_loss", "accum-adam"), log("test_loss", "dadam"),
        unit=unit, note=f"{_means(found, 'test_loss')}; accuracies: {_means(found, 'test_accuracy')}",
    )  # fmt: skip


def _means(found: Results, name: str) -> str:
    values = {found.label(arm): found.final(name, which="consensus", arm=arm).mean() for arm in found.order}
    return ", ".join(f"{label} {value:.4f}" for label, value in values.items())


def _frozen(seed: int, size: Size) -> dict[str, float]:
    """The ratios at one point, AccumAdam's number over Adam's."""
    samples = _gradients(seed, size)
    own = _noise(samples, BETAS, WINDOW, seed, size)
    adam, matched = (_noise(samples, betas, 1, seed, size) for betas in (BETAS, MATCHED))
    large = samples.mean(0) ** 2 + samples.var(0, correction=0) / (WINDOW * BATCH)
    return {
        "relative": (own.variance / own.moved) / (adam.variance / adam.moved),
        "matched": (own.variance / own.moved) / (matched.variance / matched.moved),
        "plain": own.variance / adam.variance,
        "moment": own.second / float(large.sum()),
        "adam_moment": adam.second / float(large.sum()),
    }


@dataclass(frozen=True)
class Noise:
    """Of an optimizer at a frozen point, summed over coordinates."""

    variance: float
    moved: float
    """The squared mean of an update."""
    second: float
    """The mean of the committed second moment, corrected."""


def _noise(samples: Tensor, betas: tuple[float, float], window: int, seed: int, size: Size) -> Noise:
    """The optimizer on streams of batches; the streams are those of the seed, whatever the optimizer."""
    at = torch.nn.Parameter(torch.zeros(size.streams, samples.shape[1], dtype=samples.dtype))
    optimizer = AccumAdam([at], lr=1.0, betas=betas, accum_steps=window)
    draw = stream(seed, "claim", "batches")
    total, squares, second, looks = torch.zeros_like(at), 0.0, 0.0, 0
    for t in range(1, size.before + size.steps + 1):
        picked = torch.randint(len(samples), (size.streams, BATCH), generator=draw)
        at.grad = samples[picked].mean(1)
        with torch.no_grad():
            at.zero_()
        optimizer.step()
        if t > size.before:
            moved = at.detach()
            total -= moved
            squares += float(moved.var(0).sum())
            correction = 1.0 - betas[1] ** (t // window)
            second += float(optimizer.state[at]["exp_avg_sq"].mean(0).sum()) / correction
            looks += 1
    halves = [half.mean(0) / looks for half in total.chunk(2)]  # independent, so that their product is not too large
    return Noise(squares / looks, float((halves[0] * halves[1]).sum()), second / looks)


def _gradients(seed: int, size: Size) -> Tensor:
    """The gradients of all training samples at a point to which all-reduce with Adam led, (N, d)."""
    data = dataset("digits", {"noise": WRONG})
    x, y = data.train_x, data.train_y
    template = model("mlp", tuple(x.shape[1:]), data.classes, seed, {"width": WIDTH})
    run = simulate(
        template, cross_entropy, (x, y), algorithm="allreduce", topology="complete", workers=2 * WINDOW,
        steps=size.trained, lr=0.01, optimizer=partial(torch.optim.Adam, betas=BETAS), batch_size=BATCH, seed=seed,
    )  # fmt: skip

    def loss(at: Tensor, one: Tensor, label: Tensor) -> Tensor:
        scores = functional_call(template, run.engine.unflatten(at), (one[None],))
        return torch.nn.functional.cross_entropy(scores, label[None])

    return vmap(grad(loss), in_dims=(None, 0, 0))(run.engine.mean, x, y)
