"""The row groups and requests of a lookup. A wrong bound in a file footer does not hide a row."""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage_core.base.errors import Corrupt
from storage_core.data.settings.table import TableConfig
from storage_core.split import metadata as row_groups
from storage_core.split.encode import plain_schema
from storage_core.split.metadata import with_checksum
from storage_core.split.read import open_split, share_of
from storage_core.split.writer import SplitHead, SplitWriter
from storage_core.store.contract import Overwrite
from storage_core.store.memory import MemoryStore
from tests.support.events import context
from tests.support.keyed_table import KeyedTable
from tidemark import Table

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), ("text", pa.string())])
ROWS_PER_GROUP = 3
ROWS = 15

_names = itertools.count()


def bounds(rows: pa.Table) -> dict[str, str]:
    of_groups = row_groups.Bounds("n")
    for start in range(0, rows.num_rows, row_groups.ROWS_PER_GROUP):
        of_groups.add(rows.slice(start, row_groups.ROWS_PER_GROUP))
    return of_groups.metadata()


def admitted(values: Sequence[object], kind: pa.DataType, wanted: Sequence[object]) -> list[int]:
    rows = pa.table([pa.array(values, kind)], names=["n"])
    metadata = with_checksum(bounds(rows))
    groups = -(-len(values) // row_groups.ROWS_PER_GROUP)
    return list(
        row_groups.admitting(
            row_groups.recorded_row_groups(metadata, "a", groups),
            groups,
            pa.table([pa.array(wanted, kind)], names=["n"]),
        )
    )


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_groups, "ROWS_PER_GROUP", ROWS_PER_GROUP)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(-20, 20), min_size=1, max_size=40),
    st.lists(st.integers(-25, 25), min_size=1, max_size=4),
    st.sampled_from([pa.int64(), pa.int16(), pa.float64(), pa.string(), pa.decimal128(9, 2)]),
    st.booleans(),
)
def test_every_row_group_that_holds_a_wanted_value_is_read(
    values: list[int], wanted: list[int], kind: pa.DataType, ascending: bool
) -> None:
    rows, requested = ([f"{each:03}" if kind == pa.string() else each for each in some] for some in (values, wanted))
    if ascending:
        rows = sorted(rows)
    holding = {place // ROWS_PER_GROUP for place, value in enumerate(rows) if value in requested}
    assert holding <= set(admitted(rows, kind, requested))


@pytest.mark.parametrize(
    ("kind", "values", "absent"),
    [
        (pa.int64(), [1, 3, 5, 7, 9, 11, 13, 15, 17], 8),
        (pa.string(), ["a", "c", "e", "g", "i", "k", "m", "o", "é"], "h"),
        (pa.date32(), [dt.date(1969, 12, day) for day in range(1, 18, 2)], dt.date(1969, 12, 8)),
        (
            pa.timestamp("us", "UTC"),
            [dt.datetime(1969, 12, day, tzinfo=dt.UTC) for day in range(1, 18, 2)],
            dt.datetime(1969, 12, 8, tzinfo=dt.UTC),
        ),
    ],
    ids=str,
)
def test_of_ascending_keys_only_the_row_groups_around_a_value_are_read(
    kind: pa.DataType, values: list[object], absent: object
) -> None:
    assert [admitted(values, kind, [value]) for value in values] == [[0]] * 3 + [[1]] * 3 + [[2]] * 3
    assert admitted(values, kind, [absent]) in ([], [1])
    assert admitted(values, kind, [values[0], values[-1]]) == [0, 2]


@pytest.mark.parametrize(("value", "expected"), [(math.nan, [2]), (-0.0, [0]), (5.0, [1]), (math.inf, [2])])
def test_floats_are_bounded_in_the_order_of_keys(value: float, expected: list[int]) -> None:
    assert admitted([0.0, 1.0, 2.0, 4.0, 5.0, 6.0, 8.0, math.inf, math.nan], pa.float64(), [value]) == expected


def test_bounds_of_another_column_leave_nothing_out() -> None:
    metadata = with_checksum(bounds(pa.table({"n": range(9)})))
    assert list(row_groups.admitting(row_groups.recorded_row_groups(metadata, "a", 3), 3, pa.table({"m": [1]}))) == [
        0,
        1,
        2,
    ]
    assert list(row_groups.admitting(row_groups.recorded_row_groups({}, "a", 3), 3, pa.table({"n": [1]}))) == [0, 1, 2]
    assert len(row_groups.admitting(row_groups.recorded_row_groups(metadata, "a", 4), 4, pa.table({"n": [1]}))) == 4


def test_damaged_bounds_are_corrupt() -> None:
    metadata = with_checksum(bounds(pa.table({"n": range(9)})))
    damaged = {name: text.replace('["0"', '["1"') for name, text in metadata.items()}
    assert damaged != metadata
    with pytest.raises(Corrupt, match="checksum"):
        row_groups.recorded_row_groups(damaged, "a", 3)


@pytest.fixture
def table() -> Table:
    """Make a keyed table of one split with even keys in five row groups."""
    made = Table.create(f"memory://row-groups-{next(_names)}", SCHEMA, primary_key="n")
    with made.writer() as writer:
        writer.put([{"n": 2 * number, "text": f"row {number}"} for number in range(ROWS)])
        writer.flush()
    assert KeyedTable(made.store).merge() is not None
    return made.refresh()


def test_a_flipped_bit_in_the_footer_never_hides_or_changes_the_row_of_a_key(table: Table) -> None:
    (add,) = table.snapshot.splits.values()
    data = table.store.get(add.path).data
    requested = [0, 4, 6, 10, 11, 18, 28, 90]
    expected = table.get_many(requested, consistency="snapshot")
    assert [row is not None for row in expected] == [True, True, True, True, False, True, True, False]
    for position in range(add.footerStartOffset or 0, len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        table.store.put(add.path, bytes(damaged), Overwrite())
        try:
            assert table.get_many(requested, consistency="snapshot") == expected, position
        except Corrupt:
            continue


@pytest.mark.parametrize(("keys", "groups"), [([13], 1), ([14], 1), ([5], 0), ([0, 2, 14, 28], 3)], ids=str)
def test_a_lookup_reads_only_row_groups_that_may_hold_a_key(keys: list[int], groups: int, table: Table) -> None:
    (add,) = table.snapshot.splits.values()
    wanted = pa.table({"n": pa.array(keys, pa.int64())})
    split = open_split(table.store, add, whole=False)
    assert split.row_groups == ROWS // ROWS_PER_GROUP
    admitted = row_groups.admitting(split.bounds, split.row_groups, wanted)
    assert len(admitted) == groups
    assert [rows.num_rows for rows in split.batches(["n"], groups=admitted)] == [ROWS_PER_GROUP] * len(admitted)
    found = table.get_many(keys, consistency="snapshot")
    assert found == [{"n": key, "text": f"row {key // 2}"} if key % 2 == 0 else None for key in keys]


def test_row_groups_that_lie_close_together_are_read_by_one_request(table: Table) -> None:
    (add,) = table.snapshot.splits.values()
    before = table.store.requests["get"]
    split = open_split(table.store, add, whole=False)
    assert split.read(["n"]).column("n").to_pylist() == list(range(0, 2 * ROWS, 2))
    assert split.read().num_rows == ROWS
    assert table.store.requests["get"] - before == 1


@pytest.mark.parametrize("is_dictionary", [False, True])
def test_rows_that_take_much_make_smaller_row_groups(*, is_dictionary: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_groups, "ROWS_PER_GROUP", 100)
    monkeypatch.setattr(row_groups, "GROUP_BYTES", 20_000)
    texts = pa.array([str(each % 7) * 1_000 if each >= 300 else str(each % 7) for each in range(600)])
    rows = pa.table({"n": range(600), "text": texts.dictionary_encode() if is_dictionary else texts})
    store = MemoryStore("groups")
    head = SplitHead(context=context(plain_schema(rows.schema), TableConfig()), window=None, now_ms=1)
    for size in (600, 50):  # rows per call of `add`
        writer = SplitWriter(head, f"split{size}", rows.schema, {}, rows=600)
        for start in range(0, 600, size):
            writer.add(rows.slice(start, size))
        split = open_split(store, writer.finish(store))
        groups = [each.num_rows for each in split.batches()]
        assert max(groups) <= 100
        assert (
            max(each.nbytes for each in split.batches(groups=range(split.row_groups // 2, split.row_groups))) < 60_000
        )
        assert split.read().column("text").to_pylist() == texts.to_pylist()
        if size == 50:
            assert groups[:3] == [100, 100, 100], "narrow rows make row groups of as many rows as may be"
            assert max(groups[3:]) < 25


def test_what_dictionaries_take_is_counted_as_texts() -> None:
    texts = pa.array(["a" * 1_000, None, "b", *["a" * 1_000] * 9])
    plain = pa.table({"text": texts, "n": range(12)})
    coded = plain.set_column(0, "text", texts.dictionary_encode())
    for rows in (plain, coded, coded.slice(2), pa.concat_tables([coded, coded.slice(5)])):
        decoded = sum(len(each or "") for each in rows.column("text").to_pylist())
        assert decoded <= row_groups.decoded_bytes(rows) <= decoded + 20 * rows.num_rows


@pytest.mark.parametrize("is_dictionary", [False, True])
def test_no_row_group_takes_far_more_than_others_where_rows_are_uneven(
    *, is_dictionary: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_groups, "ROWS_PER_GROUP", 100)
    monkeypatch.setattr(row_groups, "GROUP_BYTES", 20_000)
    texts = pa.array([*(str(each % 3) * 1_000 for each in range(100)), *[""] * 4_000])
    rows = pa.table({"n": range(4_100), "text": texts.dictionary_encode() if is_dictionary else texts})
    store = MemoryStore("uneven")
    head = SplitHead(context=context(plain_schema(rows.schema), TableConfig()), window=None, now_ms=1)
    writer = SplitWriter(head, "split", rows.schema, {}, rows=rows.num_rows)
    writer.add(rows)
    split = open_split(store, writer.finish(store))
    assert split.read().column("text").to_pylist() == texts.to_pylist()
    taken = [row_groups.decoded_bytes(each) for each in split.batches()]
    assert max(taken) <= 2 * row_groups.GROUP_BYTES
    assert len(taken) < 60


def test_texts_of_a_dictionary_are_weighed_as_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_groups, "ROWS_PER_GROUP", 10_000)
    store, weights = MemoryStore("weights"), {}
    for name, text in (("short", "a"), ("long", "a" * 200), ("too long to be told", "a" * 5_000), ("none", None)):
        rows = pa.table({"text": pa.array([text] * 50_000, pa.string())})
        head = SplitHead(context=context(rows.schema, TableConfig()), window=None, now_ms=1)
        writer = SplitWriter(head, name.split()[0], rows.schema, {}, rows=50_000)
        writer.add(rows.slice(0, 6_000))
        split = open_split(store, writer.finish(store))
        weights[name] = max(piece.memory_bytes for piece in split.pieces(None))
    assert weights["none"] < 2 * weights["short"] < 400_000
    assert 200 * 6_000 <= weights["long"] < 2_000_000
    assert weights["too long to be told"] >= row_groups.GROUP_BYTES


def test_the_share_of_columns_counts_texts_as_more_than_numbers() -> None:
    schema = pa.schema([*((f"n{each}", pa.int64()) for each in range(8)), ("body", pa.string())])
    assert share_of(schema.names, schema) == 1
    assert share_of(["body", "other"], schema) == 0.5 == share_of([f"n{each}" for each in range(8)], schema)
    assert share_of([], pa.schema([])) == 0
