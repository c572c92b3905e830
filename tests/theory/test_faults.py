"""Lost links, lost messages and absent workers against enumeration, naive rebuilding and a forward simulation."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from dissensus.theory import MixingError, Topology, from_function, from_matrices, report, topology
from dissensus.theory.faults import Outages, absent, chance, dropped, present

EPS = np.finfo(float).eps
SYMMETRIC = np.array([[0.3, 0.5, 0.0, 0.2], [0.5, 0.1, 0.4, 0.0], [0.0, 0.4, 0.35, 0.25], [0.2, 0.0, 0.25, 0.55]])
DIRECTED = np.array([[0.2, 0.5, 0.3], [0.7, 0.1, 0.2], [0.1, 0.4, 0.5]])
ROW = np.array([[0.2, 0.5, 0.3], [0.6, 0.4, 0.0], [0.0, 0.1, 0.9]])

CASES: list[tuple[str, np.ndarray, str, str, Any]] = [
    ("symmetric-links", SYMMETRIC, "doubly", "link", None),
    ("symmetric-messages-row", SYMMETRIC, "doubly", "message", "row"),
    ("symmetric-messages-column", SYMMETRIC, "doubly", "message", "column"),
    ("directed-links-row", DIRECTED, "doubly", "link", "row"),
    ("directed-links-column", DIRECTED, "doubly", "link", "column"),
    ("directed-messages-row", DIRECTED, "doubly", "message", "row"),
    ("directed-messages-column", DIRECTED, "doubly", "message", "column"),
    ("row-messages", ROW, "row", "message", None),
    ("row-links", ROW, "row", "link", None),
    ("column-messages", ROW.T, "column", "message", None),
    ("column-links", ROW.T, "column", "link", None),
]
CASE = pytest.mark.parametrize(("w", "promise", "scheme", "keep"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])


def full(m: Any) -> np.ndarray:
    return m if isinstance(m, np.ndarray) else m.toarray()


def units(w: np.ndarray, scheme: str) -> list[list[tuple[int, int]]]:
    """What is lost together: single messages (receiver, sender), or both directions of a link."""
    n = len(w)
    messages = [(i, j) for i in range(n) for j in range(n) if i != j and w[i, j] != 0]
    if scheme == "message":
        return [[m] for m in messages]
    links = sorted({(min(m), max(m)) for m in messages})
    return [[m for m in ((i, j), (j, i)) if w[m] != 0] for i, j in links]


def without(w: np.ndarray, lost: list[tuple[int, int]], kept: str) -> np.ndarray:
    """The naive rebuilding: the weight of each lost message goes to the receiver (row) or the sender (column)."""
    found = w.copy()
    for i, j in lost:
        keeper = j if kept == "column" else i
        found[i, j] -= w[i, j]
        found[keeper, keeper] += w[i, j]
    return found


def outcomes(w: np.ndarray, scheme: str, kept: str, p: np.ndarray) -> Iterator[tuple[float, np.ndarray]]:
    """Every round that may come out, with its probability."""
    every = units(w, scheme)
    for fate in itertools.product([False, True], repeat=len(every)):
        probability, lost = 1.0, []
        for down, unit in zip(fate, every, strict=True):
            probability *= p[unit[0]] if down else 1.0 - p[unit[0]]
            lost += unit if down else []
        yield probability, without(w, lost, kept)


def probabilities(n: int, scheme: str) -> np.ndarray:
    p = np.random.default_rng(5).uniform(0.1, 0.9, (n, n))
    return (p + p.T) / 2 if scheme == "link" else p


@CASE
def test_the_moments_are_those_of_the_enumeration(w: np.ndarray, promise: Any, scheme: Any, keep: Any) -> None:
    base = from_matrices(w, promise=promise)
    kept = keep or promise
    for p in (0.3, probabilities(len(w), scheme)):
        found = dropped(base, p, scheme=scheme, keep=keep)
        assert found.moments is not None
        every = list(outcomes(w, scheme, kept, np.broadcast_to(p, w.shape)))
        assert sum(q for q, _ in every) == pytest.approx(1.0, abs=1e-13)
        np.testing.assert_allclose(full(found.moments.mean), sum(q * m for q, m in every), atol=32 * EPS)
        np.testing.assert_allclose(full(found.moments.square), sum(q * m.T @ m for q, m in every), atol=32 * EPS)
    assert dropped(base, 0.3, scheme=scheme, keep=keep).moments is not None
    mean = full(dropped(base, 0.3, scheme=scheme, keep=keep).moments.mean)  # type: ignore[union-attr]
    np.testing.assert_allclose(mean, 0.7 * w + 0.3 * np.eye(len(w)), atol=8 * EPS)


@CASE
def test_every_draw_is_rebuilt_from_what_was_lost(w: np.ndarray, promise: Any, scheme: Any, keep: Any) -> None:
    p = probabilities(len(w), scheme)
    found = dropped(from_matrices(w, promise=promise), p, scheme=scheme, keep=keep, seed=3)
    times = {}
    for t in range(200):
        lost: list[tuple[int, int]] = []
        for unit in units(w, scheme):
            i, j = (min(unit[0]), max(unit[0])) if scheme == "link" else unit[0]
            u = chance(3, f"dropped {scheme}s", t, np.array([i]), np.array([j]))[0]
            lost += unit if u < p[unit[0]] else []
        dense = found[t].dense()
        np.testing.assert_allclose(dense, without(w, lost, keep or promise), atol=4 * EPS)
        assert found[t].promise == ("doubly" if (w is SYMMETRIC and scheme == "link") else keep or promise)
        times[tuple(lost)] = times.get(tuple(lost), 0) + 1
    assert len(times) > 5


def test_lost_links_keep_the_mean_exactly_and_lost_messages_do_not() -> None:
    x = np.random.default_rng(0).normal(size=(12, 3))
    base = topology("torus", 12)
    links, messages = dropped(base, 0.4, seed=1), dropped(base, 0.4, seed=1, scheme="message", keep="row")
    sums = dropped(base, 0.4, seed=1, scheme="message", keep="column")
    for t in range(50):
        assert links[t].is_doubly_stochastic
        np.testing.assert_allclose((links[t] @ x).mean(axis=0), x.mean(axis=0), atol=16 * EPS)
        np.testing.assert_allclose(messages[t] @ np.ones(12), 1.0, atol=8 * EPS)
        np.testing.assert_allclose((sums[t] @ x).sum(axis=0), x.sum(axis=0), atol=64 * EPS)
    assert max(abs((messages[t] @ x).mean(axis=0) - x.mean(axis=0)).max() for t in range(50)) > 1e-3
    assert max(abs(sums[t] @ np.ones(12) - 1.0).max() for t in range(50)) > 1e-3


@pytest.mark.parametrize("w", [SYMMETRIC, DIRECTED], ids=["symmetric", "directed"])
def test_the_mean_under_lost_messages_is_a_martingale_of_the_stated_variance(w: np.ndarray) -> None:
    n, p = len(w), 0.3
    x = np.random.default_rng(1).normal(size=(n, 2))
    every = list(outcomes(w, "message", "row", np.full((n, n), p)))
    means = np.array([(m @ x).mean(axis=0) for _, m in every])
    q = np.array([q for q, _ in every])
    np.testing.assert_allclose(q @ means, x.mean(axis=0), atol=32 * EPS)
    spread = float(q @ ((means - x.mean(axis=0)) ** 2).sum(axis=1))
    distance = ((x[:, None] - x[None]) ** 2).sum(axis=2)
    assert spread == pytest.approx(p * (1 - p) / n**2 * float((w**2 * distance).sum()), rel=1e-12)


def test_in_bursts_the_mean_drifts_given_the_past() -> None:
    """Given that a message was lost a step ago it is lost with 1 - 1/burst, not p: the columns no longer sum to one."""
    p, burst = 0.2, 5.0
    given = np.full((3, 3), p)
    given[0, 1] = 1.0 - 1.0 / burst
    expected = sum((q * m for q, m in outcomes(DIRECTED, "message", "row", given)), np.zeros((3, 3)))
    assert abs(expected.sum(axis=0) - 1.0).max() > 0.1
    base = from_matrices(DIRECTED)
    assert dropped(base, p, scheme="message", keep="row", burst=burst).moments is None


def test_push_sum_finds_the_mean_although_messages_are_lost() -> None:
    base = topology("one-peer-exponential", 8)
    lossy = dropped(base, 0.3, scheme="message", keep="column", seed=2)
    x, w = np.random.default_rng(3).normal(size=8), np.ones(8)
    target = x.mean()
    for t in range(200):
        x, w = lossy[t] @ x, lossy[t] @ w
    np.testing.assert_allclose(x / w, target, rtol=1e-12)
    assert w.sum() == pytest.approx(8.0, rel=1e-13)


def test_a_directed_doubly_stochastic_topology_is_refused_unless_told_what_to_keep() -> None:
    base = topology("one-peer-exponential", 8)
    with pytest.raises(MixingError, match="rounds are not symmetric, so it cannot stay doubly stochastic; say keep="):
        dropped(base, 0.1)
    with pytest.raises(MixingError, match="one direction alone is lost, so it cannot stay doubly stochastic"):
        dropped(topology("ring", 8), 0.1, scheme="message")
    with pytest.raises(MixingError, match="with absent workers: its rounds are not symmetric"):
        absent(base, lambda t: np.ones(8, dtype=bool))
    for keep in ("row", "column"):
        for found in (dropped(base, 0.1, keep=keep), absent(base, lambda t: np.arange(8) != t % 8, keep=keep)):
            assert found.promise == keep
            assert all(found[t].promise == keep for t in range(10))
    assert dropped(topology("ring", 8), 0.1, keep="column").promise == "doubly"


BAD: list[tuple[str, Callable[[], Any]]] = [
    ("probability must lie in", lambda: dropped(topology("ring", 4), 1.5)),
    ("probability must lie in", lambda: dropped(topology("ring", 4), float("nan"))),
    (r"of shape \(4, 4\), got shape \(3,\)", lambda: dropped(topology("ring", 4), np.zeros(3))),
    ("differ by direction; say scheme='message'", lambda: dropped(topology("ring", 3), np.triu(np.full((3, 3), 0.1)))),
    ("unknown scheme 'links'; did you mean 'link'", lambda: dropped(topology("ring", 4), 0.1, scheme="links")),  # type: ignore[arg-type]
    ("keep must be 'row' or 'column', got 'mean'", lambda: dropped(topology("ring", 4), 0.1, keep="mean")),  # type: ignore[arg-type]
    ("is column stochastic, so keep='row'", lambda: dropped(from_matrices(ROW.T, promise="column"), 0.1, keep="row")),
    ("seed must be at least 0", lambda: dropped(topology("ring", 4), 0.1, seed=-1)),
    ("at least 2 steps long on average, got burst=1.5", lambda: dropped(topology("ring", 4), 0.5, burst=1.5)),
    ("unknown where nothing ever arrives", lambda: dropped(topology("ring", 4), 1.0, burst=5.0)),
    ("an array of 4 bools, but at step 0", lambda: absent(topology("ring", 4), lambda t: np.ones(4))[0]),
    ("gave bool of shape \\(3,\\)", lambda: present(lambda t: np.ones(3, dtype=bool), 2, 4)),
]


@pytest.mark.parametrize(("message", "wrong"), BAD)
def test_what_cannot_be_is_refused(message: str, wrong: Callable[[], Any]) -> None:
    with pytest.raises(MixingError, match=message):
        wrong()


def test_a_round_that_turns_out_directed_is_refused_when_it_is_drawn() -> None:
    late = from_function(lambda t: DIRECTED if t == 20 else np.eye(3), 3)
    lossy = dropped(late, 0.5)
    assert lossy[19].messages == 0
    with pytest.raises(MixingError, match="step 20, after what was lost: not column stochastic"):
        lossy[20]


def test_no_drops_is_the_topology_itself_and_all_drops_is_silence() -> None:
    base = topology("ring", 6)
    assert dropped(base, 0.0) is base
    silent = dropped(base, 1.0)
    assert all(np.array_equal(silent[t].dense(), np.eye(6)) for t in range(5))
    lone = dropped(topology("ring", 1), 0.5)
    assert np.array_equal(lone[0].dense(), [[1.0]])


def test_the_fate_of_a_link_is_its_own() -> None:
    """The same link fails at the same steps whatever other links there are, and whatever the round is."""
    ring, complete = dropped(topology("ring", 10), 0.4, seed=7), dropped(topology("complete", 10), 0.4, seed=7)
    fine = (
        dropped(topology("ring", 10), 0.4, seed=7, burst=6.0),
        dropped(topology("complete", 10), 0.4, seed=7, burst=6),
    )
    for one, other in ((ring, complete), fine):
        for t in (0, 3, 50, 51):
            a, b = one[t].dense(), other[t].dense()
            for i in range(10):
                assert (a[i, (i + 1) % 10] == 0) == (b[i, (i + 1) % 10] == 0)
    patterns = {seed: [dropped(topology("ring", 10), 0.4, seed=seed)[t].messages for t in range(40)] for seed in (0, 1)}
    assert patterns[0] != patterns[1]


@pytest.mark.parametrize("burst", [None, 2.5, 30.0])
def test_steps_may_be_asked_for_in_any_order(burst: float | None) -> None:
    def make() -> Topology:
        return dropped(topology("one-peer-ring", 8), 0.5, seed=4, burst=burst)

    forward = make()
    in_order = [forward[t].dense() for t in range(120)]
    shuffled = make()
    for t in np.random.default_rng(0).permutation(120):
        assert np.array_equal(shuffled[int(t)].dense(), in_order[t])
    for t in (119, 0, 60, 59):
        assert np.array_equal(make()[t].dense(), in_order[t])
        assert np.array_equal(forward[t].dense(), in_order[t])


@pytest.mark.parametrize(("share", "burst"), [(0.1, 20.0), (0.5, 2.0), (0.7, 4.0), (0.02, 1.1)])
def test_outages_are_the_two_state_chain_driven_by_one_number_a_step(share: float, burst: float) -> None:
    keys = np.arange(400), np.arange(400) % 7
    outages = Outages(9, "test", burst)
    stays, begins = 1 - 1 / burst, share / (1 - share) / burst
    assert share * stays + (1 - share) * begins == pytest.approx(share, rel=1e-14), "the share is stationary"
    down = chance(9, "test", 0, *keys) < share
    history = [down]
    for t in range(1, 300):
        u = chance(9, "test", t, *keys)
        down = np.where(down, u < stays, u < begins)
        history.append(down)
    for t in [*range(300), 17, 250, 3]:
        assert np.array_equal(outages(t, share, *keys), history[t]), t
    fresh = Outages(9, "test", burst)
    assert np.array_equal(fresh(299, share, *keys), history[299])
    x = np.stack(history).astype(float)
    correlation = stays - begins
    error = np.sqrt(share * (1 - share) / x.size * (1 + correlation) / (1 - correlation))
    assert abs(x.mean() - share) < 4 * error
    ended = x[:-1].astype(bool) & ~x[1:].astype(bool)
    assert abs(ended.sum() / x[:-1].sum() - 1 / burst) < 4 * np.sqrt(1 / burst * (1 - 1 / burst) / x[:-1].sum())


def test_a_burst_looks_back_a_bounded_way_and_once_when_steps_come_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(seed: int, purpose: str, t: int, *key: np.ndarray) -> np.ndarray:
        asked.append(len(key[0]))
        return chance(seed, purpose, t, *key)

    monkeypatch.setattr("dissensus.theory.faults.chance", counted)
    keys = (np.arange(100),)
    outages = Outages(1, "test", 1000.0)
    for t in range(300):
        outages(t, 0.1, *keys)
    assert sum(asked) == 300 * 100, "one number per link and step"
    asked.clear()
    Outages(1, "test", 10.0)(10**6, 0.1, *keys)
    assert sum(asked) < 100 * 10 * 3, "a link is looked back along for a burst or so, not to the beginning"


def test_an_outage_handed_out_may_be_written_to() -> None:
    outages = Outages(1, "test", 5.0)
    first = outages(3, 0.5, np.arange(50))
    kept = first.copy()
    first[:] = True
    assert np.array_equal(outages(3, 0.5, np.arange(50)), kept)


def test_chance_is_even_and_without_memory() -> None:
    """Fixed keys, so nothing here is random: chi-square over bins, and correlation along every part of the key."""
    i, j = (a.ravel() for a in np.meshgrid(np.arange(64), np.arange(64), indexing="ij"))
    u = np.stack([chance(0, "even", t, i, j) for t in range(40)])
    assert u.min() >= 0.0
    assert u.max() < 1.0
    counts = np.histogram(u, bins=256, range=(0, 1))[0]
    chi = float(((counts - u.size / 256) ** 2 / (u.size / 256)).sum())
    assert abs(chi - 255) < 4 * np.sqrt(2 * 255)
    z = (u - 0.5).reshape(40, 64, 64)
    for axis in range(3):
        a, b = np.moveaxis(z, axis, 0)[:-1], np.moveaxis(z, axis, 0)[1:]
        assert abs(float((a * b).mean())) * 12 * np.sqrt(a.size) < 4
    assert abs(float((z * z.transpose(0, 2, 1)).mean() - (z * z)[:, range(64), range(64)].sum() / z.size)) < 4e-3
    assert not np.array_equal(chance(0, "even", 1, i, j), chance(1, "even", 0, i, j))
    assert not np.array_equal(chance(0, "even", 1, i, j), chance(0, "odd", 1, i, j))
    assert chance(2**70 + 3, "even", 0, i).shape == (4096,)


def test_absent_workers_stand_still_and_the_rest_keep_their_mean() -> None:
    base, x = topology("torus", 12), np.random.default_rng(0).normal(size=(12, 3))
    rng = np.random.default_rng(1)
    away = [rng.random(12) < 0.4 for _ in range(20)]
    some = absent(base, lambda t: ~away[t])
    for t in range(20):
        w, mixed = some[t], some[t] @ x
        assert w.promise == "doubly"
        assert np.array_equal(mixed[away[t]], x[away[t]]), "bit for bit"
        assert np.array_equal(w.dense()[away[t]], np.eye(12)[away[t]])
        assert np.array_equal(w.dense()[:, away[t]], np.eye(12)[:, away[t]])
        np.testing.assert_allclose(mixed.sum(axis=0), x.sum(axis=0), atol=64 * EPS)
        np.testing.assert_allclose(mixed[~away[t]].sum(axis=0), x[~away[t]].sum(axis=0), atol=64 * EPS)
        lost = [(i, j) for i in range(12) for j in range(12) if i != j and (away[t][i] or away[t][j])]
        np.testing.assert_allclose(w.dense(), without(base[0].dense(), lost, "row"), atol=4 * EPS)


def test_a_worker_that_keeps_all_its_weight_keeps_its_number_to_the_bit() -> None:
    """Ten times a tenth is less than one: giving every weight back must not shrink who is alone."""
    alone = absent(topology("complete", 10), lambda t: np.arange(10) >= 3)[0].dense()
    assert sum([0.1] * 10) < 1.0
    assert np.array_equal(alone[:3], np.eye(10)[:3])
    silent = dropped(topology("complete", 10), 1.0, scheme="message", keep="column")
    assert np.array_equal(silent[0].dense(), np.eye(10))


@pytest.mark.parametrize("keep", ["row", "column"])
def test_absent_workers_of_a_directed_topology(keep: Any) -> None:
    base = topology("exponential", 8)
    some = absent(base, lambda t: np.arange(8) != t, keep=keep)
    for t in range(8):
        dense = some[t].dense()
        assert np.array_equal(dense[t], np.eye(8)[t])
        assert np.array_equal(dense[:, t], np.eye(8)[t])
        lost = [(i, j) for i in range(8) for j in range(8) if i != j and t in (i, j)]
        np.testing.assert_allclose(dense, without(base[0].dense(), lost, keep), atol=4 * EPS)


@pytest.mark.parametrize("signed", [False, True])
def test_the_moments_of_independent_absence(signed: bool) -> None:
    w = SYMMETRIC.copy()
    if signed:
        w[[0, 2], [2, 0]] -= 0.15
        w[[0, 2], [0, 2]] += 0.15

    class Shares:
        shares = np.array([0.3, 0.9, 0.5, 1.0])

        def __call__(self, t: int) -> np.ndarray:
            return chance(0, "who", t, np.arange(4)) < self.shares

    found = absent(from_matrices(w, signed=signed), Shares())
    assert found.moments is not None
    mean, square = np.zeros((4, 4)), np.zeros((4, 4))
    for there in itertools.product([0, 1], repeat=4):
        q = float(np.prod([a if s else 1 - a for a, s in zip(Shares.shares, there, strict=True)]))
        lost = [(i, j) for i in range(4) for j in range(4) if i != j and not (there[i] and there[j])]
        m = without(w, lost, "row")
        mean, square = mean + q * m, square + q * m.T @ m
    np.testing.assert_allclose(full(found.moments.mean), mean, atol=16 * EPS)
    np.testing.assert_allclose(full(found.moments.square), square, atol=16 * EPS)
    assert absent(from_matrices(w, signed=signed), lambda t: np.ones(4, dtype=bool)).moments is None


def test_wrappers_compose_and_adapt() -> None:
    base = topology("ring", 8)
    both = absent(dropped(base, 0.3, seed=1), lambda t: np.arange(8) != 2)
    for t in range(10):
        once = dropped(base, 0.3, seed=1)[t].dense()
        lost = [(i, j) for i in range(8) for j in range(8) if i != j and 2 in (i, j)]
        np.testing.assert_allclose(both[t].dense(), without(once, lost, "row"), atol=4 * EPS)
        one = dropped(base, 0.3, seed=1).adapted(0.4)[t].dense()
        np.testing.assert_allclose(dropped(base.adapted(0.4), 0.3, seed=1)[t].dense(), one, atol=4 * EPS)
    adapted, other = dropped(base, 0.3).adapted(0.4).moments, dropped(base.adapted(0.4), 0.3).moments
    assert adapted is not None
    assert other is not None
    np.testing.assert_allclose(full(adapted.square), full(other.square), atol=16 * EPS)


def test_negative_weights_are_kept_where_they_were_meant() -> None:
    matcha = topology("matcha", 8, graph="complete", budget=0.5)
    lossy = dropped(matcha, 0.5, seed=1)
    assert all(lossy[t].is_doubly_stochastic for t in range(20))
    assert lossy.moments is None


def test_the_report_tells_how_lossy_links_contract() -> None:
    """On the ring everything is diagonal in Fourier: 1 - 2qL + q²L² + 2pq w² · 2(1 - cos) per mode."""
    n, p, w = 8, 0.25, 1 / 3
    lossy = dropped(topology("ring", n), p)
    laplacian = 2 * (1 - np.cos(2 * np.pi * np.arange(1, n) / n))
    q, loss = 1 - p, w * laplacian
    expected = np.sqrt(np.max((1 - q * loss) ** 2 + 2 * p * q * w**2 * laplacian))
    found = report(lossy)
    assert found.contraction == pytest.approx(expected, rel=1e-12)
    assert found.contraction_kind == "mean square per step"
    assert found.connected
    assert lossy.name == "ring(drop=0.25)"
    assert lossy.parameters["faults"] == {"drop": 0.25, "scheme": "link", "seed": 0}
