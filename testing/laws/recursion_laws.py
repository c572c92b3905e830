"""Laws of an algorithm by itself, without an engine: what it declares, that it is a function, what can reach whom."""

from __future__ import annotations

import numpy as np
import torch

from dissensus.testing.laws.problems import apart, generator_states
from dissensus.testing.laws.subject import COLUMNS, DECLARED, Subject
from dissensus.testing.laws.verdict import DoesNotApply, Law, agree, require

STEPS = 12
ROUNDING = 1e-12


def declarations(subject: Subject) -> None:
    """It carries everything the protocol asks for, as a frozen dataclass."""
    algorithm = subject.algorithm
    for what, how in DECLARED.items():
        require(hasattr(algorithm, what), f"it has no {what}; add {how}")
    parameters = getattr(algorithm, "__dataclass_params__", None)
    require(parameters is not None and parameters.frozen, "it must be a dataclass of its hyper-parameters, frozen=True")
    require(
        algorithm.promise in (None, "doubly", "row", "column"),
        f"promise is {algorithm.promise!r}, expected 'doubly', 'row', 'column' or None",
    )
    for flag in ("static", "columnwise"):
        require(isinstance(getattr(algorithm, flag), bool), f"{flag} must be True or False")


def state_has_rows(subject: Subject) -> None:
    """State is a NamedTuple of tensors with one row per worker; shapes and dtypes never change, in float32 neither."""
    for dtype in (torch.float64, torch.float32):
        x0 = torch.linspace(-1, 1, subject.n * COLUMNS, dtype=dtype).reshape(subject.n, COLUMNS)
        path = subject.bare(subject.topologies[0], x0=x0).run(STEPS)
        for t, (raw, deployed, state) in enumerate(zip(*path, strict=True)):
            for what, value, first in [
                ("x", raw, x0),
                ("deployed", deployed, x0),
                *((f"field {i} of the state", s, path.states[0][i]) for i, s in enumerate(state)),
            ]:
                require(
                    value.shape == first.shape and value.dtype == first.dtype,
                    f"from {dtype} points, after {t} steps: {what} is {tuple(value.shape)} {value.dtype}, "
                    f"expected {tuple(first.shape)} {first.dtype}",
                )
                require(
                    bool(torch.isfinite(value).all()), f"from {dtype} points, after {t} steps: {what} is not finite"
                )


def purity(subject: Subject) -> None:
    """A step is a function: nothing it is given is written to, no global generator advances, nothing is remembered."""
    for topology in subject.topologies:
        bare, before = subject.bare(topology), generator_states()
        first = bare.run(STEPS)
        after = generator_states()
        for name, was in before.items():
            require(was == after[name], f"{topology.name}: the global generator of {name} was advanced")
        for what, now, then in bare.trace.touched:
            require(torch.equal(now, then), f"{topology.name}: {what} was written to")
        again = bare.run(STEPS)  # the same object: what it remembers outside of its state shows here
        agree(_stack(again.deployed), _stack(first.deployed), f"{topology.name}, the same run a second time")
        anew = subject.bare(topology).run(STEPS)
        agree(_stack(anew.deployed), _stack(first.deployed), f"{topology.name}, the same run of an equal algorithm")


def rows_apart(subject: Subject) -> None:
    """One worker a process computes what all workers in one block compute."""
    for topology in subject.topologies:
        whole = subject.bare(topology).run(STEPS)
        single = subject.bare(topology).run(STEPS, rows=[[i] for i in range(topology.size)])
        agree(_stack(single.deployed), _stack(whole.deployed), f"{topology.name}, a process per worker", ROUNDING)
        halves = [list(range(0, topology.size, 2)), list(range(1, topology.size, 2))]
        blocks = subject.bare(topology).run(STEPS, rows=[h for h in halves if h])
        agree(_stack(blocks.deployed), _stack(whole.deployed), f"{topology.name}, two processes", ROUNDING)


def columns_apart(subject: Subject) -> None:
    """Buckets of columns, each run by itself, compute what the whole model computes."""
    if not subject.algorithm.columnwise:
        raise DoesNotApply("it says columnwise = False")
    for topology in subject.topologies:
        whole = subject.bare(topology).run(STEPS)
        cut = subject.bare(topology).run(STEPS, columns=[[0, 1], [2, 3, 4]])
        agree(_stack(cut.deployed), _stack(whole.deployed), f"{topology.name}, columns in two buckets", ROUNDING)


