"""A small indexed table.

Merges move the table's rows to other splits. Each step runs as in a job. Every search can be compared with a scan.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from storage_core.compact import execute as compaction
from storage_core.compact.carry_over import CarryOver
from storage_core.compact.work import OPERATION, CompactionTask
from storage_core.data.rows.schema import to_schema_string
from storage_core.data.rows.sort_order import recorded_order
from storage_core.data.rows.vectors import vector_type
from storage_core.data.settings.index import IndexDefinition
from storage_core.data.settings.table import TableConfig
from storage_core.index import catch_up, segment_merge
from storage_core.index.segment_merge import MergedSegments, SegmentMerge
from storage_core.log.actions import IndexSegment, Metadata
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.split.context import context_of
from storage_core.split.read import read_split
from storage_core.split.writer import Rewrite, sort_and_write
from storage_core.store.contract import ObjectStore
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from tests.support.brute_force import distance
from tests.support.clock import ManualClock
from tests.support.deleted_rows import delete_places
from tests.support.ids import SeededIds
from tests.support.merge_plan import in_parts
from tests.support.searching import search

SCHEMA = pa.schema(
    [("at", pa.timestamp("us", "UTC")), ("id", pa.int64()), ("tag", pa.string()), ("words", pa.string())]
)
TEXT = IndexDefinition("text", "fulltext", ("words",))
TAGS = IndexDefinition("tags", "bitmap", ("tag",))
CONFIG = TableConfig(
    time_column="at",
    sort_schema="tag|timestamp/V2",
    window_seconds=3600,
    indexes=(TEXT, TAGS),
    version_retention_ms=1_000,
    gc_horizon_ms=1_000,
)
NEAR = IndexDefinition("near", "vector", ("place",), {"quantization": "none"})
WITH_PLACES = SCHEMA.append(pa.field("place", vector_type(2)))
"""The schema of a table that also has the index `NEAR`."""
HERE = [1.2, 0.4]
TAG_VALUES = ("x", "y", "z", None)
WORDS = ("ebb", "flood", "tide")
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Moving:
    """Merges that were executed and are not committed yet."""

    planned: Snapshot
    made: Sequence[tuple[CompactionTask, Rewrite]]


@dataclass(frozen=True, slots=True)
class Indexing:
    """A catch-up that was executed and is not committed yet."""

    planned: Snapshot
    plan: catch_up.CatchUpPlan
    built: Sequence[IndexSegment]
    merged: Sequence[MergedSegments] = ()


class IndexedTable:
    """A table in its own store. `retokenised` counts the rows that catch-ups of the table indexed."""

    def __init__(
        self,
        store: ObjectStore | None = None,
        config: TableConfig = CONFIG,
        *,
        seed: int = 1,
        schema: pa.Schema = SCHEMA,
    ) -> None:
        """Create the table unless it exists."""
        self.clock = ManualClock(step_ms=1)
        self.store = MeteredStore(store or MemoryStore("indexed", clock=self.clock))
        self.ids = SeededIds(seed)
        self.log = TransactionLog(self.store, clock=self.clock, ids=self.ids)
        self.retokenised = 0
        self._next = 0
        if not self.log.exists():
            configuration = config.to_configuration()
            self.log.create(
                Metadata(id=self.ids.uuid(), schemaString=to_schema_string(schema), configuration=configuration)
            )

    @property
    def snapshot(self) -> Snapshot:
        """Return the newest version."""
        return self.log.snapshot()

    def append(self, rows: Iterable[tuple[int, str | None, str | None]]) -> Snapshot:
        """Add rows of (hour, tag, words), one split per window."""
        made = []
        for hour, tag, words in rows:
            at = dt.datetime.fromtimestamp(hour * 3600 + self._next % 3600, dt.UTC)
            made.append({"at": at, "id": self._next, "tag": tag, "words": words, "place": _place(self._next)})
            self._next += 1
        return self.add(pa.Table.from_pylist(made, schema=self.snapshot.schema))

    def add(self, table: pa.Table) -> Snapshot:
        """Add rows, one split per window."""
        snapshot = self.snapshot
        adds = sort_and_write(self.store, table, context=context_of(snapshot), ids=self.ids, now_ms=self.clock.now_ms())
        return self.log.commit(snapshot, adds, operation="APPEND").snapshot

    def delete(self, places: Mapping[str, Iterable[int]]) -> Snapshot:
        """Delete rows of live splits by position."""
        return delete_places(self.log, places)

    def merge(self, inputs: Sequence[Sequence[str]], *, target_bytes: int | None = None) -> Moving:
        """Merge these groups of live splits, without a commit.

        Each group is in one window, and outputs have about `target_bytes`.
        """
        snapshot = self.snapshot
        config = snapshot.config
        order = recorded_order(config.sort_schema or "", config, snapshot.schema)
        assert order is not None
        context = replace(context_of(snapshot), order=order, target_bytes=target_bytes or config.target_split_bytes)
        made = []
        for paths in inputs:
            adds = tuple(snapshot.splits[path] for path in paths)
            for task in in_parts(self.store, CompactionTask(adds[0].windowStart, adds, context), ids=self.ids):
                done = compaction.execute(self.store, task, ids=self.ids, now_ms=self.clock.now_ms())
                made.append((task, Rewrite.from_json(done.to_json())))
        return Moving(snapshot, made)

    def commit_merge(self, moving: Moving) -> Snapshot:
        """Commit merges together with the concurrent deletes. Raise the errors of a commit."""
        carry_over = CarryOver(self.store, moving.made, ids=self.ids)
        actions = [action for _, done in moving.made for action in done.actions]
        return self.log.commit(moving.planned, actions, operation=OPERATION, rebase=carry_over).snapshot

    def compact(self, *, target_bytes: int | None = None) -> Snapshot:
        """Merge every window that has several splits."""
        windows: dict[int | None, list[str]] = {}
        for path, add in sorted(self.snapshot.splits.items()):
            windows.setdefault(add.windowStart, []).append(path)
        several = [paths for paths in windows.values() if len(paths) > 1]
        return self.commit_merge(self.merge(several, target_bytes=target_bytes)) if several else self.snapshot

    def compact_alone(self) -> Snapshot:
        """Rewrite every split separately."""
        paths = sorted(self.snapshot.splits)
        return self.commit_merge(self.merge([[path] for path in paths])) if paths else self.snapshot

    def index(self, name: str) -> Indexing:
        """Execute the catch-up of an index."""
        snapshot = self.snapshot
        plan = catch_up.plan(snapshot, name)
        items = [catch_up.CatchUpWork.from_json(work.to_json()) for work in plan.work]
        built = [catch_up.execute(self.store, item, ids=self.ids) for item in items]
        self.retokenised += sum(each.numRecords for each in built)
        merges = [SegmentMerge.from_json(work.to_json()) for work in plan.merges]
        merged = [MergedSegments(item, segment_merge.execute(self.store, item, ids=self.ids)) for item in merges]
        return Indexing(snapshot, plan, built, merged)

    def commit_index(self, indexing: Indexing) -> Snapshot:
        """Commit a catch-up. Raise the errors of a commit."""
        actions = indexing.plan.actions(indexing.built, indexing.merged)
        return self.log.commit(indexing.planned, actions, operation="CATCH UP").snapshot if actions else self.snapshot

    def catch_up(self, *names: str) -> Snapshot:
        """Catch up these indexes, or all."""
        for name in names or [each.name for each in self.snapshot.config.indexes]:
            self.commit_index(self.index(name))
        return self.snapshot

    def rows(self, snapshot: Snapshot) -> list[Row]:
        """Return the live rows, read from the splits."""
        tables = [read_split(self.store, add) for add in snapshot.splits.values()]
        return [row for table in tables for row in table.to_pylist()]

    def found(self, snapshot: Snapshot, index: str, query: object) -> list[int]:
        """Return the IDs of all rows that a search returns, in its order."""
        found = search(self.store, snapshot, query, index=index, limit=10_000)
        ids: list[int] = found.column("id").to_pylist()
        return ids

    def require_exact(self, snapshot: Snapshot) -> None:
        """Fail unless every search of the snapshot finds the rows that a scan finds."""
        rows = self.rows(snapshot)
        for word in WORDS:
            assert sorted(self.found(snapshot, "text", word)) == sorted(r["id"] for r in rows if has(r, word)), word
        for tag in TAG_VALUES[:3]:
            assert sorted(self.found(snapshot, "tags", tag)) == sorted(r["id"] for r in rows if r["tag"] == tag), tag
        if snapshot.config.index(NEAR.name):
            held = {row["id"]: distance("l2", HERE, row["place"]) for row in rows if row["place"] is not None}
            for limit in (3, 10_000):
                near = search(self.store, snapshot, vector=HERE, index=NEAR.name, limit=limit)
                found = dict(zip(near.column("id").to_pylist(), near.column("distance").to_pylist(), strict=True))
                assert found == {each: held[each] for each in found}
                assert sorted(found.values()) == sorted(held.values())[:limit]


def _place(number: int) -> list[float] | None:
    return None if number % 7 == 6 else [float(number % 5), float(number % 3)]


def has(row: Row, word: str) -> bool:
    """Return True if the row has the word."""
    return word in (row["words"] or "").split()


def watermarks(snapshot: Snapshot) -> dict[str, int]:
    """Return the watermark of each index."""
    return {each.name: catch_up.watermark(snapshot, each.name) for each in snapshot.config.indexes}


def bytes_of(store: ObjectStore, prefix: str) -> int:
    """Return the total bytes of the objects under a prefix."""
    return sum(info.size for info in store.list(prefix))
