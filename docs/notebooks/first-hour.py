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
# # First hour: disagreement on a laptop
#
# Eight workers train one small network. In data-parallel training they hold the same weights at every step. Here each
# talks to two neighbours only, so they disagree a little. How much, what changes it, which of the weights one evaluates,
# and how to find out whether a difference between two runs is more than luck: from nothing to a verdict, on the digits of
# scikit-learn.
#
# ## Who talks to whom
#
# A *topology* says with which weights a worker averages what it hears. Row i belongs to the one who listens.

# %%
import io
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from IPython.display import Image, display
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import dissensus
from dissensus.algorithms import algorithm, evaluate
from dissensus.experiments import Results, load, run_study
from dissensus.experiments.comparison import compare, rule
from dissensus.experiments.figures.learning import learning_figure
from dissensus.experiments.figures.style import MARKERS, PALETTE, house_style, new_figure
from dissensus.theory import predict, report, topology
from dissensus.theory.fixed_point import expected_bias

torch.set_num_threads(1)  # the network is small: a second thread would wait more than it works
RUNS = Path(tempfile.mkdtemp())


def show(figure):
    """Shows a figure in the notebook."""
    png = io.BytesIO()
    figure.savefig(png, dpi=80, metadata={"Software": None})
    display(Image(png.getvalue()))


ring = topology("ring", 8)
print(np.round(ring[0].dense(), 2))

# %% [markdown]
# Nothing learns yet: every worker holds one number and averages with its neighbours, step after step. The *consensus
# distance* $\Xi = \frac1n\sum_i \lVert x_i - \bar x\rVert^2$ says how far they are apart.

# %%
def distance(x):
    """The mean square distance of the workers from their mean."""
    return float(((x - x.mean(axis=0)) ** 2).sum(axis=-1).mean())


names = ["ring", "one-peer-exponential", "complete"]
start = np.random.default_rng(0).normal(size=(8, 1))
rows = []
with house_style():
    figure = new_figure(8.0, 3.2)
    ax = figure.subplots()
    for at, name in enumerate(names):
        schedule, x, path = topology(name, 8), start, [distance(start)]
        for t in range(12):
            x = schedule[t].dense() @ x
            path.append(distance(x))
        ax.plot(np.maximum(path, 1e-5), label=name, color=PALETTE[at], marker=MARKERS[at])
        known = report(schedule)
        rows.append({"topology": name, "messages a step": known.messages_per_step, "contraction": known.contraction,
                     "exact after": known.exact_after})
    ax.set(yscale="log", xlabel="step", ylabel="Ξ (at the bottom: none left)", title="Averaging with neighbours")
    ax.legend()
show(figure)
display(pd.DataFrame(rows).set_index("topology").round(3))

# %% [markdown]
# *Look at where the lines end.* The complete graph agrees at once, for many messages. One peer at a time, in the right
# order, agrees exactly after as many steps as doublings make eight. The ring never agrees exactly; it forgets a fixed
# share of the distance at each step.
#
# ## Three ways to train
#
# Now the workers learn. `allreduce` averages gradients: everybody agrees always. `dsgd` mixes with the neighbours.
# `dsgd-ac` mixes less as the learning rate falls, $\gamma_t = (\alpha_t/\alpha_{\max})^p$. Start, data, order and seed are
# the same for all; a fifth of the training labels is wrong, so that there is something to overfit.

# %%
digits = load_digits()
x = torch.tensor(digits.data / 16.0, dtype=torch.float32)
y = torch.tensor(digits.target)
order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
train, test = order[:1200], order[1200:]
wrong = torch.rand(1200, generator=torch.Generator().manual_seed(1)) < 0.2
labels = torch.where(wrong, torch.randint(0, 10, (1200,), generator=torch.Generator().manual_seed(2)), y[train])

STEPS, PEAK = 300, 0.5


def loss(model, batch):
    """A mean over the samples of a batch."""
    return cross_entropy(model(batch[0]), batch[1])


