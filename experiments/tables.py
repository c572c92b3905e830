"""The arms side by side as text: the same rows for the terminal, the page, and the files beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dissensus.experiments.comparison import MANY, Finding, counted
from dissensus.experiments.curves import Finals, plus_minus
from dissensus.experiments.quantities import QUANTITIES, Quantity
from dissensus.experiments.results import Results
from dissensus.experiments.statistics import Verdict

ABSENT = "–"
"""Where nothing was measured or set."""
Rows = tuple[list[str], list[list[str]]]
"""A header and rows under it."""


def finals(results: Results, quantity: Quantity, arm: str) -> Finals:
    """The final numbers of a column for one arm."""
    values = results.final(quantity.name, which=quantity.which, arm=arm)
    return Finals(quantity.scale * values, quantity.scale * results.errors(quantity.name, arm))


def cell_text(found: Finals) -> str:
    """Mean and half-width of the 95 % interval over the seeds; a dash where nothing was measured."""
    if not np.isfinite(found.values).all():
        return ABSENT
    low, high = found.interval
    return plus_minus(found.mean, (high - low) / 2)


def arms_rows(results: Results) -> Rows:
    """Header and one row per arm."""
    header = ["arm", *(q.header for q in QUANTITIES)]
    rows = [[results.label(arm), *(cell_text(finals(results, q, arm)) for q in QUANTITIES)] for arm in results.order]
    return header, rows


def arms_note(results: Results) -> str:
    """What the numbers of the arms are."""
    n = len(results.seeds)
    spread = f"Mean ± half-width of the 95 % t-interval over {n} seeds" if n > 1 else "One seed: no intervals"
    return (
        f"{spread}. Accuracy, losses and curvature are those of the consensus model; distance, envelope and alignment "
        "are those of the workers around it. Losses and envelope in nats; tr H and λ max over the training samples."
    )


def turned(table: Rows) -> Rows:
    """Columns as rows, with the first one as the header."""
    header, rows = table
    columns = [list(column) for column in zip(header, *rows, strict=True)]
    return ["", *columns[0][1:]], columns[1:]


def configuration_rows(results: Results) -> Rows:
    """The keys in which the arms differ: a row per key, or a row per arm where there are many."""
    table = results.differences()
    keys = [key.removeprefix("arms.arm.") for key in table]
    rows = [
        [results.label(arm), *(_value(values[results.label(arm)]) for values in table.values())]
        for arm in results.order
    ]
    by_arm = (["arm", *keys], rows)
    return by_arm if len(results.order) > MANY else (["key", *(row[0] for row in rows)], turned(by_arm)[1])


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()  # as TOML has it
    return ABSENT if value is None else str(value)


VERDICT_HEADER = (
    "verdict", "mean difference", "95 % interval", "detectable", "p (Holm)", "p (t)", "p (signs)", "d_z",
)  # fmt: skip


def verdict_row(f: Finding) -> list[str]:
    """Verdict, difference with interval, what could have been found, p-values and effect size of a statement."""
    scale = f.question.quantity.scale
    unit = f.question.quantity.unit if scale != 1.0 else ""
    low, high = (scale * end for end in f.test.interval)
    effect = f.test.effect_size
    alone, strictest = f.detectable or (None, None)
    return [
        f.word,
        signed(scale * f.test.mean_difference) + unit,
        f"{signed(low)} to {signed(high)}",
        ABSENT if alone is None or strictest is None else f"{scale * alone:.2g}; {scale * strictest:.2g}",
        probability(f.corrected),
        *map(probability, f.pvalues),
        ABSENT if effect is None else signed(effect, 2),
    ]


def verdict_rows(findings: Sequence[Finding]) -> Rows:
    """All statements about the treatment, one a row."""
    header = [f"{findings[0].treatment} has" if findings else "statement", "than", *VERDICT_HEADER]
    return header, [[f"a {f.question.words}{f.question.beyond}", f.control, *verdict_row(f)] for f in findings]


def without(table: Rows, *names: str) -> Rows:
    """The table without some of its columns."""
    header, rows = table
    kept = [at for at, name in enumerate(header) if name not in names]
    return [header[at] for at in kept], [[row[at] for at in kept] for row in rows]


def signed(value: float, digits: int = 3) -> str:
    """A number with its sign, minus as a minus."""
    return f"{value:+.{digits}g}".replace("-", "−")


def probability(p: float | None) -> str:
    """A p-value with two digits."""
    if p is None:
        return ABSENT
    return "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def markdown(table: Rows, *, left: int = 1) -> str:
    """A table of Markdown: the first `left` columns to the left, numbers to the right."""
    header, rows = table
    marks = [":--"] * left + ["--:"] * (len(header) - left)
    return "".join(
        f"| {' | '.join(line)} |\n" for line in (map(_marked, header), marks, *(map(_marked, r) for r in rows))
    )


_ESCAPED = str.maketrans({mark: f"\\{mark}" for mark in "\\|*_`<>[]"})


def _marked(text: str) -> str:
    return " ".join(text.split()).translate(_ESCAPED)


def arms_table(results: Results) -> Any:
    """The arms as a `rich.table.Table` for the terminal: quantities as rows, or arms as rows where they are many."""
    many = len(results.order) > MANY
    # so many lines are only read if they are single ones; the page has the other columns
    header, rows = without(arms_rows(results), "envelope", "alignment") if many else turned(arms_rows(results))
    title = f"{results.name}: mean ± half-width of the 95 % interval over {len(results.seeds)} seeds, end of training"
    table = _table(title, {name: "left" if at == 0 else "right" for at, name in enumerate(header)})
    for at, row in enumerate(rows):
        table.add_row(*map(_plain, row), end_section=not many and QUANTITIES[at].name == "train_loss")
    return table


def verdict_table(findings: list[Finding]) -> Any:
    """The statements as a `rich.table.Table` for the terminal; how often each holds where the controls are many."""
    title = f"What is said of {findings[0].treatment}, paired over seeds" if findings else "No paired tests"
    if len({f.arms for f in findings}) >= MANY:
        return _counts_table(title, findings)
    table = _table(title, {"statement": "left", "verdict": "left", "mean difference": "right", "p (Holm)": "right"})
    control = None
    for f in findings:
        if f.control != control:
            control = f.control
            table.add_section()
            table.add_row(_plain(f"than {control}", "bold"))
        _, difference, _, _, p, *_ = verdict_row(f)
        word = f.word
        table.add_row(f"a {f.question.words}{f.question.beyond}", f"[{_COLOURS[word]}]{word}[/]", difference, p)
    return table


def _counts_table(title: str, findings: list[Finding]) -> Any:
    words: tuple[Verdict, ...] = tuple(_COLOURS)
    table = _table(f"{title}: against how many arms", {"statement": "left", **dict.fromkeys(words, "right")})
    for question, count in counted(findings).items():
        table.add_row(f"a {question.words}{question.beyond}", *(f"{count[word]}" for word in words))
    return table


_COLOURS: dict[Verdict, str] = {"supported": "green", "not supported": "red", "inconclusive": "dim"}


def _table(title: str, columns: Mapping[str, Any]) -> Any:
    from rich.table import Table

    table = Table(title=_plain(title), title_justify="left", title_style="bold")
    for name, justify in columns.items():
        table.add_column(_plain(name), justify=justify)
    return table


def _plain(text: str, style: str = "") -> Any:
    """As it is: [brackets] of a label are no markup."""
    from rich.text import Text

    return Text(text, style=style)
