from __future__ import annotations

import base64
import bz2
import gzip
import io
import json
import math
import re
import tarfile
import tempfile
import threading
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from itertools import chain, combinations, permutations
from pathlib import Path
from typing import Any, BinaryIO, cast

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage_core.base.errors import Corrupt, InvalidInput, NotFound, Unavailable
from storage_core.base.limits import QueryLimits
from storage_core.change import declaration
from storage_core.engine.session import session
from storage_core.write.ingest import landing, text_files
from storage_core.write.ingest.batch import parse_blocks, parse_file
from storage_core.write.ingest.convert import Parsed, RowFormat, convert, read_lines
from storage_core.write.ingest.landing import Expansion, LandedFile, LandingSpec, check_time_format, discover
from storage_core.write.ingest.parquet_files import parquet_blocks
from storage_core.write.ingest.text_files import csv_blocks
from tests.support.invalid_values import numbers_of, text_of
from tests.support.memory import grown_bytes
from tests.support.steps import steps_of

ROOT = Path(__file__).parents[2]
SCHEMA = pa.schema(
    [
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("level", pa.int32()),
        pa.field("text", pa.string()),
    ]
)
AT = datetime(2024, 1, 1, tzinfo=UTC)


def landed(folder: Path, name: str, data: bytes | str) -> LandedFile:
    (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)
    return LandedFile(name, (folder / name).stat().st_size, folder.resolve().as_uri())


def parsed(folder: Path, name: str, data: bytes | str, schema: pa.Schema = SCHEMA, **settings: Any) -> Parsed:
    file = landed(folder, name, data)
    return parse_file(file, LandingSpec(uri=file.uri, **settings), schema, "at")


def reasons(result: Parsed) -> list[tuple[int | None, str]]:
    return [(each.line, each.reason) for each in result.rejected]


def parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


# Lines.


@pytest.mark.parametrize("block_bytes", [3, 7, 1000])
def test_lines_are_numbered_whatever_the_block_size(block_bytes: int) -> None:
    data = b"\xef\xbb\xbfone\r\n\ntwo\xff\nthr\xc3\xa9e\n\n\rfour"
    blocks = list(read_lines(io.BytesIO(data), block_bytes))
    lines = [pair for block in blocks for pair in zip(block.numbers.tolist(), block.text.to_pylist(), strict=True)]
    assert lines == [(1, "one"), (4, "thr\xe9e"), (6, "\rfour")]
    assert [bad for block in blocks for bad in block.not_text] == [(3, b"two\xff")]


# The following tests parse lines with the pattern of the access log.


def access_log(folder: Path, lines: str) -> Parsed:
    table = declaration.load(ROOT / "tables" / "access_log.yaml")
    spec = table.landing_spec()
    assert spec is not None
    return parse_file(landed(folder, "access.log", lines), spec, table.schema(), table.time_column)


def line(request: str = "GET /a HTTP/1.1", status: str = "200", size: str = "12", agent: str = "curl") -> str:
    return f'10.0.0.1 - frank [17/May/2015:10:05:03 +0200] "{request}" {status} {size} "-" "{agent}"\n'


def test_every_line_of_the_real_log_is_a_row_or_a_rejection_with_a_reason() -> None:
    table = declaration.load(ROOT / "tables" / "access_log.yaml")
    spec = table.landing_spec()
    assert spec is not None
    (file,) = discover(LandingSpec(uri=str(ROOT / "examples" / "data"), format="ndjson", suffix="access.log.gz"))
    result = parse_file(file, spec, table.schema(), table.time_column)
    raw = gzip.decompress((ROOT / "examples" / "data" / "apache_access.log.gz").read_bytes()).decode().splitlines()
    assert len(raw) == 10_000
    assert result.rows.num_rows + len(result.rejected) == len(raw)
    # Only one line was truncated when it was written, and the last field of this line has no end.
    assert reasons(result) == [(8899, "the line does not match the pattern")]
    assert result.rejected[0].text == raw[8898]
    del raw[8898]
    statuses = [int(each.split('" ')[1].split()[0]) for each in raw]
    assert result.rows.column("status").to_pylist() == statuses
    sizes = [None if (size := each.split('" ')[1].split()[1]) == "-" else int(size) for each in raw]
    assert result.rows.column("bytes").to_pylist() == sizes
    times = [datetime.strptime(each.split("[")[1].split("]")[0], "%d/%b/%Y:%H:%M:%S %z") for each in raw]
    assert result.rows.column("timestamp").to_pylist() == times
    assert result.rows.column("request").to_pylist() == [each.split('"')[1] for each in raw]
    assert result.rows.column("path").to_pylist() == [each.split('"')[1].split()[1] for each in raw]


def test_a_combined_line_becomes_a_row_with_time_in_utc_and_dashes_as_null(tmp_path: Path) -> None:
    (row,) = access_log(tmp_path, line(size="-")).rows.to_pylist()
    assert row == {
        "client": "10.0.0.1",
        "ident": None,
        "user": "frank",
        "timestamp": datetime(2015, 5, 17, 8, 5, 3, tzinfo=UTC),
        "request": "GET /a HTTP/1.1",
        "method": "GET",
        "path": "/a",
        "protocol": "HTTP/1.1",
        "status": 200,
        "bytes": None,
        "referrer": None,
        "agent": "curl",
    }


def test_escaped_quotes_and_requests_that_are_none_stay_whole(tmp_path: Path) -> None:
    text = line(agent=r"say \"hi\"") + line(request=r"\x16\x03", status="400") + line(request="-", status="408")
    result = access_log(tmp_path, text)
    assert result.rejected == ()
    assert result.rows.column("agent").to_pylist()[0] == r"say \"hi\""
    assert result.rows.column("request").to_pylist() == ["GET /a HTTP/1.1", r"\x16\x03", None]
    assert result.rows.column("method").to_pylist() == ["GET", None, None]


