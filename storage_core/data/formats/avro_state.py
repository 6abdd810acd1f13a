"""The bytes of the Avro state of a checkpoint: file entries, transactions and the state manifest.

Appendix B of the IndexTables protocol defines the format. The same records always give the same bytes, because map keys
are sorted and the sync marker is fixed. No value depends on the clock. The protocol defines the field ids and the order
of fields. Tidemark's own fields come after the protocol's fields and have ids from 160. A reader resolves fields by
name and never by id. So a reader can open files with unknown fields, and files without Tidemark's fields.

Transactions may be in separate objects, as Avro columns (`ProgressInfo`). The state manifest then lists the objects
that contain transactions.

The functions convert records to bytes and back, without I/O.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from storage_core.base.errors import Corrupt, Unsupported
from storage_core.data.formats.avro import (
    CHECKSUM_KEY,
    OPEN_CHECKSUM,
    Compression,
    array,
    avro_field,
    inspect,
    map_of,
    optional,
    or_null,
    read_columns,
    read_records,
    record_schema,
    require_fits,
    with_checksum,
    write_container,
)

if TYPE_CHECKING:
    from fastavro.types import Schema


# Schemas.

# (name, type, field id), in the order of the bytes. The first eighteen fields are the unchanged fields of the protocol.
_ENTRY_FIELDS: tuple[tuple[str, object, int], ...] = (
    ("path", "string", 100),
    ("partitionValues", map_of("string"), 101),
    ("size", "long", 102),
    ("modificationTime", "long", 103),
    ("dataChange", "boolean", 104),
    ("stats", or_null("string"), 110),
    ("minValues", or_null(map_of("string")), 111),
    ("maxValues", or_null(map_of("string")), 112),
    ("numRecords", or_null("long"), 113),
    ("footerStartOffset", or_null("long"), 120),
    ("footerEndOffset", or_null("long"), 121),
    ("hasFooterOffsets", "boolean", 122),
    ("splitTags", or_null(array("string")), 130),
    ("numMergeOps", or_null("int"), 131),
    ("docMappingRef", or_null("string"), 132),
    ("uncompressedSizeBytes", or_null("long"), 133),
    ("addedAtVersion", "long", 140),
    ("addedAtTimestamp", "long", 141),
    ("windowStart", or_null("long"), 160),
    ("windowSeconds", or_null("long"), 161),
    ("sortSchema", or_null("string"), 162),
    ("sourceId", or_null("string"), 163),
    ("partitionId", or_null("string"), 164),
    ("minRowKey", or_null("string"), 165),
    ("maxRowKey", or_null("string"), 166),
    ("nullCounts", or_null(map_of("long")), 167),
    ("xxh3", or_null("string"), 168),
    ("deletionVector", or_null("string"), 169),
    ("docMappingJson", or_null("string"), 170),
    ("columnRegexes", or_null(map_of("string")), 171),
    ("footerXxh3", or_null("string"), 172),
)
MAP_FIELDS = ("partitionValues", "minValues", "maxValues", "nullCounts", "columnRegexes")


def _entry_field(name: str, kind: object, number: int) -> dict[str, object]:
    declared = avro_field(name, kind, **{"field-id": number})
    if isinstance(kind, list):
        declared["default"] = None
    if name == "hasFooterOffsets":
        declared["default"] = False
    return declared


ENTRY_SCHEMA: Schema = record_schema(
    "FileEntry", [_entry_field(*each) for each in _ENTRY_FIELDS], namespace="io.indextables.spark.transaction.avro"
)

_BOUNDS_SCHEMA: Schema = record_schema("PartitionBoundsItem", [optional("min", "string"), optional("max", "string")])
_MANIFEST_INFO_SCHEMA: Schema = record_schema(
    "ManifestInfoItem",
    [
        avro_field("path", "string"),
        avro_field("numEntries", "long"),
        avro_field("minAddedAtVersion", "long"),
        avro_field("maxAddedAtVersion", "long"),
        optional("partitionBounds", map_of(_BOUNDS_SCHEMA)),
        avro_field("tombstoneCount", "long", default=0),
        avro_field("liveEntryCount", "long", default=-1),
        optional("minWindowStart", "long"),
        optional("maxWindowStart", "long"),
        optional("maxWindowSeconds", "long"),
        optional("entriesWithoutWindow", "long"),
    ],
)
_STATE_FIELDS = (
    avro_field("formatVersion", "int"),
    avro_field("stateVersion", "long"),
    avro_field("createdAt", "long"),
    avro_field("numFiles", "long"),
    avro_field("totalBytes", "long"),
    avro_field("protocolVersion", "int"),
    avro_field("manifests", array(_MANIFEST_INFO_SCHEMA)),
    avro_field("tombstones", array("string"), default=[]),
    avro_field("schemaRegistry", map_of("string"), default={}),
    optional("metadata", "string"),
    avro_field("actions", array("string"), default=[]),
)
_RANGE_SCHEMA: Schema = record_schema("AppIdRange", [avro_field("min", "string"), avro_field("max", "string")])
_PROGRESS_INFO_SCHEMA: Schema = record_schema(
    "ProgressInfoItem",
    [
        avro_field("path", "string"),
        avro_field("numEntries", "long"),
        avro_field("sizeBytes", "long"),
        avro_field("sorted", "boolean"),
        avro_field("kinds", map_of(_RANGE_SCHEMA)),
    ],
)
STATE_SCHEMA: Schema = record_schema("StateManifest", _STATE_FIELDS, namespace="io.indextables.state")
PROGRESS_STATE_SCHEMA: Schema = record_schema(
    "StateManifest",
    [*_STATE_FIELDS, avro_field("progress", array(_PROGRESS_INFO_SCHEMA), default=[])],
    namespace="io.indextables.state",
)
"""The schema of a state that stores transactions as columns: format 2."""

PROGRESS_SCHEMA: Schema = record_schema(
    "ProgressEntry",
    [avro_field("appId", "string"), optional("version", "long"), optional("lastUpdated", "long")],
    namespace="tidemark.progress",
)


# Transactions.


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressInfo:
    """One object that contains transactions of a table. A state lists this object.

    If several objects are `in_order`, their ranges of appIds are disjoint. Objects that are not `in_order` may contain
    any appId. If several objects contain an appId, the object that is listed later has priority.

    Attributes:
        path: The path below the log.
        num_entries: The number of entries.
        size_bytes: The size in bytes.
        in_order: True if the object is one of the objects with disjoint ranges.
        kinds: The smallest and greatest appId of each kind. The kind is the part of an appId before its first colon. If
            there are many kinds, the entry `*` contains the bounds of all appIds.
    """

    path: str
    num_entries: int
    size_bytes: int
    in_order: bool
    kinds: Mapping[str, tuple[str, str]]

    @property
    def least(self) -> str:
        """The least appId among the entries."""
        return min(least for least, _ in self.kinds.values())

    @property
    def greatest(self) -> str:
        """The greatest appId among the entries."""
        return max(greatest for _, greatest in self.kinds.values())


ProgressRow = tuple[str, int | None, int | None]
"""The appId, the version (None if the transaction was pruned), and the time of recording in ms if it is known."""


def encode_progress(rows: Iterable[ProgressRow], compression: Compression = Compression.ZSTD) -> bytes:
    """Return an Avro file of the transactions in the given order. Raises `InvalidInput` for too many transactions."""
    records = [{"appId": app, "version": version, "lastUpdated": at} for app, version, at in rows]
    require_fits(len(records))
    return write_container(PROGRESS_SCHEMA, records, compression)


def decode_progress(data: bytes, where: str) -> list[ProgressRow]:
    """Return the transactions of an Avro file in its order. Raises `Corrupt` for the file `where`."""
    found = read_columns(data, where)
    try:
        apps = found.column("appId").cast(pa.string())
        numbers = [found.column(name).cast(pa.int64()) for name in ("version", "lastUpdated")]
    except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Corrupt(f"{where}: the columns are not those of transactions: {error}", key=where) from error
    if apps.null_count:
        raise Corrupt(f"{where}: a transaction without an appId", key=where)
    return list(zip(apps.to_pylist(), *(column.to_pylist() for column in numbers), strict=True))


def progress_record(info: ProgressInfo) -> dict[str, object]:
    """Return the record that describes one object in the root of a state."""
    return {
        "path": info.path,
        "numEntries": info.num_entries,
        "sizeBytes": info.size_bytes,
        "sorted": info.in_order,
        "kinds": {kind: {"min": least, "max": most} for kind, (least, most) in sorted(info.kinds.items())},
    }


def progress_info(record: Mapping[str, Any]) -> ProgressInfo:
    """Return the object that a record in the root of a state describes. Raises `KeyError` if a field is missing."""
    if not record["kinds"]:
        raise KeyError("kinds")
    return ProgressInfo(
        path=record["path"],
        num_entries=record["numEntries"],
        size_bytes=record["sizeBytes"],
        in_order=record["sorted"],
        kinds={kind: (each["min"], each["max"]) for kind, each in record["kinds"].items()},
    )


# Entries and the state manifest.

FORMAT_VERSION = 1
PROGRESS_FORMAT_VERSION = 2
"""The format of a state that stores transactions as columns.

