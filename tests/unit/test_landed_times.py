"""Times of landed files: numbers since 1970, nanoseconds, and formats without a year."""

from __future__ import annotations

import io
import random
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage_core.base.errors import InvalidInput
from storage_core.change.declaration import load
from storage_core.write.ingest.batch import parse_file
from storage_core.write.ingest.convert import Parsed
from storage_core.write.ingest.landing import LandedFile, LandingSpec

SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us")), ("s", pa.string())])
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def parsed(folder: Path, data: bytes | str, form: str = "ndjson", arrived: datetime = EPOCH, **settings: Any) -> Parsed:
    (folder / "a").write_bytes(data.encode() if isinstance(data, str) else data)
    landed_ms = round(arrived.timestamp() * 1000)
    file = LandedFile("a", (folder / "a").stat().st_size, folder.resolve().as_uri(), landed_ms)
    spec = LandingSpec(uri=file.uri, format=form, **settings)  # type: ignore[arg-type]
    return parse_file(file, LandingSpec.from_json(spec.to_json()), SCHEMA, "at")


def micros(found: Parsed, name: str = "at") -> list[int | None]:
    values: list[int | None] = found.rows.column(name).cast(pa.int64()).to_pylist()
    return values


def reasons(found: Parsed) -> list[tuple[int | None, str]]:
    return [(each.line, each.reason) for each in found.rejected]


@pytest.mark.parametrize(
    ("unit", "text", "wanted"),
    [
        ("s", "1767261600", 1767261600_000000),
        ("s", "1767261600.5", 1767261600_500000),
        ("s", '"1767261600.1234560"', 1767261600_123456),
        ("s", "-1.5", -1_500000),
        ("s", "0", 0),
        ("ms", "1767261600123", 1767261600_123000),
        ("ms", "1767261600123.25", 1767261600_123250),
        ("us", "1767261600123456", 1767261600_123456),
        ("us", "-62135596800000000", -62135596800000000),
        ("ns", "1767261600123456000", 1767261600_123456),
        ("ns", "-1000", -1),
        ("ns", '"+1000"', 1),
        ("s", "253402300799.999999", 253402300799_999999),
    ],
)
def test_numbers_since_1970_become_times(tmp_path: Path, unit: str, text: str, wanted: int) -> None:
    line = f'{{"at": {text}, "local": {text}}}\n'
    found = parsed(tmp_path, line, times=(("at", unit), ("local", unit)))
    assert found.rejected == ()
    assert (micros(found), micros(found, "local")) == ([wanted], [wanted])
    csv = parsed(tmp_path, "at\n" + text.strip('"') + "\n", "csv", times=(("at", unit),))
    assert (csv.rejected, micros(csv)) == ((), [wanted])


NOT_BETWEEN = "since 1970 is not between the years 1 and 9999"


@pytest.mark.parametrize(
    ("unit", "text", "reason"),
    [
        ("s", '"2026-01-01T10:00:00Z"', "not a number of seconds since 1970"),
        ("s", "1e9", "not a number of seconds since 1970"),
        ("s", "1e31", "not a number of seconds since 1970"),
        ("ns", "9" * 38, "not a number of nanoseconds since 1970"),
        ("ms", '" 1"', "not a number of milliseconds since 1970"),
        ("s", "1767261600123", f"the number of seconds {NOT_BETWEEN}"),
        ("us", "9" * 20, f"the number of microseconds {NOT_BETWEEN}"),
        ("s", "9" * 20 + "." + "9" * 30, "the number has digits below the microsecond"),
        ("s", "1.0000001", "the number has digits below the microsecond, which tables do not support"),
        ("us", "1.5", "the number has digits below the microsecond"),
        ("ns", "1767261600123456789", "the number has digits below the microsecond"),
    ],
)
def test_numbers_that_are_not_times_reject_their_line(tmp_path: Path, unit: str, text: str, reason: str) -> None:
    found = parsed(tmp_path, f'{{"at": {text}}}\n{{"at": 0}}\n', times=(("at", unit),))
    [(line, why)] = reasons(found)
    assert line == 1
    assert why.startswith(f"column at: {reason}")
    assert micros(found) == [0]