def test_bad_lines_are_rejected_with_line_and_reason_and_the_others_go_on(tmp_path: Path) -> None:
    good = line()
    no_day, no_time = good.replace("17/May", "32/May"), good.replace("17/May/2015:10:05:03 +0200", "-")
    text = good + "garbage\n" + no_day + no_time + line(size="9" * 30) + good
    result = access_log(tmp_path, text)
    assert result.rows.num_rows == 2
    assert reasons(result) == [
        (2, "the line does not match the pattern"),
        (3, "column timestamp: not a valid timestamp"),
        (4, "column timestamp: a value is required"),
        (5, "column bytes: not a valid int64"),
    ]
    assert [each.text + "\n" for each in result.rejected] == text.splitlines(keepends=True)[1:5]


def test_a_line_that_is_not_utf8_is_rejected_with_its_bytes(tmp_path: Path) -> None:
    bad = b"caf\xe9 " + line().encode()
    result = parsed(tmp_path, "a.log", b"2024-01-01\n" + bad, format="pattern", pattern=r"^(?P<at>\S+)$")
    assert reasons(result) == [(2, "the line is not UTF-8")]
    assert (result.rejected[0].encoding, base64.b64decode(result.rejected[0].text) + b"\n") == ("base64", bad)


def test_an_error_of_the_conversion_names_a_time_format_only_where_there_is_one() -> None:
    bytes_for_text = pa.table({"n": [b"1"]})
    with pytest.raises(
        InvalidInput, match=r"^a text of the file cannot be converted to the type of its column\. Correct the file$"
    ):
        convert(bytes_for_text, RowFormat(pa.schema([("n", pa.int64())])))


@pytest.mark.parametrize("name", ["_reason", "reason", "c0", "t0"])
def test_a_column_may_have_any_name(name: str) -> None:
    schema = pa.schema([(name, pa.int64())])
    found = convert(pa.table({name: ["1", "x"]}), RowFormat(schema))
    assert found.rows == pa.table({name: [1, None]}, schema)
    assert found.reasons.to_pylist() == [None, f"column {name}: not a valid int64"]


def test_a_group_that_is_no_column_and_a_time_format_that_is_none_are_errors_of_the_spec(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="unknown column 'other'"):
        parsed(tmp_path, "a.log", "x\n", format="pattern", pattern=r"^(?P<other>\S+)$")
    with pytest.raises(InvalidInput, match="time_format '%Q' is not usable"):
        parsed(tmp_path, "a.log", "x\n", format="pattern", pattern=r"^(?P<at>\S+)$", time_format="%Q")
    binary = pa.schema([("raw", pa.binary())])
    with pytest.raises(InvalidInput, match="no text form"):
        parsed(tmp_path, "a.log", "x\n", binary, format="pattern", pattern=r"^(?P<raw>\S+)$")


# Times.

MOMENT = datetime(2024, 3, 9, 5, 6, 7, tzinfo=UTC)


@pytest.mark.parametrize(
    "text_format",
    [
        "%Y-%m-%d %H:%M:%S",
        "%d/%b/%Y:%H:%M:%S",
        "%B %d %Y %I:%M:%S %p",
        "%y%m%d %H%M%S",
        "%Y-%j %H:%M:%S",
        "%G-W%V-%u %H:%M:%S",
        "%Y %U %w %H:%M:%S",
        "%a %d %h %Y %H:%M:%S",
        "%d %m %-y %-H %-M %-S",
    ],
)
def test_a_time_format_with_a_full_date_gives_the_moment_that_was_written(tmp_path: Path, text_format: str) -> None:
    with duckdb.connect() as connection:
        query = "SELECT strftime(?::TIMESTAMP, ?)"
        [written] = connection.execute(query, [MOMENT.replace(tzinfo=None), text_format]).fetchone() or [""]
    result = parsed(tmp_path, "a.ndjson", f'{{"at": "{written}"}}\n', format="ndjson", time_format=text_format)
    assert result.rows.column("at").to_pylist() == [MOMENT]


@pytest.mark.parametrize(
    ("text_format", "why"),
    [
        ("%b %d %H:%M:%S", "has no year"),
        ("%H:%M:%S", "has no year"),
        ("%j", "has no year"),
        ("%A %d", "has no year"),
        ("%G-%m-%d", "has no year"),
        ("%z", "has no year"),
        ("%%Y-%m-%d", "has no year"),
        ("yesterday", "has no year"),
        ("%Y", "has no day"),
        ("%Y-%m", "has no day"),
        ("%Y-%d", "has no day"),
        ("%Y-%V", "has no day"),
        ("%Y-%m-%d %I:%M", "has a 12-hour clock"),
        ("%Y-%m-%d %y", "has %y and a second directive for the year"),
        ("%Y-%e", "%e is not a directive"),
        ("%s", "seconds since 1970"),
        ("%Q", "milliseconds since 1970"),
        ("%Y-%m-%dT%H:%M:%S.%nZ", "nanoseconds"),
        ("%Y-%m-%d %", "ends with %"),
        ("%Y-%m-%d %-p", "%-p is not a directive"),
    ],
)
def test_a_time_format_that_gives_no_whole_moment_is_refused_before_a_file_is_read(
    tmp_path: Path, text_format: str, why: str
) -> None:
    with pytest.raises(InvalidInput, match=re.escape(why)) as refused:
        parsed(tmp_path, "a.ndjson", '{"at": "x"}\n', format="ndjson", time_format=text_format)
    assert repr(text_format) in str(refused.value)


DAYS = [date(year, 1, 1) + timedelta(days=day) for year in (1999, 2020, 2026) for day in (0, 5, 35, 59, 330, 364)]
NAMES_OF_DAYS = ("Y", "y", "m", "b", "d", "j", "U", "W", "V", "G", "a", "u", "w", "x", "c")


