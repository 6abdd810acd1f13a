"""Queries with LIMIT or ORDER BY, or on statistics in the log, skip splits and return the same rows as DuckDB."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.engine.session import session
from tests.support.deleted_rows import delete_where
from tests.support.scale import scaled
from tidemark import Table

START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
NUMBER = st.integers(-3, 3)
VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "n": (pa.int64(), NUMBER | st.sampled_from([-(2**63), 2**63 - 1])),
    "i": (pa.int32(), NUMBER),
    "ts": (pa.timestamp("us", "UTC"), NUMBER.map(lambda each: START + dt.timedelta(microseconds=each))),
    "local": (pa.timestamp("us"), NUMBER.map(lambda each: START.replace(tzinfo=None) + dt.timedelta(hours=each))),
    "day": (pa.date32(), NUMBER.map(lambda each: START.date() + dt.timedelta(days=each))),
    "d": (pa.decimal128(9, 2), NUMBER.map(lambda each: Decimal(each) / 4)),
    "w": (pa.decimal128(38, 10), NUMBER.map(lambda each: Decimal(each) * 10**20)),
    "f": (pa.float64(), st.sampled_from([float("nan"), 0.0, 1.5, float("inf")])),
    "s": (pa.string(), st.sampled_from(["", "a", "a" * 40, "\U0010ffff" * 40])),
    "b": (pa.bool_(), st.booleans()),
}
SCHEMA = pa.schema([("id", pa.int64()), *((name, kind) for name, (kind, _) in VALUES.items())])
NULLS = {name: st.none() | values for name, (_, values) in VALUES.items()}
SPLIT = st.fixed_dictionaries({name: st.lists(values, min_size=4, max_size=4) for name, values in NULLS.items()})
SPLITS = st.lists(st.tuples(SPLIT, st.integers(1, 4), st.booleans()), min_size=1, max_size=5)
ORDER = st.tuples(
    st.sampled_from([*VALUES, "N", "t.ts"]),
    st.sampled_from(["", "asc", "desc"]),
    st.sampled_from(["", "nulls first", "nulls last"]),
)
LIMIT = st.tuples(st.integers(0, 6), st.integers(0, 4))


def made(splits: list[tuple[dict[str, list[Any]], int, bool]], deleted: set[int], uri: str) -> tuple[Table, pa.Table]:
    """Return a table of these splits, and the rows of the splits except the `deleted` rows.

    Some splits have one value per column.
    """
    table, parts = Table.create(uri, SCHEMA), [SCHEMA.empty_table()]
    for number, (columns, rows, is_alike) in enumerate(splits):
        values = {name: (each[:1] * rows if is_alike else each[:rows]) for name, each in columns.items()}
        parts.append(pa.table({"id": [number * 10 + row for row in range(rows)], **values}, schema=SCHEMA))
        table.append(parts[-1])
    everything = pa.concat_tables(parts)
    if deleted.intersection(everything["id"].to_pylist()):
        delete_where(table._log, lambda row: row["id"] in deleted)  # no job deletes by a condition
    kept = [each not in deleted for each in everything["id"].to_pylist()]
    return Table.open(table.uri), everything.filter(pa.array(kept, pa.bool_()))


@settings(max_examples=scaled(9), deadline=None)
@given(
    SPLITS,
    st.sets(st.integers(0, 4).flatmap(lambda each: st.integers(each * 10, each * 10 + 3)), max_size=8),
    st.lists(st.tuples(ORDER, LIMIT), min_size=3, max_size=5),
    st.booleans(),
)
def test_the_first_rows_are_those_of_all_rows(
    tmp_path_factory: pytest.TempPathFactory,
    splits: list[tuple[dict[str, list[Any]], int, bool]],
    deleted: set[int],
    wanted: list[tuple[tuple[str, str, str], tuple[int, int]]],
    is_local: bool,
) -> None:
    uri = str(tmp_path_factory.mktemp("first") / "t") if is_local else f"memory://{uuid4()}"
    table, rows = made(splits, deleted, uri)
    connection = session()
    connection.from_arrow(rows).create("t")
    for name in VALUES:
        text = f"select min({name}), max({name}), count({name}), count(*), count(id), max(id) from t"
        assert str(table.sql(text).to_pylist()) == str(connection.sql(text).to_arrow_table().to_pylist()), text
    for (column, way, nulls), (limit, offset) in wanted:
        text = f"from t order by {column} {way} {nulls}, id limit {limit} offset {offset}"
        assert str(table.sql(text).to_pylist()) == str(connection.sql(text).to_arrow_table().to_pylist()), text
        text = f"select {column} from t order by {column} {way} {nulls} limit {limit} offset {offset}"
        assert str(table.sql(text).to_pylist()) == str(connection.sql(text).to_arrow_table().to_pylist()), text
        some = table.sql(f"select id from t limit {limit} offset {offset}")["id"].to_pylist()
        assert len(some) == len(set(some)) == min(limit, max(0, rows.num_rows - offset))
        assert set(some) <= set(rows["id"].to_pylist())
