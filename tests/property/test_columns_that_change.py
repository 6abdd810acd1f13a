"""Whatever becomes of its columns, a table shows what a model by ids shows: now, at every version, by every reading.

Rows are appended and put by writers that know only older columns; splits are compacted and generations merged beside.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from storage_core.compaction.carry_over import CarryOver
from storage_core.compaction.execute import execute
from storage_core.compaction.work import OPERATION
from storage_core.errors import CommitConflict
from storage_core.table import Table
from tests.support import upkeep
from tests.support.changing_columns import VALUES, WIDER, Column, Model, Row, listed, read, shown, values
from tests.support.merge_plan import plan
from tests.support.scale import scaled
from tidemark import col

FIRST = [
    Column(1, "id", "long"),
    Column(2, "a", "integer", required=True),
    Column(3, "b", "float"),
    Column(4, "c", "date"),
]
SCHEMA = pa.schema(
    [("id", pa.int64()), pa.field("a", pa.int32(), nullable=False), ("b", pa.float32()), ("c", pa.date32())]
)
NUMBERS = count()


class ChangingColumns(RuleBasedStateMachine):
    """What tables with and without a key have in common; `id` never changes."""

    table: Table
    model: Model
    rows: list[Row]

    def begin(self, *, is_local: bool, **options: Any) -> None:
        self.folder = tempfile.TemporaryDirectory()
        uri = str(Path(self.folder.name) / "t") if is_local else f"memory://changing-{next(NUMBERS)}"
        self.table = Table.create(uri, SCHEMA, **options)
        self.model = Model([*FIRST])
        self.numbers = 0
        self.versions: dict[int, tuple[list[Row], list[Column]]] = {}
        self.noted()

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def noted(self) -> None:
        self.table.refresh()
        self.versions[self.table.version] = [dict(row) for row in self.rows_now()], [*self.model.columns]

    def rows_now(self) -> list[Row]:
        return self.rows

    def changeable(self) -> list[Column]:
        return [each for each in self.model.columns if each.name != "id"]

    def drawn(self, data: st.DataObject, columns: list[Column]) -> Row:
        self.numbers += 1
        given = {each.id: data.draw(values(each), label=each.name) for each in columns if each.name != "id"}
        return {1: self.numbers, **given}

    @precondition(lambda self: self.model.free_names())
    @rule(data=st.data())
    def add(self, data: st.DataObject) -> None:
        name, type_ = data.draw(st.sampled_from(self.model.free_names())), data.draw(st.sampled_from([*VALUES]))
        default = data.draw(st.none() | st.sampled_from(VALUES[type_]))
        if type_ == "float" and default == 0.1:
            default = 0.5
        self.table.add_column(name, type_, default=default)
        self.model.add(name, type_, default)
        self.noted()

    @precondition(lambda self: any(each.type in WIDER for each in self.changeable()))
    @rule(data=st.data())
    def widen(self, data: st.DataObject) -> None:
        column = data.draw(st.sampled_from([each for each in self.changeable() if each.type in WIDER]))
        wider = data.draw(st.sampled_from(WIDER[column.type]))
        self.table.widen_column(column.name, wider)
        self.model.change(column, type=wider)
        self.noted()

    @precondition(lambda self: any(each.required for each in self.changeable()))
    @rule()
    def relax(self) -> None:
        column = next(each for each in self.changeable() if each.required)
        self.table.relax_column(column.name)
        self.model.change(column, required=False)
        self.noted()

    @precondition(lambda self: self.changeable() and self.model.free_names())
    @rule(data=st.data())
    def rename(self, data: st.DataObject) -> None:
        column = data.draw(st.sampled_from(self.changeable()))
        name = data.draw(st.sampled_from(self.model.free_names()))
        self.table.rename_column(column.name, name)
        self.model.change(column, name=name)
        self.noted()

    @precondition(lambda self: self.changeable())
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        column = data.draw(st.sampled_from(self.changeable()))
        self.table.drop_column(column.name)
        self.model.drop(column)
        self.noted()

    @rule()
    def checkpoint(self) -> None:
        upkeep.checkpoint(self.table)
        self.table = Table.open(self.table.uri)

    @rule(data=st.data())
    def older_versions_are_what_they_were(self, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(sorted(self.versions)))
        rows, columns = self.versions[version]
        assert read(self.table.scan(at=version).to_arrow()) == listed(rows, columns)

    @precondition(lambda self: self.changeable())
    @rule(data=st.data())
    def a_condition_finds_what_the_model_finds(self, data: st.DataObject) -> None:
        column, wanted, rows = self.chosen(data)
        assert self.read_where(column.name, wanted) == listed(rows, self.model.columns)

    def chosen(self, data: st.DataObject) -> tuple[Column, Any, list[Row]]:
        """A column, a value of it, and the rows that have it."""
        column = data.draw(st.sampled_from(self.changeable()))
        wanted = data.draw(values(column).filter(lambda each: each is not None and each == each))  # noqa: PLR0124  # no NaN
        return column, wanted, [row for row in self.rows_now() if column.value(row) == shown(wanted, column.type)]

    def read_where(self, name: str, wanted: Any) -> list[str]:
        found = read(self.table.scan(filter=col(name) == wanted).to_arrow())
        at_most = self.table.scan(filter=(col(name) >= wanted) & (col(name) <= wanted)).to_arrow()
        assert read(at_most) == found
        return found

    def check(self) -> None:
        assert list(self.table.schema.names) == [each.name for each in self.model.columns]
        assert read(self.table.scan().to_arrow()) == listed(self.rows_now(), self.model.columns)


class AppendTables(ChangingColumns):
    @initialize(is_local=st.booleans())
    def create(self, is_local: bool) -> None:  # drawn
        self.rows = []
        self.begin(is_local=is_local)
        self.stale: list[tuple[Table, list[Column]]] = []
        self.planned: tuple[Any, Any] | None = None

    @rule(data=st.data(), number=st.integers(1, 3))
    def append(self, data: st.DataObject, number: int) -> None:
        rows = [self.drawn(data, self.model.columns) for _ in range(number)]
        self.append_to(self.table, self.model.columns, rows)

    def append_to(self, table: Table, columns: list[Column], rows: list[Row]) -> None:
        table.append([{each.name: row[each.id] for each in columns} for row in rows])
        self.rows = [*self.rows, *rows]
        self.noted()

    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(sorted(self.versions)))
        self.table.restore(version)
        rows, columns = self.versions[version]
        self.rows, self.planned = [*rows], None
        self.model.restore(columns)
        self.noted()

    @rule()
    def keep_a_table_of_now(self) -> None:
        self.stale.append((Table.open(self.table.uri), [*self.model.columns]))

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def append_by_older_columns(self, data: st.DataObject) -> None:
        table, columns = self.stale.pop(0)
        with suppress(CommitConflict):  # a restore may have brought back a column as narrow as it was
            self.append_to(table, columns, [self.drawn(data, columns)])

    @rule(packed=st.booleans())
    def pack_metadata(self, packed: bool) -> None:  # drawn
        self.table.alter({"splits.metadata": "packed" if packed else "plain"})
        self.noted()

    @precondition(lambda self: self.changeable())
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        column, wanted, rows = self.chosen(data)
        assert self.table.delete(col(column.name) == wanted).rows == len(rows)
        self.rows = [row for row in self.rows if row not in rows]
        self.noted()

    @precondition(lambda self: self.changeable())
    @rule(data=st.data())
    def update(self, data: st.DataObject) -> None:
        column, wanted, rows = self.chosen(data)
        to = data.draw(st.sampled_from(self.changeable()))
        value = data.draw(values(to))
        assert self.table.update({to.name: value}, col(column.name) == wanted).rows == len(rows)
        self.rows = [
            {each.id: each.value(row) for each in self.model.columns} | {to.id: value} if row in rows else row
            for row in self.rows
        ]
        self.noted()

    @precondition(lambda self: self.changeable())
    @rule(data=st.data(), by_key=st.booleans())
    def replace(self, data: st.DataObject, by_key: bool) -> None:  # drawn
        column, wanted, rows = self.chosen(data)
        row = self.drawn(data, self.model.columns) | {column.id: wanted}
        given = [{each.name: row[each.id] for each in self.model.columns}]
        if by_key:
            done = self.table.upsert(given, on=column.name)
        else:
            done = self.table.overwrite(given, col(column.name) == wanted)
        assert done.rows == len(rows)
        self.rows = [*(each for each in self.rows if each not in rows), row]
        self.noted()

    @rule()
    def plan_a_compaction(self) -> None:
        snapshot = self.table.log.snapshot()
        tasks = plan(snapshot)
        now_ms = self.table.log.clock.now_ms()
        done = [execute(self.table.store, each, ids=self.table.log.ids, now_ms=now_ms) for each in tasks]
        self.planned = snapshot, list(zip(tasks, done, strict=True))

    @precondition(lambda self: self.planned and self.planned[1])
    @rule()
    def commit_the_compaction(self) -> None:
        assert self.planned is not None
        snapshot, merges = self.planned
        self.planned = None
        actions = [action for _, done in merges for action in done.actions]
        carry_over = CarryOver(self.table.store, merges, ids=self.table.log.ids)
        with suppress(CommitConflict):  # every row of it was deleted
            self.table.log.commit(snapshot, actions, operation=OPERATION, rebase=carry_over)
        self.noted()
        self.check()

    @precondition(lambda self: len(self.versions) > 2)
    @rule(data=st.data())
    def changes_have_the_columns_of_the_later_version(self, data: st.DataObject) -> None:
        start = data.draw(st.sampled_from(sorted(self.versions)))
        rows = Counter(listed(self.versions[start][0], self.model.columns))
        found = self.table.changes(start, self.table.version).read_all()
        for kind, act in (("insert", rows.update), ("delete", rows.subtract)):
            act(read(found.filter(pc.equal(found["_change_type"], kind)).select(self.table.schema.names)))
        assert rows == Counter(listed(self.rows, self.model.columns))

    @rule()
    def every_way_to_read_agrees(self) -> None:
        self.check()
        found = self.table.sql("select count(*) as n, min(id) as low, max(id) as high from t").to_arrow().to_pylist()
        ids = [row[1] for row in self.rows]
        assert found == [{"n": len(ids), "low": min(ids, default=None), "high": max(ids, default=None)}]
        assert read(self.table.sql("select * from t where id > 1").to_arrow()) == listed(
            [row for row in self.rows if row[1] > 1], self.model.columns
        )


class KeyedTables(ChangingColumns):
    @initialize(is_local=st.booleans())
    def create(self, is_local: bool) -> None:  # drawn
        self.by_key: dict[int, Row] = {}
        self.begin(is_local=is_local, primary_key="id")
        self.writer, self.known, self.unflushed = self.table.writer(), [*self.model.columns], False

    def teardown(self) -> None:
        if hasattr(self, "writer"):
            self.writer.close()
        super().teardown()

    def rows_now(self) -> list[Row]:
        return [*self.by_key.values()]

    def noted(self) -> None:
        self.table.refresh()  # what older versions of the base have is merged at other times than it is put

    def older_versions_are_what_they_were(self, data: st.DataObject) -> None:
        pass

    @rule(data=st.data(), key=st.integers(1, 4))
    def put(self, data: st.DataObject, key: int) -> None:
        row = self.drawn(data, self.known) | {1: key}
        self.writer.put({each.name: row[each.id] for each in self.known})
        self.by_key[key], self.unflushed = row, True

    @rule(data=st.data(), key=st.integers(1, 4))
    def patch(self, data: st.DataObject, key: int) -> None:
        chosen = [
            each
            for each in self.known
            if each.name != "id" and (each.required or data.draw(st.booleans(), label=each.name))
        ]
        row = self.drawn(data, chosen) | {1: key}
        self.writer.patch({"id": key, **{each.name: row[each.id] for each in chosen}})
        self.by_key[key], self.unflushed = {**self.made(key), **row}, True

    def made(self, key: int) -> Row:
        """The row of a key; where there is none, a patch makes one of nulls, and of defaults there are or will be."""
        none = {each.id: None for each in self.known if each.default is None}
        return self.by_key.get(key, none)

    @rule(key=st.integers(1, 4))
    def delete(self, key: int) -> None:
        self.writer.delete(key)
        self.by_key.pop(key, None)
        self.unflushed = True

    @precondition(lambda self: self.changeable())
    @rule(data=st.data())
    def delete_where(self, data: st.DataObject) -> None:
        column, wanted, rows = self.chosen(data)
        assert self.table.delete(col(column.name) == wanted).rows == len(rows)
        self.by_key = {key: row for key, row in self.by_key.items() if row not in rows}
        self.reopened()

    @precondition(lambda self: self.changeable())
    @rule(data=st.data())
    def update_where(self, data: st.DataObject) -> None:
        column, wanted, rows = self.chosen(data)
        to = data.draw(st.sampled_from(self.changeable()))
        value = data.draw(values(to))
        assert self.table.update({to.name: value}, col(column.name) == wanted).rows == len(rows)
        self.by_key = {key: row | {to.id: value} if row in rows else row for key, row in self.by_key.items()}
        self.reopened()

    def reopened(self) -> None:
        """The writer is another one: which columns it has after a statement depends on who flushed what it had."""
        self.check_all()
        self.writer.close()
        self.writer, self.known, self.unflushed = self.table.refresh().writer(), [*self.model.columns], False

    @rule()
    def flush(self) -> None:
        self.writer.flush()
        if self.unflushed:
            self.known, self.unflushed = [*self.model.columns], False

    @rule()
    def merge(self) -> None:
        upkeep.merge(self.table)
        self.table.refresh()
        self.check_all()

    @rule()
    def sort(self) -> None:
        upkeep.sort(self.table)

    @rule()
    def compact(self) -> None:
        upkeep.compact(self.table)
        self.table.refresh()

    @rule()
    def check_all(self) -> None:
        expected = listed(self.rows_now(), self.model.columns)
        assert read(self.table.scan(consistency="latest").to_arrow()) == expected
        assert read(self.table.sql("select * from t", consistency="latest").to_arrow()) == expected
        found = [row for row in self.table.get_many([1, 2, 3, 4]) if row is not None]
        assert read(pa.Table.from_pylist(found)) == expected if found else not expected

    def read_where(self, name: str, wanted: Any) -> list[str]:
        return read(self.table.scan(filter=col(name) == wanted, consistency="latest").to_arrow())


TestAppendTables = AppendTables.TestCase
TestAppendTables.settings = settings(max_examples=scaled(25), stateful_step_count=30, deadline=None)
TestKeyedTables = KeyedTables.TestCase
TestKeyedTables.settings = settings(max_examples=scaled(25), stateful_step_count=30, deadline=None)
