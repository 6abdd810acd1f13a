"""Deletion vectors: which rows of a split are superseded or deleted, as part of its `add`.

Rows are counted from 0 in file order. The bytes are a 32-bit Roaring bitmap in its portable format; they stand in the
action itself as base64 (`inline`) or in an object that the action names (`key`). Pure: no I/O, and a vector read from
a log is trusted for nothing until `rows_of` has compared its bytes with every number of the vector's entry.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import xxhash
from pyroaring import BitMap

from storage_core.errors import Corrupt, InvalidInput, Unsupported
from storage_core.foreign_text import quoted
from storage_core.log.encoding.safe_path import is_safe_path

MAX_ROWS = 2**32

_HEX16 = re.compile(r"[0-9a-f]{16}", re.ASCII)
_MAX_INT64 = 2**63 - 1


class VectorStorage(StrEnum):
    """Where the bytes of a vector are."""

    INLINE = "inline"
    KEY = "key"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionVector:
    """The vector of one split. `cardinality` counts its rows; `size` (bytes) and `xxh3` are of the Roaring bytes.

    `data` is their base64, when inline; `path` is the table-relative key of their object, when stored by key.
    """

    storage: VectorStorage
    cardinality: int
    size: int
    xxh3: str
    data: str | None = None
    path: str | None = None


def encode(rows: Iterable[int]) -> bytes:
    """Return the Roaring bytes of the rows: equal sets of rows, equal bytes. Raises `InvalidInput` outside 32 bits."""
    try:
        bitmap = BitMap(rows)
    except (OverflowError, TypeError, ValueError) as error:
        raise InvalidInput(f"rows of a split are whole numbers from 0 to {MAX_ROWS - 1}: {error}") from error
    bitmap.run_optimize()
    return bytes(bitmap.serialize())


def inline(rows: Iterable[int]) -> DeletionVector:
    """Return the vector that carries these rows in the action itself. No rows is the vector of a whole split."""
    return _described(encode(rows), VectorStorage.INLINE, path=None)


def stored(path: str, data: bytes) -> DeletionVector:
    """Return the vector whose bytes, as `encode` made them, are the object at `path`. Raises as `rows_of` does."""
    vector = _described(data, VectorStorage.KEY, path=path)
    if not is_safe_path(path):
        raise InvalidInput(f"the path {path!r} of a deletion vector leaves the table", path=path)
    return vector


def rows_of(vector: DeletionVector, stored_bytes: bytes | None, where: str) -> BitMap:
    """Return the rows that are gone. `stored_bytes` is the object at `vector.path`, None for an inline vector.

    Raises `Corrupt` naming `where` unless size, checksum, format and cardinality are all what the vector says.
    """
    data = _bytes_of(vector, stored_bytes, where)
    if len(data) != vector.size:
        raise _damaged(where, f"{vector.size} bytes", len(data))
    found = xxhash.xxh3_64_hexdigest(data)
    if found != vector.xxh3:
        raise _damaged(where, f"xxh3-64 {vector.xxh3}", found)
    bitmap = _bitmap(data, where)
    if len(bitmap) != vector.cardinality:
        raise _damaged(where, f"{vector.cardinality} rows", len(bitmap))
    return bitmap


def to_object(vector: DeletionVector) -> dict[str, Any]:
    """Return the JSON object that stands under `add.deletionVector`."""
    body: dict[str, Any] = {
        "storage": vector.storage.value,
        "cardinality": vector.cardinality,
        "size": vector.size,
        "xxh3": vector.xxh3,
    }
    return body | ({"data": vector.data} if vector.storage is VectorStorage.INLINE else {"path": vector.path})


def from_object(body: Mapping[str, Any], where: str) -> DeletionVector:
    """Return the vector that `to_object` wrote; unknown fields are ignored.

    Raises `Unsupported` for a storage kind that this release does not know, `Corrupt` for a field of another type or
    without the value it must have. The bytes are looked at by `rows_of` only.
    """
    kind = _text(body, "storage", where)
    if kind not in set(VectorStorage):
        raise Unsupported(
            f"{where}: deletionVector.storage {quoted(kind)} is not known to this release; upgrade", where=where
        )
    storage = VectorStorage(kind)
    inlined = storage is VectorStorage.INLINE
    return DeletionVector(
        storage=storage,
        cardinality=_count(body, "cardinality", where),
        size=_count(body, "size", where),
        xxh3=_text(body, "xxh3", where, _HEX16),
        data=_text(body, "data", where) if inlined else None,
        path=None if inlined else _path(body, where),
    )


def to_json(vector: DeletionVector) -> str:
    """Return the vector as compact JSON text, as the Avro state carries it."""
    return json.dumps(to_object(vector), separators=(",", ":"))


def from_json(text: str, where: str) -> DeletionVector:
    """Return the vector that `to_json` wrote; raises as `from_object`, and `Corrupt` for text that is no object."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{where}: the deletion vector is not JSON: {error}", where=where) from error
    if not isinstance(body, dict):
        raise Corrupt(f"{where}: the deletion vector is not an object: {quoted(text)}", where=where)
    return from_object(body, where)


def _described(data: bytes, storage: VectorStorage, *, path: str | None) -> DeletionVector:
    return DeletionVector(
        storage=storage,
        cardinality=len(_bitmap(data, path or "a deletion vector")),
        size=len(data),
        xxh3=xxhash.xxh3_64_hexdigest(data),
        data=base64.b64encode(data).decode() if storage is VectorStorage.INLINE else None,
        path=path,
    )


def _bytes_of(vector: DeletionVector, stored_bytes: bytes | None, where: str) -> bytes:
    if vector.storage is VectorStorage.KEY:
        if stored_bytes is None:
            raise InvalidInput(f"{where}: the deletion vector is stored at {vector.path!r}; read it first", where=where)
        return stored_bytes
    try:
        return base64.b64decode(vector.data or "", validate=True)
    except binascii.Error as error:
        raise _damaged(where, "base64", str(error)) from error


def _bitmap(data: bytes, where: str) -> BitMap:
    try:
        return BitMap.deserialize(data)
    except (ValueError, LookupError) as error:
        raise _damaged(where, "a portable Roaring bitmap", str(error)) from error


def _count(body: Mapping[str, Any], name: str, where: str) -> int:
    value = body.get(name)
    if type(value) is not int or not 0 <= value <= _MAX_INT64:
        raise Corrupt(f"{where}: deletionVector.{name} is missing or no count", where=where)
    return value


def _text(body: Mapping[str, Any], name: str, where: str, form: re.Pattern[str] | None = None) -> str:
    value = body.get(name)
    if not isinstance(value, str) or (form is not None and not form.fullmatch(value)):
        raise Corrupt(f"{where}: deletionVector.{name} is missing or malformed", where=where)
    return value


def _path(body: Mapping[str, Any], where: str) -> str:
    path = _text(body, "path", where)
    if not is_safe_path(path):
        raise Corrupt(f"{where}: the path {quoted(path)} of a deletion vector leaves the table", where=where)
    return path


def _damaged(where: str, expected: str, found: object) -> Corrupt:
    return Corrupt(f"{where}: deletion vector: expected {expected}, found {found}", where=where)
