"""A file with one page per column has no page index, and is otherwise as Arrow wrote it."""

from __future__ import annotations

from collections.abc import Collection

import datafusion
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.data.formats import parquet_footer
from storage_core.data.formats.parquet_footer import of_single_pages
from storage_core.data.rows.sort_order import OrderColumn, SortOrder
from storage_core.split.encode import ROWS_PER_PAGE, BloomFilters, FileWriter

ORDER = SortOrder((OrderColumn("n", descending=False, nulls_first=False),), "n/V2")


def rows(count: int) -> pa.Table:
    numbers = range(count)
    columns = {
        "n": pa.array(numbers, pa.int64()),
        "x": pa.array([each / 4 for each in numbers]),
        "text": pa.array([None if each % 5 == 0 else f"value {each % 7}" for each in numbers]),
        "at": pa.array(numbers, pa.timestamp("us", "UTC")),
        "tags": pa.array([["a", "b"][: each % 3] for each in numbers]),
    }
    return pa.table(columns)


def written(*groups: pa.Table, bloom_filters: Collection[str] = (), on_disk: bool = False) -> pa.Buffer:
    file = FileWriter(groups[0].schema, ORDER, {}, bloom_filters=BloomFilters(bloom_filters, 100), on_disk=on_disk)
    for each in groups:
        file.add(each)
    return file.finish({"tidemark.path": "p"})


def indexes(data: pa.Buffer) -> set[tuple[bool, bool]]:
    footer = pq.read_metadata(pa.BufferReader(data))
    groups = [footer.row_group(each) for each in range(footer.num_row_groups)]
    chunks = [group.column(each) for group in groups for each in range(footer.num_columns)]
    return {(chunk.has_column_index, chunk.has_offset_index) for chunk in chunks}


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("count", [1, 100, ROWS_PER_PAGE])
def test_a_file_of_single_pages_has_no_page_index_and_every_reader_finds_its_rows(count: int, *, on_disk: bool) -> None:
    given_rows = rows(count)
    data = written(given_rows, on_disk=on_disk)
    assert indexes(data) == {(False, False)}
    assert pq.read_table(pa.BufferReader(data), page_checksum_verification=True).equals(given_rows)
    assert pl.read_parquet(data.to_pybytes(), use_pyarrow=False).height == count


def test_engines_prune_by_the_bounds_that_are_left(tmp_path: object) -> None:
    path = f"{tmp_path}/rows.parquet"
    with open(path, "wb") as file:  # noqa: PTH123
        file.write(written(rows(100)))
    chunk = pq.read_metadata(path).row_group(0).column(0)
    assert (chunk.statistics.min, chunk.statistics.max, chunk.statistics.null_count) == (0, 99, 0)
    (number, text) = duckdb.execute(
        f"SELECT stats_min_value, stats_max_value, stats_min, stats_null_count FROM parquet_metadata('{path}') "
        "WHERE path_in_schema IN ('n', 'text') ORDER BY column_id"
    ).fetchall()
    assert (number, text) == (("0", "99", None, 0), ("value 0", "value 6", None, 20))
    found = duckdb.execute(f"SELECT n FROM '{path}' WHERE text = 'value 3' AND n > 90").fetchall()
    assert found == [(94,)]
    session = datafusion.SessionContext()
    session.register_parquet("rows", path)
    (batch,) = session.sql("SELECT n FROM rows WHERE text = 'value 3' AND n > 90").collect()
    assert batch.column(0).to_pylist() == [94]


def test_what_the_file_says_beside_its_indexes_stays() -> None:
    data = written(rows(100), bloom_filters=["text"])
    footer = pq.read_metadata(pa.BufferReader(data))
    assert b"tidemark.path" in footer.metadata
    group = footer.row_group(0)
    assert [each.column_index for each in group.sorting_columns] == [0]
    names = [footer.schema.column(each).path for each in range(footer.num_columns)]
    assert names == ["n", "x", "text", "at", "tags.list.element"]
    filtered = parquet_footer.struct(data.to_pybytes()[-8 - footer.serialized_size :], 0)[0][4][0][1][2][3]
    assert 0 < filtered[14] < data.size - footer.serialized_size


def test_a_file_of_several_pages_or_row_groups_keeps_its_indexes() -> None:
    assert indexes(written(rows(ROWS_PER_PAGE + 1))) == {(True, True)}
    assert indexes(written(rows(10), rows(10))) == {(True, True)}
    long = pa.table({"n": range(3_000), "text": [f"{each:04}" * 512 for each in range(3_000)]})
    assert indexes(written(long)) == {(True, True)}


def test_a_footer_that_leaves_nothing_out_stays_as_it_is() -> None:
    data = written(rows(100))
    end = data.to_pybytes()[-8 - pq.read_metadata(pa.BufferReader(data)).serialized_size :]
    assert of_single_pages(end) is None
    copied, length = parquet_footer.without(end, 0, {4: {1: {3: {12: {}}}}})
    assert (copied, length) == (bytes(end[:-8]), len(end) - 8)


@given(st.lists(st.integers(0, 15), unique=True, max_size=10))
def test_fields_are_left_out_and_others_keep_their_ids_and_values(left_out: list[int]) -> None:
    body = bytes([0x15, 2, 0x18, 1, 65, 0x11, 0x1C, 0x15, 4, 0x25, 6, 0, 0x29, 0x15, 8, 0])  # fields 1, 2, 3, 4 and 6
    everything, end = parquet_footer.struct(body, 0)
    assert everything == {1: 1, 3: True, 4: {1: 2, 3: 3}, 6: [4]}
    copied, same_end = parquet_footer.without(body, 0, dict.fromkeys(left_out))
    assert same_end == end == len(body)
    found, _ = parquet_footer.struct(copied, 0)
    assert found == {field: value for field, value in everything.items() if field not in left_out}
    inner, _ = parquet_footer.without(body, 0, {4: dict.fromkeys(left_out)})
    kept = {field: value for field, value in {1: 2, 3: 3}.items() if field not in left_out}
    assert parquet_footer.struct(inner, 0)[0] == everything | {4: kept}
