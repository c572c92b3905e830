"""The exceptions of the toolkit, and the phrase that points at the nearest name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DissensusError(ValueError):
    """What every room's own exception derives from: bad input, told in one sentence. The command line exits with 2."""


class MixingError(DissensusError):
    """A topology or mixing matrix that cannot be: the message names what is violated, where, and what works."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns `; did you mean 'ring'?`, or the list of what is known when nothing is near."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(names) or 'none'}"
