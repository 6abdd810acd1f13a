"""What a split file says about itself, and whether that equals what the log says (docs/architecture/compaction.md,
"Split files").

Everything is text in the Parquet key-value metadata, every key starting with `tidemark.`; a value that does not exist
(no window, no source) is an absent key. The rest of the metadata, including native statistics, belongs to Parquet.

Besides what the action says, a file knows its table and where it came from (`split.lineage`): enough to make the log
again from the files when the log itself is lost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, cast

import xxhash

from storage_core.errors import Corrupt
from storage_core.log.actions import Add
from storage_core.log.schema_registry import schema_hash
from storage_core.rows.sort_schema import nulls_of

PREFIX: Final = "tidemark."
FORMAT: Final = "1"
FORMAT_KEY: Final = PREFIX + "format"

CHECKSUM: Final = PREFIX + "seal"

# What the action does not carry, so that nobody can compare it with the log.
NOT_IN_THE_LOG: Final = frozenset(
    PREFIX + name
    for name in (
        "table_id",
        "schema_hash",
        "table_schema",
        "configuration",
        "planned_version",
        "operation",
        "operation_id",
        "replaces",
        "merged",
        "encodings",
        "row_groups",
        "chunk_checksums",
        "vector_pages",
        "seal",
    )
)


def describe(add: Add, *, table_id: str, schema_string: str) -> dict[str, str]:
    """Return the key-value metadata of the file that `add` speaks of; size and checksum cannot be part of it.

    `schema_string` is the schema of the columns that are really in the file, as Spark JSON; the file records its
    registry hash (docs/architecture/transaction-log.md, "Schema registry").
    """
    entries: dict[str, str | None] = {
        "format": FORMAT,
        "table_id": table_id,
        "path": add.path,
        "schema_hash": schema_hash(schema_string),
        "sort_schema": add.sortSchema,
        "nulls": nulls_of(add.sortSchema),
        "window_start": _number(add.windowStart),
        "window_seconds": _number(add.windowSeconds),
        "source_id": add.sourceId,
        "partition_id": add.partitionId,
        "partition_values": _json(add.partitionValues or None),
        "schema_ref": add.docMappingRef,
        "num_merge_ops": _number(add.numMergeOps),
        "num_records": _number(add.numRecords),
        "min_row_key": add.minRowKey,
        "max_row_key": add.maxRowKey,
        "min_values": _json(add.minValues),
        "max_values": _json(add.maxValues),
        "null_counts": _json(add.nullCounts),
        "column_regexes": _json(add.columnRegexes),
    }
    return {PREFIX + name: value for name, value in entries.items() if value is not None}


def differences(metadata: Mapping[str, str], add: Add) -> list[str]:
    """Return one sentence per field in which the file's own metadata and the action disagree; empty when they agree.

    What the action does not carry is left to the caller.
    """
    expected = describe(add, table_id="", schema_string="")
    return [
        f"{name}: the log says {expected.get(name)!r}, the file says {metadata.get(name)!r}"
        for name in sorted({*expected, *(key for key in metadata if key.startswith(PREFIX))} - NOT_IN_THE_LOG)
        if expected.get(name) != metadata.get(name)
    ]


def add_of(metadata: Mapping[str, str], path: str, *, size: int, modification_ms: int) -> Add:
    """Return the action that `describe` made this metadata of, without what only the whole file tells.

    That is its checksum and the place of its footer: `split.writer.with_file_metrics` adds them. `path` is where the
    file was found. Raises `Corrupt` naming it when the metadata is not that of a split there.
    """
    if metadata.get(PREFIX + "format") != FORMAT or metadata.get(PREFIX + "path") != path:
        raise Corrupt(f"{path}: the file there does not say that it is this split", key=path)
    text = {name: metadata.get(PREFIX + name) for name in ("sort_schema", "source_id", "partition_id", "schema_ref")}
    try:
        return Add(
            path=path,
            size=size,
            modificationTime=modification_ms,
            numMergeOps=_integer(metadata, "num_merge_ops"),
            numRecords=_integer(metadata, "num_records"),
            windowStart=_integer(metadata, "window_start"),
            windowSeconds=_integer(metadata, "window_seconds"),
            minRowKey=metadata.get(PREFIX + "min_row_key"),
            maxRowKey=metadata.get(PREFIX + "max_row_key"),
            minValues=json_object(metadata, "min_values"),
            maxValues=json_object(metadata, "max_values"),
            nullCounts=json_object(metadata, "null_counts"),
            columnRegexes=json_object(metadata, "column_regexes"),
            sortSchema=text["sort_schema"],
            sourceId=text["source_id"],
            partitionId=text["partition_id"],
            partitionValues=json_object(metadata, "partition_values") or {},
            docMappingRef=text["schema_ref"],
        )
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{path}: what the file says about itself cannot be read: {error}", key=path) from error


def json_object(metadata: Mapping[str, str], name: str) -> dict[str, Any] | None:
    """Return the JSON object that a key holds, None without the key. Raises `ValueError` for anything else."""
    text = metadata.get(PREFIX + name)
    if text is None:
        return None
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"{PREFIX + name} is no JSON object")  # noqa: TRY004  # the one error of text that does not read
    return cast("dict[str, Any]", value)


def _integer(metadata: Mapping[str, str], name: str) -> int | None:
    text = metadata.get(PREFIX + name)
    return None if text is None else int(text)


def with_checksum(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata with a checksum over all of it: a Parquet footer has none of its own."""
    return {**metadata, CHECKSUM: _digest(metadata)}


def require_checksum(metadata: Mapping[str, str], path: str) -> None:
    """Raise `Corrupt` naming `path` unless the metadata is what was written with its checksum."""
    found = _digest(metadata)
    if metadata.get(CHECKSUM) != found:
        raise Corrupt(f"{path}: what the file says about itself has the checksum {found}, not {metadata.get(CHECKSUM)}")


def _digest(metadata: Mapping[str, str]) -> str:
    own = {key: value for key, value in metadata.items() if key.startswith(PREFIX) and key != CHECKSUM}
    return xxhash.xxh3_64_hexdigest(json.dumps(own, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode())


def _json(values: Mapping[str, str] | Mapping[str, int] | None) -> str | None:
    if values is None:
        return None
    return json.dumps(dict(values), sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _number(value: int | None) -> str | None:
    return None if value is None else str(value)
