"""A merge that is too large for one task runs in bounded parts, whose joint result equals one merge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap

from storage_core.base.errors import Corrupt
from storage_core.compact import work
from storage_core.compact.execute import bounds_of, execute, is_too_large, require_whole
from storage_core.compact.policy import FINALIZED
from storage_core.compact.work import CompactionTask
from storage_core.data.settings.layout import CompactionSettings
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Add
from storage_core.log.deletion_vector import inline
from storage_core.maintain.audit import audit
from storage_core.split.read import open_part, open_split, read_split
from storage_core.split.writer import sort_and_write, write_split
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from tests.support.events import CONFIG, SCHEMA, context, snapshot
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable
from tests.support.merge_plan import in_parts, plan

RUN_ROWS = 1_000
FEW = replace(CONFIG, compaction=CompactionSettings(run_rows=RUN_ROWS))


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("parts")


def rows_of(seed: int, count: int, *, services: int = 7, columns: Sequence[str] = SCHEMA.names) -> pa.Table:
    """Return rows of one window with nulls, many of which have equal sort keys."""
    random = np.random.default_rng(seed)
    service = pa.array([None if each == 0 else f"s{each}" for each in random.integers(0, services, count)], pa.string())
    host = pa.array([f"h{each}" for each in random.integers(0, 4, count)], pa.string())
    at = pa.array(random.integers(0, 60, count) * 1_000_000, pa.int64()).cast(SCHEMA.field("at").type)
    numbers = pa.array(seed * 1_000_000 + np.arange(count), pa.int64())
    value = pa.array(random.random(count))
    whole = pa.table([at, service, host, numbers, value], schema=SCHEMA)
    return whole.select(list(columns))


def split_of(store: MemoryStore, rows: pa.Table, *, seed: int, deleted: float = 0.0) -> Add:
    where = context(rows.schema, replace(FEW, sort_schema=None) if "service" not in rows.column_names else FEW)
    (add,) = sort_and_write(store, rows, context=replace(where, order=context().order), ids=SeededIds(seed), now_ms=1)
    gone = BitMap(np.flatnonzero(np.random.default_rng(seed).random(rows.num_rows) < deleted).astype(np.uint32))
    return replace(add, deletionVector=inline(gone)) if gone else add


def merge_of(adds: Sequence[Add], config: TableConfig = FEW) -> CompactionTask:
    (task,) = plan(snapshot(adds, config=config))
    return task


def written(store: MemoryStore, adds: Sequence[Add]) -> pa.Table:
    return pa.concat_tables([read_split(store, add) for add in adds], promote_options="default")


def require_as_one(store: MemoryStore, task: CompactionTask) -> list[CompactionTask]:
    """Execute a merge in parts and in one task. Check the bounds of each part, and that both results are equal."""
    fresh = 10_000 * sum(1 for _ in store.list(""))
    parts = in_parts(store, task, ids=SeededIds(fresh))
    results = [execute(store, each, ids=SeededIds(fresh + number), now_ms=2) for number, each in enumerate(parts, 1)]
    require_whole(task, results)
    bounds = bounds_of(task.context)
    for part, result in zip(parts, results, strict=True):
        assert part.part is not None
        rows = [end - first for first, end in part.part.row_ranges]
        assert sum(rows) <= bounds.rows
        size = sum(add.size * count / (add.numRecords or 1) for add, count in zip(part.inputs, rows, strict=True))
        assert size <= bounds.bytes
        assert result.rows_in <= sum(rows)
    whole = execute(store, task, ids=SeededIds(fresh - 1), now_ms=2)
    outputs = [add for result in results for add in result.adds]
    assert written(store, outputs).equals(written(store, whole.adds))
    assert {remove.path for result in results for remove in result.removes} == {add.path for add in task.inputs}
    assert {add.numMergeOps for add in outputs} == {FINALIZED}
    return parts


@pytest.mark.parametrize("deleted", [0.0, 0.2])
@pytest.mark.parametrize("seed", range(3))
def test_parts_write_one_after_the_other_what_one_merge_writes(store: MemoryStore, seed: int, deleted: float) -> None:
    sizes = np.random.default_rng(seed).integers(1, 900, 12).tolist()
    adds = [
        split_of(store, rows_of(100 * seed + number, size), seed=100 * seed + number, deleted=deleted)
        for number, size in enumerate(sizes)
    ]
    parts = require_as_one(store, merge_of(adds))
    assert sum(sizes) / RUN_ROWS <= len(parts) <= 3 * sum(sizes) / RUN_ROWS + 1


def test_a_key_with_more_rows_than_a_task_may_read_is_cut_between_its_rows(store: MemoryStore) -> None:
    same = [rows_of(number, 700).set_column(1, "service", pa.array(["one"] * 700)) for number in range(4)]
    same = [
        rows.set_column(
            0, SCHEMA.field("at"), pa.array([5] * 700, pa.int64()).cast(SCHEMA.field("at").type)
        ).set_column(2, "host", pa.array(["h"] * 700))
        for rows in same
    ]
    adds = [split_of(store, rows, seed=number) for number, rows in enumerate(same)]
    assert len(require_as_one(store, merge_of(adds))) == 3
    mixed = [split_of(store, pa.concat_tables([same[0], rows_of(9 + n, 700)]), seed=20 + n) for n in range(3)]
    require_as_one(store, merge_of(mixed))


def test_a_split_without_the_sort_columns_takes_part(store: MemoryStore) -> None:
    lacking = rows_of(1, 900, columns=["at", "count", "value"])
    where = replace(context(config=FEW), schema=lacking.schema)
    (bare,) = write_split_of(store, lacking, where)
    adds = [bare, *(split_of(store, rows_of(number, 600), seed=number) for number in range(2, 5))]
    require_as_one(store, merge_of(adds))


def write_split_of(store: MemoryStore, rows: pa.Table, where: object) -> list[Add]:
    return sort_and_write(store, rows, context=where, ids=SeededIds(40), now_ms=1)  # type: ignore[arg-type]


def test_a_table_without_an_order_is_cut_by_input_and_row(store: MemoryStore) -> None:
    table = KeyedTable(store).create(SCHEMA, TableConfig(compaction=CompactionSettings(run_rows=500)))
    for number in range(3):
        table.append(rows_of(number, 700).to_pylist())
    before = table.base_rows()
    assert table.compact() is not None
    assert sorted(map(str, table.base_rows())) == sorted(map(str, before))
    assert len(table.snapshot.splits) >= 5


def test_parts_are_bounded_by_bytes_where_rows_are_wide(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    adds = [split_of(store, rows_of(number, 1_500), seed=number) for number in range(6)]
    size = sum(add.size for add in adds)
    monkeypatch.setattr(work, "MOST_RUN_TARGETS", 1)
    parts = require_as_one(store, merge_of(adds, replace(CONFIG, target_split_bytes=size // 3)))
    assert 4 <= len(parts) <= 8


def test_a_task_fetches_the_row_groups_of_its_part_and_no_others(tmp_path: Path) -> None:
    objects = MemoryStore("groups")
    random = np.random.default_rng(1)
    rows = rows_of(1, 200_000, services=2_000).set_column(4, "value", pa.array(random.random(200_000)))
    add = split_of(objects, rows, seed=1)
    assert add.size > 2 * 2**20
    store = MeteredStore(objects)
    read = 0
    for first in range(0, 200_000, 50_000):
        before = store.bytes_read
        part = open_part(store, add, (first, first + 50_000), spool=tmp_path)
        assert part.rows == 50_000
        assert part.read().equals(open_split(objects, add, as_dictionary=True).read().slice(first, 50_000))
        assert store.bytes_read - before < 0.7 * add.size
        read += store.bytes_read - before
    assert read < 2.2 * add.size


def test_an_input_that_is_not_sorted_is_found_and_named(store: MemoryStore) -> None:
    rows, where = rows_of(1, 900), context(config=FEW)
    unsorted = write_split(store, rows, context=where, window=0, num_merge_ops=0, split_id="unsorted", now_ms=1)
    adds = [unsorted, *(split_of(store, rows_of(number, 600), seed=number) for number in range(2, 4))]
    with pytest.raises(Corrupt, match=f"SS-1: {unsorted.path} is not sorted"):
        in_parts(store, merge_of(adds), ids=SeededIds(7))


def test_parts_that_do_not_make_up_the_merge_are_refused(store: MemoryStore) -> None:
    task = merge_of([split_of(store, rows_of(number, 600), seed=number) for number in range(3)])
    parts = in_parts(store, task, ids=SeededIds(7))
    results = [execute(store, each, ids=SeededIds(8 + number), now_ms=2) for number, each in enumerate(parts)]
    with pytest.raises(Corrupt, match="MC-1: the merge has 1800 rows in 3 splits"):
        require_whole(task, results[1:])


def large_window(store: MemoryStore, *, splits: int = 6, config: TableConfig = FEW) -> KeyedTable:
    table = KeyedTable(store).create(SCHEMA, config)
    for number in range(splits):
        table.append(rows_of(number, 700).to_pylist())
    return table


def starts(table: KeyedTable) -> Iterator[Add]:
    return iter(table.snapshot.splits.values())


def test_a_large_window_becomes_one_run_that_an_audit_finds_sound_and_stays_it(store: MemoryStore) -> None:
    table = large_window(store)
    before = sorted(map(str, table.base_rows()))
    assert is_too_large(plan(table.snapshot)[0])
    done = table.compact()
    assert done is not None
    assert sorted(map(str, table.base_rows())) == before
    assert {add.numMergeOps for add in starts(table)} == {FINALIZED}
    found = audit(store, table.snapshot)
    assert (found.violations, found.unchecked) == ((), ())
    assert plan(table.snapshot) == [], "one run: there is nothing more to merge"
    table.append(rows_of(50, 100).to_pylist())
    assert plan(table.snapshot) == [], "less than a tenth is late"
    table.append(rows_of(51, 900).to_pylist())
    assert table.compact() is not None
    assert {add.numMergeOps for add in starts(table)} == {FINALIZED + 1}
    assert audit(store, table.snapshot).violations == ()