@pytest.mark.parametrize("unit", PER_SECOND)
def test_random_numbers_are_cut_to_the_microsecond_below(tmp_path: Path, unit: str) -> None:
    chance = random.Random(unit)
    texts = []
    for _ in range(300):
        number = chance.randrange(-(10**10), 10**10) * PER_SECOND[unit] + chance.randrange(PER_SECOND[unit])
        texts.append(f"{number}.{chance.randrange(10**9):09}" if chance.random() < 0.7 else str(number))
    lines = "".join(f'{{"at": {text}}}\n' for text in texts)
    found = parsed(tmp_path, lines, times=(("at", unit),), nanoseconds="truncate")
    assert found.rejected == ()
    assert micros(found) == [Fraction(text) * 1_000_000 // PER_SECOND[unit] for text in texts]


def test_nanoseconds_of_text_are_cut_if_declared(tmp_path: Path) -> None:
    lines = (
        '{"at": "2026-01-31T23:59:59.999999999Z"}\n{"at": "2026-01-01 10:00:00.1234567+02:00"}\n'
        '{"at": "1969-12-31T23:59:59.9999999Z", "s": "2026-01-01T10:00:00.123456789Z"}\n{"at": "2026-01-01"}\n'
    )
    found = parsed(tmp_path, lines, nanoseconds="truncate")
    assert found.rejected == ()
    assert [each.isoformat() if each else None for each in found.rows.column("at").to_pylist()] == [
        "2026-01-31T23:59:59.999999+00:00",
        "2026-01-01T08:00:00.123456+00:00",
        "1969-12-31T23:59:59.999999+00:00",
        "2026-01-01T00:00:00+00:00",
    ]
    assert found.rows.column("s").to_pylist()[2] == "2026-01-01T10:00:00.123456789Z"
    assert [line for line, _ in reasons(parsed(tmp_path, lines))] == [1, 2, 3]
    wrong = parsed(tmp_path, '{"at": "2026-02-30T10:00:00.123456789Z"}\n', nanoseconds="truncate")
    assert [line for line, _ in reasons(wrong)] == [1]


def _file(form: str, column: pa.Array) -> bytes:
    sink = io.BytesIO()
    if form == "avro":
        fields = [{"name": "at", "type": ["null", "long"]}]
        schema = fastavro.parse_schema({"type": "record", "name": "r", "fields": fields})
        fastavro.writer(sink, schema, [{"at": each} for each in column.to_pylist()])
    elif form == "arrow":
        with pa.ipc.new_file(sink, pa.schema([("at", column.type)])) as writer:
            writer.write_table(pa.table({"at": column}))
    else:
        pq.write_table(pa.table({"at": column}), sink)
    return sink.getvalue()


@pytest.mark.parametrize("form", ["parquet", "avro", "arrow"])
def test_integer_columns_of_typed_files_become_times(tmp_path: Path, form: str) -> None:
    for unit, per in PER_SECOND.items():
        numbers = [1767261600 * per, None, -per, 0]
        found = parsed(tmp_path, _file(form, pa.array(numbers, pa.int64())), form, times=(("at", unit),))
        assert found.rejected == ()
        assert micros(found) == [1767261600_000000, None, -1_000000, 0]


@pytest.mark.parametrize("form", ["parquet", "avro", "arrow"])
def test_integers_that_are_not_times_reject_their_row(tmp_path: Path, form: str) -> None:
    seconds = parsed(tmp_path, _file(form, pa.array([0, 10**12, -(2**63), 2**63 - 1])), form, times=(("at", "s"),))
    assert reasons(seconds) == [(line, f"column at: the number of seconds {NOT_BETWEEN}") for line in (2, 3, 4)]
    assert '"at": 1000000000000' in seconds.rejected[0].text
    nanos = _file(form, pa.array([1001, -1, 2000]))
    found = parsed(tmp_path, nanos, form, times=(("at", "ns"),))
    assert [line for line, _ in reasons(found)] == [1, 2]
    assert reasons(found)[0][1] == "column at: the number has digits below the microsecond, which tables do not support"
    assert micros(parsed(tmp_path, nanos, form, times=(("at", "ns"),), nanoseconds="truncate")) == [1, -1, 2]


@pytest.mark.parametrize("kind", [pa.int32(), pa.uint32(), pa.uint64()])
def test_integers_of_other_sizes_become_times(tmp_path: Path, kind: pa.DataType) -> None:
    found = parsed(tmp_path, _file("parquet", pa.array([1767261600, None], kind)), "parquet", times=(("at", "s"),))
    assert micros(found) == [1767261600_000000, None]
    if kind == pa.uint64():
        far = parsed(tmp_path, _file("parquet", pa.array([2**64 - 1], kind)), "parquet", times=(("at", "s"),))
        assert [line for line, _ in reasons(far)] == [1]


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_nanosecond_columns_are_cut_if_declared(tmp_path: Path, form: str) -> None:
    data = _file(form, pa.array([1_001, -1, None], pa.timestamp("ns", "UTC")))
    refused = parsed(tmp_path, data, form)
    assert [line for line, _ in reasons(refused)] == [None]
    found = parsed(tmp_path, data, form, nanoseconds="truncate")
    assert (found.rejected, micros(found)) == ((), [1, -1, None])


def test_nanoseconds_of_int96_are_cut_if_declared(tmp_path: Path) -> None:
    sink = io.BytesIO()
    table = pa.table({"at": pa.array([1_001, -1, None], pa.timestamp("ns", "UTC"))})
    pq.write_table(table, sink, use_deprecated_int96_timestamps=True)
    assert [line for line, _ in reasons(parsed(tmp_path, sink.getvalue(), "parquet"))] == [None]
    found = parsed(tmp_path, sink.getvalue(), "parquet", nanoseconds="truncate")
    assert (found.rejected, micros(found)) == ((), [1, -1, None])


FORMAT = "%b %d %H:%M:%S"


@pytest.mark.parametrize(
    ("arrived", "text", "wanted"),
    [
        ("2026-03-05T10:00", "Mar  5 09:59:59", "2026-03-05T09:59:59"),
        ("2026-01-01T00:10", "Dec 31 23:59:00", "2025-12-31T23:59:00"),
        ("2025-12-31T23:59", "Jan  1 00:01:00", "2026-01-01T00:01:00"),
        ("2026-03-01T00:00", "Feb 29 12:00:00", "2024-02-29T12:00:00"),
        ("2024-02-29T13:00", "Feb 29 12:00:00", "2024-02-29T12:00:00"),
        ("2103-03-01T00:00", "Feb 29 12:00:00", "2104-02-29T12:00:00"),
    ],
)
def test_a_time_without_a_year_is_near_the_arrival(tmp_path: Path, arrived: str, text: str, wanted: str) -> None:
    at = datetime.fromisoformat(arrived).replace(tzinfo=UTC)
    form = {"pattern": r"(?P<at>\w{3} [ \d]\d \d\d:\d\d:\d\d) (?P<s>.*)", "time_format": FORMAT, "year": "from_arrival"}
    found = parsed(tmp_path, f"{text} x\n", "pattern", at, **form)
    assert found.rejected == ()
    assert found.rows.column("at").to_pylist() == [datetime.fromisoformat(wanted).replace(tzinfo=UTC)]


def test_every_day_near_the_arrival_gets_its_year(tmp_path: Path) -> None:
    for arrived in (datetime(2026, 1, 1, tzinfo=UTC), datetime(2024, 6, 30, 12, tzinfo=UTC)):
        days = [arrived + timedelta(days=each, seconds=each) for each in range(-180, 181)]
        lines = "at\n" + "".join(f"{each:{FORMAT}}\n" for each in days)
        found = parsed(tmp_path, lines, "csv", arrived, time_format=FORMAT, year="from_arrival")
        assert found.rejected == ()
        assert found.rows.column("at").to_pylist() == days
    wrong = parsed(tmp_path, "at\nFeb 30 10:00:00\n", "csv", time_format=FORMAT, year="from_arrival")
    assert reasons(wrong) == [(2, "column at: not a valid timestamp")]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("format: ndjson, times: {z: s}", "'z'"),
        ("format: ndjson, times: {s: ms}", "times: column 's' is not a timestamp"),
        ("format: ndjson, times: {at: h}", "landing.times"),
        ("format: ndjson, times: {at: s}, time_format: '%Y-%m-%d'", "has a time_format and a unit in times"),
        ("format: delta, times: {at: s}", "a Delta table has typed values: times and nanoseconds do not apply"),
        ("format: ndjson, year: from_arrival", "year is for a time_format without a year. Add the time_format"),
        ("format: csv, time_format: '%Y-%m-%d', year: from_arrival", "has a year. Leave out `year: from_arrival`"),
        ("format: csv, time_format: '%H:%M', year: from_arrival", "has no day"),
        ("format: csv, time_format: '%b %d'", "or declare `year: from_arrival`"),
        ("format: csv, time_format: '%s'", "Declare `times: {COLUMN: s}` in place of the time_format"),
    ],
)
def test_settings_of_times_that_cannot_work_are_refused(tmp_path: Path, settings: str, problem: str) -> None:
    (tmp_path / "tables").mkdir()
    path = tmp_path / "tables" / "t.yaml"
    columns = "columns: {at: timestamp!, s: string}\ntime_column: at\n"
    path.write_text(f"name: t\nuri: warehouse/t\n{columns}landing: {{uri: landing, {settings}}}\n")
    with pytest.raises(InvalidInput) as refused:
        load(path)
    assert problem in str(refused.value)


def test_a_declaration_keeps_the_settings_of_times(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    path = tmp_path / "tables" / "t.yaml"
    columns = "columns: {at: timestamp!, s: string}\ntime_column: at\n"
    settings = "format: ndjson, times: {at: ms}, nanoseconds: truncate"
    path.write_text(f"name: t\nuri: warehouse/t\n{columns}landing: {{uri: landing, {settings}}}\n")
    spec = load(path).landing_spec()
    assert spec is not None
    assert (spec.times, spec.nanoseconds) == ((("at", "ms"),), "truncate")
    assert LandingSpec.from_json(spec.to_json()) == spec


def test_a_file_of_unknown_arrival_needs_no_arrival_with_a_year(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("at\nFeb 1 10:00:00\n")
    file = LandedFile("a", 20, tmp_path.resolve().as_uri())
    with pytest.raises(InvalidInput, match="arrival is unknown"):
        parse_file(file, LandingSpec(uri=file.uri, format="csv", time_format=FORMAT, year="from_arrival"), SCHEMA, "at")
