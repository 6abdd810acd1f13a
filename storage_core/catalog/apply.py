"""Versions of a table as changes of a catalogue: a whole snapshot, or what one commit changes.

Every function works in the transaction that it is given. A version is applied only on the one before it, and the first
statement says so, so that of several refreshers one applies it and the others see that it is done.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy import Connection

from storage_core.catalog.changes import Changes
from storage_core.catalog.insertion import bulk, insert
from storage_core.catalog.known import Known
from storage_core.catalog.rows import Columns, pieces, split_rows
from storage_core.catalog.schema import COMMITS, OF_A_TABLE, REGIONS, SEGMENTS, SPLITS, TABLES
from storage_core.errors import Corrupt
from storage_core.forget.metadata import OPERATION as FORGET
from storage_core.log.actions import Action, IndexSegment
from storage_core.log.encoding.codec import commit_info
from storage_core.log.files.columns import table_of
from storage_core.log.history import UNRECORDED
from storage_core.log.snapshot import Snapshot, commit_timestamp

PIECE_ROWS: Final = 10_000
"""Splits that are rows at a time, about 10 MB."""
_NAMES: Final = 500
"""Names in one statement."""

Row = Mapping[str, Any]
_NOTHING: Final[Row] = MappingProxyType({})
_WITHOUT_VALUES: Final[Row] = MappingProxyType(
    dict.fromkeys(("min_values", "max_values", "regexes", "partition_values", "min_time_us", "max_time_us"))
)
"""What a split that left has no more: values of its rows, of which some may be forgotten."""
_NO_TOTALS: Final = {"splits": 0, "rows": 0, "bytes": 0, "longest_time_us": 0}


def load(
    connection: Connection,
    snapshot: Snapshot,
    files: Iterable[pa.Table],
    *,
    about: Known,
    actions: Sequence[Action],
) -> None:
    """Make the table what the snapshot is, whose live splits are `files`.

    Whatever was there of the table, or of another at its URI, goes. `actions` are those of the snapshot's version, as
    far as they are retained.
    """
    with bulk(connection, len(snapshot.splits)):
        remove_table(connection, about.table_id, about.uri)
        totals = _load_splits(connection, snapshot, files, about)
    _insert(connection, SEGMENTS, [_segment(about, each) for each in snapshot.segments.values()])
    _insert(connection, REGIONS, [_region(about, *each) for each in snapshot.merged_generations.items()])
    _insert(connection, COMMITS, [_commit(about, actions)] if actions else [])
    _add_totals(connection, about.table_id, totals, {})


def _load_splits(connection: Connection, snapshot: Snapshot, files: Iterable[pa.Table], about: Known) -> dict[str, int]:
    columns = Columns.of(snapshot.metadata, snapshot.config)
    empty = dict.fromkeys(("longest_time_us", "live_splits", "live_rows", "live_bytes"), 0)
    connection.execute(TABLES.insert(), {**about.row(), **about.settings(), **empty})
    totals = dict(_NO_TOTALS)
    for table in files:
        for piece in pieces(table, PIECE_ROWS):
            rows = split_rows(piece, columns, about.table_id)
            insert(connection, SPLITS, rows)
            totals = _sum(totals, _totals_of(rows))
    return totals


def remove_table(connection: Connection, table_id: str, uri: str) -> None:
    """Take a table out, and what else is at its URI. Without a condition where nothing else is left: that is fast."""
    known = {row.table_id: row.uri for row in connection.execute(sa.select(TABLES.c.table_id, TABLES.c.uri))}
    gone = [each for each, place in known.items() if each == table_id or place == uri]
    for table in OF_A_TABLE if gone else ():
        everything = table.delete()
        connection.execute(everything if len(gone) == len(known) else everything.where(table.c.table_id.in_(gone)))


def apply(connection: Connection, before: Known, version: int, actions: Sequence[Action]) -> Known | None:
    """Apply one version on the one before it, and return what is known then.

    None where the catalogue is not at that one: nothing was done. Raises `Corrupt` for a version that is not later than
    the one before it, `Unsupported` for one that this release cannot read.
    """
    timestamp, info = commit_timestamp(actions, before.head_timestamp_ms), commit_info(actions)
    if info is not None and timestamp <= before.head_timestamp_ms:
        raise Corrupt(
            f"version {version} of {before.uri}: expected a commit after {before.head_timestamp_ms} ms, found one of "
            f"{timestamp} ms"
        )
    changes = Changes.of(actions)
    commit_id = info.commitId if info else ""
    after = replace(
        changes.settings(before), head_version=version, head_commit_id=commit_id, head_timestamp_ms=timestamp
    )
    if not _step(connection, before, after):
        return None
    gone = _close(connection, SPLITS.c.split_id, after, changes.closed, more=_WITHOUT_VALUES)
    if info is not None and info.operation == FORGET:  # earlier releases kept the bounds of splits that left
        left = (SPLITS.c.table_id == after.table_id, SPLITS.c.removed_version.is_not(None))
        connection.execute(SPLITS.update().where(*left).values(**_WITHOUT_VALUES))
    added = [*changes.added.values()]
    files = table_of(added, [(version, timestamp)] * len(added))
    rows = split_rows(files, Columns.of(after.metadata, after.config), after.table_id)
    insert(connection, SPLITS, rows)
    _close(connection, SEGMENTS.c.segment_id, after, changes.closed_segments)
    _insert(connection, SEGMENTS, [_segment(after, each) for each in changes.segments.values()])
    _apply_regions(connection, after, changes.regions)
    connection.execute(COMMITS.insert(), _commit(after, actions))
    _add_totals(connection, after.table_id, _totals_of(rows), _totals_gone(connection, after) if gone else _NO_TOTALS)
    return after


def _step(connection: Connection, before: Known, after: Known) -> bool:
    """Move the head, from exactly where it was."""
    moved = TABLES.update().where(
        TABLES.c.table_id == before.table_id,
        TABLES.c.head_version == before.head_version,
        TABLES.c.head_commit_id == before.head_commit_id,
        TABLES.c.uri == before.uri,
    )
    changed = after.row() if after.same_settings(before) else {**after.row(), **after.settings()}
    return before.head_version + 1 == after.head_version and connection.execute(moved.values(**changed)).rowcount == 1


def _close(
    connection: Connection, name: sa.Column[str], after: Known, closed: Collection[str], *, more: Row = _NOTHING
) -> int:
    """End the live rows of these names in the table of the column, and set `more`; return how many there were."""
    table, ended = name.table, 0
    for several in _batches(sorted(closed)):
        live = (table.c.table_id == after.table_id, name.in_(several), table.c.removed_version.is_(None))
        ending = sa.update(table).where(*live).values(removed_version=after.head_version, **more)
        ended += connection.execute(ending).rowcount
    return ended


def _apply_regions(connection: Connection, after: Known, regions: Mapping[str, int]) -> None:
    for several in _batches(sorted(regions)):
        there = (REGIONS.c.table_id == after.table_id, REGIONS.c.region.in_(several))
        connection.execute(REGIONS.delete().where(*there))
    _insert(connection, REGIONS, [_region(after, *each) for each in regions.items()])


def _batches(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(names), _NAMES):
        yield names[start : start + _NAMES]


def _insert(connection: Connection, table: sa.Table, rows: Sequence[Row]) -> None:
    if rows:
        connection.execute(table.insert(), [dict(row) for row in rows])


def _totals_of(rows: pa.Table) -> dict[str, int]:
    spans = pc.subtract(rows.column("max_time_us"), rows.column("min_time_us"))
    return {
        "splits": len(rows),
        "rows": (pc.sum(rows.column("rows")).as_py() or 0) - (pc.sum(rows.column("deleted_rows")).as_py() or 0),
        "bytes": pc.sum(rows.column("bytes")).as_py() or 0,
        "longest_time_us": pc.max(spans).as_py() or 0,
    }


def _totals_gone(connection: Connection, after: Known) -> dict[str, int]:
    """What the splits that left with this version had."""
    sums = (
        sa.func.count(),
        sa.func.sum(SPLITS.c.rows),
        sa.func.sum(SPLITS.c.deleted_rows),
        sa.func.sum(SPLITS.c.bytes),
    )
    gone = (SPLITS.c.table_id == after.table_id, SPLITS.c.removed_version == after.head_version)
    splits, rows, deleted, size = (int(each or 0) for each in connection.execute(sa.select(*sums).where(*gone)).one())
    return {"splits": splits, "rows": rows - deleted, "bytes": size, "longest_time_us": 0}


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    added = {name: one[name] + other[name] for name in ("splits", "rows", "bytes")}
    return {**added, "longest_time_us": max(one["longest_time_us"], other["longest_time_us"])}


def _add_totals(connection: Connection, table_id: str, added: Mapping[str, int], gone: Mapping[str, int]) -> None:
    changes: dict[str, Any] = {
        f"live_{name}": TABLES.c[f"live_{name}"] + (added[name] - gone.get(name, 0))
        for name in ("splits", "rows", "bytes")
    }
    longest = added["longest_time_us"]
    if longest:
        now = TABLES.c.longest_time_us
        changes["longest_time_us"] = sa.case((now < longest, longest), else_=now)
    connection.execute(TABLES.update().where(TABLES.c.table_id == table_id).values(**changes))


def _segment(at: Known, segment: IndexSegment) -> Row:
    return {
        "table_id": at.table_id,
        "segment_id": segment.path,
        "added_version": at.head_version,
        "index_name": segment.index,
        "kind": segment.kind,
        "bytes": segment.size,
        "rows": segment.numRecords,
        "covers": json.dumps(segment.covers),
    }


def _region(at: Known, region: str, generation: int) -> Row:
    return {
        "table_id": at.table_id,
        "region": region,
        "merged_generation": generation,
        "merged_version": at.head_version,
    }


def _commit(at: Known, actions: Sequence[Action]) -> Row:
    info, changes = commit_info(actions), Changes.of(actions)
    return {
        "table_id": at.table_id,
        "version": at.head_version,
        "commit_id": at.head_commit_id,
        "operation": info.operation if info else UNRECORDED,
        "committed_at_ms": at.head_timestamp_ms,
        "job_run_id": info.jobRunId if info else None,
        "splits_added": len(changes.added),
        "splits_removed": len(changes.closed - changes.added.keys()),
        "metrics": json.dumps(info.metrics if info else {}),
    }
