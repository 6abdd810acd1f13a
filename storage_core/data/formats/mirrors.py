r"""Objects of the Delta mirror and of the Iceberg mirror, as records and as bytes. No I/O.

**Delta.** The first part contains commits, inline deletion vectors and the hint, as Delta's protocol defines them. A
commit is newline-delimited JSON with one action per line. The mirror's own data is in `commitInfo`. Delta allows any
content in `commitInfo`, and other readers ignore this content. Texts are UTF-8 without `\u` escapes for characters
above U+FFFF. The JSON decoder of delta-rs turns the two halves of a `\u` escape into another character.

**Iceberg.** The second part reads the mirror's own objects: the version that the mirror shows, and the files in the
mirror. Metadata files are JSON. Manifest lists and manifests are Avro. Iceberg's specification defines the form of
these objects. pyiceberg writes them (`storage_core.interop`), but this module does not need pyiceberg. The objects
contain absolute locations, so a mirror is valid only at the location where it was written.
"""

from __future__ import annotations

import base64
import io
import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote

from storage_core.base.errors import Corrupt
from storage_core.data.formats.json_document import number, text
from storage_core.data.formats.keys import ICEBERG_FOLDER

# The Delta mirror.

OWN: Final = "tidemark"
"""The name of Tidemark's field in `commitInfo`.

Tidemark's writer feature also has the name `tidemark`. The application id of Tidemark's transactions begins with this
name.

A writer that does not support a feature of a table must not write or vacuum the table. A reader ignores a writer
feature.
"""

ENCODING: Final = "utf-8"
"""The encoding of a commit.

If a commit has this encoding, its statistics contain no escapes that other readers misread. Other readers also read the
statistics of all earlier commits correctly.
"""

Json = dict[str, Any]

_MAGIC: Final = 1681511377
_BASE85: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85: Final = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_Z85: Final = bytes.maketrans(_BASE85, _Z85)
_FROM_Z85: Final = bytes(_BASE85[_Z85.index(each)] if each in _Z85 else ord(" ") for each in range(256))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The content of a mirror commit: a table version, and the declarations of this commit and all earlier commits.

    Attributes:
        table_id: The id of the table.
        version: The version that the commit shows.
        after: The version that the previous commit shows. None if there is no previous commit.
        published_at_ms: When the commit was published.
        id: The id of the commit.
        features: The features that readers need.
        metadata: A checksum of the last declaration.
        widened: The stored names of the columns that had narrower numbers earlier.
        encoding: `ENCODING`, or empty in commits of releases that escaped text.
    """

    table_id: str
    version: int
    after: int | None
    published_at_ms: int
    id: str
    features: tuple[str, ...] = ()
    metadata: str = ""
    widened: tuple[str, ...] = ()
    encoding: str = ""

    def to_json(self) -> Json:
        """Return the object for `commitInfo`."""
        return {
            "tableId": self.table_id,
            "version": self.version,
            "after": self.after,
            "publishedAtMs": self.published_at_ms,
            "id": self.id,
            "features": list(self.features),
            "metadata": self.metadata,
            "widened": list(self.widened),
            **({"encoding": self.encoding} if self.encoding else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorCommit:
    """A commit that was read from the log.

    Attributes:
        version: The version of the Delta log.
        shown: The content of the commit. None if the mirror did not write it.
        added: For the key of each added file, the descriptor of its deletion vector or None.
        removed: The keys of the removed files.
        schema: The schema text of the commit's `metaData`, if any.
    """

    version: int
    shown: Shown | None
    added: Mapping[str, Json | None]
    removed: frozenset[str]
    schema: str | None


def encode_delta(actions: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the bytes of a commit."""
    return "".join(json.dumps(each, separators=(",", ":"), ensure_ascii=False) + "\n" for each in actions).encode()


