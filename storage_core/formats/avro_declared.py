"""Schemas of the Avro records that this product writes, spelled without Avro's boilerplate. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastavro.types import Schema


def record_schema(name: str, fields: Sequence[Mapping[str, object]], *, namespace: str | None = None) -> Schema:
    """Return the schema of a record, its keys in the order in which files have them."""
    named = {"name": name} if namespace is None else {"name": name, "namespace": namespace}
    return {"type": "record", **named, "fields": list(fields)}


def field(name: str, kind: object, **more: object) -> dict[str, object]:
    """Return a field of a record; `more` is its default, say."""
    return {"name": name, "type": kind, **more}


def optional(name: str, kind: object) -> dict[str, object]:
    """Return a field that may be null, and is where it is absent."""
    return field(name, or_null(kind), default=None)


def or_null(kind: object) -> list[object]:
    """Return the type of a value that may be null."""
    return ["null", kind]


def array(items: object) -> dict[str, object]:
    """Return the type of a list."""
    return {"type": "array", "items": items}


def map_of(values: object) -> dict[str, object]:
    """Return the type of a map from texts."""
    return {"type": "map", "values": values}
