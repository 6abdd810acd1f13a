"""Reads with and without pruning return the same rows, for every type, comparison and form of the condition."""

from __future__ import annotations

import datetime as dt
import math
import operator
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import compress
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.base.clock import SystemClock
from storage_core.data.rows import statistics
from storage_core.data.rows.sort_order import bind
from storage_core.data.rows.windows import value_schema
from storage_core.data.settings.layout import PartitionField, partition_field, partition_fields
from storage_core.data.settings.table import TableConfig
from storage_core.engine.session import session
from storage_core.engine.statement import parse
from storage_core.log.actions import Add
from storage_core.log.checkpoint_writing import bounds_of
from storage_core.log.split_columns import table_of
from storage_core.read.predicate import Filter, Predicate, col
from storage_core.read.pruning import manifest_filter, prune_table
from storage_core.read.sql import where_of
from storage_core.read.sql_predicate import from_sql
from storage_core.split.context import SplitContext
from storage_core.split.read import conform_split, read_split
from storage_core.split.writer import sort_and_write
from storage_core.store.memory import MemoryStore
from storage_core.table import Table
from tests.support.ids import SeededIds
from tests.support.scale import scaled

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
HOUR = 3600
MOMENTS = [EPOCH + dt.timedelta(microseconds=each) for each in (-3_700_000_000, -1, 0, 1, 1_800_000_000, 3_600_000_000)]
# The type of each column. Two implementations can order, round or encode these values differently.
POOLS: dict[str, tuple[pa.DataType, Sequence[Any]]] = {
    "n": (pa.int64(), [-(2**63), -(2**53) - 1, -3, -1, 0, 1, 2, 2**53, 2**53 + 1, 2**63 - 1]),
    "i": (pa.int32(), [-(2**31), -1, 0, 1, 16777217, 2**31 - 1]),
    "f": (pa.float64(), [-math.inf, -1.5, -0.0, 0.0, 0.1, 1.5, 123456789.12345679, 1e300, math.inf, math.nan]),
    "g": (pa.float32(), [-math.inf, -1.5, -0.0, 0.0, 0.10000000149011612, 1.5, 16777216.0, math.inf, math.nan]),
    "s": (pa.string(), ["", "10", "9", "a" * 32, "a" * 33 + "b", "\ue000", "\uffff", "\U00010000", "\U0010ffff" * 34]),
    "d": (pa.decimal128(9, 2), [Decimal("-1.10"), Decimal("0.00"), Decimal("1.05"), Decimal("9999999.99")]),
    "w": (pa.decimal128(38, 10), [Decimal("-1.1"), Decimal("0.1"), Decimal("123456789012345678.9012345678")]),
    "z": (pa.decimal128(38, 0), [Decimal(-3), Decimal(0), Decimal(2**53 + 1), Decimal(2**100 + 2**47 + 1)]),
    "day": (pa.date32(), [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(9999, 12, 31)]),
    "moment": (pa.timestamp("us", "UTC"), MOMENTS),
    "naive": (pa.timestamp("us"), [each.replace(tzinfo=None) for each in MOMENTS]),
    "b": (pa.bool_(), [False, True]),
    "pair": (pa.struct({"n": pa.int64()}), [{"n": -5}, {"n": 5}]),
}
SCHEMA = pa.schema({name: kind for name, (kind, _) in POOLS.items()})
PARTITIONS = {"part_s": "s", "part_n": "n", "part_d": "d", "part_day": "day", "part_f": "f"}
WIDE = pa.schema([*SCHEMA, *(pa.field(name, SCHEMA.field(alike).type) for name, alike in PARTITIONS.items())])
NUMBERS = [*POOLS["n"][1], *POOLS["f"][1], Decimal("0.1"), Decimal("1.005"), Decimal("123456789.12345679012345")]
FAMILIES = {
    **dict.fromkeys(("n", "i", "f", "g", "w"), NUMBERS),
    "z": NUMBERS[:-1],  # DuckDB does not support decimals with 31 digits before the point and 14 after the point
    "d": [0, 1, 1.05, Decimal("1.050"), Decimal("1.0500001"), math.inf, math.nan],
    "day": MOMENTS,
    "moment": [dt.date(1970, 1, 1), MOMENTS[4].astimezone(dt.timezone(dt.timedelta(hours=2)))],
    "naive": [dt.date(1970, 1, 1), MOMENTS[2]],
}
TEXTS = [
    "n > 1",
    "1 < n and f is not null",
    "moment >= timestamp '1970-01-01 00:30:00' and moment < '1970-01-01T01:00:00Z'",
    "naive <= '1970-01-01 02:00:00+02:00'",
    "naive <= timestamptz '1970-01-01 02:00:00+02:00'",
    "moment >= timestamp '1970-01-01 02:00:00+02:00'",
    "moment >= '1970-01-01 02:00:00+02:00'",
    "moment < '1969-12-31 23:00:00-01:00'",
    "moment > timestamp '1969-12-31 23:00:00-01:00'",
    "day between date '1970-01-01' and date '1970-01-02'",
    "day = '1970-01-01 12:00:00'",
    "s in ('10', '9') or not (d > 1.05)",
    "s > 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'",
    "s <> '￿' and s >= '￿'",
    "n not in (0, 1)",
    "n in (1, 9007199254740992)",
    "n in (1e0, 9007199254740992)",
    "n not in (1e0, 9007199254740992)",
    "n between 1e0 and 9007199254740992",
    "n not between -9007199254740992 and 0e0",
    "n between 0.5 and 2",
    "n in (0.00000000000000000000000000000000000001, 9007199254740992)",
    "i between 0::float and 16777216",
    "i in (0::float, 16777216)",
    "z between 0.5e0 and 9007199254740992",
    "z in (0e0, 9007199254740992)",
    "s between '1' and '9' collate nocase",
    "s in ('A', 'b' collate nocase, '10')",
    "s between 'A' and 'b' collate nocase",
    "day between '1970-01-01' and timestamp '1970-01-01 12:00:00'",
    "moment between timestamp '1970-01-01 02:00:00+02:00' and timestamptz '1970-01-01 03:00:00+02:00'",
    "n between 0 and i",
    "n = 9007199254740992e0",
    "n > 9007199254740992.5",
    "z = 9007199254740993",
    "z = 1267650600228370137437471342593e0",
    "w > 123456789012345678.90123456779",
    "g = 0.1",
    "g = 0.1e0",
    "g = 16777217",
    "f = 123456789.12345679",
    "f > 1e300 and f < 'NaN'::double",
    "f = 'NaN'::double or f = 0",
    "lower(s) = 'a' and n > 0",
    "s like '1%' or b",
    "not b",
    "n is distinct from 3",
    "t.n >= 2",
    "pair.n > 2",
    "not (pair.n <= 2 or n is null)",
    *("n = 1::bigint", "N = '1'::int or I = 0", "d = 1::bigint", "f >= 1::tinyint", "g = 16777217::int", "w < 1::int8"),
    *("n = -1 + 2", "n > 2 - -1 * 3", "f = 3 - 2", "z = -(1 + 2)"),
    *("n is not distinct from 1", "not (s is distinct from '10')", "day is distinct from date '1970-01-01'"),
    *("moment::date = '1970-01-01'", "naive::date = '1969-12-31'", "day::date = '1970-01-01'"),
    *("naive::date < date '1970-01-01'", "moment::date <> '1970-01-01'", "not (moment::date <= '1969-12-31')"),
    *("naive::date in ('1969-12-31', '1970-01-02')", "moment::date = timestamp '1970-01-01 00:30:00'"),
]
ROW = st.fixed_dictionaries(
    {
        **{name: st.none() | st.sampled_from(pool) for name, (_, pool) in POOLS.items()},
        "s": st.none() | st.sampled_from(POOLS["s"][1]) | st.text(max_size=3),
    }
)
GROUPS = st.lists(st.lists(ROW, min_size=1, max_size=4), min_size=1, max_size=4)
COMPARISON = st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"])


