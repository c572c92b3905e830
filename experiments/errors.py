"""The one exception of this room: what was asked for cannot be run, with the place and what works."""

from __future__ import annotations

from dissensus.theory.errors import DissensusError


class ConfigError(DissensusError):
    """A configuration that cannot be run: the message names the file, the key, what is wrong and the nearest match."""


class DataMissingError(ConfigError):
    """A data set that is not on this machine, or the package that carries it: the message says where it is to be had."""
