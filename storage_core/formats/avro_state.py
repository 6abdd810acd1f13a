"""The Avro state of a checkpoint as bytes: file entries and the state manifest (IndexTables protocol, appendix B).

Pure: records to bytes and back. The same records give the same bytes: map keys are sorted, the sync marker is fixed,
and nothing of the clock enters. Writing keeps the field ids and the order of the source; Tidemark's own fields follow
with ids from 160. Reading resolves by name, never by id: files with fields we do not know and files without ours open.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from storage_core.errors import Corrupt, Unsupported
from storage_core.formats.avro_container import (
    CHECKSUM_KEY,
    OPEN_CHECKSUM,
    inspect,
    read_columns,
    read_records,
    with_checksum,
)
from storage_core.formats.avro_progress import ProgressInfo, progress_info, progress_record
from storage_core.formats.avro_state_schema import ENTRY_SCHEMA, MAP_FIELDS, PROGRESS_STATE_SCHEMA, STATE_SCHEMA
from storage_core.formats.avro_writing import Compression, require_fits, write_container

FORMAT_VERSION = 1
PROGRESS_FORMAT_VERSION = 2
"""Of a state whose transactions are columns: early 0.1 would take them for absent, and ingest all again."""
STATE_PROTOCOL_VERSION = 4

Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestInfo:
    """One manifest that a state names: `path` as written, entries, versions covered, bounds per partition column.

    `windows` are the least and the greatest window start (s) of its entries, `window_seconds` their longest window;
    `without_window` counts the entries in no window. All three are None where the writer did not say.
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
    """The root of a state. `created_at` is in ms; `actions` are action lines for what the source has no field for.

    `metadata` is JSON text: wrapped in `{"metaData": …}`, bare, or None. `actions` is empty in states of others. With
    `progress` the transactions are in those objects, and none is among the actions.
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
    """Return an Avro file of the entries in the given order; absent optional fields become null.

    Raises `InvalidInput` for more entries than a manifest may hold.
    """
    records = [_sorted_maps(entry) for entry in entries]
    require_fits(len(records))
    return write_container(ENTRY_SCHEMA, records, compression)


def decode_entries(data: bytes, where: str) -> pa.Table:
    """Return the entries of an Avro file, one row each, columns as they are named there. Raises `Corrupt`."""
    return read_columns(data, where)


def encode_state(state: StateManifest, compression: Compression = Compression.ZSTD) -> bytes:
    """Return the bytes of a state manifest: of format 2 where its transactions are columns, else of format 1."""
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
    """Return the state manifest in `data`, whatever wrote it. Raises `Corrupt` naming `where`."""
    found = inspect(data, where)
    if found.records != 1:
        raise Corrupt(f"{where}: expected one state record, found {found.records}", key=where)
    (record,) = read_records(data, where, found)
    try:
        if max(record.get("formatVersion") or 0, FORMAT_VERSION) > PROGRESS_FORMAT_VERSION:
            raise Unsupported(
                f"{where}: state of format {record['formatVersion']}, this release reads 1 and 2; upgrade", key=where
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
        raise Corrupt(
            f"{where}: the state lacks a field it needs, or has another in its place: {error}", key=where
        ) from error


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
