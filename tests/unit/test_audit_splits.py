"""Every invariant of one split (TW-1, TW-2 and SS) has test files that really violate it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_core.base.errors import CommitConflict, InvalidInput
from storage_core.data.rows.schema import to_schema_string
from storage_core.data.rows.sort_order import bind
from storage_core.log.actions import Add, Metadata
from storage_core.log.deletion_vector import inline
from storage_core.log.log import TransactionLog
from storage_core.maintain.audit import audit
from storage_core.store.memory import MemoryStore
from storage_core.write.append import append as lower_append
from tests.support.events import CONFIG, SCHEMA, TABLE_ID, events, snapshot
from tests.support.ids import SeededIds
from tests.support.invalid_values import text_of
from tests.unit.audited_events import FIRST, LATER, OTHER_ORDER, Events, lying, sorted_rows
from tidemark import Table


@pytest.fixture
def table() -> Events:
    return Events()


@pytest.fixture
def two(table: Events) -> list[Add]:
    return table.append_two()


def test_tw_1_a_row_outside_the_window_of_its_split(table: Events) -> None:
    rows = sorted_rows(events([*FIRST, *LATER]), table.context)
    table.add(lying(table, rows))
    assert table.broken() == {"TW-1"}
    with pytest.raises(InvalidInput, match="lie outside the window"):
        table.write(rows)


def test_tw_1_a_split_without_a_window_in_a_table_of_windows(table: Events) -> None:
    table.add(lying(table, events(FIRST), windowStart=None, windowSeconds=None))
    assert table.broken() == {"TW-1"}


@pytest.mark.parametrize("seconds", [420, 7200])
def test_tw_2_a_window_that_does_not_divide_the_hour(table: Events, tmp_path: Path, seconds: int) -> None:
    table.add(lying(table, events(FIRST), windowSeconds=seconds))
    assert table.broken() == {"TW-2"}
    with pytest.raises(InvalidInput, match="window"):
        Table.create(str(tmp_path / "t"), SCHEMA, time_column="at", window=seconds)


def test_ss_1_rows_that_are_not_sorted_as_recorded(table: Events) -> None:
    table.add(table.write(events(FIRST).take(pa.array([1, 0]))))
    assert table.broken() == {"SS-1"}


def test_ss_2_nulls_that_are_at_the_other_end(table: Events) -> None:
    null_first = [{**FIRST[0], "host": None}, {**FIRST[0], "host": "a"}]
    table.add(table.write(events(null_first)))
    (found,) = table.audit().violations
    assert (found.invariant, "nulls are not last" in found.message) == ("SS-2", True)


def test_ss_3_values_of_a_sort_column_that_the_split_lacks(table: Events) -> None:
    rows = events(FIRST).drop_columns(["host"])
    table.add(lying(table, rows))
    assert table.broken() == set()
    key = '["api","ghost","1970-01-01T00:00:10.000000Z"]'
    table.add(lying(table, rows, minRowKey=key))
    (found,) = table.audit().violations
    assert found.invariant == "SS-3"
    assert "no column 'host', so the column is null. The log contains: 'ghost' in the first row key" in found.message


def test_ss_4_a_split_that_is_sorted_by_what_its_table_was_not(table: Events) -> None:
    other = replace(table.context, order=bind(replace(CONFIG, sort_schema=OTHER_ORDER), SCHEMA))
    table.append(FIRST, other)
    assert table.broken() == {"SS-4"}


def test_ss_4_a_merge_that_sorted_old_splits_anew(table: Events, two: list[Add]) -> None:
    table.settle(config=replace(CONFIG, sort_schema=OTHER_ORDER))
    table.replace(two, [table.output(table.merged(two), two)])
    assert table.broken() == {"SS-4", "MC-3"}


def test_ss_4_a_log_that_gives_an_old_split_the_new_sort_schema(table: Events, two: list[Add]) -> None:
    table.settle(config=replace(CONFIG, sort_schema=OTHER_ORDER))
    relabelled = replace(two[0], sortSchema=OTHER_ORDER)
    assert "SS-4" in {each.invariant for each in audit(table.store, snapshot([relabelled])).violations}
    with pytest.raises(InvalidInput, match="An add can change only its deletion vector"):
        table.add(replace(relabelled, deletionVector=inline([0])))
    with pytest.raises(CommitConflict, match="live already"):
        table.add(relabelled)


@pytest.mark.parametrize(
    "lies",
    [
        {
            "maxValues": {
                "at": "1970-01-01T00:00:20.000000Z",
                "service": "aaa",
                "host": "b",
                "count": "2",
                "value": "0.5",
            }
        },
        {"nullCounts": {"at": 0, "service": 0, "host": 0, "count": 0, "value": 0}},
        {"columnRegexes": {"service": "^api$", "host": "^(a|b)$"}},
        {"minRowKey": '["web","b","1970-01-01T00:00:20.000000Z"]'},
        {"maxRowKey": "not even a list"},
        {"minValues": {"at": "1970-01-01T00:00:10.000000Z", "ghost": "1"}},
        {"native": bind(replace(CONFIG, sort_schema=OTHER_ORDER), SCHEMA)},
    ],
    ids=["maximum", "nulls", "expression", "first key", "last key", "ghost column", "native order"],
)
def test_ss_5_what_file_and_log_say_alike_and_the_rows_do_not(table: Events, lies: dict[str, Any]) -> None:
    table.add(lying(table, events(FIRST)))
    assert table.broken() == set()
    table.add(lying(table, events(FIRST), **lies))
    assert table.broken() == {"SS-5"}


def test_ss_5_a_file_that_is_not_what_the_log_says(table: Events, two: list[Add]) -> None:
    renumbered = replace(two[0], numMergeOps=7)
    assert {each.invariant for each in audit(table.store, snapshot([renumbered])).violations} == {"SS-5"}
    table.store.delete([two[0].path])
    (found,) = table.audit().violations
    assert (found.invariant, found.path) == ("SS-5", two[0].path)


def test_ss_6_a_value_that_no_reader_takes() -> None:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    log = TransactionLog(MemoryStore("texts"), ids=SeededIds(1))
    log.create(Metadata(id=TABLE_ID, schemaString=to_schema_string(schema)))
    rows = pa.table({"id": [1, 2, 3], "text": text_of([b"a", b"m\xff", b"z"])})
    lower_append(log, log.snapshot(), [rows])
    (found,) = audit(log.store, log.snapshot()).violations
    assert found.invariant == "SS-6"
    assert "column 'text': the text is not valid UTF-8 in 1 row, first" in found.message


def test_columns_of_several_row_groups_are_judged_as_one() -> None:
    table = Events()
    rows = [
        {"at": number % 3600, "service": f"s{number % 7}", "host": None, "count": number, "value": float(number)}
        for number in range(70_000)
    ]
    table.append(rows)
    assert table.audit().violations == ()
    (add,) = table.live
    backwards = table.merged([add]).take(pa.array([*range(65_536, 70_000), *range(65_536)]))
    table.add(table.write(backwards))
    assert table.broken() == {"SS-1"}  # each row group is sorted, but the file is not
