"""The same rows have the same values on every write path: text, times without a zone, pandas, NumPy and Polars."""

from __future__ import annotations

import datetime as dt
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidemark as tm
from storage_core.base.errors import InvalidInput
from storage_core.data.formats.raw_chunk import RawColumns
from storage_core.store.memory import MemoryStore
from storage_core.write.ingest.parquet_files import parquet_blocks
from storage_core.write.raw_log.history import union
from storage_core.write.raw_log.read import typed_records
from storage_core.write.raw_log.writer import RawLog
from tests.support.clock import ManualClock
from tests.support.ids import SeededIds

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("time", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
    ]
)
LOCAL = dt.datetime(2026, 11, 1, 12, 0, 0, 250)  # noqa: DTZ001  # what a time without a zone is is the question
AWARE = LOCAL.replace(hour=14, tzinfo=dt.timezone(dt.timedelta(hours=2)))
DAY = dt.date(2026, 11, 1)
TEXT = {"id": 1, "time": "2026-11-01T14:00:00.00025+02:00", "local": "2026-11-01 12:00:00.000250", "day": "2026-11-01"}
ROW = {"id": 1, "time": LOCAL.replace(tzinfo=dt.UTC), "local": LOCAL, "day": DAY}
PLAIN = {"id": 1, "time": LOCAL, "local": LOCAL, "day": DAY}

MAPPINGS: dict[str, Callable[[], Any]] = {
    "mapping without zones": lambda: [PLAIN],
    "mapping with a zone": lambda: [PLAIN | {"time": AWARE}],
    "mapping of text": lambda: [TEXT],
    "mapping of text without zones": lambda: [TEXT | {"time": TEXT["local"]}],
    "mapping of NumPy": lambda: [
        {"id": 1} | {name: np.datetime64(each) for name, each in PLAIN.items() if name != "id"}
    ],
    "records of pandas": lambda: pd.DataFrame({name: [each] for name, each in PLAIN.items()}).to_dict("records"),
}
TABLES: dict[str, Callable[[], Any]] = {
    "pandas": lambda: pd.DataFrame({name: [each] for name, each in PLAIN.items()}),
    "pandas with a zone, of some rows": lambda: pd.DataFrame(
        {"id": [2, 1], "time": pd.to_datetime([AWARE, AWARE]), "local": [LOCAL, LOCAL], "day": [DAY, DAY]}
    ).iloc[1:],
    "pandas of text": lambda: pd.DataFrame([TEXT]),
    "pandas of categories": lambda: pd.DataFrame([TEXT]).astype({"time": "category", "day": "category"}),
    "pandas of objects": lambda: pd.DataFrame([PLAIN | {"time": AWARE}], dtype=object),
    "Polars": lambda: pl.DataFrame([PLAIN]),
    "Polars in nanoseconds": lambda: pl.DataFrame([PLAIN]).with_columns(pl.col("time").cast(pl.Datetime("ns"))),
    "Polars of text": lambda: pl.DataFrame([TEXT]),
    "Polars of categories": lambda: pl.DataFrame([TEXT]).with_columns(pl.col("time").cast(pl.Categorical)),
    "Polars, lazy": lambda: pl.LazyFrame([PLAIN, PLAIN | {"id": 2}]).filter(pl.col("id") == 1),
    "Arrow": lambda: pa.Table.from_pylist([PLAIN]),
    "Arrow of text": lambda: pa.Table.from_pylist([TEXT]).to_batches()[0],
    "Arrow of large text": lambda: pa.table({name: pa.array([each]) for name, each in TEXT.items()}).cast(
        pa.schema([("id", pa.int64()), *((name, pa.large_string()) for name in SCHEMA.names[1:])])
    ),
    "a reader": lambda: pa.Table.from_pylist([TEXT]).to_reader(),
}
SOURCES = MAPPINGS | TABLES