def is_refused(text_format: str) -> bool:
    try:
        check_time_format(text_format)
    except InvalidInput:
        return True
    return False


@pytest.mark.parametrize("most", [3, 4])
def test_every_accepted_time_format_gives_the_day_that_was_written(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ordered = chain(permutations(NAMES_OF_DAYS, 3), combinations(NAMES_OF_DAYS, 1), combinations(NAMES_OF_DAYS, 2))
    named = list(ordered if most == 3 else combinations(NAMES_OF_DAYS, most))
    formats = [" ".join(f"%{each}" for each in names) + " %H" for names in named]
    with session(threads=1) as one:
        monkeypatch.setattr(landing, "session", lambda **_: nullcontext(one))
        accepted = [each for each in formats if not is_refused(each)]
    assert len(accepted) > 50
    query = "SELECT max(CAST(try_strptime(strftime(day, ?), ?) AS DATE) IS DISTINCT FROM CAST(day AS DATE)) FROM days"
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE days AS SELECT unnest(CAST(? AS TIMESTAMP[])) AS day", [DAYS])
        wrong = [each for each in accepted if connection.execute(query, [each, each]).fetchone() != (False,)]
    assert wrong == []


@pytest.mark.parametrize(
    ("text_format", "written", "found"),
    [
        ("%Y-W%W-%a %H:%M", "2026-W47-Fri 13:45", "2026-11-23"),
        ("%G-W%V-%a", "2026-W48-Fri", "2026-11-23"),
        ("%Y-%U-%u", "2026-47-5", "2026-11-22"),
        ("%y %U %a", "26 47 Fri", "2026-11-22"),
        ("%A %Y %W", "Friday 2026 47", "2026-11-23"),
        ("%Y %m %j %z", "2026 11 331 Z", "2026-11-01"),
        ("%Y%-m%-d", "2026111", "2026-11-01"),
        ("%Y %j %V", "2026 331 48", "no time"),
    ],
)
def test_a_time_format_by_which_another_day_is_read_is_refused(text_format: str, written: str, found: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_time_format(text_format)
    assert f"{text_format!r} is ambiguous" in str(refused.value)
    assert f"DuckDB reads {written!r} as {found}" in str(refused.value)


@pytest.mark.parametrize(
    "text_format",
    [
        "%Y-%m-%dT%H:%M:%S%z",
        "%c",
        "%x %X",
        "%Z %Y-%m-%d",
        "%a, %d %b %Y %H:%M:%S %Z",
        "%d%b%Y:%I:%M%p",
        "%Y/%j %a",
        "%Y %W %w",
        "%Y%m%d%H",
    ],
)
def test_a_time_format_that_names_the_day_is_accepted(text_format: str) -> None:
    check_time_format(text_format)


def test_times_that_are_numbers_or_have_nanoseconds_are_rejected_with_that_reason(tmp_path: Path) -> None:
    lines = ['{"at": 1767261600}', '{"at": "1767261600000.5"}', '{"at": "2026-01-01T10:00:00.123456789Z"}']
    result = parsed(tmp_path, "a.ndjson", "\n".join(lines), format="ndjson")
    number = "column at: not a valid timestamp, which must be text such as 2026-01-01T10:00:00Z, not a number"
    nanoseconds = "column at: not a valid timestamp, which may have at most 6 digits after the second"
    assert reasons(result) == [(1, number), (2, number), (3, nanoseconds)]


# NDJSON.


def test_json_lines_become_rows_and_bad_ones_are_named(tmp_path: Path) -> None:
    lines = [
        '{"at": "2024-01-01T02:00:00+02:00", "level": 3, "text": "a \\u00e9 \\"q\\""}',
        '{"at": "2024-01-01T00:00:00Z", "text": {"nested": [1]}}',
        "",
        '{"at": "2024-01-01T00:00:00Z", "level": "high"}',
        '{"at": "2024-01-01T00:00:00Z", "level": 1.5}',
        '{"at": "2024-01-01T00:00:00Z", "level": 3000000000}',
        '{"level": 1}',
        '{"at": null}',
        '{"at": "infinity"}',
        '{"at": "2024-01-01T00:00:00Z", "extra": 1}',
        "[1, 2]",
        '{"at": "2024-01-01T00:00:00Z", "level": 1',
    ]
    result = parsed(tmp_path, "a.ndjson", "\n".join(lines), format="ndjson")
    assert result.rows.to_pylist() == [
        {"at": AT, "level": 3, "text": 'a \xe9 "q"'},
        {"at": AT, "level": None, "text": '{"nested":[1]}'},
    ]
    assert reasons(result) == [
        (4, "column level: not a valid int32"),
        (5, "column level: not a valid int32"),
        (6, "column level: not a valid int32"),
        (7, "column at: a value is required"),
        (8, "column at: a value is required"),
        (9, "column at: not a valid timestamp"),
        (10, "the field extra is not a column of the table"),
        (11, "the line is not a JSON object"),
        (12, "the line is not valid JSON"),
    ]
    assert [each.text for each in result.rejected] == lines[3:]


@pytest.mark.parametrize(
    ("number", "value"),
    [
        ("12345678901234567.123", "12345678901234567.123"),
        ("-1234567890123456789012345678.0123456789", "-1234567890123456789012345678.0123456789"),
        ("1234567890123456789012345678", "1234567890123456789012345678"),
        ("9223372036854775808.5", "9223372036854775808.5"),
        ("0.1", "0.1"),
        ("0.10000000000000", "0.1"),
        ("1e3", "1000"),
        ("1.2E-9", "0.0000000012"),
        ("1e27", "1000000000000000000000000000"),
        ("-0", "0"),
        ("-0.0", "0"),
        ("null", None),
    ],
)
def test_the_digits_of_a_json_number_are_the_value_of_a_decimal(tmp_path: Path, number: str, value: str | None) -> None:
    schema = pa.schema([("other", pa.string()), ("d", pa.decimal128(38, 10)), ("f", pa.float64())])
    odd = r'"other": "a \"d\": 1e5, [1e3, \u00e9\\"'
    lines = [f'{{ {odd}, "d" : {number}, "f": 12345678901234567.123 }}', f'{{"d":{number}}}']
    result = parsed(tmp_path, "a.ndjson", "\n".join(lines), schema, format="ndjson")
    exact = None if value is None else Decimal(value)
    text = 'a "d": 1e5, [1e3, \xe9\\'
    assert result.rows.to_pylist() == [
        {"other": text, "d": exact, "f": 12345678901234567.123},
        {"other": None, "d": exact, "f": None},
    ]


@pytest.mark.parametrize("number", ["0.12345678901", "1e28", "1e-11", "1e400", "1e999999999999999999999", "1e-999999"])
def test_a_json_number_that_a_decimal_would_change_is_rejected(tmp_path: Path, number: str) -> None:
    schema = pa.schema([("d", pa.decimal128(38, 10))])
    result = parsed(tmp_path, "a.ndjson", f'{{"d":{number}}}', schema, format="ndjson")
    assert reasons(result) == [(1, "column d: not a valid decimal(38, 10)")]


def test_numbers_in_text_and_in_nested_values_keep_their_digits(tmp_path: Path) -> None:
    line = '{"text": {"a": [12345678901234567.123, "1, 2"], "b": {"c": 1E5}}, "level": 7, "d": 12345678901234567890.5}'
    schema = pa.schema([("text", pa.string()), ("level", pa.int32()), ("d", pa.string())])
    result = parsed(tmp_path, "a.ndjson", line, schema, format="ndjson")
    assert result.rows.to_pylist() == [
        {
            "text": '{"a":[12345678901234567.123,"1, 2"],"b":{"c":1E5}}',
            "level": 7,
            "d": "12345678901234567890.5",
        }
    ]


def test_digits_of_named_numbers_are_kept_without_a_step_per_line(tmp_path: Path) -> None:
    def of(count: int) -> None:
        line = '{"at": "2024-01-01", "text": {"price": 1.10, "n": -0}}\n'
        result = parsed(tmp_path, "a.ndjson", line * count, format="ndjson")
        assert result.rows.column("text").unique().to_pylist() == ['{"price":1.10,"n":-0}']

    assert steps_of(partial(of, 5_000)).count < steps_of(partial(of, 50)).count + 1_000


MAPS = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("m", pa.map_(pa.string(), pa.int64())),
        pa.field("d", pa.map_(pa.string(), pa.decimal128(30, 3))),
        pa.field("t", pa.map_(pa.string(), pa.string())),
    ]
)


