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
# # Does it pay on my cluster?
#
# For somebody who has a cluster, a model, and a training loop with an all-reduce in it. Decentralized training saves
# waiting: for the wire, and for the slowest worker. How much that is, on these machines with this model, can be computed
# before anything is installed on them. Nothing here trains; the predictions were held against real links elsewhere
# ([Performance](../performance.md)), and what the model does not know is said at the end.
#
# ## The plan
#
# `dissensus plan resnet50 --cluster a40-25g --compute 0.12 --sigma 0.1` on the command line; the same from Python. The
# cluster is a preset here; a file of a few lines, or better a calibration under torchrun, says what yours is.

# %%
import io

import numpy as np
import pandas as pd
from IPython.display import Image, display

from dissensus.experiments.figures.style import MARKERS, PALETTE, house_style, new_figure
from dissensus.experiments.figures.timeline import timeline, timeline_figure
from dissensus.experiments.planning.machines import PRESETS, machine
from dissensus.experiments.planning.ranking import MODELS, make_plan
from dissensus.theory import topology
from dissensus.theory.runtime import LogNormal, Rivals, Round, Stragglers, all_reduce_pace, even_rounds, pace, rounds_on
from dissensus.theory.runtime.placement import TopologyPlacement, place, eight_regions

SCHEDULES = ["one-peer-exponential", "aer", "ring", "complete"]


def show(figure):
    """Shows a figure in the notebook."""
    png = io.BytesIO()
    figure.savefig(png, dpi=80, metadata={"Software": None})
    display(Image(png.getvalue()))


cluster = machine("a40-25g", seconds=0.12, deviation=0.1)
parameters, about = MODELS["resnet50"]
print(f"{PRESETS['a40-25g'][1]}\n{about}: {parameters:,} parameters")
plan = make_plan(cluster, parameters, topologies=SCHEDULES)
rows = [
    {"schedule": "all-reduce, overlapped", "ms": 1e3 * plan.iteration_all_reduce_overlapped, "times as fast": 1.0},
    {"schedule": "all-reduce", "ms": 1e3 * plan.iteration_all_reduce,
     "times as fast": plan.iteration_all_reduce_overlapped / plan.iteration_all_reduce},
]
for row in plan.rows:
    rows.append({"schedule": row.topology, "ms": 1e3 * row.iteration_seconds, "times as fast": row.speedup,
                 "guaranteed": row.guaranteed_speedup, "exchange, ms": 1e3 * row.exchange_seconds,
                 "effective neighbours": row.effective_neighbours})
grouped = rounds_on(topology("aer", 16, workers_per_node=4), PRESETS["a40-25g"][0], 4 * parameters, groups=True)
scaled = [Round(one.senders, one.delay / cluster.seconds) for one in grouped]
seconds = cluster.seconds * float(pace(scaled, LogNormal(0.1)).value[0, 0])
rows.append({"schedule": "aer, groups as all-reduces", "ms": 1e3 * seconds,
             "times as fast": plan.iteration_all_reduce_overlapped / seconds,
             "effective neighbours": next(row.effective_neighbours for row in plan.rows if row.topology == "aer")})
display(pd.DataFrame(rows).set_index("schedule").round(2))
print(f"a step computes {1e3 * plan.compute_seconds:.0f} ms, an all-reduce takes {1e3 * plan.all_reduce_seconds:.0f} ms: "
      f"gamma = {plan.gamma:.2f}")
print(plan.recommendation)

# %% [markdown]
# Two columns decide, and they pull apart: an iteration's time, and the *effective neighbours*, over how many workers a
# worker's average effectively goes (16 is all-reduce). A fast schedule that hardly mixes is no bargain. *Guaranteed* is a
# theorem and no simulation. What is predicted is `dissensus.decentralize`, where messages go from worker to worker; `aer`
# averages in groups of a node or two, and the last row says what it would take if each group did that by an all-reduce.
#
# ## What one waits for
#
# Four iterations on eight workers of a flat network, on the same computing times: all-reduce above, one peer at a time
# below. On such a network an exchange costs $n/2(n-1)$ of an all-reduce.

# %%
few = topology("one-peer-exponential", 8)
found = timeline(
    even_rounds(few, 8 / 14 * plan.gamma), LogNormal(0.2), plan.gamma, begins=plan.begins, buckets=plan.buckets, steps=4,
    name="one peer at a time",
)
show(timeline_figure(found))

# %% [markdown]
# *Look at the white gaps.* Above, everybody waits for the slowest and then for the wire. Below, an exchange runs while
# the next gradient is computed, and a worker waits for one other only.
#
# ## Where break-even lies
#
# Large models and slow links make communication dear; small ones leave nothing to save. The same plan for models of
# many sizes, whose step computes as long each time: only the wire changes.

# %%
sizes = np.geomspace(3e5, 3e8, 9)
speed = {name: [] for name in SCHEDULES[:3]}
gammas = []
for count in sizes:
    one = make_plan(machine("a40-25g", seconds=0.12, deviation=0.1), round(count), topologies=SCHEDULES[:3], iterations=600)
    gammas.append(one.gamma)
    for row in one.rows:
        speed[row.topology].append(row.speedup)
