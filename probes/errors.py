"""The one exception of this room."""

from __future__ import annotations

from dissensus.theory.errors import DissensusError


class ProbeError(DissensusError):
    """Something that cannot be looked at: the message says what, where, and what to do."""
