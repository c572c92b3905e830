"""Statements about two arms, each put to a paired test under a rule that is written down before any number is seen.

Which statements, in which direction and from which size on, stands in the section `[decision]` of the study. All tests
of a page form one Holm family.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from dissensus.experiments.config import Decision
from dissensus.experiments.quantities import QUANTITY, Direction, Quantity
from dissensus.experiments.results import Results
from dissensus.experiments.statistics import Paired, Verdict, detectable_effect, holm, paired


@dataclass(frozen=True)
class Question:
    """A quantity at the end of training and the direction in which the treatment is expected to lie."""

    quantity: Quantity
    direction: Direction
    minimum_effect: float = 0.0
    """By how much at least, in the unit of the records."""

    @property
    def words(self) -> str:
        """What the treatment is said to have."""
        return self.quantity.words(self.direction)

    @property
    def beyond(self) -> str:
        """By how much, if that was said."""
        least = f"{self.quantity.scale * self.minimum_effect:g}{self.quantity.unit}"
        return f", by more than {least}" if self.minimum_effect else ""

    @property
    def null(self) -> float:
        """The mean difference, treatment minus control, from which the statement begins to hold."""
        return self.minimum_effect if self.direction == "higher" else -self.minimum_effect


def questions(decision: Decision) -> list[Question]:
    """The statements of a study, in the order of its file."""
    least, expected = decision.least, decision.expected
    return [Question(QUANTITY[name], direction, least.get(name, 0.0)) for name, direction in expected.items()]


@dataclass(frozen=True)
class Finding:
    """One statement with its test and verdict."""

    question: Question
    arms: tuple[str, str]
    """Treatment and control, by their names in the study."""
    treatment: str
    control: str
    """The two as figures call them."""
    test: Paired
    """Treatment minus control."""
    pvalues: tuple[float | None, float]
    """Of the t test and of the sign flips, against the smallest difference that counts."""
    corrected: float
    """The p-value the verdict goes by, after Holm's correction over the page."""
    word: Verdict
    level: float
    tests: int
    """Over how many statements is corrected."""

    @property
    def statement(self) -> str:
        """The statement in words."""
        return f"{self.treatment} has a {self.question.words} than {self.control}{self.question.beyond}"

    @property
    def detectable(self) -> tuple[float, float] | None:
        """The true differences that 4 of 5 such studies find, alone and at the strictest level of the correction.

        They go by the spread of the differences that was found here; `None` where there is none.
        """
        if not self.test.spread:
            return None
        spread = float(np.std(self.test.differences, ddof=1))
        alone, strictest = (least_effect(self.test.n, self.level / tests) for tests in (1, self.tests))
        return self.question.minimum_effect + alone * spread, self.question.minimum_effect + strictest * spread

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers and words, for JSON."""
        return {
            "statement": self.statement,
            "quantity": self.question.quantity.name,
            "expected": self.question.direction,
            "minimum_effect": self.question.minimum_effect,
            "treatment": self.treatment,
            "control": self.control,
            "verdict": self.word,
            "corrected_pvalue": self.corrected,
            **self.test.to_dict(),
            "t_pvalue": self.pvalues[0],
            "permutation_pvalue": self.pvalues[1],
        }


MANY = 7
"""Up to so many arms have a colour, a column and a sentence of their own."""
least_effect = cache(detectable_effect)
"""`statistics.detectable_effect`, computed once."""


def rule(results: Results, tests: int) -> str:
    """How a verdict is reached over so many statements, for the page to say before it shows any."""
    n, level = len(results.seeds), results.decision.level
    if n < 2:
        return "A verdict takes two arms and at least two seeds."
    both = 2.0 ** (1 - n) < level / max(1, tests)
    of = "a two-sided paired t test" + (" or the permutation test of signs, whichever is larger" if both else "")
    least = (
        " Where a statement says by how much, what is tested is whether the difference is larger than that."
        if results.decision.least
        else ""
    )
    return (
        "Each statement compares the final numbers of two arms seed by seed (same start, same data, same order). Its "
        f"p-value is that of {of}, corrected by Holm's method over all {tests} statements of this page. With a "
        f"corrected p below {level:g} a statement is supported if the mean difference has the stated sign, and not "
        f"supported if it has the opposite sign; otherwise it is inconclusive at this number of seeds.{least}"
    )


def power(results: Results, tests: int) -> str:
    """What so many seeds can find and what they cannot, in words."""
    n, level = len(results.seeds), results.decision.level
    if n < 2:
        return ""
    text = (
        f"What {n} seeds can find: a true difference between two arms comes out in 4 of 5 such studies if it is "
        f"{least_effect(n, level):.1f} times as large as the differences of single seeds scatter around it (their "
        "standard deviation)"
    )
    if tests > 1:
        text += (
            f", when it is the only statement. Corrected for {tests} statements, where the first has to reach "
            f"{level:g} / {tests}, it has to be {least_effect(n, level / tests):.1f} times as large"
        )
    if len(results.controls) > MANY and results.decision.controls is None:
        text += ". Naming the controls in [decision], before anything runs, makes it fewer statements"
    return (
        f"{text}. The column “detectable” says both in the unit of each quantity. A smaller difference may well be "
        "there and come out inconclusive: inconclusive does not mean equal."
    )


def compare(results: Results, *, resamples: int = 9999) -> list[Finding]:
    """Puts every question to the treatment against every control; what is not measured in both is not asked.

    `resamples` is that of `statistics.paired`.
    """
    treatment, level = results.treatment, results.decision.level
    if len(results.seeds) < 2 or treatment not in results.order:
        return []
    asked: list[tuple[Question, str, Paired]] = []
    stated = questions(results.decision)
    ours = {q: results.final(q.quantity.name, which=q.quantity.which, arm=treatment) for q in stated}
    for control in results.controls:
        for question in stated:
            theirs = results.final(question.quantity.name, which=question.quantity.which, arm=control)
            if _comparable(ours[question], theirs):
                asked.append((question, control, paired(ours[question], theirs, resamples=resamples)))
    # the permutation test has a say where it can reach even the strictest level of Holm's method
    corrected = holm([test.pvalue(question.null, level / len(asked)) for question, _, test in asked])
    return [
        Finding(
            question,
            (treatment, control),
            results.label(treatment),
            results.label(control),
            test,
            test.pvalues(question.null),
            p,
            verdict(test, p, question, level=level),
            level,
            len(asked),
        )
        for (question, control, test), p in zip(asked, corrected, strict=True)
    ]


def verdict(test: Paired, corrected: float, question: Question, *, level: float = 0.05) -> Verdict:
    """The rule, for a statement about the first arm."""
    word = test.verdict(level, question.null, pvalue=corrected)
    return word if question.direction == "higher" else _OPPOSITE[word]


def counted(findings: Sequence[Finding]) -> dict[Question, dict[Verdict, int]]:
    """How often every statement came out how, over the controls."""
    counts: dict[Question, dict[Verdict, int]] = {}
    for f in findings:
        of = counts.setdefault(f.question, dict.fromkeys(_OPPOSITE, 0))
        of[f.word] += 1
    return counts


_OPPOSITE: dict[Verdict, Verdict] = {
    "supported": "not supported",
    "not supported": "supported",
    "inconclusive": "inconclusive",
}


def _comparable(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Measured in both, and no arm is zero by construction (centralized workers never disagree)."""
    measured = bool(np.isfinite(ours).all() and np.isfinite(theirs).all())
    return measured and bool(np.any(ours != 0)) and bool(np.any(theirs != 0))
