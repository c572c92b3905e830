"""Which settings the distributed engine is measured in, and what it is held to in each.

*loopback*: messages burn the cores that compute, so nothing can be hidden and the sum of both is the yardstick.
*bandwidth*, *latency*: the wire of a network of namespaces is what takes time, and the longer of both is.
*noise*: computing takes longer for one worker now, for another then; whoever waits for all waits for the slowest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from dissensus.experiments.bench.distributed_limits import Limit
from dissensus.experiments.bench.distributed_models import MODELS

Scale = Literal["small", "full"]

EXCHANGES = ("exchange, whole", "exchange, 4 MB")
VARIANTS = ("ours", "ours, fused", "ours, bfloat16", "ours, fused, bfloat16")
PEERS = ("ddp", "decent-dp")
DDPS = ("ddp", "ddp, small buckets")

COPIES = {"exchange": 2, "all-reduce": 1, "local": 2, "ours": 4, "ddp": 3, "decent-dp": 3}
"""Copies of the parameters that a contender keeps, about; an Adam has two more."""


@dataclass(frozen=True)
class Setting:
    """Who runs what on which network, and the limits."""

    part: str
    size: int
    model: str
    optimizer: str
    schedule: str
    contenders: tuple[str, ...]
    limits: tuple[Limit, ...]
    rate: str | None = None
    delay_ms: float = 0.0
    seconds: float = 0.0
    sigma: float = 0.0
    congestion: str | None = None
    """TCP's congestion control, if it is not what networks have by default."""

    @property
    def shaped(self) -> bool:
        """Whether it needs a network of its own."""
        return self.rate is not None or self.delay_ms > 0

    @property
    def name(self) -> str:
        """In words."""
        words = [f"{self.model}, n={self.size}, {self.optimizer}, {self.schedule}"]
        words += [self.rate] if self.rate else []
        words += [self.congestion] if self.congestion else []
        words += [f"{self.delay_ms:g} ms away"] if self.delay_ms else []
        words += [f"{1000 * self.seconds:g} ms to compute"] if self.seconds else []
        words += [f"noise {self.sigma:g}"] if self.sigma else []
        return ", ".join(words)

    @property
    def bytes(self) -> int:
        """Memory of all processes together, about."""
        adam = 2 if self.optimizer == "adam" else 0
        copies = (COPIES[c.split(",")[0]] + adam * (not c.startswith(("exchange", "all-"))) for c in self.contenders)
        return 4 * MODELS[self.model].d * self.size * sum(copies)


def settings(scale: Scale) -> Iterator[Setting]:
    """All of them, part by part; a limit on who does not run here is left out."""
    for part in (_loopback, _bandwidth, _latency, _noise):
        for setting in part(scale):
            yield replace(setting, limits=tuple(limit for limit in setting.limits if limit.who in setting.contenders))


def _loopback(scale: Scale) -> Iterator[Setting]:
    few = [("0.1M", 4, "sgd", "ring"), ("0.1M", 8, "sgd", "one-peer-exp"), ("5M", 2, "sgd", "ring")]
    for model, n, optimizer, schedule in few if scale == "small" else _every_loopback():
        chunks = EXCHANGES[:1] if model == "0.1M" else EXCHANGES
        who = ("local", *chunks, *VARIANTS[: 3 if scale == "small" else 4], *PEERS)
        if model == "50M":  # as many copies as fit
            who = ("local", "exchange, whole", "ours", "decent-dp", *(("ours, fused", "ddp") if n == 2 else ()))
        faster = 1.3 if model == "0.1M" and n > 2 else 1.1 if model != "0.1M" else 1.0
        limits = (Limit("sum", 1.1), Limit("decent-dp", faster), Limit("decent-dp", 1.0, "ours, fused"))
        yield Setting("loopback", n, model, optimizer, schedule, who, limits)


def _every_loopback() -> Iterator[tuple[str, int, str, str]]:
    for model in ("0.1M", "5M", "50M"):
        for n in (2, 4) if model == "50M" else (2, 4, 8):
            for optimizer in ("sgd", "adam"):
                for schedule in ("ring",) if n == 2 else ("ring", "one-peer-exp"):
                    yield model, n, optimizer, schedule


def _bandwidth(scale: Scale) -> Iterator[Setting]:
    few = ("local", "exchange, whole", "ours", "ours, bfloat16", "ddp", "decent-dp")
    everybody = few if scale == "small" else ("local", *EXCHANGES, *VARIANTS, *DDPS, "decent-dp")
    limits = (Limit("max", 1.1), Limit("decent-dp", 1.0), Limit("decent-dp", 1.0, "ours, fused"))
    halved = (Limit("decent-dp", 1.6, "ours, bfloat16"),)
    for rate in ("200mbit",) if scale == "small" else ("1gbit", "400mbit", "200mbit", "100mbit"):
        for schedule in ("ring", "one-peer-exp") if scale == "full" and rate == "200mbit" else ("ring",):
            held = limits + (halved if rate == "200mbit" else ())
            yield Setting("bandwidth", 4, "2.4M", "sgd", schedule, everybody, held, rate=rate, seconds=0.145)
    alike = ("local", "exchange, whole", "all-reduce", "ours", *DDPS, "decent-dp")
    held = (Limit("ddp", 1.3), Limit("max", 1.1), Limit("decent-dp", 1.0))
    if scale == "full":
        yield Setting("bandwidth", 4, "2.4M", "sgd", "ring", alike, held, rate="800mbit", seconds=0.145)
        slow = Setting("bandwidth", 4, "2.4M", "sgd", "ring", everybody, limits, rate="200mbit", seconds=0.145)
        yield replace(slow, optimizer="adam")
        yield replace(slow, limits=limits[1:], congestion="bbr")


def _latency(scale: Scale) -> Iterator[Setting]:
    """An exchange is a word and its answer: twice the delay. It rules where computing takes less than that."""
    who = ("local", "exchange, whole", "ours", *(("ours, fused", "ddp") if scale == "full" else ()), "decent-dp")
    cases = ((20.0, 0.030),) if scale == "small" else ((5.0, 0.060), (20.0, 0.060), (20.0, 0.030))
    for delay_ms, seconds in cases:
        held = (Limit("decent-dp", 1.5 if seconds < 0.002 * delay_ms else 1.0), Limit("max", 1.1))
        for schedule in ("ring",) if scale == "small" else ("ring", "one-peer-exp"):
            yield Setting("latency", 4, "0.1M", "sgd", schedule, who, held, delay_ms=delay_ms, seconds=seconds)


def _noise(scale: Scale) -> Iterator[Setting]:
    for n in (4, 8) if scale == "full" else (4,):
        for schedule in ("ring",) if scale == "small" else ("ring", "one-peer-exp"):
            held = (Limit("ddp", 1.3), Limit("decent-dp", 1.0))
            who = ("local", "ours", *DDPS, "decent-dp")
            yield Setting("noise", n, "0.1M", "sgd", schedule, who, held, seconds=0.050, sigma=0.3)
