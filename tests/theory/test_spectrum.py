"""Gaps and contractions: every route against dense numpy, closed forms where a graph has one, and honest errors."""

import numpy as np
import pytest
import scipy.sparse as sp

from dissensus.theory import ClosedForm, MixingError, MixingMatrix, Moments, Topology, from_function, from_matrices
from dissensus.theory.spectrum import circulant_row, contraction, eigenvalues, is_circulant, spectral_gap
from dissensus.theory.spectrum_large import edges, lanczos, separator


def circulant(n, row):
    i = np.arange(n)
    entries = [(np.full(n, float(w)), i, (i + k) % n) for k, w in row.items()]
    data, rows, columns = (np.concatenate(part) for part in zip(*entries, strict=True))
    return sp.csr_array((data, (rows, columns)), shape=(n, n))


def ring(n, own=1 / 3):
    return circulant(n, {0: own, 1: (1 - own) / 2, -1: (1 - own) / 2})


def torus(a):
    one = sp.eye_array(a)
    step = ring(a, 0.0) * 2
    return sp.csr_array((sp.eye_array(a * a) + sp.kron(step, one) + sp.kron(one, step)) / 5)


def relabelled(w, seed=0):
    p = np.random.default_rng(seed).permutation(w.shape[0])
    return sp.csr_array(w[p][:, p])


def metropolis(edge_list, n):
    i, j = np.asarray(edge_list).T
    degree = np.bincount(np.r_[i, j], minlength=n)
    weight = 1 / (1 + np.maximum(degree[i], degree[j]))
    off = sp.csr_array((np.r_[weight, weight], (np.r_[i, j], np.r_[j, i])), shape=(n, n))
    return sp.csr_array(off + sp.diags_array(1 - np.asarray(off.sum(axis=1)).ravel()))


def geometric(n, seed=0):
    from scipy.spatial import KDTree

    points = np.random.default_rng(seed).random((n, 2))
    return metropolis(KDTree(points).query_pairs(np.sqrt(1.8 * np.log(n) / (np.pi * n)), output_type="ndarray"), n)


def random_symmetric(n, seed):
    """A symmetric doubly stochastic matrix: an average of involutions."""
    rng = np.random.default_rng(seed)
    w = np.eye(n) / 4
    for share in (0.3, 0.3, 0.15):
        p, peer = rng.permutation(n), np.arange(n)
        peer[p[: n // 2]], peer[p[n // 2 : 2 * (n // 2)]] = p[n // 2 : 2 * (n // 2)], p[: n // 2]
        w += share * np.eye(n)[peer]
    return w


def dense_gap(w):
    values = np.sort(np.abs(np.linalg.eigvalsh(w.toarray() if sp.issparse(w) else w)))
    return 1 - values[-2]


def dense_contraction(*rounds):
    p = np.eye(rounds[0].shape[0])
    for w in rounds:
        p = w @ p
    return np.linalg.norm(p - 1 / len(p), 2)


def gap_of(w, **kwargs):
    return spectral_gap(MixingMatrix.of(w), **kwargs)


def holds(gap, truth, oracle_error=1e-15):
    """The truth lies within the stated error, and the stated error is a small share of the value."""
    assert abs(gap.value - truth) <= gap.error + oracle_error
    assert gap.error <= 1e-5 * abs(gap.value) + 1e-12


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 33])
@pytest.mark.parametrize("row", [{0: 0.5, 1: 0.5}, {0: 0.2, 1: 0.8}, {1: 0.5, -1: 0.5}, {0: 0.4, 1: 0.1, -1: 0.5}])
def test_circulant_contraction_is_the_dense_norm(n, row):
    w = circulant(n, row).toarray()
    c = contraction(MixingMatrix.of(w))
    assert c.method == "fft"
    assert c.value == pytest.approx(dense_contraction(w), abs=1e-13)
    assert c.loss == pytest.approx(1 - c.value, abs=1e-13)


@pytest.mark.parametrize("n", [3, 4, 7, 16, 64])
@pytest.mark.parametrize("own", [1 / 3, 0.5, 0.05, 0.0])
def test_ring_gap(n, own):
    gap = gap_of(ring(n, own))
    assert gap.method == "fft"
    assert gap.value == pytest.approx(dense_gap(ring(n, own)), abs=1e-13)
    values = np.linalg.eigvalsh(ring(n, own).toarray())
    assert gap.second == pytest.approx(values[-2], abs=1e-13)
    assert gap.smallest == pytest.approx(values[0], abs=1e-13)


