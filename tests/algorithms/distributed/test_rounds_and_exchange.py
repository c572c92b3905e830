"""Rounds cut into processes, and exchanges over them: whatever the cut, the rows are those of W x."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dissensus.algorithms import AlgorithmError
from dissensus.algorithms.engines.distributed.exchange import Exchange, finite
from dissensus.algorithms.engines.distributed.message import Left
from dissensus.algorithms.engines.distributed.rounds import Rounds, part_of
from dissensus.algorithms.engines.distributed.timeline import Timeline
from dissensus.algorithms.engines.distributed.wire import Flight
from dissensus.theory import topology
from dissensus.theory.mixing import MixingMatrix

EPS = np.finfo(np.float64).eps


class Post:
    """What lies between processes: a letter box per (sender, receiver), emptied in order."""

    def __init__(self) -> None:
        self.boxes: dict[tuple[int, int], list[torch.Tensor]] = {}


class PaperWire:
    """A wire of one of several processes that live in one: what is posted lies in a box until it is landed."""

    def __init__(self, post: Post, rank: int, size: int, *, leaves: bool = False) -> None:
        self._post, self.rank, self.size, self.alone = post, rank, size, size == 1
        self.timeline = Timeline()
        self._leaves, self.kept = leaves, 0
        """Whether what comes stays where it lies, and how many messages do by now."""

    def leaves(self, peer, size, device) -> bool:
        return self._leaves

    def delivers(self, peer, size, device) -> bool:
        return False

    def is_inbox(self, value) -> bool:
        return False

    def post(self, sends, receives, *, what, step, wanted) -> Flight:
        for peer, value in sends:
            self._post.boxes.setdefault((self.rank, peer), []).append(value.clone())
        return Flight(what, step, works=[(into, peer, "") for peer, into in receives])

    def land(self, flight: Flight) -> None:
        for into, peer, _ in flight.works:
            assert peer is not None
            letter = self._post.boxes[peer, self.rank].pop(0)
            assert letter.dtype == into.dtype
            if isinstance(into, Left):
                self.kept += 1
                into.value, into.let_go = letter.view(into.shape), partial(self._let_go, letter)
            else:
                into.copy_(letter.view_as(into))
        flight.works.clear()

    def _let_go(self, letter: torch.Tensor) -> None:
        self.kept -= 1
        letter.zero_()  # as whoever writes there next will


def exchanges(of, processes: int, *, leaves: bool = False, **options) -> list[Exchange]:
    post = Post()
    wires = [PaperWire(post, rank, processes, leaves=leaves) for rank in range(processes)]
    return [Exchange(of, wire, **options) for wire in wires]  # type: ignore[arg-type]


def round_trip(found: list[Exchange], t: int, x: torch.Tensor, share=1.0, *, overwrite=False) -> torch.Tensor:
    rows = x.chunk(len(found))
    tickets = [e.post(t, part.clone()) for e, part in zip(found, rows, strict=True)]
    mixed = [e.take(ticket, share, overwrite=overwrite) for e, ticket in zip(found, tickets, strict=True)]
    if overwrite:
        assert all(m is ticket.value for m, ticket in zip(mixed, tickets, strict=True))
    return torch.cat(mixed)


SCHEDULES = [("ring", 8), ("one-peer-exponential", 8), ("exponential", 8), ("complete", 4), ("torus", 12), ("star", 6)]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("share", [1.0, 0.3, 0.0])
@pytest.mark.parametrize(("name", "n"), SCHEDULES)
def test_any_cut_gives_the_rows_of_the_product(name: str, n: int, share: float, overwrite: bool) -> None:
    of = topology(name, n)
    x = torch.randn(n, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for t in range(of.period or 3):
        expected = (1 - share) * x.numpy() + share * (of[t].dense() @ x.numpy())
        for processes in (p for p in (1, 2, 4, n) if n % p == 0):
            mixed = round_trip(exchanges(of, processes), t, x, share, overwrite=overwrite)
            assert np.abs(mixed.numpy() - expected).max() <= 8 * n * EPS * np.abs(x.numpy()).max()


@settings(max_examples=40)
@given(seed=st.integers(0, 2**31), processes=st.sampled_from([1, 2, 3, 6]), density=st.floats(0.05, 1.0))
def test_any_sparse_column_or_row_stochastic_matrix_too(seed: int, processes: int, density: float) -> None:
    rng = np.random.default_rng(seed)
    w = rng.random((6, 6)) * (rng.random((6, 6)) < density) + np.eye(6)
    w /= w.sum(axis=seed % 2, keepdims=True)
    matrix = MixingMatrix.of(w, "column" if seed % 2 == 0 else "row")
    x = rng.normal(size=(6, 3))
    k = 6 // processes
    parts = [part_of(matrix, rank, k) for rank in range(processes)]
    for p, part in enumerate(parts):
        came = [x[who] for _, who in part.receives]
        for (q, who), letter in zip(part.receives, came, strict=True):
            sent = dict(parts[q].sends)[p]
            assert np.array_equal(x[q * k : (q + 1) * k][sent], letter), "both sides read the same rows off the matrix"
            assert set(who // k) == {q}
        heard = np.concatenate([np.zeros((0, 3)), *came])
        mixed = part.own @ x[p * k : (p + 1) * k] + part.heard @ heard
        assert np.abs(mixed - (w @ x)[p * k : (p + 1) * k]).max() <= 20 * EPS * np.abs(x).max()
        assert {q for q, _ in part.sends} == {q for q, other in enumerate(parts) if p in dict(other.receives)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("name", "n"), SCHEDULES)
def test_workers_that_agree_stay_where_they_are_to_the_bit(name: str, n: int, dtype: torch.dtype) -> None:
    of = topology(name, n)
    x = torch.randn(1, 9, dtype=dtype, generator=torch.Generator().manual_seed(1)).repeat(n, 1)
    for short in (None, torch.bfloat16):
        for t in range(of.period or 3):
            assert torch.equal(round_trip(exchanges(of, n, message_dtype=short), t, x, 0.7), x)


@pytest.mark.parametrize("processes", [2, 4, 8])
def test_rounded_messages_keep_the_mean_and_stay_within_the_stated_error(processes: int) -> None:
    of = topology("ring", 8)
    x = torch.randn(8, 1000, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    w = of[0].dense()
    mixed = round_trip(exchanges(of, processes, message_dtype=torch.bfloat16), 0, x, 0.6).numpy()
    exact = 0.4 * x.numpy() + 0.6 * w @ x.numpy()
    bound = 0.6 * np.abs(w - np.eye(8)) @ (2.0**-8 * np.abs(x.numpy()))
    assert (np.abs(mixed - exact) <= bound).all()
    assert np.abs(mixed - exact).max() > 1e-5, "something was rounded"
    assert np.abs(mixed.mean(axis=0) - x.numpy().mean(axis=0)).max() <= 16 * EPS * np.abs(x.numpy()).max()


@pytest.mark.parametrize("processes", [2, 3, 6])
def test_rounded_messages_keep_the_sum_where_only_columns_sum_to_one(processes: int) -> None:
    of = topology("random-digraph", 6, seed=3)
    assert of.promise == "column"
    x = torch.randn(6, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for t in range(of.period or 4):
        mixed = round_trip(exchanges(of, processes, message_dtype=torch.bfloat16), t, x, 1.0).numpy()
        q = x.to(torch.bfloat16).double().numpy()
        expected = x.numpy() + (of[t].dense() - np.eye(6)) @ q
        assert np.abs(mixed - expected).max() <= 32 * EPS * np.abs(x.numpy()).max()
        assert np.abs(mixed.sum(axis=0) - x.numpy().sum(axis=0)).max() <= 64 * EPS * np.abs(x.numpy()).max()


def test_the_floor_that_rounding_leaves_is_below_the_bound_of_the_module() -> None:
    n, gamma, u = 8, 1.0, 2.0**-8
    of = topology("ring", n)
    w, found = of[0].dense(), exchanges(of, n, message_dtype=torch.bfloat16)
    x = 1.0 + torch.rand(n, 400, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    for t in range(200):
        x = round_trip(found, t, x, gamma)
    disagreement = float((x - x.mean(dim=0)).norm())
    rho = np.linalg.norm(w - 1 / n, 2)
    bound = gamma * np.linalg.norm(w - np.eye(n), 2) * u * float(x.norm()) / (1 - rho)
    assert 0 < disagreement <= bound


@pytest.mark.parametrize("short", [None, torch.bfloat16])
def test_room_for_messages_is_used_again(short: torch.dtype | None) -> None:
    found = exchanges(topology("ring", 4), 4, message_dtype=short)
    x = torch.randn(4, 16)
    round_trip(found, 0, x)
    assert all(sum(map(len, e._room.values())) == (2 if short is None else 3) for e in found)
    before = [sorted(box.data_ptr() for boxes in e._room.values() for box in boxes) for e in found]
    round_trip(found, 1, x)
    assert before == [sorted(box.data_ptr() for boxes in e._room.values() for box in boxes) for e in found]


@pytest.mark.parametrize("short", [None, torch.bfloat16])
@pytest.mark.parametrize("processes", [2, 4, 8])
@pytest.mark.parametrize("name", ["ring", "one-peer-hypercube", "complete"])
def test_what_is_left_where_it_lies_is_mixed_alike_and_let_go_of(name: str, processes: int, short) -> None:
    of, x = topology(name, 8), torch.randn(8, 33, dtype=torch.float64)
    copied, left = (exchanges(of, processes, leaves=leaves, message_dtype=short) for leaves in (False, True))
    for t in range(3):
        assert torch.equal(round_trip(copied, t, x, 0.7), round_trip(left, t, x, 0.7))
    assert all(exchange.wire.kept == 0 for exchange in left)  # type: ignore[attr-defined]


def test_what_is_left_and_not_wanted_any_more_is_let_go_of() -> None:
    found = exchanges(topology("ring", 4), 4, leaves=True)
    for exchange, ticket in [(e, e.post(0, torch.randn(1, 5))) for e in found]:
        exchange.land(ticket)
        assert exchange.wire.kept == 2  # type: ignore[attr-defined]
        exchange.drop(ticket)
        assert exchange.wire.kept == 0  # type: ignore[attr-defined]


def test_a_number_of_workers_that_cannot_be_shared_is_refused_with_the_nearest_that_can() -> None:
    with pytest.raises(AlgorithmError, match=r"10 workers cannot be shared evenly among 4 processes.*8 workers"):
        exchanges(topology("ring", 10), 4)


def test_a_schedule_without_end_is_not_remembered() -> None:
    rounds = Rounds(topology("random-gossip", 8, seed=1), 0, 4)
    for t in range(20):
        assert rounds[t].own.shape == (2, 2)
    assert len(rounds._parts) == 1


def test_finite_means_every_number() -> None:
    assert finite(torch.tensor([1e38, 1e38, 1e38]))  # the sum overflows, no number does
    assert not finite(torch.tensor([1.0, float("nan")]))
    assert not finite(torch.tensor([1.0, float("-inf"), float("inf")]))
