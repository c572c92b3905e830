r"""A Markov source of characters: transitions of a given order, its stationary law, its entropies, and text from it.

The next character depends on the last k. With the stationary law of k characters, the least loss of predicting the
next one from the m that came before it, in nats, is the conditional entropy

$$ h_m = H(X_m \mid X_0, \dots, X_{m-1}), \qquad h_0 \ge h_1 \ge \dots \ge h_k = h_{k+1} = \dots = h, $$

whose limit h, the entropy rate, is reached once k characters are seen. All of these are finite sums. Reference: Cover
and Thomas, Elements of Information Theory, section 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dissensus.experiments.errors import ConfigError

LARGEST = 1 << 20
"""Transitions (alphabet to the power of order + 1) that are kept in memory."""
_SETTLED = 1e-14
_ROUNDS = 10_000


@dataclass(frozen=True, eq=False)
class MarkovSource:
    """A stationary source with transitions P of shape (V, ..., V, V): k characters, then the next one."""

    transitions: np.ndarray

    @classmethod
    def drawn(
        cls, generator: np.random.Generator, characters: int, order: int, concentration: float, floor: float
    ) -> MarkovSource:
        """Every row from a Dirichlet law, of which a share `floor` is given to all characters alike.

        A small concentration makes most transitions rare. The floor makes every character follow every context, so the
        stationary law is one and is reached geometrically.
        """
        if characters ** (order + 1) > LARGEST:
            raise ConfigError(
                f"a source of order {order} over {characters} characters has {characters ** (order + 1)} transitions, "
                f"more than {LARGEST}: use a lower order or fewer characters"
            )
        rows = generator.dirichlet(np.full(characters, concentration), size=characters**order)
        rows = (1.0 - floor) * rows + floor / characters
        return cls((rows / rows.sum(axis=1, keepdims=True)).reshape((characters,) * (order + 1)))

    @property
    def order(self) -> int:
        """How many characters the next one depends on."""
        return self.transitions.ndim - 1

    @property
    def characters(self) -> int:
        """The size V of the alphabet."""
        return self.transitions.shape[-1]

    @cached_property
    def stationary(self) -> np.ndarray:
        """The law of k characters in a row, (V, ..., V)."""
        law = np.full(self.transitions.shape[:-1], 1.0 / self.characters**self.order)
        for _ in range(_ROUNDS):
            new = (law[..., None] * self.transitions).sum(axis=0)
            new /= new.sum()
            if np.abs(new - law).sum() < _SETTLED:
                return new
            law = new
        raise ConfigError(f"the source does not settle in {_ROUNDS} steps: use a larger floor or concentration")

    @cached_property
    def conditional_entropies(self) -> np.ndarray:
        """h_0, ..., h_k in nats."""
        joint = self.stationary[..., None] * self.transitions
        blocks = [_entropy(joint.sum(axis=tuple(range(m, self.order + 1)))) for m in range(self.order + 1)]
        return np.diff([*blocks, _entropy(joint)])

    @property
    def entropy_rate(self) -> float:
        """h, the least loss per character with a long memory."""
        return float(self.conditional_entropies[-1])

    def least_loss(self, context: int) -> float:
        """The least mean loss over a block: place j of `context` is predicted from the j + 1 characters up to it."""
        seen = np.minimum(1 + np.arange(context), self.order)
        return float(self.conditional_entropies[seen].mean())

    def text(self, generator: np.random.Generator, blocks: int, length: int) -> np.ndarray:
        """Independent stationary texts, (blocks, length)."""
        first = _drawn(generator, np.broadcast_to(self.stationary.ravel(), (blocks, self.stationary.size)))
        out = np.empty((blocks, max(length, self.order)), dtype=np.int64)
        out[:, : self.order] = np.stack(np.unravel_index(first, self.stationary.shape), axis=1)
        for j in range(self.order, length):
            past = tuple(out[:, j - self.order : j].T)
            out[:, j] = _drawn(generator, self.transitions[past])
        return out[:, :length]


def _entropy(law: np.ndarray) -> float:
    p = law[law > 0]
    return float(-(p * np.log(p)).sum())


def _drawn(generator: np.random.Generator, laws: np.ndarray) -> np.ndarray:
    """One draw from every row."""
    reached = np.cumsum(laws, axis=1)
    return np.minimum((reached < generator.random((len(laws), 1)) * reached[:, -1:]).sum(axis=1), laws.shape[1] - 1)