def _table(folder: Path, key: str | None = None) -> tm.Table:
    return tm.Table.create(str(folder / "t"), SCHEMA, primary_key=key)


def _written(folder: Path, name: str, rows: Any) -> tm.Table:
    table = _table(folder, "id")
    with table.writer() as writer:
        getattr(writer, name)(rows)
        writer.flush()
    return table


def _appended(folder: Path, rows: Any, key: str | None = None) -> tm.Table:
    table = _table(folder, key)
    table.append(rows)
    return table


def _upserted(folder: Path, rows: Any) -> tm.Table:
    table = _appended(folder, {"id": 1})
    table.upsert(rows, on="id")
    return table


def _overwritten(folder: Path, rows: Any) -> tm.Table:
    table = _appended(folder, {"id": 1})
    table.overwrite(rows, "id = 1")
    return table


def _imported(folder: Path, rows: Any) -> tm.Table:
    table = _table(folder)
    tm.Table.import_from(table.uri, rows, name="rows")
    return tm.Table.open(table.uri)


def _updated(folder: Path, rows: Any) -> tm.Table:
    table = _appended(folder, {"id": 1})
    table.update(rows[0], "id = 1")
    return table


DOORS: dict[str, Callable[[Path, Any], tm.Table]] = {
    "append": _appended,
    "append by key": lambda folder, rows: _appended(folder, rows, "id"),
    "upsert": _upserted,
    "overwrite": _overwritten,
    "put": lambda folder, rows: _written(folder, "put", rows),
    "patch": lambda folder, rows: _written(folder, "patch", rows),
    "reset": lambda folder, rows: _written(folder, "reset", rows),
}


