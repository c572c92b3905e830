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
# # Sharpness of a consensus model
#
# Eight workers train a small network on the digits of scikit-learn and never agree completely. What is deployed is
# their average. How sharp is the loss there, which sharpness is meant, and what has the workers' disagreement to do
# with it? From a run directory to figures, in under two minutes on two cores.
#
# For somebody who knows what a Hessian is and wants to know which number a paper means by *sharp*.

# %%
import copy
import io
import tempfile
from pathlib import Path

import torch
from IPython.display import Image, display

from dissensus.experiments.cell import Setup
from dissensus.experiments.figures.graph_modes import mode_figure
from dissensus.experiments.figures.landscape import plane_figure, slice_figure
from dissensus.experiments.figures.probing import density_of
from dissensus.experiments.figures.training import Track, training_figure
from dissensus.experiments.loading import load
from dissensus.experiments.runner import run_cell
from dissensus.experiments.subject import of_run
from dissensus.probes import Curvature, alignment, captured, envelope, hessian_trace, top_eigenvalues
from dissensus.probes.density import spectral_density
from dissensus.probes.modes import curvature_by_mode
from dissensus.probes.sharpness import sharpness
from dissensus.probes.slices import loss_slice, principal_directions
from dissensus.probes.subspace import disagreement_angles

torch.set_num_threads(1)  # the network is small: a second thread would wait more than it works
STEPS, SAMPLES, POINTS = 240, 400, 17  # of training; under the probes; along an axis of a figure
RUNS = Path(tempfile.mkdtemp())


def show(figure):
    """Shows a figure in the notebook."""
    png = io.BytesIO()
    figure.savefig(png, dpi=80, metadata={"Software": None})
    display(Image(png.getvalue()))


# %% [markdown]
# ## Two runs
#
# The same start, the same batches; the second run lets the workers disagree more as the learning rate falls (adaptive
# consensus with $\gamma_t = (\alpha_t/\alpha_{\max})^p$). Both keep their weights at the end (`keep`), so that what
# follows reads them from the run directories; 400 of the training samples are under the probes.

# %%
study = load(
    name="sharpness",
    data={"name": "digits", "noise": 0.2},
    model={"name": "mlp", "width": 32, "activation": "relu"},
    topology={"name": "ring"},
    optimizer={"name": "sgd", "momentum": 0.9},
    lr={"peak": 0.1, "warmup": 15},
    train={"steps": STEPS, "workers": 8, "batch": 16, "keep": True},
    probes={"every": 100, "curvature_every": 0, "trace_error": 0.2, "samples": SAMPLES},
    arms={"dsgd": {"algorithm": "dsgd"}, "adaptive": {"algorithm": "dsgd-ac", "p": 3.0, "start": 15}},
)
runs = {arm: run_cell(study.cell(arm, 0), RUNS).path for arm in study.arms}
subjects = {arm: of_run(path) for arm, path in runs.items()}
for arm, subject in subjects.items():
    print(f"{arm}: {subject.name}, {subject.facts()['parameters']} parameters")

# %% [markdown]
# ## Which sharpness?
#
# Every measure by its name, with an interval and how it was made. The worst cases share one perturbation among all
# samples (`m` = all); the ascent gives a lower bound of the maximum and says so.

# %%
for arm, subject in subjects.items():
    print(f"\n{arm}")
    found = sharpness(subject.model, subject.data.task.loss, subject.batches, x=subject.x, rtol=0.2, steps=8)
    for kind, estimate in found.items():
        print(f"  {kind:<20} {estimate}")

# %% [markdown]
# ## The same function, another number
#
# Multiply one layer by ten and divide the next by ten: with a ReLU between them the network computes the same. The
# plain measures change all the same; the adaptive ones do not.

# %%
plain = subjects["dsgd"]
other = copy.deepcopy(plain.model)
first, second = (layer for layer in other if isinstance(layer, torch.nn.Linear))
with torch.no_grad():
    first.weight *= 10
    first.bias *= 10
    second.weight /= 10
kinds = ["largest-eigenvalue", "trace", "sam", "average", "adaptive-sam", "adaptive-average"]
before, after = (
    sharpness(model, plain.data.task.loss, plain.batches, kinds, rtol=0.2, dtype=torch.float64)
    for model in (plain.model, other)
)
for kind in kinds:
    print(f"{kind:<20} {before[kind].value:>12.5g} {after[kind].value:>12.5g}")
    same = abs(after[kind].value / before[kind].value - 1) < 1e-4
    assert same == kind.startswith("adaptive")

# %% [markdown]
# ## The spectrum
#
# A few eigenvalues stand apart (about as many as there are classes), nearly all lie at zero. A line is one eigenvalue.

# %%
operator = Curvature(plain.model, plain.data.task.loss, plain.batches)
density = spectral_density(operator, probes=3, steps=30, deflate=60)
print(f"mean eigenvalue {density.moment(1)}")
print(f"negative share  {density.negative_share()}")
show(density_of(density))

