# ---
# jupyter:
#   jupytext:
#     formats: py:percent,ipynb
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Theory against measurement
#
# For somebody who does not believe a formula before it has met a number. The disagreement of workers on a quadratic is
# known in closed form: here it is held against the engine, mode by mode, with error bars. Then the exponent p of adaptive
# consensus; then a network, which is no quadratic, with nothing fitted; and at the end what is *proven*: a bound and a
# certificate, with how far real runs stay below them.

# %%
import io
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from IPython.display import Image, display

from dissensus.algorithms import algorithm
from dissensus.experiments import Results, load, run_study
from dissensus.experiments.figures.bounds import over_steps, steps_figure
from dissensus.experiments.figures.disagreement import consensus_figure
from dissensus.experiments.figures.style import MARKERS, PALETTE, house_style, new_figure
from dissensus.experiments.problem import Problem, solve
from dissensus.experiments.replay import replay
from dissensus.theory import bounds, predict, topology
from dissensus.theory.certificates import certify
from dissensus.theory.exponents import exponents

torch.set_num_threads(1)
n, ring = 8, topology("ring", 8)
h = np.array([2.0, 0.7, 0.2])
COPIES = 60  # of every curvature: independent directions, so that a mean over them has an error bar
RUNS = Path(tempfile.mkdtemp())


def show(figure):
    """Shows a figure in the notebook."""
    png = io.BytesIO()
    figure.savefig(png, dpi=80, metadata={"Software": None})
    display(Image(png.getvalue()))


def problem(steps, seed):
    """Equal quadratics, noise of variance one in every gradient, all workers at the optimum."""
    curvatures = np.repeat(h, COPIES)
    zeros = np.zeros(len(curvatures))
    noise = np.random.default_rng(seed).normal(size=(steps, n, len(curvatures)))
    return Problem(np.tile(np.diag(curvatures), (n, 1, 1)), np.tile(zeros, (n, 1)), zeros, noise)


# %% [markdown]
# ## Mode by mode
#
# A mixing matrix that is symmetric takes the workers' disagreement apart into modes, one for each of its eigenvalues, and
# the Hessian takes each apart into directions. On a quadratic none of these parts knows of another, and each is a process
# whose variance is known. `predict` has the table. Beside it: a run of the engine that trains everything else, started in
# agreement, its first part left out.

