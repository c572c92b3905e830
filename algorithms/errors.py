"""The one exception of this room."""

from __future__ import annotations

from dissensus.theory.errors import DissensusError


class AlgorithmError(DissensusError):
    """An algorithm, engine or run that cannot be: the message names what is wrong, where, and what works."""