def trained(how, steps=STEPS):
    """Eight workers on a ring, in this process."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    rate = lambda t: PEAK * 0.5 * (1 + np.cos(np.pi * t / steps))  # noqa: E731
    return dissensus.simulate(
        model, loss, (x[train], labels), algorithm=how, topology=ring, steps=steps, lr=rate, batch_size=16
    )


arms = {"centralized": algorithm("allreduce"), "DSGD": algorithm("dsgd"), "DSGD-AC": algorithm("dsgd-ac", p=3.0)}
runs = {name: trained(how) for name, how in arms.items()}
with house_style():
    figure = new_figure(10.0, 3.4)
    left, right = figure.subplots(1, 2)
    for at, (name, run) in enumerate(runs.items()):
        look = {"color": PALETTE[at], "marker": MARKERS[at], "markevery": (10 * at, 40), "label": name}
        left.plot(pd.Series(run.loss).rolling(10).mean(), **look)
        if run.consensus_distance[-1] > 1e-9:  # what rounding leaves is no disagreement
            right.plot(run.consensus_distance, **look)
    left.set(title="Training loss (mean of 10 steps)", xlabel="step", ylabel="cross-entropy (nats)")
    right.set(title="Consensus distance", yscale="log", xlabel="step", ylabel="Ξ")
    left.legend()
    right.legend()
show(figure)

# %% [markdown]
# *Look at the right panel.* DSGD's workers come together as the learning rate falls; DSGD-AC lets go, and they stay
# apart. Centralized workers are not drawn: nothing but rounding is between them. *Then at the left one*, which shows the
# workers' own losses on their own batches: here every worker has a part of the data for itself, and workers that are let
# go fit their part better, wrong labels included. What that does to the model one deploys is another question; a test set
# answers it below.
#
# ## What gamma does
#
# $\gamma$ is the share of the mixture that a worker takes: 1 is plain mixing, 0 is eight runs that never meet. How much
# more do workers disagree as it falls? Theory knows two extremes: *noise* that is new at every step, and *different data*,
# which pushes in the same direction always. All columns count from $\gamma=1$.

# %%
rows = []
for gamma in (1.0, 0.5, 0.25, 0.1):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    run = dissensus.simulate(
        model, loss, (x[train], labels), algorithm=algorithm("dsgd", gamma=gamma), topology=ring, steps=250, lr=0.1,
        batch_size=16,
    )
    rows.append({
        "gamma": gamma,
        "by noise alone": predict(ring, [0.01], lr=0.1, gamma=gamma).consensus_distance,
        "measured": run.consensus_distance[-100:].mean(),
        "by different data alone": expected_bias(ring, [0.01], 1.0, lr=0.1, gamma=gamma)[0],
    })
table = pd.DataFrame(rows).set_index("gamma")
display((table / table.loc[1.0]).round(2))

# %% [markdown]
# Which of the two it is, and how large the noise, can be measured, too: see the notebook
# [Theory against measurement](theory-against-measurement.ipynb).
#
# ## Which weights?
#
# There are nine models now: eight workers, and their average, the *consensus model*, which nobody has trained. Say which
# one you evaluated. `evaluate` looks at all of them on the same batches, and the training does not notice.

# %%
def accuracy(model, batch):
    """The share of labels that are right."""
    return (model(batch[0]).argmax(1) == batch[1]).float().mean()


rows = []
for name, run in runs.items():
    seen = evaluate(
        run.engine, {"accuracy": accuracy, "loss": loss}, [(x[test], y[test])],
        worse={"accuracy": "smaller", "loss": "larger"},
    )
    for metric, found in seen.metrics.items():
        rows.append({"arm": name, "test": metric, "consensus": found.consensus, "mean of workers": found.local_mean,
                     "worst worker": found.worst, "difference": found.local_mean - found.consensus})
display(pd.DataFrame(rows).set_index(["test", "arm"]).sort_index().round(4))
print("\n".join(f"{whose}: {what}" for whose, what in seen.weights.items()))

# %% [markdown]
# For workers that agree the three columns are the same. For the others the *difference* of the losses, mean worker minus
# consensus, is the *envelope*: what the disagreement costs each worker, and what averaging takes back.
#
# ## A small study
#
# One run against one run says nothing: another seed might turn the sign. A *study* runs arms over *paired* seeds: all
# arms of a seed share start, data and order. The rule of decision is fixed before anything runs.

# %%
study = load(
    name="first-hour",
    seeds=[0, 1, 2, 3, 4],
    data={"name": "digits", "noise": 0.2},
    model={"name": "mlp", "width": 32},
    topology={"name": "ring"},
    lr={"peak": 0.5, "schedule": "cosine", "warmup": 15},
    train={"steps": 300, "workers": 8, "batch": 16},
    probes={"every": 20, "curvature_every": 0, "samples": 300, "trace_error": 0.2},
    arms={
        "centralized": {"algorithm": "allreduce"},
        "dsgd": {"algorithm": "dsgd", "label": "DSGD"},
        "dsgd-ac": {"algorithm": "dsgd-ac", "label": "DSGD-AC", "p": 3.0, "start": 15},
    },
)
outcomes = run_study(study, RUNS)
results = Results.read(RUNS / study.name)
print({status: sum(outcome.status == status for outcome in outcomes) for status in ("ok", "failed", "interrupted")})
show(learning_figure(*(results.curves(q, which="consensus") for q in ("train_loss", "test_loss", "test_accuracy"))))

# %% [markdown]
# *Look at the bands.* A line is a mean over seeds, its band the uncertainty of that mean. Whether two arms differ is not
# to be read off overlapping bands, because seeds are paired; that takes a test.

# %%
findings = compare(results)
print(rule(results, len(findings)))
verdicts = pd.DataFrame(
    {"statement": f.statement, "difference": f.test.mean_difference, "p, corrected": f.corrected, "verdict": f.word}
    for f in findings
)
with pd.option_context("display.max_colwidth", None):
    display(verdicts.round(4))

# %% [markdown]
# *Supported* and *not supported* are both results; *inconclusive* says that so few seeds cannot tell. All statements of
# the table are one family, so each has to be clearer than it would have to be alone.
#
# ## Where the numbers are
#
# Every run left a folder. It holds its own configuration, which alone reproduces it, and records that pandas reads
# without this package.

# %%
run = results.by_arm["dsgd-ac"][0]
for file in sorted(run.path.iterdir()):
    print(f"{file.name:<16}{file.stat().st_size:>8} bytes")
records = pd.concat(
    pd.read_json(path, lines=True).assign(arm=path.parent.name.rsplit("-s", 1)[0], seed=path.parent.name.rsplit("-", 2)[1])
    for path in sorted((RUNS / study.name).glob("*/metrics.jsonl"))
)
last = records[(records.name == "test_accuracy") & (records.step == records.step.max())]
display(last.pivot_table(index="arm", columns="which", values="value", aggfunc=["mean", "std"]).round(4))

# %% [markdown]
# `which` says of which weights a number speaks, here as everywhere. From here: the same study as a file and a command is
# in [Run a study](../study.md), curvature in [Sharpness of a consensus model](sharpness.ipynb), a method of your own in
# [Write and verify your own algorithm](your-own-algorithm.ipynb).
