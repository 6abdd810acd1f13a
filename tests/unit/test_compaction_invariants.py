"""Each check of compaction accepts a correct output of a compaction and rejects a wrong output."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from storage_core.base.errors import Corrupt, InvalidInput, SnapshotExpired
from storage_core.compact import invariants
from storage_core.compact.execute import execute, merge, require_merged
from storage_core.compact.kernel import merge_order, require_same_values, route, same_values
from storage_core.compact.policy import FINALIZED
from storage_core.compact.work import CompactionTask
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Add
from storage_core.maintain.audit import audit
from storage_core.split.context import SplitContext
from storage_core.split.read import open_split, read_split
from storage_core.split.writer import Rewrite, sort_and_write, write_split
from storage_core.store.contract import Overwrite
from storage_core.store.memory import MemoryStore
from tests.support.events import CONFIG, SCHEMA, TABLE_ID, context, events, snapshot
from tests.support.ids import SeededIds
from tests.support.merge_plan import plan

NAN = float("nan")
FIRST = [
    {"at": 10, "service": "api", "host": "a", "count": 1, "value": 0.5},
    {"at": 20, "service": "web", "host": "b", "count": 2, "value": None},
]
SECOND = [
    {"at": 30, "service": "api", "host": "a", "count": 3, "value": NAN},
    {"at": 40, "service": "", "host": None, "count": None, "value": -1.0},
]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("invariants")


@pytest.fixture
def operation(store: MemoryStore) -> CompactionTask:
    adds = [*_write(store, events(FIRST), seed=1), *_write(store, events(SECOND), seed=2)]
    (planned,) = plan(snapshot(adds))
    return planned


def _write(store: MemoryStore, rows: pa.Table, *, seed: int, where: SplitContext | None = None) -> list[Add]:
    return sort_and_write(store, rows, context=where or context(), ids=SeededIds(seed), now_ms=1)


def _merged(store: MemoryStore, operation: CompactionTask) -> pa.Table:
    splits = [open_split(store, add, as_dictionary=True) for add in operation.inputs]
    return pa.concat_tables(list(merge(splits, SCHEMA, operation.context.order).pieces))


def _require(wrong: pa.Table, store: MemoryStore, operation: CompactionTask) -> None:
    """Run the check of the compaction kernel for moved columns. The table `wrong` is the checked output."""
    inputs = [open_split(store, add, as_dictionary=True).read() for add in operation.inputs]
    rows = [table.num_rows for table in inputs]
    way = route(merge_order(inputs, operation.context.order).runs.positions(rows), sum(rows))
    for name in wrong.column_names:
        chunks = [chunk for table in inputs for chunk in table.column(name).chunks]
        require_same_values(name, chunks, way, wrong.column(name).combine_chunks())


def test_a_right_output_passes(store: MemoryStore, operation: CompactionTask) -> None:
    merged = _merged(store, operation)
    _require(merged, store, operation)
    require_merged(merged, SCHEMA, operation)
    assert [row["service"] for row in merged.to_pylist()] == ["", "api", "api", "web"]


def test_a_lost_row_breaks_mc_1(store: MemoryStore, operation: CompactionTask) -> None:
    with pytest.raises(Corrupt, match=r"MC-1: .*read 4 rows and wrote 3"):
        _require(_merged(store, operation).slice(1), store, operation)


def test_a_doubled_row_breaks_mc_1(store: MemoryStore, operation: CompactionTask) -> None:
    merged = _merged(store, operation)
    with pytest.raises(Corrupt, match="MC-1"):
        _require(merged.take(pa.array([0, 0, 1, 2, 3])), store, operation)


def test_a_row_in_place_of_another_breaks_mc_2(store: MemoryStore, operation: CompactionTask) -> None:
    merged = _merged(store, operation)
    with pytest.raises(Corrupt, match="MC-2"):
        _require(merged.take(pa.array([0, 1, 1, 3])), store, operation)


def test_a_changed_value_breaks_mc_2(store: MemoryStore, operation: CompactionTask) -> None:
    merged = _merged(store, operation)
    changed = merged.set_column(3, SCHEMA.field("count"), pc.add(merged.column("count"), 1))
    with pytest.raises(Corrupt, match="MC-2"):
        _require(changed, store, operation)


def test_values_swapped_between_rows_break_mc_2(store: MemoryStore, operation: CompactionTask) -> None:
    merged = _merged(store, operation)
    swapped = merged.set_column(4, SCHEMA.field("value"), merged.column("value").take(pa.array([1, 0, 2, 3])))
    with pytest.raises(Corrupt, match="MC-2"):
        _require(swapped, store, operation)


def test_null_in_place_of_an_empty_string_breaks_mc_2(store: MemoryStore, operation: CompactionTask) -> None:
    merged = _merged(store, operation)
    service = merged.column("service").cast(pa.string())
    nulled = merged.set_column(1, SCHEMA.field("service"), pc.if_else(pc.equal(service, ""), None, service))
    with pytest.raises(Corrupt, match="MC-2"):
        _require(nulled, store, operation)


def test_values_that_float_arithmetic_takes_for_equal_are_told_apart() -> None:
    way = route(np.array([1, 0]), 2)
    zeros = [pa.array([0.0, -0.0])]
    assert same_values(zeros, way, pa.array([-0.0, 0.0]))
    assert not same_values(zeros, way, pa.array([0.0, -0.0]))


def test_a_place_that_is_taken_twice_or_not_at_all_breaks_mc_1() -> None:
    for positions, rows in (([0, 0, 1], 3), ([0, 1], 3), ([0, 1, 3], 3), ([0, -1], 2), ([0, 1, 1], 2)):
        with pytest.raises(Corrupt, match=r"MC-1: .* not a permutation"):
            route(np.array(positions), rows)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (pa.array([True, None]), pa.array([True, False])),
        (pa.array(["a", None]), pa.array(["a", ""])),
        (pa.array([b"a", b"b"]), pa.array([b"b", b"a"])),
        (pa.array([Decimal("1.0"), Decimal("2.0")]), pa.array([Decimal("1.0"), Decimal("3.0")])),
        (pa.array([1, None], pa.timestamp("us")), pa.array([None, 1], pa.timestamp("us"))),
        (pa.array([[1.5], [NAN, None]]), pa.array([[1.5], [None, NAN]])),
        (pa.array([{"x": 1}, {"x": None}]), pa.array([{"x": 1}, None])),
        (pa.array(["a", "b"]).dictionary_encode(), pa.array(["a", "a"]).dictionary_encode()),
        (pa.array(["a", None]).dictionary_encode(), pa.array(["a", "b"]).dictionary_encode()),
        (pa.array(["a", "b"]).dictionary_encode(), pa.array(["a", "b", "c"]).dictionary_encode()),
    ],
    ids=lambda array: f"{array.type}",
)
def test_a_wrong_value_of_any_type_breaks_mc_2(right: pa.Array, wrong: pa.Array) -> None:
    way = route(np.arange(len(right)), len(right))
    halves = [right.slice(0, 1), right.slice(1)]
    assert same_values(halves, way, right)
    assert not same_values(halves, way, wrong)


def test_an_unsorted_output_breaks_mc_3(store: MemoryStore, operation: CompactionTask) -> None:
    merged = _merged(store, operation)
    with pytest.raises(Corrupt, match=r"MC-3: .*not sorted by 'service\|host\|timestamp/V2'"):
        require_merged(merged.take(pa.array([0, 2, 1, 3])), SCHEMA, operation)


def test_a_lost_or_retyped_column_breaks_mc_4(store: MemoryStore, operation: CompactionTask) -> None:
    merged = _merged(store, operation)
    with pytest.raises(Corrupt, match="MC-4"):
        require_merged(merged.drop_columns(["value"]), SCHEMA, operation)
    narrowed = merged.set_column(3, "count", merged.column("count").cast(pa.int32()))
    with pytest.raises(Corrupt, match="MC-4"):
        require_merged(narrowed, SCHEMA, operation)


def test_a_type_conflict_names_the_column_and_both_splits(store: MemoryStore) -> None:
    other = SCHEMA.set(3, pa.field("count", pa.string()))
    first, *_ = _write(store, events(FIRST), seed=1)
    rows = events([{**SECOND[0], "count": "three"}], other)
    second, *_ = _write(store, rows, seed=2, where=context(other))
    (planned,) = plan(snapshot([first, second]))
    with pytest.raises(InvalidInput, match="MC-4: column 'count' is int64 in") as caught:
        execute(store, planned, ids=SeededIds(3), now_ms=2)
    assert f"int64 in {first.path} and string in {second.path}" in str(caught.value)
    assert caught.value.context == {"column": "count", "splits": (first.path, second.path)}
    assert len(list(store.list("splits/"))) == 2


def test_inputs_of_two_windows_or_scopes_are_refused(store: MemoryStore) -> None:
    first, *_ = _write(store, events(FIRST), seed=1)
    late, *_ = _write(store, events([{**SECOND[0], "at": 3600}]), seed=2)
    with pytest.raises(InvalidInput, match="CS-2"):
        execute(store, CompactionTask(0, (first, late), context()), ids=SeededIds(3), now_ms=2)
    foreign = replace(first, sortSchema="host|timestamp/V2")
    with pytest.raises(InvalidInput, match="CS-1"):
        execute(store, CompactionTask(0, (first, foreign), context()), ids=SeededIds(3), now_ms=2)
    unsorted = replace(first, sortSchema=None)
    with pytest.raises(InvalidInput, match="CS-1"):
        invariants.require_one_scope(TABLE_ID, 0, [unsorted, unsorted])


def test_a_corrupt_input_stops_before_anything_is_written(store: MemoryStore, operation: CompactionTask) -> None:
    path = operation.inputs[0].path
    data = bytearray(store.get(path).data)
    data[40] ^= 1
    store.put(path, bytes(data), Overwrite())
    with pytest.raises(Corrupt, match=path):
        execute(store, operation, ids=SeededIds(3), now_ms=2)
    assert len(list(store.list("splits/"))) == 2


def test_a_vanished_input_is_an_expired_snapshot(store: MemoryStore, operation: CompactionTask) -> None:
    store.delete([operation.inputs[1].path])
    with pytest.raises(SnapshotExpired, match=operation.inputs[1].path):
        execute(store, operation, ids=SeededIds(3), now_ms=2)


def test_the_result_says_what_was_swapped_and_travels_as_json(store: MemoryStore, operation: CompactionTask) -> None:
    result = execute(store, operation, ids=SeededIds(3), now_ms=77)
    (add,) = result.adds
    assert (add.numMergeOps, add.dataChange, add.windowStart, add.modificationTime) == (FINALIZED, False, 0, 77)
    assert [remove.path for remove in result.removes] == [each.path for each in operation.inputs]
    assert {(remove.dataChange, remove.deletionTimestamp) for remove in result.removes} == {(False, 77)}
    assert (result.rows_in, result.rows_out) == (4, 4)
    assert (result.bytes_in, result.bytes_out) == (sum(each.size for each in operation.inputs), add.size)
    assert Rewrite.from_json(result.to_json()) == result


def test_the_outputs_record_the_number_of_merges_that_the_plan_gives_them(store: MemoryStore) -> None:
    rows = events(FIRST)
    adds = [
        write_split(store, row, context=context(), window=0, num_merge_ops=merges, split_id=f"s{merges}", now_ms=1)
        for merges, row in ((3, rows.slice(0, 1)), (1, rows.slice(1, 1)))
    ]
    (planned,) = plan(snapshot(adds))
    for merges in (planned.merge_ops, 4):
        outputs = execute(store, replace(planned, merge_ops=merges), ids=SeededIds(merges), now_ms=2).adds
        assert [each.numMergeOps for each in outputs] == [merges]


def test_a_required_column_stays_required_unless_an_input_lacks_it() -> None:
    required = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int64(), nullable=False)])
    both = invariants.union_schema([("a", required), ("b", required)])
    assert both.equals(required)
    lacking = invariants.union_schema([("a", required.remove(1)), ("b", required)])
    assert [(field.name, field.nullable) for field in lacking] == [("id", False), ("n", True)]


@pytest.mark.parametrize("config", [TableConfig(), TableConfig(primary_key=("host", "service"))])
def test_tables_without_time_or_without_order_are_compacted_too(store: MemoryStore, config: TableConfig) -> None:
    where = context(config=config)
    adds = [*_write(store, events(FIRST), seed=1, where=where), *_write(store, events(SECOND), seed=2, where=where)]
    (planned,) = plan(snapshot(adds, config=config))
    (add,) = execute(store, planned, ids=SeededIds(3), now_ms=2).adds
    counts = read_split(store, add).column("count").to_pylist()
    assert counts == ([1, 3, 2, None] if config.primary_key else [1, 2, 3, None])
    assert add.path.startswith("splits/all/")
    assert audit(store, snapshot([add], config=config)).violations == ()


def test_an_output_above_the_target_is_cut_and_left_alone_by_the_next_plan(store: MemoryStore) -> None:
    small = replace(context(), target_bytes=20_000)
    adds = [
        add
        for part in range(4)
        for add in _write(
            store,
            events(
                {"at": i % 50, "service": f"s{i % 97}", "host": f"h{i * part}", "count": i * 7919, "value": i / 7}
                for i in range(3000)
            ),
            seed=part,
        )
    ]
    result = execute(store, CompactionTask(0, tuple(adds), small, FINALIZED), ids=SeededIds(9), now_ms=2)
    assert len(result.adds) > 2
    assert result.rows_out == 12_000
    assert all(10_000 < add.size < 30_000 for add in result.adds)
    assert plan(snapshot(result.adds, config=replace(CONFIG, target_split_bytes=20_000))) == []
    merged = pa.concat_tables([read_split(store, add) for add in result.adds])
    invariants.require_sorted(merged, small.order, adds)


def test_an_audit_of_untouched_splits_finds_nothing(store: MemoryStore, operation: CompactionTask) -> None:
    result = execute(store, operation, ids=SeededIds(3), now_ms=2)
    assert audit(store, snapshot(operation.inputs)).violations == ()
    assert audit(store, snapshot(result.adds)).violations == ()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"windowStart": 3600}, ("TW-1", "expected rows of the window 3600 only")),
        ({"windowSeconds": 700}, ("TW-2", "window is 700s. Give")),
        ({"sortSchema": "service:-|host|timestamp/V2"}, ("SS-1", "are not sorted")),
        ({"sortSchema": "service:-|host|timestamp/V2"}, ("SS-5", "native sorting columns")),
        ({"maxValues": {"service": "vast"}}, ("SS-5", "maximum values: the log has")),
        ({"minRowKey": '["",null,null]'}, ("SS-5", "tidemark.min_row_key: the log has")),
        ({"nullCounts": {"service": 1}}, ("SS-5", "null counts: the log has")),
        ({"columnRegexes": {"service": "^x$"}}, ("SS-5", "column 'service': '^x$' does not match")),
        ({"columnRegexes": {"service": "^(a|b)$"}}, ("SS-5", "tidemark.column_regexes: the log has")),
        ({"numMergeOps": 7}, ("SS-5", "tidemark.num_merge_ops: the log has '7', the file has '0'")),
        ({"xxh3": "0123456789abcdef"}, ("SS-5", "expected xxh3-64 0123456789abcdef")),
        ({"size": 5}, ("SS-5", "expected 5 bytes")),
    ],
)
def test_an_audit_finds_a_log_that_does_not_fit_the_file(
    store: MemoryStore, operation: CompactionTask, change: dict[str, object], expected: tuple[str, str]
) -> None:
    wrong = replace(operation.inputs[0], **change)  # type: ignore[arg-type]  # one field each
    found = audit(store, snapshot([wrong, operation.inputs[1]])).violations
    assert {violation.path for violation in found} == {wrong.path}
    invariant, message = expected
    assert any(each.invariant == invariant and message in each.message for each in found), found


def test_an_audit_finds_rows_that_are_not_in_order(store: MemoryStore) -> None:
    backwards = write_split(
        store,
        events(FIRST).take(pa.array([1, 0])),
        context=context(),
        window=0,
        num_merge_ops=0,
        split_id="x",
        now_ms=1,
    )
    assert [each.invariant for each in audit(store, snapshot([backwards])).violations] == ["SS-1"]


def test_an_audit_reports_a_missing_file_and_goes_on(store: MemoryStore, operation: CompactionTask) -> None:
    store.delete([operation.inputs[0].path])
    (violation,) = audit(store, snapshot(operation.inputs)).violations
    assert (violation.invariant, violation.path) == ("SS-5", operation.inputs[0].path)
