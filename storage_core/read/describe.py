"""What a table is and holds, as plain data: the contract of `describe` and `files` (`docs/spec.md`)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict

import pyarrow as pa

from storage_core.ingest.delta_progress import delta_progress
from storage_core.log.actions import Add
from storage_core.log.sharing import SOURCE
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.rows.columns import default_of, stored_name
from storage_core.rows.sort_order import bind, nameless
from storage_core.rows.vectors import type_text
from storage_core.rows.windows import by_start
from storage_core.settings.index import IndexDefinition

Row = dict[str, object]


def describe(store: ObjectStore, snapshot: Snapshot, *, now_ms: int, recalls: Mapping[str, float] | None = None) -> Row:
    """Return one object with the table's metrics at this snapshot, as of `now_ms`, and recalls of indexes if measured.

    The region entries are read from the regions' manifests, which may be newer than the snapshot. A few GETs and HEADs
    per region of a keyed table; none otherwise.
    """
    config = snapshot.config
    return {
        "uri": store.uri,
        "table_id": snapshot.table_id,
        "kind": config.kind,
        "version": snapshot.version,
        "timestamp": snapshot.timestamp,
        "ahead_of_clock_ms": max(0, snapshot.timestamp - now_ms),
        "live_splits": len(snapshot.splits),
        "rows": snapshot.rows,
        "bytes": snapshot.bytes,
        "time_column": config.time_column,
        "sort_schema": config.sort_schema,
        "window_seconds": config.window_seconds,
        "partition_by": list(config.partition_by),
        "checkpoint_version": snapshot.checkpoint_version,
        "columns": [_column(each) for each in snapshot.schema],
        "sort_schemas": _sort_schemas(snapshot),
        "windows": _windows(snapshot),
        "indexes": [_index(snapshot, definition, recalls or {}) for definition in config.indexes],
        "regions": _regions(store, snapshot),
        **_progress(snapshot),
        **_delta(snapshot),
        **_clone_of(snapshot),
    }


def _clone_of(snapshot: Snapshot) -> Row:
    """Of a shallow clone the version of the table that it is one of, and the tag that keeps it there."""
    text = snapshot.metadata.configuration.get(SOURCE)
    return {} if text is None else {"clone_of": json.loads(text)}


def files(snapshot: Snapshot) -> Iterator[Row]:
    """Yield one object per live split, ordered by window and path."""
    names = {stored_name(field): field.name for field in snapshot.schema}
    for add in sorted(snapshot.splits.values(), key=_by_window):
        yield {
            "path": add.path,
            "size": add.size,
            "rows": None if add.numRecords is None else add.visible_rows,
            "window_start": add.windowStart,
            "partition_values": dict(add.partitionValues),
            "min_values": {names[name]: value for name, value in (add.minValues or {}).items() if name in names},
            "max_values": {names[name]: value for name, value in (add.maxValues or {}).items() if name in names},
        }


def _column(field: pa.Field) -> Row:
    """A column, with the text of what rows from before it was added have in it, null for null."""
    return {
        "name": field.name,
        "type": type_text(field.type),
        "nullable": field.nullable,
        "default": default_of(field),
    }


def _sort_schemas(snapshot: Snapshot) -> list[Row]:
    """How many splits follow which sort schema (null for splits without one), the table's first."""
    own = nameless(bind(snapshot.config, snapshot.schema).text)
    found: defaultdict[str | None, list[Add]] = defaultdict(list)
    for add in snapshot.splits.values():
        found[None if add.sortSchema is None else nameless(add.sortSchema)].append(add)
    return [
        {
            "sort_schema": text,
            "is_declared": text == own,
            "splits": len(adds),
            "rows": sum(add.visible_rows for add in adds),
            "bytes": sum(add.size for add in adds),
        }
        for text, adds in sorted(found.items(), key=lambda each: (each[0] != own, each[0] or ""))
    ]


def _by_window(add: Add) -> tuple[bool, int, str]:
    return (*by_start(add.windowStart), add.path)


def _progress(snapshot: Snapshot) -> Row:
    """What exactly-once remembers: kept transactions, and the objects of the state that they are in."""
    listed = snapshot.txns.listed
    parts = () if listed is None else listed.parts
    return {
        "progress_transactions": snapshot.txns.entries,
        "progress_objects": len(parts),
        "progress_bytes": sum(part.info.size_bytes for part in parts),
    }


def _delta(snapshot: Snapshot) -> Row:
    """Of a table that lands from a Delta table how far it is, and the versions that were gone before they were read."""
    reached = delta_progress(snapshot.txns)
    if reached is None:
        return {}
    gaps = [[each.first, each.last] for each in reached.gaps]
    return {"delta_source": {"id": reached.table_id, "next_version": reached.next_version, "gaps": gaps}}


def _windows(snapshot: Snapshot) -> list[Row]:
    groups: dict[tuple[int | None, int | None], list[Add]] = defaultdict(list)
    for add in sorted(snapshot.splits.values(), key=_by_window):
        groups[add.windowStart, add.windowSeconds].append(add)
    return [
        {
            "window_start": window,
            "window_seconds": seconds,
            "splits": len(adds),
            "rows": sum(add.visible_rows for add in adds),
            "bytes": sum(add.size for add in adds),
        }
        for (window, seconds), adds in sorted(groups.items(), key=lambda each: (by_start(each[0][0]), each[0][1] or 0))
    ]


def _index(snapshot: Snapshot, definition: IndexDefinition, recalls: Mapping[str, float]) -> Row:
    from storage_core.index.debt import debt  # which tables without indexes do not need

    found = asdict(debt(snapshot, definition.name))
    found["segments"] += found.pop("stale_segments")
    return {"name": definition.name, "kind": definition.kind, **found, "recall": recalls.get(definition.name)}


def _regions(store: ObjectStore, snapshot: Snapshot) -> list[Row]:
    if snapshot.config.kind != "keyed":
        return []
    from storage_core.region.progress import list_regions  # and protobuf, which tables without regions do not need

    return [
        {
            "region_id": state.region_id,
            "epoch": state.epoch,
            "current_generation": state.current_generation,
            "merged_generation": state.merged_generation,
        }
        for state in list_regions(store, snapshot)
    ]