# %% [markdown]
# ## Slices
#
# Along a random direction in the scale of the weights (filter normalisation), and along the sharpest direction. The two
# horizontal axes are far from alike. Dashed: what the Hessian at the middle says.

# %%
pairs = top_eigenvalues(operator, 5)
common = (plain.model, plain.data.task.loss, plain.batches)
random = loss_slice(*common, 1, points=POINTS)
sharpest = loss_slice(*common, [pairs[0].vector], reach=0.7, points=POINTS, labels=["top eigenvector"])
curves, bends = {}, {}
for cut in (random, sharpest):
    length = float(cut.directions[0].norm())
    unit = cut.directions[0] / length
    curves[cut.labels[0]] = (cut.axes[0] * length, cut.values)
    bends[cut.labels[0]] = float(unit @ operator.matvec(unit))
show(slice_figure(curves, bends))

# %% [markdown]
# And the plane in which the workers of the adaptive run differ most, with the workers in it.

# %%
adaptive = subjects["adaptive"]
rows, spread = principal_directions(adaptive.x, 2)
plane = loss_slice(
    adaptive.model, adaptive.data.task.loss, adaptive.batches, list(rows), reach=3 * float(spread[0]), points=POINTS,
    labels=["first principal direction", "second principal direction"], workers=adaptive.x, dtype=torch.float64,
)
show(plane_figure(plane.axes, plane.values, plane.labels, plane.marks, "Loss where the workers differ most"))

# %% [markdown]
# ## Where disagreement and curvature meet
#
# With $\Sigma$ the covariance of the disagreement: what it costs, $\frac1n\sum_i L(x_i) - L(\bar x)$, beside
# $\frac12\operatorname{tr}(H\Sigma)$; the mean curvature along it; and the alignment
# $d\operatorname{tr}(H\Sigma)/(\operatorname{tr}H\operatorname{tr}\Sigma)$, which is 1 where it has no preferred
# direction. The parts of a ratio stand beside it: cost and alignment may move in opposite ways.

# %%
for arm, subject in subjects.items():
    loss, op = subject.data.task.loss, Curvature(subject.model, subject.data.task.loss, subject.batches)
    vectors = [pair.vector for pair in top_eigenvalues(op, 5)]
    aligned = alignment(op, subject.x, trace=hessian_trace(op, rtol=0.02))
    cost = envelope(subject.model, loss, subject.portions, subject.x, dtype=torch.float64)
    angles = disagreement_angles(subject.x, vectors)
    print(f"\n{arm}")
    print(f"  cost, measured         {cost}")
    print(f"  1/2 tr(H Sigma)        {aligned.numerator / 2:.4g}")
    print(f"  tr Sigma               {aligned.trace_sigma:.4g}")
    print(f"  tr H                   {aligned.trace_h}")
    print(f"  curvature along it     {aligned.rayleigh:.4g}")
    print(f"  alignment              {aligned.normalised}")
    print(f"  share in the top five  {captured(subject.x, vectors):.3f} (by chance {5 / op.size:.4f})")
    print(f"  angles to the top five {', '.join(f'{angle:.0f}' for angle in angles.degrees)} degrees")

# %% [markdown]
# Taken apart by the modes of the ring: the slowest mode (the eigenvalue nearest to 1) holds most of the disagreement.

# %%
op = Curvature(adaptive.model, adaptive.data.task.loss, adaptive.batches)
parts = curvature_by_mode(op, adaptive.x, adaptive.topology)
for part in parts:
    mode = part.mode
    value, share = mode.eigenvalue.real, 100 * mode.share
    print(f"lambda {value:+.3f} x {mode.multiplicity}: {share:5.1f} %, curvature {part.rayleigh:.3g}")
show(
    mode_figure(
        [part.mode.eigenvalue.real for part in parts], [part.mode.energy for part in parts],
        [part.rayleigh for part in parts], [part.mode.multiplicity for part in parts],
        hessian_trace(op, rtol=0.05).value / op.size, axis="eigenvalue λ of the round",
    )
)

# %% [markdown]
# ## Eigenvalues over training
#
# The probes leave no trace: this run ends in the very bits in which it ended without them.

# %%
setup = Setup.build(study.cell("dsgd", 0))
rows = []
for t in range(study.train.steps + 1):
    if t % (STEPS // 6) == 0:
        with setup.engine.consensus() as module:
            found = top_eigenvalues(Curvature(module, setup.data.task.loss, setup.probe_batches), 3)
        rows += [{"step": t, "rank": i, "value": p.value, "interval": list(p.interval)} for i, p in enumerate(found)]
    if t < study.train.steps:
        setup.engine.step(setup.batch(t))
assert torch.equal(setup.engine.x, plain.x)
tracks = {f"eigenvalue {i + 1}": Track.of(row for row in rows if row["rank"] == i) for i in range(3)}
show(training_figure({"Largest eigenvalues at the consensus": tracks}))
