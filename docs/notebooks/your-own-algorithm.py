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
# # Write and verify your own algorithm
#
# For somebody with an idea on paper: a recursion that is not in the registry. It is written once, as a generator;
# beside it stands its matrix form; laws hold the two against each other and against what every such method must obey.
# Then it is broken on purpose, to see that the laws notice, and run against DSGD.
#
# The idea of this notebook is *delayed mixing*. In DSGD a step waits for the messages of that very step. Let it mix
# what the neighbours held a step earlier instead, so that a message has a whole step to travel:
#
# $$ x_{t+1} = x_t + \gamma\,(W - I)\,x_{t-1} - \alpha\, g(x_t) . $$

# %%
import io
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np
import pandas as pd
import torch
from IPython.display import Image, display

import dissensus
from dissensus.algorithms import algorithm, register
from dissensus.algorithms.protocol import DenseProblem, Gradient, Local, Mix, Step
from dissensus.experiments.figures.style import MARKERS, PALETTE, house_style, new_figure
from dissensus.experiments.problem import Problem, solve
from dissensus.testing import ALGORITHM_LAWS, check_algorithm
from dissensus.theory import eigenvalues, topology

torch.set_num_threads(1)


def show(figure):
    """Shows a figure in the notebook."""
    png = io.BytesIO()
    figure.savefig(png, dpi=80, metadata={"Software": None})
    display(Image(png.getvalue()))


# %% [markdown]
# ## The algorithm
#
# A frozen dataclass. `step` sees stacked workers, one row each, and yields what a worker cannot do alone: `Mix` for an
# exchange, `Gradient` for a gradient. `gamma` goes to the exchange as its share: $(1-\gamma)\,y + \gamma\,W y$. What is
# remembered is a NamedTuple of tensors with one row per worker. `matrix_form` is the equation above in numpy, written
# from the paper and not from `step`: a mistake would have to be made twice.

# %%
class Before(NamedTuple):
    """Where the workers were a step ago."""

    x: torch.Tensor


@register("delayed-dsgd")
@dataclass(frozen=True)
class Delayed:
    """x+ = x + gamma (W - I) x_before - lr g(x)."""

    gamma: float = 0.5

    name: ClassVar[str]
    reference: ClassVar[str] = "this notebook"
    promise: ClassVar[str] = "doubly"
    static: ClassVar[bool] = False
    columnwise: ClassVar[bool] = True

    def init(self, x: torch.Tensor) -> Before:
        return Before(x.clone())

    def step(self, x: torch.Tensor, state: Before, local: Local) -> Step:
        mixed = yield Mix(state.x, self.gamma)
        g = yield Gradient(x)
        return local.move(x + (mixed - state.x), g), Before(x)

    def deployed(self, x: torch.Tensor, state: Before) -> torch.Tensor:
        return x

    def matrix_form(self, problem: DenseProblem, steps: int) -> np.ndarray:
        path = [problem.x0, problem.x0]
        for t in range(steps):
            pull = self.gamma * (problem.mixing(t) - np.eye(len(problem.x0)))
            start = path[-1] + pull @ path[-2]
            path.append(problem.move(t, start, problem.gradient(t, path[-1]), problem.lr(t)))
        return np.stack(path[1:])


# %% [markdown]
# ## The laws
#
# One call runs every law that applies, on schedules chosen to be hard (directed, changing from step to step), with three
# local optimizers. What does not apply is said, with the reason.

# %%
print(check_algorithm(Delayed(), steps=40))


# %% [markdown]
# ## Is anybody awake?
#
# Laws that never fail prove nothing. Here are five mistakes that are easily made, each in one line of `step`.

# %%
class NoDelay(Delayed):
    """Mixes what the workers hold now."""

    def step(self, x, state, local):
        mixed = yield Mix(x, self.gamma)
        g = yield Gradient(x)
        return local.move(x + (mixed - x), g), Before(x)


class KeepsTheNew(Delayed):
    """Remembers where it went instead of where it was."""

    def step(self, x, state, local):
        mixed = yield Mix(state.x, self.gamma)
        g = yield Gradient(x)
        new = local.move(x + (mixed - state.x), g)
        return new, Before(new)


class MixesWhole(Delayed):
    """Goes halfway to the mixture."""

    def step(self, x, state, local):
        mixed = yield Mix(state.x, self.gamma)
        g = yield Gradient(x)
        return local.move(0.5 * (x + mixed), g), Before(x)