@st.composite
def conditions(draw: st.DrawFn, names: Sequence[str] = tuple(POOLS), depth: int = 2) -> Filter:
    kind = draw(st.sampled_from(["compare", "compare", "in", "null", *(["and", "or", "not"] if depth else [])]))
    if kind in ("and", "or"):
        left, right = draw(conditions(names, depth - 1)), draw(conditions(names, depth - 1))
        return left & right if kind == "and" else left | right
    if kind == "not":
        return ~draw(conditions(names, depth - 1))
    name = draw(st.sampled_from([each for each in names if each != "pair"]))
    column, alike = col(name), PARTITIONS.get(name, name)
    if kind == "null":
        return draw(st.sampled_from([column.is_null(), column.is_not_null()]))
    values = st.sampled_from(POOLS[alike][1])
    if kind == "in":
        members = values | st.sampled_from(FAMILIES[alike]) if alike in FAMILIES else values
        return column.isin(draw(st.lists(members, max_size=3)))
    literal = draw(values | st.sampled_from(FAMILIES[alike]) if alike in FAMILIES else values)
    compared: Filter = getattr(operator, draw(COMPARISON))(column, literal)
    return compared


class Sample:
    """Splits with statistics, ten per manifest. DuckDB contains each row and the number of the row's split.

    Not a dataclass, because Hypothesis would print every field.
    """

    def __init__(self, splits: Sequence[Add], rows: duckdb.DuckDBPyRelation) -> None:
        self.count, self.files, self.rows = len(splits), table_of(splits), rows
        tens = [self.files.slice(first, 10) for first in range(0, len(splits), 10)]
        self.manifests = [bounds_of(each, schema=WIDE, partition_columns=PARTITIONS) for each in tens]

    def matching(self, condition: duckdb.Expression) -> set[int]:
        """Return the splits in which DuckDB finds a row that meets the condition."""
        found = self.rows.filter(condition).select(duckdb.ColumnExpression("split")).distinct().fetchall()
        return {number for (number,) in found}


