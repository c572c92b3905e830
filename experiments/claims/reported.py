"""Which claims a study can speak about, and what it says of them: rows for the page of that study.

A claim that is judged by one study is put to every study with the same arms, whatever its data and model are: so the
demo answers the claims about DSGD-AC with numbers of its own. What it did not measure it does not answer.
"""

from __future__ import annotations

import tomllib

from dissensus.experiments.claim_rows import ClaimRow
from dissensus.experiments.claims.base import Claim, Part, overall
from dissensus.experiments.claims.evidence import Evidence, study_files
from dissensus.experiments.claims.page import number
from dissensus.experiments.claims.registry import claims
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.results import Results


def claim_rows(results: Results) -> list[ClaimRow]:
    """Every claim that these results can be asked, with its verdict."""
    if len(results.seeds) < 2:
        return []
    rows = []
    for claim in claims().values():
        if len(claim.studies) != 1 or not _arms_of(claim.studies[0]) <= set(results.order):
            continue
        try:
            parts = claim.check(Evidence(found={claim.studies[0]: [results]}))
        except ConfigError:  # a number that it needs was not measured here
            continue
        rows.append(_row(claim, parts))
    return rows


def _arms_of(study: str) -> set[str]:
    """The arms of a study at its tiny scale, read without checking anything else."""
    return set(tomllib.loads(study_files(study, "tiny")[0].read_text(encoding="utf-8"))["arms"])


def _row(claim: Claim, parts: list[Part]) -> ClaimRow:
    judged = tuple(f"{part.statement}: {number(part)}, {part.verdict}" for part in parts if part.counts)
    return ClaimRow(claim.title, claim.statement, overall(parts), judged, f"{claim.name}; {claim.source}")
