"""A retry reads the stored lines in every landed format and dialect, and adds each line exactly once."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_core.maintain.rejections import measure_rejections
from storage_core.maintain.status import status
from storage_core.split.read import read_split
from storage_core.write.ingest.landing import Dialect, LandingSpec
from storage_core.write.ingest.text_files import is_one_record
from tests.support.quarantined import NOW_MS, SCHEMA, WIDER, Bench

LARGE = 2**40
NARROW = pa.schema([SCHEMA.field("at"), pa.field("id", pa.int32()), pa.field("city", pa.string())])
WIDE = pa.schema([SCHEMA.field("at"), pa.field("id", pa.int64()), pa.field("city", pa.string())])


def bench_of(root: Path, schema: pa.Schema = NARROW, **spec: Any) -> Bench:
    return Bench(root, LandingSpec(uri=str(root / "landing"), **spec)).create(schema=schema)


def widen_id(bench: Bench) -> None:
    """Change the type of column `id` to long, as a user does who corrects the declaration."""
    from storage_core.data.rows.schema import to_schema_string

    log = bench.log
    head = log.snapshot()
    metadata = replace(head.metadata, schemaString=to_schema_string(WIDE))
    log.commit(head, [metadata], operation="SET SCHEMA")


def rows_of(bench: Bench) -> list[tuple[int, str | None]]:
    tables = [read_split(bench.store, add, ["id", "city"]) for add in bench.log.snapshot().splits.values()]
    return sorted((row["id"], row["city"]) for table in tables for row in table.to_pylist())


def retried(bench: Bench) -> tuple[Any, ...]:
    details = bench.retry().details
    return tuple(details[name] for name in ("read", "added", "still_rejected"))


CSV_FORMS: list[tuple[dict[str, Any], str]] = [
    ({}, 'at,id,city\n1970-01-01,1,a\n1970-01-01,{large},"x, ""y"""\n'),
    ({"delimiter": ";"}, 'at;id;city\n1970-01-01;1;a\n1970-01-01;{large};"x, ""y"""\n'),
    ({"delimiter": "\t", "quote": "'"}, "at\tid\tcity\n1970-01-01\t1\ta\n1970-01-01\t{large}\t'x, \"y\"'\n"),
    ({"escape": "\\"}, 'at,id,city\n1970-01-01,1,a\n1970-01-01,{large},"x, \\"y\\""\n'),
    ({"quote": "", "escape": "\\"}, 'at,id,city\n1970-01-01,1,a\n1970-01-01,{large},x\\, "y"\n'),
    ({"header": False, "columns": ("id", "at", "city")}, '1,1970-01-01,a\n{large},1970-01-01,"x, ""y"""\n'),
    ({"encoding": "utf-16"}, 'at,id,city\n1970-01-01,1,a\n1970-01-01,{large},"x, ""y"""\n'),
]


@pytest.mark.parametrize(("spec", "text"), CSV_FORMS)
def test_a_line_of_csv_comes_back_in_every_dialect(tmp_path: Path, spec: dict[str, Any], text: str) -> None:
    bench = bench_of(tmp_path, format="csv", **spec)
    bench.land("a.csv", text.format(large=LARGE).encode(spec.get("encoding", "utf-8")))
    bench.ingest()
    assert rows_of(bench) == [(1, "a")]
    widen_id(bench)
    assert retried(bench) == (1, 1, 0)
    assert rows_of(bench) == [(1, "a"), (LARGE, 'x, "y"')]
    assert retried(bench) == (0, 0, 0)


def test_a_backslash_in_a_quoted_field_comes_back(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, format="csv", escape="\\")
    bench.land("a.csv", f'at,id,city\n1970-01-01,{LARGE},"a\\\\b,c"\n1970-01-01,{LARGE + 1},a\\\\b\n')
    bench.ingest()
    widen_id(bench)
    assert retried(bench) == (2, 2, 0)
    assert rows_of(bench) == [(LARGE, "a\\b,c"), (LARGE + 1, "a\\b")]


def test_a_text_that_is_not_one_record_in_a_new_dialect_does_not_shift_the_others(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, format="csv", quote="")
    lines = [f"1970-01-01,{LARGE + number},{city}" for number, city in enumerate(['"open', "b", 'close"', "d"])]
    bench.land("a.csv", "\n".join(["at,id,city", *lines]) + "\n")
    bench.ingest()
    widen_id(bench)
    bench.spec = replace(bench.spec, quote=None)
    assert retried(bench) == (4, 3, 1)
    assert rows_of(bench) == [(LARGE + 1, "b"), (LARGE + 2, 'close"'), (LARGE + 3, "d")]
    assert [line for _, line, _ in bench.pending()] == [2]
    assert retried(bench) == (1, 0, 1)
    assert len(rows_of(bench)) == 3


@pytest.mark.parametrize(
    ("text", "dialect", "is_one"),
    [
        ("a,b", Dialect(), True),
        ('a,"b\nc"', Dialect(), True),
        ('a,"b', Dialect(), False),
        ("a\nb", Dialect(), False),
        ("a\rb", Dialect(), False),
        ('a,b"', Dialect(), True),
        ('a,"b', Dialect(quote=None), True),
        ("a,b\\", Dialect(escape="\\"), False),
        ("a,b\\\\", Dialect(escape="\\"), True),
        ("x", Dialect(delimiter="x"), True),
    ],
)
def test_one_record(text: str, dialect: Dialect, *, is_one: bool) -> None:
    assert is_one_record(text, dialect) is is_one


