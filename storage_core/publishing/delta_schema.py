"""The columns of a table as Delta has them, and what a reader must know to read their splits.

Splits never change, so a Delta column is found in them by the name that they have for it. Where that is the column's
own name nothing needs to be said; else Delta maps names (`columnMapping`), with the ids of the columns. Not all readers
know each feature, so a table has those that it needs and no more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from storage_core.formats.delta_log import OWN, Json
from storage_core.formats.short_hash import short_hash
from storage_core.log.snapshot import Snapshot
from storage_core.rows.columns import column_id, numbered, stored_name
from storage_core.settings.json_text import json_text

VECTORS: Final = "deletionVectors"
MAPPING: Final = "columnMapping"
_NO_ZONE: Final = "timestampNtz"
_NEEDS_MAPPING = re.compile(r"[ ,;{}()\n\t=]")
"""Characters that Delta admits in a name only where it maps names."""

_INNER_IDS: Final = 2**30
"""From here on fields inside of columns have ids; those of columns are small."""

_INNER_BITS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSchema:
    """What a commit declares of its table: actions, and what of them the next one has to know."""

    features: tuple[str, ...]
    metadata: Json
    protocol: Json

    @property
    def checksum(self) -> str:
        """Text that differs where the metadata or the protocol does."""
        return short_hash(json.dumps([self.metadata, self.protocol], sort_keys=True))


def delta_schema(snapshot: Snapshot, *, features: tuple[str, ...], has_vectors: bool) -> MirrorSchema:
    """Return what Delta is told of the table, which has these `features` already: none is ever taken back."""
    found = {*features, *_needed(snapshot.schema)}
    if has_vectors:
        found.add(VECTORS)
    needed = tuple(sorted(found))
    return MirrorSchema(features=needed, metadata=_metadata(snapshot, needed), protocol=_protocol(needed))


def widened(before: Mapping[str, str], types: Mapping[str, str]) -> frozenset[str]:
    """Return the columns whose numbers became wider, of types by the names that splits have for the columns."""
    return frozenset(name for name, type_ in types.items() if before.get(name, type_) not in (type_, "date"))


def types_of(schema_string: str) -> dict[str, str]:
    """Return the types of the columns that are no structures, by the names that splits have, of ours or of Delta's."""
    fields = json.loads(schema_string)["fields"] if schema_string else []
    names = ((_stored(each), each["type"]) for each in fields)
    return {name: type_ for name, type_ in names if isinstance(type_, str)}


def _stored(field: Json) -> str:
    metadata = field.get("metadata") or {}
    name = metadata.get("delta.columnMapping.physicalName") or metadata.get("tidemark.storedName") or field["name"]
    return str(name)


def _needed(schema: pa.Schema) -> Iterator[str]:
    if any(stored_name(field) != field.name or _NEEDS_MAPPING.search(field.name) for field in schema):
        yield MAPPING
    if any(_has_no_zone(field.type) for field in schema):
        yield _NO_ZONE


def _has_no_zone(type_: pa.DataType) -> bool:
    if pa.types.is_timestamp(type_):
        return type_.tz is None
    return any(_has_no_zone(type_.field(place).type) for place in range(type_.num_fields))


def _protocol(features: tuple[str, ...]) -> Json:
    # The first of these, as a setting, lets readers ask what changed; the third is for required columns.
    writers = [*features, "changeDataFeed", "inCommitTimestamp", "invariants", OWN]
    readers: Json = {"minReaderVersion": 3, "readerFeatures": list(features)} if features else {"minReaderVersion": 1}
    return {**readers, "minWriterVersion": 7, "writerFeatures": writers}


def _metadata(snapshot: Snapshot, features: tuple[str, ...]) -> Json:
    retention = f"interval {max(1, snapshot.config.version_retention_ms // 1000)} seconds"
    configuration = {
        "delta.enableChangeDataFeed": "true",
        "delta.enableInCommitTimestamps": "true",
        "delta.logRetentionDuration": retention,
        "delta.deletedFileRetentionDuration": retention,
    }
    if VECTORS in features:
        configuration["delta.enableDeletionVectors"] = "true"
    columns = numbered(snapshot.schema)
    fields = json.loads(snapshot.metadata.schemaString)["fields"]
    mapped = MAPPING in features
    shown = [_field(each, columns.field(each["name"]), mapped=mapped) for each in fields]
    if mapped:
        configuration["delta.columnMapping.mode"] = "name"
        configuration["delta.columnMapping.maxColumnId"] = str(max(_ids(shown)))
    return {
        "id": snapshot.table_id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json_text({"type": "struct", "fields": shown}),
        "partitionColumns": [],
        "createdTime": snapshot.metadata.createdTime,
        "configuration": configuration,
    }


def _field(spark: Json, column: pa.Field, *, mapped: bool) -> Json:
    found = {name: spark[name] for name in ("name", "type", "nullable")}
    if not mapped:
        return {**found, "metadata": {}}
    number = column_id(column) or 0
    inner = iter(range(_INNER_IDS + (number << _INNER_BITS), _INNER_IDS + ((number + 1) << _INNER_BITS)))
    return {**found, "type": _with_ids(spark["type"], inner), "metadata": _mapping(number, stored_name(column))}


def _mapping(number: int, name: str) -> Json:
    return {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": name}


def _with_ids(type_: Any, ids: Iterator[int]) -> Any:
    """A type whose inner fields have ids and names: as in Delta, only those of structures."""
    if not isinstance(type_, dict):
        return type_
    found = {name: _with_ids(each, ids) for name, each in type_.items() if name != "fields"}
    if "fields" in type_:
        found["fields"] = [
            {**each, "type": _with_ids(each["type"], ids), "metadata": _mapping(next(ids), each["name"])}
            for each in type_["fields"]
        ]
    return found


def _ids(value: Any) -> Iterator[int]:
    if isinstance(value, dict):
        if "delta.columnMapping.id" in value:
            yield value["delta.columnMapping.id"]
        for each in value.values():
            yield from _ids(each)
    elif isinstance(value, list):
        for each in value:
            yield from _ids(each)
