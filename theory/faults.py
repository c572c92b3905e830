r"""Links that fail and workers that are away: a topology with holes, which is a topology again.

What is not delivered at a step goes back to a self weight, so that a round stays what its promise says:

| what is lost | where its weight goes | what a round keeps |
|---|---|---|
| a link, both ways, of a symmetric round | either end, to its own | doubly stochastic: the mean, exactly |
| `keep="row"`: a message, or a directed link | $W_{ij}$ to the receiver i | consensus (mean: in expectation) |
| `keep="column"`: the same | $W_{ij}$ to the sender j, who keeps it | the sum: what push-sum needs |

A directed doubly stochastic round cannot keep both sums when it loses a message, so one has to be named. With units u
(links or messages) that arrive independently with probability $q_u=1-p_u$ the round is $I+\sum_u B_uA_u$, and

$$ E[W'] = I+\textstyle\sum_u q_uA_u \quad(=(1-p)W+pI), \qquad
   E[W'^\top W'] = E[W']^\top E[W'] + \textstyle\sum_u p_uq_u\,A_u^\top A_u . $$

Links of a symmetric W have $A_u^\top A_u = 2W_{ij}^2(e_i-e_j)(e_i-e_j)^\top$. Where messages of doubly stochastic
rounds are lost under `row`, the mean of the workers is a martingale, $E[\bar x^+|x]=\bar x$, with the variance
$p(1-p)n^{-2}\sum_{ij}W_{ij}^2\|x_i-x_j\|^2$ per step, none in consensus. In bursts what is lost depends on what was
lost before, and it is no martingale any more. `column` needs a sender that learns what did not arrive. All ours.

Which link fails at step t is a function of (seed, t, link) and of nothing else: of no other link, no layout, and not of
the order in which steps are asked for. Bursts are those of a two-state chain (Gilbert 1960, Elliott 1963), driven by
one number per step, $\text{down}_t = u_t < P(\text{down}_t | \text{down}_{t-1})$: wherever $u_t$ decides regardless of
the past the chain starts afresh, so a state is found by looking back to the last such step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from dissensus.theory.errors import MixingError, nearest
from dissensus.theory.mixing import MixingMatrix, Stochasticity
from dissensus.theory.topology import ClosedForm, Moments, Topology

Scheme = Literal["link", "message"]
SCHEMES = ("link", "message")
WhoIsThere = Callable[[int], np.ndarray]
"""Step -> bool array (n,): which workers take part. A pure function."""

REMEMBERED = 32
"""For so many sets of links the last state is kept, so that going through the steps in order never looks back far."""


def dropped(
    topology: Topology,
    probability: float | np.ndarray,
    *,
    seed: int = 0,
    scheme: Scheme = "link",
    keep: Literal["row", "column"] | None = None,
    burst: float | None = None,
) -> Topology:
    """The topology with links or messages that fail at random; see the module for what stays true.

    Args:
        topology: any schedule.
        probability: the share of steps at which a link is down, or an (n, n) array of it (row = receiver).
        seed: decides who fails when; two wrappers around one topology need two seeds.
        scheme: `link` loses both directions together, `message` one at a time.
        keep: for rounds that cannot keep both sums: `row` (consensus) or `column` (the sum of all).
        burst: how many steps an outage takes on average; independent steps unless given.
    """
    n, what = topology.size, f"topology {topology.name!r} with drops"
    if scheme not in SCHEMES:
        raise MixingError(f"{what}: unknown scheme {scheme!r}{nearest(str(scheme), SCHEMES)}")
    p = _shares(what, probability, n, scheme)
    outages = Outages(seed, f"dropped {scheme}s", burst)
    outages.check(what, p)
    promise = _promise_left(what, topology, keep, together=scheme == "link")
    if not p.any():
        return topology

    def draw(t: int) -> MixingMatrix:
        w = topology[t]
        links = _Links.of(w)
        one, other = links.receiver, links.sender
        if scheme == "link":
            one, other = np.minimum(one, other), np.maximum(one, other)
        down = outages(t, p if p.ndim == 0 else p[links.receiver, links.sender], one, other)
        return links.without(down, promise, t)

    moments = None
    if topology.is_static and burst is None:
        moments = _moments_of_drops(_Links.of(topology[0]), p, promise, together=scheme == "link")
    about = {"drop": probability if p.ndim == 0 else "per link", "scheme": scheme, "seed": seed}
    about |= {} if burst is None else {"burst": burst}
    called = f"{topology.name}(drop={probability:g})" if p.ndim == 0 else f"{topology.name}(drop per link)"
    return _schedule(topology, draw, called, {"faults": about}, moments)


def absent(topology: Topology, participation: WhoIsThere, *, keep: Literal["row", "column"] | None = None) -> Topology:
    r"""The topology without the links of workers that are away; their row and column are those of the identity.

    A symmetric round stays doubly stochastic, whoever is away: the mean over *all* workers is kept, and so is the mean
    over those that are there. `keep` is as in `dropped`. Where the participation states independent `shares`
    $a_i=P(\text{i is there})$ and the topology is one symmetric round, the moments are exact.
    """
    n, what = topology.size, f"topology {topology.name!r} with absent workers"
    promise = _promise_left(what, topology, keep, together=True)

    def draw(t: int) -> MixingMatrix:
        there = present(participation, t, n)
        links = _Links.of(topology[t])
        return links.without(~(there[links.receiver] & there[links.sender]), promise, t)

    moments, shares = None, getattr(participation, "shares", None)
    if shares is not None and topology.is_static and topology.is_symmetric:
        moments = _moments_of_absence(topology[0], np.asarray(shares, dtype=np.float64))
    about = repr(participation) if is_dataclass(participation) else "a function of the step"
    return _schedule(topology, draw, f"{topology.name}(absent)", {"absent": about}, moments)


def present(participation: WhoIsThere, t: int, n: int) -> np.ndarray:
    """Who is there at step t: the schedule's answer, refused unless it is one truth value per worker."""
    there = np.asarray(participation(t))
    if there.dtype != np.bool_ or there.shape != (n,):
        raise MixingError(
            f"a participation gives one truth value per worker, an array of {n} bools, but at step {t} it gave "
            f"{there.dtype} of shape {there.shape}"
        )
    return there


