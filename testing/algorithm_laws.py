r"""Laws that every algorithm obeys, as one call: `check_algorithm(MyAlgorithm)`.

Three kinds of checks, because each is blind where another sees: laws that need no formula (symmetry, conservation,
limits, purity), the *matrix form* (the recursion of the paper written a second time: universal laws do not notice a
momentum of the wrong sign), and equality of layouts and of resumed runs. Which laws apply is read off what the
algorithm declares (`promise`, `static`, `columnwise`, its fields, its matrix form) and off what its step asks for; what
did not apply is in the verdict, with the reason.

    verdict = check_algorithm(MyAlgorithm)          # a class, an instance, or the name of a registered one
    verdict = check_algorithm(MyAlgorithm(beta=0.5), n=6, optimizers=["sgd", "adam"])

The first law that is broken raises an AssertionError that names law, topology, optimizer, step, worker and numbers.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch

from dissensus.algorithms.engines.fit import check_fit
from dissensus.algorithms.engines.stacked import StackedEngine
from dissensus.algorithms.errors import AlgorithmError
from dissensus.algorithms.registry import algorithm as algorithm_named
from dissensus.algorithms.registry import check_optimizer
from dissensus.testing.laws.problems import OPTIMIZERS, LocalOptimizer, named
from dissensus.testing.laws.recursion_laws import RECURSION_LAWS
from dissensus.testing.laws.subject import EngineFactory, Subject, default_optimizers, default_topologies
from dissensus.testing.laws.trajectory_laws import TRAJECTORY_LAWS
from dissensus.testing.laws.verdict import Law, Verdict, judge
from dissensus.theory.errors import nearest
from dissensus.theory.topology import Topology

ALGORITHM_LAWS: Mapping[str, Law[Subject]] = {**RECURSION_LAWS, **TRAJECTORY_LAWS}
"""Every law by name, in the order in which they are run: the cheap ones that explain most come first."""


def check_algorithm(
    algorithm: Any,
    *,
    topologies: Sequence[Topology | str] | None = None,
    optimizers: Sequence[str] | Mapping[str, tuple[Any, Any]] | None = None,
    n: int = 8,
    steps: int = 100,
    engine: EngineFactory = StackedEngine,
    layouts: Mapping[str, EngineFactory] | None = None,
    laws: Iterable[str] | None = None,
    seed: int = 0,
) -> Verdict:
    """Runs every law that applies to an algorithm, and raises an AssertionError at the first that is broken.

    Args:
        algorithm: an algorithm, a class (built with its defaults), or the name of a registered one.
        topologies: schedules, or names of deterministic ones; hard ones that fit its promise unless given.
        optimizers: names among `sgd`, `momentum with decay`, `nesterov`, `adam`, `adamw`, or pairs of a factory and
            a numpy recursion by name; the first two and `adam` unless given, as far as the algorithm takes them.
        n: the number of workers; a power of two has the most symmetries.
        steps: how many steps the matrix form is followed; other laws take fewer.
        engine: called like `StackedEngine`; gradients go through vmap unless it says otherwise.
        layouts: engines by name that must agree; one vmap, a loop and chunks of `engine` unless given.
        laws: names of the laws to run; all unless given.
        seed: decides problems and starting points.
    """
    built = _built(algorithm)
    chosen = default_optimizers(built) if optimizers is None else _optimizers(optimizers)
    for given in chosen.values():
        check_optimizer(built, given.factory([torch.nn.Parameter(torch.zeros(1))]))
    if topologies is None:
        schedules = default_topologies(built, n)
    else:
        schedules = tuple(named(t, n) if isinstance(t, str) else t for t in topologies)
    for topology in schedules:
        if topology.size != n:
            raise AlgorithmError(f"topology {topology.name!r} has {topology.size} workers, but n={n}")
        if hasattr(built, "promise") and hasattr(built, "static"):
            check_fit(built, topology)
    vmapped = partial(engine, gradients="vmap")
    if layouts is None:
        chunked = partial(engine, gradients="vmap", chunk=3)
        layouts = {"vmap": vmapped, "loop": partial(engine, gradients="loop"), "chunks of 3": chunked}
    subject = Subject(built, schedules, chosen, n, steps, vmapped, layouts, seed)
    return judge(f"algorithm {getattr(built, 'name', type(built).__name__)!r}", ALGORITHM_LAWS, subject, laws)


def variants(cls: type) -> Iterator[Any]:
    """An algorithm with its defaults, and then with every other value of each field that is a choice.

    Choices are fields annotated `Literal[...]` or `bool`: the orders of DSGD, the Nesterov form of a momentum.
    """
    yield cls()
    hints = typing.get_type_hints(cls)
    for f in dataclasses.fields(cls):
        values: tuple[Any, ...] = ()
        if typing.get_origin(hints[f.name]) is Literal:
            values = typing.get_args(hints[f.name])
        elif hints[f.name] is bool:
            values = (False, True)
        for value in values:
            if f.init and value != f.default:
                yield cls(**{f.name: value})


def _built(algorithm: Any) -> Any:
    if isinstance(algorithm, str):
        return algorithm_named(algorithm)
    if not isinstance(algorithm, type):
        return algorithm
    try:
        return algorithm()
    except TypeError as error:
        raise AlgorithmError(
            f"algorithm {algorithm.__name__} cannot be built with defaults ({error}); pass an instance of it"
        ) from error


def _optimizers(chosen: Sequence[str] | Mapping[str, tuple[Any, Any]]) -> Mapping[str, LocalOptimizer]:
    if isinstance(chosen, Mapping):
        return types.MappingProxyType({name: LocalOptimizer(*pair) for name, pair in chosen.items()})
    for name in chosen:
        if name not in OPTIMIZERS:
            raise AlgorithmError(f"no numpy recursion is known for optimizer {name!r}{nearest(name, OPTIMIZERS)}")
    return {name: OPTIMIZERS[name] for name in chosen}