@pytest.mark.parametrize("n", [1000, 99_991, 10**6])
def test_fft_keeps_all_digits_of_a_tiny_gap(n):
    gap = gap_of(ring(n))
    assert gap.value == pytest.approx(4 / 3 * np.sin(np.pi / n) ** 2, rel=1e-14)
    holds(gap, 4 / 3 * np.sin(np.pi / n) ** 2)


@pytest.mark.parametrize("n", [9, 1000, 10**5])
def test_directed_ring_keeps_its_digits_too(n):
    c = contraction(MixingMatrix.of(circulant(n, {0: 0.5, 1: 0.5})))
    assert c.loss == pytest.approx(2 * np.sin(np.pi / (2 * n)) ** 2, rel=1e-12)
    weighty = contraction(MixingMatrix.of(circulant(n, {0: 0.01, 1: 0.99})))  # nearly a pure shift
    exact = 0.99 * 0.01 * 4 * np.sin(np.pi / n) ** 2  # 1 - |lambda_1|²
    assert weighty.loss == pytest.approx(-np.expm1(np.log1p(-exact) / 2), rel=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_is_circulant_agrees_with_its_definition(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 20))
    offsets = rng.choice(n, size=int(rng.integers(1, n + 1)), replace=False)
    weights = rng.dirichlet(np.ones(len(offsets)))
    w = circulant(n, dict(zip(offsets.tolist(), weights, strict=True)))
    row = circulant_row(MixingMatrix.of(w))
    assert row is not None
    assert dict(zip(row[0].tolist(), row[1].tolist(), strict=True)) == pytest.approx(
        dict(zip(offsets.tolist(), weights, strict=True))
    )


def test_is_circulant_says_no():
    n = 12
    w = ring(n).toarray()
    assert is_circulant(MixingMatrix.of(w))
    assert not is_circulant(MixingMatrix.of(relabelled(sp.csr_array(w))))
    moved = w.copy()
    moved[5, 4], moved[5, 6] = 1 / 3 + 1e-12, 1 / 3 - 1e-12
    assert not is_circulant(MixingMatrix.of(moved, "row"))
    turned = w.copy()
    turned[5] = np.roll(turned[5], 2)
    assert not is_circulant(MixingMatrix.of(turned, "row"))


@pytest.mark.parametrize("w", [ring(9), circulant(9, {0: 0.5, 1: 0.5}), sp.csr_array(random_symmetric(9, 0))])
def test_eigenvalues(w):
    got = eigenvalues(MixingMatrix.of(w))
    for value in got:  # each is one, and together they have the right trace: |det| of the shifted matrix vanishes
        assert abs(np.linalg.det(w.toarray() - value * np.eye(9))) < 1e-12
    assert np.sum(got) == pytest.approx(w.toarray().trace(), abs=1e-12)
    assert got[0] == pytest.approx(1, abs=1e-12)


def test_eigenvalues_of_a_general_matrix_and_a_size_too_large():
    w = np.random.default_rng(0).dirichlet(np.ones(7), size=7)
    np.testing.assert_allclose(
        np.sort_complex(eigenvalues(MixingMatrix.of(w, "row"))), np.sort_complex(np.linalg.eigvals(w)), atol=1e-12
    )
    with pytest.raises(MixingError, match="computed up to n=5000, got n=5001; spectral_gap and contraction work"):
        eigenvalues(MixingMatrix.of(relabelled(ring(5001))))


@pytest.mark.parametrize("route", ["dense", "lanczos", "grounded"])
@pytest.mark.parametrize("seed", range(3))
def test_every_route_agrees_with_dense_numpy(route, seed):
    for w in (random_symmetric(60, seed), relabelled(torus(7)), relabelled(ring(50, 0.02)), geometric(80, seed)):
        gap = gap_of(w, route=route)
        holds(gap, dense_gap(w), oracle_error=1e-14)
        assert gap.value == pytest.approx(dense_gap(w), rel=1e-7)


