"""`dissensus simulate|train --problem FILE.npz ...`: exact quadratics without a configuration, for outsiders to check.

Every part is said on the command line: `--algorithm NAME --algorithm.KEY VALUE`, and likewise for `--topology`,
`--optimizer` and `--lr`. What the run used, defaults included, is in the answer.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dissensus.experiments.cli.choices import algorithm_of, pairs_of, rate_of
from dissensus.experiments.cli.output import print_json, print_table
from dissensus.experiments.cli.parsing import Parser, UsageError

if TYPE_CHECKING:
    import numpy as np

    from dissensus.algorithms.engines.moves import OptimizerFactory
    from dissensus.algorithms.engines.stacked import StackedEngine
    from dissensus.algorithms.protocol import Algorithm
    from dissensus.experiments.problem import Problem
    from dissensus.experiments.processes import Processes
    from dissensus.experiments.sections import Rate
    from dissensus.theory.topology import Topology

IN_A_CONFIGURATION = {
    "algorithm": "--arms.NAME.algorithm",
    "topology": "--topology.name",
    "optimizer": "--optimizer.name",
    "lr": "--lr.peak",
    "steps": "--train.steps",
    "dtype": "--train.dtype",
    "workers": "--train.workers",
    "trajectory": None,
}
"""The options that belong to a problem, and what says the same where a configuration file is run."""
EXAMPLE = (
    "  dissensus {verb} --problem problem.npz --algorithm dsgd-ac --algorithm.p 3 --topology torus \\\n"
    "    --topology.rows 2 --optimizer sgd --optimizer.momentum 0.9 --lr 0.1 --lr.schedule cosine --steps 100 \\\n"
    "    --trajectory out.npz --json"
)
_TECHNICAL = ("lr", "foreach", "fused", "capturable", "differentiable", "decoupled_weight_decay")


def configure(parser: Parser) -> None:
    """The options of a run on quadratics."""
    group = parser.add_argument_group(
        "exact quadratics instead of a configuration",
        "f_i(x) = x'A_i x/2 - b_i'x with full gradients. The parameters of what is named are --algorithm.KEY VALUE, "
        "--topology.KEY VALUE, --optimizer.KEY VALUE and --lr.KEY VALUE (schedule, warmup, warmup_from, last).",
    )
    group.add_argument(
        "--problem",
        type=Path,
        metavar="FILE.npz",
        help="holds A (n, d, d), b (n, d), x0 (d,) or (n, d), and perhaps noise (T, n, d), added to the gradients",
    )
    group.add_argument("--algorithm", metavar="NAME", help="which algorithm")
    group.add_argument("--topology", metavar="NAME", help="which topology, on the workers that the problem has")
    group.add_argument("--optimizer", metavar="NAME", help="the local move (default the algorithm's own)")
    group.add_argument("--lr", type=float, metavar="A", help="the learning rate, or its peak")
    group.add_argument("--steps", type=int, metavar="T", help="how many steps")
    group.add_argument("--dtype", choices=["float64", "float32"], help="default float64")
    group.add_argument("--workers", type=int, metavar="N", help="a check: the problem decides how many there are")
    group.add_argument(
        "--trajectory", type=Path, metavar="OUT.npz", help="gets x (T + 1, n, d): the points before and after each step"
    )


def refuse_without_problem(args: argparse.Namespace) -> None:
    """Says of an option that belongs to a problem how a configuration says the same."""
    for name, key in IN_A_CONFIGURATION.items():
        if getattr(args, name) is not None:
            instead = f"; with a configuration it is {key}" if key else "; a configuration leaves records under --out"
            raise UsageError(f"{args.verb}: --{name} goes with --problem FILE.npz{instead}")


@dataclasses.dataclass(frozen=True)
class Plan:
    """A run that has been understood: nothing of the command line is left to be wrong."""

    problem: Problem
    algorithm: Algorithm
    topology: Topology
    optimizer: str
    factory: OptimizerFactory
    engine: StackedEngine
    lr: float
    rate: Rate | None
    """The schedule, if the learning rate has one."""
    steps: int

    def facts(self) -> dict[str, Any]:
        """What is run, defaults included."""
        return {
            "algorithm": self.algorithm.name,
            "algorithm_parameters": _fields(self.algorithm),
            "topology": self.topology.name,
            "topology_parameters": dict(self.topology.parameters),
            "optimizer": self.optimizer,
            "optimizer_parameters": _defaults(self.factory),
            "lr": self.lr,
            "lr_schedule": self.rate.model_dump(exclude={"peak"}) if self.rate else None,
            "n": self.problem.size,
            "d": self.problem.dimension,
            "steps": self.steps,
            "dtype": str(self.engine.columns.dtype).removeprefix("torch."),
            "seed": self.engine.seed,
        }


def run(args: argparse.Namespace, processes: Processes | None = None) -> int:
    """Runs the algorithm on the problem; 1 if a worker's numbers leave the finite.

    Several processes run it together; the first one tells.
    """
    plan = planned(args, processes)
    facts: dict[str, Any] = {"problem": str(args.problem), **plan.facts()}
    began = time.perf_counter()
    points, error = _points(plan, keep=args.trajectory is not None)
    if processes is not None and not processes.first:
        if error:
            print(f"dissensus: {args.verb}: {error}", file=sys.stderr)
        return 1 if error else 0
    facts |= {"status": "failed" if error else "ok", **({} if processes is None else processes.facts())}
    if error:
        facts["error"] = error
        print(f"dissensus: {args.verb}: {error}", file=sys.stderr)
    else:
        from dissensus.experiments.problem_file import write_arrays

        facts |= _ending(plan.problem, points[-1]) | {"trajectory": None}
        if args.trajectory is not None:
            write_arrays(args.trajectory, {"x": points})
            facts["trajectory"] = str(args.trajectory)
    facts["wall_s"] = round(time.perf_counter() - began, 3)
    if args.json:
        print_json(facts)
    elif not error:
        _show(facts)
    return 1 if error else 0


def planned(args: argparse.Namespace, processes: Processes | None = None) -> Plan:
    """Reads problem, algorithm, topology, optimizer and learning rate; every refusal is here, before the first step.

    Several processes compare what they have read.
    """
    from dissensus.algorithms import registry
    from dissensus.experiments.optimizers import optimizer, rate_at
    from dissensus.experiments.problem import Problem, check_steps, engine_for, own_optimizer
    from dissensus.theory.registry import topology

    pairs = pairs_of(args)
    _check_said(args)
    problem = Problem.load(args.problem)
    if args.workers not in (None, problem.size):
        raise UsageError(
            f"{args.verb}: --problem {args.problem} is one of {problem.size} workers, but --workers says {args.workers}"
        )
    algorithm = algorithm_of(args.algorithm, pairs["algorithm"])
    if args.topology is None and algorithm.promise is not None:
        raise UsageError(f"{args.verb}: algorithm {algorithm.name!r} mixes: who with whom? give --topology NAME")
    graph = topology(args.topology or "complete", problem.size, **pairs["topology"])
    check_steps(problem, args.steps)
    name = args.optimizer or own_optimizer(algorithm)
    factory = optimizer(name, pairs["optimizer"], args.lr)
    rate = rate_of(args.lr, pairs["lr"], args.steps, args.verb)
    lr = rate_at(rate, args.steps) if rate else args.lr
    engine = engine_for(
        problem,
        algorithm=registry.planned(algorithm, lr, args.steps),
        topology=graph,
        lr=lr,
        optimizer=factory,
        dtype=args.dtype or "float64",
        seed=args.seed or 0,
        **({} if processes is None else {"wire": processes.wire, "device": processes.device}),
    )
    return Plan(problem, algorithm, graph, name, factory, engine, args.lr, rate, args.steps)


def _check_said(args: argparse.Namespace) -> None:
    if args.files:
        raise UsageError(f"{args.verb}: give either --problem or a configuration, not both (got {args.files[0]})")
    for name in ("arm", "out"):
        if getattr(args, name) is not None:
            raise UsageError(f"{args.verb}: --{name} goes with a configuration; --problem has --trajectory OUT.npz")
    if args.resume:
        raise UsageError(f"{args.verb}: --resume goes with a configuration; a problem has no checkpoints")
    if args.track:
        raise UsageError(f"{args.verb}: --track goes with a configuration; a problem leaves no records")
    missing = [f"--{name}" for name in ("algorithm", "lr", "steps") if getattr(args, name) is None]
    if missing:
        raise UsageError(f"{args.verb}: --problem also needs {', '.join(missing)} (see --help)")
    if not 0.0 <= args.lr < math.inf:
        raise UsageError(f"{args.verb}: --lr must be a number that is not negative, got {args.lr}")
    target = args.trajectory
    if target is not None and (target.is_dir() or not target.parent.is_dir() or not os.access(target.parent, os.W_OK)):
        why = "it is a folder" if target.is_dir() else f"{target.parent} is no folder that can be written to"
        raise UsageError(f"{args.verb}: --trajectory {target} cannot be written: {why}")


def _points(plan: Plan, *, keep: bool) -> tuple[np.ndarray, str]:
    """All deployed points, or only the last ones, and the sentence of an error that ended the run early.

    On one thread: the problems are small, and the order of sums must not depend on how many cores there are.
    """
    from collections import deque

    import numpy as np

    from dissensus.algorithms.errors import AlgorithmError
    from dissensus.experiments.problem import walk
    from dissensus.experiments.threads import threads

    kept: deque[np.ndarray] = deque(maxlen=None if keep else 1)
    try:
        with threads(1):
            kept.extend(walk(plan.problem, plan.engine, plan.steps))
    except AlgorithmError as error:
        return np.empty(0), str(error)
    return np.stack(list(kept)), ""


def _ending(problem: Problem, last: np.ndarray) -> dict[str, Any]:
    """The numbers of the last points, in float64."""
    import numpy as np
    import torch

    from dissensus.experiments.models import parameters_hash

    x = last.astype(np.float64)
    mean, optimum = x.mean(axis=0), problem.optimum
    with np.errstate(over="ignore", invalid="ignore"):  # what is too large is infinite
        return {
            "parameters_hash": parameters_hash(torch.from_numpy(last)),
            "consensus_distance": float(((x - mean) ** 2).sum(axis=1).mean()),
            "mean_loss": problem.loss(x),
            "loss_at_mean": problem.loss(mean),
            "loss_at_optimum": None if optimum is None else problem.loss(optimum),
            "distance_to_optimum": None if optimum is None else float(np.linalg.norm(mean - optimum)),
        }


def _fields(algorithm: Any) -> dict[str, Any]:
    return {field.name: getattr(algorithm, field.name) for field in dataclasses.fields(algorithm) if field.init}


def _defaults(factory: OptimizerFactory) -> dict[str, Any]:
    """Every parameter of the local optimizer that bears on its numbers."""
    import torch

    defaults = factory([torch.nn.Parameter(torch.zeros(1))]).defaults
    return {key: value for key, value in defaults.items() if key not in _TECHNICAL}


def _show(facts: Mapping[str, Any]) -> None:
    rows = []
    for key, value in facts.items():
        if isinstance(value, Mapping):
            rows += [[f"{key.removesuffix('_parameters').replace('_', ' ')}: {k}", v] for k, v in value.items()]
        else:
            rows.append([key.replace("_", " "), value])
    print_table("", ["", f"{facts['algorithm']} on {facts['topology']}"], rows)
