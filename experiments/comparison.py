"""Statements about two arms, each put to a paired test under a rule that is written down before any number is seen.

The statements below are those of the adaptive-consensus papers, in our words and in the direction in which they claim
them; that the opposite can come out, and is then said, is the point. All tests of a page form one Holm family.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dissensus.experiments.results import Results
from dissensus.experiments.statistics import Paired, Verdict, detectable_effect, holm, paired


@dataclass(frozen=True)
class Question:
    """A quantity at the end of training and the direction in which a claim expects the treatment to lie."""

    quantity: str
    words: str
    higher: bool
    which: str | None = None


QUESTIONS = (
    Question("test_accuracy", "higher test accuracy", higher=True, which="consensus"),
    Question("test_loss", "lower test loss", higher=False, which="consensus"),
    Question("hessian_trace", "smaller Hessian trace (flatter)", higher=False),
    Question("top_eigenvalue", "smaller largest eigenvalue (flatter)", higher=False),
    Question("consensus_distance", "larger consensus distance", higher=True, which="workers"),
    Question("envelope", "larger Hessian-weighted envelope", higher=True, which="workers"),
    Question("alignment_normalised", "stronger normalised alignment", higher=True, which="workers"),
)


@dataclass(frozen=True)
class Finding:
    """One statement with its test and verdict."""

    question: Question
    treatment: str
    control: str
    test: Paired
    """Treatment minus control."""
    corrected: float
    """The p-value the verdict goes by, after Holm's correction over the page."""
    word: Verdict

    @property
    def statement(self) -> str:
        """The statement in words."""
        return f"{self.treatment} has a {self.question.words} than {self.control}"

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers and words, for JSON."""
        return {
            "statement": self.statement,
            "quantity": self.question.quantity,
            "treatment": self.treatment,
            "control": self.control,
            "verdict": self.word,
            "corrected_pvalue": self.corrected,
            **self.test.to_dict(),
        }


def rule(results: Results, tests: int) -> str:
    """How a verdict is reached over so many statements, for the page to say before it shows any."""
    n, level = len(results.seeds), results.decision.level
    if n < 2:
        return "A verdict takes two arms and at least two seeds."
    both = 2.0 ** (1 - n) < level / max(1, tests)
    of = "a two-sided paired t test" + (" or the sign-flip permutation test, whichever is larger" if both else "")
    return (
        "Each statement compares the final numbers of two arms seed by seed (same start, same data, same order). Its "
        f"p-value is that of {of}, corrected by Holm's method over all {tests} statements of this page. With a "
        f"corrected p below {level:g} a statement is supported if the mean difference has the stated sign, and not "
        "supported if it has the opposite sign; otherwise it is inconclusive at this number of seeds. With "
        f"{n} seeds a single t test at {level:g} finds an effect of d_z = {detectable_effect(n, level):.1f} in 4 of 5 "
        "studies."
    )


def compare(results: Results) -> list[Finding]:
    """Puts every question to the treatment against every other arm; what is not measured in both is not asked."""
    treatment, level = results.treatment, results.decision.level
    asked: list[tuple[Question, str, Paired]] = []
    for control in results.order:
        if control == treatment or len(results.seeds) < 2:
            continue
        for question in QUESTIONS:
            ours = results.final(question.quantity, which=question.which, arm=treatment)
            theirs = results.final(question.quantity, which=question.which, arm=control)
            if _comparable(ours, theirs):
                asked.append((question, control, paired(ours, theirs)))
    # the permutation test has a say where it can reach even the strictest level of Holm's method
    corrected = holm([test.pvalue(alpha=level / len(asked)) for _, _, test in asked])
    return [
        Finding(
            question,
            results.label(treatment),
            results.label(control),
            test,
            p,
            verdict(test, p, higher=question.higher, level=level),
        )
        for (question, control, test), p in zip(asked, corrected, strict=True)
    ]


def verdict(test: Paired, corrected: float, *, higher: bool, level: float = 0.05) -> Verdict:
    """The rule, for a statement that the first arm is higher, or lower."""
    word = test.verdict(level, pvalue=corrected)
    return word if higher else _OPPOSITE[word]


_OPPOSITE: dict[Verdict, Verdict] = {
    "supported": "not supported",
    "not supported": "supported",
    "inconclusive": "inconclusive",
}


def _comparable(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Measured in both, and no arm is zero by construction (centralized workers never disagree)."""
    measured = bool(np.isfinite(ours).all() and np.isfinite(theirs).all())
    return measured and bool(np.any(ours != 0)) and bool(np.any(theirs != 0))
