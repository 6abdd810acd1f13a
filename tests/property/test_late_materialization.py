"""In a row group, the columns of the condition are fetched first, and no matching row is lost."""

from __future__ import annotations

import random
from collections.abc import Iterator
from uuid import uuid4

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from storage_core.base.errors import Corrupt
from storage_core.engine.session import session
from storage_core.log.actions import Add
from storage_core.read import fetching
from storage_core.read.fetching import may_match
from storage_core.read.predicate import Filter, Predicate, col
from storage_core.read.sql_predicate import from_sql
from storage_core.split import metadata
from storage_core.store.contract import Overwrite
from tests.property.test_pruning_keeps_answers import POOLS, SCHEMA, TEXTS, conditions
from tests.property.test_row_group_pruning import LIKES, VALUES
from tests.support.deleted_rows import delete_where
from tests.support.s3_server import S3Server
from tests.support.scale import scaled
from tests.support.split_places import column_places
from tidemark import Table

ROWS = 12_000
GROUPS = 6


class Sample:
    """Random rows in Arrow.

    DuckDB contains the same rows as the Arrow table, with the position of each row. Not a dataclass, because Hypothesis
    would print it.
    """

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows
        self.numbered = session().from_arrow(rows.append_column("place", pa.array(range(len(rows))))).set_alias("t")

    def require_sound(self, predicate: Predicate, condition: duckdb.Expression) -> tuple[set[int], set[int]]:
        """Assert that no matching row is skipped. Return the matching rows and the remaining rows."""
        found = self.numbered.filter(condition).select(duckdb.ColumnExpression("place")).fetchall()
        matching, left = {place for (place,) in found}, set(np.flatnonzero(may_match(self.rows, predicate)).tolist())
        assert matching <= left
        return matching, left


@pytest.fixture(scope="module")
def sample() -> Iterator[Sample]:
    chance = random.Random(20150517)  # repeatable
    rows = [{name: chance.choice([*pool, None]) for name, pool in VALUES.items()} for _ in range(500)]
    found = Sample(pa.Table.from_pylist(rows, schema=SCHEMA))
    yield found
    del found.numbered


@settings(max_examples=scaled(80), deadline=None)
@given(wanted=conditions())
def test_no_matching_row_is_left_out(sample: Sample, wanted: Filter) -> None:
    sample.require_sound(wanted.predicate, wanted.expression)


@pytest.mark.parametrize("text", [*TEXTS, *LIKES])
def test_a_sql_condition_leaves_out_only_rows_that_do_not_match(sample: Sample, text: str) -> None:
    wanted = from_sql(text)
    sample.require_sound(wanted.predicate, wanted.expression)


@pytest.mark.parametrize("name", [each for each in POOLS if each != "pair"])
def test_an_equality_leaves_exactly_the_rows_that_match(sample: Sample, name: str) -> None:
    wanted = (col(name) == POOLS[name][1][1]) & col(name).is_not_null()
    matching, left = sample.require_sound(wanted.predicate, wanted.expression)
    assert matching == left != set()


@pytest.fixture(params=["memory", "s3"])
def uri(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        return f"memory://{uuid4()}"
    server: S3Server = request.getfixturevalue("s3_server")
    return server.uri(f"late/{uuid4()}")


@pytest.fixture
def table(uri: str, monkeypatch: pytest.MonkeyPatch) -> Table:
    """Return a table with one split of six row groups and eight columns.

    All matching rows are in the third row group.
    """
    monkeypatch.setattr(metadata, "ROWS_PER_GROUP", ROWS // GROUPS)
    monkeypatch.setattr("storage_core.split.read.SMALL_SPLIT_BYTES", 2**14)
    monkeypatch.setattr(fetching, "OTHER_BYTES", 2**15)
    monkeypatch.setattr(fetching, "PIECES_AT_ONCE", 1)
    made = Table.create(uri, WIDE.schema)
    made.append(WIDE)
    return Table.open(uri)


def wide() -> pa.Table:
    chance = np.random.default_rng(1)
    numbers = chance.integers(0, 1_000, ROWS)
    numbers[(numbers == 5) | (numbers == 7)] = 6
    numbers[4_100:4_103] = 5
    others = {f"c{each}": chance.integers(0, 2**62, ROWS) for each in range(6)}
    return pa.table({"n": numbers, "word": [f"w{each}" for each in chance.integers(0, 3, ROWS)], **others})


WIDE = wide()


def only_split(table: Table) -> Add:
    (add,) = table.snapshot.splits.values()
    return add


def test_other_columns_are_fetched_of_row_groups_with_a_row_that_may_match(table: Table) -> None:
    places = column_places(table, only_split(table))
    sizes = places[:, :, 1] - places[:, :, 0]
    for text, names, groups in (
        ("n = 5", 1, [2]),
        ("n = 5 and word <> 'none'", 2, [2]),
        ("n > 2000 or n = 5", 1, [2]),
        ("n = 7", 1, []),
    ):
        table.sql(f"select count(c0) from t where {text}")  # reads the footer
        plan = table.explain(f"select * from t where {text}")
        asked, read = table.store.requests["get"], table.store.bytes_read
        found = table.sql(f"select * from t where {text}").to_arrow()
        assert found.equals(duckdb.from_arrow(WIDE).filter(text).to_arrow_table()), text
        read = table.store.bytes_read - read
        assert read == int(sizes[:, :names].sum() + sizes[groups][:, names:].sum()), text
        assert table.store.requests["get"] - asked == GROUPS + len(groups)
        assert plan.requests == 2 * GROUPS
        assert plan.read_bytes == int(sizes.sum()) > 3 * read


def test_columns_that_are_always_needed_are_soon_fetched_at_once(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "_IN_VAIN", 2)
    query = "select max(c0), max(c1), max(c2), max(c3) from t where n >= 0"
    expected = table.sql(query).to_pylist()
    before = table.store.requests["get"]
    assert table.sql(query).to_pylist() == expected
    assert table.store.requests["get"] - before == 2 * 3 + 3 * 1


def test_a_condition_over_all_columns_or_few_bytes_is_one_wait(table: Table) -> None:
    for query in ("select n from t where n = 5", "select n, word from t where n = 5", "select c0 from t where c0 > 5"):
        table.sql(query).to_arrow()
        before = table.store.requests["get"]
        table.sql(query).to_arrow()
        assert table.store.requests["get"] - before == GROUPS, query


def test_what_is_not_fetched_may_be_damaged_and_what_is_fetched_late_is_verified(table: Table) -> None:
    add = only_split(table)
    data, places = table.store.get(add.path).data, column_places(table, add)
    query = "select * from t where n = 5"
    for group, column, is_read in ((0, 4, False), (2, 4, True), (0, 0, True)):
        changed = bytearray(data)
        changed[int(places[group, column].mean())] ^= 1
        table.store.put(add.path, bytes(changed), Overwrite())
        if is_read:
            with pytest.raises(Corrupt, match=f"xxh3-64.*{WIDE.column_names[column]!r} in row group {group}"):
                Table.open(table.uri).sql(query).to_arrow()
        else:
            assert len(Table.open(table.uri).sql(query)) == 3


def test_deleted_rows_are_hidden_in_both_turns(table: Table) -> None:
    delete_where(table.log, lambda row: row["word"] == "w1")
    opened = Table.open(table.uri)
    for text in ("n = 5", "n < 20", "n = 5 or c5 % 2 = 0"):
        expected = duckdb.from_arrow(WIDE).filter(f"({text}) and word <> 'w1'").to_arrow_table()
        assert opened.sql(f"select * from t where {text}").to_arrow().equals(expected), text
