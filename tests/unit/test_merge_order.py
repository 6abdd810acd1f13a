"""The merge order and its runs (docs/architecture/compaction.md, "Kernel")."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from storage_core.compact.kernel import MergeOrder, Runs, common_type, concatenated, merge_order, route, take_column
from storage_core.data.rows.sort_order import OrderColumn, SortOrder

METRICS = SortOrder(
    columns=(OrderColumn("metric", descending=False), OrderColumn("id", descending=False), OrderColumn("ts", True)),
    text="metric|id|timestamp/V2",
)


def _metrics(*rows: tuple[str | None, int]) -> pa.Table:
    return pa.table(
        {
            "metric": pa.array([metric for metric, _ in rows], pa.string()),
            "id": pa.array([1] * len(rows), pa.int64()),
            "ts": pa.array([ts for _, ts in rows], pa.int64()),
        }
    )


def _triples(order: MergeOrder) -> list[tuple[int, int, int]]:
    """Return the runs as (input, start, count)."""
    runs = order.runs
    return list(zip(runs.input.tolist(), runs.start.tolist(), runs.count.tolist(), strict=True))


@pytest.mark.parametrize("as_dictionary", [False, True])
def test_the_golden_merge_order_of_page_09(*, as_dictionary: bool) -> None:
    inputs = [_metrics(("cpu", 100), ("mem", 200)), _metrics(("cpu", 200), ("mem", 100))]
    if as_dictionary:
        inputs = [table.set_column(0, "metric", table.column(0).dictionary_encode()) for table in inputs]
    runs = merge_order(inputs, METRICS)
    assert _triples(runs) == [(1, 0, 1), (0, 0, 1), (0, 1, 1), (1, 1, 1)]
    way = route(runs.runs.positions([2, 2]), 4)
    columns = [[table.column(name) for table in inputs] for name in ("metric", "ts")]
    metric, ts = (
        take_column([chunk for column in each for chunk in column.chunks], way, common_type(each)) for each in columns
    )
    assert list(zip(metric.to_pylist(), ts.to_pylist(), strict=True)) == [
        ("cpu", 200),
        ("cpu", 100),
        ("mem", 200),
        ("mem", 100),
    ]


def test_ties_keep_the_order_of_the_inputs() -> None:
    inputs = [_metrics(("cpu", 100), ("cpu", 100)), _metrics(("cpu", 100)), _metrics(("cpu", 100), ("cpu", 100))]
    assert _triples(merge_order(inputs, METRICS)) == [(0, 0, 2), (1, 0, 1), (2, 0, 2)]


def test_inputs_that_do_not_interleave_make_one_run_each() -> None:
    first = _metrics(*(("a", ts) for ts in range(1000, 0, -1)))
    second = _metrics(*(("b", ts) for ts in range(1000, 0, -1)))
    runs = merge_order([second, first], METRICS)
    assert _triples(runs) == [(1, 0, 1000), (0, 0, 1000)]
    assert (len(runs.runs), runs.runs.rows) == (2, 2000)


def test_nulls_are_last_and_a_missing_sort_column_is_all_null() -> None:
    without_metric = pa.table({"id": pa.array([1], pa.int64()), "ts": pa.array([9], pa.int64())})
    inputs = [without_metric, _metrics(("z", 1), (None, 5))]
    assert _triples(merge_order(inputs, METRICS)) == [(1, 0, 1), (0, 0, 1), (1, 1, 1)]


def test_a_sort_column_that_no_input_has_orders_nothing() -> None:
    inputs = [pa.table({"ts": pa.array([1], pa.int64())}), pa.table({"ts": pa.array([2], pa.int64())})]
    assert _triples(merge_order(inputs, METRICS)) == [(1, 0, 1), (0, 0, 1)]


def test_without_an_order_the_inputs_follow_each_other() -> None:
    inputs = [_metrics(("b", 1), ("a", 1)), _metrics(("a", 2))]
    assert _triples(merge_order(inputs, SortOrder(columns=(), text=""))) == [(0, 0, 2), (1, 0, 1)]


def test_inputs_without_rows_take_no_part() -> None:
    inputs = [_metrics(), _metrics(("b", 1)), _metrics(), _metrics(("a", 1)), _metrics()]
    assert _triples(merge_order(inputs, METRICS)) == [(3, 0, 1), (1, 0, 1)]
    assert _triples(merge_order([_metrics(), _metrics()], METRICS)) == []


def test_strings_are_ordered_by_utf8_bytes_across_dictionaries() -> None:
    """Lesson 63: characters beyond U+FFFF are in different order in UTF-8 and in UTF-16."""
    beyond, private = "\U0001f600", "\ue000"
    inputs = [_metrics((beyond, 1)), _metrics((private, 1))]
    coded = [table.set_column(0, "metric", table.column(0).dictionary_encode()) for table in inputs]
    assert _triples(merge_order(coded, METRICS)) == [(1, 0, 1), (0, 0, 1)]


def test_positions_are_the_runs_written_out() -> None:
    runs = Runs(np.array([1, 0, 1]), np.array([0, 0, 2]), np.array([2, 3, 1]))
    assert runs.positions([3, 4]).tolist() == [3, 4, 0, 1, 2, 5]


@pytest.mark.parametrize("kind", [pa.string(), pa.dictionary(pa.int32(), pa.string())])
def test_a_column_that_an_input_lacks_is_null_for_its_rows(kind: pa.DataType) -> None:
    """Lesson 69: columns with several dictionaries, nulls and duplicates give the same values as plain columns."""
    have = pa.chunked_array([pa.array(["b", None]).cast(kind), pa.array(["a", "b"]).cast(kind)])
    whole = concatenated([have, None, have.slice(1, 2)], [4, 2, 2], kind)
    assert whole.to_pylist() == ["b", None, "a", "b", None, None, None, "a"]
    assert whole.type == kind


def test_a_dictionary_beside_plain_values_is_read_as_its_values() -> None:
    coded = pa.chunked_array([pa.array(["b", None]).dictionary_encode()])
    columns = [coded, None, pa.chunked_array([pa.array(["a"])])]
    assert common_type(columns) == pa.string()
    assert concatenated(columns, [2, 1, 1], pa.string()).to_pylist() == ["b", None, None, "a"]


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 6, 7])
def test_the_pieces_of_an_order_are_the_order(rows: int) -> None:
    runs = Runs(np.array([1, 0, 1]), np.array([0, 0, 2]), np.array([2, 3, 1]))
    pieces = runs.pieces(rows)
    assert [each.rows for each in pieces] == [min(rows, 6 - start) for start in range(0, 6, rows)]
    assert np.concatenate([each.positions([3, 4]) for each in pieces]).tolist() == [3, 4, 0, 1, 2, 5]


def test_a_key_begins_where_any_sort_column_changes() -> None:
    inputs = [_metrics(("cpu", 100), ("cpu", 100), ("mem", 100)), _metrics(("cpu", 200), ("cpu", 100))]
    order = merge_order(inputs, METRICS)
    assert order.begins.tolist() == [False, True, False, False, True]
    assert [order.next_key(row) for row in range(1, 6)] == [1, 4, 4, 4, 5]