with house_style():
    figure = new_figure(8.0, 3.6)
    ax = figure.subplots()
    for at, (name, values) in enumerate(speed.items()):
        ax.plot(gammas, values, label=name, color=PALETTE[at], marker=MARKERS[at])
    ax.axhline(1.0, color="#222222", linestyle="--", linewidth=1)
    ax.set(xscale="log", xlabel="γ: all-reduce over computing", ylabel="times as fast as all-reduce (overlapped)",
           title="Speed-up over the size of the model, four nodes of four")
    ax.legend()
show(figure)
for name, values in speed.items():
    even = [g for g, v in zip(gammas, values) if v > 1.05]
    print(f"{name}: more than five per cent faster at gamma = {min(even):.2g} to {max(even):.2g} of {min(gammas):.2g} to {max(gammas):.2g}")

# %% [markdown]
# *Look at where a line crosses the dashed one.* For small $\gamma$ all schedules save the same: the waiting for the
# slowest worker. For large $\gamma$ the busiest network card decides, and four workers share one here. In a ring two
# workers of a node talk to other nodes; in most rounds of the exponential schedule all four do, and beyond the crossing
# all-reduce, which is made for shared cards, is faster. So the range that pays lies in between, and it ends.
#
# ## Stragglers
#
# Now no network at all ($\gamma$ small), and computing times that vary: log-normal noise, or one step in fifty that takes
# five times as long.

# %%
flat, n = topology("one-peer-exponential", 16), 16
gamma, omega = 0.2, 16 / 30  # of a flat network: an exchange costs n / 2(n - 1) of an all-reduce
noises = {f"log-normal, σ = {s:g}": LogNormal(s) for s in (0.05, 0.1, 0.2, 0.4)}
noises["one step in fifty takes 5 times as long"] = Stragglers(LogNormal(0.05), 0.02, 5.0)
rows = []
for name, noise in noises.items():
    ours = float(pace(even_rounds(flat, omega * gamma), noise).value[0, 0])
    rivals = Rivals(omega=omega, n=n)
    rows.append({"computing": name, "all-reduce": all_reduce_pace(noise, n, gamma), "one peer": ours,
                 "times as fast": all_reduce_pace(noise, n, gamma) / ours,
                 "guaranteed": rivals.guaranteed_speedup(gamma, noise)})
table = pd.DataFrame(rows).set_index("computing")
display(table.round(3))
with house_style():
    figure = new_figure(8.0, 2.8)
    ax = figure.subplots()
    at = np.arange(len(table))
    ax.barh(at - 0.2, table["times as fast"], 0.38, color=PALETTE[2], label="predicted")
    ax.barh(at + 0.2, table["guaranteed"], 0.38, color=PALETTE[1], label="guaranteed", hatch="//", edgecolor="white")
    ax.axvline(1.0, color="#222222", linestyle="--", linewidth=1)
    ax.set_yticks(at, table.index)
    ax.invert_yaxis()
    ax.set(xlabel="times as fast as all-reduce", title="What varying computing times are worth, 16 workers",
           xlim=(0.0, 1.3 * table["times as fast"].max()))
    ax.legend(loc="lower right")
show(figure)

# %% [markdown]
# *Look at the last bar.* All-reduce meets a straggler in some worker at nearly every step, and everybody waits; here a
# delay spreads by one neighbour a step, and most are over before they arrive. A worker that is *always* slow is another
# matter: it holds up everybody, in every scheme. For which $\gamma$ is the schedule surely faster?

# %%
for margin in (0.05, 0.2, 0.5):
    regime = Rivals(omega=omega, n=n).guaranteed_regime(margin, LogNormal(0.1))
    print(f"at least {1 + margin:g} times as fast: " + (", ".join(f"{a:.2f} < gamma < {b:.2f}" for a, b in regime) or "nowhere"))

# %% [markdown]
# ## Who sits where
#
# If links differ much, the same topology is fast or slow by where its workers live. Eight regions of the world with eight
# devices each, 100 MB a message: seconds of a round's slowest message, mean over the rounds. *As listed* is region by
# region.

# %%
links = eight_regions()
rows = []
for name in ("ring", "one-peer-ring", "one-peer-exponential"):
    placed = place(TopologyPlacement(topology(name, links.size), links, message_bytes=1e8), descents=4, draws=300)
    rows.append({"topology": name, "at random, mean": placed.random.mean, "as listed": placed.identity, "found": placed.cost})
table = pd.DataFrame(rows).set_index("topology")
display(table.round(2))
times = links.seconds(1e8)[~np.eye(links.size, dtype=bool)]
print(f"one message takes {times.min():.2f} s on the fastest link and {times.max():.2f} s on the slowest")
print(f"a good place makes a round up to {(table['at random, mean'] / table['found']).max():.1f} times as fast")

# %% [markdown]
# What the model leaves out: computing times that hang together from step to step; messages that burn the cores that
# compute; how a card is really shared (published times of clusters with shared cards are not reproduced in their order).
# So calibrate where you will train, and believe the measurement: [When does it pay](../theory/runtime.md).
