"""What a split file says about itself, and whether that equals what the log says (design page 04, "Split files").

Everything is text in the Parquet key-value metadata, every key starting with `tidemark.`; a value that does not exist
(no window, no source) is an absent key. The rest of the metadata, including native statistics, belongs to Parquet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from storage_core.log.actions import Add
from storage_core.log.schema_registry import schema_hash

PREFIX: Final = "tidemark."
FORMAT: Final = "1"
NULLS: Final = "last"
"""Where nulls sort. A property of every sort schema; this release writes no other rule."""


def describe(add: Add, *, table_id: str, schema_string: str) -> dict[str, str]:
    """Return the key-value metadata of the file that `add` speaks of; size and checksum cannot be part of it.

    `schema_string` is the schema of the columns that are really in the file, as Spark JSON; the file records its
    registry hash (design page 02, "Schema registry").
    """
    entries: dict[str, str | None] = {
        "format": FORMAT,
        "table_id": table_id,
        "path": add.path,
        "schema_hash": schema_hash(schema_string),
        "sort_schema": add.sortSchema,
        "nulls": NULLS,
        "window_start": _number(add.windowStart),
        "window_seconds": _number(add.windowSeconds),
        "source_id": add.sourceId,
        "partition_id": add.partitionId,
        "num_merge_ops": _number(add.numMergeOps),
        "num_records": _number(add.numRecords),
        "min_row_key": add.minRowKey,
        "max_row_key": add.maxRowKey,
        "min_values": _json(add.minValues),
        "max_values": _json(add.maxValues),
        "null_counts": _json(add.nullCounts),
    }
    return {PREFIX + name: value for name, value in entries.items() if value is not None}


def differences(metadata: Mapping[str, str], add: Add) -> list[str]:
    """Return one sentence per field in which the file's own metadata and the action disagree; empty when they agree.

    The table id and the schema hash are left to the caller: the action does not carry them.
    """
    expected = describe(add, table_id="", schema_string="")
    ignored = {PREFIX + "table_id", PREFIX + "schema_hash"}
    return [
        f"{name}: the log says {expected.get(name)!r}, the file says {metadata.get(name)!r}"
        for name in sorted({*expected, *(key for key in metadata if key.startswith(PREFIX))} - ignored)
        if expected.get(name) != metadata.get(name)
    ]


def _json(values: Mapping[str, str] | Mapping[str, int] | None) -> str | None:
    if values is None:
        return None
    return json.dumps(dict(values), sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _number(value: int | None) -> str | None:
    return None if value is None else str(value)
