"""Checks that compute their evidence: small as they are here, each comes out as it should, and a lie turns it over."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dissensus.experiments.bench.network import NetworkError
from dissensus.experiments.claims.base import OutOfReachError, Part, overall
from dissensus.experiments.claims.checks import accum_adam, dadam_bound, speed_ups
from dissensus.experiments.claims.checks import dsgd_average_direction_sam as sam
from dissensus.experiments.claims.evidence import Evidence, load_studies
from dissensus.experiments.claims.racing import Laps, Race
from dissensus.theory import bounds


def said(parts: list[Part], words: str) -> Part:
    """The one part whose statement has these words."""
    (found,) = [part for part in parts if words in part.statement]
    return found


def verdicts(parts: list[Part]) -> dict[str, str]:
    return {part.statement: part.verdict for part in parts if part.counts}


# --- DSGD and average-direction SAM ---


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Evidence:
    monkeypatch.setitem(sam.SIZES, "tiny", sam.Size(3, (20,), blocks=2, pairs=12))
    monkeypatch.setattr(sam, "WIDTH", 8)
    return Evidence(seed=50)


def test_the_two_drifts_agree(few: Evidence) -> None:
    parts = sam.dsgd_average_direction_sam(few)
    assert overall(parts) == "supported", verdicts(parts)


def test_the_drift_of_a_cubic_is_the_textbook_one() -> None:
    """f(x) = x^3 / 6 and workers m + e, m - e: the gradients' mean is that at m, and e^2 / 2."""

    class Cube(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))

        def forward(self, _: torch.Tensor) -> torch.Tensor:
            return self.x

    data = (torch.zeros(1), torch.zeros(1))
    away = torch.tensor([[0.3], [-0.3]], dtype=torch.float64)
    mean = torch.tensor([1.7], dtype=torch.float64)
    here = sam.Around(Cube(), lambda module, batch: (module(batch[0]) ** 3).sum() / 6, data, mean, away)
    assert here.drift(1.0).item() == pytest.approx(0.3**2 / 2, rel=1e-12)
    assert here.penalty.item() == pytest.approx(0.3**2 / 2, rel=1e-12)
    scores = torch.tensor([[1.0, -1.0], [1.0, 1.0]], dtype=torch.float64)  # the mean of z z' is the identity
    assert here.normal(0.5, [scores, scores])[0].item() == pytest.approx(0.15**2 / 2, rel=1e-12)


@pytest.mark.parametrize("stretch", [1.25, 0.7])
def test_another_covariance_is_noticed(few: Evidence, monkeypatch: pytest.MonkeyPatch, stretch: float) -> None:
    true = sam.Around.normal
    monkeypatch.setattr(sam.Around, "normal", lambda self, c, blocks: true(self, c, [stretch * z for z in blocks]))
    parts = sam.dsgd_average_direction_sam(few)
    assert said(parts, "the difference to SAM's drift").verdict == "not supported"
    assert said(parts, "half the trace").verdict == "supported"
    assert said(parts, "lengths").verdict == "not supported"


