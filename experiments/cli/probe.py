"""`dissensus probe SUBJECT --what trace,eig,...`: curvature and disagreement of a finished run, a file, or a model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dissensus.experiments.cli.choices import value_of
from dissensus.experiments.cli.output import print_json, print_table
from dissensus.experiments.cli.parsing import Parser, UsageError

if TYPE_CHECKING:
    from dissensus.experiments.instruments import Bench, Settings
    from dissensus.experiments.subject import Subject

USUAL = "trace,eig,disagreement,envelope,alignment"
WEIGHTS = (".pt", ".pth", ".safetensors")
EXAMPLE = """\
SUBJECT is a run directory, a file of weights, a configuration file, or the name of a model. For example:
  dissensus probe runs/demo/dsgd-s10-0a1b2c3d --again --what trace,eig,alignment
  dissensus probe weights.pt --model mlp --model.width 32 --data digits --what sharpness --json
  dissensus probe mlp --data digits --what trace,eig,slice --figures figures"""


def configure(parser: Parser) -> None:
    """The options of the verb."""
    parser.open_keys = True
    parser.epilog = EXAMPLE
    parser.add_argument("subject", nargs="?", help="run directory, .pt / .safetensors, CONFIG.toml, or a model's name")
    parser.add_argument("--what", default=None, help="instruments, comma-separated, or `all` (default: the usual ones)")
    parser.add_argument("--list", action="store_true", help="list the instruments")
    parser.add_argument("--model", help="which model the weights are of; its parameters as --model.KEY VALUE")
    parser.add_argument("--data", help="which data set; its parameters as --data.KEY VALUE")
    parser.add_argument("--weights", type=Path, help="weights for a model or configuration that is named")
    parser.add_argument("--arm", help="which arm of a configuration file")
    parser.add_argument("--again", action="store_true", help="train a run that kept no weights once more")
    parser.add_argument("--worker", type=int, help="look at one worker in place of the consensus")
    parser.add_argument("--bn", choices=["average", "local", "frozen", "recalibrate"], default="average",
                        help="buffers of the consensus of a file (a run has its own)")  # fmt: skip
    parser.add_argument("--samples", type=_count, help="training samples under the loss (default all, or the run's)")
    parser.add_argument("--batch", type=_count, default=16, help="samples of a worker's batch (a run has its own)")
    parser.add_argument("--rtol", type=float, default=0.05, help="relative half-width of the 95 %% interval to reach")
    parser.add_argument("--max-matvecs", type=_count, default=2000, help="products at most, per estimate")
    parser.add_argument("--k", type=_count, default=5, help="eigenpairs")
    parser.add_argument("--radius", type=float, default=0.05, help="length of perturbations, for sharpness")
    parser.add_argument("--m", type=_count, help="samples that share a worst case (default all)")
    parser.add_argument("--steps", type=_count, default=20, help="steps of the ascent to the worst case")
    parser.add_argument("--points", type=_count, default=25, help="points along an axis of a slice")
    parser.add_argument("--reach", type=float, default=1.0, help="how far slices go, in lengths of the weights")
    parser.add_argument("--parameters", action="append", default=[], metavar="GLOB", help="only parameters so named")
    parser.add_argument("--mode", choices=["eval", "train"], default="eval", help="how BatchNorm and dropout behave")
    parser.add_argument("--dtype", choices=["float32", "float64"], help="of point and products (default the model's)")
    parser.add_argument(
        "--seed", type=int, default=0, help="of probes, of a model's start, or the seed of a configuration"
    )
    parser.add_argument("--threads", type=_count, help="threads of torch")
    parser.add_argument("--figures", type=Path, metavar="DIR", help="write figures there")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def run(args: argparse.Namespace) -> int:
    """Measures and prints."""
    from contextlib import nullcontext

    from dissensus.experiments.instruments import INSTRUMENTS, measure
    from dissensus.experiments.threads import threads

    if args.list:
        return _list(args.json)
    what = _asked(args.what, list(INSTRUMENTS))
    settings = _settings(args)
    if args.figures is not None and args.figures.exists() and not args.figures.is_dir():
        raise UsageError(f"probe: --figures is a folder to write into, {args.figures} is a file")
    with threads(args.threads) if args.threads else nullcontext():
        subject = _subject(args)
        found, bench = measure(subject, _suited(what, args.what, subject), settings)
    written = _figures(args.figures, bench) if args.figures is not None else []
    if args.json:
        print_json({**found, "figures": [str(path) for path in written]})
        return 0
    _print(found, bench)
    for path in written:
        print(path)
    return 0


def _list(as_json: bool) -> int:
    from dissensus.experiments.instruments import INSTRUMENTS

    if as_json:
        print_json({name: summary for name, (summary, _) in INSTRUMENTS.items()})
    else:
        print_table("", ["instrument", "what it measures"], [[name, said] for name, (said, _) in INSTRUMENTS.items()])
    return 0


def _asked(text: str | None, known: list[str]) -> list[str]:
    from dissensus.theory.errors import nearest

    if text == "all":
        return known
    names = [name.strip() for name in (USUAL if text is None else text).split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise UsageError(f"probe: unknown instrument {name!r} in --what{nearest(name, known)}")
    if not names:
        raise UsageError(f"probe: --what names no instrument; there are {', '.join(known)}")
    return names


def _suited(what: list[str], asked: str | None, subject: Subject) -> list[str]:
    """What was asked for by name is measured or refused; of the usual and of all, what does not apply is left out."""
    from dissensus.experiments.instruments import suited

    fitting = suited(subject)
    return [name for name in what if name in fitting] if asked in (None, "all") else what


def _settings(args: argparse.Namespace) -> Settings:
    import torch

    from dissensus.experiments.instruments import Settings

    for name, value in (("rtol", args.rtol), ("radius", args.radius), ("reach", args.reach)):
        if not value > 0:
            raise UsageError(f"probe: --{name} must be positive, got {value:g}")
    return Settings(
        rtol=args.rtol,
        max_matvecs=args.max_matvecs,
        k=args.k,
        radius=args.radius,
        m=args.m,
        steps=args.steps,
        points=args.points,
        reach=args.reach,
        parameters=tuple(args.parameters),
        mode=args.mode,
        dtype=None if args.dtype is None else getattr(torch, args.dtype),
        seed=args.seed or 0,
    )


def _subject(args: argparse.Namespace) -> Subject:
    from dissensus.experiments.models.building import MODELS
    from dissensus.experiments.subject import of_run
    from dissensus.theory.errors import nearest

    pairs = _pairs(args)
    if args.subject is None:
        raise UsageError("probe: of what? give a run directory, a file of weights, CONFIG.toml, or the name of a model")
    path = Path(args.subject)
    if path.is_dir():
        _run_alone(args, pairs)
        _one_run(path)
        return of_run(path, again=args.again, worker=args.worker, samples=args.samples)
    if args.again:
        raise UsageError("probe: --again is for a run directory")
    if path.suffix == ".toml":
        return _of_configuration(args, path, pairs)
    if path.suffix in WEIGHTS:
        if args.weights is not None:
            raise UsageError(f"probe: {path} and --weights {args.weights} are two files of weights; give one")
        if args.model is None:
            raise UsageError(f"probe: which model are the weights in {path.name} of? say --model NAME --data NAME")
        return _of_model(args, args.model, path, pairs)
    if args.model is not None:
        raise UsageError(f"probe: there is no run or file {args.subject!r}, and --model goes with a file of weights")
    if args.subject.replace("_", "-") not in MODELS.names():
        what = "no run directory, file or model"
        raise UsageError(f"probe: {args.subject!r} is {what}{nearest(args.subject, MODELS.names())}")
    return _of_model(args, args.subject, args.weights, pairs)


def _of_model(args: argparse.Namespace, model: str, weights: Path | None, pairs: dict[str, dict[str, Any]]) -> Subject:
    from dissensus.experiments.subject import of_model

    if args.data is None:
        raise UsageError("probe: on which data? say --data NAME, for example --data digits")
    return of_model(
        model, args.data, model_parameters=pairs["model"], data_parameters=pairs["data"], weights=weights, bn=args.bn,
        worker=args.worker, samples=args.samples, batch=args.batch, seed=args.seed or 0,
    )  # fmt: skip


def _of_configuration(args: argparse.Namespace, path: Path, pairs: dict[str, dict[str, Any]]) -> Subject:
    from dissensus.experiments.loading import load
    from dissensus.experiments.subject import of_model
    from dissensus.theory.errors import nearest

    if args.model is not None or args.data is not None or any(pairs.values()):
        raise UsageError(f"probe: {path} says which model and data: leave --model and --data out")
    study = load(path)
    if args.arm is not None and args.arm not in study.arms:
        raise UsageError(f"probe: no arm {args.arm!r} in {path}{nearest(args.arm, study.arms)}")
    cell = study.cell(args.arm or next(iter(study.arms)), study.seeds[0] if args.seed is None else args.seed)
    return of_model(
        cell.model.name, cell.data.name, model_parameters=cell.model.parameters, data_parameters=cell.data.parameters,
        weights=args.weights, bn=cell.probes.bn, worker=args.worker, samples=args.samples or cell.probes.samples,
        batch=cell.train.batch, seed=cell.seeds[0],
    )  # fmt: skip


def _run_alone(args: argparse.Namespace, pairs: dict[str, dict[str, Any]]) -> None:
    given = [name for name in ("model", "data", "weights", "arm") if getattr(args, name) is not None]
    given += [f"{what}.{key}" for what, keys in pairs.items() for key in keys]
    if given:
        raise UsageError(f"probe: a run directory says everything itself: leave --{given[0]} out")


def _one_run(path: Path) -> None:
    if (path / "config.toml").exists():
        return
    inside = sorted(file.parent for file in path.glob("**/config.toml"))
    hint = f"; it holds {len(inside)} runs, such as {inside[0]}" if inside else ": it has no config.toml"
    raise UsageError(f"probe: {path} is no run directory{hint}")


def _pairs(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The `--model.key value` and `--data.key value` pairs."""
    from dissensus.theory.errors import nearest

    pairs: dict[str, dict[str, Any]] = {"model": {}, "data": {}}
    for typed, text in args.extra.items():
        what, dot, key = typed.partition(".")
        if what not in pairs or not key:
            known = [f"{what}.{key}" for what in pairs] if dot and key else args.flags
            raise UsageError(f"probe: unknown option --{typed}{nearest(typed, known)}")
        pairs[what][key.replace("-", "_")] = value_of(text)
    return pairs


def _figures(folder: Path, bench: Bench) -> list[Path]:
    from dissensus.experiments.figures.probing import probe_figures

    return probe_figures(bench, folder)


def _print(found: dict[str, Any], bench: Bench) -> None:
    """A table of single numbers; what is a list of numbers is for --json and figures."""
    from dissensus.experiments.readings import readings

    rows = readings(found)
    facts = [f"{found['parameters']} parameters", f"{found['samples']} samples of {found['data']}"]
    if found["workers"]:
        facts.append(f"{found['workers']} workers" + (f" on {found['topology']}" if found["topology"] else ""))
    if found["bn"] != "none":
        facts.append(f"buffers: {found['bn']}")
    print(f"{found['subject']}: {', '.join([*facts, *bench.subject.notes])}")
    print_table("", ["", "value", "95 % or bound", "how", "products", "reached"], rows)


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return value
