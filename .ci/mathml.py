"""A hook of mkdocs: formulas become MathML when the site is built, so that pages need no script from anywhere."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.S)


def on_post_page(output: str, **_: Any) -> str:
    """Converts every formula that arithmatex has marked."""
    return FORMULA.sub(_mathml, output)


def _mathml(match: re.Match[str]) -> str:
    tag, opening, latex = match.groups()
    display = "block" if opening == "[" else "inline"
    return f"<{tag}>{convert(html.unescape(latex).strip(), display=display)}</{tag}>"
