"""The Avro schemas of a state: entries and the state manifest, with the field ids and in the order of the source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage_core.formats.avro_declared import array, field, map_of, optional, or_null, record_schema

if TYPE_CHECKING:
    from fastavro.types import Schema

# (name, type, field id), in the order of the bytes. The first eighteen are the source's, unchanged.
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
    declared = field(name, kind, **{"field-id": number})
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
        field("path", "string"),
        field("numEntries", "long"),
        field("minAddedAtVersion", "long"),
        field("maxAddedAtVersion", "long"),
        optional("partitionBounds", map_of(_BOUNDS_SCHEMA)),
        field("tombstoneCount", "long", default=0),
        field("liveEntryCount", "long", default=-1),
        optional("minWindowStart", "long"),
        optional("maxWindowStart", "long"),
        optional("maxWindowSeconds", "long"),
        optional("entriesWithoutWindow", "long"),
    ],
)
_STATE_FIELDS = (
    field("formatVersion", "int"),
    field("stateVersion", "long"),
    field("createdAt", "long"),
    field("numFiles", "long"),
    field("totalBytes", "long"),
    field("protocolVersion", "int"),
    field("manifests", array(_MANIFEST_INFO_SCHEMA)),
    field("tombstones", array("string"), default=[]),
    field("schemaRegistry", map_of("string"), default={}),
    optional("metadata", "string"),
    field("actions", array("string"), default=[]),
)
_RANGE_SCHEMA: Schema = record_schema("AppIdRange", [field("min", "string"), field("max", "string")])
_PROGRESS_INFO_SCHEMA: Schema = record_schema(
    "ProgressInfoItem",
    [
        field("path", "string"),
        field("numEntries", "long"),
        field("sizeBytes", "long"),
        field("sorted", "boolean"),
        field("kinds", map_of(_RANGE_SCHEMA)),
    ],
)
STATE_SCHEMA: Schema = record_schema("StateManifest", _STATE_FIELDS, namespace="io.indextables.state")
PROGRESS_STATE_SCHEMA: Schema = record_schema(
    "StateManifest",
    [*_STATE_FIELDS, field("progress", array(_PROGRESS_INFO_SCHEMA), default=[])],
    namespace="io.indextables.state",
)
"""Of a state whose transactions are columns: format 2."""

PROGRESS_SCHEMA: Schema = record_schema(
    "ProgressEntry",
    [field("appId", "string"), optional("version", "long"), optional("lastUpdated", "long")],
    namespace="tidemark.progress",
)
