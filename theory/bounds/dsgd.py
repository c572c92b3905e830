"""What the descent bounds of decentralized SGD have in common: how their facts are named and when they hold."""

from __future__ import annotations

from typing import Any

from dissensus.theory.bounds.base import Assumption
from dissensus.theory.bounds.conditions import (
    EXPANDS_NOT,
    ORDER,
    SINGLE,
    nonnegative,
    positive,
    whole,
)
from dissensus.theory.bounds.memory import geometric

SMOOTH = positive("smoothness", "L")
LR = positive("lr", r"\alpha")
STEPS = whole("steps", "K", 1)
DISTANCE = nonnegative("distance", r"\lVert x_0-x^\star\rVert")
EXCESS = nonnegative("excess", r"F(x_0)-\inf F")
NOISE = nonnegative("noise", r"\sigma^2")
HETEROGENEITY = nonnegative("heterogeneity", r"\zeta^2")

WITHIN_MEMORY = Assumption[Any](
    "step size against memory",
    r"\alpha L\,\Gamma < 1 \text{ with } \Gamma = o\,\tfrac{1-\lambda^{K-1}}{1-\lambda},\ o = 1 \text{ (awc)},\ \lambda"
    r" \text{ (atc)}; \text{ for all } K: \alpha < \tfrac{1-\lambda}{oL}",
    lambda p: (
        p.order in ("awc", "atc")
        and p.lr * p.smoothness * geometric(p.contraction, p.steps, p.order, p.size).gain < 1.0
    ),
)
"""Gradients answer to disagreement by less than mixing removes of it."""

CENTRAL = Assumption[Any]("step size", r"\alpha \le 1/L", lambda p: p.lr * p.smoothness <= 1.0)
"""What gradient descent itself asks for."""

BASIC: tuple[Assumption[Any], ...] = (SINGLE, SMOOTH, LR, STEPS)
STATIC: tuple[Assumption[Any], ...] = (*BASIC, EXPANDS_NOT, ORDER)