# %%
lr, gamma, steps = 0.1, 0.3, 1500
expected = predict(ring, h, lr=lr, gamma=gamma)
basis = np.linalg.eigh(ring[0].dense())[1][:, ::-1][:, 1:]  # the modes of disagreement, slowest first
x = solve(problem(steps, 0), algorithm=algorithm("dsgd", gamma=gamma), topology=ring, lr=lr, steps=steps)
late = x[steps // 3 :].reshape(-1, n, len(h), COPIES)
energy = (np.einsum("ik,tihc->tkhc", basis, late) ** 2).mean(axis=0)  # (mode, curvature, copy)
measured, error = energy.mean(axis=2), energy.std(axis=2, ddof=1) / np.sqrt(COPIES)
lam = np.linalg.eigvalsh(ring[0].dense())[::-1][1:]
found = expected.modes
rows = np.argsort(-found.eigenvalues, kind="stable")
assert np.allclose(found.eigenvalues[rows], lam)
theory = found.variances[rows]
z = (measured - theory) / error
print(f"{z.size} variances; deviations in standard errors: mean {z.mean():+.2f}, standard deviation {z.std():.2f}, "
      f"largest {np.abs(z).max():.1f}")
print(f"consensus distance: {expected.consensus_distance:.5f} expected, {energy.sum(axis=(0, 1)).mean() / n:.5f} measured")
assert np.abs(z).max() < 4
with house_style():
    figure = new_figure(8.6, 3.6)
    ax = figure.subplots()
    for j, c in enumerate(h):
        at = np.arange(len(lam)) + 0.12 * (j - 1)
        ax.plot(at, theory[:, j], color=PALETTE[j], linestyle="none", marker="_", markersize=16, markeredgewidth=1.6)
        ax.errorbar(at, measured[:, j], 3 * error[:, j], fmt=MARKERS[j], color=PALETTE[j], capsize=2.5, label=f"curvature {c:g}")
    ax.set_xticks(range(len(lam)), [f"{value:.2f}" for value in lam])
    ax.set(yscale="log", xlabel="eigenvalue λ of the mode", ylabel="variance", title="Disagreement by mode and curvature")
    ax.legend(title="bars: expected; points: measured, 3 errors")
show(figure)

# %% [markdown]
# *Look at how a bar sits in its point.* The slow modes on the left hold most of the disagreement, and that is where
# curvature matters: what the graph hardly damps can only be damped by curvature. On the right the graph does it all.
#
# ## What the exponent p does
#
# Adaptive consensus mixes with $\gamma = (\alpha/\alpha_{\max})^p$. As the learning rate falls, does the disagreement
# vanish, stay or grow? `exponents` answers for the stationary state; the points are runs at constant rate and $\gamma$.

# %%
lrs, lr_max, ps = np.array([0.3, 0.15, 0.075, 0.0375]), 0.3, [0.0, 1.0, 2.0, 3.0]
rows = []
with house_style():
    figure = new_figure(8.6, 3.8)
    ax = figure.subplots()
    for at, p in enumerate(ps):
        known = exponents(ring, h, p=p, lr_max=lr_max, lrs=lrs)
        points = []
        for k, rate in enumerate(lrs):
            arm = algorithm("dsgd", gamma=float((rate / lr_max) ** p))
            x = solve(problem(1000, [at, k]), algorithm=arm, topology=ring, lr=float(rate), steps=1000)[400:]
            off = ((x - x.mean(axis=1, keepdims=True)) ** 2).mean(axis=(0, 1)).reshape(len(h), COPIES).sum(axis=0)
            points.append((off.mean(), off.std(ddof=1) / np.sqrt(COPIES)))
        mean, error = np.array(points).T
        line = {q.lr: q for q in known.points}
        theory = np.array([line[rate].consensus_distance for rate in lrs])
        slopes = [np.polyfit(np.log(lrs), np.log(values), 1)[0] for values in (theory, mean)]
        rows.append({"p": p, "slope expected": slopes[0], "slope measured": slopes[1],
                     "largest deviation, errors": np.abs((mean - theory) / error).max()})
        ax.plot(lrs, theory, color=PALETTE[at], label=f"p = {p:g}")
        ax.errorbar(lrs, mean, 3 * error, fmt=MARKERS[at], color=PALETTE[at], capsize=2.5)
    ax.set(xscale="log", yscale="log", xlabel="learning rate", ylabel="consensus distance Ξ",
           title="Lines: expected; points: measured (3 errors)")
    ax.set_xticks(lrs, [f"{rate:g}" for rate in lrs], minor=False)
    ax.minorticks_off()
    ax.legend()
show(figure)
display(pd.DataFrame(rows).round(2))

# %% [markdown]
# *Look at the slopes from right to left*, as training goes. The slope in the learning rate is the fate: positive vanishes,
# zero stays, negative grows. It bends towards 1 at the left for large p: there $\gamma$ is so small that curvature does
# the damping, which does not know p. That is why no p makes the disagreement grow without end on a curved loss.
#
# ## A network
#
# The digits are no quadratic, and their gradient noise is neither white nor constant. A run measures the noise along the
# curvature at a few times (`noise_measure`), and the exact second-moment recursion does the rest. Nothing is fitted to
# the consensus distance.

# %%
study = load(
    name="theory",
    seeds=[0, 1, 2, 3],
    data={"name": "digits", "noise": 0.2},
    model={"name": "mlp", "width": 32},
    topology={"name": "ring"},
    optimizer={"name": "sgd", "momentum": 0.9},
    lr={"peak": 0.1, "schedule": "cosine", "warmup": 20},
    train={"steps": 300, "workers": 8, "batch": 16},
    probes={"every": 10, "curvature_every": 60, "samples": 300, "trace_error": 0.2},
    arms={
        "dsgd": {"algorithm": "dsgd", "label": "DSGD"},
        "dsgd-ac": {"algorithm": "dsgd-ac", "label": "DSGD-AC", "p": 3.0, "start": 20},
    },
)
run_study(study, RUNS)
results = Results.read(RUNS / study.name)
curves = {which: results.curves("consensus_distance", which=which) for which in ("workers", "theory")}
show(consensus_figure(curves["workers"], curves["theory"], results.curves("gamma"), results.curve("lr", "dsgd")))
rows = []
for label, curve in curves["workers"].items():
    late, said = curve.steps >= 60, curves["theory"][label]
    ratio = np.interp(curve.steps[late], said.steps, said.mean) / curve.mean[late]
    rows.append({"arm": label, "expected / measured: smallest": ratio.min(), "median": np.median(ratio), "largest": ratio.max()})
display(pd.DataFrame(rows).round(2))

# %% [markdown]
# *Look at how near the dashed lines are*, over orders of magnitude, and at where they part. A ratio that stays near one
# says that batches are all the workers differ by, and that the loss is quadratic at the scale of their distance. Where
# DSGD-AC lets go, the second may fail first.
#
# ## What is proven
#
# A *bound* holds for every function of a class. How much is left between it and a run is its slack. Here: convex
# functions, exact gradients, workers with different optima.

# %%
K = 40
draw = Problem.draw(8, 10, seed=1, heterogeneity=0.5, conditioning=20.0)
xs = solve(draw, algorithm=algorithm("dsgd"), topology=ring, lr=0.04, steps=K)
descent = bounds.find("convex-descent")
facts = {"size": 8, "contraction": np.abs(lam).max(), "smoothness": 1.0,
         "distance": float(np.linalg.norm(draw.x0[0] - draw.optimum)), "heterogeneity": 0.5**2}
for rate in (0.4, 0.04):
    answer = descent.value(descent.problem(lr=rate, steps=K, **facts))
    print(f"lr = {rate}: {f'at most {float(answer):.4f}' if answer.applies else 'does not apply: ' + answer.failing[0].split(':')[0]}")
average = np.mean([draw.loss(point) for point in xs.mean(axis=1)[:K]]) - draw.loss(draw.optimum)
limit = descent.value(descent.problem(lr=0.04, steps=K, **facts))
print(f"lr = 0.04: measured {average:.4f}, slack {float(limit) / average:.1f}")

# %% [markdown]
# A bound that does not apply says which of its assumptions fails. The slack above is that of one random problem; whether
# the *bound* is loose or the problem lucky is another question, and a *certificate* answers it: the exact worst case over
# all functions and matrices of the class, with a proof that is checked in exact arithmetic, and an instance that attains
# it in the engine.

# %%
certificate = certify("dsgd", order="awc", contraction=0.5, steps=5, lr=0.3)
again = replay(certificate)
print(f"proven: no run exceeds {certificate.value:.6f} (certified: {certificate.certified})")
assert certificate.certified and np.isclose(again.attained, certificate.value, rtol=1e-4)
print(f"attained by the engine: {again.attained:.6f}")
show(steps_figure(over_steps(certificate, samples=60)))

# %% [markdown]
# *Look at the gap between the solid line and the dashed one*: that is how loose the bound is, with no luck in it. And at
# the cloud below: random members of the class are far from the worst, which is why random trials alone never vouch for a
# constant. Every bound of the toolkit stands in the [ledger](../theory/ledger.md) with its least slack; the derivations
# are under [Stationary disagreement](../theory/stationary.md) and [Certificates](../theory/certificates.md).