def test_a_json_object_is_a_map_and_a_line_that_names_none_has_none(tmp_path: Path) -> None:
    lines = [
        '{"id": 1}',
        '{"id": 2, "m": {"a": 9223372036854775807, "b": null}, "d": {"\\u00e9": 12345678901234567.123, "": 0.1}}',
        '{"id": 3, "m": {}, "d": null, "t": {"x": "", "y": "{}", "z": true}}',
        '{"id": 4, "m": {"a": 1.5}}',
        '{"id": 5, "m": {"a": 1, "a": 2}}',
        '{"id": 6, "m": [1]}',
        '{"id": 7, "m": {"a": {"b": 1}}}',
        '{"id": 8, "m": 1}',
        '{"id": 9, "d": {"a": 0.0001}, "m": {"a": 1}}',
        '{"id": 10, "m": {"a": -1}}',
    ]
    result = parsed(tmp_path, "a.ndjson", "\n".join(lines), MAPS, format="ndjson")
    assert result.rows.to_pylist() == [
        {"id": 1, "m": None, "d": None, "t": None},
        {
            "id": 2,
            "m": [("a", 9223372036854775807), ("b", None)],
            "d": [("\xe9", Decimal("12345678901234567.123")), ("", Decimal("0.1"))],
            "t": None,
        },
        {"id": 3, "m": [], "d": None, "t": [("x", ""), ("y", "{}"), ("z", "true")]},
        {"id": 10, "m": [("a", -1)], "d": None, "t": None},
    ]
    no_object = "column m: not a JSON object of names and values"
    assert reasons(result) == [
        (4, "column m: not a valid int64"),
        (5, "column m: a name is given twice"),
        (6, no_object),
        (7, no_object),
        (8, no_object),
        (9, "column d: not a valid decimal(30, 3)"),
    ]


def test_a_csv_file_has_no_form_for_a_map(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="has no text form"):
        parsed(tmp_path, "a.csv", "id,m\n1,{}\n", MAPS, format="csv")


ALL_TYPES = pa.schema(
    [
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("local", pa.timestamp("us")),
        pa.field("day", pa.date32()),
        pa.field("tiny", pa.int8()),
        pa.field("long", pa.int64()),
        pa.field("half", pa.float32()),
        pa.field("real", pa.float64()),
        pa.field("flag", pa.bool_()),
        pa.field("price", pa.decimal128(9, 2)),
        pa.field('o\'dd "name"/~', pa.string()),
    ]
)


