"""Things a configuration asks for by name (data sets, models, optimizers): one decorated function each.

A misspelt name or parameter is refused with the nearest one that exists, before anything is computed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from dissensus.experiments.errors import ConfigError
from dissensus.theory.errors import nearest

Product = TypeVar("Product")
Builder = TypeVar("Builder", bound=Callable[..., Any])


class Registry(Generic[Product]):
    """Builders of one kind of thing by name; `given` are the arguments that the runner, not the user, provides."""

    def __init__(self, kind: str, given: tuple[str, ...] = ()) -> None:
        self.kind = kind
        self.given = given
        self._builders: dict[str, Callable[..., Product]] = {}

    def register(self, name: str) -> Callable[[Builder], Builder]:
        """Registers a builder under its public name (dashes; underscores are accepted everywhere)."""

        def add(build: Builder) -> Builder:
            if name in self._builders:
                raise ConfigError(f"{self.kind} {name!r} is registered twice")
            self._builders[name] = build
            return build

        return add

    def names(self) -> list[str]:
        """Every registered name."""
        return sorted(self._builders)

    def parameters(self, name: str) -> dict[str, inspect.Parameter]:
        """The parameters that a configuration may set."""
        signature = inspect.signature(self.builder(name)).parameters
        return {key: p for key, p in signature.items() if key not in self.given}

    def builder(self, name: str) -> Callable[..., Product]:
        """The builder of that name, or an error with the nearest name."""
        wanted = name.replace("_", "-")
        if wanted not in self._builders:
            raise ConfigError(f"unknown {self.kind} {name!r}{nearest(wanted, self._builders)}")
        return self._builders[wanted]

    def check(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Refuses an unknown name or parameter, and a missing one."""
        known = self.parameters(name)
        for key in parameters:
            if key not in known:
                raise ConfigError(f"{self.kind} {name!r} has no parameter {key!r}{nearest(key, known)}")
        for key, p in known.items():
            if p.default is inspect.Parameter.empty and key not in parameters:
                raise ConfigError(f"{self.kind} {name!r} needs the parameter {key!r}")

    def build(self, name: str, parameters: Mapping[str, Any], *given: Any) -> Product:
        """Builds the thing; `given` in the order that was declared."""
        self.check(name, parameters)
        try:
            return self.builder(name)(*given, **parameters)
        except (TypeError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{self.kind} {name!r} refuses {dict(parameters)}: {error}") from error
