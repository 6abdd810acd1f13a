"""Row groups are pruned by the bounds of every column, and no answer changes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage_core.data.rows.sort_order import SortOrder
from storage_core.engine.session import session
from storage_core.read.predicate import Filter, Predicate, col
from storage_core.read.pruning import groups_left
from storage_core.read.sql_predicate import from_sql
from storage_core.split import metadata
from storage_core.split.encode import FileWriter, nan_columns
from storage_core.split.writer import with_file_metrics
from storage_core.store.contract import IfAbsent
from tests.property.test_pruning_keeps_answers import POOLS, SCHEMA, TEXTS, conditions
from tests.support.s3_server import S3Server
from tests.support.scale import scaled
from tidemark import Table

LONG = "a common beginning " * 8
WORDS = ["", "ä", "äb", "a", "ab", "a%", "Ω", "\U0010ffff", LONG, LONG + "é", LONG + "ê", LONG + "😀", "x" * 5000]
VALUES = {name: [*pool, *(WORDS if name == "s" else [])] for name, (_, pool) in POOLS.items()}
LIKES = [
    *("s like 'ä%'", "s like 'a_'", "s like 'a%b'", "s not like 'a%'", "s like '%b'", "s like ''", "s like 'a'"),
    *(f"s like '{LONG}%'", f"s like '{LONG}ê%'", f"not (s like '{LONG}%')", "s like '\U0010ffff%'", "s like 'x%'"),
    *("starts_with(s, 'ä')", "s ^@ 'a' or n = 1", "t.s like 'a%' and b is not null", "s like null", "s ilike 'A%'"),
    *("s like 'a\\%' escape '\\'", "s like 'a\\%'", "day::text like '1970%'", "s like '\ud7ff%'"),
]
FILES, GROUPS_PER_FILE = 40, 8


def random_group(chance: random.Random, rows: int) -> pa.Table:
    """Return rows in which each column has two, one or no values."""
    columns: dict[str, list[Any]] = {}
    for name, pool in VALUES.items():
        few = [chance.choice(pool) for _ in range(chance.randint(1, 2))]
        columns[name] = [chance.choice([*few, None]) if chance.random() < 0.5 else few[0] for _ in range(rows)]
        if chance.random() < 0.1:
            columns[name] = [None] * rows
    return pa.table([pa.array(columns[each.name], each.type) for each in SCHEMA], schema=SCHEMA)


class Sample:
    """Footers of files. DuckDB has all rows, each with the number of its file and row group.

    Not a dataclass, because Hypothesis would print every field.
    """

    def __init__(self, footers: Sequence[pq.FileMetaData], rows: duckdb.DuckDBPyRelation) -> None:
        self.footers, self.rows = footers, rows

    def require_sound(self, predicate: Predicate, condition: duckdb.Expression) -> int:
        """Assert that no row group with a matching row is pruned. Return the number of remaining row groups."""
        found = self.rows.filter(condition).select(duckdb.ColumnExpression("place")).distinct().fetchall()
        kept = {
            file * GROUPS_PER_FILE + group
            for file, footer in enumerate(self.footers)
            for group in groups_left(footer, predicate, SCHEMA)
        }
        assert {place for (place,) in found} <= kept
        return len(kept)


@pytest.fixture(scope="module")
def sample() -> Iterator[Sample]:
    chance = random.Random(20150517)  # repeatable
    footers, rows = [], []
    for file in range(FILES):
        groups = [random_group(chance, chance.randint(1, 4)) for _ in range(GROUPS_PER_FILE)]
        if file % 2:  # a column with a NaN anywhere in the file has no bounds in this file
            groups = [without_nan(group) for group in groups]
        writer = FileWriter(SCHEMA, SortOrder((), ""), {}, may_hold_nan=nan_columns(pa.concat_tables(groups)))
        for number, group in enumerate(groups):
            writer.add(group)
            place = pa.array([file * GROUPS_PER_FILE + number] * group.num_rows, pa.int64())
            rows.append(group.append_column("place", place))
        footers.append(pq.read_metadata(pa.BufferReader(writer.finish({}))))
    found = Sample(footers, session().from_arrow(pa.concat_tables(rows)).set_alias("t"))
    yield found
    del found.rows  # Hypothesis keeps the argument until the process ends, which makes DuckDB print an error


def without_nan(rows: pa.Table) -> pa.Table:
    for name in nan_columns(rows):
        column, field = rows.column(name), rows.schema.field(name)
        if pa.types.is_floating(field.type):
            rows = rows.set_column(
                rows.schema.get_field_index(name), field, pc.if_else(pc.is_nan(column), None, column)
            )
    return rows


@settings(max_examples=scaled(80), deadline=None)
@given(wanted=conditions())
def test_no_row_group_with_a_matching_row_is_left_out(sample: Sample, wanted: Filter) -> None:
    sample.require_sound(wanted.predicate, wanted.expression)


@pytest.mark.parametrize("text", [*TEXTS, *LIKES])
def test_a_sql_condition_leaves_out_only_row_groups_that_cannot_match(sample: Sample, text: str) -> None:
    wanted = from_sql(text)
    sample.require_sound(wanted.predicate, wanted.expression)


@pytest.mark.parametrize("name", [each for each in POOLS if each != "pair"])
@pytest.mark.parametrize("null", [False, True])
def test_every_column_leaves_row_groups_out(sample: Sample, name: str, *, null: bool) -> None:
    wanted = col(name).is_null() if null else col(name) == POOLS[name][1][1]
    assert 0 < sample.require_sound(wanted.predicate, wanted.expression) < FILES * GROUPS_PER_FILE


@pytest.mark.parametrize("text", ["s like 'ä%'", f"s like '{LONG}ê%'", "starts_with(s, 'Ω')", "s like 'a_'"])
def test_the_beginning_of_a_text_leaves_row_groups_out(sample: Sample, text: str) -> None:
    wanted = from_sql(text)
    assert 0 < sample.require_sound(wanted.predicate, wanted.expression) < FILES * GROUPS_PER_FILE / 2


def written(*groups: pa.Table) -> pq.FileMetaData:
    data = pa.BufferOutputStream()
    with pq.ParquetWriter(data, groups[0].schema) as writer:
        for group in groups:
            writer.write_table(group)
    return pq.read_metadata(pa.BufferReader(data.getvalue()))


def test_a_column_that_a_split_lacks_is_null_in_all_of_its_row_groups() -> None:
    table = pa.schema([("a", pa.int64()), ("late", pa.string()), ("nested", pa.struct([("x", pa.int64())]))])
    footer = written(*[pa.table({"a": pa.array([number])}) for number in range(3)])
    for text, left in {
        "late = 'x'": [],
        "late is null": [0, 1, 2],
        "late is not null or a = 1": [1],
        "nested is not null": [],
        "nobody = 1": [0, 1, 2],
    }.items():
        assert list(groups_left(footer, from_sql(text).predicate, table)) == left, text


def test_bounds_of_another_type_or_of_another_column_by_the_same_path_tell_nothing() -> None:
    inner = pa.struct([pa.field("b", pa.int64())])
    rows = pa.table({"n": pa.array([1], pa.int32()), "a": pa.array([{"b": 7}], inner), "a.b": pa.array([1])})
    footer = written(rows, rows)
    schema = pa.schema([("n", pa.int64()), ("a", inner), ("a.b", pa.int64())])
    for condition in (col("n") == 5, col("a.b") == 5, col("a").is_null()):
        assert list(groups_left(footer, condition.predicate, schema)) == [0, 1]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every split many row groups, and read it by ranges."""
    monkeypatch.setattr(metadata, "ROWS_PER_GROUP", 3)
    monkeypatch.setattr("storage_core.split.read.SMALL_SPLIT_BYTES", 0)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("place", ["memory", "s3"])
