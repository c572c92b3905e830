"""Every algorithm of the registry with the optimizer, the topologies and the learning rates it is tried with."""

from functools import partial
from typing import Any

import numpy as np
import torch

from dissensus.theory import Topology, from_matrices
from dissensus.theory import topology as topology_named

LR = 0.1
BOTH, STATIC = ("ring", "one-peer-exponential"), ("ring",)
SPECS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "allreduce": ({"name": "allreduce"}, STATIC),
    "awc": ({"name": "dsgd", "order": "awc"}, BOTH),
    "awc-less": ({"name": "dsgd", "order": "awc", "gamma": 0.6}, STATIC),
    "atc": ({"name": "dsgd", "order": "atc"}, BOTH),
    "cta": ({"name": "dsgd", "order": "cta", "gamma": 0.8}, BOTH),
    "dsgd-ac": ({"name": "dsgd-ac", "p": 2.0}, BOTH),
    "dsgd-ac-late": ({"name": "dsgd-ac", "start": 10, "gamma_min": 0.1, "order": "atc"}, STATIC),
    "dadam": ({"name": "dadam"}, BOTH),
    "local-sgd": ({"name": "local-sgd", "period": 7}, STATIC),
    "gradient-tracking": ({"name": "gradient-tracking"}, BOTH),
    "qg-dsgdm": ({"name": "qg-dsgdm", "nesterov": True}, BOTH),
    "sgp": ({"name": "sgp"}, (*BOTH, "push")),
    "choco-sgd": ({"name": "choco-sgd", "ratio": 0.3}, STATIC),
    "choco-sgd-random": ({"name": "choco-sgd", "compressor": "random-k", "order": "compress-first"}, STATIC),
    "sam": ({"name": "sam", "rho": 0.1}, STATIC),
    "sam-awc": ({"name": "sam", "rho": 0.1, "order": "awc"}, BOTH),
    "sam-cta": ({"name": "sam", "rho": 0.1, "order": "cta"}, STATIC),
    "avg-sam": ({"name": "avg-sam", "rho": 0.1, "draws": 2}, STATIC),
    "avg-sam-atc": ({"name": "avg-sam", "antithetic": True, "law": "gaussian", "order": "atc"}, BOTH),
}
WITH_CLOSURE = ("sam", "avg-sam")
"""They take gradients at points of their own."""


def rate(t: int) -> float:
    """Relative to LR: up, then down."""
    return 0.2 + 0.8 * t / 20 if t < 20 else 1.0 - 0.9 * (t - 20) / 80


def optimizer_of(spec: dict[str, Any]) -> Any:
    if spec["name"] == "dadam":
        return partial(torch.optim.Adam, lr=LR)
    momentum = 0.0 if spec["name"] == "qg-dsgdm" else 0.9
    return partial(torch.optim.SGD, lr=LR, momentum=momentum, weight_decay=0.01)


def schedule_of(topology: str, n: int = 4) -> Topology:
    if topology != "push":
        return topology_named(topology, n)
    rounds = []
    for hop in (1, 2):  # two rounds in which some push more than others: columns sum to one, rows do not
        w = np.eye(n) + np.roll(np.eye(n), hop, 0)
        w[0, 2] += 1.0
        w[3, 1] += 2.0
        rounds.append(w / w.sum(axis=0))
    return from_matrices(rounds, name="push", promise="column")