@pytest.mark.parametrize(
    ("w", "method"),
    [
        (ring(20_000), "grounded"),
        (ring(3001, 1e-8), "factored"),
        (ring(3000, 0.0), "factored"),
        (circulant(4096, {0: 1 / 13} | {s * 2**k: 1 / 13 for k in range(6) for s in (1, -1)}), None),
        (circulant(5000, {0: 1 / 27} | {s * 2**k: 1 / 27 for k in range(13) for s in (1, -1)}), "lanczos"),
    ],
)
def test_relabelling_leaves_the_gap(w, method):
    """In their natural order these have an exact FFT, which the other routes must meet without it."""
    exact, gap = gap_of(w), gap_of(relabelled(w))
    assert exact.method == "fft"
    assert method is None or gap.method == method
    holds(gap, exact.value)


@pytest.mark.parametrize("a", [25, 90])
def test_relabelled_torus(a):
    gap = gap_of(relabelled(torus(a)))
    assert gap.method == ("grounded" if a == 90 else "lanczos")
    holds(gap, 4 / 5 * np.sin(np.pi / a) ** 2)


def test_geometric_graph():
    w = geometric(900)
    gap = gap_of(w)
    assert gap.method == "grounded"
    holds(gap, dense_gap(w), oracle_error=900 * np.finfo(float).eps)


def test_lower_and_upper_enclose():
    w = circulant(5000, {0: 1 / 27} | {s * 2**k: 1 / 27 for k in range(13) for s in (1, -1)})
    gap = gap_of(relabelled(w), tol=1e-2)
    assert gap.lower <= gap_of(w).value <= gap.upper
    assert 0 < gap.error <= 1e-2 * gap.value


def test_two_expanders_joined_by_one_link():
    """The second eigenvalue stands alone far above the rest: what an iteration may overlook."""
    half = sp.block_diag([random_symmetric(400, 1), random_symmetric(400, 2)]).tolil()
    half[0, 400] = half[400, 0] = 1e-3
    half[0, 0] -= 1e-3
    half[400, 400] -= 1e-3
    w = sp.csr_array(half)
    gap = gap_of(w)
    assert gap.value == pytest.approx(dense_gap(w), rel=1e-6)
    assert gap.value < 1e-5


def test_disconnected_is_exactly_zero():
    w = sp.block_diag([ring(400), ring(300)])
    assert gap_of(w).value == 0
    assert gap_of(w).method == "disconnected"
    assert gap_of(np.eye(4)).value == 0


def test_one_and_two_workers():
    assert gap_of([[1.0]]).value == 1
    assert contraction(MixingMatrix.of([[1.0]])).value == 0
    assert gap_of([[0.5, 0.5], [0.5, 0.5]]).value == 1
    assert gap_of([[0.9, 0.1], [0.1, 0.9]]).value == pytest.approx(0.2, abs=1e-15)
    assert gap_of([[0.1, 0.9], [0.9, 0.1]]).value == pytest.approx(0.2, abs=1e-15)


def test_sums_that_are_off_are_part_of_the_error():
    w = ring(600).toarray() * (1 + 3e-11)
    for matrix in (w, relabelled(sp.csr_array(w))):
        gap = gap_of(matrix)
        assert 3e-11 <= gap.error < 4e-11
        assert abs(gap.value - dense_gap(matrix)) <= gap.error + 1e-13


def test_negative_weights():
    w = random_symmetric(30, 0)
    w = 1.2 * w - 0.2 * np.eye(30)
    signed = MixingMatrix.of(w, signed=True)
    assert spectral_gap(signed).value == pytest.approx(dense_gap(w), abs=1e-13)
    grows = 3 * np.eye(600) - 2 * random_symmetric(600, 1)
    with pytest.raises(MixingError, match=r"lies above 1 \(negative weights\)"):
        spectral_gap(MixingMatrix.of(grows, signed=True), route="grounded")


def one_peer_ring(n):
    i = np.arange(n)
    rounds = []
    for peer in (i ^ 1, np.where(i % 2, i + 1, i - 1) % n):
        rounds.append(sp.csr_array((np.full(2 * n, 0.5), (np.r_[i, i], np.r_[i, peer])), shape=(n, n)))
    return rounds


@pytest.mark.parametrize("n", [6, 16, 600, 5000])
def test_alternating_ring_over_its_period(n):
    c = contraction(from_matrices(one_peer_ring(n)))
    assert c.value == pytest.approx(np.cos(2 * np.pi / n), abs=1e-12)
    assert c.loss == pytest.approx(2 * np.sin(np.pi / n) ** 2, rel=1e-7)
    gap = spectral_gap(from_matrices(one_peer_ring(n)))
    assert gap.value == pytest.approx(-np.expm1(np.log1p(-c.loss) / 2), rel=1e-12)


