"""The arms side by side: the same numbers as text for the terminal and as rows for the page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dissensus.experiments.comparison import Finding
from dissensus.experiments.curves import Finals, plus_minus
from dissensus.experiments.results import Results


@dataclass(frozen=True)
class Quantity:
    """A column: what it is, of which weights, and its unit."""

    name: str
    header: str
    weights: str
    which: str | None = None
    scale: float = 1.0


QUANTITIES = (
    Quantity("test_accuracy", "test accuracy (%)", "consensus", "consensus", 100.0),
    Quantity("test_loss", "test loss", "consensus", "consensus"),
    Quantity("train_loss", "training loss", "consensus", "consensus"),
    Quantity("hessian_trace", "tr H", "consensus"),
    Quantity("top_eigenvalue", "λ max", "consensus"),
    Quantity("consensus_distance", "consensus distance Ξ", "workers", "workers"),
    Quantity("envelope", "envelope", "workers", "workers"),
    Quantity("alignment_normalised", "alignment", "workers", "workers"),
)


def finals(results: Results, quantity: Quantity, arm: str) -> Finals:
    """The final numbers of a column for one arm."""
    values = results.final(quantity.name, which=quantity.which, arm=arm)
    return Finals(quantity.scale * values, quantity.scale * results.errors(quantity.name, arm))


def cell_text(found: Finals) -> str:
    """Mean and half-width of the 95 % interval over the seeds; a dash where nothing was measured."""
    if not np.isfinite(found.values).all():
        return "–"
    low, high = found.interval
    return plus_minus(found.mean, (high - low) / 2)


def arms_rows(results: Results) -> tuple[list[str], list[list[str]]]:
    """Header and one row per arm."""
    header = ["arm", *(q.header for q in QUANTITIES)]
    rows = [[results.label(arm), *(cell_text(finals(results, q, arm)) for q in QUANTITIES)] for arm in results.order]
    return header, rows


VERDICT_HEADER = ("verdict", "mean difference", "95 % interval", "p (Holm)", "p (t)", "p (permutation)", "d_z")


def verdict_row(f: Finding) -> list[str]:
    """Verdict, difference with interval, p-values and effect size of a statement."""
    scale = 100.0 if f.question.quantity == "test_accuracy" else 1.0
    low, high = (scale * end for end in f.test.interval)
    effect = f.test.effect_size
    return [
        f.word,
        signed(scale * f.test.mean_difference) + (" points" if scale == 100.0 else ""),
        f"{signed(low)} to {signed(high)}",
        probability(f.corrected),
        probability(f.test.t_pvalue),
        probability(f.test.permutation_pvalue),
        "–" if effect is None else signed(effect, 2),
    ]


def signed(value: float, digits: int = 3) -> str:
    """A number with its sign, minus as a minus."""
    return f"{value:+.{digits}g}".replace("-", "−")


def probability(p: float | None) -> str:
    """A p-value with two digits."""
    if p is None:
        return "–"
    return "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def arms_table(results: Results) -> Any:
    """The arms as a `rich.table.Table` for the terminal: quantities as rows, arms as columns."""
    from rich.table import Table

    header, rows = arms_rows(results)
    title = f"{results.name}: mean ± half-width of the 95 % interval over {len(results.seeds)} seeds, end of training"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("", justify="left")
    for row in rows:
        table.add_column(row[0], justify="right")
    for at, quantity in enumerate(QUANTITIES, start=1):
        table.add_row(f"{header[at]}", *(row[at] for row in rows), end_section=quantity.name == "train_loss")
    return table


def verdict_table(findings: list[Finding]) -> Any:
    """The statements as a `rich.table.Table` for the terminal."""
    from rich.table import Table

    title = f"What is said of {findings[0].treatment}, paired over seeds" if findings else "No paired tests"
    table = Table(title=title, title_justify="left", title_style="bold")
    for at, name in enumerate(("statement", "verdict", "mean difference", "p (Holm)")):
        table.add_column(name, justify="left" if at < 2 else "right")
    colours = {"supported": "green", "not supported": "red", "inconclusive": "dim"}
    control = None
    for f in findings:
        if f.control != control:
            control = f.control
            table.add_section()
            table.add_row(f"[bold]than {control}[/]")
        word, difference, _, p, *_ = verdict_row(f)
        table.add_row(f"a {f.question.words}", f"[{colours[word]}]{word}[/]", difference, p)
    return table