class OldGradient(Delayed):
    """Takes the gradient where the message was sent."""

    def step(self, x, state, local):
        mixed = yield Mix(state.x, self.gamma)
        g = yield Gradient(state.x)
        return local.move(x + (mixed - state.x), g), Before(x)


class WritesInPlace(Delayed):
    """Saves a copy by writing to its argument."""

    def step(self, x, state, local):
        mixed = yield Mix(state.x, self.gamma)
        g = yield Gradient(x)
        return local.move(x.add_(mixed - state.x), g), Before(x)


mistakes = [NoDelay, KeepsTheNew, MixesWhole, OldGradient, WritesInPlace]
try:
    check_algorithm(KeepsTheNew(), n=4, steps=10, optimizers=["sgd"])
except AssertionError as broken:
    print(broken)
else:
    raise SystemExit("nobody noticed")

# %% [markdown]
# Law, schedule, optimizer, step, worker, and both numbers: enough to start looking. Which law sees which mistake? Each
# is asked by itself.

# %%
silent = {"resuming", "layouts"}  # they compare the algorithm with itself: left out here, to save time
laws = [name for name in ALGORITHM_LAWS if name not in silent]
seen = np.zeros((len(mistakes), len(laws)))
for i, mistake in enumerate(mistakes):
    for j, law in enumerate(laws):
        try:
            verdict = check_algorithm(mistake(), n=4, steps=10, optimizers=["sgd"], laws=[law])
            seen[i, j] = 0.0 if verdict.held else np.nan
        except AssertionError:
            seen[i, j] = 1.0
asked = ~np.isnan(seen).all(axis=0)
with house_style():
    figure = new_figure(9.0, 2.9)
    ax = figure.subplots()
    ax.imshow(np.nan_to_num(seen[:, asked]), cmap="Greys", vmin=0, vmax=1.4, aspect="auto")
    ax.set_xticks(range(asked.sum()), [law for law, a in zip(laws, asked) if a], rotation=40, ha="right")
    ax.set_yticks(range(len(mistakes)), [mistake.__doc__.rstrip(".").split(" instead")[0] for mistake in mistakes])
    ax.set(title="Which law notices which mistake (dark: noticed)")
    ax.grid(visible=False)
    ax.set_xticks(np.arange(-0.5, asked.sum()), minor=True)
    ax.set_yticks(np.arange(-0.5, len(mistakes)), minor=True)
    ax.grid(which="minor", color="#bbbbbb")
    ax.tick_params(which="minor", length=0)
show(figure)
only = [m.__name__ for m, row in zip(mistakes, seen) if np.nansum(row) == 1 and row[laws.index("matrix form")] == 1]
assert (np.nansum(seen, axis=1) > 0).all(), "a mistake that nobody noticed"
print(f"noticed by the matrix form alone: {', '.join(only) or 'none'}")

# %% [markdown]
# *Look at the rows with a single dark cell.* Symmetries, conservation and purity cannot know which recursion was meant.
# The matrix form can, and only because it was written separately.
#
# ## Against DSGD, and when it is unstable
#
# The same workers, batches and seed; only the algorithm differs. The loss is an exact quadratic with gradient noise.

# %%
n, steps, lr = 8, 600, 0.05
ring = topology("ring", n)
h = np.array([1.0, 0.3, 0.1])
copies = 100  # of each curvature, so that a mean over them has a small error
curvatures = np.repeat(h, copies)


def problem(seed):
    """n equal quadratics with noise of variance one in every gradient; the workers start at the optimum."""
    zeros = np.zeros(len(curvatures))
    noise = np.random.default_rng(seed).normal(size=(steps, n, len(curvatures)))
    return Problem(np.tile(np.diag(curvatures), (n, 1, 1)), np.tile(zeros, (n, 1)), zeros, noise)


arms = {
    "DSGD, γ = 1": algorithm("dsgd"),
    "DSGD, γ = 0.5": algorithm("dsgd", gamma=0.5),
    "delayed, γ = 0.5": Delayed(0.5),
    "delayed, γ = 1": Delayed(1.0),
}
paths = {name: solve(problem(0), algorithm=arm, topology=ring, lr=lr, steps=steps) for name, arm in arms.items()}
distance = {name: ((x - x.mean(axis=1, keepdims=True)) ** 2).sum(axis=2).mean(axis=1) for name, x in paths.items()}
with house_style():
    figure = new_figure(8.0, 3.4)
    ax = figure.subplots()
    for at, (name, values) in enumerate(distance.items()):
        ax.plot(values[1:121], label=name, color=PALETTE[at], marker=MARKERS[at], markevery=(4 + 4 * at, 16))
    ax.set(yscale="log", ylim=(0.4, 1e3), xlabel="step", ylabel="consensus distance Ξ",
           title="Disagreement with delayed mixing on a ring of eight")
    ax.legend(ncols=2)
