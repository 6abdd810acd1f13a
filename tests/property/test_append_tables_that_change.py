"""After any changes of an append table, reads of every version return the rows of a simple model in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test

from storage_core.base.errors import CommitConflict
from storage_core.change.declaration_parts import arrow_field, spark_type
from storage_core.change.statement import Changed
from storage_core.index import segment_merge
from storage_core.log.snapshot import Snapshot
from storage_core.split.context import context_of
from storage_core.table import Table
from storage_core.write.ingest import batch
from storage_core.write.ingest.landing import LandingSpec, discover
from tests.support.changing_columns import WIDER, Column, Row, key, matching
from tests.support.changing_table import CONFIG, FIXED, ChangingTable
from tests.support.scale import scaled


@pytest.fixture(autouse=True, scope="module")
def few() -> Iterator[None]:
    """Let a merge start with only two segments of a tier."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(segment_merge, "FACTOR", 2)
        yield


NARROWER: dict[str, list[str]] = {}
for narrow, wide in WIDER.items():
    for each in wide:
        NARROWER.setdefault(each, []).append(narrow)


class AppendTables(ChangingTable):
    """An append table and its model.

    `stale` contains `Table` objects that were opened earlier, with the columns of that time.
    """

    @initialize(is_local=st.booleans(), is_ordered=st.booleans())
    def create(self, is_local: bool, is_ordered: bool) -> None:  # drawn
        self.rows: list[Row] = []
        self.stale: list[tuple[Table, list[Column]]] = []
        self.landed: set[Path] = set()
        self.begin(CONFIG if is_ordered else replace(CONFIG, sort_schema=None), is_local=is_local)
        self.landing = LandingSpec(uri=f"{self.folder.name}/landing", format="parquet")
        Path(self.landing.uri).mkdir()

    def rows_now(self) -> list[Row]:
        return self.rows

    def base_now(self) -> list[Row]:
        return self.rows

    def restored(self, rows: list[Row]) -> None:
        self.rows = rows

    def changed(self, hit: Sequence[Row], new: Sequence[Row]) -> None:
        self.rows = [*(row for row in self.rows if row not in hit), *new]

    @rule(data=st.data(), number=st.integers(1, 3))
    def append(self, data: st.DataObject, number: int) -> None:
        self.append_to(self.table, self.model.columns, [self.drawn(data, self.model.columns) for _ in range(number)])

    def append_to(self, table: Table, columns: Sequence[Column], rows: list[Row]) -> None:
        table.append([self.named(row, columns) for row in rows])
        self.rows = [*self.rows, *rows]
        self.noted()

    @rule()
    def keep_a_table_of_now(self) -> None:
        self.stale.append((self.opened(), [*self.model.columns]))

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def append_by_older_columns(self, data: st.DataObject) -> None:
        table, columns = self.stale.pop(0)
        with suppress(CommitConflict):  # a new window, or a restore that narrowed a column again
            self.append_to(table, columns, [self.drawn(data, columns)])

    @rule(data=st.data())
    def overwrite(self, data: st.DataObject) -> None:
        condition, hit = self.condition(data)
        given = [self.drawn(data, self.model.columns) for _ in range(3)]
        new = [given[place] for place in matching(self.plain(given), condition)]
        self.require_changed(self.table.overwrite([self.named(row) for row in new], condition), hit, new)

    @rule(data=st.data())
    def upsert(self, data: st.DataObject) -> None:
        able = st.sampled_from([each for each in self.model.columns if each.type != "place"])
        on = data.draw(st.lists(able, min_size=1, max_size=2, unique=True))
        given = [self.drawn(data, self.model.columns) for _ in range(2)]
        new = {found: row for row in given if None not in (found := _key(row, on))}
        hit = [row for row in self.rows if _key(row, on) in new]
        done = self.table.upsert([self.named(row) for row in new.values()], on=[each.name for each in on])
        self.require_changed(done, hit, [*new.values()])

    def require_changed(self, done: Changed, hit: Sequence[Row], new: Sequence[Row]) -> None:
        super().require_changed(done, hit, new)
        assert (done.rows_added, done.version) == (len(new), self.table.version)
        assert (done.commit_id == "") == (not hit and not new), "what changes nothing commits nothing"
        assert all(add.visible_rows for add in self.table.snapshot.splits.values()), "a split without a row leaves"

    # Work that is planned now and committed later.

    @rule(data=st.data(), times=st.integers(1, 2))
    def plan_an_ingestion(self, data: st.DataObject, times: int) -> None:
        """Plan to ingest a file. The file lacks some columns of the table, and some columns have a narrower type.

        If two plans contain the same file, only one of them is committed.
        """
        for path in Path(self.landing.uri).iterdir():
            if path not in self.landed:
                path.unlink()
        columns = [
            replace(each, type=data.draw(st.sampled_from([each.type, *NARROWER.get(each.type, ())])))
            for each in self.model.columns
            if each.required or data.draw(st.booleans(), label=each.name)
        ]
        rows = [self.drawn(data, columns) for _ in range(2)]
        path = Path(self.landing.uri) / f"{self.numbers}.parquet"
        fields = [self.field(each) for each in columns]
        pq.write_table(pa.Table.from_pylist([self.named(row, columns) for row in rows], schema=pa.schema(fields)), path)
        known = {each.id: None for each in self.model.columns}
        for _ in range(times):
            self.planned.append(partial(self.ingest, *self.ingested(), path, [known | row for row in rows]))

    def field(self, column: Column) -> pa.Field:
        own = self.table.schema.field(column.name)
        return own if column.id <= len(FIXED) else own.with_type(arrow_field("c", spark_type(column.type)).type)

    def ingested(self) -> tuple[Snapshot, list[Any]]:
        snapshot = self.table.log.snapshot()
        context, now_ms = context_of(snapshot), self.clock.now_ms()
        (work,) = batch.plan(snapshot, self.landing, discover(self.landing), None)  # never plans an ingested file again
        return snapshot, [batch.execute(self.table.store, work, context=context, ids=self.table.log.ids, now_ms=now_ms)]

    def ingest(self, snapshot: Snapshot, done: Sequence[Any], path: Path, rows: list[Row]) -> None:
        self.commit(snapshot, done, "INGEST")
        if path not in self.landed:
            self.landed.add(path)
            self.rows = [*self.rows, *rows]


def _key(row: Row, on: Sequence[Column]) -> tuple[object, ...]:
    return tuple(key(each.value(row)) for each in on)


def _tried(courses: int) -> None:
    tried = settings(max_examples=courses, stateful_step_count=40, deadline=None)
    run_state_machine_as_test(AppendTables, settings=tried)


def test_a_few_courses_of_an_append_table() -> None:
    _tried(2)


def test_an_append_table_is_what_a_list_of_rows_is() -> None:
    _tried(scaled(13))
