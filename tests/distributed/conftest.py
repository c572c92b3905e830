"""Tests on several processes share one pool of them. What lies in this folder can be imported by its name."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))

from crew import Crew  # noqa: E402
from pool import Pool  # noqa: E402


@pytest.fixture(scope="session")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """The pool; where pytest-xdist spreads these tests there are several, of which one runs at a time."""
    spread = "PYTEST_XDIST_WORKER" in os.environ
    pool = Pool(tmp_path_factory.getbasetemp().parent / "processes.lock" if spread else None)
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def crew() -> Iterator[Crew]:
    """Processes that may be killed, stopped and started again."""
    crew = Crew()
    yield crew
    crew.close()