@pytest.mark.parametrize("n", [8, 12, 1000, 1024])
def test_one_peer_exponential_windows(n):
    hops = [2**k for k in range((n - 1).bit_length())]
    rounds = [circulant(n, {0: 0.5, -h: 0.5}) for h in hops]
    t = from_matrices(rounds)
    for start, steps in ((0, None), (1, 2), (2, len(hops))):
        got = contraction(t, start, steps)
        window = [rounds[k % len(hops)] for k in range(start, start + (steps or len(hops)))]
        assert got.value == pytest.approx(dense_contraction(*window), abs=1e-12)
    if n & (n - 1) == 0:
        assert contraction(t).value < 1e-15
        assert spectral_gap(t).value == 1


@pytest.mark.parametrize("n", [40, 700])
def test_products_without_any_structure(n):
    rng = np.random.default_rng(n)
    rounds = [0.5 * np.eye(n) + 0.5 * np.eye(n)[rng.permutation(n)] for _ in range(3)]
    t = from_matrices([sp.csr_array(w) for w in rounds])
    c = contraction(t)
    truth = dense_contraction(*rounds)
    assert abs(c.value - truth) <= c.error + 1e-14
    assert c.value == pytest.approx(truth, rel=1e-6)
    w = rounds[1] @ rounds[0]
    static = contraction(MixingMatrix.of(sp.csr_array(w)))
    assert static.value == pytest.approx(dense_contraction(w), rel=1e-6)


def test_a_product_too_dense_to_square_is_applied_round_by_round():
    n = 600
    rng = np.random.default_rng(0)
    rounds = [0.6 * np.eye(n) + 0.4 * np.eye(n)[rng.permutation(n)] for _ in range(8)]
    c = contraction(from_matrices([sp.csr_array(w) for w in rounds]))
    assert c.method == "lanczos"
    assert abs(c.value - dense_contraction(*rounds)) <= c.error


@pytest.mark.parametrize("n", [30, 600])
def test_column_stochastic_contraction_is_literal(n):
    w = np.random.default_rng(0).dirichlet(np.ones(n) / n, size=n).T
    c = contraction(MixingMatrix.of(w, "column"))
    assert c.value == pytest.approx(dense_contraction(w), rel=1e-9)
    assert c.value > 1
    assert spectral_gap(MixingMatrix.of(w, "column")).value == pytest.approx(1 - c.value, rel=1e-9)


@pytest.mark.parametrize("gamma", [0.0, 0.1, 0.7, 1.0])
@pytest.mark.parametrize("n", [12, 700])
def test_adaptive_consensus_shifts_every_route(gamma, n):
    for w in (ring(n), relabelled(ring(n))):
        values = np.sort(1 - gamma * (1 - np.linalg.eigvalsh(w.toarray())))
        truth = 1 - max(abs(values[0]), abs(values[-2]))
        form = ClosedForm(eigenvalues=lambda w=w: np.linalg.eigvalsh(w.toarray()), source="a test")
        plain = from_matrices(w, may_disconnect=True)
        told = Topology("told", n, plain.rounds, closed_form=form)
        for t in (plain, told):
            assert spectral_gap(t.adapted(gamma)).value == pytest.approx(truth, abs=1e-12)
            assert contraction(t.adapted(gamma)).value == pytest.approx(1 - truth, abs=1e-12)
    directed = from_matrices(circulant(n, {0: 0.5, 1: 0.5}))
    shifted = directed.adapted(gamma)
    assert contraction(shifted).value == pytest.approx(dense_contraction(shifted[0].dense()), abs=1e-12)


def test_closed_forms_come_first_and_can_be_set_aside():
    w = MixingMatrix.of(ring(10))
    t = Topology("told", 10, (w,), closed_form=ClosedForm(0.25, 0.75, None, "a deliberate lie"))
    assert spectral_gap(t).value == 0.25
    assert spectral_gap(t).method == "closed form"
    assert spectral_gap(t, route="dense").value == pytest.approx(dense_gap(ring(10)), abs=1e-13)
    period = from_matrices([ring(10), ring(10, 0.5)])
    told = Topology("told", 10, period.rounds, closed_form=ClosedForm(contraction=0.5))
    assert contraction(told).value == 0.5
    assert spectral_gap(told).value == pytest.approx(1 - 0.5**0.5)
    assert contraction(told, 1).value == pytest.approx(dense_contraction(ring(10, 0.5), ring(10)), abs=1e-13)