@settings(max_examples=scaled(3), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32),
    wanted=st.lists(conditions(), min_size=3, max_size=3),
    texts=st.lists(st.sampled_from([*TEXTS, *LIKES]), min_size=3, max_size=3),
)
def test_an_answer_off_a_local_disk_is_that_of_duckdb_over_the_plain_rows(
    request: pytest.FixtureRequest, place: str, seed: int, wanted: list[Filter], texts: list[str]
) -> None:
    chance = random.Random(seed)
    rows = pa.concat_tables([random_group(chance, 3) for _ in range(10)])
    uri = f"memory://{uuid4()}"
    if place == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        uri = server.uri(f"groups/{uuid4()}")
    table = Table.create(uri, SCHEMA)
    table.append(rows.slice(0, 21))
    table.append(rows.slice(21))
    native = session().from_arrow(rows).set_alias("t")
    for each in [*wanted, *map(from_sql, texts)]:
        expected = native.filter(each.expression).fetchall()
        found = table.scan(filter=each).to_duckdb().fetchall()
        assert sorted(map(str, found)) == sorted(map(str, expected)), each.expression
    for text in texts:
        expected = native.filter(duckdb.SQLExpression(text)).select(duckdb.ColumnExpression("n")).fetchall()
        found = table.sql(f"select n from t where {text}").to_duckdb().fetchall()
        assert sorted(map(str, found)) == sorted(map(str, expected)), text


def test_bounds_of_a_split_that_others_wrote_are_not_believed() -> None:
    """Foreign writers compute bounds without NaN values."""
    table = Table.create(f"memory://{uuid4()}", pa.schema([("f", pa.float64())]))
    table.append(pa.table({"f": [20.5]}))
    data = pa.BufferOutputStream()
    pq.write_table(pa.table({"f": [20.5, float("nan"), 21.0]}), data)
    (add,) = table.snapshot.splits.values()
    theirs = with_file_metrics(add, data.getvalue())
    other = replace(theirs, path="splits/theirs.parquet", numRecords=3, minValues={}, maxValues={}, nullCounts={})
    table.store.put(other.path, bytes(data.getvalue()), IfAbsent())
    table.log.commit(table.snapshot, [other], operation="TEST")
    assert table.refresh().sql("select count(f) as n from t where f > 100").to_pylist() == [{"n": 1}]
