"""The kernel, DuckDB and Spark sort values of every type in the same order.

See docs/architecture/compaction.md, "Sort schema".
"""

from __future__ import annotations

import datetime as dt
import math
import random
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.spark.spark import Spark
from storage_core.data.rows.sort_order import OrderColumn, SortOrder, sort_indices
from tests.support.scale import scaled

FIRST_INSTANT, LAST_INSTANT = -62_135_596_800_000_000, 253_402_300_799_999_999
MOMENTS = [FIRST_INSTANT, LAST_INSTANT, -1, 0, 1, 1_700_000_000_000_000]
TEXTS = ["", "a", "ab", "b", "A", "10", "9", "é", "e\u0301", "\uffff", "\U00010000", "\U0010ffff", "a\0", "a\0b"]
FLOATS = [0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 1.5, -1.5]
DAYS = [dt.date.min, dt.date.max, dt.date(1969, 12, 31), dt.date(1970, 1, 1)]
DECIMALS = [Decimal("-10.00"), Decimal("-2.50"), Decimal("0.00"), Decimal("9.90"), Decimal("10.00")]
VALUES: dict[pa.DataType, list[object]] = {
    pa.bool_(): [True, False],
    pa.int8(): [-128, -1, 0, 1, 127],
    pa.int16(): [-(2**15), 0, 2**15 - 1],
    pa.int32(): [-(2**31), 0, 2**31 - 1],
    pa.int64(): [-(2**63), -1, 0, 1, 2**63 - 1],
    pa.float32(): list(FLOATS),
    pa.float64(): [*FLOATS, 5e-324, -5e-324, 1e300],
    pa.decimal128(12, 2): list(DECIMALS),
    pa.decimal128(38, 2): [*DECIMALS, Decimal(10**30), Decimal(-(10**30))],
    pa.string(): list(TEXTS),
    pa.binary(): [b"", b"\x7f", b"\x7f\x00", b"\x80", b"\xff"],
    pa.date32(): list(DAYS),
    pa.timestamp("us"): list(MOMENTS),
    pa.timestamp("us", tz="UTC"): list(MOMENTS),
}


def clause(order: SortOrder, quote: str = '"') -> str:
    """Return the order as SQL. Rows with equal values keep their order."""
    terms = [
        f"{quote}{each.name}{quote}{' DESC' if each.descending else ''} NULLS {'FIRST' if each.nulls_first else 'LAST'}"
        for each in order.columns
    ]
    return f"ORDER BY {', '.join([*terms, 'place'])}"


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.Table, SortOrder]:
    rows = draw(st.integers(0, 20))
    columns: dict[str, pa.Array] = {}
    order: list[OrderColumn] = []
    for number in range(draw(st.integers(1, 3))):
        type_ = draw(st.sampled_from(list(VALUES)))
        values = st.none() | st.sampled_from(VALUES[type_])
        column = pa.array(draw(st.lists(values, min_size=rows, max_size=rows)), type_)
        columns[f"c{number}"] = column.dictionary_encode() if draw(st.booleans()) else column
        order.append(OrderColumn(f"c{number}", draw(st.booleans()), nulls_first=draw(st.booleans())))
    return pa.table(columns), SortOrder(tuple(order), "")


@settings(max_examples=scaled(60))
@given(tables())
def test_duckdb_orders_rows_as_the_kernel_does(given_: tuple[pa.Table, SortOrder]) -> None:
    table, order = given_
    numbered = table.append_column("place", pa.array(range(table.num_rows), pa.int64()))
    with duckdb.connect() as connection:
        connection.register("numbered", numbered)
        found = connection.execute(f"SELECT place FROM numbered {clause(order)}").fetchall()
    assert [place for (place,) in found] == sort_indices(table, order).tolist()


@pytest.mark.spark
def test_spark_orders_rows_as_the_kernel_does(tmp_path: Path, spark: Spark) -> None:
    chosen = random.Random(26)
    columns = {
        f"c{number}": pa.array([chosen.choice([None, *values]) for _ in range(60)], type_)
        for number, (type_, values) in enumerate(VALUES.items())
    }
    table = pa.table(columns)
    # alternate ascending and descending order, with nulls first or last
    orders = [
        SortOrder((OrderColumn(name, descending=down, nulls_first=(number % 2 == 0) == down),), "")
        for number, name in enumerate(columns)
        for down in (False, True)
    ]
    numbered = table.append_column("place", pa.array(range(table.num_rows), pa.int64()))
    pq.write_table(numbered, tmp_path / "rows.parquet", store_schema=False)
    session = spark.session()
    # one partition, so that a sort within it sorts all rows
    session.read.parquet(str(tmp_path / "rows.parquet")).coalesce(1).cache().createOrReplaceTempView("numbered")
    for order in orders:
        within = clause(order, "`").replace("ORDER BY", "SORT BY")
        found = [row["place"] for row in session.sql(f"SELECT place FROM numbered {within}").collect()]
        assert found == sort_indices(table, order).tolist(), within
