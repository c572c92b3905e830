"""What the parts on stationary disagreement have in common: topology, curvatures, noise, and the local optimizer."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np

from dissensus.experiments.cli.parsing import Parser, UsageError, keywords
from dissensus.theory.topology import Topology

LAWS = ("isotropic", "hessian")
"""Names that --noise takes in place of numbers, each with an optional factor: `hessian=0.5`."""


@dataclass(frozen=True, eq=False)
class Setting:
    """Arguments, read and checked."""

    topology: Topology
    curvature: np.ndarray
    noise: np.ndarray


def configure_setting(parser: Parser) -> None:
    """The options that describe the problem."""
    parser.open_keys = True
    parser.add_argument("--topology", default="ring", help="which topology (default ring)")
    parser.add_argument("--n", type=int, default=8, help="how many workers (default 8)")
    parser.add_argument("--momentum", type=float, default=0.0, help="heavy-ball coefficient (default 0)")
    parser.add_argument("--nesterov", action="store_true", help="Nesterov momentum instead of heavy ball")
    parser.add_argument("--order", choices=["awc", "atc", "cta"], default="awc", help="order of mixing (default awc)")
    parser.add_argument("--curvature", default="1", help="Hessian eigenvalues h1,h2,... (default 1)")
    parser.add_argument(
        "--noise",
        help="gradient-noise variance along each of them, s1,s2,... (default all 1); or isotropic, or hessian "
        "(proportional to the curvature), each with a factor if wanted: hessian=0.5",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--figure", metavar="PATH", help="also draw it: a .png, .svg or .pdf file")


def read_setting(args: argparse.Namespace) -> Setting:
    """The problem that the arguments describe."""
    from dissensus.theory import registry

    curvature = numbers(args.curvature, "--curvature")
    noise = _noise(args.noise, curvature)
    entry = registry.entry(args.topology)
    topology = registry.topology(entry.name, args.n, **keywords(entry.build, args, f"topology {entry.name!r}"))
    return Setting(topology, curvature, noise)


def numbers(text: str, flag: str) -> np.ndarray:
    """A list of numbers separated by commas."""
    try:
        return np.array([float(part) for part in text.split(",")])
    except ValueError:
        raise UsageError(f"theory: {flag} wants numbers separated by commas, got {text!r}") from None


def matching(text: str, flag: str, curvature: np.ndarray) -> np.ndarray:
    """One number for each curvature, or one for all."""
    values = numbers(text, flag)
    if len(values) not in (1, len(curvature)) or (len(values) == 1 and len(curvature) > 1 and flag == "--noise"):
        raise UsageError(f"theory: --curvature has {len(curvature)} values, but {flag} has {len(values)}")
    return np.broadcast_to(values, curvature.shape)


def _noise(text: str | None, curvature: np.ndarray) -> np.ndarray:
    if text is None:
        return np.ones_like(curvature)
    law, equals, factor = text.partition("=")
    if law not in LAWS:
        if law[:1].isalpha() and law.lower() not in ("nan", "inf"):
            from dissensus.theory.errors import nearest

            raise UsageError(f"theory: unknown law of noise {law!r}{nearest(law, LAWS)}")
        return matching(text, "--noise", curvature)
    scale = numbers(factor, "--noise")[0] if equals else 1.0
    return scale * (np.ones_like(curvature) if law == "isotropic" else np.maximum(curvature, 0.0))