def _distributed(rows: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows that a table accepts from a raw log, and the reasons of the rejected rows."""
    store = MemoryStore("raw")
    with RawLog([store], clock=ManualClock(), ids=SeededIds(1)) as log:
        log.append("t", rows)
    (chunk,) = union([store]).read()
    assert isinstance(chunk, RawColumns)
    typed = typed_records(chunk.records, SCHEMA, key=["id"])
    return typed.records.select(SCHEMA.names).to_pylist(), [each.reason for each in typed.rejected]


def _rows(table: tm.Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.scan(consistency="latest").to_arrow().to_pylist()
    return found


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("source", SOURCES)
def test_a_row_is_the_same_row_at_every_way_into_a_table(tmp_path: Path, source: str, door: str) -> None:
    assert _rows(DOORS[door](tmp_path, SOURCES[source]())) == [ROW]


@pytest.mark.parametrize("source", MAPPINGS)
def test_an_update_sets_the_same_values(tmp_path: Path, source: str) -> None:
    assert _rows(_updated(tmp_path, SOURCES[source]())) == [ROW]


@pytest.mark.parametrize("source", SOURCES)
def test_a_raw_log_gives_a_table_the_same_row(source: str) -> None:
    assert _distributed(SOURCES[source]()) == ([ROW], [])


@pytest.mark.parametrize("source", TABLES)
def test_an_import_brings_the_same_row_into_a_table_that_is_there(tmp_path: Path, source: str) -> None:
    assert _rows(_imported(tmp_path, SOURCES[source]())) == [ROW]


@pytest.mark.parametrize("source", ["Arrow", "Arrow of text"])
def test_a_landed_file_and_an_imported_folder_give_the_same_row(tmp_path: Path, source: str) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    rows = SOURCES[source]()
    pq.write_table(rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows]), folder / "a.parquet")
    (landed,) = parquet_blocks("a", io.BytesIO((folder / "a.parquet").read_bytes()), SCHEMA)
    assert landed.rows.to_pylist() == [ROW]
    table = _table(tmp_path)
    tm.Table.import_from(table.uri, folder)
    assert _rows(tm.Table.open(table.uri)) == [ROW]


def test_times_inside_of_structs_lists_and_maps_are_utc_without_a_zone(tmp_path: Path) -> None:
    instant, local = pa.timestamp("us", "UTC"), pa.timestamp("ms")

    def schema(type_: pa.DataType) -> pa.Schema:
        return pa.schema([("s", pa.struct([("t", type_)])), ("l", pa.list_(type_)), ("m", pa.map_(pa.string(), type_))])

    rows = [{"s": {"t": dt.datetime(2026, 11, 1)}, "l": [dt.datetime(2026, 11, 1), None], "m": []}]  # noqa: DTZ001
    table = tm.Table.create(str(tmp_path / "t"), schema(instant))
    table.append(rows)
    table.append(pa.Table.from_pylist(rows, schema=schema(local)))
    first, second = _rows(table)
    assert first == second
    assert first["s"]["t"] == dt.datetime(2026, 11, 1, tzinfo=dt.UTC)
    with pytest.raises(InvalidInput, match=r"\(row 0\): '2026-11-01' in s\.t is text\. Give .* datetime values"):
        table.append([{"s": {"t": "2026-11-01"}}])


def test_missing_values_of_pandas_are_null(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("time", pa.timestamp("us", "UTC")), ("s", pa.string())])
    frame = pd.DataFrame({"id": [1, None], "time": [LOCAL, pd.NaT], "s": ["a", float("nan")]}, dtype=object)
    wanted = [{"id": 1, "time": ROW["time"], "s": "a"}, {"id": None, "time": None, "s": None}]
    table = tm.Table.create(str(tmp_path / "t"), schema)
    table.append(frame)
    assert _rows(table) == wanted
    table.overwrite([{"time": pd.NaT}, {"time": np.datetime64("NaT")}], "true")
    assert _rows(table) == [dict.fromkeys(schema.names)] * 2
    assert _distributed([{"id": 1, "time": pd.NaT}])[0] == [dict.fromkeys(SCHEMA.names) | {"id": 1}]


def test_a_key_may_be_text_or_a_time_without_a_zone(tmp_path: Path) -> None:
    schema = pa.schema([("time", pa.timestamp("us", "UTC")), ("n", pa.int64())])
    table = tm.Table.create(str(tmp_path / "t"), schema, primary_key="time")
    table.upsert(pd.DataFrame({"time": ["2026-11-01T12:00:00.00025", "2026-11-02"], "n": [1, 2]}), on="time")
    for key in (LOCAL, AWARE, "2026-11-01 12:00:00.00025", TEXT["time"]):
        assert table.get(key) == {"time": ROW["time"], "n": 1}
    with table.writer() as writer:
        writer.delete("2026-11-02")
        writer.delete(pl.LazyFrame({"time": [LOCAL]}))
        writer.flush()
    assert _rows(table) == []


SOON = {"id": 1, "time": "soon"}
FINE = pd.Timestamp("2026-11-01T12:00:00.000000001")
ADVICE = r"'soon' is not a time\. Write the time as 2026-11-01T12:00:00Z"
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "text in a mapping": (lambda: [{"id": 2}, SOON], rf"column 'time'.*\(row 1\): {ADVICE}"),
    "text in pandas": (lambda: pd.DataFrame([{"id": 2}, SOON]), rf"column 'time', row 1: {ADVICE}"),
    "text in Polars": (lambda: pl.LazyFrame([{"id": 2, "time": None}, SOON]), rf"column 'time', row 1: {ADVICE}"),
    "text of a day that is not one": (lambda: pl.DataFrame({"id": 1, "day": ["2026-02-30"]}), "row 0.*is not a date"),
    "digits that are lost": (lambda: [{"id": 1, "time": "2026-11-01T12:00:00.1234567Z"}], "at most 6 digits"),
    "a zone of no use": (lambda: [{"id": 1, "local": "2026-11-01T12:00:00Z"}], "'local'.*has a time zone"),
    "a zone of no use in Arrow": (lambda: pl.DataFrame({"id": 1, "local": ["2026-11-01T12:00Z"]}), "has a time zone"),
    "nanoseconds of pandas": (lambda: pd.DataFrame({"id": [1], "time": [FINE]}), "'time'.*below the microsecond"),
    "nanoseconds in objects": (lambda: pd.DataFrame({"id": [1], "time": [FINE]}, dtype=object), "'time'.*would become"),
    "nanoseconds in a mapping": (lambda: [{"id": 1, "time": FINE}], "'time'.*would become"),
    "nanoseconds of NumPy": (lambda: [{"id": 1, "time": FINE.to_numpy()}], "'time'.*below the microsecond"),
    "a date and a time": (lambda: pd.DataFrame({"id": [1, 2], "day": [DAY, LOCAL]}, dtype=object), "'day'"),
    "values of two types": (lambda: pd.DataFrame({"id": [1, 2], "time": [1, "a"]}), "'time'.*several types"),
    "an index": (lambda: pd.DataFrame({"time": [LOCAL]}, index=pd.Index([1], name="id")), "reset_index"),
    "a frame that cannot be collected": (
        lambda: pl.LazyFrame({"id": [1]}).select("nope"),
        "failed with ColumnNotFoundError",
    ),
}


@pytest.mark.parametrize("door", ["append", "patch"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_time_is_refused_by_column_and_row_with_what_to_write(tmp_path: Path, name: str, door: str) -> None:
    rows, message = REFUSED[name]
    with pytest.raises(InvalidInput, match=message):
        DOORS[door](tmp_path, rows())


@pytest.mark.parametrize("name", [each for each in REFUSED if each.startswith("nanoseconds")])
def test_a_raw_log_refuses_digits_below_the_microsecond_at_once(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"'time'.*(below the microsecond|would become)"):
        _distributed(REFUSED[name][0]())


def test_a_raw_log_keeps_text_that_is_no_time_and_its_distribution_says_why_it_does_not_fit() -> None:
    (reason,) = _distributed([SOON])[1]
    assert "column 'time'" in reason
    assert "'soon' is not a time. Write the time as 2026-11-01T12:00:00Z" in reason


def test_rows_of_a_landed_file_whose_text_is_no_time_are_rejected_one_by_one() -> None:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([TEXT, SOON | {"id": 2}, TEXT | {"id": 3}]), sink)
    (landed,) = parquet_blocks("a", io.BytesIO(sink.getvalue()), SCHEMA)
    assert landed.rows.column("id").to_pylist() == [1, 3]
    (rejected,) = landed.rejected
    assert (rejected.line, '"soon"' in rejected.text) == (2, True)
    assert rejected.reason.startswith("column time: the text is not a time. Write the time as 2026-11-01T12:00:00Z")


@pytest.mark.parametrize("given", [np.uint64(2**64 - 1), np.int64(2**53 + 1), np.timedelta64(1, "s"), np.bool_(True)])
def test_a_number_of_numpy_that_a_column_does_not_hold_is_refused_at_every_way_in(given: Any, tmp_path: Path) -> None:
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("x", pa.float64()), ("v", pa.list_(pa.float32(), 1))]
    )
    plain = tm.Table.create(tmp_path / "plain", schema)
    plain.append([{"id": 1, "x": np.uint64(2**53), "v": np.array([1.5])}])
    keyed = tm.Table.create(tmp_path / "keyed", schema, primary_key="id")
    changes: list[dict[str, object]] = [{"x": given}, {"v": [given]}]
    for change in changes:
        with pytest.raises(InvalidInput):
            plain.append([{"id": 2} | change])
        with pytest.raises(InvalidInput):
            plain.update(change, "true")
        with keyed.writer() as writer, pytest.raises(InvalidInput):
            writer.put([{"id": 2} | change])
    assert plain.scan().to_arrow().to_pylist() == [{"id": 1, "x": 2.0**53, "v": [1.5]}]
