"""What bounds and their assumptions say can be set: formulas become MathML with no command of LaTeX left in them."""

from __future__ import annotations

import re

import pytest

from dissensus.theory.bounds import catalogue

ALL = catalogue()
ROW_ENDS = r"\\\\"


def left_behind(formula: str) -> list[str]:
    """The pieces of a formula that are still LaTeX after it was turned into MathML."""
    convert = pytest.importorskip("latex2mathml.converter").convert
    text = re.sub(r"<[^>]*>", " ", convert(formula))
    return re.findall(r"\\(?:[A-Za-z]+|.)|[$^_{}]|&(?!#)", text)


@pytest.mark.parametrize("name", sorted(ALL))
def test_statement_and_assumptions_leave_no_command_behind(name: str) -> None:
    bound = ALL[name]
    for formula in (bound.statement, *(a.statement for a in bound.assumptions)):
        assert formula.strip() == formula != ""
        assert left_behind(formula) == [], formula


@pytest.mark.parametrize("name", sorted(ALL))
def test_what_is_opened_is_closed(name: str) -> None:
    bound = ALL[name]
    for formula in (bound.statement, *(a.statement for a in bound.assumptions)):
        bare = re.sub(ROW_ENDS, " ", formula)
        groups = re.sub(r"\\[{}]", "", bare)
        assert groups.count("{") == groups.count("}")
        assert len(re.findall(r"\\left(?![a-z])", bare)) == len(re.findall(r"\\right(?![a-z])", bare))
        for opening, closing in ((r"\\lVert", r"\\rVert"), (r"\\begin", r"\\end"), (r"\\\{", r"\\\}"), (r"\(", r"\)")):
            assert len(re.findall(opening, bare)) == len(re.findall(closing, bare)), (formula, opening)


@pytest.mark.parametrize(
    ("formula", "left"),
    [
        (r"\Bigl\lVert x\Bigr\rVert \le 1", [r"\lVert", r"\rVert"]),
        (r"\bigl\{x\bigr\}", [r"\{", r"\}"]),
        (r"\begin{aligned}x &\le y\end{aligned}", ["&"]),
        (r"\nosuchcommand x", [r"\nosuchcommand"]),
        (r"\left\lVert x\right\rVert \le \left\{1\right\} < 2", []),
    ],
)
def test_what_the_converter_does_not_know_is_noticed(formula: str, left: list[str]) -> None:
    assert left_behind(formula) == left