@dataclass(frozen=True, eq=False)
class Outages:
    """What is down when: a function of (seed, step, key) for keys made of whole numbers, with outages in bursts."""

    seed: int
    purpose: str
    burst: float | None = None
    """Mean length of an outage in steps; `None` for independent steps."""
    _last: dict[bytes, tuple[int, np.ndarray]] = field(default_factory=dict, init=False, repr=False)

    def check(self, what: str, share: np.ndarray) -> None:
        """Refuses a seed below zero, and bursts that are shorter than outages of independent steps are."""
        if self.seed < 0:
            raise MixingError(f"{what}: the seed must be at least 0, got {self.seed}")
        worst = float(np.max(share, initial=0.0))
        if self.burst is not None and not (worst < 1.0 and 1.0 / (1.0 - worst) <= self.burst < np.inf):
            least = f"at least {1.0 / (1.0 - worst):g} steps" if worst < 1.0 else "unknown where nothing ever arrives"
            raise MixingError(
                f"{what}: outages that take a share of {worst:g} of all steps are {least} long on average, "
                f"got burst={self.burst:g}"
            )

    def __call__(self, t: int, share: np.ndarray | float, *key: np.ndarray) -> np.ndarray:
        """Which of the keys are down at step t; `share` is the share of steps at which one is."""
        if self.burst is None:
            return chance(self.seed, self.purpose, t, *key) < share
        share = np.broadcast_to(share, key[0].shape)
        stays, begins = 1.0 - 1.0 / self.burst, share / (1.0 - share) / self.burst
        name = hashlib.blake2b(b"".join(np.ascontiguousarray(k).tobytes() for k in (*key, share))).digest()
        then, before = self._last.get(name, (-1, None))
        down, unknown = np.zeros(share.shape, dtype=bool), np.arange(len(share))
        for s in range(t, -1, -1):
            if s == then and before is not None:
                down[unknown] = before[unknown]
                break
            u = chance(self.seed, self.purpose, s, *(k[unknown] for k in key))
            if s == 0:  # the chain starts as it goes on: in its stationary law
                down[unknown] = u < share[unknown]
                break
            falls = u < begins[unknown]
            down[unknown[falls]] = True
            unknown = unknown[~falls & (u < stays)]
            if len(unknown) == 0:
                break
        if len(self._last) >= REMEMBERED:
            self._last.clear()
        self._last[name] = (t, down)
        return down.copy()


