"""Writes refuse times outside the years 1 to 9999. Reads accept these times in files of early 0.1 releases."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.commands import output
from storage_core.base.errors import InvalidInput
from storage_core.data.rows.times import as_text, beyond, within_calendar
from storage_core.log.snapshot import Snapshot
from storage_core.split.context import context_of
from storage_core.split.writer import sort_and_write
from tidemark import Table, expr

INSTANT = pa.timestamp("us", "UTC")
YEAR_10000 = 253_402_300_800_000_000
SCHEMA = pa.schema([pa.field("ts", INSTANT, nullable=False), ("n", pa.int64())])


def instants(*ticks: int | None) -> pa.Table:
    return pa.table({"ts": pa.array(ticks, pa.int64()).cast(INSTANT), "n": list(range(len(ticks)))})


@pytest.mark.parametrize(
    ("kind", "ticks", "outside"),
    [
        (INSTANT, [-62_135_596_800_000_000, YEAR_10000 - 1, None], None),
        (INSTANT, [-62_135_596_800_000_001, YEAR_10000, None, 0], [True, True, None, False]),
        (pa.date32(), [-719_162, 2_932_896], None),
        (pa.date32(), [-719_163, 2_932_897, 0], [True, True, False]),
    ],
)
def test_the_calendar_goes_from_year_1_to_year_9999(
    kind: pa.DataType, ticks: list[int | None], outside: list[bool | None] | None
) -> None:
    column = pa.chunked_array([pa.array(ticks, pa.int64() if kind == INSTANT else pa.int32()).cast(kind)])
    found = beyond(column)
    assert (None if found is None else found.to_pylist()) == outside


def test_a_time_beyond_the_calendar_is_refused_with_column_and_row(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"column 'ts', row 1: 10000-01-01 .* is not between the years 1 and 9999"):
        within_calendar(instants(0, YEAR_10000))
    table = Table.create(str(tmp_path / "t"), SCHEMA, time_column="ts", window="1h")
    with pytest.raises(InvalidInput, match="column 'ts', row 0"):
        table.append(instants(2**62))
    assert table.version == 0
    keyed = Table.create(str(tmp_path / "k"), SCHEMA, primary_key="n")
    with keyed.writer() as writer, pytest.raises(InvalidInput, match="column 'ts', row 0"):
        writer.put(instants(YEAR_10000))


def written_by_an_older_release(table: Table, rows: pa.Table) -> Snapshot:
    adds = sort_and_write(table.store, rows, context=context_of(table.snapshot), ids=table.log.ids, now_ms=0)
    return table.log.commit(table.snapshot, adds, operation="APPEND").snapshot


def test_rows_beyond_the_calendar_and_in_its_last_window_answer_every_query(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = Table.create(str(tmp_path / "t"), SCHEMA, time_column="ts", window="1h")
    written_by_an_older_release(table, instants(YEAR_10000, 2**62, -(2**62)))
    table.refresh()
    last = dt.datetime(9999, 12, 31, 23, 30, tzinfo=dt.UTC)
    table.append([{"ts": last, "n": 7}])
    table.append([{"ts": dt.datetime(1, 1, 1, 0, 30, tzinfo=dt.UTC), "n": 8}])
    for condition, found in [
        ("ts > '2020-01-01'", {0, 1, 7}),
        ("ts < '9999-12-31 23:59:59-05'", {0, 2, 7, 8}),
        ("ts >= TIMESTAMPTZ '0001-01-01 00:00:00+05'", {0, 1, 7, 8}),
        ("ts = '9999-12-31 23:30:00Z'", {7}),
        ("ts is null", set()),
    ]:
        assert set(table.sql(f"select n from t where {condition}")["n"].to_pylist()) == found, condition
        assert set(table.scan(filter=condition).to_arrow()["n"].to_pylist()) == found, condition
    output.rows(table.sql("select * from t order by n"), as_json=True)
    assert '{"ts": "10000-01-01 00:00:00.000000Z", "n": 0}' in capsys.readouterr().out
    assert output.window(YEAR_10000 // 10**6) == "253402300800 s"


def test_a_keyed_row_beyond_the_calendar_is_found_with_its_time_as_text(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "k"), SCHEMA, primary_key="n")
    written_by_an_older_release(table, instants(YEAR_10000))
    assert table.refresh().get(0) == {"ts": "10000-01-01 00:00:00.000000Z", "n": 0}


def test_text_stands_only_where_python_has_no_time() -> None:
    assert as_text(instants(0)).equals(instants(0))
    assert as_text(instants(0, YEAR_10000))["ts"].to_pylist()[0] == "1970-01-01 00:00:00.000000Z"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("290000-01-01 12:34:56.000789", "290000-01-01 12:34:56.000789"),
        ("10000-01-01", "10000-01-01 00:00:00"),
        ("0044-03-15 (BC)", "-0043-03-15 00:00:00"),
        ("0001-12-31 (BC) 23:59:59", "0000-12-31 23:59:59"),
    ],
)
def test_a_refusal_names_the_right_year(tmp_path: Path, text: str, shown: str) -> None:
    schema = pa.schema([("at", pa.timestamp("us")), ("on", pa.date32()), ("all", pa.list_(pa.timestamp("us")))])
    table = Table.create(tmp_path / "t", schema)
    table.append([{"at": dt.datetime(2026, 1, 1)}])  # noqa: DTZ001  # which the column is
    for column, kind, wanted in [("at", "timestamp", shown), ("on", "date", shown[: shown.index(" ")])]:
        message = rf"column '{column}', row 0: {wanted} is not between the years 1 and 9999"
        with pytest.raises(InvalidInput, match=message):
            table.update({column: expr(f"'{text}'::timestamp::{kind}")}, "true")
        for value in (f"'{text}'::timestamp::{kind}", f"['{text}'::timestamp::{kind}]", f"map{{1: '{text}'::{kind}}}"):
            answer = table.sql(f"select {value} as x from t")
            for read in (answer.to_pylist, answer.to_pydict):
                with pytest.raises(InvalidInput, match=f"column 'x': {wanted} is not between the years 1 and 9999"):
                    read()
    with pytest.raises(InvalidInput, match="column 'all', row 0: a value inside is not between the years"):
        table.update({"all": expr(f"['{text}'::timestamp]")}, "true")


@pytest.mark.parametrize("kind", ["timestamp_s", "timestamp_ms", "timestamptz"])
def test_a_time_of_another_unit_beyond_the_calendar_is_refused_in_python(tmp_path: Path, kind: str) -> None:
    answer = Table.create(tmp_path / "t", SCHEMA).sql(f"select '290000-01-01 00:00:01'::{kind} as x")
    assert answer.to_arrow().num_rows == 1
    with pytest.raises(InvalidInput, match=r"column 'x': 290000-01-01 00:00:01Z? is not between the years 1 and 9999"):
        answer.to_pylist()


@pytest.mark.parametrize("form", ["{}", "[{}]", "{{'a': {}}}", "map{{1: {}}}"])
@pytest.mark.parametrize("kind", ["time", "time_ns"])
def test_an_answer_has_no_time_of_24_00(tmp_path: Path, form: str, kind: str) -> None:
    table = Table.create(tmp_path / "t", SCHEMA)
    last, beyond_it = (form.format(f"'{each}'::{kind}") for each in ("23:59:59.999999", "24:00:00"))
    table.sql(f"select {last} as x").to_arrow().validate(full=True)
    with pytest.raises(InvalidInput, match=r"column 'x': 24:00:00 is not a time of a day. Cast the column"):
        table.sql(f"select {beyond_it} as x").to_pylist()