def test_every_type_converts_exactly(tmp_path: Path) -> None:
    row: dict[str, Any] = {
        "at": "2024-01-01 00:00:00.000001Z",
        "local": "2024-01-01T10:00",
        "day": "1969-12-31",
        "tiny": -128,
        "long": 9223372036854775807,
        "half": 0.5,
        "real": -1.5e300,
        "flag": True,
        "price": "-1234567.89",
        'o\'dd "name"/~': "x",
    }
    (found,) = parsed(tmp_path, "a.ndjson", json.dumps(row), ALL_TYPES, format="ndjson").rows.to_pylist()
    assert found == row | {
        "at": AT.replace(microsecond=1),
        "local": datetime(2024, 1, 1, 10),  # noqa: DTZ001  # a column without a zone
        "day": date(1969, 12, 31),
        "price": Decimal("-1234567.89"),
    }


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("at", "2024-01-01T00:00:00.0000001Z"),
        ("at", "2024-13-01"),
        ("at", "yesterday"),
        ("local", "2024-01-01T00:00:00+01:00"),
        ("day", "2024-01-01T10:00"),
        ("day", "2023-02-29"),
        ("tiny", "128"),
        ("tiny", "0x1f"),
        ("long", "1_000"),
        ("long", "1e3"),
        ("long", "9223372036854775808"),
        ("real", "1,5"),
        ("real", "1_0"),
        ("flag", "maybe"),
        ("price", "1.005"),
        ("price", "12345678.00"),
    ],
)
def test_text_that_a_type_would_have_to_guess_at_is_rejected(tmp_path: Path, column: str, value: str) -> None:
    text = json.dumps({"at": "2024-01-01T00:00:00Z"} | {column: value})
    result = parsed(tmp_path, "a.ndjson", text, ALL_TYPES, format="ndjson")
    ((_, reason),) = reasons(result)
    assert reason.startswith(f"column {column}: not a valid ")


def test_a_line_that_takes_more_than_the_memory_of_a_conversion_is_a_typed_error_that_names_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_files, "CONVERSION", QueryLimits(memory_bytes=16 * 2**20))
    line = json.dumps({"text": ["x" * 16 * 2**20], "level": 1})  # nested, so not a plain line
    with pytest.raises(Unavailable, match=r"a\.ndjson: too large for the available memory"):
        parsed(tmp_path, "a.ndjson", (line + "\n") * 6, SCHEMA.remove(0), format="ndjson", null_values=("-",))


def test_a_long_text_in_json_takes_memory_in_proportion(tmp_path: Path) -> None:
    text = "," * 5_000_000
    lines = [f'{{"text": "{text}", "level": 1}}', f'{{"text": "{text}", "d": 1e5}}']
    schema = pa.schema([("text", pa.string()), ("level", pa.int32()), ("d", pa.decimal128(9, 1))])

    def read() -> None:
        result = parsed(tmp_path, "a.ndjson", "\n".join(lines), schema, format="ndjson")
        assert result.rows.column("text").to_pylist() == [text, text]

    assert grown_bytes(read) < 300 * 2**20, "a regular expression that steps back takes 1.2 GB"


# CSV.


def test_csv_records_become_rows_and_bad_ones_are_numbered(tmp_path: Path) -> None:
    text = (
        "at,text,level\n"
        '2024-01-01T00:00:00Z,"two\nlines, ""quoted""",1\n'
        "2024-01-01T00:00:00Z,only two\n"
        '2024-01-01T00:00:00Z,"",NA\n'
        "\n"
        "2024-01-01T00:00:00Z,,x\n"
        '2024-01-01T00:00:00Z,"NA",2\n'
        ",late,3\n"
        "1,2,3,4\n"
    )
    result = parsed(tmp_path, "a.csv", text, format="csv", null_values=("NA",))
    assert result.rows.to_pylist() == [
        {"at": AT, "level": 1, "text": 'two\nlines, "quoted"'},
        {"at": AT, "level": None, "text": ""},
        {"at": AT, "level": 2, "text": "NA"},
    ]
    assert [(each.line, each.reason, each.text) for each in result.rejected] == [
        (3, "the record has 2 fields, the header has 3", "2024-01-01T00:00:00Z,only two"),
        (5, "column level: not a valid int32", "2024-01-01T00:00:00Z,,x"),
        (7, "column at: a value is required", ",late,3"),
        (8, "the record has 4 fields, the header has 3", "1,2,3,4"),
    ]


def test_csv_record_numbers_hold_across_blocks(tmp_path: Path) -> None:
    records = [
        f"2024-01-01T00:00:00Z,{'x' if i % 7 == 0 else i}" + (",more" if i % 11 == 0 else "") for i in range(500)
    ]
    file = landed(tmp_path, "a.csv", "\n".join(["at,level", *records]) + "\n")
    blocks = list(parse_blocks(file, LandingSpec(uri=file.uri, format="csv"), SCHEMA, "at", block_bytes=600))
    assert len(blocks) > 10
    bad = {each.line: each.text for block in blocks for each in block.rejected}
    expected = {i + 2: record for i, record in enumerate(records) if i % 7 == 0 or i % 11 == 0}
    assert bad == expected
    levels = [level for block in blocks for level in block.rows.column("level").to_pylist()]
    assert levels == [i for i in range(500) if i % 7 and i % 11]


def test_misshapen_csv_records_are_work_in_proportion_to_their_number(tmp_path: Path) -> None:
    def of(count: int) -> Parsed:
        text = "at,level\n" + "1,2,3\n" * count + "2024-01-01T00:00:00Z,1\n"
        result = parsed(tmp_path, "a.csv", text, format="csv")
        assert [each.line for each in result.rejected] == list(range(2, count + 2))
        assert result.rows.num_rows == 1
        return result

    assert steps_of(partial(of, 4_000)).count < 100 * 4_000
    of(50_000)  # comparing all pairs takes minutes, even in C


def test_a_csv_record_that_is_not_utf8_is_rejected(tmp_path: Path) -> None:
    data = b"at,text\n2024-01-01,caf\xe9\n2024-01-01,ok\n"
    result = parsed(tmp_path, "a.csv", data, format="csv")
    assert result.rows.column("text").to_pylist() == ["ok"]
    assert reasons(result) == [(2, "the line is not UTF-8")]
    assert base64.b64decode(result.rejected[0].text) == b"2024-01-01,caf\xe9"


CAFE = b"caf\xe9"
UNCLOSED = "a quote that opens in the record is never closed, so the record contains the rest of the file"


