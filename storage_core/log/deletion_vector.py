"""Deletion vectors of splits, and rules for the paths in a log entry.

**Deletion vectors.** A deletion vector contains the deleted and superseded rows of a split. The deletion vector is part
of the split's `add`. Rows are counted from 0 in file order. The bytes are a 32-bit Roaring bitmap in its portable
format. The bytes are either in the action itself as base64 (`inline`), or in an object (`key`). The action then
contains the key of the object. A deletion vector from a log is not trusted at first. `rows_of` compares the bytes of a
deletion vector with the size, checksum and cardinality in the log entry.

**Paths.** A path in a log entry is a key inside the table. The spelling of a path has the same meaning for every
reader. An unsafe path is refused before it reaches a store, a file system or a URL (design lessons 80 and 82).

The module does no I/O.
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
from urllib.parse import unquote

import xxhash
from pyroaring import BitMap

from storage_core.base.errors import Corrupt, InvalidInput, Unsupported
from storage_core.base.text import quoted
from storage_core.store.contract import is_safe_key

MAX_LENGTH = 1024
# Nearly every path has this form. A path of this form needs no further check.
PLAIN_PATH = r"[A-Za-z0-9_=-][A-Za-z0-9_.=-]*(?:/[A-Za-z0-9_=-][A-Za-z0-9_.=-]*)*"

# The first path segments of internal objects of a table. The internal objects are neither splits nor index segments.
MACHINERY = frozenset({"_transaction_log", "_mem_wal", "_gc", "_tags.json", "_probe", "_locks", "quarantine"})

_PLAIN = re.compile(PLAIN_PATH, re.ASCII)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:", re.ASCII)


def is_safe_path(path: str) -> bool:
    """Return whether a path from a log entry stays inside the table and is printable.

    These paths are refused:

    - A path that no store accepts as a key: it is absolute, is longer than 1,024 bytes, or has `..`, empty segments,
      control characters, backslashes or lone surrogates.
    - A path with a scheme or a drive (`s3:`, `file:`, `C:`).
    - A path that leaves the table if its percent-encoding is decoded once or several times. All other percent signs are
      legal, because names of partition folders contain percent signs.
    """
    if _PLAIN.fullmatch(path):
        return len(path) <= MAX_LENGTH
    return path.isprintable() and is_safe_key(path) and not _SCHEME.match(path) and _stays_inside_decoded(path)


def is_data_path(path: str) -> bool:
    """Return whether a path is allowed for a split or a segment.

    The path must be safe and outside of the internal folders.
    """
    return is_safe_path(path) and path.partition("/")[0] not in MACHINERY


def _stays_inside_decoded(path: str) -> bool:
    while "%" in path:
        decoded = unquote(path)
        if decoded == path:
            return True
        path = decoded
        # Empty segments and control characters are legal here, because a partition value may be a URL.
        if path.startswith(("/", "\\")) or not {".", ".."}.isdisjoint(re.split(r"[/\\]", path)):
            return False
    return True


MAX_ROWS = 2**32

_HEX16 = re.compile(r"[0-9a-f]{16}", re.ASCII)
_MAX_INT64 = 2**63 - 1


class VectorStorage(StrEnum):
    """The place where the bytes of a deletion vector are stored."""

    INLINE = "inline"
    KEY = "key"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionVector:
    """The deletion vector of one split.

    Attributes:
        cardinality: The number of deleted rows.
        size: The number of Roaring bytes.
        xxh3: The xxh3-64 of the Roaring bytes, in hex.
        data: The Roaring bytes as base64, if inline.
        path: The table-relative key of the object with the bytes, if stored by key.
    """

    storage: VectorStorage
    cardinality: int
    size: int
    xxh3: str
    data: str | None = None
    path: str | None = None


def encode(rows: Iterable[int]) -> bytes:
    """Return the Roaring bytes of the rows.

    Equal sets produce equal bytes. Raises `InvalidInput` for a row number of more than 32 bits.
    """
    try:
        bitmap = BitMap(rows)
    except (OverflowError, TypeError, ValueError) as error:
        raise InvalidInput(f"the rows are not whole numbers from 0 to {MAX_ROWS - 1}: {error}") from error
    bitmap.run_optimize()
    return bytes(bitmap.serialize())


def inline(rows: Iterable[int]) -> DeletionVector:
    """Return an inline deletion vector with these rows. If `rows` is empty, no row of the split is deleted."""
    return _described(encode(rows), VectorStorage.INLINE, path=None)


def stored(path: str, data: bytes) -> DeletionVector:
    """Return a deletion vector for bytes in the object at `path`. `encode` must have made the bytes.

    Raises the errors of `rows_of`.
    """
    vector = _described(data, VectorStorage.KEY, path=path)
    if not is_safe_path(path):
        raise InvalidInput(f"the path {path!r} of a deletion vector leads out of the table", path=path)
    return vector


def rows_of(vector: DeletionVector, stored_bytes: bytes | None, where: str) -> BitMap:
    """Return the deleted rows, after a check of size, checksum, format and cardinality.

    Args:
        stored_bytes: The object at `vector.path`, or None for an inline vector.

    Raises:
        Corrupt: The bytes do not match the vector's entry. The error names `where`.
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
    """Return the JSON object for `add.deletionVector`."""
    body: dict[str, Any] = {
        "storage": vector.storage.value,
        "cardinality": vector.cardinality,
        "size": vector.size,
        "xxh3": vector.xxh3,
    }
    return body | ({"data": vector.data} if vector.storage is VectorStorage.INLINE else {"path": vector.path})


def from_object(body: Mapping[str, Any], where: str) -> DeletionVector:
    """Return the deletion vector that `to_object` wrote. Unknown fields are ignored. Only `rows_of` checks the bytes.

    Raises:
        Unsupported: This release does not support the storage kind.
        Corrupt: A field has the wrong type or is missing.
    """
    kind = _text(body, "storage", where)
    if kind not in set(VectorStorage):
        raise Unsupported(
            f"{where}: deletionVector.storage {quoted(kind)} is not known to this release. Upgrade Tidemark",
            where=where,
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
    """Return the deletion vector as compact JSON text, in the form that the Avro state contains."""
    return json.dumps(to_object(vector), separators=(",", ":"))


def from_json(text: str, where: str) -> DeletionVector:
    """Return the deletion vector that `to_json` wrote.

    Raises the errors of `from_object`, and `Corrupt` if the text is not an object.
    """
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
            raise InvalidInput(f"{where}: the deletion vector is stored at {vector.path!r}. Read it first", where=where)
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
        raise Corrupt(f"{where}: deletionVector.{name} is missing or not a count", where=where)
    return value


def _text(body: Mapping[str, Any], name: str, where: str, form: re.Pattern[str] | None = None) -> str:
    value = body.get(name)
    if not isinstance(value, str) or (form is not None and not form.fullmatch(value)):
        raise Corrupt(f"{where}: deletionVector.{name} is missing or malformed", where=where)
    return value


def _path(body: Mapping[str, Any], where: str) -> str:
    path = _text(body, "path", where)
    if not is_safe_path(path):
        raise Corrupt(f"{where}: the path {quoted(path)} of a deletion vector leads out of the table", where=where)
    return path


def _damaged(where: str, expected: str, found: object) -> Corrupt:
    return Corrupt(f"{where}: deletion vector: expected {expected}, found {found}", where=where)
