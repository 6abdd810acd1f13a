"""For all types and values, a batch in columns is stored as the same text as rows that are written one by one."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.base.errors import InvalidInput
from storage_core.data.formats.raw_fields import encode_fields, encode_rows
from storage_core.store.memory import MemoryStore
from storage_core.write.raw_log.history import union
from storage_core.write.raw_log.writer import RawLog
from tests.support.clock import ManualClock
from tests.support.ids import SeededIds
from tests.support.scale import scaled

UTC = dt.UTC
TEXTS = ["", "a", "é\U0001f600\u2028", 'say "hi"', "a\\b", "\n\t\x00\x1f\x7f", "{}", "$x"]
FLOATS = [0.0, -0.0, 1.0, 1e-7, 1e16, 1e22, 0.1, 5e-324, 1.7976931348623157e308, 123456789012345680.0]
MOMENTS = [
    dt.datetime(1, 1, 1),  # noqa: DTZ001  # a column without a zone
    dt.datetime(999, 12, 31, 23, 59, 59),  # noqa: DTZ001
    dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),  # noqa: DTZ001
    dt.datetime(2024, 2, 29, 1, 2, 3, 40),  # noqa: DTZ001
    dt.datetime(9999, 12, 31, 23, 59, 59, 999_999),  # noqa: DTZ001
]
ZONED = [each.replace(tzinfo=UTC) for each in MOMENTS[1:-1]]
COLUMNS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False]),
    (pa.int8(), [-128, 127]),
    (pa.int64(), [-(2**63), 2**63 - 1, 0]),
    (pa.uint32(), [2**32 - 1]),
    (pa.uint64(), [2**63 - 1]),
    (pa.float64(), FLOATS),
    (pa.float64(), [1.5, float("nan"), float("inf"), float("-inf")]),
    (pa.float32(), [0.1, 1e-7, 3.4028234663852886e38]),
    (pa.string(), TEXTS),
    (pa.string(), ["plain", "é"]),
    (pa.large_string(), TEXTS),
    (pa.string_view(), ["plain"]),
    (pa.dictionary(pa.int8(), pa.string()), ["a", "b"]),
    (pa.binary(), [b"", b"\x00\xff"]),
    (pa.decimal128(20, 10), [Decimal(0), Decimal("-1.5"), Decimal("1e-10")]),
    (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    (pa.date32(), [dt.date(2024, 2, 29), dt.date(2, 1, 1)]),
    (pa.timestamp("us"), MOMENTS),
    (pa.timestamp("us"), MOMENTS[1:-1]),
    (pa.timestamp("us", "UTC"), ZONED),
    (pa.timestamp("us", "Europe/Berlin"), ZONED),
    (pa.timestamp("ms", "+05:30"), [dt.datetime(2024, 1, 1, 0, 0, 0, 1000, UTC), dt.datetime(2024, 1, 1, tzinfo=UTC)]),
    (pa.timestamp("s"), [dt.datetime(2024, 1, 1)]),  # noqa: DTZ001
    (pa.list_(pa.int64()), [[], [1, None]]),
    (pa.map_(pa.string(), pa.int64()), [[("a", 1)], []]),
    (pa.struct([("$a", pa.string()), ("t", pa.timestamp("us"))]), [{"$a": 'q"', "t": MOMENTS[2]}]),
    (pa.null(), []),
]


def _one_by_one(rows: pa.Table) -> list[str]:
    return [encode_fields(each) for each in rows.to_pylist()]


def _table(columns: Iterable[tuple[str, pa.DataType, list[Any]]]) -> pa.Table:
    return pa.Table.from_pydict({name: pa.array(values, type_) for name, type_, values in columns})


@pytest.mark.parametrize(("type_", "values"), COLUMNS, ids=[str(type_) for type_, _ in COLUMNS])
def test_a_column_of_every_type_is_written_as_its_values_are(type_: pa.DataType, values: list[Any]) -> None:
    rows = _table([('$na"me', type_, [*values, None]), ("other", pa.int64(), [1] * (len(values) + 1))])
    assert encode_rows(rows) == _one_by_one(rows)
    assert encode_rows(rows.slice(1)) == _one_by_one(rows.slice(1))


@given(st.data(), st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=4), st.integers(1, 5))
@settings(max_examples=scaled(60))
def test_any_columns_together_are_written_as_their_rows_are(
    data: st.DataObject, columns: list[tuple[pa.DataType, list[Any]]], count: int
) -> None:
    values = {pa.float64(): st.floats(), pa.int64(): st.integers(-(2**63), 2**63 - 1), pa.string(): st.text()}
    rows = _table(
        (f"c{index}", type_, data.draw(_lists(values.get(type_, st.sampled_from([*given, None])), count)))
        for index, (type_, given) in enumerate(columns)
    )
    assert encode_rows(rows) == _one_by_one(rows)


def _lists(values: st.SearchStrategy[Any], count: int) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.none() | values, min_size=count, max_size=count)


@pytest.mark.parametrize("key", [None, "id", "name"])
def test_arrow_data_is_appended_as_its_rows_are(key: str | None) -> None:
    rows = _table([("id", pa.int64(), [1, 2, 3]), ("name", pa.string(), ["a", 'b"', "é"])])
    found = []
    for given_rows in (rows, rows.combine_chunks().to_batches()[0], rows.to_pylist()):
        store = MemoryStore("raw")
        with RawLog([store], clock=ManualClock(), ids=SeededIds(1)) as log:
            log.append("events", given_rows, operation="patch", key=key)
        found.append([store.get(each).data for ref in union([store]).chunks for each in ref.keys])
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 1


@pytest.mark.parametrize(
    ("rows", "table", "key"),
    [
        (_table([("n", pa.uint64(), [1, 2**64 - 1])]), "events", None),
        (_table([("n", pa.time64("us"), [1])]), "events", None),
        (_table([("n", pa.int64(), [1])]), "No Name", None),
        (_table([("n", pa.int64(), [1, None])]), "events", "n"),
        (_table([("n", pa.bool_(), [True])]), "events", "n"),
        (_table([("n", pa.int64(), [1])]), "events", "m"),
        (_table([("n", pa.string(), ["x" * (8 * 2**20)])]), "events", None),
    ],
    ids=["beyond 64 bits", "no form", "no table", "a null key", "no key type", "no such key", "too large"],
)
def test_arrow_data_is_refused_in_the_words_of_its_rows(rows: pa.Table, table: str, key: str | None) -> None:
    said = []
    for given_rows in (rows, rows.to_pylist()):
        store = MemoryStore("raw")
        with RawLog([store], clock=ManualClock(), ids=SeededIds(1)) as log, pytest.raises(InvalidInput) as refused:
            log.append(table, given_rows, key=key)
        said.append(str(refused.value))
        assert not [*store.list("live/")]
    assert said[0] == said[1]


_NO_TEXT = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])


@pytest.mark.parametrize(
    "unwritable",
    [
        pa.array([569_000_000_000_000_000], pa.timestamp("us")),
        pa.array([569_000_000_000], pa.timestamp("s", "UTC")),
        pa.array([10_000_000], pa.int32()).cast(pa.date32()),
        pa.array([[10_000_000]], pa.list_(pa.int32())).cast(pa.list_(pa.date32())),
        pa.array([0], pa.timestamp("us", "Mars/X")),
        pa.array([0], pa.timestamp("ns", "Mars/X")),
        _NO_TEXT,
        _NO_TEXT.cast(pa.large_string()),
    ],
    ids=["moment", "instant", "date", "dates", "zone", "zone of nanoseconds", "text", "large text"],
)
@pytest.mark.parametrize("batch", [False, True], ids=["table", "batch"])
def test_an_arrow_value_that_no_reader_could_write_down_is_refused_with_its_row(
    unwritable: pa.Array, batch: bool
) -> None:
    column = pa.concat_arrays([pa.nulls(2, unwritable.type), unwritable])
    rows = pa.Table.from_arrays([pa.array([1, 2, 3]), column], names=["n", "bad"])
    store = MemoryStore("raw")
    with RawLog([store], clock=ManualClock(), ids=SeededIds(1)) as log:
        with pytest.raises(
            InvalidInput, match=r"record 2: field 'bad': .*Nothing was appended|column 'bad', row 2: "
        ) as refused:
            log.append("events", rows.to_batches()[0] if batch else rows)
        assert (refused.value.context["row"], refused.value.context["column"]) == (2, "bad")
        assert not [*store.list("live/")]
        log.append("events", rows.slice(0, 2))


@pytest.mark.parametrize("count", [0, 1])
def test_arrow_data_with_two_columns_of_one_name_are_refused(count: int) -> None:
    column = pa.array([1] * count, pa.int64())
    rows = pa.Table.from_arrays([column, column, column], names=["n", "twice", "twice"])
    store = MemoryStore("raw")
    with RawLog([store], clock=ManualClock(), ids=SeededIds(1)) as log:
        for given_rows in (rows, pa.RecordBatch.from_arrays([column, column, column], names=rows.column_names)):
            with pytest.raises(InvalidInput, match=r"\['twice'\] occur more than once. Pass each column once"):
                log.append("events", given_rows)
    assert not [*store.list("live/")]
