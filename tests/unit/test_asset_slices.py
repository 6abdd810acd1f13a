"""The conditions for a partition of an asset select exactly the rows of this partition."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from dagster import (
    DailyPartitionsDefinition,
    HourlyPartitionsDefinition,
    MonthlyPartitionsDefinition,
    MultiPartitionKey,
    MultiPartitionsDefinition,
    StaticPartitionsDefinition,
)

import tidemark as tm
from assets.io_manager.manager import Columns, Partitions, Shape, condition_of
from storage_core.base.errors import InvalidInput
from storage_core.store import resolve

pytestmark = pytest.mark.dagster

SCHEMA = pa.schema(
    [
        ("at", pa.timestamp("us", "UTC")),
        ("plain", pa.timestamp("us")),
        ("day", pa.date32()),
        ("country", pa.string()),
        ("n", pa.int64()),
    ]
)
DAYS = DailyPartitionsDefinition(start_date="2026-03-01")
VIENNA = DailyPartitionsDefinition(start_date="2026-03-01", timezone="Europe/Vienna")
COUNTRIES = StaticPartitionsDefinition(["at", "de"])


@pytest.fixture(scope="module")
def table() -> Iterator[tm.Table]:
    """Make a row per hour for five days around a change to summer time. Row 0 is the first hour of 27 March."""
    hours = [dt.datetime(2026, 3, 27, tzinfo=dt.UTC) + dt.timedelta(hours=number) for number in range(5 * 24)]
    columns = {
        "at": hours,
        "plain": [each.replace(tzinfo=None) for each in hours],
        "day": [each.date() for each in hours],
        "country": ["de" if number % 2 else "at" for number in range(len(hours))],
        "n": [*range(len(hours))],
    }
    made = tm.Table.create("memory://slices", SCHEMA, time_column="at", window="1h")
    made.append(pa.table(columns, schema=SCHEMA))
    yield made
    resolve._MEMORY_STORES.pop("slices")  # the process lives longer than the tests


def numbers(table: tm.Table, definition: Partitions, *keys: str, columns: Columns = None) -> list[Any]:
    condition = condition_of(Shape.of(table), definition, keys, columns)
    found: list[Any] = table.scan(["n"], condition).to_arrow()["n"].to_pylist()
    return sorted(found)


def test_a_day_of_a_time_zone_is_as_long_as_it_is_there(table: tm.Table) -> None:
    assert numbers(table, DAYS, "2026-03-29") == [*range(48, 72)]
    # In UTC, the day is from 23:00 to 22:00, because summer time begins.
    assert numbers(table, VIENNA, "2026-03-29") == [*range(47, 70)]


def test_times_without_a_zone_are_those_of_utc_and_dates_those_of_the_partition(table: tm.Table) -> None:
    assert numbers(table, VIENNA, "2026-03-29", columns="plain") == [*range(47, 70)]
    assert numbers(table, VIENNA, "2026-03-29", columns="day") == [*range(48, 72)]


def test_partitions_that_are_neighbours_are_one_range(table: tm.Table) -> None:
    shape = Shape.of(table)
    days = [f"2026-03-{day:02}" for day in range(1, 31)]
    together = condition_of(shape, DAYS, [*reversed(days)], None)
    apart = condition_of(shape, DAYS, [days[0], *days[2:]], None)
    assert [str(each.expression).count(">=") for each in (together, apart)] == [1, 2]
    assert numbers(table, DAYS, "2026-03-27", "2026-03-29") == [*range(24), *range(48, 72)]
    months = MonthlyPartitionsDefinition(start_date="2026-01-01")
    assert numbers(table, months, "2026-03-01") == [*range(120)]


def test_a_partition_reads_the_splits_of_its_windows_and_no_others(table: tm.Table) -> None:
    condition = condition_of(Shape.of(table), DAYS, ["2026-03-29"], None)
    planned = table.scan(["n"], condition).explain().tables[0]
    assert (len(planned.splits), planned.live_splits) == (24, 120)


def test_no_partition_is_no_row(table: tm.Table) -> None:
    for definition, columns in ((DAYS, None), (COUNTRIES, "country")):
        assert numbers(table, definition, columns=columns) == []


def test_dimensions_are_columns_by_their_names_or_as_they_are_called(table: tm.Table) -> None:
    both = MultiPartitionsDefinition({"date": DAYS, "country": COUNTRIES})
    keys = [MultiPartitionKey({"date": f"2026-03-{day}", "country": name}) for day in (27, 28) for name in ("at", "de")]
    assert numbers(table, both, *keys) == [*range(48)]
    assert numbers(table, both, *keys[:3]) == sorted([*range(24), *range(24, 48, 2)])
    assert numbers(table, both, "de|2026-03-27", columns={"date": "day"}) == [*range(1, 24, 2)]
    values = MultiPartitionsDefinition({"land": COUNTRIES, "n": StaticPartitionsDefinition(["1", "2"])})
    every = [MultiPartitionKey({"land": land, "n": n}) for land in ("at", "de") for n in ("1", "2")]
    assert numbers(table, values, *every, columns={"land": "country"}) == [1, 2]


@pytest.mark.parametrize(
    ("definition", "key", "columns", "found"),
    [
        (DAYS, "2026-03-29", "country", "column 'country' is string, which is not a time"),
        (DAYS, "2026-03-29", "nothing", "the partition has no known column (found 'nothing')"),
        (HourlyPartitionsDefinition(start_date="2026-03-01-00:00"), "2026-03-29-01:00", "day", "not the start of"),
        (MultiPartitionsDefinition({"a": DAYS, "b": VIENNA}), "2026-03-29|2026-03-29", None, "but a table has only"),
        (COUNTRIES, "at", "at", "column 'at': 'at' is not a value of timestamp[us, tz=UTC]"),
        (COUNTRIES, "at", "n", "column 'n': 'at' is not a value of int64"),
        (COUNTRIES, "01", "n", "column 'n': '01' is not the standard form of the value. Write 1"),
        (COUNTRIES, "0x1", "n", "column 'n': '0x1' is "),
        (COUNTRIES, "20260329", "day", "column 'day': '20260329' is "),
    ],
)  # fmt: skip
def test_what_selects_no_rows_is_refused(
    table: tm.Table, definition: Partitions, key: str, columns: Columns, found: str
) -> None:
    with pytest.raises(InvalidInput) as raised:
        condition_of(Shape.of(table), definition, [key], columns)
    assert found in str(raised.value)
