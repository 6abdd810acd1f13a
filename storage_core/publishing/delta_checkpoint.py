"""Checkpoints of the Delta log: a reader starts from the newest, however long the log is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from storage_core.formats.delta_log import OWN, Json, decode_hint, encode_hint
from storage_core.formats.keys import delta_checkpoint_key, delta_hint_key
from storage_core.log.files.columns import adds_of
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.create import create_derived
from storage_core.publishing.delta_files import DeltaFiles
from storage_core.publishing.delta_schema import MirrorSchema
from storage_core.publishing.hint import advance_hint

EVERY: Final = 10
"""Delta versions from one checkpoint to the next, as Delta has it."""

_TEXTS = pa.map_(pa.string(), pa.string())
_NAMES = pa.list_(pa.string())
_SCHEMA = pa.schema(
    {
        "txn": pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()}),
        "add": pa.struct(
            {
                "path": pa.string(),
                "partitionValues": _TEXTS,
                "size": pa.int64(),
                "modificationTime": pa.int64(),
                "dataChange": pa.bool_(),
                "stats": pa.string(),
                "tags": _TEXTS,
                "deletionVector": pa.struct(
                    {
                        "storageType": pa.string(),
                        "pathOrInlineDv": pa.string(),
                        "offset": pa.int32(),
                        "sizeInBytes": pa.int32(),
                        "cardinality": pa.int64(),
                    }
                ),
            }
        ),
        "remove": pa.struct(
            {
                "path": pa.string(),
                "deletionTimestamp": pa.int64(),
                "dataChange": pa.bool_(),
            }
        ),
        "metaData": pa.struct(
            {
                "id": pa.string(),
                "name": pa.string(),
                "description": pa.string(),
                "format": pa.struct({"provider": pa.string(), "options": _TEXTS}),
                "schemaString": pa.string(),
                "partitionColumns": _NAMES,
                "createdTime": pa.int64(),
                "configuration": _TEXTS,
            }
        ),
        "protocol": pa.struct(
            {
                "minReaderVersion": pa.int32(),
                "minWriterVersion": pa.int32(),
                "readerFeatures": _NAMES,
                "writerFeatures": _NAMES,
            }
        ),
    }
)


def write_checkpoint(store: ObjectStore, version: int, snapshot: Snapshot, schema: MirrorSchema) -> None:
    """Make sure that a Delta version, which shows the snapshot, has a checkpoint, and the hint is no older.

    Files that were removed are not in it: only a vacuum looks for them, and the mirror is not vacuumed. Those of one
    manifest at a time are records. One PUT, and a GET and a PUT of the hint; a GET per stored vector. Raises
    `CommitUnknown`.
    """
    data, files = _encoded(store, snapshot, schema)
    create_derived(store, delta_checkpoint_key(version), data, advice="publish again")
    hint = encode_hint(version, actions=files + 3, size_bytes=len(data), files=files)
    advance_hint(store, delta_hint_key(), version, hint, decode=decode_hint)


def _encoded(store: ObjectStore, snapshot: Snapshot, schema: MirrorSchema) -> tuple[bytes, int]:
    import pyarrow.parquet as pq

    stream, files = pa.BufferOutputStream(), 0
    with pq.ParquetWriter(stream, _SCHEMA, compression="snappy", store_schema=False) as writer:
        writer.write_table(_rows(_declared(snapshot, schema)))
        made = DeltaFiles(store, snapshot.schema)
        for table in snapshot.splits.tables():
            adds = [{"add": made.add(add, data_change=False)} for add in adds_of(table)]
            if adds:
                writer.write_table(_rows(adds))
            files += len(adds)
    return stream.getvalue().to_pybytes(), files


def _declared(snapshot: Snapshot, schema: MirrorSchema) -> list[Json]:
    return [
        {"protocol": schema.protocol},
        {"metaData": schema.metadata},
        {"txn": transaction(snapshot)},
    ]


def transaction(snapshot: Snapshot) -> Json:
    """Return the transaction by which any reader of Delta sees which version of the table is shown."""
    return {"appId": f"{OWN}:{snapshot.table_id}", "version": snapshot.version, "lastUpdated": snapshot.timestamp}


def _rows(actions: list[Json]) -> pa.Table:
    return pa.Table.from_pylist(list(map(_with_maps, actions)), schema=_SCHEMA)


def _with_maps(action: Json) -> Json:
    """The action with its maps as Arrow wants them."""
    ((name, fields),) = action.items()
    found = dict(_pairs(fields))
    if name == "metaData":
        found["format"] = dict(_pairs(fields["format"]))
    return {name: found}


def _pairs(fields: Json) -> Iterator[tuple[str, object]]:
    for name, value in fields.items():
        yield name, list(value.items()) if name in ("partitionValues", "options", "configuration") else value
