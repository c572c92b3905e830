"""Laws of an algorithm run by an engine: its matrix form, symmetry, conservation, limits, layouts, resuming."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dissensus.testing.laws.problems import OPTIMIZERS, Quadratics, apart, learning_rate, named
from dissensus.testing.laws.subject import COLUMNS, Plain, Subject, accepts, alone, centralized
from dissensus.testing.laws.verdict import DoesNotApply, Law, agree, require
from dissensus.theory.topology import Topology

ROUNDING = 1e-12
SHORT = 16
"""Steps of a run where more would say nothing new."""


def matrix_form(subject: Subject) -> None:
    """The engine follows the dense recursion of the paper, on every schedule and with every optimizer.

    Every schedule and every optimizer is followed to the end at least once; pairs of them beyond that for 30 steps.
    """
    long = [(topology.name, optimizer) for topology, optimizer in subject.pairs()]
    for topology in subject.topologies:
        problem = Quadratics.draw(topology.size, COLUMNS, subject.steps, subject.seed)
        for optimizer in subject.optimizers:
            steps = subject.steps if (topology.name, optimizer) in long else min(subject.steps, 30)
            expected = subject.matrix_form(problem, topology, optimizer, steps)
            found = subject.path(problem, topology, optimizer, steps)
            agree(found, expected, f"{topology.name}, {optimizer}", 1e-10)


def mean_is_kept(subject: Subject) -> None:
    """Without gradients, and with a learning rate of zero, the mean of the models is kept, and all is finite."""
    steps, ran = min(subject.steps, SHORT), False
    problem = Quadratics.draw(subject.n, COLUMNS, steps, subject.seed)
    expected = np.repeat(problem.x0.mean(axis=0)[None], steps + 1, axis=0)
    still = next(k for k in ("sgd", "adam") if accepts(subject.algorithm, OPTIMIZERS[k]))  # no decay moves the mean
    for topology in subject.topologies:
        if topology.promise != "doubly":
            continue
        for what, given, lr in (("no gradient", problem.flat(), 0.1), ("learning rate 0", problem, 0.0)):
            options = {"algorithm": subject.fresh(), "topology": topology, "optimizer": OPTIMIZERS[still].factory}
            mean = given.run(given.engine(subject.engine, lr=lr, **options), steps).mean(axis=1)
            where = f"{topology.name}, {still}, {what}, the mean over the workers"
            agree(mean, expected, where, ROUNDING, ("step", "column"))
            ran = True
    if not ran:
        raise DoesNotApply("none of the topologies is doubly stochastic")


def relabelling(subject: Subject) -> None:
    """Workers that change places by an automorphism of the schedule change their trajectories, and nothing else."""
    subject.needs_no_draws()
    steps, ran = min(subject.steps, SHORT), False
    problem = Quadratics.draw(subject.n, COLUMNS, steps, subject.seed)
    more = [named("hypercube", subject.n)] if subject.n & (subject.n - 1) == 0 else []
    cases = [*subject.pairs(), *((topology, list(subject.optimizers)[-1]) for topology in more)]
    for topology, optimizer in cases:
        for moved, order in _automorphisms(topology):
            one = subject.path(problem, topology, optimizer, steps)
            two = subject.path(problem.of(order), topology, optimizer, steps)
            agree(two, one[:, order], f"{topology.name}, {optimizer}, {moved}", ROUNDING)
            ran = True
    if not ran:
        raise DoesNotApply("none of the topologies has a rotation or an exclusive or that maps it to itself")


def identical_workers(subject: Subject) -> None:
    """Workers that start equal and see the same batches stay equal: to the bit where all weights are 1/2."""
    subject.needs_no_draws()
    steps = min(subject.steps, SHORT)
    problem = Quadratics.draw(subject.n, COLUMNS, steps, subject.seed).of([0] * subject.n)
    for topology, optimizer in subject.pairs():
        if topology.promise == "column":
            continue  # unequal row sums: its workers take steps of unequal length
        halves = all(set(topology[t].weights.data.tolist()) <= {0.5, 1.0} for t in range(topology.period or steps))
        points = subject.path(problem, topology, optimizer, steps)
        first = np.repeat(points[:, :1], subject.n, axis=1)
        agree(points, first, f"{topology.name}, {optimizer}, against worker 0", 0.0 if halves else ROUNDING)


def independent_runs(subject: Subject) -> None:
    """With gamma = 0 nobody hears anybody: every worker is where it would be on a schedule in which nobody speaks."""
    fields = {f.name for f in dataclasses.fields(subject.algorithm) if f.init}  # type: ignore[arg-type]
    if "gamma" not in fields:
        raise DoesNotApply("it has no field gamma")
    silent = subject.fresh(gamma=0.0)
    steps = min(subject.steps, SHORT)
    problem = Quadratics.draw(subject.n, COLUMNS, steps, subject.seed)
    for topology, optimizer in subject.pairs():
        engine = subject.engine_on(problem, topology, optimizer, algorithm=silent)
        points = [engine.x.numpy()]
        for t in range(steps):
            gamma = engine.step(problem.batch(t)).gamma
            if gamma not in (None, 0.0):
                raise DoesNotApply(f"built with gamma=0 it notes gamma = {gamma:g} at step {t}")
            points.append(engine.x.numpy())
        expected = subject.path(problem, apart(subject.n), optimizer, steps, algorithm=silent)
        agree(np.stack(points), expected, f"{topology.name}, {optimizer}, gamma = 0")


def one_worker(subject: Subject) -> None:
    """One worker is the plain optimizer in the loop everybody writes.

    To the bit, if at one worker it moves along the gradient it was given; up to rounding, if along a sum of gradients.
    """
    single = named("complete", 1)
    fitting, off = _where_plain(subject, alone, single)
    if not fitting:
        raise DoesNotApply(f"with one worker its matrix form is not the plain optimizer (they differ by {off:.1e})")
    bare = subject.bare(single)
    bare.run(SHORT)
    for optimizer in fitting:
        batches = [_samples(1, t, subject.seed) for t in range(SHORT)]
        found = _trained(subject, single, optimizer, batches, {"gradients": "loop"})
        plain = _plain_loop(subject.optimizers[optimizer].factory, [(x[0], y[0]) for x, y in batches])
        agree(found[:, 0], plain, f"one worker, {optimizer}", 0.0 if bare.trace.plain else ROUNDING)


def large_batch(subject: Subject) -> None:
    """On the complete graph n workers are one machine with the n batches together, where its matrix form says so."""
    everybody = named("complete", subject.n)
    fitting, off = _where_plain(subject, centralized, everybody)
    if not fitting:
        raise DoesNotApply(f"on the complete graph its matrix form is not large-batch training (off by {off:.1e})")
    for optimizer in fitting:
        batches = [_samples(subject.n, t, subject.seed) for t in range(SHORT)]
        found = _trained(subject, everybody, optimizer, batches, {})
        together = [(x.flatten(0, 1), y.flatten(0, 1)) for x, y in batches]
        plain = _plain_loop(subject.optimizers[optimizer].factory, together)
        agree(found, np.repeat(plain[:, None], subject.n, axis=1), f"complete graph, {optimizer}", 1e-9)


def layouts(subject: Subject) -> None:
    """Every layout gives the same numbers: all workers in one vmap, a loop over them, chunks of them, and yours."""
    steps = min(subject.steps, 8)
    problem = Quadratics.draw(subject.n, COLUMNS, steps, subject.seed)
    optimizer = list(subject.optimizers)[-1]
    for topology in subject.topologies:
        paths = {
            name: subject.path(problem, topology, optimizer, steps, build=build)
            for name, build in subject.layouts.items()
        }
        first = next(iter(paths))
        for name, path in paths.items():
            agree(path, paths[first], f"{topology.name}, {optimizer}, layout {name} against {first}", ROUNDING)


def resuming(subject: Subject) -> None:
    """A run that is saved, loaded into a fresh engine and continued equals the uninterrupted one, to the bit."""
    half = max(3, min(subject.steps, SHORT) // 2)
    problem = Quadratics.draw(subject.n, COLUMNS, 2 * half, subject.seed)
    for topology, optimizer in subject.pairs():
        whole = subject.engine_on(problem, topology, optimizer)
        problem.run(whole, half)
        file = io.BytesIO()
        torch.save(whole.state_dict(), file)
        file.seek(0)
        resumed = subject.engine_on(problem, topology, optimizer, seed=subject.seed + 1)
        resumed.load_state_dict(torch.load(file, weights_only=True))
        where = f"{topology.name}, {optimizer}, resumed after {half} steps"
        require(resumed.t == half, f"{where}: it goes on at step {resumed.t}")
        agree(problem.run(resumed, half), problem.run(whole, half), where)
        for name, a, b in zip(type(whole.state)._fields, resumed.state, whole.state, strict=True):
            agree(a.numpy(), b.numpy(), f"{where}, the state's {name} at the end", axes=("worker", "column"))


TRAJECTORY_LAWS: dict[str, Law[Subject]] = {
    "matrix form": matrix_form,
    "mean is kept": mean_is_kept,
    "relabelling": relabelling,
    "identical workers": identical_workers,
    "gamma = 0": independent_runs,
    "one worker": one_worker,
    "large batch": large_batch,
    "layouts": layouts,
    "resuming": resuming,
}


def _where_plain(subject: Subject, plain: Plain, topology: Topology) -> tuple[list[str], float]:
    """The optimizers with which its matrix form is that plain recursion, and how far the nearest other one is off."""
    off = {name: subject.difference_from(plain, topology, name) for name in subject.optimizers}
    return [name for name, far in off.items() if far <= 1e-9], min(off.values())


def _automorphisms(topology: Topology) -> Iterator[tuple[str, np.ndarray]]:
    """The rotations and exclusive ors among a few that map every round to itself."""
    n = topology.size
    candidates = [(f"rotated by {k}", np.roll(np.arange(n), k)) for k in {1, 3 % n} - {0}]
    if n & (n - 1) == 0:
        candidates += [(f"exclusive or with {c}", np.arange(n) ^ c) for c in {1, n - 1} - {0}]
    rounds = [topology[t].dense() for t in range(topology.period or 8)]
    fitting = [c for c in candidates if all(np.array_equal(w[np.ix_(c[1], c[1])], w) for w in rounds)]
    yield from fitting[-1:]


def _network() -> nn.Module:
    """A small network with fixed numbers in it."""
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).to(torch.float64)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) / 2)
    return model


def _cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def _samples(n: int, t: int, seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1000 * seed + t)
    return torch.randn(n, 4, 6, generator=g, dtype=torch.float64), torch.randint(0, 3, (n, 4), generator=g)


def _trained(
    subject: Subject, topology: Topology, optimizer: str, batches: list[tuple[Tensor, Tensor]], options: dict[str, Any]
) -> np.ndarray:
    """The deployed points of an engine on the network."""
    engine = subject.engine(
        _network(),
        _cross_entropy,
        algorithm=subject.fresh(),
        topology=topology,
        optimizer=subject.optimizers[optimizer].factory,
        lr=learning_rate,
        **options,
    )
    points = [engine.x.numpy()]
    for batch in batches:
        engine.step(batch)
        points.append(engine.x.numpy())
    return np.stack(points)


def _plain_loop(factory: Callable[..., torch.optim.Optimizer], batches: list[tuple[Tensor, Tensor]]) -> np.ndarray:
    """The loop everybody writes."""
    model = _network()
    optimizer = factory(model.parameters())
    points = [_flat(model)]
    for t, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(t)
        optimizer.zero_grad()
        _cross_entropy(model, batch).backward()
        optimizer.step()
        points.append(_flat(model))
    return np.stack(points)


def _flat(model: nn.Module) -> np.ndarray:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy().copy()