def chance(seed: int, purpose: str, t: int, *key: np.ndarray) -> np.ndarray:
    """One number in [0, 1) for every key, from a hash of seed, purpose, step and key.

    The mixing function is the finalizer of SplitMix64 (Steele, Lea and Flood 2014), applied once per word of the key.
    """
    head = hashlib.blake2b(repr((seed, purpose, int(t))).encode(), digest_size=8).digest()
    h = np.full(np.broadcast_shapes(*(k.shape for k in key)), int.from_bytes(head, "little"), dtype=np.uint64)
    for word in key:
        h = h + word.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x9E3779B97F4A7C15)
        h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        h = h ^ (h >> np.uint64(31))
    return (h >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclass(frozen=True, eq=False)
class _Links:
    """The weights of a round, those between workers apart from what a worker keeps of itself."""

    receiver: np.ndarray
    sender: np.ndarray
    weight: np.ndarray
    own: np.ndarray
    signed: bool

    @classmethod
    def of(cls, w: MixingMatrix) -> _Links:
        coo = w.weights.tocoo()
        receiver, sender = (c.astype(np.int64) for c in coo.coords)
        between = receiver != sender
        return cls(receiver[between], sender[between], coo.data[between], w.weights.diagonal(), w.signed)

    def thinned(self, share: Any, promise: Stochasticity) -> sp.csr_array:
        """The matrix in which this share of every weight has gone back to a self weight."""
        n, lost = len(self.own), share * self.weight
        keeper = self.sender if promise == "column" else self.receiver
        own = self.own + _summed(keeper, lost, n)
        # a worker whose links are all down keeps itself to the bit
        own[np.bincount(keeper, np.broadcast_to(share, keeper.shape) != 1.0, n) == 0] = 1.0
        worker = np.arange(n)
        ends = (np.concatenate([self.receiver, worker]), np.concatenate([self.sender, worker]))
        return sp.csr_array((np.concatenate([self.weight - lost, own]), ends), shape=(n, n))

    def without(self, down: np.ndarray, promise: Stochasticity, t: int) -> MixingMatrix:
        try:
            return MixingMatrix(self.thinned(down.astype(np.float64), promise), promise, signed=self.signed)
        except MixingError as error:
            raise MixingError(f"step {t}, after what was lost: {error}") from None


def _summed(where: np.ndarray, value: np.ndarray, n: int) -> np.ndarray:
    """The sums of the values by place; numpy's own forgets that they are real where there are none."""
    return np.bincount(where, value, n).astype(np.float64)


def _promise_left(what: str, topology: Topology, keep: str | None, *, together: bool) -> Stochasticity:
    """What the rounds still keep; refused where that is less than the topology promised, and nobody asked for it."""
    if keep not in (None, "row", "column"):
        raise MixingError(f"{what}: keep must be 'row' or 'column', got {keep!r}")
    promised = topology.promise
    if promised == "doubly":
        if together and topology.is_symmetric:
            return "doubly"
        if keep is None:
            why = "one direction alone is lost" if not together else "its rounds are not symmetric"
            raise MixingError(
                f"{what}: {why}, so it cannot stay doubly stochastic; say keep='column' to keep the sum of all workers "
                "(push-sum), keep='row' to keep consensus (the mean then only in expectation), or lose whole links of "
                "a symmetric topology"
            )
        return "row" if keep == "row" else "column"
    if keep not in (None, promised):
        raise MixingError(f"{what}: it is {promised} stochastic, so keep={keep!r} cannot hold; say keep={promised!r}")
    return promised


def _shares(what: str, probability: float | np.ndarray, n: int, scheme: str) -> np.ndarray:
    p = np.asarray(probability, dtype=np.float64)
    if p.shape not in ((), (n, n)):
        raise MixingError(f"{what}: the probability must be a number or of shape ({n}, {n}), got shape {p.shape}")
    if not ((p >= 0) & (p <= 1)).all():
        raise MixingError(f"{what}: a probability must lie in [0, 1], got {p[~((p >= 0) & (p <= 1))].flat[0]:g}")
    if scheme == "link" and p.ndim and not np.array_equal(p, p.T):
        i, j = np.argwhere(p != p.T)[0]
        raise MixingError(
            f"{what}: a link is lost both ways, but the probabilities of {i} and {j} differ by direction; "
            "say scheme='message'"
        )
    return p


def _schedule(
    topology: Topology, draw: Callable[[int], MixingMatrix], name: str, about: dict[str, Any], moments: Moments | None
) -> Topology:
    parameters = {**topology.parameters, **about}
    return replace(
        topology, name=name, rounds=(), draw=draw, parameters=parameters, closed_form=ClosedForm(), moments=moments
    )


def _moments_of_drops(links: _Links, p: np.ndarray, promise: Stochasticity, *, together: bool) -> Moments:
    n, i, j, w = len(links.own), links.receiver, links.sender, links.weight
    lost = p[i, j] if p.ndim else p
    mean = links.thinned(lost, promise)
    spread = lost * (1.0 - lost) * w * w
    if promise == "column":
        square = sp.csr_array(mean.T @ mean + sp.diags_array(2.0 * _summed(j, spread, n)))
        if together:
            there = sp.csr_array((w, (i, j)), shape=(n, n))
            both = sp.csr_array((lost * (1.0 - lost) * w, (i, j)), shape=(n, n)).multiply(there.T)
            square = sp.csr_array(square - 2.0 * both)
        return Moments(mean, square)
    between = sp.csr_array((spread, (i, j)), shape=(n, n))
    at_ends = _summed(i, spread, n) + _summed(j, spread, n)
    return Moments(mean, sp.csr_array(mean.T @ mean + sp.diags_array(at_ends) - between - between.T))


def _moments_of_absence(w: MixingMatrix, a: np.ndarray) -> Moments:
    r"""With $W'=I-L'$, entry by entry, from $E[A_iA_jA_kA_l]$ = the product over the *distinct* workers among them."""
    n = w.size
    off = sp.csr_array(w.weights - sp.diags_array(w.weights.diagonal()))
    there, squared = sp.diags_array(a), off.multiply(off)
    heard = off @ a
    pairs = sp.csr_array(there @ off @ there)
    mean_l = sp.csr_array(sp.diags_array(a * heard) - pairs)
    through = sp.csr_array(there @ (off @ there @ off) @ there)
    through = through - sp.diags_array(through.diagonal())
    at = sp.diags_array(heard)
    once = sp.csr_array(there @ squared @ there)
    rest = sp.diags_array(1.0 - a)
    off_diagonal = through - (at @ pairs + pairs @ at) - (rest @ once + once @ rest)
    diagonal = a * (heard**2 + 2.0 * (squared @ a) - squared @ (a * a))
    eye = sp.eye_array(n, format="csr")
    square = eye - 2.0 * mean_l + off_diagonal + sp.diags_array(diagonal)
    return Moments(sp.csr_array(eye - mean_l), sp.csr_array(square))
