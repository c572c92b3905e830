"""Figures from plain arrays: every function takes labelled numbers and returns a matplotlib figure, nothing else.

They need matplotlib (`pip install 'dissensus[plots]'`), use no global state, open no window, and draw the same picture
from the same numbers. Arms differ by colour (Okabe-Ito, safe for colour-blind readers), by marker and by grey value.
"""

from dissensus.experiments.errors import ConfigError

try:
    import matplotlib  # noqa: F401
except ImportError:
    raise ConfigError("figures need matplotlib: pip install 'dissensus[plots]'") from None
