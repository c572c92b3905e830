"""What every test shares: Hypothesis profiles, one thread for torch, and no network but loopback."""

import os

import pytest
from hypothesis import HealthCheck, settings

_common = {"deadline": None, "derandomize": True, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("dev", max_examples=20, **_common)
settings.register_profile("ci", max_examples=60, **_common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


@pytest.fixture(autouse=True)
def _no_figure_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "Agg")