def test_a_covariance_of_other_directions_is_noticed(few: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    true = sam.Around.normal
    monkeypatch.setattr(
        sam.Around, "normal", lambda self, c, blocks: true(replace(self, away=self.away.flip(1)), c, blocks)
    )
    assert overall(sam.dsgd_average_direction_sam(few)) == "not supported"


def test_the_penalty_without_its_half_is_noticed(few: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    true = sam.Around.penalty.func
    monkeypatch.setattr(sam.Around, "penalty", property(lambda self: 2 * true(self)))
    parts = sam.dsgd_average_direction_sam(few)
    assert said(parts, "half the trace").verdict == "not supported"
    assert said(parts, "the difference to SAM's drift").verdict == "supported"


# --- the bound on DAdam ---


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Evidence:
    monkeypatch.setitem(dadam_bound.SIZES, "tiny", dadam_bound.Size(30, 6, 4, 40))
    return Evidence(seed=2)


def test_nothing_breaks_the_bound(short: Evidence) -> None:
    parts = dadam_bound.dadam_bound(short)
    assert set(verdicts(parts).values()) == {"supported"}
    assert all(part.n and part.n > 80 for part in parts if part.counts)


def test_a_bound_of_half_its_height_is_broken(short: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in dadam_bound.BOUNDS:
        kind = type(bounds.find(name))
        monkeypatch.setattr(kind, "formula", lambda self, p, true=kind.formula: true(self, p) / 2)
    parts = dadam_bound.dadam_bound(short)
    assert said(parts, "family of trials").verdict == "not supported"
    assert said(parts, "run of the engine").verdict == "not supported"


def test_the_regression_is_what_the_bound_is_told() -> None:
    rng = np.random.default_rng(0)
    for convex in (False, True):
        rows, tilts = torch.from_numpy(rng.normal(size=(5, 3))), torch.from_numpy(rng.normal(size=(4, 3)))
        of = dadam_bound.Regression(rows, rows @ torch.ones(3, dtype=torch.float64), tilts, convex)
        points = torch.from_numpy(rng.normal(size=(300, 3)) * 4)
        slopes = torch.func.vmap(torch.func.grad(of.common))(points)
        bends = torch.func.vmap(torch.func.jacrev(torch.func.grad(of.common)))(points)
        assert float(torch.linalg.matrix_norm(bends, 2).max()) <= of.smoothness * (1 + 1e-12)
        steepest = (slopes[:, None] + tilts).abs().max()
        assert 0.2 * of.largest(torch.zeros(3)) < steepest <= of.largest(torch.zeros(3))
        assert float(of.common(torch.ones(3, dtype=torch.float64))) == 0.0


# --- AccumAdam ---


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> Evidence:
    monkeypatch.setitem(accum_adam.SIZES, "tiny", accum_adam.Size(3, 8, 120, 80, trained=20))
    monkeypatch.setattr(accum_adam, "WIDTH", 4)
    monkeypatch.setattr(accum_adam, "BETAS", (0.9, 0.98))
    monkeypatch.setattr(accum_adam, "MATCHED", (0.974, 0.98))
    return Evidence()


def test_windows_make_updates_less_noisy_relative_to_their_mean(frozen: Evidence) -> None:
    parts = accum_adam.accum_adam(frozen)
    assert said(parts, "noise over mean of an update").verdict == "supported"
    assert said(parts, "second moment").verdict == "supported"
    assert not said(parts, "the same rate").counts


def test_windows_of_one_step_change_nothing(frozen: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    true = accum_adam._noise
    monkeypatch.setattr(accum_adam, "_noise", lambda samples, betas, window, *rest: true(samples, betas, 1, *rest))
    parts = accum_adam.accum_adam(frozen)
    assert said(parts, "noise over mean of an update").verdict == "inconclusive"
    assert said(parts, "second moment").verdict == "not supported"


class Told:
    """Results of a study as a check sees them: final numbers by arm."""

    def __init__(self, train: dict[str, float], test: dict[str, float]) -> None:
        self.order, self.first = tuple(train), type("Run", (), {"study": load_studies("accum", "tiny")[0]})
        self._told = {"train_loss": train, "test_loss": test, "test_accuracy": dict.fromkeys(train, 0.9)}

    def final(self, name: str, *, which: str, arm: str) -> np.ndarray:
        assert which == "consensus"
        return self._told[name][arm] * np.exp(0.001 * np.random.default_rng(len(arm)).normal(size=8))

    def label(self, arm: str) -> str:
        return arm


def trained(train: tuple[float, float, float], test: tuple[float, float, float]) -> list[str]:
    arms = ("allreduce", "dadam", "accum-adam")
    told = Told(dict(zip(arms, train, strict=True)), dict(zip(arms, test, strict=True)))
    asked = list(accum_adam._trained(told))  # type: ignore[arg-type]
    return [part.verdict for part in accum_adam.decided(asked) if part.counts]


def test_the_published_order_is_supported_and_any_other_is_not() -> None:
    yes, no = "supported", "not supported"
    assert trained((1.864, 1.998, 1.836), (1.0, 1.1, 0.9)) == [yes] * 4
    assert trained((1.864, 1.998, 1.890), (1.0, 1.1, 0.9)) == [yes] * 4  # 1.4 % above all-reduce is not above
    assert trained((1.864, 1.998, 1.940), (1.0, 1.1, 0.9)) == [yes, yes, no, yes]
    assert trained((1.864, 1.836, 1.998), (1.0, 0.9, 1.1)) == [no] * 4


def test_the_studies_of_all_scales_load() -> None:
    for scale in ("tiny", "small", "full"):
        for study in load_studies("accum", scale):
            assert list(study.arms) == ["allreduce", "dadam", "accum-adam"]
            plain, local, accumulated = (study.cell(arm, 0).optimizer for arm in study.arms)
            assert plain.name == local.name == accumulated.name.removeprefix("accum-")
            assert accumulated.parameters["accum_steps"] in (study.train.workers // 2, 8)
            assert study.decision.note
    (tiny,) = load_studies("accum", "tiny")
    assert max(tiny.seeds) < 900  # rates were chosen on later ones


# --- speed-ups ---


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Evidence:
    monkeypatch.setitem(speed_ups.SIZES, "tiny", speed_ups.Size((4, 16), 400, 6, 4))
    monkeypatch.setattr(speed_ups, "COMPUTING", (0.05, 0.5))
    monkeypatch.setattr(speed_ups, "race", lambda of: laps(0.8))
    return Evidence()


def laps(ratio: float) -> Laps:
    """Blocks in which ours takes so many times as long as the other."""
    ddp = [1.0, 1.02, 0.99, 1.01, 1.0, 1.03]
    return Laps([ratio * t * (1 + 0.001 * k) for k, t in enumerate(ddp)], ddp)


def test_the_three_reasons_hold_and_published_orders_are_shown_as_they_are(quick: Evidence) -> None:
    parts = speed_ups.speed_ups(quick)
    published = [part for part in parts if "published order" in part.statement]
    assert {part.verdict for part in parts if part.counts and part not in published} == {"supported"}
    assert [part.verdict for part in published] == ["inconclusive"] * 3  # the replays say so
    assert overall(parts) == "inconclusive"


def test_an_exchange_behind_computing_is_no_overlap(quick: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed_ups, "ORDER", "atc")
    parts = speed_ups.speed_ups(quick)
    assert said(parts, "costs max(1, delay)").verdict == "not supported"
    assert said(parts, "without noise and with one worker").verdict == "not supported"
    assert said(parts, "between the bounds").verdict == "not supported"


def test_a_schedule_that_waits_for_everybody_loses_to_stragglers(
    quick: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = speed_ups.topology
    monkeypatch.setattr(
        speed_ups,
        "topology",
        lambda name, n, **more: true("complete" if name == "one-peer-exponential" else name, n, **more),
    )
    monkeypatch.setattr(speed_ups, "NOISY_DELAY", 1.3)
    parts = speed_ups._stragglers(speed_ups.SIZES["tiny"], 0)
    assert said(parts, "waiting for one peer").verdict == "not supported"


def test_an_aer_that_uses_all_links_at_once_is_noticed(quick: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    true = speed_ups.topology
    monkeypatch.setattr(speed_ups, "topology", lambda name, n, **more: true("exponential" if more else name, n))
    parts = speed_ups._traffic(speed_ups.SIZES["tiny"], 0)
    assert said(parts, "half as many").verdict == "not supported"
    assert {part.verdict for part in parts if "not slower" in part.statement} == {"not supported"}


def test_what_was_measured_decides_and_what_cannot_be_is_said(quick: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed_ups, "race", lambda of: laps(1.1))
    slower = [p.verdict for p in speed_ups._measured(speed_ups.SIZES["tiny"]) if p.counts]
    assert slower == ["not supported"] * 2

    def race(of: Race) -> Laps:
        if of.rate:
            raise NetworkError("root only")
        raise OutOfReachError("no gloo")

    monkeypatch.setattr(speed_ups, "race", race)
    parts = speed_ups._measured(speed_ups.SIZES["tiny"])
    assert {p.verdict for p in parts} == {"out of reach here"}
    assert not any(p.counts for p in parts)
