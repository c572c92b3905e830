"""Claims of a paper and what a study says of them, as rows for the page; who reads which claim is not decided here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ClaimRow:
    """One claim in words, with what came out."""

    title: str
    statement: str
    """The claim in words that can turn out wrong."""
    verdict: str
    """`supported`, `not supported` or `inconclusive`; anything else is shown as it is."""
    parts: tuple[str, ...] = ()
    """What it was judged by, each with its own verdict and number."""
    source: str = ""
    """Where the claim stands."""
