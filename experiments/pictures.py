"""The figures of a report from the results of a study, each with its caption: what to look at, and which weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from dissensus.experiments.comparison import MANY
from dissensus.experiments.config import Study
from dissensus.experiments.curves import Curve
from dissensus.experiments.figures.curvature import curvature_figure
from dissensus.experiments.figures.disagreement import consensus_figure, envelope_figure
from dissensus.experiments.figures.learning import learning_figure
from dissensus.experiments.figures.sweep import MOST_ROWS, sweep_figure
from dissensus.experiments.figures.topology import topology_figure
from dissensus.experiments.quantities import QUANTITY
from dissensus.experiments.results import Results
from dissensus.experiments.selection import by_accuracy, chosen_words, in_colour
from dissensus.experiments.tables import finals
from dissensus.theory import topology


@dataclass(frozen=True)
class Picture:
    """A figure with the words below it."""

    name: str
    figure: Figure
    title: str
    caption: str


def pictures(results: Results) -> list[Picture]:
    """All figures of a study, in the order of the page."""
    ends = curvature if len(results.order) <= MANY else sweep
    return [learning(results), disagreement(results), ends(results), envelope(results), graph(results)]


def learning(results: Results) -> Picture:
    """Losses and accuracy of the consensus model."""
    names, shown = ("train_loss", "test_loss", "test_accuracy"), in_colour(results)
    figure = learning_figure(
        *(results.curves(name, which="consensus", arms=shown) for name in names),
        background=[_others(results, name, "consensus") for name in names],
    )
    due = sorted(key for key in results.differences() if not key.startswith(("arms.", "topology.")))
    to = f"the mixing, and to {', '.join(due)}" if due else "the mixing alone"
    caption = (
        "Look at the test panels once the learning rate has decayed: the arms start from the same weights and see the "
        f"same batches, so what opens between them is due to {to}; compare it with the gap in training "
        f"loss. The vertical axes leave out the first tenth of training. {chosen_words(results)}{_grey(results)}"
        f"{_weights(results)} {_bands(results)}"
    )
    return Picture("learning", figure, "Loss and accuracy of the consensus model", caption)


def disagreement(results: Results) -> Picture:
    """Consensus distance, measured beside predicted."""
    shown = in_colour(results)
    figure = consensus_figure(
        results.curves("consensus_distance", which="workers", arms=shown),
        results.curves("consensus_distance", which="theory", arms=shown),
        results.curves("gamma", arms=shown),
        results.curve("lr", results.order[0]),
        background=_others(results, "consensus_distance", "workers"),
    )
    caption = (
        "Look at how far the workers are apart as the learning rate falls, and at how close the dashed lines are to "
        "the solid ones. The dashed lines are computed from the topology, the optimizer, the learning rate, γ, and the "
        "gradient noise by curvature that was measured at a few times during the run; nothing is fitted to the "
        f"consensus distance. {_ratio(results, 'consensus_distance')} Weights: all workers, as they are, against their "
        f"average. {_grey(results)}{_bands(results, 'log')}"
    )
    return Picture("consensus", figure, "Consensus distance, measured and predicted", caption)


def curvature(results: Results) -> Picture:
    """Hessian trace and top eigenvalue at the end."""
    panels = [
        {results.label(arm): finals(results, QUANTITY[name], arm) for arm in results.order}
        for name in ("hessian_trace", "top_eigenvalue")
    ]
    caption = (
        "Look at whether the large symbols (mean over seeds, bar: 95 % t-interval of that mean) are apart by more than "
        "their bars. Small symbols are single seeds, and their thin bars are the 95 % interval of the estimator alone "
        "(trace: random probe vectors; eigenvalue: Lanczos residual, too small to see): two different errors. "
        f"{_weights(results)} Loss: cross-entropy over {_samples(results)}, in eval mode."
    )
    return Picture("curvature", curvature_figure(*panels), "Curvature of the consensus model at the end", caption)


def sweep(results: Results) -> Picture:
    """Every arm of many at the end, sorted."""
    ranked, shown = by_accuracy(results), in_colour(results)
    half = MOST_ROWS // 2
    kept = ranked if len(ranked) <= MOST_ROWS else [a for a in ranked if a in {*ranked[:half], *ranked[-half:], *shown}]
    panels = {
        name: {results.label(arm): finals(results, QUANTITY[name], arm) for arm in kept}
        for name in ("test_accuracy", "hessian_trace", "top_eigenvalue")
    }
    n = len(results.seeds)
    caption = (
        "Look at whether what is high on the left is also low on the right: in all panels the arms are sorted by final "
        "test accuracy, the best on top. "
        + (
            "Large symbols: mean over seeds; bars: 95 % t-interval of it; small dots: seeds. "
            if n > 1
            else "One seed. "
        )
        + (f"Of {len(ranked)} arms the best and the worst {half} are drawn. " if len(kept) < len(ranked) else "")
        + chosen_words(results)
        + "Arms whose bars overlap are not told apart, and the best of so many owes a part of its lead to chance. "
        + f"{_weights(results)} Curvature over {_samples(results)}, in eval mode."
    )
    figure = sweep_figure(panels, [results.label(arm) for arm in shown])
    return Picture("sweep", figure, "All arms at the end of training", caption)


def envelope(results: Results) -> Picture:
    """The envelope and the alignment."""
    shown = in_colour(results)
    figure = envelope_figure(
        results.curves("envelope", which="workers", arms=shown),
        results.curves("alignment_numerator", which="workers", scale=0.5, arms=shown),
        results.curves("envelope", which="theory", arms=shown),
        results.curves("alignment_normalised", which="workers", arms=shown),
        background=[_others(results, name, "workers") for name in ("envelope", "alignment_normalised")],
    )
    caption = (
        "Left: how much more the workers lose on average than the model that is their average. Where solid symbols and "
        "hollow ones (half of tr(HΣ), Σ the covariance of the disagreement) agree, the loss is quadratic at the scale "
        f"of the disagreement. {_ratio(results, 'envelope')} Right: 1 means that the disagreement does not care about "
        "curvature, more that it lies in sharp directions. The two panels may move in opposite ways: a larger penalty "
        "with weaker alignment is possible. Lines only connect the times of measurement. Hessian: at the consensus "
        f"model, over {_samples(results)}. {_grey(results)}{_bands(results, 'log')}"
    )
    return Picture("envelope", figure, "What the disagreement costs, and how it lies relative to curvature", caption)


def graph(results: Results) -> Picture:
    """The topology."""
    study = results.by_arm[results.treatment if results.treatment in results.order else results.order[-1]][0].study
    chosen = topology(study.topology.name, study.train.workers, **study.topology.parameters)
    caption = (
        "Look at the eigenvalue next to 1: its distance to 1 is the gap that pulls the workers together, and the slope "
        "on the right is what it means for the slowest disagreement over repeated exchanges. With adaptive consensus "
        f"every eigenvalue λ becomes 1 − γ(1 − λ). Topology: {chosen.name}, n = {chosen.size}"
        + "".join(f", {key} = {value}" for key, value in study.topology.parameters.items())
        + ". An arm that averages over all workers does not use it."
    )
    return Picture("topology", topology_figure(chosen), "Who mixes with whom", caption)


def _others(results: Results, name: str, which: str) -> list[Curve]:
    """The curves of the arms without a colour."""
    shown = in_colour(results)
    return [results.curve(name, arm, which=which) for arm in results.order if arm not in shown]


def _grey(results: Results) -> str:
    others = len(results.order) - len(in_colour(results))
    return f"Grey: the means of {others} other arms. " if others else ""


def _weights(results: Results) -> str:
    study = results.first.study
    return f"Weights: consensus (the average of {study.train.workers} workers){_batchnorm(results)}."


def _batchnorm(results: Results) -> str:
    row = results.first.last("test_loss") or {}
    return "; the model has no BatchNorm" if row.get("bn") == "none" else f"; BatchNorm: {row.get('bn')}"


def _bands(results: Results, axis: str = "") -> str:
    n = len(results.seeds)
    words = f"Lines: {'geometric ' if axis == 'log' else ''}mean over {n} seeds; bands: 95 % t-interval of the mean"
    return (words + (" of the logarithm." if axis == "log" else ".")) if n > 1 else "One seed, so no bands."


def _samples(results: Results) -> str:
    study: Study = results.first.study
    count = study.probes.samples
    everything = results.first.meta.get("train_samples")
    return f"{count} training samples" if count and count < (everything or 0) else f"all {everything} training samples"


def _ratio(results: Results, name: str) -> str:
    """Predicted over measured where both are, as computed numbers; the caption does not judge."""
    parts = []
    for arm in in_colour(results):
        measured, predicted = (results.curve(name, arm, which=which).logarithm() for which in ("workers", "theory"))
        expected = dict(zip(predicted.steps, predicted.mean, strict=True))
        found = zip(measured.steps, measured.mean, strict=True)
        gaps = np.array([expected.get(t, np.nan) - value for t, value in found])
        gaps = gaps[np.isfinite(gaps)]
        if len(gaps):
            middle, low, high, last = np.exp([gaps.mean(), gaps.min(), gaps.max(), gaps[-1]])
            span = f"between {low:.2f} and {high:.2f}, {last:.2f} at the end"
            parts.append(f"{results.label(arm)} {middle:.2f} ({span})")
    if not parts:
        return "No prediction: the theory covers DSGD and DSGD-AC with SGD, and needs probes.curvature_every > 0."
    return f"Predicted over measured, geometric mean over the run: {'; '.join(parts)}."
