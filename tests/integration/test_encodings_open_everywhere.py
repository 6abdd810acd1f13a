"""Every encoding of a split opens in Spark, DuckDB, Polars, DataFusion and delta-rs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import datafusion
import deltalake
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.spark.spark import Spark
from storage_core.data.rows.sort_order import OrderColumn, SortOrder
from storage_core.split.encode import Encoding, FileWriter, candidates

pytestmark = pytest.mark.spark

ROWS = 3000
START = datetime(1969, 12, 31, tzinfo=UTC)
VALUES: Mapping[pa.DataType, Callable[[int], object]] = {
    pa.int8(): lambda row: row % 256 - 128,
    pa.int16(): lambda row: row * 31 % 65_536 - 32_768,
    pa.int32(): lambda row: row * 7919 - 2**31,
    pa.int64(): lambda row: row * 7919**3 - 2**63,
    pa.float32(): lambda row: row / 8,
    pa.float64(): lambda row: row / 7,
    pa.decimal128(12, 2): lambda row: Decimal(row * 7919 - 10**6).scaleb(-2),
    pa.string(): lambda row: f"gr\u00fc\u00dfe-{row // 3:05d}",
    pa.binary(): lambda row: row.to_bytes(4, "little") + b"\xff",
    pa.date32(): lambda row: (START + timedelta(days=row)).date(),
    pa.timestamp("us", tz="UTC"): lambda row: START + timedelta(seconds=row * 97, microseconds=row),
    pa.timestamp("us"): lambda row: (START + timedelta(seconds=row * 97, microseconds=row)).replace(tzinfo=None),
}

Read = Callable[[Path], pa.Table]


def _encoded() -> tuple[pa.Table, dict[str, Encoding]]:
    """Return one column per type and encoding, with every seventh value null, and a row number to sort by."""
    columns: dict[str, pa.Array] = {"row": pa.array(range(ROWS), pa.int64())}
    encodings: dict[str, Encoding] = {}
    for index, (type_, value) in enumerate(VALUES.items()):
        values = pa.array([None if row % 7 == 0 else value(row) for row in range(ROWS)], type_)
        for encoding in candidates(type_):
            name = f"c{index}_{encoding.lower()}"
            columns[name], encodings[name] = values, encoding
    vectors = [None if row % 7 == 0 else [row / 8, -row, 0.1] for row in range(ROWS)]
    columns["vector"] = pa.array(vectors, pa.list_(pa.float32(), 3))  # embeddings have a fixed encoding
    return pa.table(columns), encodings


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pa.Table]:
    rows, encodings = _encoded()
    order = SortOrder((OrderColumn("row", descending=False),), "row")
    file = FileWriter(rows.schema, order, encodings, may_hold_nan=["vector"])
    file.add(rows)
    folder = tmp_path_factory.mktemp("encodings")
    (folder / "split.parquet").write_bytes(file.finish({}))
    return folder, rows


def _require_same(found: pa.Table, expected: pa.Table) -> None:
    ordered = found.select(expected.column_names).cast(expected.schema).sort_by("row")
    for name in expected.column_names:
        assert ordered.column(name).to_pylist() == expected.column(name).to_pylist(), name


def test_spark_reads_every_encoding(written: tuple[Path, pa.Table], spark: Spark) -> None:
    folder, rows = written
    _require_same(spark.session().read.parquet(str(folder)).toArrow(), rows)


def test_duckdb_reads_every_encoding(written: tuple[Path, pa.Table]) -> None:
    folder, rows = written
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        _require_same(connection.read_parquet(str(folder / "split.parquet")).to_arrow_table(), rows)


def test_polars_reads_every_encoding(written: tuple[Path, pa.Table]) -> None:
    folder, rows = written
    _require_same(pl.read_parquet(folder / "split.parquet").to_arrow(), rows)


def test_datafusion_reads_every_encoding(written: tuple[Path, pa.Table]) -> None:
    folder, rows = written
    _require_same(datafusion.SessionContext().read_parquet(str(folder)).to_arrow_table(), rows)


def test_delta_rs_reads_every_encoding(written: tuple[Path, pa.Table]) -> None:
    folder, rows = written
    deltalake.convert_to_deltalake(folder)
    query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(folder))
    _require_same(pa.table(query.execute("SELECT * FROM t").read_all()), rows)


def test_the_file_really_has_every_encoding(written: tuple[Path, pa.Table]) -> None:
    """Without this check, the tests above might read only default encodings."""
    group = pq.read_metadata(written[0] / "split.parquet").row_group(0)
    found = {
        group.column(index).path_in_schema: set(group.column(index).encodings) for index in range(group.num_columns)
    }
    for name, encoding in _encoded()[1].items():
        assert {"DICTIONARY": "RLE_DICTIONARY"}.get(encoding, encoding) in found[name], name