def test_a_misshapen_csv_record_that_is_not_utf8_is_the_only_one_rejected(tmp_path: Path) -> None:
    schema = pa.schema([("level", pa.int32()), ("text", pa.string()), ("größe", pa.string())])
    data = "\ufefflevel,größe,text\n1,ä-,ünd\n1,".encode() + CAFE + b"\n2,,\n3," + CAFE + ",é\n4,ä,\n".encode()
    result = parsed(tmp_path, "a.csv", data, schema, format="csv", null_values=("ä-",))
    assert result.rows.to_pylist() == [
        {"level": 1, "text": "ünd", "größe": None},
        {"level": 2, "text": None, "größe": None},
        {"level": 4, "text": None, "größe": "ä"},
    ]
    assert reasons(result) == [(3, "the record has 2 fields, the header has 3"), (5, "the line is not UTF-8")]
    assert [base64.b64decode(each.text) for each in result.rejected] == [b"1," + CAFE, b"3," + CAFE + ",é".encode()]


@pytest.mark.parametrize("block_bytes", [200, 32 * 2**20])
@pytest.mark.parametrize("tail", [b"2,x\n3,y", b'2,""\n', b"2,x\n,,,", b"2,\xe9\n", b""])
@pytest.mark.parametrize("shape", [b'1,"', b'1,2,"', b'"'])
def test_a_csv_quote_that_is_never_closed_rejects_its_record_with_all_that_follows(
    tmp_path: Path, shape: bytes, tail: bytes, block_bytes: int
) -> None:
    good = b'1,"two\nlines"\n,,,\n2,x\n'
    file = landed(tmp_path, "a.csv", b"level,text\n" + good * 10 + shape + tail)
    spec = LandingSpec(uri=file.uri, format="csv")
    blocks = list(parse_blocks(file, spec, SCHEMA.remove(0), None, block_bytes=block_bytes))
    assert sum(block.rows.num_rows for block in blocks) == 20
    *others, last = [line for block in blocks for line in block.rejected]
    assert [each.line for each in others] == list(range(3, 32, 3))
    assert (last.line, last.reason) == (32, UNCLOSED)
    kept = last.text.encode() if last.encoding == "utf-8" else base64.b64decode(last.text)
    assert kept.replace(b'"', b"").endswith((shape + tail).replace(b'"', b""))


def test_a_csv_quote_that_is_not_closed_within_two_blocks_rejects_the_file_and_names_the_record(
    tmp_path: Path,
) -> None:
    for before in (5, 50, 500):
        text = "level,text\n" + "1,x\n" * before + '1,"y\n' + "2,z\n" * 500
        file = landed(tmp_path, "a.csv", text)
        spec = LandingSpec(uri=file.uri, format="csv")
        last = list(parse_blocks(file, spec, SCHEMA.remove(0), None, block_bytes=200))[-1]
        assert last.unreadable
        assert f"record {before + 2}: " in last.rejected[0].reason


def test_a_csv_header_with_a_quote_that_is_never_closed_is_shown_in_part(tmp_path: Path) -> None:
    result = parsed(tmp_path, "a.csv", 'level,"text\n' + "1,x\n" * 20_000, format="csv")
    assert result.unreadable
    assert len(result.rejected[0].reason) < 1000


@pytest.mark.parametrize("header", ["at,other", "at,at", "\n"])
def test_a_csv_file_whose_header_is_not_of_the_table_is_rejected_whole(tmp_path: Path, header: str) -> None:
    result = parsed(tmp_path, "a.csv", f"{header}\n2024-01-01,1\n", format="csv")
    assert (result.unreadable, result.rows.num_rows, result.rejected[0].line) == (True, 0, None)


# Parquet.


def table(rows: int = 3) -> pa.Table:
    return pa.table(
        {"at": pa.array([AT] * rows, pa.timestamp("ms", tz="UTC")), "level": pa.array(range(rows), pa.int64())}
    )


def test_parquet_rows_conform_and_those_without_a_required_value_are_rejected(tmp_path: Path) -> None:
    rows = pa.concat_tables([table(), pa.table({"at": pa.array([None], pa.timestamp("ms", tz="UTC")), "level": [9]})])
    result = parsed(tmp_path, "a.parquet", parquet(rows), format="parquet")
    assert result.rows.schema == SCHEMA
    assert result.rows.column("level").to_pylist() == [0, 1, 2]
    assert [(each.line, each.reason) for each in result.rejected] == [(4, "column at: a value is required")]
    assert json.loads(result.rejected[0].text) == {"at": None, "level": 9, "text": None}


@pytest.mark.parametrize("options", [{}, {"use_dictionary": False}], ids=str)
def test_parquet_rows_with_values_that_are_not_valid_are_rejected_and_the_others_kept(
    options: dict[str, Any], tmp_path: Path
) -> None:
    rows = pa.table(
        {
            "at": pa.array([AT] * 5, pa.timestamp("us", tz="UTC")),
            "text": text_of([b"a", b"m\xff", b"c", b"d", b"e"]),
            "tags": pa.ListArray.from_arrays([0, 1, 1, 3, 3, 3], text_of([b"x", b"y", b"caf\xe9"])),
            "price": numbers_of([10, 20, 30, 12345, 50], pa.decimal128(3, 1)),
        }
    )
    sink = io.BytesIO()
    pq.write_table(rows, sink, **options)
    result = parsed(tmp_path, "a.parquet", sink.getvalue(), rows.schema, format="parquet")
    assert result.rows.select(["text", "tags", "price"]).to_pylist() == [
        {"text": "a", "tags": ["x"], "price": Decimal("1.0")},
        {"text": "e", "tags": [], "price": Decimal("5.0")},
    ]
    assert reasons(result) == [
        (2, "column text: the text is not valid UTF-8"),
        (3, "column tags: the text is not valid UTF-8"),
        (4, "column price: the number has more digits than decimal128(3, 1)"),
    ]
    assert "m\\\\xff" in result.rejected[0].text


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.99])
def test_a_parquet_file_cut_anywhere_is_rejected_whole(tmp_path: Path, kept: float) -> None:
    data = parquet(table(1000))
    result = parsed(tmp_path, "a.parquet", data[: int(len(data) * kept)], format="parquet")
    assert (result.unreadable, result.rows.num_rows, len(result.rejected)) == (True, 0, 1)
    assert "not a whole Parquet file" in result.rejected[0].reason


