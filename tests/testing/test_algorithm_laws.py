"""Every registered algorithm obeys every law that applies to it, and the suite says what it did and what is missing."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from dissensus.algorithms import AlgorithmError, StackedEngine, algorithm, algorithms
from dissensus.algorithms.protocol import DenseProblem, Gradient, Local, Mix, Stateless, Step
from dissensus.testing import ALGORITHM_LAWS, check_algorithm, check_engine, variants
from dissensus.testing.laws.bare import Bare
from dissensus.testing.laws.problems import OPTIMIZERS, Quadratics, SgdRecursion, directed, named, pushing
from dissensus.testing.laws.verdict import Broken, LawBroken, agree, judge


@pytest.mark.parametrize("name", sorted(algorithms()))
def test_every_registered_algorithm_obeys_the_laws(name: str) -> None:
    verdict = check_algorithm(name)
    assert set(verdict.held) | set(verdict.skipped) == set(ALGORITHM_LAWS)
    assert {"matrix form", "mean is kept", "layouts", "resuming", "purity", "rows apart"} <= set(verdict.held)


def others() -> Iterator[Any]:
    for name, cls in sorted(algorithms().items()):
        for i, variant in enumerate(variants(cls)):
            if i:
                yield pytest.param(variant, id=f"{name}-{i}")


@pytest.mark.parametrize("variant", list(others()))
def test_so_does_every_choice_of_its_fields(variant: Any) -> None:
    # what couples workers to each other or to the engine is the same in every variant, and is checked above
    check_algorithm(
        variant, n=4, steps=30, laws=ALGORITHM_LAWS.keys() - {"layouts", "relabelling", "identical workers"}
    )


WHERE_IT_MUST_APPLY = {
    "one worker": [{"name": n} for n in ("allreduce", "dsgd", "dsgd-ac", "gradient-tracking", "sgp", "choco-sgd")],
    "large batch": [{"name": "allreduce"}, {"name": "dsgd", "order": "atc"}, {"name": "local-sgd", "period": 1}],
    "gamma = 0": [{"name": "dsgd"}, {"name": "dsgd-ac"}, {"name": "dsgd", "order": "cta"}],
    "sums are kept": [{"name": "sgp"}],
    "locality": [{"name": n} for n in ("dsgd", "gradient-tracking", "qg-dsgdm", "sgp", "choco-sgd")],
    "columns apart": [{"name": n} for n in ("dsgd", "gradient-tracking", "qg-dsgdm", "sgp")],
}


@pytest.mark.parametrize("law", WHERE_IT_MUST_APPLY)
def test_a_law_applies_where_it_should(law: str) -> None:
    for given in WHERE_IT_MUST_APPLY[law]:
        built = algorithm(given["name"], **{k: v for k, v in given.items() if k != "name"})
        assert check_algorithm(built, laws=[law], steps=12).held == (law,), given


def test_an_algorithm_is_run_with_optimizers_it_takes() -> None:
    assert {"matrix form", "mean is kept"} <= set(check_algorithm("dadam", steps=12, laws=ALGORITHM_LAWS).held)


def test_what_does_not_apply_is_said_with_the_reason() -> None:
    skipped = check_algorithm("qg-dsgdm", laws=["one worker", "gamma = 0", "sums are kept", "purity"]).skipped
    assert "with one worker its matrix form is not the plain optimizer" in skipped["one worker"]
    assert skipped["gamma = 0"] == "it has no field gamma"
    assert "it does not promise to run on column stochastic rounds" in skipped["sums are kept"]
    verdict = str(check_algorithm("allreduce", laws=["locality", "purity"]))
    assert verdict == (
        "algorithm 'allreduce': 1 laws hold: purity\n"
        "  does not apply: locality: it asks for a mean over all workers"
    )  # fmt: skip
    awc = check_algorithm("dsgd", laws=["large batch"]).skipped["large batch"]
    assert "on the complete graph its matrix form is not large-batch training" in awc


def test_large_batch_applies_to_the_optimizers_that_average() -> None:
    atc = algorithm("dsgd", order="atc")
    assert check_algorithm(atc, laws=["large batch"], optimizers=["nesterov"]).held
    assert check_algorithm(atc, laws=["large batch"], optimizers=["adam"]).skipped, "a mean of Adams is no Adam"


@dataclass(frozen=True)
class Halfway:
    """x+ = (x + W x)/2 - lr g(x), as a user may have it on the first day: without its matrix form."""

    name: ClassVar[str] = "halfway"
    promise: ClassVar[str] = "doubly"
    static: ClassVar[bool] = False
    columnwise: ClassVar[bool] = True

    def init(self, x: torch.Tensor) -> Stateless:
        return Stateless()

    def step(self, x: torch.Tensor, state: Stateless, local: Local) -> Step:
        g = yield Gradient(x)
        return local.move((x + (yield Mix(x))) / 2, g), state

    def deployed(self, x: torch.Tensor, state: Stateless) -> torch.Tensor:
        return x


class Finished(Halfway):
    def matrix_form(self, problem: DenseProblem, steps: int) -> np.ndarray:
        path = [problem.x0]
        for t in range(steps):
            w = (np.eye(len(problem.x0)) + problem.mixing(t)) / 2
            path.append(problem.move(t, w @ path[-1], problem.gradient(t, path[-1]), problem.lr(t)))
        return np.stack(path)


class Misshapen(Finished):
    def matrix_form(self, problem: DenseProblem, steps: int) -> np.ndarray:
        return super().matrix_form(problem, steps)[1:]


class Failing(Finished):
    def step(self, x: torch.Tensor, state: Stateless, local: Local) -> Step:
        if local.t == 2:
            raise ZeroDivisionError("not ready")
        return (yield from super().step(x, state, local))


class Thawed(Finished):
    promise: ClassVar[str] = "both"


def test_an_algorithm_of_a_user_that_is_not_registered() -> None:
    assert "one worker" in check_algorithm(Finished).held
    assert check_algorithm(Finished(), n=6, topologies=[directed(6), "ring"], optimizers=["adamw"], steps=20).held


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (Halfway, r"'declarations': it has no matrix_form; add the paper's recursion .* def matrix_form\(self"),
        (Thawed, r"'declarations': promise is 'both', expected 'doubly', 'row', 'column' or None"),
        (Misshapen, r"'matrix form': its matrix_form returns shape \(100, 8, 5\), expected \(101, 8, 5\)"),
        (Failing, r"'state has rows': ZeroDivisionError: not ready"),
    ],
    ids=lambda v: v.__name__ if isinstance(v, type) else "",
)
def test_what_is_missing_is_said(broken: type, words: str) -> None:
    topologies = ["ring"] if broken is Thawed else None
    with pytest.raises((LawBroken, AlgorithmError), match=words if broken is not Thawed else "both|promise"):
        check_algorithm(broken, topologies=topologies, laws=["declarations"] if broken is Thawed else None)


def test_bad_arguments_end_in_one_sentence() -> None:
    with pytest.raises(AlgorithmError, match=r"unknown algorithm 'dsdg'; did you mean 'dsgd'"):
        check_algorithm("dsdg")
    with pytest.raises(AlgorithmError, match=r"no numpy recursion is known for optimizer 'adm'; did you mean 'adam'"):
        check_algorithm("dsgd", optimizers=["adm"])
    with pytest.raises(AlgorithmError, match=r"algorithm 'dadam' has an Adam .* but the local optimizer is sgd"):
        check_algorithm("dadam", optimizers=["sgd"])
    with pytest.raises(AlgorithmError, match="topology 'ring' has 4 workers, but n=8"):
        check_algorithm("dsgd", topologies=[named("ring", 4)])
    with pytest.raises(
        AlgorithmError, match=r"algorithm 'dsgd' needs doubly stochastic mixing, but topology 'pushing'"
    ):
        check_algorithm("dsgd", topologies=[pushing(8)])
    with pytest.raises(AlgorithmError, match=r"algorithm NoDefaults cannot be built with defaults .* pass an instance"):
        check_algorithm(NoDefaults)
    with pytest.raises(ValueError, match=r"there is no law 'purify'; did you mean 'purity'"):
        check_algorithm("dsgd", laws=["purify"])


@dataclass(frozen=True)
class NoDefaults:
    beta: float


def test_another_optimizer_comes_with_its_recursion() -> None:
    mine = {"slow": (partial(torch.optim.SGD, lr=1.0, momentum=0.3), lambda: SgdRecursion(0.3))}
    assert check_algorithm("dsgd", optimizers=mine, steps=20).held
    wrong = {"slow": (partial(torch.optim.SGD, lr=1.0, momentum=0.3), lambda: SgdRecursion(0.4))}
    with pytest.raises(LawBroken, match="'matrix form': directed circulant, slow, step 2, worker"):
        check_algorithm("dsgd", optimizers=wrong, steps=20)


def test_another_layout_must_agree() -> None:
    layouts = {"vmap": partial(StackedEngine, gradients="vmap"), "mine": partial(StackedEngine, gradients="loop")}
    assert check_algorithm("dsgd", layouts=layouts, laws=["layouts"]).held == ("layouts",)

    def halved(*args: Any, lr: Any, **options: Any) -> StackedEngine:
        return StackedEngine(*args, lr=lambda t: lr(t) / 2, gradients="vmap", **options)

    with pytest.raises(LawBroken, match="'layouts': directed circulant, adam, layout mine against vmap, step 1"):
        check_algorithm("dsgd", layouts=layouts | {"mine": halved}, laws=["layouts"])


def test_every_choice_is_a_variant() -> None:
    assert {v.order for v in variants(algorithms()["dsgd"])} == {"awc", "atc", "cta"}
    assert {v.nesterov for v in variants(algorithms()["qg-dsgdm"])} == {True, False}
    assert {(v.capture, v.order) for v in variants(algorithms()["dsgd-ac"])} >= {
        ("published", "awc"),
        ("window", "cta"),
    }


def test_agreement_names_the_first_step_and_the_worst_worker() -> None:
    expected = np.ones((4, 3, 2))
    found = expected.copy()
    found[2, 1, 0], found[2, 2, 1], found[3] = 1 + 1e-6, 1 + 1e-3, 9.0
    agree(found, expected, "it", 10.0)
    with pytest.raises(
        Broken, match=r"it, step 2, worker 2, column 1: found 1\.001, expected 1 \(relative error 1\.0e-03"
    ):
        agree(found, expected, "it", 1e-9)
    found[1, 0, 0] = np.nan
    with pytest.raises(Broken, match=r"step 1, worker 0, column 0: found nan, expected 1"):
        agree(found, expected, "it", 10.0)
    with pytest.raises(Broken, match=r"not equal to the bit"):
        agree(expected * (1 + 1e-15), expected, "it")
    with pytest.raises(Broken, match=r"shape \(4, 3\), expected \(4, 3, 2\)"):
        agree(found[..., 0], expected, "it")


def test_no_law_is_held_when_none_is_chosen() -> None:
    assert judge("nothing", {}, None).held == ()


def test_the_bare_run_answers_by_definition() -> None:
    topology = directed(4)
    bare = Bare(algorithm("dsgd", order="atc"), topology, torch.randn(4, 5, dtype=torch.float64))
    path = bare.run(3)
    w = torch.from_numpy(topology[0].dense())
    half = bare.x0 - 0.1 * bare.gradient(0, 0, bare.x0)
    torch.testing.assert_close(path.deployed[1], w @ half, rtol=1e-14, atol=1e-14)
    assert bare.trace.exchanges == bare.trace.hops == bare.trace.gradients == [1, 1, 1]
    tracking = Bare(algorithm("gradient-tracking"), topology, bare.x0)
    tracking.run(2)
    assert tracking.trace.exchanges == [2, 2], "two messages"
    assert tracking.trace.hops == [1, 1], "which travel together"


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_the_numpy_recursions_are_the_optimizers_of_torch(optimizer: str) -> None:
    factory, recursion = OPTIMIZERS[optimizer]
    problem, move = Quadratics.draw(3, 4, 20), recursion()
    p = torch.nn.Parameter(torch.from_numpy(problem.x0.copy()))
    built, x = factory([p]), problem.x0
    for t in range(20):
        p.grad = torch.from_numpy(problem.gradient(t, p.detach().numpy()))
        built.step()
        x = move(t, x, problem.gradient(t, x), 0.1)
    np.testing.assert_allclose(p.detach().numpy(), x, rtol=0, atol=1e-13)


def test_the_stacked_engine_obeys_the_laws_of_engines() -> None:
    assert check_engine(laws=["own modules", "own masks", "layouts", "views"]).held
