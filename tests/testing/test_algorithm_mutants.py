"""The published mutants: every one is noticed by every law that is said to notice it, and its original by none."""

from functools import cache
from pathlib import Path

import pytest

from dissensus.testing import ALGORITHM_LAWS, ENGINE_LAWS, MUTANTS, Mutant, check_algorithm, check_engine
from dissensus.testing import mutant_table as table
from dissensus.testing.laws.verdict import LawBroken

STEPS = 12
LAWS = {"algorithm": ALGORITHM_LAWS, "engine": ENGINE_LAWS}


def checked(mutant: Mutant, law: str) -> None:
    if mutant.kind == "algorithm":
        check_algorithm(mutant.build(), laws=[law], steps=STEPS)
    else:
        check_engine(mutant.build(), laws=[law])


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_every_mutant_is_killed_by_each_of_its_laws(mutant: Mutant) -> None:
    for law in mutant.killed_by:
        with pytest.raises(LawBroken, match=f"breaks the law '{law}': ") as broken:
            checked(mutant, law)
        assert broken.value.law == law


@cache
def lives(original: object, law: str) -> bool:
    verdict = check_algorithm(original, laws=[law], steps=STEPS)
    return verdict.held == (law,)


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.kind == "algorithm"], ids=lambda m: m.name)
def test_its_original_lives(mutant: Mutant) -> None:
    for law in mutant.killed_by:
        original = mutant.original()
        # a law that has nothing to say of the original may still kill the mutant: what it declares is what is broken
        assert lives(original, law) or law in check_algorithm(original, laws=[law], steps=STEPS).skipped


def test_the_engine_that_was_broken_lives() -> None:
    verdict = check_engine()
    assert set(verdict.held) | set(verdict.skipped) == set(ENGINE_LAWS)
    assert set(verdict.skipped) <= {"clipping"}


def test_the_list_is_long_and_its_names_tell_apart() -> None:
    assert len({m.name for m in MUTANTS}) == len(MUTANTS) >= 80
    for mutant in MUTANTS:
        assert mutant.killed_by, f"{mutant.name} says of no law that it is noticed by it"
        assert set(mutant.killed_by) <= set(LAWS[mutant.kind])
        assert mutant.breaks


def test_every_law_notices_some_mutant() -> None:
    for kind, laws in LAWS.items():
        deadly = {law for m in MUTANTS if m.kind == kind for law in m.killed_by}
        assert set(laws) - deadly <= {"declarations"}, (
            "what is missing is not a mutant: see test_what_is_missing_is_said"
        )


def test_a_mutant_is_killed_by_the_whole_suite_at_the_first_law_that_notices() -> None:
    by_name = {m.name: m for m in MUTANTS}
    with pytest.raises(LawBroken, match=r"algorithm 'choco-sgd' breaks the law 'columns apart': .* step \d+, worker"):
        check_algorithm(by_name["compresses buckets"].build())
    with pytest.raises(LawBroken, match=r"engine _Transposed breaks the law 'recursions': dsgd, directed circulant"):
        check_engine(by_name["W transposed"].build())


def test_a_transposed_engine_is_seen_through_an_algorithm_too() -> None:
    transposed = next(m for m in MUTANTS if m.name == "W transposed").build()
    with pytest.raises(AssertionError, match=r"law 'matrix form': directed circulant, sgd, step 1, worker \d, column"):
        check_algorithm("dsgd", engine=transposed, laws=["matrix form"], steps=STEPS)
    symmetric = check_algorithm("dsgd", engine=transposed, topologies=["ring"], laws=["matrix form"], steps=STEPS)
    assert symmetric.held == ("matrix form",), "a symmetric schedule cannot show it"


def test_universal_laws_alone_do_not_see_a_wrong_momentum() -> None:
    wrong = next(m for m in MUTANTS if m.name == "sign of the quasi-global momentum").build()
    others = [law for law in ALGORITHM_LAWS if law != "matrix form"]
    assert "relabelling" in check_algorithm(wrong, laws=others).held, "this is why a matrix form is not decoration"


def test_the_table_in_the_documentation_is_this_list() -> None:
    page = Path(__file__).parents[2] / "docs" / "testing.md"
    assert table() in page.read_text(encoding="utf-8"), "print(dissensus.testing.mutant_table()) and paste it"
