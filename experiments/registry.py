"""Things a configuration asks for by name (data sets, models, optimizers): one decorated function each.

A misspelt name or parameter is refused with the nearest one that exists, before anything is computed.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import pkgutil
import typing
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any, Generic, TypeVar

from dissensus.experiments.errors import ConfigError, DataMissingError
from dissensus.theory.errors import nearest

Product = TypeVar("Product")
Builder = TypeVar("Builder", bound=Callable[..., Any])


class Registry(Generic[Product]):
    """Builders of one kind of thing by name.

    `given` are the arguments that the runner, not the user, provides; `folder` is a package whose modules register
    builders: they are imported when the first name is asked for, so that a new file is found by itself.
    """

    def __init__(self, kind: str, given: tuple[str, ...] = (), folder: str = "") -> None:
        self.kind = kind
        self.given = given
        self._folder = folder
        self._builders: dict[str, Callable[..., Product]] = {}
        self._needs: dict[str, tuple[str, str]] = {}

    def register(self, name: str, *, package: str = "", extra: str = "") -> Callable[[Builder], Builder]:
        """Registers a builder under its public name (dashes; underscores are accepted everywhere).

        `package` is a module that it cannot do without, `extra` the extra of `dissensus` that brings it.
        """

        def add(build: Builder) -> Builder:
            if name in self._builders:
                raise ConfigError(f"{self.kind} {name!r} is registered twice")
            self._builders[name] = build
            if package:
                self._needs[name] = (package, extra)
            return build

        return add

    def names(self) -> list[str]:
        """Every registered name."""
        self._discover()
        return sorted(self._builders)

    def parameters(self, name: str) -> dict[str, inspect.Parameter]:
        """The parameters that a configuration may set."""
        signature = inspect.signature(self.builder(name)).parameters
        return {key: p for key, p in signature.items() if key not in self.given}

    def builder(self, name: str) -> Callable[..., Product]:
        """The builder of that name, or an error with the nearest name."""
        self._discover()
        wanted = name.replace("_", "-")
        if wanted not in self._builders:
            raise ConfigError(f"unknown {self.kind} {name!r}{nearest(wanted, self._builders)}")
        return self._builders[wanted]

    def _discover(self) -> None:
        folder, self._folder = self._folder, ""
        if folder:
            for module in pkgutil.iter_modules(importlib.import_module(folder).__path__):
                importlib.import_module(f"{folder}.{module.name}")

    def check(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Refuses an unknown name or parameter, a missing one, and a value that is not what the builder declares."""
        self._check_keys(name, parameters)
        check_values(f"{self.kind} {name!r}", self.builder(name), parameters)

    def require(self, name: str) -> None:
        """Refuses what cannot be built here because an optional package is not installed."""
        self.builder(name)
        package, extra = self._needs.get(name.replace("_", "-"), ("", ""))
        if package and importlib.util.find_spec(package) is None:
            raise DataMissingError(f"{self.kind} {name!r} needs {package}: pip install 'dissensus[{extra}]'")

    def _check_keys(self, name: str, parameters: Mapping[str, Any]) -> None:
        known = self.parameters(name)
        for key in parameters:
            if key not in known:
                raise ConfigError(f"{self.kind} {name!r} has no parameter {key!r}{nearest(key, known)}")
        for key, p in known.items():
            if p.default is inspect.Parameter.empty and key not in parameters:
                raise ConfigError(f"{self.kind} {name!r} needs the parameter {key!r}")

    def build(self, name: str, parameters: Mapping[str, Any], *given: Any) -> Product:
        """Builds the thing; `given` in the order that was declared."""
        self._check_keys(name, parameters)
        try:
            return self.builder(name)(*given, **parameters)
        except (TypeError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{self.kind} {name!r} refuses {dict(parameters)}: {error}") from error


def check_values(what: str, build: Callable[..., Any], parameters: Mapping[str, Any]) -> None:
    """Refuses a value that is not of the type, or not in the range, that the signature of `build` declares.

    Strict: text is no number and a number is no truth value; only a whole number is accepted as a float.
    """
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    declared = build.__init__ if inspect.isclass(build) and not is_dataclass(build) else build
    hints = typing.get_type_hints(declared, include_extras=True)
    for key, value in parameters.items():
        if key not in hints:
            continue
        adapter = TypeAdapter(hints[key], config=ConfigDict(arbitrary_types_allowed=True, strict=True))
        try:
            adapter.validate_json(json.dumps(value, default=str))  # as JSON, so that a list may be a tuple
        except ValidationError as error:
            said = error.errors()[0]["msg"].lower()
            raise ConfigError(f"{what}: parameter {key!r}: {said}, got {value!r}") from None