Early 0.1 releases refuse this format. Otherwise these releases would ignore the transactions and ingest all files
again.
"""
STATE_PROTOCOL_VERSION = 4

Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestInfo:
    """One manifest that a state lists.

    Attributes:
        path: The path as written.
        num_entries: The number of entries.
        min_added_at_version: The first version that added an entry of the manifest.
        max_added_at_version: The last version that added an entry of the manifest.
        partition_bounds: The bounds of each partition column.
        windows: The smallest and the greatest window start of the entries, in seconds. None if unknown.
        window_seconds: The duration of the longest window of the entries. None if unknown.
        without_window: The number of entries without a window. None if unknown.
    """

    path: str
    num_entries: int
    min_added_at_version: int
    max_added_at_version: int
    partition_bounds: Mapping[str, tuple[str | None, str | None]] | None = None
    windows: tuple[int, int] | None = None
    window_seconds: int | None = None
    without_window: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateManifest:
    """The root of a state. `created_at` is in ms.

    `metadata` is None or JSON text, which may be wrapped in `{"metaData": …}`. `actions` contains the log lines of
    actions for which the protocol has no field. If another program wrote the state, `actions` is empty. If `progress`
    is not empty, its objects contain the transactions, and `actions` contains no transactions.
    """

    state_version: int
    created_at: int
    num_files: int
    total_bytes: int
    manifests: tuple[ManifestInfo, ...]
    tombstones: tuple[str, ...] = ()
    schema_registry: Mapping[str, str] = field(default_factory=dict)
    metadata: str | None = None
    actions: tuple[str, ...] = ()
    progress: tuple[ProgressInfo, ...] = ()
    protocol_version: int = STATE_PROTOCOL_VERSION


def content_id(data: bytes) -> str:
    """Return the id of a manifest: the first 16 hex digits of the SHA-256 of its content."""
    return hashlib.sha256(data).hexdigest()[:16]


def encode_entries(entries: Iterable[Entry], compression: Compression = Compression.ZSTD) -> bytes:
    """Return an Avro file of the entries in the given order. Absent optional fields become null.

    Raises `InvalidInput` for more entries than a manifest may contain.
    """
    records = [_sorted_maps(entry) for entry in entries]
    require_fits(len(records))
    return write_container(ENTRY_SCHEMA, records, compression)


def decode_entries(data: bytes, where: str) -> pa.Table:
    """Return the entries of an Avro file as a table with one row per entry.

    The column names are those of the file. Raises `Corrupt`.
    """
    return read_columns(data, where)


def encode_state(state: StateManifest, compression: Compression = Compression.ZSTD) -> bytes:
    """Return the bytes of a state manifest.

    The format is 2 if the state stores transactions as columns. If the state does not store transactions as columns,
    the format is 1.
    """
    with_progress = {"progress": [progress_record(each) for each in state.progress]} if state.progress else {}
    record = {
        "formatVersion": PROGRESS_FORMAT_VERSION if state.progress else FORMAT_VERSION,
        "stateVersion": state.state_version,
        "createdAt": state.created_at,
        "numFiles": state.num_files,
        "totalBytes": state.total_bytes,
        "protocolVersion": state.protocol_version,
        "manifests": [_manifest_record(each) for each in state.manifests],
        "tombstones": sorted(state.tombstones),
        "schemaRegistry": dict(sorted(state.schema_registry.items())),
        "metadata": state.metadata,
        "actions": list(state.actions),
        **with_progress,
    }
    schema = PROGRESS_STATE_SCHEMA if state.progress else STATE_SCHEMA
    return with_checksum(write_container(schema, [record], compression, {CHECKSUM_KEY: OPEN_CHECKSUM}))


def decode_state(data: bytes, where: str) -> StateManifest:
    """Return the state manifest in `data`, from any writer. Raises `Corrupt` for the file `where`."""
    found = inspect(data, where)
    if found.records != 1:
        raise Corrupt(f"{where}: expected one state record, found {found.records}", key=where)
    (record,) = read_records(data, where, found)
    try:
        if max(record.get("formatVersion") or 0, FORMAT_VERSION) > PROGRESS_FORMAT_VERSION:
            raise Unsupported(
                f"{where}: state of format {record['formatVersion']}, this release reads 1 and 2. Upgrade Tidemark",
                key=where,
            )
        return StateManifest(
            state_version=record["stateVersion"],
            created_at=record.get("createdAt") or 0,
            num_files=record.get("numFiles") or 0,
            total_bytes=record.get("totalBytes") or 0,
            manifests=tuple(_manifest_info(each) for each in record["manifests"]),
            tombstones=tuple(record.get("tombstones") or ()),
            schema_registry=record.get("schemaRegistry") or {},
            metadata=record.get("metadata"),
            actions=tuple(record.get("actions") or ()),
            progress=tuple(progress_info(each) for each in record.get("progress") or ()),
            protocol_version=record.get("protocolVersion") or STATE_PROTOCOL_VERSION,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise Corrupt(f"{where}: a field of the state is missing or has a wrong type: {error}", key=where) from error


def _manifest_record(info: ManifestInfo) -> dict[str, object]:
    bounds = info.partition_bounds
    return {
        "path": info.path,
        "numEntries": info.num_entries,
        "minAddedAtVersion": info.min_added_at_version,
        "maxAddedAtVersion": info.max_added_at_version,
        "partitionBounds": bounds and {name: {"min": low, "max": high} for name, (low, high) in sorted(bounds.items())},
        "tombstoneCount": 0,
        "liveEntryCount": info.num_entries,
        "minWindowStart": info.windows and info.windows[0],
        "maxWindowStart": info.windows and info.windows[1],
        "maxWindowSeconds": info.window_seconds,
        "entriesWithoutWindow": info.without_window,
    }


def _manifest_info(record: Mapping[str, Any]) -> ManifestInfo:
    bounds = record.get("partitionBounds")
    least, greatest = record.get("minWindowStart"), record.get("maxWindowStart")
    return ManifestInfo(
        path=record["path"],
        num_entries=record["numEntries"],
        min_added_at_version=record.get("minAddedAtVersion") or 0,
        max_added_at_version=record.get("maxAddedAtVersion") or 0,
        partition_bounds=bounds and {name: (each.get("min"), each.get("max")) for name, each in bounds.items()},
        windows=None if least is None or greatest is None else (least, greatest),
        window_seconds=record.get("maxWindowSeconds"),
        without_window=record.get("entriesWithoutWindow"),
    )


def _sorted_maps(entry: Entry) -> dict[str, Any]:
    return {**entry, **{name: dict(sorted(entry[name].items())) for name in MAP_FIELDS if entry.get(name)}}
