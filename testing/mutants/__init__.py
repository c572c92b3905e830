"""The published list of broken algorithms and engines. A suite of laws that lets one of them live is not good enough.

from dissensus.testing import MUTANTS, check_algorithm, check_engine

for mutant in MUTANTS:
    check = check_algorithm if mutant.kind == "algorithm" else check_engine
    check(mutant.build())        # raises: one of mutant.killed_by is broken
"""

from __future__ import annotations

from dissensus.testing.mutants import broken_dsgd, broken_exchanges, broken_memories, broken_methods
from dissensus.testing.mutants.mutant import MUTANTS as _MUTANTS
from dissensus.testing.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = tuple(_MUTANTS)
"""Every mutant, as the modules of this package list them."""

_LISTED = (broken_dsgd, broken_methods, broken_exchanges, broken_memories)


def mutant_table() -> str:
    """The list as a Markdown table: mutant, what it breaks, and the laws that notice."""
    rows = ["| mutant | what it does | noticed by |", "|---|---|---|"]
    for kind in ("algorithm", "engine"):
        chosen = [m for m in MUTANTS if m.kind == kind]
        rows.append(f"| **{kind}s** ({len(chosen)}) | | |")
        rows += [f"| {m.name} | {m.breaks} | {', '.join(m.killed_by)} |" for m in chosen]
    return "\n".join(rows)


__all__ = ["MUTANTS", "Mutant", "mutant_table"]
