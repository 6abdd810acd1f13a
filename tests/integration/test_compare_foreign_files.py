"""The comparison of Tidemark's imports of foreign files with a second reader counts each kind of import once."""

from __future__ import annotations

from pathlib import Path

import deltalake
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scripts.compare_foreign_files import equal_rows, main

ROWS = pa.table(
    {
        "n": [1, 2, 3],
        "text": ["a", None, "ä"],
        "tags": pa.array([[("k", "v")], [], None], pa.map_(pa.string(), pa.string())),
    }
)


def test_files_of_many_kinds_are_equal_or_refused_by_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(ROWS, tmp_path / "arrow.PARQUET")
    (tmp_path / "inside").mkdir()
    sql = "select gen_random_uuid() as id, timestamptz '2024-01-01 00:00+00' as at, 1.50::decimal(5, 2) as price"
    duckdb.sql(f"copy ({sql}) to '{tmp_path}/inside/duck.parquet' (format parquet, parquet_version v2)")
    whole = (tmp_path / "arrow.PARQUET").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[:-20])
    (tmp_path / "other.avro").write_bytes(b"Obj\x01")
    deltalake.write_deltalake(tmp_path / "table", ROWS.select(["n", "text"]), partition_by=["n"])
    with pa.ipc.new_stream(tmp_path / "rows.arrows", ROWS.schema) as stream:
        stream.write_table(ROWS)
    before = sorted((each, each.stat().st_mtime_ns) for each in tmp_path.rglob("*"))

    assert main(str(tmp_path)) == 0

    lines = capsys.readouterr().out.splitlines()
    counted = [" ".join(line.split()) for line in lines]
    equal = "equal 6 import of Arrow: 1, import of Delta: 1, import of Parquet: 2, landing of Parquet: 2"
    assert counted[:2] == [equal, "typed refusal 3 import of Parquet: 2, landing of Parquet: 1"]
    assert counted[2:5] == ["untyped 0", "wrong 0", "no second reader 0"]
    assert any("the file is not a whole Parquet file" in line for line in lines)
    assert sorted((each, each.stat().st_mtime_ns) for each in tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "other",
    [
        ROWS.slice(1),
        ROWS.drop_columns(["text"]),
        ROWS.set_column(0, "n", pa.array([1, 2, 4])),
        ROWS.set_column(1, "text", pa.array(["a", "", "ä"])),
    ],
)
def test_a_row_a_column_or_a_value_that_differs_is_found(other: pa.Table) -> None:
    assert equal_rows(ROWS, ROWS.take([2, 0, 1]).cast(pa.schema([("n", pa.int32()), *list(ROWS.schema)[1:]])))
    assert not equal_rows(ROWS, other)
