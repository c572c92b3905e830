"""Claims put to the test: the studies that they need are run once, each claim is judged, and its verdict is kept.

    OUT/<scale>/studies/<study>/...        the runs, as `dissensus study` leaves them
    OUT/<scale>/verdicts/<claim>.json      the verdict with its parts, written when the claim is judged

A study that several claims are judged by is run once. With `resume`, runs that ended well are not run again, and a
verdict stays where neither a word of the claim nor a digit of its studies has changed; one that lacked runs or data is
made anew. A check that cannot be done on this machine says so (`out of reach here`); one that fails is listed with its
error and loses no other.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dissensus.experiments.cell import environment
from dissensus.experiments.claims.base import Claim, OutOfReachError, Part, Scale, Verdict, overall
from dissensus.experiments.claims.evidence import Evidence, load_studies
from dissensus.experiments.claims.registry import claims, find
from dissensus.experiments.config import Study
from dissensus.experiments.data import dataset
from dissensus.experiments.errors import DataMissingError
from dissensus.experiments.records import write_json
from dissensus.experiments.results import Results
from dissensus.experiments.sections import Data
from dissensus.experiments.study import run_study
from dissensus.theory.errors import DissensusError

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Verified:
    """What came of a claim."""

    claim: Claim
    scale: Scale
    verdict: Verdict | None
    """`None` where the check failed: `error` says why."""
    parts: tuple[Part, ...]
    seconds: float
    made: Mapping[str, Any] = field(default_factory=dict)
    """When, with which versions, on what."""
    error: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        c = self.claim
        return {
            "name": c.name,
            "title": c.title,
            "statement": c.statement,
            "source": c.source,
            "measured": c.measured,
            "rule": c.rule,
            "wording": c.wording,
            "scale": self.scale,
            "verdict": self.verdict,
            "parts": [part.to_dict() for part in self.parts],
            "seconds": round(self.seconds, 1),
            "error": self.error,
            **self.made,
        }


@dataclass(frozen=True)
class Ran:
    """What came of a study and its variants."""

    results: list[Results]
    wrong: str
    """Runs that did not end well."""
    lacking: str
    """Data that are not on this machine."""


def verify(
    names: Sequence[str] = (),
    scale: Scale = "tiny",
    out: Path | str = "runs/verify",
    *,
    processes: int = 1,
    resume: bool = False,
    seed: int = 0,
    places: Mapping[str, str] | None = None,
    progress: Callable[[str], Any] | None = None,
    tell: Callable[[Verified], None] | None = None,
) -> list[Verified]:
    """Puts claims to the test, all of them unless some are named.

    Args:
        names: which claims, in the order in which they are judged.
        scale: `tiny` (minutes on two cores), `small` (hours), `full` (a GPU cluster).
        out: where runs and verdicts go.
        processes: how many runs of a study, or processes of a check, there are at a time.
        resume: keeps what is there already.
        seed: where computed checks start their random numbers.
        places: where data sets are, by name, if not where the studies say.
        progress: gives, for the name of a study, what shows its progress (a context manager).
        tell: is told of every verdict as it is reached.
    """
    chosen = [find(name) for name in dict.fromkeys(names)] or list(claims().values())
    place = Path(out) / scale
    ran: dict[str, Ran] = {}
    verdicts = []
    for claim in chosen:
        began = time.perf_counter()
        needed = {name: load_studies(name, scale, places) for name in claim.studies}
        file = place / "verdicts" / f"{claim.name}.json"
        mark = fingerprint(claim, scale, needed, seed)
        kept = _kept(file, claim, mark) if resume else None
        if kept is None:
            for name, variants in needed.items():
                if name not in ran:
                    ran[name] = _run(variants, place / "studies", processes, progress, resume=resume)
            word, parts, error = _judged(claim, scale, {name: ran[name] for name in needed}, processes, seed)
            made = {**_made(), "mark": mark, "studies": _described(needed)}
            kept = Verified(claim, scale, word, tuple(parts), time.perf_counter() - began, made, error)
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, kept.to_dict())
        verdicts.append(kept)
        if tell is not None:
            tell(kept)
    return verdicts


def read_verdicts(saved: Sequence[Mapping[str, Any]]) -> list[Verified]:
    """Verdicts that were saved as data, of claims that still exist."""
    known = claims()
    return [_of(known[tree["name"]], tree) for tree in saved if tree["name"] in known]


def _of(claim: Claim, tree: Mapping[str, Any]) -> Verified:
    made = {key: tree[key] for key in ("date", "versions", "python", "platform", "mark", "studies") if key in tree}
    parts = tuple(Part.from_dict(part) for part in tree["parts"])
    return Verified(claim, tree["scale"], tree["verdict"], parts, tree["seconds"], made, tree["error"])


def fingerprint(claim: Claim, scale: Scale, needed: Mapping[str, Sequence[Study]], seed: int) -> str:
    """Twelve hexadecimal digits that change with any word of a claim and any key of its studies."""
    digests = {name: [study.digest for study in variants] for name, variants in needed.items()}
    told = json.dumps([claim.wording, scale, digests, seed], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def _kept(file: Path, claim: Claim, mark: str) -> Verified | None:
    """The verdict that is there, if it is about just this, follows from its parts, and nothing was missing for it."""
    try:
        kept = _of(claim, json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    whole = not kept.error and kept.verdict == overall(kept.parts) != "out of reach here"
    return kept if whole and kept.made.get("mark") == mark else None


def _run(
    variants: Sequence[Study],
    place: Path,
    processes: int,
    progress: Callable[[str], Any] | None,
    *,
    resume: bool,
) -> Ran:
    """The results of a study and its variants."""
    found: list[Results] = []
    wrong: list[str] = []
    lacking: list[str] = []
    for study in variants:
        try:
            for data in {_json(cell.data): cell.data for cell in study.cells()}.values():
                dataset(data.name, data.parameters)
            if progress is None:
                outcomes = run_study(study, place, processes=processes, resume=resume)
            else:
                with progress(study.name) as bar:
                    outcomes = run_study(study, place, processes=processes, resume=resume, progress=bar)
        except DataMissingError as error:
            lacking.append(f"study {study.name}: {error}")
            continue
        except DissensusError as error:
            wrong.append(f"study {study.name}: {error}")
            continue
        failed = [o for o in outcomes if o.status != "ok"]
        if failed:
            first = failed[0]
            wrong.append(
                f"study {study.name}: {len(failed)} of {len(outcomes)} runs did not end well; the first: {first.arm}, "
                f"seed {first.seed}: {first.error}"
            )
        well = len(outcomes) - len(failed)
        if well:
            found.append(Results.read(place / study.name))
            there = sum(run.status == "ok" for run in found[-1].runs)
            if there < well:
                wrong.append(
                    f"study {study.name}: {well} runs ended well, but only {there} are there to read; does another "
                    f"process write to {place}?"
                )
    return Ran(found, "; ".join(wrong), "; ".join(dict.fromkeys(lacking)))


def _json(data: Data) -> str:
    return data.model_dump_json()


def _judged(
    claim: Claim, scale: Scale, ran: Mapping[str, Ran], processes: int, seed: int
) -> tuple[Verdict | None, list[Part], str]:
    wrong = "; ".join(one.wrong for one in ran.values() if one.wrong)
    for one in ran.values():
        if not one.results and one.lacking:
            return "out of reach here", [Part(claim.title, "out of reach here", note=one.lacking)], wrong
        if not one.results:
            return None, [], wrong
    try:
        parts = claim.check(Evidence(scale, seed, processes, {name: one.results for name, one in ran.items()}))
    except OutOfReachError as error:
        return "out of reach here", [Part(claim.title, "out of reach here", note=str(error))], wrong
    except Exception as error:  # whatever it is: the other claims are judged all the same
        said = str(error) if isinstance(error, DissensusError) else f"{type(error).__name__}: {error}"
        return None, [], "; ".join(filter(None, (said, wrong)))
    variants = (
        Part(f"{name}: every variant", "out of reach here", note=one.lacking)
        for name, one in ran.items()
        if one.lacking
    )
    parts = [*parts, *variants]
    return overall(parts), parts, wrong


def _described(needed: Mapping[str, Sequence[Study]]) -> dict[str, Any]:
    return {
        study.name: {
            "workers": study.train.workers,
            "steps": study.train.steps,
            "seeds": list(study.seeds),
            "data": study.data.name,
            "model": study.model.name,
        }
        for variants in needed.values()
        for study in variants
    }


def _made() -> dict[str, Any]:
    facts = environment()
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "versions": facts["versions"],
        "python": facts["python"],
        "platform": facts["platform"],
    }
