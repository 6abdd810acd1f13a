"""After any changes, every read of every version of a keyed table returns the rows of a plain dictionary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test

from storage_core.data.settings.index import IndexDefinition
from storage_core.index import segment_merge
from storage_core.write.region import merge as merging
from storage_core.write.region.spec import first_specs
from tests.support import upkeep
from tests.support.changing_columns import Row, listed, plain, read
from tests.support.changing_table import CONFIG, CONSISTENCIES, INDEXES, SCHEMA, ChangingTable
from tests.support.keyed_table import commit_merges
from tests.support.scale import scaled

KEYS = st.integers(1, 5)
KEYED = replace(
    CONFIG,
    primary_key=("id",),
    window_seconds=None,
    indexes=(*INDEXES, IndexDefinition("keys", "primary_key", ("id",))),
)
FIELDS = [{"source": "id", "transform": "bucket", "n": 2}]
Rows = dict[int, Row]


@pytest.fixture(autouse=True, scope="module")
def few() -> Iterator[None]:
    """Let a merge of segments start as soon as a tier has two segments."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(segment_merge, "FACTOR", 2)
        yield


class KeyedTables(ChangingTable):
    """A keyed table with a live writer. `known` contains the columns of this writer.

    `base` contains the rows of the base. `unmerged` contains the records since the last full merge. Each record is a
    function on rows. `may_be` contains all rows that each key had since the last full merge. After a partial merge, the
    base contains one of the rows in `may_be` for each key.
    """

    @initialize(is_local=st.booleans(), has_regions=st.booleans())
    def create(self, is_local: bool, has_regions: bool) -> None:  # drawn
        self.by_key: Rows = {}
        self.base: Rows = {}
        self.unmerged: list[Callable[[Rows], Rows]] = []
        self.may_be: dict[int, list[Row | None]] = {}
        self.merged: Mapping[str, int] = {}
        self.is_partly_merged = False
        specs = first_specs(FIELDS, SCHEMA) if has_regions else first_specs([], SCHEMA)
        self.begin(replace(KEYED, region_specs=specs), is_local=is_local)
        self.open_writer()

    def teardown(self) -> None:
        if hasattr(self, "writer"):
            self.writer.close()
        super().teardown()

    def open_writer(self) -> None:
        self.writer, self.known, self.unflushed = self.table.refresh().writer(), [*self.model.columns], False

    def reopened(self) -> None:
        """Open a new writer.

        After a statement, the columns of a writer depend on the process that flushed the records.
        """
        self.writer.close()
        self.open_writer()

    def rows_now(self) -> list[Row]:
        return [*self.by_key.values()]

    def base_now(self) -> list[Row]:
        return [*self.base.values()]

    def noted(self) -> None:
        """Also check which records were merged.

        For each key, the base must show a row that the key had since the last full merge.
        """
        found = self.table.refresh().scan().to_arrow().to_pylist()
        by_name = {each.name: each.id for each in self.model.columns}
        self.base = {row["id"]: {by_name[name]: plain(value) for name, value in row.items()} for row in found}
        assert len(self.base) == len(found)
        self.is_partly_merged |= self.table.snapshot.merged_generations != self.merged
        self.merged = self.table.snapshot.merged_generations
        for key in {*self.base, *self.may_be}:
            shown = listed([self.base[key]] if key in self.base else [], self.model.columns)
            candidates = self.may_be.get(key, [])
            assert any(shown == listed([] if row is None else [row], self.model.columns) for row in candidates)
        super().noted()

    def restored(self, rows: list[Row]) -> None:
        """Keep the unmerged records, and apply them over the restored rows."""
        self.by_key = {row[1]: row for row in rows}
        self.may_be = {key: [row] for key, row in self.by_key.items()}
        records, self.unmerged = self.unmerged, []
        for record in records:
            self.take(record)

    def take(self, record: Callable[[Rows], Rows]) -> None:
        """Apply a record to the rows."""
        before, self.by_key = self.by_key, record(self.by_key)
        for key in {*before, *self.by_key}:
            if before.get(key) is not self.by_key.get(key):
                self.may_be.setdefault(key, [before.get(key)]).append(self.by_key.get(key))
        self.unmerged.append(record)

    def changed(self, hit: Sequence[Row], new: Sequence[Row]) -> None:
        """Apply a delete by key, or an update as a patch.

        After a restore, the patch may apply to a different row or to no row.
        """
        patched = {each.id for each in self.model.columns if each.required} | self.assigned if new else set()
        none = {each.id: None for each in self.model.columns if each.default is None}
        by_key = {row[1]: {each: row[each] for each in patched} for row in new}
        for row in hit:
            self.take(partial(_patched, by_key[row[1]], none) if row[1] in by_key else partial(_deleted, row[1]))

    # Records.

    @rule(data=st.data(), keys=st.lists(KEYS, min_size=1, max_size=3, unique=True))
    def put(self, data: st.DataObject, keys: list[int]) -> None:
        rows = [self.drawn(data, self.known) | {1: key} for key in keys]
        self.writer.put([self.named(row, self.known) for row in rows])
        self.written([partial(_put, row) for row in rows])

    @rule(data=st.data(), key=KEYS)
    def patch(self, data: st.DataObject, key: int) -> None:
        chosen = [each for each in self.known if each.required or data.draw(st.booleans(), label=each.name)]
        row = self.drawn(data, chosen) | {1: key}
        self.writer.patch(self.named(row, chosen))
        none = {each.id: None for each in self.known if each.default is None}
        self.written([partial(_patched, row, none)])

    @rule(key=KEYS)
    def delete(self, key: int) -> None:
        self.writer.delete(key)
        self.written([partial(_deleted, key)])

    def written(self, records: Sequence[Callable[[Rows], Rows]]) -> None:
        for record in records:
            self.take(record)
        self.unflushed = True

    @rule(data=st.data(), is_upsert=st.booleans())
    def append(self, data: st.DataObject, is_upsert: bool) -> None:  # drawn
        row = self.drawn(data, self.model.columns) | {1: data.draw(KEYS)}
        given = [self.named(row)]
        self.table.upsert(given, on="id") if is_upsert else self.table.append(given)
        self.take(partial(_put, row))
        self.reopened()
        self.check()

    def require_changed(self, *args: Any) -> None:
        super().require_changed(*args)
        self.reopened()

    def collected(self) -> None:
        super().collected()
        self.merge()  # the merge includes the unflushed records of the idle writer
        self.reopened()

    def before_restore(self) -> None:
        if self.is_partly_merged:
            self.merge_everything()

    # Maintenance.

    @rule()
    def flush(self) -> None:
        self.writer.flush()
        if self.unflushed:
            self.known, self.unflushed = [*self.model.columns], False
        self.check()

    @rule()
    def merge(self) -> None:
        upkeep.merge(self.table)
        self.noted()
        self.check()

    @rule()
    def merge_everything(self) -> None:
        self.flush()
        self.table.alter({"idle_after": "0s"})  # so that the merge also takes the rows of earlier writers
        self.noted()
        while upkeep.merge(self.table):
            self.noted()
        self.unmerged, self.may_be = [], {key: [row] for key, row in self.by_key.items()}
        self.table.alter({"idle_after": None})
        self.noted()
        self.is_partly_merged = False
        assert listed(self.base_now(), self.model.columns) == listed(self.rows_now(), self.model.columns)

    @rule()
    def sort(self) -> None:
        upkeep.sort(self.table)
        self.check()

    @rule()
    def plan_a_merge(self) -> None:
        snapshot, now_ms = self.table.log.snapshot(), self.clock.now_ms()
        works = merging.plan(self.table.store, snapshot)
        if works:
            done = [merging.execute(self.table.store, each, ids=self.table.log.ids, now_ms=now_ms) for each in works]
            self.planned.append(partial(commit_merges, self.table.log, snapshot, works, done))

    # Reads.

    @rule(consistency=CONSISTENCIES)
    def lookups_find_what_a_scan_finds(self, consistency: str) -> None:
        rows = self.table.refresh().scan(consistency=consistency).to_arrow().to_pylist()
        found = [row for row in self.table.get_many([1, 2, 3, 4, 5], consistency=consistency) if row is not None]
        assert sorted(map(str, found)) == sorted(map(str, rows))
        query = self.table.sql("select * from t", consistency=consistency).to_arrow()
        assert read(query) == read(pa.Table.from_pylist(rows, schema=self.table.schema))


def _put(row: Row, rows: Rows) -> Rows:
    return {**rows, row[1]: row}


def _deleted(key: int, rows: Rows) -> Rows:
    return {each: row for each, row in rows.items() if each != key}


def _patched(row: Row, none: Row, rows: Rows) -> Rows:
    """Return the row of a key after a patch.

    A patch of a missing row starts with nulls and with the defaults of present and future columns.
    """
    return {**rows, row[1]: {**rows.get(row[1], none), **row}}


def _tried(courses: int) -> None:
    tried = settings(max_examples=courses, stateful_step_count=40, deadline=None)
    run_state_machine_as_test(KeyedTables, settings=tried)


def test_a_few_courses_of_a_keyed_table() -> None:
    _tried(2)


def test_a_keyed_table_is_what_a_dictionary_is() -> None:
    _tried(scaled(13))
