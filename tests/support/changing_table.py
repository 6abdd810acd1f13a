"""The base class of the state machines for append tables and keyed tables. Each step changes a table and a plain model.

The steps change columns, restore, tag, collect and read versions, and write and compact states. The model keeps the
rows of each readable version by column ID (`tests.support.changing_columns`).
"""

from __future__ import annotations

import datetime as dt
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from storage_core.base.clock import HOUR_MS
from storage_core.base.errors import CommitConflict, NotFound, SnapshotExpired
from storage_core.change.statement import Changed, expr
from storage_core.compact import rewindow
from storage_core.compact.carry_over import CarryOver
from storage_core.compact.execute import execute
from storage_core.compact.work import OPERATION
from storage_core.data.rows.vectors import vector_type
from storage_core.data.settings.index import IndexDefinition
from storage_core.data.settings.table import TableConfig
from storage_core.index import catch_up as indexing
from storage_core.index import segment_merge
from storage_core.index.segment_merge import MergedSegments, SegmentMerge
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.check import fsck
from storage_core.store.contract import ObjectStore
from storage_core.store.local import LocalStore
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from storage_core.table import Table
from tests.support import upkeep
from tests.support.brute_force import distance
from tests.support.changing_columns import VALUES, WIDER, Column, Model, Row, conditions, listed, matching, read, values
from tests.support.clock import ManualClock
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable
from tests.support.merge_plan import plan

FIXED = [
    Column(1, "id", "long", required=True),
    Column(2, "at", "instant"),
    Column(3, "tag", "string"),
    Column(4, "words", "words"),
    Column(5, "place", "place"),
]
"""Columns on which the table depends. No step changes or drops these columns."""
FIRST = [*FIXED, Column(6, "a", "integer", required=True), Column(7, "b", "float"), Column(8, "c", "date")]
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("at", pa.timestamp("us", "UTC")),
        ("tag", pa.string()),
        ("words", pa.string()),
        ("place", vector_type(2)),
        pa.field("a", pa.int32(), nullable=False),
        ("b", pa.float32()),
        ("c", pa.date32()),
    ]
)
INDEXES = (
    IndexDefinition("texts", "fulltext", ("words",)),
    IndexDefinition("tags", "bitmap", ("tag",)),
    IndexDefinition("near", "vector", ("place",), {"quantization": "none"}),
)
RETENTION_MS = 5 * HOUR_MS
CONFIG = TableConfig(
    time_column="at",
    window_seconds=3600,
    sort_schema="tag|timestamp/V2",
    indexes=INDEXES,
    checkpoint_interval=7,
    version_retention_ms=RETENTION_MS,
    gc_horizon_ms=HOUR_MS,
)
HERE = [0.2, 0.1]
CONSISTENCIES = st.sampled_from(["snapshot", "committed", "latest"])
_TIMES = count()


