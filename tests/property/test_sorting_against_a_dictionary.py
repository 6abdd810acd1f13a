"""For any order of records, flushes, sorts, merges, distributions and restores, each read returns the expected rows.

Other work may happen between the work of a sort or merge and its commit. A merger can therefore merge a part of the
sorted records, and a restore can revert this merge. The oracle stores the operations by generation. The oracle applies
the unmerged operations to the base.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.base.errors import CommitConflict
from storage_core.data.rows import fold
from storage_core.data.settings.table import TableConfig
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.history import restore
from storage_core.split.read import read_split
from storage_core.store.memory import MemoryStore
from storage_core.write.region import captured_regions, generation_write, merge, router
from storage_core.write.region.generation_write import SortingResult, SortingTerms, SortingWork
from storage_core.write.region.merge_work import MergeResult, MergeWork
from storage_core.write.region.records import RecordBuilder
from storage_core.write.region.spec import whole_table
from tests.support.keyed_table import KeyedTable
from tests.support.scale import scaled

MAP = pa.map_(pa.string(), pa.int64())
SCHEMA = (
    pa.schema([pa.field("a", pa.string(), nullable=False), pa.field("b", pa.int64(), nullable=False)])
    .append(pa.field("n", pa.int64()))
    .append(pa.field("attrs", MAP))
)
CONFIG = TableConfig(primary_key=("b", "a"), map_columns={"attrs": "merge"})
RAW_WRITER = "5f0c1c7a-5a9e-4a4f-8f8c-0a8f3b1f2c11"

Key = tuple[int, str]
Rows = dict[Key, dict[str, Any]]
Operation = tuple[str, Key, dict[str, Any]]
Step = tuple[str, Any]

KEYS = st.tuples(st.sampled_from([-1, 0, 7]), st.sampled_from(["", "x", "é"]))
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "n": st.none() | st.integers(0, 3),
        "attrs": st.none() | st.dictionaries(st.sampled_from("pqr"), st.none() | st.integers(0, 3), max_size=2),
    },
)
OPERATIONS = st.tuples(st.sampled_from(["put", "patch", "patch", "delete", "reset"]), KEYS, FIELDS)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["write", "write and flush"]), st.lists(OPERATIONS, min_size=1, max_size=4)),
        st.tuples(st.just("write and flush"), st.lists(OPERATIONS, min_size=1, max_size=4)),
        st.tuples(st.just("distribute"), st.tuples(KEYS, FIELDS)),
        st.tuples(st.sampled_from(["plan sort", "plan merge"]), st.integers(1, 8)),
        st.tuples(st.sampled_from(["commit sort", "commit merge", "restore"]), st.none()),
    ),
    max_size=20,
)


def after(rows: Rows, operations: Iterable[Operation]) -> Rows:
    """Return the rows after the operations. Every reader of the region must see these rows."""
    result = copy.deepcopy(rows)
    for name, key, fields in operations:
        old = result.pop(key, None)
        if name == "delete":
            continue
        row: dict[str, Any] = {"n": None, "attrs": None}
        if name == "patch":
            row |= old or {}
        merged = {**(row["attrs"] or {}), **(fields.get("attrs") or {})}
        row |= fields
        if name == "patch" and fields.get("attrs") is not None:
            row["attrs"] = merged
        result[key] = row
    return result


class Model:
    """A table and its oracle."""

    def __init__(self) -> None:
        self.table = KeyedTable(MemoryStore("sorted")).create(SCHEMA, CONFIG)
        self.writer = self.table.writer()
        self.pending: list[Operation] = []
        self.flushed: list[list[Operation]] = []
        self.merged = 0
        self.bases: list[Rows] = [{}]
        self.sort: tuple[SortingWork, SortingResult] | None = None
        self.merge: tuple[Snapshot, MergeWork, MergeResult] | None = None

    def run(self, steps: Sequence[Step]) -> None:
        for name, value in steps:
            match name:
                case "write":
                    self.write(value)
                case "write and flush":
                    self.write(value)
                    self.writer.flush()
                    self.flush_model()
                case "distribute":
                    self.distribute(*value)
                case "plan sort":
                    self.plan_sort(value)
                case "plan merge":
                    self.plan_merge(value)
                case "commit sort":
                    self.commit_sort()
                case "commit merge":
                    self.commit_merge()
                case _:
                    self.restore()
            if not name.startswith(("write", "plan")):
                self.check()

    def write(self, operations: Sequence[Operation]) -> None:
        for name, key, fields in operations:
            row = {"b": key[0], "a": key[1], **fields}
            if name == "delete":
                self.writer.delete([key])
            else:
                getattr(self.writer, name)(row)
        self.pending += operations

    def flush_model(self) -> None:
        if self.pending:
            self.flushed.append(self.pending)
            self.pending = []

    def distribute(self, key: Key, fields: dict[str, Any]) -> None:
        table = self.table
        records = RecordBuilder(SCHEMA, CONFIG.primary_key).puts({"b": key[0], "a": key[1], **fields})
        region = whole_table(table.snapshot.table_id)
        turn = router.claim_region(table.store, table.snapshot, region, clock=table.clock, ids=table.ids)
        written = router.write_distributed(
            table.store, records, CONFIG.primary_key, turn=turn, clock=table.clock, ids=table.ids
        )
        last = router.offsets(table.store, turn.region).get(RAW_WRITER, 0)
        stretch = router.ChunkRange(writer=RAW_WRITER, after=last, last=last + 1)
        router.finish(table.store, turn, written.path, [stretch], clock=table.clock, writer_id=table.ids.uuid())
        self.flush_model()
        self.flushed.append([("put", key, fields)])
        assert router.offsets(table.store, turn.region) == {RAW_WRITER: last + 1}
        self.writer = table.writer()

    def plan_sort(self, records: int) -> None:
        terms = SortingTerms(generations=0, run_records=records)
        for work in generation_write.plan_sort(self.table.store, self.table.snapshot, terms=terms):
            done = generation_write.execute_sort(self.table.store, work, clock=self.table.clock, ids=self.table.ids)
            self.sort = (work, done)

    def commit_sort(self) -> None:
        if self.sort is None:
            self.plan_sort(8)
        if self.sort is not None:
            work, done = self.sort
            self.sort = None
            generation_write.finish(
                self.table.store, work, done, clock=self.table.clock, writer_id=self.table.ids.uuid()
            )

    def plan_merge(self, records: int) -> None:
        snapshot = self.table.snapshot
        for work in merge.plan(self.table.store, snapshot, max_records=records):
            self.merge = (snapshot, work, self.table.execute(work))

    def commit_merge(self) -> None:
        if self.merge is None:
            self.plan_merge(5)
        if self.merge is not None:
            snapshot, work, result = self.merge
            self.merge = None
            try:
                self.table.commit(snapshot, work, result)
            except CommitConflict:
                return  # a restore committed before this merge
            taken = [each for generation in self.flushed[self.merged : result.merged.generation] for each in generation]
            self.bases.append(after(self.bases[-1], taken))
            self.merged = result.merged.generation

    def restore(self) -> None:
        restore(self.table.log, self.table.log.snapshot(version=0))
        self.bases.append({})

    def check(self) -> None:
        snapshot = self.table.snapshot
        assert snapshot.merged_generations.get(self.writer.region_id, 0) == self.merged
        assert _rows(self.table.base_rows(snapshot)) == self.bases[-1]
        committed = [each for generation in self.flushed[self.merged :] for each in generation]
        assert self.read(snapshot, include_wal=False) == after(self.bases[-1], committed)
        latest = after(self.bases[-1], [*committed, *self.pending])
        assert self.read(snapshot, include_wal=True) == latest
        self.look_up(snapshot, latest)

    def read(self, snapshot: Snapshot, *, include_wal: bool) -> Rows:
        captured = captured_regions.capture(self.table.store, snapshot, include_wal=include_wal)
        return self.over(snapshot, captured.above(snapshot))

    def look_up(self, snapshot: Snapshot, latest: Rows) -> None:
        """Assert that `get_many` finds the existing keys, and finds no row for one missing key.

        Only rows above the base count.
        """
        keys = [*latest, (8, "none")][-2:]
        wanted = pa.table({"b": pa.array([b for b, _ in keys], pa.int64()), "a": [a for _, a in keys]})
        captured = captured_regions.capture(self.table.store, snapshot, include_wal=True)
        found = self.over(snapshot, captured.above(snapshot, keys=wanted))
        assert {key: found[key] for key in keys if key in found} == {key: latest[key] for key in keys if key in latest}

    def over(self, snapshot: Snapshot, records: pa.Table) -> Rows:
        splits = [read_split(self.table.store, add) for add in snapshot.splits.values()]
        base = pa.concat_tables([SCHEMA.empty_table(), *(each.cast(SCHEMA) for each in splits)])
        return _rows(fold.apply(base, fold.fold(records, CONFIG.primary_key), CONFIG.primary_key).to_pylist())


def _rows(listed: Sequence[dict[str, Any]]) -> Rows:
    rows = {
        (each["b"], each["a"]): {"n": each["n"], "attrs": None if each["attrs"] is None else dict(each["attrs"])}
        for each in listed
    }
    assert len(rows) == len(listed), "one live row per key"
    return rows


@settings(max_examples=scaled(20), deadline=None)
@given(steps=STEPS)
def test_readers_at_every_level_see_the_dictionary_whatever_is_sorted(steps: list[Step]) -> None:
    model = Model()
    model.run([*steps, ("commit sort", None), ("commit merge", None), ("commit merge", None)])
