"""Bytes of the Iceberg mirror as the project itself has to read them: what is shown, and what is named. Pure.

Metadata files are JSON, manifest lists and manifests are Avro, all as Iceberg's specification has them; pyiceberg
writes them (`storage_core.publishing`), and is not needed here. Objects have absolute locations: the mirror is of the
place where it was written.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from storage_core.errors import Corrupt
from storage_core.formats.json_fields import number, text
from storage_core.formats.keys import ICEBERG_FOLDER

TABLE_ID: Final = "tidemark.table-id"
"""The property of the Iceberg table that has the id of ours."""

PUBLISHED_AT: Final = "tidemark.published-at-ms"
"""The entry of a snapshot's summary that only the mirror writes."""

_DELETED: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSnapshot:
    """A snapshot: its id is the version of the table that it shows. `sequence` is the number of its metadata file.

    `files` is the key of its manifest list. `published_at_ms` is None of one that the mirror did not write.
    """

    version: int
    sequence: int
    files: str
    published_at_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergMetadata:
    """A metadata file as read: its number, whose table it is of, where that was, and the snapshots from the oldest on.

    `table_id` is None in one that the mirror did not write. `root` is the location of our table.
    """

    number: int
    table_id: str | None
    root: str
    snapshots: tuple[ShownSnapshot, ...]

    @property
    def shown(self) -> ShownSnapshot:
        """The newest snapshot."""
        return self.snapshots[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFile:
    """An entry of a manifest: the key of a split, which the snapshot of this version added, or removed if not live."""

    key: str
    version: int
    is_live: bool


def decode(data: bytes, number_: int, where: str) -> IcebergMetadata:
    """Return the metadata in these bytes. Raises `Corrupt` naming `where`."""
    try:
        found = json.loads(data)
        location = text(found["location"])
        root = location.removesuffix(f"/{ICEBERG_FOLDER}")
        snapshots = sorted((_snapshot(each, root) for each in found["snapshots"]), key=lambda each: each.sequence)
        newest = snapshots[-1]
        is_ours = newest.published_at_ms is not None and newest.sequence == number_ and root != location
        is_ours = is_ours and newest.version == found["current-snapshot-id"]
        table_id = found["properties"].get(TABLE_ID) if is_ours else None
        return IcebergMetadata(number=number_, table_id=table_id, root=root, snapshots=tuple(snapshots))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise Corrupt(f"{where}: not metadata of an Iceberg table: {error!r}", key=where) from error


def decode_hint(data: bytes) -> int | None:
    """Return the number that the hint has; None for anything else, as a hint is nothing to rely on."""
    found = data.decode("ascii", "replace").strip()
    return int(found) if found.isdecimal() and found.isascii() and 0 < len(found) < 20 else None


def encode_hint(number_: int) -> bytes:
    """Return the bytes of `version-hint.text`."""
    return str(number_).encode()


def manifests_of(data: bytes, root: str, where: str) -> list[str]:
    """Return the keys of the manifests that a manifest list names. Raises `Corrupt`."""
    return [key_of(text(each["manifest_path"]), root) for each in _records(data, where)]


def files_of(data: bytes, root: str, where: str) -> list[NamedFile]:
    """Return the entries of a manifest. Raises `Corrupt`."""
    try:
        return [
            NamedFile(
                key=key_of(text(each["data_file"]["file_path"]), root),
                version=number(each["snapshot_id"]),
                is_live=each["status"] != _DELETED,
            )
            for each in _records(data, where)
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"{where}: not a manifest of the mirror: {error!r}", key=where) from error


def key_of(location: str, root: str) -> str:
    """Return the key behind a location in a table whose root this is. Raises `ValueError` for one elsewhere."""
    if not location.startswith(f"{root}/"):
        raise ValueError(f"{location} is not below {root}")
    return location[len(root) + 1 :]


def _snapshot(found: Any, root: str) -> ShownSnapshot:
    published = found["summary"].get(PUBLISHED_AT)
    return ShownSnapshot(
        version=number(found["snapshot-id"]),
        sequence=number(found["sequence-number"]),
        files=key_of(text(found["manifest-list"]), root),
        published_at_ms=None if published is None else int(published),
    )


def _records(data: bytes, where: str) -> Iterator[Any]:
    import fastavro

    try:
        yield from fastavro.reader(io.BytesIO(data))
    except Exception as error:  # Avro of any damage raises what it meets
        raise Corrupt(f"{where}: not Avro of an Iceberg table: {error!r}", key=where) from error
