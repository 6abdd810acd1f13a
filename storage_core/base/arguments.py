"""Type checks of the arguments of public calls.

If the type of an argument does not match its annotation, the check raises an error and the function does not run. The
check reads each annotation as text, so it does not import any module. A union may contain a type name that this module
does not know. If a union contains an unknown type name, the check accepts every value. The called function must then
check the argument.
"""

from __future__ import annotations

import datetime as dt
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from storage_core.base.errors import InvalidInput
from storage_core.base.text import alternatives, quoted

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Test = Callable[[object], bool]
Kind = tuple[Test, str]


def _is_list(value: object) -> bool:
    """Return True if the value is a sequence, but not a string or bytes."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)


_TYPES: Final[Mapping[str, tuple[Test, str]]] = {
    "None": (lambda value: value is None, "None"),
    "str": (lambda value: isinstance(value, str), "a text"),
    "int": (lambda value: isinstance(value, int) and not isinstance(value, bool), "a whole number"),
    "float": (lambda value: isinstance(value, int | float) and not isinstance(value, bool), "a number"),
    "bool": (lambda value: isinstance(value, bool), "True or False"),
    "Path": (lambda value: isinstance(value, os.PathLike), "a path"),
    "Mapping": (lambda value: isinstance(value, Mapping), "a mapping"),
    "Sequence": (_is_list, "a list"),
    "dt.datetime": (lambda value: isinstance(value, dt.datetime), "a datetime"),
    "dt.timedelta": (lambda value: isinstance(value, dt.timedelta), "a timedelta"),
}
_CLASSES: Final = frozenset(
    {"Expression", "Filter", "IndexDefinition", "LateData", "QueryLimits", "RawTable", "TableDeclaration"}
    | {"WriterOptions"}
)
"""The names of Tidemark classes that this module knows.

The check compares class names and does not import the classes. An import could load modules that the call does not
need.
"""


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that checks the arguments and then calls `function`.

    For a wrong argument, the returned function raises `InvalidInput`.
    """
    signature = inspect.signature(function)
    tests = {name: (test, wanted) for name, test, wanted in _tests(signature)}
    names = [*signature.parameters]

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name, value in (*zip(names, args, strict=False), *kwargs.items()):
            if name in tests and not tests[name][0](value):
                raise InvalidInput(f"{name} is {quoted(value)}. Give {tests[name][1]}", argument=name)
        return function(*args, **kwargs)

    return call


def checked_fields(record: type[T]) -> type[T]:
    """Return the dataclass.

    The function changes the constructor of the dataclass, so that it checks the types of the fields.
    """
    record.__init__ = checked(record.__init__)  # type: ignore[method-assign]
    return record


def _tests(signature: inspect.Signature) -> Iterator[tuple[str, Test, str]]:
    for name, parameter in signature.parameters.items():
        kind = _kind_of(str(parameter.annotation))
        if kind is not None:
            yield name, *kind


def _kind_of(annotation: str) -> Kind | None:
    """Return a test for the values of a union, and a description of the union. Return None if a member is unknown."""
    members = [_kind(each) for each in _members(annotation)]
    known = [each for each in members if each is not None]
    if len(known) < len(members):
        return None
    return lambda value: any(test(value) for test, _ in known), alternatives(wanted for _, wanted in known)


def _members(annotation: str) -> list[str]:
    """Return the members of a union. A `|` inside brackets does not separate members."""
    found, depth = [""], 0
    for each in annotation:
        depth += (each == "[") - (each == "]")
        if each == "|" and not depth:
            found.append("")
        else:
            found[-1] += each
    return [each.strip() for each in found]


def _kind(member: str) -> Kind | None:
    name, _, inner = member.partition("[")
    if name in _CLASSES:
        return lambda value: name in {each.__name__ for each in type(value).__mro__}, f"a {name}"
    each_is = _kind_of(inner.removesuffix("]")) if name == "Sequence" else None
    if each_is is None:
        return _TYPES.get(name)
    test, wanted = each_is
    words = "names" if wanted == "a text" else wanted.replace("a ", "")
    return lambda value: _is_list(value) and all(map(test, value)), f"a list of {words}"