def test_a_record_of_a_json_file_comes_back(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, format="json")
    records = [{"at": "1970-01-01", "id": number, "city": "a\nb"} for number in (1, LARGE, LARGE + 1)]
    bench.land("a.json", json.dumps(records, indent=2) + '\n{"id":\n 1 2}\n')
    bench.ingest()
    assert rows_of(bench) == [(1, "a\nb")]
    widen_id(bench)
    assert retried(bench) == (3, 2, 1)
    assert rows_of(bench) == [(1, "a\nb"), (LARGE, "a\nb"), (LARGE + 1, "a\nb")]


def typed(form: str, rows: pa.Table) -> bytes:
    sink = io.BytesIO()
    if form == "avro":
        import fastavro

        fields = [{"name": "at", "type": "long"}, {"name": "id", "type": "int"}, {"name": "city", "type": "string"}]
        fastavro.writer(sink, {"type": "record", "name": "r", "fields": fields}, rows.to_pylist())
    elif form == "arrow":
        with pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
    else:
        import pyarrow.parquet as pq

        pq.write_table(rows, sink)
    return sink.getvalue()


@pytest.mark.parametrize("form", ["avro", "arrow", "parquet"])
def test_a_row_of_a_typed_file_comes_back_with_a_time_that_is_a_number(tmp_path: Path, form: str) -> None:
    bench = bench_of(tmp_path, WIDE, format=form, times=(("at", "us"),))
    schema = pa.schema([("at", pa.int64()), ("id", pa.int32()), ("city", pa.string())])
    late = 10**15
    rows = pa.Table.from_pylist([{"at": at, "id": id_, "city": "a"} for id_, at in enumerate([7, late, 2**62])], schema)
    bench.land(f"a.{form}", typed(form, rows))
    bench.ingest()
    assert rows_of(bench) == [(0, "a"), (1, "a")]
    bench.spec = replace(bench.spec, times=(("at", "ns"),), nanoseconds="truncate")
    assert retried(bench) == (1, 1, 0)
    assert rows_of(bench) == [(0, "a"), (1, "a"), (2, "a")]


def test_a_time_without_a_year_comes_back_in_the_year_of_its_arrival(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, format="ndjson", time_format="%m-%d %H:%M", year="from_arrival")
    bench.land("a.ndjson", json.dumps({"at": "02-03 04:05", "id": LARGE}) + "\n")
    result = bench.ingest()
    assert result.rows_rejected == 1
    widen_id(bench)
    bench.spec = replace(bench.spec)
    assert retried(bench) == (1, 1, 0)
    [add] = bench.log.snapshot().splits.values()
    at = read_split(bench.store, add, ["at"]).column("at")[0].as_py()
    assert (at.month, at.day, at.hour) == (2, 3, 4)
    assert at.year > 2020


# The counts of rejected rows.


def test_the_state_ends_when_a_retry_empties_the_quarantine(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, SCHEMA, format="ndjson")
    bench.land("a.ndjson", '{"at": "1970-01-01", "id": 1}\n{"at": "1970-01-01", "id": 2, "city": "x"}\n')
    result = bench.ingest()
    assert (result.rows_in, result.rows_rejected) == (2, 1)
    before = status(bench.store, bench.log.snapshot(), now_ms=NOW_MS)
    assert (before.quarantine_entries, before.rejections is None) == (1, False)
    bench.widen()
    assert bench.log.snapshot().schema == WIDER
    assert retried(bench) == (1, 1, 0)
    after = status(bench.store, bench.log.snapshot(), now_ms=NOW_MS)
    assert (after.quarantine_entries, after.rejections) == (0, None)


def test_objects_of_a_run_without_a_commit_have_no_reasons_and_do_not_count(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, SCHEMA, format="ndjson")
    bench.land("a.ndjson", '{"at": "1970-01-01", "id": 2, "city": "x"}\n')
    bench.execute(bench.works())  # this run ends before its commit
    found = status(bench.store, bench.log.snapshot(), now_ms=NOW_MS)
    assert (found.quarantine_entries, found.rejections) == (0, None)
    bench.land("a.ndjson", '{"at": "1970-01-01", "id": "x"}\n')
    result = bench.execute(bench.works())
    log = bench.log
    metrics = {"rows_in": result.rows_in, "rows_out": result.rows_out, "rows_rejected": result.rows_rejected}
    log.commit(log.snapshot(), result.actions, operation="INGEST", metrics=metrics)
    day = measure_rejections(bench.store, bench.log.snapshot(), now_ms=bench.log.snapshot().timestamp)
    assert (day.rows_rejected, day.is_above) == (1, True)
    assert len(day.reasons) == 1
    assert "city" not in str(day.reasons)


def test_runs_of_several_windows_count_each_line_once(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, SCHEMA, format="ndjson")
    bench.land("a.ndjson", '{"at": "1970-01-01", "id": 1}\n{"at": "1970-01-02", "id": 2}\nbad\n')
    counted = [bench.ingest(windows).rows_rejected for windows in ([7200], [0], [86400], None)]
    assert counted == [1, 0, 0, 0]
    assert len(bench.pending()) == 1
