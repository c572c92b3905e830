"""`dissensus plan --place`: which worker should live on which device, where links differ."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dissensus.experiments.cli.output import print_json, print_table
from dissensus.experiments.cli.parsing import UsageError

if TYPE_CHECKING:
    from dissensus.theory.runtime.placement import Links, PipelinePlacement, TopologyPlacement


def place(args: argparse.Namespace) -> int:
    """Searches and shows: the assignment, its cost, that of the identity and of random ones."""
    from dissensus.theory.runtime.placement import place as search

    for flag in ("bytes", "gradient_bytes", "activation_bytes"):
        size = getattr(args, flag)
        if size is not None and not size > 0:
            raise UsageError(f"plan: --{flag.replace('_', '-')} must be a number > 0, got {size:g}")
    if args.pipeline is not None and args.topology:
        raise UsageError("plan: --pipeline and --topology are two things to place: give one")
    problem, what = _problem(args, _links(args.place))
    found = search(problem, seed=args.seed)
    result: dict[str, Any] = {
        "placed": what,
        "devices": problem.size,
        "assignment": found.assignment.tolist(),
        "seconds": found.cost,
        "seconds_of_identity": found.identity,
        "random": asdict(found.random),
        "evaluations": found.evaluations,
        "seed": found.seed,
    }
    if args.json:
        print_json(result)
        return 0
    print_table(
        f"{what} on {problem.size} devices of {args.place}",
        ["placement", "seconds"],
        [
            ["found", found.cost],
            ["as listed", found.identity],
            [f"random, mean of {found.random.draws}", found.random.mean],
            ["random, best of as many", found.random.best],
        ],
    )
    print("worker i lives on device:", " ".join(map(str, found.assignment.tolist())))
    return 0


def _problem(args: argparse.Namespace, links: Links) -> tuple[TopologyPlacement | PipelinePlacement, str]:
    from dissensus.theory.registry import topology
    from dissensus.theory.runtime.placement import (
        ACTIVATION_BYTES,
        GRADIENT_BYTES,
        PipelinePlacement,
        TopologyPlacement,
    )

    if args.pipeline is not None:
        stages, _, groups = args.pipeline.partition("x")
        if not (stages.isdigit() and groups.isdigit()):
            raise UsageError(f"plan: --pipeline is stages x devices, as in 8x8, got {args.pipeline!r}")
        sizes = args.gradient_bytes or GRADIENT_BYTES, args.activation_bytes or ACTIVATION_BYTES
        return PipelinePlacement(links, int(stages), int(groups), *sizes), f"{stages} stages of {groups}"
    if len(args.topology) != 1:
        raise UsageError("plan: what is placed? give --topology with one name, or --pipeline SxD")
    name = args.topology[0]
    return TopologyPlacement(topology(name, links.size), links, args.bytes), name


def _links(named: str) -> Links:
    import zipfile

    import numpy as np

    from dissensus.theory.errors import nearest
    from dissensus.theory.runtime import placement
    from dissensus.theory.runtime.placement import Links

    scenarios = ("data_centre", "spot_instances", "two_universities", "four_regions", "eight_regions")
    known = {f"dt-fm-{name.replace('_', '-')}": getattr(placement, name) for name in scenarios}
    if named in known:
        return known[named]()
    if not Path(named).exists():
        raise UsageError(f"plan: --place {named!r} is neither a file nor a scenario{nearest(named, known)}")
    try:
        with np.load(named, allow_pickle=False) as tables:
            missing = {"latency_seconds", "bandwidth_bytes_per_second"} - set(tables)
            if missing:
                raise UsageError(
                    f"plan: {named} lacks {', '.join(sorted(missing))}: two square arrays, latency_seconds and "
                    f"bandwidth_bytes_per_second, a row for each device; it has {', '.join(tables) or 'nothing'}"
                )
            return Links(tables["latency_seconds"], tables["bandwidth_bytes_per_second"])
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        raise UsageError(f"plan: {named} cannot be read as an .npz of arrays: {error}") from None
