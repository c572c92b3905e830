r"""How many bytes of a large message may be under way to another process at once.

Where TCP goes by rates and delays (bbr), an exchange with all of its messages under way stalls: one direction of a pair
sends at half to three quarters of the rate for its first 100 to 300 ms, while the other, at full rate, gets ahead; its
process is then late at the next neighbour, whose link stands idle. Measured on links of 200 Mbit/s, steps of 403 ms
become ones of 400 to 540; with no more than about 1 MB under way in either direction they stay at 403. Where TCP goes
by losses (reno, cubic), steps take 403 ms either way, and on faster links longer in pieces than without. So messages
go in pieces where TCP `stalls` at one of the processes, and elsewhere all at once.

Too few would leave a link idle that is fast or long. On one that carries r bytes a second and brings a piece of P bytes
after L seconds, $T = (r L - P)_+$ bytes travel, whatever waits. So

$$ 2 P + 2 T + r \epsilon $$

may be under way, with r the median rate of what was carried last, L the least time that a piece has ever taken with
nothing before it, and $\epsilon$ = 10 ms for a thread that wakes late. The word that a piece is awaited travels too,
behind what is sent, so that 8 T more are awaited beforehand; where nothing travels, that word comes just in time, and
not before this direction has got as far. Where less is under way than the link holds, so that r = window / L, this is
more: the window grows until the link is full. Ours.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from pathlib import Path

PIECE_BYTES = 1 << 19
"""A larger message travels in pieces of this size."""
AT_LEAST, AT_FIRST = 2 * PIECE_BYTES, 8 * PIECE_BYTES
"""How much may be under way at any rate, and while nothing is known of the link."""
LATE = 0.010
"""Seconds that a thread may take to wake."""


_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")


def stalls() -> bool:
    """Whether TCP goes by rates and delays here, as far as the system tells."""
    return _CONTROL.exists() and _CONTROL.read_text().startswith("bbr")


class Pace:
    """What is known of a link, and what follows from it."""

    def __init__(self) -> None:
        self._rates: deque[float] = deque(maxlen=5)
        self._delay = math.inf

    def carried(self, size: int, seconds: float) -> None:
        """So many bytes came and went one after the other within so many seconds, while others were waiting."""
        if seconds > 0.0:
            self._rates.append(size / seconds)

    def took(self, seconds: float) -> None:
        """So long took a piece with nothing before it."""
        self._delay = min(self._delay, seconds)

    @property
    def window(self) -> float:
        """How many bytes may be under way."""
        return AT_LEAST + self.ahead + self._rate * LATE if self._known else AT_FIRST

    @property
    def awaited(self) -> float:
        """How many bytes may be awaited."""
        return self.window + 4.0 * self.ahead if self._known else math.inf

    @property
    def ahead(self) -> float:
        """How many bytes may be under way only because they travel."""
        return 2.0 * max(0.0, self._rate * self._delay - PIECE_BYTES) if self._known else math.inf

    @property
    def _known(self) -> bool:
        return bool(self._rates) and self._delay < math.inf

    @property
    def _rate(self) -> float:
        return statistics.median(self._rates)
