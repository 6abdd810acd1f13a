"""Splits as the files of a Delta table: actions that add and remove them, with the statistics that the log has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa

from storage_core.formats.delta_log import Json, path_of, vector
from storage_core.log.actions import Add
from storage_core.objectstore.contract import ObjectStore
from storage_core.rows.columns import stored_schema
from storage_core.settings.json_text import json_text
from storage_core.split.vectors import deleted_rows

_UNORDERED = frozenset({"NaN", "Infinity", "-Infinity"})
"""Bounds that JSON has no number for. Without a bound nothing is pruned."""


def descriptor(store: ObjectStore, add: Add) -> Json | None:
    """Return the descriptor of the deletion vector of a split; None where it hides no row. One GET if it is stored.

    The same vector has the same descriptor, by which Delta tells files with different vectors apart.
    """
    deleted = deleted_rows(store, add)
    return vector(bytes(deleted.serialize()), len(deleted)) if deleted else None


@dataclass(frozen=True, slots=True)
class ShownFile:
    """A file as Delta shows it: the descriptor of its vector if it has one, and its size where that is known."""

    vector: Json | None
    size: int | None = None


class DeltaFiles:
    """Makes the actions of files of a table with these columns."""

    def __init__(self, store: ObjectStore, schema: pa.Schema) -> None:
        self._store = store
        self._bounded = [(field.name, field.type) for field in stored_schema(schema) if _has_statistics(field.type)]
        # Of a column with fields Delta counts the nulls of each field, of lists and maps their own, as the log does.
        self._counted = [field.name for field in stored_schema(schema) if not pa.types.is_struct(field.type)]

    def add(self, add: Add, *, data_change: bool) -> Json:
        """Return the fields of the action that adds a split. One GET if it has a vector that is stored."""
        found = {
            "path": path_of(add.path),
            "partitionValues": {},
            "size": add.size,
            "modificationTime": add.modificationTime,
            "dataChange": data_change,
            "stats": self._statistics(add),
        }
        hidden = descriptor(self._store, add)
        return found if hidden is None else {**found, "deletionVector": hidden}

    def _statistics(self, add: Add) -> str:
        nulls = add.nullCounts or {}
        parts = {
            "numRecords": str(add.numRecords or 0),
            "tightBounds": "false",  # a vector may hide the row of a bound, and texts are cut
            "minValues": _object(self._bounds(add.minValues or {}, is_least=True)),
            "maxValues": _object(self._bounds(add.maxValues or {}, is_least=False)),
            "nullCount": _object((name, str(nulls[name])) for name in self._counted if name in nulls),
        }
        return _object(parts.items())

    def _bounds(self, bounds: Mapping[str, str], *, is_least: bool) -> Iterator[tuple[str, str]]:
        for name, type_ in self._bounded:
            text = bounds.get(name)
            if text is not None and text not in _UNORDERED:
                yield name, _token(text, type_, is_least=is_least)


def removal(key: str, file: ShownFile, *, at_ms: int, data_change: bool) -> Json:
    """Return the fields of the action that removes a file, which is one with exactly this vector.

    With its size Spark can read the rows that went, for the change feed.
    """
    found: Json = {"path": path_of(key), "deletionTimestamp": at_ms, "dataChange": data_change}
    if file.size is not None:
        found |= {"extendedFileMetadata": True, "partitionValues": {}, "size": file.size}
    return found if file.vector is None else {**found, "deletionVector": file.vector}


def _has_statistics(type_: pa.DataType) -> bool:
    """Whether Delta has bounds of such columns: of numbers, texts and times."""
    kinds = pa.types
    numbers = kinds.is_integer(type_) or kinds.is_floating(type_) or kinds.is_decimal(type_)
    return bool(numbers or kinds.is_string(type_) or kinds.is_date(type_) or kinds.is_timestamp(type_))


def _token(text: str, type_: pa.DataType, *, is_least: bool) -> str:
    kinds = pa.types
    if kinds.is_floating(type_) and Decimal(text) == 0:
        return "-0.0" if is_least else "0.0"  # some readers tell the two apart, and a file may hold either
    return text if kinds.is_integer(type_) or kinds.is_floating(type_) or kinds.is_decimal(type_) else json_text(text)


def _object(members: Iterable[tuple[str, str]]) -> str:
    """A JSON object whose values are JSON already: a decimal keeps its digits."""
    return "{" + ",".join(f"{json_text(name)}:{value}" for name, value in members) + "}"
