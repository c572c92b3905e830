r"""Laws that every engine obeys, as one call: `check_engine(MyEngine)`.

An engine is called like `StackedEngine`. It is run with algorithms whose matrix forms are known, beside n modules in a
Python list (own data, buffers, optimizer memory, param groups), resumed, looked at, and fed what is not a number.
"""

from __future__ import annotations

from collections.abc import Iterable

from dissensus.algorithms.engines.stacked import StackedEngine
from dissensus.testing.laws.engine_laws import ENGINE_LAWS, Built
from dissensus.testing.laws.subject import EngineFactory
from dissensus.testing.laws.verdict import Verdict, judge


def check_engine(engine: EngineFactory = StackedEngine, *, laws: Iterable[str] | None = None) -> Verdict:
    """Runs every law of engines, or those named, and raises an AssertionError at the first that is broken."""
    return judge(f"engine {getattr(engine, '__name__', repr(engine))}", ENGINE_LAWS, Built(engine), laws)
