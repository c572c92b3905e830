"""Claims of the literature as checks that can come out either way: one file each in `checks`, and what runs them."""

from dissensus.experiments.claims.base import SCALES, Claim, Part, Scale, Verdict, overall
from dissensus.experiments.claims.registry import claims, find
from dissensus.experiments.claims.verifying import Verified, read_verdicts, verify

__all__ = [
    "SCALES",
    "Claim",
    "Part",
    "Scale",
    "Verdict",
    "Verified",
    "claims",
    "find",
    "overall",
    "read_verdicts",
    "verify",
]