@pytest.fixture(scope="module")
def sample() -> Iterator[Sample]:
    chance = random.Random(20150517)  # repeatable
    groups = [_group(chance) for _ in range(300)]
    splits = tuple(_described(group, number) for number, group in enumerate(groups))
    numbered = [
        group.append_column("split", pa.array([number] * group.num_rows, pa.int64()))
        for number, group in enumerate(groups)
    ]
    found = Sample(splits, session().from_arrow(pa.concat_tables(numbered)).set_alias("t"))
    yield found
    del found.rows  # Hypothesis keeps the argument until the process ends, which makes DuckDB print an error


def _group(chance: random.Random) -> pa.Table:
    """Return a few rows that share most of their values, like the rows of a split."""
    size = chance.randint(1, 4)
    columns: dict[str, list[Any]] = {}
    for name, (_, pool) in POOLS.items():
        few = [chance.choice(pool) for _ in range(chance.randint(1, 2))]
        columns[name] = [chance.choice([*few, *few, None]) if chance.random() < 0.7 else few[0] for _ in range(size)]
    for name, alike in PARTITIONS.items():
        columns[name] = [chance.choice([*POOLS[alike][1], None])] * size
    return pa.table([pa.array(columns[each.name], each.type) for each in WIDE], schema=WIDE)


