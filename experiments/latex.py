r"""Text as LaTeX that any pdflatex of the last years takes: what is special is escaped, symbols become mathematics.

`AC_2, 50 %` becomes `AC\_2, 50 \%`, `Ξ` becomes `$\Xi$`, `·10⁻⁹` becomes `$\cdot$10$^{-9}$`. A character that pdflatex
has no letter for becomes its plain letter or a question mark: a label may not keep a paper from being set.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

_SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "$": r"\$",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", '"': "''",
    "<": "$<$", ">": "$>$", "|": "$|$", "−": "$-$", "–": "--", "—": "---", "“": "``", "”": "''", "‘": "`", "’": "'",
    "±": r"$\pm$", "×": r"$\times$", "·": r"$\cdot$", "≤": r"$\leq$", "≥": r"$\geq$", "≈": r"$\approx$",
    "∞": r"$\infty$", "→": r"$\to$", "½": r"$\frac{1}{2}$", "µ": r"$\mu$", "…": r"\dots{}", "\u00a0": "~",
    "[": "{[}", "]": "{]}", "*": "{*}",
}  # fmt: skip
_SHIFTED = str.maketrans("⁻⁺⁰¹²³⁴⁵⁶⁷⁸⁹₋₊₀₁₂₃₄₅₆₇₈₉", 2 * "-+0123456789")
_RUNS = re.compile(r"([⁻⁺⁰¹²³⁴⁵⁶⁷⁸⁹]+|[₋₊₀₁₂₃₄₅₆₇₈₉]+)")
_GREEK = {"ALPHA": "A", "BETA": "B", "EPSILON": "E", "ZETA": "Z", "ETA": "H", "IOTA": "I", "KAPPA": "K", "MU": "M",
          "NU": "N", "OMICRON": "O", "RHO": "P", "TAU": "T", "CHI": "X"}  # fmt: skip
"""The Greek capitals without a command of their own, which look like ours."""
_ALPHABET = frozenset(_GREEK) | {
    "GAMMA", "DELTA", "THETA", "LAMBDA", "XI", "PI", "SIGMA", "UPSILON", "PHI", "PSI", "OMEGA",
}  # fmt: skip
_MISSING = frozenset("ÐÞðþĄąĐđĘęĦħĮįĸĿŀŉŊŋŦŧŲų×÷")
"""What pdflatex cannot set without another encoding of fonts."""


def latex(text: str) -> str:
    """The text, escaped."""
    parts = _RUNS.split(" ".join(text.split()))
    return "".join(_shifted(part) if at % 2 else "".join(map(_letter, part)) for at, part in enumerate(parts))


def booktabs(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1, note: str = "") -> str:
    r"""A `tabular` for `\usepackage{booktabs}`: the first `left` columns to the left, numbers to the right."""
    lines = [f"% {line}" for line in note.splitlines()]
    lines += [f"\\begin{{tabular}}{{{'l' * left}{'r' * (len(header) - left)}}}", r"\toprule"]
    lines += [_row(header), r"\midrule", *map(_row, rows), r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return " & ".join(map(latex, cells)) + r" \\"


def _shifted(digits: str) -> str:
    return f"${'_' if digits[0] in '₋₊₀₁₂₃₄₅₆₇₈₉' else '^'}{{{digits.translate(_SHIFTED)}}}$"


def _letter(character: str) -> str:
    if character in _SPECIAL:
        return _SPECIAL[character]
    if character.isascii():
        return character if character.isprintable() else "?"
    name = unicodedata.name(character, "")
    if greek := re.fullmatch(r"GREEK (SMALL|CAPITAL) LETTER (?:FINAL )?(\w+)", name):
        return _greek(greek[2].replace("LAMDA", "LAMBDA"), capital=greek[1] == "CAPITAL")
    if "À" <= character <= "ž" and character not in _MISSING:
        return character
    plain = unicodedata.normalize("NFKD", character)[0]
    return _letter(plain) if character.isalpha() and plain != character else "?"


def _greek(letter: str, *, capital: bool) -> str:
    if letter not in _ALPHABET:
        return "?"
    if capital:
        return _GREEK.get(letter) or f"$\\{letter.capitalize()}$"
    return "o" if letter == "OMICRON" else f"$\\{letter.lower()}$"
