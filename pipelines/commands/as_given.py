"""Arguments that are text, or are not given, are taken as they are.

Typer builds a pydantic validator for each argument, also for text, and importing pydantic takes longer than some
commands. Numbers, choices and paths that are given are still validated by it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import typer


def as_given(group: Any) -> Any:
    """Return a command of Typer whose parameters are validated only where there is something to validate."""
    for command in [group, *group.commands.values()]:
        for parameter in command.get_params(typer.Context(command)):  # with --help
            if build := getattr(parameter, "get_runtime_param", None):
                parameter.get_runtime_param = _Validated(build).deferred
    return group


@dataclass(frozen=True, slots=True)
class _Validated:
    """A parameter whose validator is built by the first value that needs it."""

    build: Callable[[], Any]

    def deferred(self) -> _Validated:
        """Return itself in the place of a validator."""
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value of the parameter; raises as Typer does."""
        wanted = param.type_descriptor.annotation
        several = param.multiple or param.nargs == -1
        if value is None or (not several and type(value) is wanted):
            return value
        if several and wanted == list[str] and isinstance(value, tuple | list) and all(type(e) is str for e in value):
            return list(value)
        return self.build().coerce(value, param=param, ctx=ctx)