def decode_delta(data: bytes, version: int, where: str) -> MirrorCommit:
    """Return the commit in these bytes. Raises `Corrupt` for the file `where`."""
    try:
        actions = [json.loads(line) for line in data.splitlines() if line.strip()]
        infos, adds, removes, metadata = (
            [each[name] for each in actions if each.get(name) is not None]
            for name in ("commitInfo", "add", "remove", "metaData")
        )
        own = next((each[OWN] for each in infos if OWN in each), None)
        return MirrorCommit(
            version=version,
            shown=None if own is None else _shown(own),
            added={unquote(each["path"]): each.get("deletionVector") for each in adds},
            removed=frozenset(unquote(each["path"]) for each in removes),
            schema=next((str(each["schemaString"]) for each in metadata), None),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Corrupt(f"{where}: not a commit of a Delta log: {error!r}", key=where) from error


def path_of(key: str) -> str:
    """Return the path of an object in Delta's form: a URI relative to the table."""
    return quote(key, safe="/=")


def delta_key(path: str) -> str:
    """Return the key of a path that `path_of` returned."""
    return unquote(path)


def vector(bitmap: bytes, cardinality: int) -> Json:
    """Return the descriptor of an inline deletion vector.

    `bitmap` is a portable Roaring bitmap of 32 bits and is not empty. Delta requires a bitmap of 64 bits. The 64-bit
    form begins with the number of 32-bit bitmaps. The upper 32 bits of the row numbers precede each 32-bit bitmap.
    """
    data = struct.pack("<IQI", _MAGIC, 1, 0) + bitmap
    return {"storageType": "i", "pathOrInlineDv": z85(data), "sizeInBytes": len(data), "cardinality": cardinality}


def z85(data: bytes) -> str:
    """Return the bytes in ZeroMQ's base 85, padded with zeros to whole words."""
    return base64.b85encode(data, pad=True).translate(_TO_Z85).decode()


def unz85(text: str) -> bytes:
    """Return the bytes of a text in ZeroMQ's base 85. Raises `ValueError` for any other text."""
    return base64.b85decode(text.encode("ascii").translate(_FROM_Z85))


def encode_delta_hint(version: int, *, actions: int, size_bytes: int, files: int) -> bytes:
    """Return the bytes of `_last_checkpoint`."""
    body = {"version": version, "size": actions, "sizeInBytes": size_bytes, "numOfAddFiles": files}
    return json.dumps(body, separators=(",", ":")).encode()


def decode_delta_hint(data: bytes) -> int | None:
    """Return the Delta version in the hint. Return None for invalid bytes, because no reader relies on a hint."""
    try:
        return number(json.loads(data).get("version"))
    except (ValueError, AttributeError, RecursionError):
        return None


def _shown(own: Any) -> Shown:
    return Shown(
        table_id=text(own["tableId"]),
        version=number(own["version"]),
        after=None if own["after"] is None else number(own["after"]),
        published_at_ms=number(own["publishedAtMs"]),
        id=text(own["id"]),
        features=tuple(map(text, own["features"])),
        metadata=text(own["metadata"]),
        widened=tuple(map(text, own["widened"])),
        encoding=text(own.get("encoding", "")),
    )


# The Iceberg mirror.

TABLE_ID: Final = "tidemark.table-id"
"""The property of the Iceberg table that contains the id of the Tidemark table."""

PUBLISHED_AT: Final = "tidemark.published-at-ms"
"""The entry in a snapshot's summary that only the mirror writes."""

_DELETED: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSnapshot:
    """A snapshot. The id of the snapshot is the version of the table that the snapshot shows.

    Attributes:
        version: The id of the snapshot.
        sequence: The number of its metadata file.
        files: The key of its manifest list.
        published_at_ms: The time at which the snapshot was published. None if the mirror did not write the snapshot.
    """

    version: int
    sequence: int
    files: str
    published_at_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergMetadata:
    """The content of a metadata file.

    Attributes:
        number: The number of the file.
        table_id: The id of the Tidemark table. None if the mirror did not write the file.
        root: The location of the Tidemark table.
        snapshots: The snapshots, with the oldest first.
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
    """An entry of a manifest. `key` is the key of a split.

    `version` is the version of the snapshot that added the split. If the entry is not live, `version` is the version of
    the snapshot that removed the split.
    """

    key: str
    version: int
    is_live: bool


def decode_iceberg(data: bytes, number_: int, where: str) -> IcebergMetadata:
    """Return the metadata in these bytes. Raises `Corrupt` for the file `where`."""
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


def decode_iceberg_hint(data: bytes) -> int | None:
    """Return the number in the hint. Return None for invalid bytes, because no reader relies on a hint."""
    found = data.decode("ascii", "replace").strip()
    return int(found) if found.isdecimal() and found.isascii() and 0 < len(found) < 20 else None


def encode_iceberg_hint(number_: int) -> bytes:
    """Return the bytes of `version-hint.text`."""
    return str(number_).encode()


def manifests_of(data: bytes, root: str, where: str) -> list[str]:
    """Return the keys of the manifests in a manifest list. Raises `Corrupt`."""
    return [iceberg_key(text(each["manifest_path"]), root) for each in _records(data, where)]


def files_of(data: bytes, root: str, where: str) -> list[NamedFile]:
    """Return the entries of a manifest. Raises `Corrupt`."""
    try:
        return [
            NamedFile(
                key=iceberg_key(text(each["data_file"]["file_path"]), root),
                version=number(each["snapshot_id"]),
                is_live=each["status"] != _DELETED,
            )
            for each in _records(data, where)
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"{where}: not a manifest of the mirror: {error!r}", key=where) from error


def iceberg_key(location: str, root: str) -> str:
    """Return the key of the object at a location, relative to the root folder of the table.

    Raises `ValueError` for a location outside the table.
    """
    if not location.startswith(f"{root}/"):
        raise ValueError(f"{location} is not in the folder {root}")
    return location[len(root) + 1 :]


def _snapshot(found: Any, root: str) -> ShownSnapshot:
    published = found["summary"].get(PUBLISHED_AT)
    return ShownSnapshot(
        version=number(found["snapshot-id"]),
        sequence=number(found["sequence-number"]),
        files=iceberg_key(text(found["manifest-list"]), root),
        published_at_ms=None if published is None else int(published),
    )


def _records(data: bytes, where: str) -> Iterator[Any]:
    import fastavro

    try:
        yield from fastavro.reader(io.BytesIO(data))
    except Exception as error:  # damaged Avro may raise any error
        raise Corrupt(f"{where}: not Avro of an Iceberg table: {error!r}", key=where) from error
