r"""What is asked of a model on a data set: its loss and its score, both from one forward pass.

- classes: scores (b, C) for labels (b,), the mean cross-entropy of a batch.
- tokens: scores (b, L, V) for the next characters (b, L), the mean cross-entropy over all b L of them.

With a ridge the loss is $\frac1b \sum_i \ell_i(w) + \frac{\lambda}{2} \|w\|^2$ over all parameters, biases
included: what makes logistic regression strongly convex is then part of what is measured, not of the optimizer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dissensus.experiments.errors import ConfigError
from dissensus.experiments.models import cross_entropy

Batch = tuple[Tensor, Tensor]


class Score(NamedTuple):
    """Sums over a batch, so that batches of different sizes add up."""

    loss: float
    right: int
    answers: int
    """How many there are: one per sample, or one per character."""


@dataclass(frozen=True)
class Task:
    """The loss and the score of a model on (inputs, targets)."""

    tokens: bool = False
    ridge: float = 0.0

    def loss(self, module: nn.Module, batch: Batch) -> Tensor:
        """The mean loss of a batch, with the ridge."""
        if self.tokens:
            scores, y = self._answers(module, batch)
            value = nn.functional.cross_entropy(scores, y)
        else:
            value = cross_entropy(module, batch)
        return value + self.penalty(module) if self.ridge else value

    def penalty(self, module: nn.Module) -> Tensor | float:
        """Half the ridge times the squared norm of all parameters."""
        if not self.ridge:
            return 0.0
        return 0.5 * self.ridge * torch.stack([p.square().sum() for p in module.parameters()]).sum()

    def score(self, module: nn.Module, batch: Batch) -> Score:
        """The sum of losses without the ridge, and how many answers are right."""
        scores, y = self._answers(module, batch)
        loss = float(nn.functional.cross_entropy(scores, y, reduction="sum"))
        return Score(loss, int((scores.argmax(dim=1) == y).sum()), y.numel())

    def check(self, what: str, module: nn.Module, batch: Batch, classes: int) -> None:
        """Refuses a model whose scores are not of the shape that the targets need: `what` names model and data."""
        x, y = batch
        was = module.training
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                scores = module.eval()(x)
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            raise ConfigError(f"{what}: the model cannot read {_inputs(x)} ({_first(error)}){self._advice()}") from None
        finally:
            module.train(was)
        wanted = (*y.shape, classes)
        if tuple(scores.shape) != wanted:
            raise ConfigError(
                f"{what}: {len(x)} samples need scores of shape {wanted}, the model gives {tuple(scores.shape)}"
                f"{self._advice()}"
            )

    def _answers(self, module: nn.Module, batch: Batch) -> Batch:
        scores, y = module(batch[0]), batch[1]
        return (scores.flatten(0, 1), y.flatten()) if self.tokens else (scores, y)

    def _advice(self) -> str:
        return "; model.name = 'gpt' reads characters" if self.tokens else ""


def _inputs(x: Tensor) -> str:
    return f"{'numbers' if x.is_floating_point() else 'characters'} of shape {tuple(x.shape[1:])}"


def _first(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
