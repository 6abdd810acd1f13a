"""Every write path refuses Arrow data that is invalid for its type, before anything is stored."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidemark as tm
from pipelines.cli import main
from storage_core.base.clock import SystemClock
from storage_core.base.errors import InvalidInput
from storage_core.interop.column_union import as_held
from storage_core.maintain.audit import audit
from storage_core.maintain.check import fsck
from storage_core.maintain.findings import Kind, Severity
from storage_core.write.append import append as lower_append
from tests.support.invalid_values import BAD, INVALID

ROWS = pa.table({"id": [1, 2, 3], "c": BAD})


def _held(column: pa.Array | pa.ChunkedArray) -> pa.Schema:
    return as_held(pa.schema([("id", pa.int64()), ("c", column.type)]), "the test")


@pytest.mark.parametrize("what", INVALID)
def test_a_put_that_could_not_be_read_back_is_refused_and_takes_no_other_row_with_it(what: str, tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2, 3], "c": INVALID[what]})
    table = tm.Table.create(str(tmp_path / "t"), _held(INVALID[what]), primary_key="id")
    with table.writer() as writer:
        writer.put({"id": 10}, durable=False)  # in the same WAL entry
        with pytest.raises(InvalidInput, match="column 'c'"):
            writer.put(rows)
        writer.put({"id": 11})
    assert sorted(table.scan(["id"], consistency="latest").to_arrow()["id"].to_pylist()) == [10, 11]


@pytest.mark.parametrize("what", INVALID)
def test_an_append_that_could_not_be_read_back_is_refused(what: str, tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2, 3], "c": INVALID[what]})
    table = tm.Table.create(str(tmp_path / "t"), _held(INVALID[what]))
    with pytest.raises(InvalidInput, match="column 'c'"):
        table.append(rows)
    assert table.refresh().version == 0


def _stream() -> pa.RecordBatchReader:
    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": [7], "c": ["fine"]})
        yield from ROWS.to_batches()

    return pa.RecordBatchReader.from_batches(ROWS.schema, batches())


class _Capsule:
    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return ROWS.__arrow_c_stream__(requested_schema)


FORMS: dict[str, Callable[[], object]] = {
    "a record batch": lambda: ROWS.to_batches()[0],
    "a stream": _stream,
    "a capsule": _Capsule,
    "scalars in mappings": lambda: [{"id": 2, "c": BAD[1]}],
    "scalars in structs": lambda: [{"id": 2, "s": {"x": BAD[1]}}],
}


@pytest.mark.parametrize(
    ("way", "form"),
    [
        *(("append", form) for form in FORMS),
        ("overwrite", "a stream"),
        ("upsert", "a capsule"),
        ("put", "a stream"),
        ("patch", "scalars in mappings"),
        ("reset", "a record batch"),
    ],
)
def test_rows_of_any_form_are_refused_at_every_way_in(way: str, form: str, tmp_path: Path) -> None:
    columns = pa.schema([("id", pa.int64()), ("c", pa.string()), ("s", pa.struct([("x", pa.string())]))])
    keyed = way in ("put", "patch", "reset")
    table = tm.Table.create(str(tmp_path / "t"), columns, primary_key="id" if keyed else None)
    table.append([{"id": 9, "c": "ok"}])
    before = table.refresh().scan(consistency="latest").to_arrow()
    with table.writer() if keyed else nullcontext() as writer:
        more = {"overwrite": {"filter": "true"}, "upsert": {"on": "id"}}.get(way, {})
        with pytest.raises(InvalidInput, match="not valid UTF-8"):
            getattr(writer or table, way)(FORMS[form](), **more)
    assert table.refresh().scan(consistency="latest").to_arrow() == before


def test_a_key_to_delete_or_to_set_is_refused_as_well(tmp_path: Path) -> None:
    columns = pa.schema([pa.field("c", pa.string(), nullable=False), ("n", pa.int64())])
    table = tm.Table.create(str(tmp_path / "t"), columns, primary_key="c")
    with table.writer() as writer:
        writer.put({"c": "a", "n": 1})
        with pytest.raises(InvalidInput, match="not valid UTF-8"):
            writer.delete(pa.table({"c": BAD}))
        with pytest.raises(InvalidInput, match="not valid UTF-8"):
            writer.delete([BAD[1]])
    other = tm.Table.create(str(tmp_path / "o"), columns)
    other.append([{"c": "a", "n": 1}])
    with pytest.raises(InvalidInput, match="not valid UTF-8"):
        other.update({"c": BAD[1]}, "true")


def test_the_row_of_a_stream_is_counted_from_its_beginning(tmp_path: Path) -> None:
    table = tm.Table.create(str(tmp_path / "t"), ROWS.schema)
    with pytest.raises(InvalidInput, match=r"column 'c', row 2: the text is not valid UTF-8"):
        table.append(_stream())


def test_a_raw_log_takes_no_value_that_is_not_valid(tmp_path: Path) -> None:
    broken = pa.table({"id": [1, 2, 3], "c": INVALID["offsets that descend"]})
    with tm.RawLog([str(tmp_path / "raw")]) as log:
        for rows in (ROWS, broken, pa.table({"id": [1, 2, 3], "d": INVALID["a decimal"]})):
            with pytest.raises(InvalidInput, match=r"column '[cd]'"):
                log.append("t", rows)


def test_an_import_names_the_file_and_the_row(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    pq.write_table(ROWS, tmp_path / "lake" / "a.parquet")
    with pytest.raises(InvalidInput, match=r"a\.parquet: column 'c', row 1: the text is not valid UTF-8"):
        tm.Table.import_from(str(tmp_path / "t"), str(tmp_path / "lake"))
    with pytest.raises(InvalidInput, match="column 'c', row 1: the text is not valid UTF-8"):
        tm.Table.import_from(str(tmp_path / "u"), ROWS, name="rows")


def _with_a_row_from_before(place: Path) -> tm.Table:
    """Make a table with a row that current releases refuse. The test writes the row below the check that refuses it."""
    columns = pa.schema([("id", pa.int64()), ("c", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
    table = tm.Table.create(str(place), columns, time_column="at", window="1h")
    times = pa.array([dt.datetime(2024, 1, 1, tzinfo=dt.UTC)] * 3, columns.field("at").type)
    lower_append(table.log, table.snapshot, [ROWS.append_column("at", times)])
    table.refresh()
    with pytest.raises(tm.errors.TidemarkError, match="not valid UTF-8"):
        table.scan().to_arrow()
    return table


def _findings(table: tm.Table) -> list[tuple[Kind, str]]:
    return [(each.kind, each.found) for each in fsck(table.store, clock=SystemClock(), deep=True).findings]


def test_a_check_finds_values_that_cannot_be_read_and_an_update_and_a_compaction_heal_them(tmp_path: Path) -> None:
    table = _with_a_row_from_before(tmp_path / "t")
    ((kind, found),) = _findings(table)
    assert kind is Kind.SPLIT_VALUES_NOT_VALID
    assert "column 'c': the text is not valid UTF-8 in 1 row" in found
    assert '"id": 2' in found
    assert [each.invariant for each in audit(table.store, table.snapshot).violations] == ["SS-6"]
    table.update({"c": "mended"}, "id = 2")
    assert main(["compact", str(tmp_path / "t")]) == 0
    table.refresh()
    assert table.scan(["id", "c"]).to_arrow().sort_by("id")["c"].to_pylist() == ["a", "mended", "z"]
    assert [each for each in _findings(table) if each[0].severity is not Severity.NOTE] == []


def test_where_the_row_is_deleted_an_update_of_the_others_heals_the_column(tmp_path: Path) -> None:
    table = _with_a_row_from_before(tmp_path / "t")
    table.delete("id = 2")
    table.refresh().update({"id": tm.expr("id")}, "id <> 2")
    assert table.refresh().scan(["c"]).to_arrow()["c"].to_pylist() == ["a", "z"]


def test_frames_of_polars_are_taken(tmp_path: Path) -> None:
    table = tm.Table.create(str(tmp_path / "t"), pa.schema([("id", pa.int64()), ("c", pa.string())]))
    table.append(pl.DataFrame({"id": [1, 2], "c": ["ä", None]}))
    assert table.refresh().scan().to_arrow().num_rows == 2