show(figure)

# %% [markdown]
# *Look at the line that leaves the picture.* Delayed mixing at $\gamma=1$ diverges where DSGD is at ease, although every
# law holds for it: the laws say that it is the recursion of the paper, not that the recursion is any good. For that there
# is the spectrum. Along a mode of the graph with eigenvalue $\lambda$ and a direction of curvature $h$,
#
# $$ z^2 - (1-\alpha h)\, z + \gamma\,(1-\lambda) = 0 . $$
#
# Complex roots have the modulus $\sqrt{\gamma(1-\lambda)}$: delay needs $\gamma\,(1-\lambda_{\min}) < 1$.

# %%
lam = np.sort(np.real(eigenvalues(ring[0])))[:-1]  # without the eigenvalue 1 of agreement


def radius(gamma):
    """The largest modulus of a root over modes and curvatures."""
    return max(np.abs(np.roots([1.0, -(1 - lr * c), gamma * (1 - k)])).max() for k in lam for c in h)


print(f"smallest eigenvalue of the ring: {lam[0]:.4f}, so delay is stable for gamma < {1 / (1 - lam[0]):.3f}")
growth = (distance["delayed, γ = 1"][200] / distance["delayed, γ = 1"][100]) ** (1 / 200)  # of a length, not of its square
print(f"growth per step at gamma = 1: {growth:.4f} measured, {radius(1.0):.4f} by the roots")

# %% [markdown]
# The roots give the variance of every mode, too (an AR(2) process): what theory expects of the disagreement of a method
# that has existed for ten minutes.

# %%
def variance(k, c, gamma):
    """Of one mode, for gradient noise of variance one."""
    phi1, phi2 = 1 - lr * c, -gamma * (1 - k)
    return lr**2 * (1 - phi2) / ((1 + phi2) * ((1 - phi2) ** 2 - phi1**2))


gammas = np.linspace(0.04, 0.98 / (1 - lam[0]), 60)
expected = [sum(variance(k, c, g) for k in lam for c in h) / n for g in gammas]
rows = []
for seed, g in enumerate((0.1, 0.3, 0.5, 0.7), start=1):
    x = solve(problem(seed), algorithm=Delayed(g), topology=ring, lr=lr, steps=steps)[200:]
    per_copy = ((x - x.mean(axis=1, keepdims=True)) ** 2).mean(axis=(0, 1)).reshape(len(h), copies).sum(axis=0)
    mean = sum(variance(k, c, g) for k in lam for c in h) / n
    rows.append({"gamma": g, "predicted": mean, "measured": per_copy.mean(), "error": per_copy.std() / copies**0.5})
table = pd.DataFrame(rows)
table["in errors"] = (table.measured - table.predicted) / table.error
assert table["in errors"].abs().max() < 4
display(table.round(5))
with house_style():
    figure = new_figure(8.0, 3.2)
    ax = figure.subplots()
    ax.plot(gammas, expected, color=PALETTE[2], label="by the roots")
    ax.errorbar(table.gamma, table.measured, 3 * table.error, fmt="o", color=PALETTE[0], capsize=3, label="simulated (3 errors)")
    ax.axvline(1 / (1 - lam[0]), color=PALETTE[5], linestyle="--", label="limit of stability")
    ax.set(yscale="log", xlabel="γ", ylabel="Ξ per set of directions", title="Disagreement that stays under delayed mixing")
    ax.legend()
show(figure)

# %% [markdown]
# *Look at the minimum.* More mixing is better only up to a point; then the oldness of what is mixed takes over.
#
# ## The same object in a training loop
#
# Nothing has to be written again for a loop on many processes. In one process, as here, nobody speaks: with one worker
# the wrapped optimizer is the plain one, to the bit.

# %%
def trained(wrap):
    """Twenty steps of an ordinary loop."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    opt = wrap(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model)
    for batch in torch.randn(20, 32, 10):
        opt.zero_grad()
        model(batch).square().mean().backward()
        opt.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


door = partial(dissensus.decentralize, algorithm=Delayed(), topology="ring")
assert torch.equal(trained(door), trained(lambda opt, model: opt))

# %% [markdown]
# Under `torchrun --nproc-per-node 4` the same lines are four workers that exchange delayed messages. Where to go from here:
# [Add an algorithm](../add-an-algorithm.md) says what else a class may declare, [Test your own](../testing.md) lists every
# law and what it is blind to.