def handed_on(subject: Subject) -> None:
    """If it says `in_place`: what it has handed on it does not read again, and it does not look at gradients."""
    if not getattr(subject.algorithm, "in_place", False):
        raise DoesNotApply("it does not say in_place = True")
    for topology in subject.topologies:
        kept = subject.bare(topology).run(STEPS)
        overwritten = subject.bare(topology, greedy=True).run(STEPS)
        agree(_stack(overwritten.deployed), _stack(kept.deployed), f"{topology.name}, where it is overwritten")


def locality(subject: Subject) -> None:
    """What a worker starts from reaches another no sooner than messages carry it, and nobody where nobody speaks."""
    if subject.trace.means:
        raise DoesNotApply("it asks for a mean over all workers")
    for topology in (*subject.topologies, apart(subject.n)):
        moved = 1 % topology.size
        bare = subject.bare(topology)
        one = bare.run(STEPS)
        x0 = bare.x0.clone()
        x0[moved] += 1.0
        two = subject.bare(topology, x0=x0).run(STEPS)
        reached = {moved}
        for t in range(STEPS + 1):
            for i in set(range(topology.size)) - reached:
                for what, a, b in (("x", one.raw, two.raw), ("deployed", one.deployed, two.deployed)):
                    require(
                        torch.equal(a[t][i], b[t][i]),
                        f"{topology.name}, step {t}, worker {i}: {what} depends on where worker {moved} started, "
                        "although no message has come from there",
                    )
            if t < STEPS:
                for _ in range(bare.trace.hops[t]):
                    reached |= {i for i in range(topology.size) if reached & set(topology[t].neighbours(i))}


def consensus_stays(subject: Subject) -> None:
    """Workers that agree and have no gradient stay where they are, on every schedule it says it can run on."""
    same = torch.linspace(-1, 1, COLUMNS, dtype=torch.float64).expand(subject.n, COLUMNS).clone()
    for topology in subject.topologies:
        path = subject.bare(topology, x0=same, slope=0.0).run(STEPS)
        agree(_stack(path.deployed), _stack([same] * (STEPS + 1)), f"{topology.name}, without gradients", ROUNDING)


def sums_are_kept(subject: Subject) -> None:
    """Where columns sum to one the sum of x is kept, and de-biased models find the mean of the starting points."""
    if subject.algorithm.promise != "column":
        raise DoesNotApply(f"it does not promise to run on column stochastic rounds, but {subject.algorithm.promise!r}")
    for topology in subject.topologies:
        steps = 200 if topology.promise == "column" else STEPS
        bare = subject.bare(topology, slope=0.0)
        path = bare.run(steps)
        raw = _stack(path.raw).sum(axis=1)
        agree(raw, np.repeat(raw[:1], steps + 1, axis=0), f"{topology.name}, the sum of x over the workers", ROUNDING)
        for i, name in enumerate(getattr(bare.algorithm.init(bare.x0), "_fields", ())):
            values = _stack([s[i] for s in path.states])
            if (values[0] == 1.0).all():  # weights of one before the first step: they travel and are kept, too
                total = values.sum(axis=1)
                agree(total, np.repeat(total[:1], steps + 1, axis=0), f"{topology.name}, the sum of {name}", ROUNDING)
        if topology.promise == "column":
            mean = bare.x0.mean(dim=0).expand(topology.size, -1)
            agree(
                _stack(path.deployed[-1:]),
                _stack([mean]),
                f"{topology.name}, after {steps} steps without gradients",
                1e-9,
            )


RECURSION_LAWS: dict[str, Law[Subject]] = {
    "declarations": declarations,
    "state has rows": state_has_rows,
    "purity": purity,
    "rows apart": rows_apart,
    "columns apart": columns_apart,
    "handed on": handed_on,
    "locality": locality,
    "consensus stays": consensus_stays,
    "sums are kept": sums_are_kept,
}


def _stack(values: list[torch.Tensor]) -> np.ndarray:
    return torch.stack([v.to(torch.float64) for v in values]).numpy()