class ChangingTable(RuleBasedStateMachine):
    """A table and its model.

    `versions` are the rows of each readable version. `planned` is work that is not committed yet. `assigned` are the
    columns that the last update set.
    """

    assigned: set[int]

    def begin(self, config: TableConfig, *, is_local: bool) -> None:
        """Create the table."""
        self.folder = tempfile.TemporaryDirectory()
        self.clock = ManualClock(step_ms=1)
        self.seeds = count(2)
        name = f"changing-{next(_TIMES)}"
        self.objects: ObjectStore = (
            LocalStore(f"{self.folder.name}/t") if is_local else MemoryStore(name, clock=self.clock)
        )
        KeyedTable(self.objects, ids=SeededIds(1), clock=self.clock).create(SCHEMA, config)
        self.table = self.opened()
        self.model = Model([*FIRST])
        self.numbers = 0
        self.versions: dict[int, tuple[list[Row], list[Column]]] = {}
        self.times: dict[int, int] = {}
        self.tags: dict[str, int] = {}
        self.planned: list[Callable[[], object]] = []
        self.noted()

    def opened(self) -> Table:
        """Open the table as a second process would."""
        store = MeteredStore(self.objects)
        log = TransactionLog(store, clock=self.clock, ids=SeededIds(next(self.seeds)))
        return Table(store, log, log.snapshot())

    def teardown(self) -> None:
        """Check that the table is valid after every run."""
        if hasattr(self, "table"):
            self.check()
            found = fsck(self.objects, clock=self.clock, deep=True)
            self.folder.cleanup()
            assert found.clean, found.findings

    # Parts that differ between the two kinds of tables.

    def rows_now(self) -> list[Row]:
        """Return the rows at level `latest`."""
        raise NotImplementedError

    def base_now(self) -> list[Row]:
        """Return the rows at level `snapshot`."""
        raise NotImplementedError

    def restored(self, rows: list[Row]) -> None:
        """Replace all merged rows (the base) of the model."""
        raise NotImplementedError

    def changed(self, hit: Sequence[Row], new: Sequence[Row]) -> None:
        """After a statement, replace the rows `hit` of the model by the rows `new`."""
        raise NotImplementedError

    def before_restore(self) -> None:
        """Make sure that the set of unmerged records is known before a restore."""

    def collected(self) -> None:
        """Update the model after a run of the collector, which moves the clock by hours."""
        self.noted()
        self.check()

    # The model.

    def noted(self) -> None:
        """Record the rows of the newest version, and of the earlier versions that were committed in the same step."""
        self.table.refresh()
        for version in range(max(self.times, default=-1) + 1, self.table.version + 1):
            self.versions[version] = [dict(row) for row in self.base_now()], [*self.model.columns]
            self.times[version] = self.table.snapshot.timestamp

    def changeable(self) -> list[Column]:
        """Return the columns that can change."""
        return [each for each in self.model.columns if each.id > len(FIXED)]

    def drawn(self, data: st.DataObject, columns: Sequence[Column]) -> Row:
        """Generate a row with these columns and a new ID."""
        self.numbers += 1
        given = {each.id: data.draw(values(each), label=each.name) for each in columns if each.id != 1}
        return {1: self.numbers, **given}

    def named(self, row: Row, columns: Sequence[Column] | None = None) -> dict[str, Any]:
        """Return a row in the form that a caller passes."""
        return {each.name: row[each.id] for each in columns or self.model.columns if each.id in row}

    def plain(self, rows: Sequence[Row]) -> pa.Table:
        """Return the rows as an Arrow table."""
        found = [{each.name: each.value(row) for each in self.model.columns} for row in rows]
        return pa.Table.from_pylist(found, schema=self.table.schema)

    def meeting(self, condition: str) -> list[Row]:
        """Return the rows that meet a condition."""
        rows = self.rows_now()
        return [rows[place] for place in matching(self.plain(rows), condition)]

    def condition(self, data: st.DataObject) -> tuple[str, list[Row]]:
        """Return a condition and the rows that meet it."""
        condition = data.draw(conditions(self.model.columns), label="condition")
        return condition, self.meeting(condition)

    def check(self) -> None:
        """Fail unless a scan finds the rows of the model."""
        assert list(self.table.refresh().schema.names) == [each.name for each in self.model.columns]
        assert read(self.table.scan(consistency="latest").to_arrow()) == listed(self.rows_now(), self.model.columns)

    def retained(self) -> list[int]:
        """Return the newest version, and the versions that were superseded within the retention period."""
        versions = sorted(self.times)
        ends = [*(self.times[version] for version in versions[1:]), self.clock.now]
        oldest = self.clock.now - RETENTION_MS
        return [version for version, end in zip(versions, ends, strict=True) if end >= oldest]

    def readable(self) -> list[int]:
        """Return the versions that are retained or tagged."""
        return sorted({*self.retained(), *self.tags.values()})

    # Columns.

    @precondition(lambda self: self.model.free_names())
    @rule(data=st.data())
    def add_column(self, data: st.DataObject) -> None:
        name, type_ = data.draw(st.sampled_from(self.model.free_names())), data.draw(st.sampled_from([*VALUES][:-3]))
        default = data.draw(st.none() | st.sampled_from(VALUES[type_]))
        if type_ == "float" and default == 0.1:
            default = 0.5
        self.table.add_column(name, type_, default=default)
        self.model.add(name, type_, default)
        self.noted()

    @precondition(lambda self: any(each.type in WIDER for each in self.changeable()))
    @rule(data=st.data())
    def widen_column(self, data: st.DataObject) -> None:
        column = data.draw(st.sampled_from([each for each in self.changeable() if each.type in WIDER]))
        wider = data.draw(st.sampled_from(WIDER[column.type]))
        self.table.widen_column(column.name, wider)
        self.model.change(column, type=wider)
        self.noted()

    @precondition(lambda self: any(each.required for each in self.changeable()))
    @rule()
    def relax_column(self) -> None:
        column = next(each for each in self.changeable() if each.required)
        self.table.relax_column(column.name)
        self.model.change(column, required=False)
        self.noted()

    @precondition(lambda self: self.changeable() and self.model.free_names())
    @rule(data=st.data())
    def rename_column(self, data: st.DataObject) -> None:
        column = data.draw(st.sampled_from(self.changeable()))
        name = data.draw(st.sampled_from(self.model.free_names()))
        self.table.rename_column(column.name, name)
        self.model.change(column, name=name)
        self.noted()

    @precondition(lambda self: self.changeable())
    @rule(data=st.data())
    def drop_column(self, data: st.DataObject) -> None:
        column = data.draw(st.sampled_from(self.changeable()))
        self.table.drop_column(column.name)
        self.model.drop(column)
        self.noted()

    # Statements.

    @rule(data=st.data())
    def delete_where(self, data: st.DataObject) -> None:
        condition, hit = self.condition(data)
        self.require_changed(self.table.delete(condition), hit, [])

    @rule(data=st.data(), is_computed=st.booleans())
    def update_where(self, data: st.DataObject, is_computed: bool) -> None:  # drawn
        condition, hit = self.condition(data)
        to = data.draw(st.sampled_from([each for each in self.model.columns if each.id != 1]))
        value = data.draw(values(to))
        new = [{**{each.id: each.value(row) for each in self.model.columns}, to.id: value} for row in hit]
        given: dict[str, object] = {to.name: value}
        self.assigned = {to.id, 2, 4} if is_computed else {to.id}
        if is_computed:
            given |= {"at": expr('"at" + interval 1 hour'), "words": expr("coalesce(words, tag) || ' ebb'")}
            new = [{**row, **_computed(before)} for row, before in zip(new, hit, strict=True)]
        self.require_changed(self.table.update(given, condition), hit, new)

    def require_changed(self, done: Changed, hit: Sequence[Row], new: Sequence[Row]) -> None:
        """Change the model, and fail unless a statement changed the table in the same way."""
        assert done.rows == len(hit)
        self.changed(hit, new)
        self.noted()
        self.check()

    # Maintenance.

    @rule(is_packed=st.booleans(), is_small=st.booleans(), minutes=st.sampled_from([20, 30, 60]))
    def change_settings(self, is_packed: bool, is_small: bool, minutes: int) -> None:  # drawn
        metadata, size = "packed" if is_packed else "plain", "1B" if is_small else "256MiB"
        window = {} if self.table.config.window_seconds is None else {"window": f"{minutes}m"}
        self.table.alter({"splits.metadata": metadata, "splits.target_size": size, **window})
        self.noted()

    @rule()
    def plan_a_compaction(self) -> None:
        snapshot, now_ms = self.table.log.snapshot(), self.clock.now_ms()
        tasks = plan(snapshot)
        done = [execute(self.table.store, each, ids=self.table.log.ids, now_ms=now_ms) for each in tasks]
        if done:
            carry_over = CarryOver(self.table.store, list(zip(tasks, done, strict=True)), ids=self.table.log.ids)
            self.planned.append(partial(self.commit, snapshot, done, OPERATION, rebase=carry_over))

    @rule()
    def plan_new_windows(self) -> None:
        snapshot, now_ms = self.table.log.snapshot(), self.clock.now_ms()
        tasks = rewindow.plan(snapshot, windows=None, now_ms=now_ms)
        done = [rewindow.execute(self.table.store, each, ids=self.table.log.ids, now_ms=now_ms) for each in tasks]
        if done:
            self.planned.append(partial(self.commit, snapshot, done, rewindow.OPERATION))

    def commit(self, snapshot: Snapshot, done: Sequence[Any], operation: str, **how: Any) -> None:
        actions = [action for each in done for action in each.actions]
        self.table.log.commit(snapshot, actions, operation=operation, **how)

    @rule()
    def catch_up(self) -> None:
        upkeep.catch_up(self.table)
        self.noted()

    @rule()
    def plan_a_catch_up(self) -> None:
        log, snapshot = self.table.log, self.table.log.snapshot()
        plans = [indexing.plan(snapshot, each.name) for each in snapshot.config.indexes]
        built = [indexing.execute(log.store, work, ids=log.ids) for plan in plans for work in plan.work]

        def merged(items: Sequence[SegmentMerge]) -> list[MergedSegments]:
            return [MergedSegments(item, segment_merge.execute(log.store, item, ids=log.ids)) for item in items]

        done, idle = indexing.merge_all(snapshot, plans, built, merged)
        if actions := indexing.actions_of(plans, built, done, idle):
            self.planned.append(partial(log.commit, snapshot, actions, operation="CATCH UP"))

    @precondition(lambda self: self.planned)
    @rule(data=st.data())
    def commit_what_was_planned(self, data: st.DataObject) -> None:
        commit = self.planned.pop(data.draw(st.integers(0, len(self.planned) - 1)))
        with suppress(CommitConflict):
            commit()
        self.noted()
        self.check()

    @rule(is_compact=st.booleans())
    def checkpoint(self, is_compact: bool) -> None:  # drawn
        self.table.checkpoint(compact=is_compact)
        self.noted()
        self.table = self.opened()

    @rule(hours=st.integers(0, 4), twice=st.booleans())
    def collect(self, hours: int, twice: bool) -> None:  # drawn
        self.clock.now += hours * HOUR_MS
        for _ in range(1 + twice):
            self.clock.now += HOUR_MS + 1
            upkeep.collect(self.table, at_ms=self.clock.now, horizon_ms=HOUR_MS)
        self.planned.clear()  # a job that was planned before the horizon can no longer commit
        kept = self.readable()
        self.versions = {version: self.versions[version] for version in kept}
        self.collected()

    # History.

    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        self.before_restore()
        version = data.draw(st.sampled_from(self.readable()))
        with suppress(SnapshotExpired):  # the collector may soon delete files that only this version has
            self.table.restore(version)
            rows, columns = self.versions[version]
            self.model.restore(columns, is_keyed=self.table.config.kind == "keyed")
            self.restored([dict(row) for row in rows])
        self.noted()
        self.check()

    @rule(data=st.data(), name=st.sampled_from(["first", "second"]))
    def tag(self, data: st.DataObject, name: str) -> None:
        version = data.draw(st.sampled_from(self.readable()))
        with suppress(SnapshotExpired):
            self.table.tag(name, version)
            self.tags[name] = version

    @rule(name=st.sampled_from(["first", "second"]))
    def untag(self, name: str) -> None:
        with suppress(NotFound):
            self.table.untag(name)
            del self.tags[name]

    @rule(data=st.data())
    def older_versions_are_what_they_were(self, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(self.readable()))
        rows, columns = self.versions[version]
        expected = listed(rows, columns)
        assert read(self.table.scan(at=version).to_arrow()) == expected
        assert read(self.table.sql("select * from t", at=version).to_arrow()) == expected
        for name in (each for each, tagged in self.tags.items() if tagged == version):
            assert read(self.opened().scan(at=name).to_arrow()) == expected
        self.require_found(rows, at=version)

    @rule(data=st.data())
    def changes_lead_from_each_version_to_a_later_one(self, data: st.DataObject) -> None:
        start, end = sorted(data.draw(st.sampled_from(self.retained())) for _ in range(2))
        columns = self.versions[end][1]
        names = [each.name for each in columns]
        rows = Counter(listed(self.versions[start][0], columns))
        found = self.table.changes(start, end).read_all()
        for kind, act in (("insert", rows.update), ("delete", rows.subtract)):
            act(read(found.filter(pc.equal(found["_change_type"], kind)).select(names)))
        assert rows == Counter(listed(self.versions[end][0], columns))

    # Reads.

    @rule(data=st.data())
    def a_condition_finds_what_the_model_finds(self, data: st.DataObject) -> None:
        condition, rows = self.condition(data)
        expected = listed(rows, self.model.columns)
        assert read(self.table.scan(filter=condition, consistency="latest").to_arrow()) == expected
        query = f"select * from t where {condition}"  # a query of the test
        assert read(self.table.sql(query, consistency="latest").to_arrow()) == expected

    @rule()
    def every_way_to_read_agrees(self) -> None:
        self.check()
        query = "select count(*) as n, min(id) as low, max(id) as high from t"
        ids = [row[1] for row in self.rows_now()]
        found = self.table.sql(query, consistency="latest").to_arrow().to_pylist()
        assert found == [{"n": len(ids), "low": min(ids, default=None), "high": max(ids, default=None)}]
        self.require_found(self.rows_now(), consistency="latest")

    def require_found(self, rows: Sequence[Row], **where: Any) -> None:
        """Fail unless searches find these rows."""
        for word in ("ebb", "tide"):
            found = self.table.search(word, index="texts", columns=["id"], limit=10_000, **where).to_arrow()
            assert sorted(found["id"].to_pylist()) == sorted(
                row[1] for row in rows if word in (row.get(4) or "").split()
            )
        found = self.table.search("it's", index="tags", columns=["id"], limit=10_000, **where).to_arrow()
        assert sorted(found["id"].to_pylist()) == sorted(row[1] for row in rows if row.get(3) == "it's")
        near = self.table.search(vector=HERE, index="near", columns=["id"], limit=10_000, **where).to_arrow()
        held = {row[1]: distance("l2", HERE, row[5]) for row in rows if row.get(5) is not None}
        assert dict(zip(near["id"].to_pylist(), near["distance"].to_pylist(), strict=True)) == held


def _computed(row: Row) -> Row:
    """Return the values that the expressions of `update_where` compute for a row."""
    at, words = row.get(2), row.get(3) if row.get(4) is None else row[4]
    return {2: at and at + dt.timedelta(hours=1), 4: None if words is None else f"{words} ebb"}