def _described(group: pa.Table, number: int) -> Add:
    metrics = statistics.compute(group.select(SCHEMA.names))
    values = statistics.compute(group.select(list(PARTITIONS)), truncate_at=10**6).min_values
    instants = group["moment"].drop_null().to_pylist()
    hours = {math.floor(each.timestamp()) // HOUR for each in instants}
    windowed = len(hours) == 1 and len(instants) == group.num_rows
    return Add(
        path=str(number),
        size=1,
        modificationTime=0,
        numRecords=group.num_rows,
        minValues=metrics.min_values,
        maxValues=metrics.max_values,
        nullCounts=metrics.null_counts,
        windowStart=hours.pop() * HOUR if windowed else None,
        windowSeconds=HOUR,
        partitionValues=values,
    )


def assert_sound(sample: Sample, predicate: Predicate, matching: set[int]) -> None:
    """Assert that pruning keeps each split and each manifest that contains a matching row."""
    pruned = prune_table(sample.files, predicate, schema=WIDE, time_column="moment")
    kept = {number for number, keep in enumerate(pruned.keep.to_pylist()) if keep}
    assert matching <= kept
    assert sum(step.splits for step in pruned.steps) == sample.count - len(kept)
    may_match = manifest_filter(predicate, schema=WIDE, time_column="moment", partition_columns=PARTITIONS)
    for number, manifest in enumerate(sample.manifests):
        if not may_match(manifest):
            assert not matching & set(range(number * 10, number * 10 + 10))


@settings(max_examples=scaled(75), deadline=None)
@given(wanted=conditions(WIDE.names))
def test_no_split_with_a_matching_row_is_left_out(sample: Sample, wanted: Filter) -> None:
    assert_sound(sample, wanted.predicate, sample.matching(wanted.expression))


@pytest.mark.parametrize("name", ["n", "f", "s"])
def test_a_comparison_at_a_bound_keeps_the_split(sample: Sample, name: str) -> None:
    column = col(name)
    for value in POOLS[name][1]:
        if value is not None:
            for wanted in (column == value, column < value, column <= value, column > value, column >= value):
                assert_sound(sample, wanted.predicate, sample.matching(wanted.expression))


@pytest.mark.parametrize("text", TEXTS)
def test_a_sql_condition_prunes_only_what_it_cannot_match(sample: Sample, text: str) -> None:
    wanted = from_sql(text)
    assert_sound(sample, wanted.predicate, sample.matching(wanted.expression))
    assert where_of(parse(f"select count(*) from t where {text}"), "t") == wanted.predicate


@pytest.mark.parametrize("name", [each for each in WIDE.names if each != "pair"])
def test_every_column_prunes(sample: Sample, name: str) -> None:
    wanted = col(name) == POOLS[PARTITIONS.get(name, name)][1][1]
    pruned = prune_table(sample.files, wanted.predicate, schema=WIDE, time_column="moment")
    assert 0 < sum(pruned.keep.to_pylist()) < sample.count


@settings(max_examples=scaled(15), deadline=None)
@given(GROUPS, conditions())
def test_a_pruned_read_returns_the_rows_of_a_full_read(groups: list[list[dict[str, object]]], wanted: Filter) -> None:
    store, splits = written(groups)
    pruned = prune_table(table_of(splits), wanted.predicate, schema=SCHEMA, time_column="moment")
    left = list(compress(splits, pruned.keep.to_pylist()))
    assert matching(store, left, wanted.expression) == matching(store, splits, wanted.expression)
    assert sum(step.splits for step in pruned.steps) == len(splits) - len(left)


FIELDS = [
    *("n", "i", "s", "d", "w", "z", "day", "moment", "naive", "b"),
    *(f"bucket[3]({name})" for name in ("n", "i", "s", "d", "w", "z", "day", "moment", "naive")),
    *("truncate[10](n)", "truncate[7](i)", "truncate[1](s)", "truncate[2](s)"),
    *(f"{part}({name})" for part in ("year", "month", "day", "hour") for name in ("moment", "naive", "day")),
]


@settings(max_examples=scaled(50), deadline=None)
@given(GROUPS, st.lists(st.sampled_from([each for each in FIELDS if each != "hour(day)"]), max_size=3), conditions())
def test_values_of_partitions_leave_no_matching_row_out(
    groups: list[list[dict[str, object]]], texts: list[str], wanted: Filter
) -> None:
    fields = partition_fields(list({partition_field(text).name: text for text in texts}.values()))
    store, splits = written(groups, fields)
    files = table_of([_of_partition(add) for add in splits])
    pruned = prune_table(files, wanted.predicate, schema=SCHEMA, time_column=None, partition_by=fields)
    left = list(compress(splits, pruned.keep.to_pylist()))
    matched = matching(store, splits, wanted.expression)
    assert matching(store, left, wanted.expression) == matched

    values = value_schema(fields, SCHEMA)
    may_match = manifest_filter(
        wanted.predicate, schema=SCHEMA, time_column=None, partition_columns=["n", "s", "day"], partition_by=fields
    )
    kept = []
    for first in range(0, len(splits), 2):
        part = files.slice(first, 2)
        if may_match(bounds_of(part, schema=values, partition_columns=values.names, is_exact=True)):
            kept += splits[first : first + 2]
    assert matching(store, kept, wanted.expression) == matched


def _of_partition(add: Add) -> Add:
    """Return the split without any statistics except its partition."""
    bare = replace(add, minValues=None, maxValues=None, nullCounts=None, columnRegexes=None)
    return replace(bare, windowStart=None, windowSeconds=None)


def written(
    groups: list[list[dict[str, object]]], partition_by: tuple[PartitionField, ...] = ()
) -> tuple[MemoryStore, list[Add]]:
    store, ids = MemoryStore("pruning"), SeededIds(1)
    config = TableConfig(time_column="moment", sort_schema="s|n|timestamp/V2", window_seconds=HOUR)
    context = SplitContext(
        table_id="t",
        schema=SCHEMA,
        order=bind(config, SCHEMA),
        time_column="moment",
        window_seconds=HOUR,
        partition_by=partition_by,
    )
    now = SystemClock().now_ms()
    tables = [pa.Table.from_pylist(group, schema=SCHEMA) for group in groups]
    return store, [add for each in tables for add in sort_and_write(store, each, context=context, ids=ids, now_ms=now)]


def matching(store: MemoryStore, splits: list[Add], condition: duckdb.Expression) -> list[str]:
    rows = [conform_split(read_split(store, add), SCHEMA) for add in splits]
    table = pa.concat_tables(rows) if rows else SCHEMA.empty_table()
    return sorted(str(row) for row in session().from_arrow(table).filter(condition).fetchall())


class Written:
    """A table with many splits, and a DuckDB relation with all rows of the table."""

    def __init__(self, table: Table, rows: duckdb.DuckDBPyRelation) -> None:
        self.table, self.rows = table, rows


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    chance = random.Random(42)  # repeatable
    table = Table.create(str(tmp_path_factory.mktemp("pruned") / "t"), SCHEMA, time_column="moment", window="1h")
    groups = [_group(chance).select(SCHEMA.names) for _ in range(8)]
    for group in groups:
        table.append(group)
    found = Written(table, session().from_arrow(pa.concat_tables(groups)).set_alias("t"))
    yield found
    del found.rows


@settings(max_examples=scaled(10), deadline=None)
@given(wanted=conditions())
def test_a_scan_returns_what_duckdb_finds_in_all_rows(events: Written, wanted: Filter) -> None:
    found = events.table.scan(filter=wanted).to_duckdb().fetchall()
    assert sorted(map(str, found)) == sorted(map(str, events.rows.filter(wanted.expression).fetchall()))


@pytest.mark.parametrize("text", TEXTS)
def test_a_query_returns_what_duckdb_finds_in_all_rows(events: Written, text: str) -> None:
    found = events.table.sql(f"select * from t where {text}")
    everything = events.rows.filter(duckdb.SQLExpression(text)).fetchall()
    assert sorted(map(str, session().from_arrow(found).fetchall())) == sorted(map(str, everything))
