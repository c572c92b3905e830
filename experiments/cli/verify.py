"""`dissensus verify [NAME ...]`: claims of the literature, put to the test."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dissensus.experiments.cli.output import console, print_json, print_table
from dissensus.experiments.cli.parsing import Parser, UsageError
from dissensus.experiments.cli.running import shown_progress

if TYPE_CHECKING:
    from dissensus.experiments.claims import Scale, Verified

COLOURS = {"supported": "green", "not supported": "red", "inconclusive": "yellow", "out of reach here": "dim"}


def configure(parser: Parser) -> None:
    """The options of the verb."""
    parser.epilog = (
        "Without a name, all claims. A claim that is not supported is a result: the exit code is 0 unless a check\n"
        "failed, or --require says otherwise. For example:\n"
        "  dissensus verify --list\n"
        "  dissensus verify one-peer-exact dsgd-ac-flatter --json\n"
        "  dissensus verify --scale full --dry-run"
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which claims (default: all)")
    parser.add_argument(
        "--scale", choices=["tiny", "small", "full"], default="tiny", help="minutes, hours, or a cluster (default tiny)"
    )
    parser.add_argument("--list", action="store_true", help="the claims with what they take, and stop")
    parser.add_argument("--show", action="store_true", help="statement, source, measurement and rule, and stop")
    parser.add_argument("--dry-run", action="store_true", help="what the studies are made of, without running them")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/verify"), help="where runs and verdicts go (default runs/verify)"
    )
    parser.add_argument(
        "--data", action="append", default=[], metavar="NAME=PATH", help="where a data set is, such as cifar-10=/data"
    )
    parser.add_argument("--processes", type=int, help="how many runs at a time (default: the cores, at most 2)")
    parser.add_argument("--resume", action="store_true", help="keep runs and verdicts that are there")
    parser.add_argument("--seed", type=int, default=0, help="of computed checks; studies name their seeds (default 0)")
    parser.add_argument("--require", action="store_true", help="exit code 1 unless every claim is supported")
    parser.add_argument("--write", type=Path, metavar="FILE.md", help="the verdicts as a page, and as FILE.json")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def run(args: argparse.Namespace) -> int:
    """Verifies, or tells what would be verified."""
    from dissensus.experiments.claims import claims, find

    chosen = [find(name) for name in dict.fromkeys(args.names)] or list(claims().values())
    if args.list or args.show:
        return _told(chosen, args)
    if args.dry_run:
        return _outlined(chosen, args)
    if args.write is not None and not args.write.parent.is_dir():
        raise UsageError(f"verify: --write {args.write} cannot be written: {args.write.parent} is no folder")
    if args.write is not None and args.write.suffix != ".md":
        raise UsageError(f"verify: --write takes a file whose name ends with .md, got {args.write}")
    if args.processes is not None and args.processes < 1:
        raise UsageError(f"verify: --processes must be at least 1, got {args.processes}")
    from dissensus.experiments.claims import verify

    _check_places(chosen, _places(args), args.scale)
    quiet = args.quiet or args.json
    found = verify(
        [claim.name for claim in chosen],
        args.scale,
        args.out,
        processes=args.processes or min(2, os.cpu_count() or 1),
        resume=args.resume,
        seed=args.seed,
        places=_places(args),
        progress=None if quiet else lambda name: shown_progress(quiet=False, title=name),
        tell=None if args.json else _tell,
    )
    if args.write is not None:
        _write(found, args)
    if args.json:
        print_json({"scale": args.scale, "claims": [one.to_dict() for one in found]})
    else:
        _conclude(found)
    if any(one.verdict is None or one.error for one in found):
        return 1
    return 1 if args.require and any(one.verdict != "supported" for one in found) else 0


def _places(args: argparse.Namespace) -> dict[str, str]:
    from dissensus.experiments.data import DATASETS
    from dissensus.theory.errors import nearest

    places: dict[str, str] = {}
    for given in args.data:
        name, equals, place = given.partition("=")
        if not equals or not place:
            raise UsageError(f"verify: --data is NAME=PATH, got {given!r}")
        if name not in DATASETS.names():
            raise UsageError(f"verify: --data {name}: there is no such data set{nearest(name, DATASETS.names())}")
        places[name] = place
    return places


def _check_places(chosen: list, places: dict[str, str], scale: Scale) -> None:
    """Refuses a place of data that none of the chosen claims looks at."""
    from dissensus.experiments.claims.evidence import load_studies

    if not places:
        return
    used = {study.data.name for claim in chosen for name in claim.studies for study in load_studies(name, scale)}
    for name in places:
        if name not in used:
            raise UsageError(
                f"verify: --data {name}: at scale {scale} these claims use {', '.join(sorted(used)) or 'no data set'}"
            )


def _told(chosen: list, args: argparse.Namespace) -> int:
    if args.json:
        told = [
            {
                "name": c.name, "title": c.title, "statement": c.statement, "source": c.source, "measured": c.measured,
                "rule": c.rule, "budget": dict(c.budget), "studies": list(c.studies),
            }
            for c in chosen
        ]  # fmt: skip
        print_json({"claims": told})
        return 0
    if args.list:
        rows = [[c.name, c.title, c.budget.get(args.scale, "–")] for c in chosen]
        print_table("claims", ["name", "what is claimed", f"takes at scale {args.scale}"], rows)
        return 0
    out = console()
    for c in chosen:
        out.print(f"[bold]{c.title}[/]  ({c.name})", highlight=False)
        for word in ("statement", "source", "measured", "rule"):
            out.print(f"  [dim]{word}:[/] {getattr(c, word)}", highlight=False)
        out.print()
    return 0


def _outlined(chosen: list, args: argparse.Namespace) -> int:
    from dissensus.experiments.claims.evidence import load_studies
    from dissensus.experiments.outline import outline

    names = list(dict.fromkeys(name for claim in chosen for name in claim.studies))
    found = [outline(study) for name in names for study in load_studies(name, args.scale, _places(args))]
    if args.json:
        print_json({"scale": args.scale, "studies": [one.to_dict() for one in found]})
        return 0
    columns = ["study", "runs", "model", "parameters", "data", "workers", "steps", "samples a run", "here"]
    rows = [
        [
            o.name, o.runs, o.model, f"{o.parameters:,}", o.data, o.workers, f"{o.steps:,}", f"{o.samples:,}",
            o.missing is None,
        ]
        for o in found
    ]  # fmt: skip
    print_table(f"studies at scale {args.scale}", columns, rows)
    for missing in dict.fromkeys(o.missing for o in found if o.missing is not None):
        console().print(missing, highlight=False)
    return 0


def _tell(one: Verified) -> None:
    word = one.verdict or "failed"
    out = console()
    out.print(
        f"[{COLOURS.get(word, 'red')}]{word}[/]  {one.claim.title}  [dim]({one.seconds:.0f} s)[/]", highlight=False
    )


def _conclude(found: list[Verified]) -> None:
    from rich.table import Table

    from dissensus.experiments.claims.page import rows

    out = console()
    for one in found:
        table = Table(title=f"{one.claim.title}: {one.verdict or 'failed'}", title_justify="left", title_style="bold")
        for at, column in enumerate(("part", "verdict", "effect", "95 % interval", "p", "n")):
            table.add_column(column, justify="left" if at < 2 else "right", overflow="fold")
        for row in rows(one):
            table.add_row(row[0], f"[{COLOURS.get(row[1].strip('()'), 'dim')}]{row[1]}[/]", *row[2:])
        if one.parts:
            out.print(table)
        for note in dict.fromkeys(part.note for part in one.parts if part.verdict == "out of reach here" and part.note):
            out.print(f"[dim]{one.claim.name}:[/] {note}", highlight=False)
        if one.error:
            print(f"dissensus: verify: {one.claim.name}: {one.error}", file=sys.stderr)
    counted = {word: sum(one.verdict == word for one in found) for word in COLOURS}
    told = ", ".join(f"{count} {word}" for word, count in counted.items() if count)
    failed = sum(one.verdict is None for one in found)
    out.print(
        f"{len(found)} claim{'s' if len(found) > 1 else ''}: {told}{f', {failed} failed' if failed else ''}",
        highlight=False,
    )


def _write(found: list[Verified], args: argparse.Namespace) -> None:
    from dissensus.experiments.claims.page import page
    from dissensus.experiments.loading import write_whole
    from dissensus.experiments.records import write_json

    names = "".join(f" {name}" for name in args.names)
    command = f"dissensus verify{names} --scale {args.scale} --write {args.write.name}"
    write_json(args.write.with_suffix(".json"), {"command": command, "claims": [one.to_dict() for one in found]})
    write_whole(args.write, page(found, command))