@pytest.mark.parametrize("n", [10, 600])
def test_drawn_schedules_have_a_mean_square_contraction(n):
    """Random gossip on a ring: E[W] and E[WᵀW] agree, since every draw is a projection."""
    edge_list = [(i, (i + 1) % n) for i in range(n)]

    def pair(t):
        i, j = edge_list[int(np.random.default_rng(t).integers(n))]
        w = sp.lil_array(sp.eye_array(n))
        w[i, i] = w[j, j] = w[i, j] = w[j, i] = 0.5
        return MixingMatrix.of(sp.csr_array(w))

    mean = circulant(n, {0: 1 - 1 / n, 1: 0.5 / n, -1: 0.5 / n})
    t = Topology("gossip", n, draw=pair, moments=Moments(mean, mean))
    c = contraction(t)
    assert c.kind == "mean square per step"
    assert c.value == pytest.approx(np.sqrt(1 - 2 / n * np.sin(np.pi / n) ** 2), rel=1e-12)
    assert spectral_gap(t).value == pytest.approx(1 - c.value, abs=1e-12)
    window = contraction(t, 3, 2)
    assert window.kind == "product"
    assert window.value == pytest.approx(dense_contraction(pair(3).dense(), pair(4).dense()), abs=1e-12)
    assert contraction(t.adapted(0.5)).value == pytest.approx(
        np.sqrt(1 - 2 / n * np.sin(np.pi / n) ** 2 * 0.75), rel=1e-9
    )


def test_windows():
    t = from_matrices([ring(8), ring(8, 0.5)])
    assert contraction(t, steps=0).value == 1
    with pytest.raises(MixingError, match="at least 0 steps, got -1"):
        contraction(t, steps=-1)
    static = contraction(from_matrices(ring(8)), 0, 7)
    assert static.value == pytest.approx((1 / 3 + 2 / 3 * np.cos(np.pi / 4)) ** 7, rel=1e-12)


def test_refusals():
    drawn = from_function(lambda t: ring(6), 6, name="mine")
    with pytest.raises(MixingError, match=r"'mine' is drawn at every step and states no moments .* give a window"):
        contraction(drawn)
    odd = Topology("odd", 6, draw=lambda t: MixingMatrix.of(ring(6)), moments=Moments(ring(6), np.eye(6) * 0.9))
    with pytest.raises(MixingError, match=r"'odd': the rounds are not doubly stochastic"):
        contraction(odd)
    with pytest.raises(MixingError, match="'custom' is not circulant: the FFT does not give its spectrum"):
        spectral_gap(MixingMatrix.of(random_symmetric(12, 0)), route="fft")
    with pytest.raises(MixingError, match="'custom' is not circulant: the FFT does not give its spectrum"):
        contraction(from_matrices([random_symmetric(12, 0), ring(12).toarray()]), route="fft")


def test_lanczos_stops_on_an_invariant_subspace():
    w = sp.csr_array(metropolis([(0, i) for i in range(1, 40)], 40))  # a star: three eigenvalues
    found = lanczos(lambda v: w @ v, 40, converged=lambda r: False, steps=30)
    assert found.steps <= 3
    assert found.high == pytest.approx(1 - 1 / 40, abs=1e-12)
    assert found.low == pytest.approx(0, abs=1e-12)


def test_a_separator_is_seen_through_trees():
    n = 2**12 - 1
    tree = metropolis([((i - 1) // 2, i) for i in range(1, n)], n)
    assert separator(tree) == 1
    assert separator(relabelled(ring(1000))) <= 2
    assert 30 <= separator(relabelled(torus(30))) <= 80
    assert separator(sp.csr_array(random_symmetric(2000, 0))) > 300


def test_a_factor_that_would_fill_in_is_not_tried(monkeypatch):
    monkeypatch.setattr("dissensus.theory.spectrum_large.WIDEST", 5)
    w = relabelled(torus(25))
    top, _ = edges(w, tol=1e-6)
    assert top.method == "lanczos"
    assert abs(top.value - 4 / 5 * np.sin(np.pi / 25) ** 2) <= top.error