def test_a_parquet_file_with_another_schema_is_rejected_whole(tmp_path: Path) -> None:
    other = table().append_column("more", pa.array([1, 2, 3]))
    result = parsed(tmp_path, "a.parquet", parquet(other), format="parquet")
    assert "unknown column 'more'" in result.rejected[0].reason
    wrong = table().set_column(1, "level", pa.array(["a", "b", "c"]))
    assert (
        "column 'level' has type string"
        in parsed(tmp_path, "b.parquet", parquet(wrong), format="parquet").rejected[0].reason
    )


class _Threads(io.BytesIO):
    """A stream of bytes that records which threads read from it."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.readers: set[int] = set()

    def read(self, size: int | None = -1, /) -> bytes:
        self.readers.add(threading.get_ident())
        return super().read(size)


def test_a_stream_is_read_by_no_thread_that_may_outlive_its_reader() -> None:
    # If a thread still has a Python object when Python ends, the thread aborts the process after its work.
    csv = _Threads(b"level,text\n" + b"1,one\n" * 50_000)
    table = pa.table({"level": pa.array([1] * 50_000, pa.int32()), "text": ["one"] * 50_000})
    file = _Threads(parquet(table))
    schema = SCHEMA.remove(0)
    blocks = csv_blocks("a.csv", cast("BinaryIO", csv), RowFormat(schema, None, None, ()), block_bytes=10_000)
    assert sum(block.rows.num_rows for block in blocks) == 50_000
    assert sum(block.rows.num_rows for block in parquet_blocks("a", cast("BinaryIO", file), schema)) == 50_000
    assert csv.readers == file.readers == {threading.get_ident()}


def test_a_csv_file_without_an_end_of_line_is_refused_before_it_fills_the_disk() -> None:
    zeros = _Threads(bytes(100_000))
    target = RowFormat(SCHEMA.remove(0), None, None, ())
    with pytest.raises(Corrupt, match="10000 bytes without the end of a line"):
        list(csv_blocks("a.csv", cast("BinaryIO", zeros), target, block_bytes=10_000))
    assert zeros.tell() == 10_000


def test_a_csv_file_whose_lines_end_in_cr_alone_is_read_whatever_its_size(tmp_path: Path) -> None:
    file = landed(tmp_path, "a.csv", "level,text\r" + "1,one\r" * 5_000)
    blocks = parse_blocks(file, LandingSpec(uri=file.uri, format="csv"), SCHEMA.remove(0), None, block_bytes=1_000)
    assert sum(block.rows.num_rows for block in blocks) == 5_000


def test_the_text_of_a_csv_file_has_no_name_on_the_disk_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = landed(tmp_path, "a.csv", "level,text\n" + "1,one\n" * 5_000)
    folder = tmp_path / "temporary"
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    spec = LandingSpec(uri=file.uri, format="csv")
    with pytest.raises(Unavailable, match=r"temporary.*TMPDIR"):
        parse_file(file, spec, SCHEMA.remove(0), None)
    folder.mkdir()
    blocks = parse_blocks(file, spec, SCHEMA.remove(0), None, block_bytes=1_000)
    assert next(blocks).rows.num_rows > 0
    assert list(folder.iterdir()) == []


# Whole files.


def test_a_gzipped_file_reads_as_plain_whatever_its_name(tmp_path: Path) -> None:
    data = gzip.compress(b'{"at": "2024-01-01"}\n' * 5)
    for name in ("a.ndjson.gz", "a.ndjson"):
        assert parsed(tmp_path, name, data, format="ndjson").rows.num_rows == 5


@pytest.mark.parametrize("name", ["cut", "flipped", "not gzip", "trailing garbage"])
def test_a_damaged_gzip_file_is_rejected_whole(tmp_path: Path, name: str) -> None:
    whole = gzip.compress(b"".join(b'{"at": "2024-01-01", "level": %d}\n' % i for i in range(5000)))
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0x55
    data = {
        "cut": whole[: len(whole) // 2],
        "flipped": bytes(flipped),
        "not gzip": b'{"at": "2024-01-01"}\n',
        "trailing garbage": whole + b"garbage",
    }[name]
    file = landed(tmp_path, "a.ndjson.gz", data)
    spec = LandingSpec(uri=file.uri, format="ndjson")
    *_, last = parse_blocks(file, spec, SCHEMA, "at", block_bytes=50_000)
    assert last.unreadable
    result = parse_file(file, spec, SCHEMA, "at")
    assert (result.rows.num_rows, [each.line for each in result.rejected]) == (0, [None])
    assert "under a new name" in result.rejected[0].reason


def test_a_file_that_is_gone_is_not_found(tmp_path: Path) -> None:
    file = landed(tmp_path, "a.ndjson", "{}")
    (tmp_path / "a.ndjson").unlink()
    with pytest.raises(NotFound):
        parse_file(file, LandingSpec(uri=file.uri, format="ndjson"), SCHEMA, "at")


# Nothing is lost or changed.


def test_a_csv_record_of_empty_fields_is_a_record_and_an_empty_line_is_none(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("at", pa.timestamp("us", tz="UTC")), ("level", pa.int32()), ("text", pa.string())])
    data = "at,level,text\n,,\n\n,1,\n"
    found = parsed(tmp_path, "a.csv", data, schema, format="csv")
    assert found.rows.to_pylist() == [
        {"at": None, "level": None, "text": None},
        {"at": None, "level": 1, "text": None},
    ]
    required = parsed(tmp_path, "a.csv", data, format="csv")
    assert reasons(required) == [(2, "column at: a value is required"), (3, "column at: a value is required")]
    single = parsed(tmp_path, "b.csv", "level\n1\n\n-\n", SCHEMA.remove(2).remove(0), format="csv", null_values=("-",))
    assert single.rows.to_pylist() == [{"level": 1}, {"level": None}]


def test_a_json_line_that_gives_a_field_twice_is_rejected_by_name(tmp_path: Path) -> None:
    data = '{"at": "2024-01-01", "level": 1, "level": 2}\n{"at": "2024-01-01", "level": 3}\n'
    found = parsed(tmp_path, "a.json", data, format="ndjson")
    assert reasons(found) == [(1, "the field level is given twice")]
    assert found.rows["level"].to_pylist() == [3]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_a_number_too_large_for_a_float_is_rejected_and_infinity_is_a_value(tmp_path: Path, kind: pa.DataType) -> None:
    schema = pa.schema([("f", kind)])
    found = parsed(tmp_path, "a.csv", "f\n1e400\n-1e400\n-inf\nInfinity\n1e30\n", schema, format="csv")
    readable = "column f: not a valid " + str(kind)
    assert reasons(found) == [(2, readable), (3, readable)]
    assert found.rows["f"].to_pylist()[:2] == [-math.inf, math.inf]


def test_a_time_beyond_the_year_9999_is_rejected_from_text_and_from_parquet(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("at", pa.timestamp("us", tz="UTC")), ("day", pa.date32())])
    data = "at,day\n9999-12-31 23:30:00-05,\n0000-12-31,\n9999-12-31 23:30:00,\n,0000-01-01\n"
    beyond = [(2, "at"), (3, "at"), (5, "day")]
    wanted = [(line, f"column {name}: not between the years 1 and 9999") for line, name in beyond]
    assert reasons(parsed(tmp_path, "a.csv", data, schema, format="csv")) == wanted
    ticks = pa.array([0, 253_402_300_800_000_000, None, -(2**62)], pa.int64())
    table = pa.table({"at": ticks.cast(pa.timestamp("us", tz="UTC"))})
    found = parsed(tmp_path, "a.parquet", parquet(table), schema, format="parquet")
    assert [(line, reason) for line, reason in reasons(found)] == [(line, wanted[0][1]) for line in (2, 4)]
    assert found.rows.num_rows == 2
    assert "10000-01-01" in found.rejected[0].text


@pytest.mark.parametrize("zone", ["UTC", None])
def test_landed_int96_timestamps_are_instants_or_local_times_as_the_table_has_them(zone: str | None) -> None:
    moments = [datetime(1, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 10, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)]
    wanted = pa.array(moments, pa.timestamp("us", "UTC")).cast(pa.timestamp("us", zone))
    table = pa.table({"at": pa.array(moments, pa.timestamp("us"))})
    sink = io.BytesIO()
    pq.write_table(table, sink, use_deprecated_int96_timestamps=True, store_schema=False)
    (found,) = parquet_blocks("a", io.BytesIO(sink.getvalue()), pa.schema([("at", wanted.type)]))
    assert found.rows.column("at").to_pylist() == wanted.to_pylist()
    assert not found.rejected


def test_instants_of_parquet_are_not_taken_for_local_times() -> None:
    data = parquet(pa.table({"at": pa.array([datetime(2026, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC"))}))
    with pytest.raises(Corrupt, match="Only one of these types has a time zone"):
        list(parquet_blocks("a", io.BytesIO(data), pa.schema([("at", pa.timestamp("us"))])))


SOME_LINES = b"".join(b'{"level": %d, "text": "%x"}\n' % (i, i * 2654435761 % 2**32) for i in range(2000))


def tar(data: bytes) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        info = tarfile.TarInfo("a.ndjson")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return sink.getvalue()


def zipped(data: bytes) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("a.ndjson", data)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (gzip.compress(bz2.compress(SOME_LINES)), "the file is compressed twice, with gzip and with bzip2"),
        (zipped(SOME_LINES), "the file is a zip archive"),
        (tar(SOME_LINES), "the file is a tar archive"),
        (gzip.compress(tar(SOME_LINES)), "the file is a tar archive"),
        (SOME_LINES.decode().encode("utf-16"), "the file is UTF-16 text"),
        (parquet(pa.table({"level": [1]})), "the file is a Parquet file"),
        (gzip.compress(parquet(pa.table({"level": [1]}))), "the file is a Parquet file"),
    ],
    ids=["bz2.gz", "zip", "tar", "tar.gz", "utf-16", "parquet", "parquet.gz"],
)
@pytest.mark.parametrize("form", ["ndjson", "csv"])
def test_a_file_that_is_no_text_is_one_rejection_that_names_what_it_is(
    tmp_path: Path, data: bytes, found: str, form: str
) -> None:
    result = parsed(tmp_path, "a.file", data, pa.schema([("level", pa.int32()), ("text", pa.string())]), format=form)
    [(line, reason)] = reasons(result)
    assert (line, result.rows.num_rows) == (None, 0)
    assert reason.startswith(f"the file cannot be used: {found}")


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress])
def test_a_compressed_parquet_file_is_one_rejection_that_says_so(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    result = parsed(tmp_path, "a.parquet.gz", compress(parquet(pa.table({"level": [1]}))), format="parquet")
    [(line, reason)] = reasons(result)
    assert line is None
    assert "the file is compressed with" in reason


@pytest.mark.parametrize("size", [1, 2**24])
def test_a_landed_file_expands_to_one_gibibyte_or_to_two_hundred_times_its_size(size: int) -> None:
    expansion = Expansion(size)
    expansion.add(max(2**30, 200 * size))
    with pytest.raises(Corrupt, match="the file expands to more than"):
        expansion.add(1)
