"""The one exception of this room: what was asked for cannot be run, with the place and what works."""

from __future__ import annotations

from dissensus.theory.errors import DissensusError


class ConfigError(DissensusError):
    """A configuration that cannot be run: the message names the file, the key, what is wrong and the nearest match."""


class DataMissingError(ConfigError):
    """Data, or the package that carries them, are not on this machine: the message says where they are to be had."""
