"""The schema in an Avro file, judged before a decoder follows it: decoders in C recurse and repeat as deep as it says.

Pure. Refused are types within themselves (a value of a million levels ends the process), types that multiply one
another, and values that take no byte, of which a few bytes can claim any number.
"""

from __future__ import annotations

import json
from typing import Any

from storage_core.errors import Corrupt
from storage_core.foreign_text import shortened

DEEPEST = 64
MOST_PARTS = 10_000
LARGEST_FIXED = 2**20

_PRIMITIVES = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1}


def least_bytes(text: bytes, where: str) -> int:
    """Return the bytes that a record of this schema takes at least. Raises `Corrupt` naming `where`; see above."""
    try:
        least, _ = _Types().measured(json.loads(text), 0)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Corrupt(f"{where}: its Avro schema cannot be used: {shortened(str(error))}", key=where) from error
    return least


class _Types:
    """The named types so far by the last part of their names, which none shares: least bytes and parts of a value."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[int, int] | None] = {}

    def measured(self, schema: Any, depth: int) -> tuple[int, int]:
        if depth > DEEPEST:
            raise ValueError(f"more than {DEEPEST} levels")
        if isinstance(schema, str):
            least, parts = self._known(schema)
        elif isinstance(schema, list):
            least, parts = 1, 1 + sum(self.measured(each, depth + 1)[1] for each in schema)
        else:
            least, parts = self._declared(schema, depth + 1)
        if parts > MOST_PARTS:
            raise ValueError(f"more than {MOST_PARTS} parts")
        return least, parts

    def _known(self, name: str) -> tuple[int, int]:
        if name in _PRIMITIVES:
            return _PRIMITIVES[name], 1
        found = self._named.get(_short(name))
        if found is None:
            raise ValueError(f"{name!r} is not declared, or within itself")
        return found

    def _declared(self, schema: dict[str, Any], depth: int) -> tuple[int, int]:
        kind = schema["type"]
        if kind in ("array", "map"):
            least, parts = self.measured(schema["items" if kind == "array" else "values"], depth)
            if kind == "array" and least == 0:
                raise ValueError("an array of values that take no byte")
            return 1, 1 + parts
        if kind not in ("record", "error", "enum", "fixed"):
            return self.measured(kind, depth)
        name = _short(schema["name"])
        if name in self._named or name in _PRIMITIVES:
            raise ValueError(f"{name!r} is declared twice")
        self._named[name] = None
        found = self._of_name(schema, depth)
        self._named[name] = found
        return found

    def _of_name(self, schema: dict[str, Any], depth: int) -> tuple[int, int]:
        if schema["type"] == "enum":
            return 1, 1
        if schema["type"] == "fixed":
            size = schema["size"]
            if not isinstance(size, int) or not 0 <= size <= LARGEST_FIXED:
                raise ValueError(f"a value of {size!r} bytes")
            return size, 1
        fields = [self.measured(each["type"], depth) for each in schema["fields"]]
        return sum(least for least, _ in fields), 1 + sum(parts for _, parts in fields)


def _short(name: str) -> str:
    return name.rsplit(".", 1)[-1]
