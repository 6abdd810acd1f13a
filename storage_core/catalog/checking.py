"""What a catalogue says of a table against what the log says of the same version."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Connection

from storage_core.catalog.known import Known
from storage_core.catalog.rows import Columns, pieces, split_rows, texts_of
from storage_core.catalog.schema import LIVE, REGIONS, SEGMENTS, SPLITS, TABLES
from storage_core.errors import NotFound
from storage_core.log.advance import read_version
from storage_core.log.encoding.codec import commit_info
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot

MOST_SHOWN: Final = 20
_PIECE: Final = 500
_OBJECTS: Final = ("partition_values", "min_values", "max_values", "null_counts", "regexes")


@dataclass(slots=True)
class Checked:
    """What was compared, and where the catalogue differs: `differences` counts, `shown` has the first of them."""

    name: str
    uri: str
    version: int
    splits: int = 0
    differences: int = 0
    shown: list[str] = field(default_factory=list)

    def differs(self, text: str) -> None:
        """Note a difference."""
        self.differences += 1
        if len(self.shown) < MOST_SHOWN:
            self.shown.append(text)


def check(connection: Connection, known: Known, log: TransactionLog) -> Checked:
    """Compare the table at the version that the catalogue shows with the log's snapshot of it.

    Requests: those of opening the version, and of reading every manifest; one statement per 500 splits. Raises
    `NotFound` where there is no table any more.
    """
    found = Checked(known.name, known.uri, known.head_version)
    try:
        snapshot = log.snapshot(version=known.head_version)
    except NotFound:
        newest = log.snapshot()
        if known.is_of(newest):
            found.differs(f"version {known.head_version} cannot be opened any more; the newest is {newest.version}")
            return found
        snapshot = newest
    if not known.is_of(snapshot):
        found.differs(f"table_id is {known.table_id}, of the table there {snapshot.table_id}")
        return found
    _check_head(found, known, snapshot, log)
    _check_splits(connection, found, known, snapshot)
    _check_others(connection, found, known, snapshot)
    return found


def _check_head(found: Checked, known: Known, snapshot: Snapshot, log: TransactionLog) -> None:
    info = commit_info(read_version(log.store, snapshot.version) or ())
    if info is not None and info.commitId != known.head_commit_id:
        found.differs(f"the commit of version {snapshot.version} is {known.head_commit_id}, in the log {info.commitId}")
    wanted = Known.of(snapshot, name=known.name, uri=known.uri, commit_id=known.head_commit_id)
    for name in ("head_timestamp_ms", "protocol", "schema_string", "configuration"):
        if getattr(known, name) != getattr(wanted, name):
            found.differs(f"{name} is {getattr(known, name)!r}, in the log {getattr(wanted, name)!r}")


def _check_splits(connection: Connection, found: Checked, known: Known, snapshot: Snapshot) -> None:
    columns = known.columns
    for table in snapshot.splits.passing():
        for piece in pieces(split_rows(table, columns, known.table_id), _PIECE):
            wanted = {row["split_id"]: row for row in piece.to_pylist()}
            there = _live(connection, known, [*wanted])
            for path, row in wanted.items():
                _compare(found, path, _plain(row, columns), None if path not in there else _plain(there[path], columns))
            found.splits += len(wanted)
    totals = {"splits": len(snapshot.splits), "rows": snapshot.rows, "bytes": snapshot.bytes}
    about = connection.execute(sa.select(TABLES).where(TABLES.c.table_id == known.table_id)).mappings().one()
    for name, value in totals.items():
        if about[f"live_{name}"] != value:
            found.differs(f"live_{name} is {about[f'live_{name}']}, in the log {value}")
    live = connection.execute(
        sa.select(sa.func.count()).select_from(SPLITS).where(SPLITS.c.table_id == known.table_id, LIVE)
    ).scalar_one()
    if live != found.splits:
        found.differs(f"{live} splits are live, in the log {found.splits}")


def _live(connection: Connection, known: Known, paths: list[str]) -> dict[str, Mapping[str, Any]]:
    wanted = sa.select(SPLITS).where(SPLITS.c.table_id == known.table_id, SPLITS.c.split_id.in_(paths), LIVE)
    return {row["split_id"]: dict(row) for row in connection.execute(wanted).mappings()}


def _plain(row: Mapping[str, Any], columns: Columns) -> dict[str, Any]:
    """The row with its JSON objects read, so that no spelling makes a difference."""
    plain = {name: value for name, value in row.items() if name != "removed_version"}
    names = columns.names
    for name in _OBJECTS:
        known = None if name == "partition_values" else names
        plain[name] = None if row[name] is None else texts_of(row[name], known)
    return plain


def _compare(found: Checked, path: str, wanted: Mapping[str, Any], there: Mapping[str, Any] | None) -> None:
    if there is None:
        found.differs(f"{path}: not live in the catalogue")
        return
    for name in wanted:
        if wanted[name] != there[name]:
            found.differs(f"{path}: {name} is {there[name]!r}, in the log {wanted[name]!r}")


def _check_others(connection: Connection, found: Checked, known: Known, snapshot: Snapshot) -> None:
    wanted = sa.select(SEGMENTS).where(SEGMENTS.c.table_id == known.table_id, SEGMENTS.c.removed_version.is_(None))
    segments = {
        row["segment_id"]: (row["index_name"], row["kind"], row["bytes"], row["rows"], json.loads(row["covers"]))
        for row in connection.execute(wanted).mappings()
    }
    of_log = {
        path: (each.index, each.kind, each.size, each.numRecords, list(each.covers))
        for path, each in snapshot.segments.items()
    }
    regions = sa.select(REGIONS.c.region, REGIONS.c.merged_generation).where(REGIONS.c.table_id == known.table_id)
    merged = {str(region): int(generation) for region, generation in connection.execute(regions)}
    for text in _differing("segment", segments, of_log):
        found.differs(text)
    for text in _differing("region", merged, dict(snapshot.merged_generations)):
        found.differs(text)


def _differing(what: str, there: Mapping[str, object], wanted: Mapping[str, object]) -> Iterator[str]:
    for name in sorted(there.keys() | wanted.keys()):
        if there.get(name) != wanted.get(name):
            yield f"{what} {name} is {there.get(name)!r}, in the log {wanted.get(name)!r}"
