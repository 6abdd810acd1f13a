"""Any object with an Arrow stream can be written, and results export an Arrow stream (Arrow's PyCapsule interface)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pytest

import tidemark as tm
from storage_core.data.rows import incoming
from storage_core.data.rows.incoming import Rows

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("at", pa.timestamp("us", "UTC"))]
)
ROWS = pa.table(
    [[1, 2, 3], ["a", None, "c"], [dt.datetime(2026, 1, day, tzinfo=dt.UTC) for day in (1, 2, 3)]], schema=SCHEMA
)


class OnlyAStream:
    """An object that has only the Arrow stream interface."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._rows.__arrow_c_stream__(requested_schema)


STREAMS: dict[str, Callable[[pa.Table], Rows]] = {
    "a record batch reader": lambda rows: rows.to_reader(max_chunksize=2),
    "a relation of DuckDB": lambda rows: duckdb.connect().from_arrow(rows),
    "a data frame of Polars": pl.from_arrow,
    "an object of any class": OnlyAStream,
}


def a_table(folder: Path, kind: str) -> tm.Table:
    if kind == "keyed":
        return tm.Table.create(str(folder / "table"), SCHEMA, primary_key="id")
    return tm.Table.create(str(folder / "table"), SCHEMA, time_column="at")


def ids(table: tm.Table) -> list[int]:
    return sorted(table.scan(consistency="latest").to_arrow().column("id").to_pylist())


@pytest.mark.parametrize("kind", ["append", "keyed"])
@pytest.mark.parametrize("stream", STREAMS)
def test_a_stream_is_appended_as_its_rows_are(tmp_path: Path, kind: str, stream: str) -> None:
    table = a_table(tmp_path, kind)
    assert table.append(STREAMS[stream](ROWS)).rows == 3
    assert table.scan(consistency="latest").to_arrow().sort_by("id").equals(ROWS)


@pytest.mark.parametrize("operation", ["put", "patch", "reset"])
@pytest.mark.parametrize("stream", STREAMS)
def test_a_writer_takes_a_stream(tmp_path: Path, operation: str, stream: str) -> None:
    table = a_table(tmp_path, "keyed")
    with table.writer() as writer:
        getattr(writer, operation)(STREAMS[stream](ROWS))
        writer.delete(STREAMS[stream](ROWS.select(["id"]).slice(2)))
    assert ids(table) == [1, 2]


@pytest.mark.parametrize("operation", ["put", "patch", "reset"])
def test_a_writer_of_several_regions_takes_a_stream(tmp_path: Path, operation: str) -> None:
    fields = [{"transform": "bucket", "source": "id", "n": "2"}]
    table = tm.Table.create(str(tmp_path / "table"), SCHEMA, primary_key="id", regions=fields)
    with table.writer() as writer:
        getattr(writer, operation)(ROWS.to_reader())
    assert ids(table) == [1, 2, 3]


def test_a_raw_log_takes_a_stream(tmp_path: Path) -> None:
    with tm.RawLog([str(tmp_path / "raw")]) as log:
        assert log.append("people", OnlyAStream(ROWS)).count == 3


def test_a_long_stream_becomes_one_commit_of_pieces_each_taken_when_the_one_before_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming, "PIECE_BYTES", 2 * ROWS.nbytes)
    table = a_table(tmp_path, "append")
    written: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(10):
            written.append(sum(1 for _ in table.store.list("")))
            yield from ROWS.to_batches()

    appended = table.append(pa.RecordBatchReader.from_batches(SCHEMA, batches()))
    assert (appended.rows, table.version) == (30, 1)
    assert written == sorted(written)
    assert len({*written}) == 5  # the rows of two batches are stored before the next batch is requested
    assert len(ids(table)) == 30


def test_a_stream_that_breaks_off_commits_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "PIECE_BYTES", 1)
    table = a_table(tmp_path, "append")

    def batches() -> Iterator[pa.RecordBatch]:
        yield from ROWS.to_batches()
        raise OSError("the source is gone")

    with pytest.raises(tm.errors.InvalidInput, match=r"failed with OSError: the source is gone\. Correct"):
        table.append(pa.RecordBatchReader.from_batches(SCHEMA, batches()))
    assert tm.Table.open(table.uri).version == 0


@pytest.mark.parametrize("kind", ["append", "keyed"])
@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        (pa.table({"id": ["x"]}), "column 'id'"),
        (pa.table({"id": [1], "other": [1]}), "unknown column 'other'"),
        (pa.table({"name": ["a"]}), "id"),
        (pa.table({"id": pa.array([1, None])}), "'id'"),
    ],
    ids=["type", "unknown", "missing", "null"],
)
def test_a_stream_that_does_not_fit_is_named_and_nothing_is_committed(
    tmp_path: Path, kind: str, rows: pa.Table, complaint: str
) -> None:
    table = a_table(tmp_path, kind)
    with pytest.raises(tm.errors.InvalidInput, match=complaint):
        table.append(OnlyAStream(rows))
    assert ids(tm.Table.open(table.uri)) == []


def test_a_row_far_into_a_stream_is_named_by_where_its_piece_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming, "PIECE_BYTES", 1)
    table = a_table(tmp_path, "append")
    loose = pa.schema([("id", pa.int64())])
    batches = [pa.record_batch([pa.array(values, pa.int64())], schema=loose) for values in ([1, 2], [3, None])]
    with pytest.raises(tm.errors.InvalidInput, match=r"row 1.*add 2 to the row number"):
        table.append(pa.RecordBatchReader.from_batches(loose, batches))


class NoStream:
    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        raise RuntimeError("closed")


def test_what_gives_no_stream_is_an_error_with_a_type(tmp_path: Path) -> None:
    with pytest.raises(tm.errors.InvalidInput, match=r"NoStream failed with RuntimeError: closed\. Correct"):
        a_table(tmp_path, "append").append(NoStream())


def test_every_answer_of_rows_gives_a_stream(tmp_path: Path) -> None:
    words = {"name": "words", "kind": "fulltext", "columns": ["name"]}
    table = tm.Table.create(str(tmp_path / "table"), SCHEMA, indexes=[words])
    table.append(ROWS)
    found = [
        table.scan(["id"], filter=tm.col("id") == 1),
        table.sql("select id from t where id = 1"),
        table.search("a", index="words"),
        table.changes(0),
        table.read_history().records,
    ]
    for rows in found:
        assert pa.RecordBatchReader.from_stream(rows).read_all().column("id")[0].as_py() == 1

    other = a_table(tmp_path / "other", "append")
    other.append(table.scan())
    assert other.scan().to_arrow().sort_by("id").equals(ROWS)
    assert pl.DataFrame(table.scan()).height == 3
