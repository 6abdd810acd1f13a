"""The columns of a split may differ from the table's columns and have another order. Some splits have deleted rows.

Queries over any number of splits return the same result as queries in DuckDB over a native table with the same rows.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from storage_core.base.clock import SystemClock, SystemIds
from storage_core.base.errors import InvalidInput
from storage_core.engine.session import session
from storage_core.log.actions import Add
from storage_core.read.fetching import FetchPlan
from storage_core.read.table_read import splits_source
from storage_core.read.verified_files import VerifiedFiles
from storage_core.split.context import context_of
from storage_core.split.read import conform_split
from storage_core.split.writer import sort_and_write
from storage_core.store.local import LocalStore
from tests.support.deleted_rows import delete_places
from tests.support.scale import scaled
from tidemark import Table

TYPES: Mapping[str, pa.DataType] = {
    "id": pa.int64(),
    "f": pa.float64(),
    "text": pa.string(),
    "at": pa.timestamp("us", "UTC"),
    "pair": pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))]),
    "raw": pa.binary(),
}
SCHEMA = pa.schema(list(TYPES.items()))
VALUES: Mapping[str, st.SearchStrategy[Any]] = {
    "id": st.integers(0, 9),
    "f": st.sampled_from([-1.5, 0.0, float("nan"), 7.0]),
    "text": st.sampled_from(["", "a", "b%"]),
    "at": st.integers(0, 10**15),
    "pair": st.fixed_dictionaries({"x": st.integers(0, 3), "y": st.lists(st.just("y"), max_size=2)}),
    "raw": st.binary(max_size=2),
}
QUERIES = (
    "select * from t",
    "select count(*) as n, count(raw) as m, sum(id) as s from t",
    "select text, id from t where id >= 5 or f > 0",
    "select a.id, b.text from t a join t b on a.id = b.id where b.pair.x = 1",
    "select id from t where text is null and pair is not null",
)


@st.composite
def splits(draw: st.DrawFn) -> tuple[pa.Table, set[int]]:
    """Generate the rows of a split, and the numbers of the deleted rows.

    The split lacks some columns and has the other columns in any order.
    """
    names = draw(st.sampled_from([list(TYPES), list(TYPES), draw(st.permutations(list(TYPES)))]))
    names = names[: draw(st.integers(1, len(names)))] if draw(st.booleans()) else names
    count = draw(st.integers(1, 6))
    values = {name: draw(st.lists(st.none() | VALUES[name], min_size=count, max_size=count)) for name in names}
    rows = pa.table({name: pa.array(each, TYPES[name]) for name, each in values.items()})
    return rows, draw(st.just(set[int]()) | st.sets(st.integers(0, count - 1)))


def written(table: Table, rows: pa.Table) -> Add:
    """Return a split with the columns of a possible older schema of the table."""
    (add,) = sort_and_write(
        table.store, rows, context=context_of(table.log.snapshot()), ids=SystemIds(), now_ms=SystemClock().now_ms()
    )
    return add


def committed(folder: Path, made: Sequence[tuple[pa.Table, set[int]]]) -> Table:
    table = Table.create(str(folder / "t"), SCHEMA)
    adds = [written(table, rows) for rows, _ in made]
    table.log.commit(table.log.snapshot(), adds, operation="APPEND")
    places = {add.path: gone for add, (_, gone) in zip(adds, made, strict=True) if gone}
    if places:
        delete_places(table.log, places)
    return Table.open(table.uri)


def left(rows: pa.Table, gone: set[int]) -> pa.Table:
    return conform_split(rows.filter(pa.array([place not in gone for place in range(rows.num_rows)])), SCHEMA)


def shown(rows: pa.Table) -> list[str]:
    return sorted(map(str, rows.to_pylist()))


MANY = [(pa.table({name: pa.nulls(2, TYPES[name]) for name in [*TYPES][each:]}), {each % 2}) for each in range(6)]
MORE = [(pa.table({name: pa.nulls(2, TYPES[name]) for name in (a, b)}), {1}) for a in TYPES for b in TYPES if a != b]


@settings(max_examples=scaled(10), deadline=None)
@given(made=st.lists(splits(), min_size=1, max_size=5))
@example(made=MANY)
@example(made=MORE)
def test_a_query_over_splits_of_any_columns_equals_the_query_over_a_native_table(
    made: list[tuple[pa.Table, set[int]]],
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="tidemark-kinds-"))
    table, connection = committed(folder, made), session()
    rows = pa.concat_tables([left(each, gone) for each, gone in made])
    connection.from_arrow(rows).create("t")
    for query in QUERIES:
        answer = table.sql(query).to_arrow()
        wanted = connection.sql(query).to_arrow_table()
        assert answer.schema.names == wanted.schema.names, query
        assert answer.schema.types == wanted.schema.types, query
        assert shown(answer) == shown(wanted), query
    assert table.scan().to_arrow().schema.equals(SCHEMA)
    assert shown(table.scan().to_arrow()) == shown(rows)
    assert shown(table.scan(["f", "id"]).to_arrow()) == shown(rows.select(["f", "id"]))
    shutil.rmtree(folder)


@pytest.mark.parametrize("deleted", [False, True], ids=["whole", "with deleted rows"])
def test_of_splits_that_are_alike_one_is_opened_to_bind_all(tmp_path: Path, *, deleted: bool) -> None:
    rows = pa.table({name: pa.nulls(2, type_) for name, type_ in TYPES.items()})
    table = committed(tmp_path, [(rows, {1} if deleted else set())] * 3)
    splits, wanted = [*table.snapshot.splits.values()], FetchPlan(SCHEMA, SCHEMA.names)
    relation = splits_source(table.store, splits, wanted, verified=VerifiedFiles()).relation()
    for path in relation.files[1:]:
        path.write_bytes(b"no Parquet file")
    with session(files=relation.files) as connection:
        relation.bind(connection)


@pytest.mark.parametrize("name", ["file_index", "file_row_number", "filename", "rowid"])
def test_what_duckdb_knows_of_a_row_of_a_file_is_no_column_of_the_table(tmp_path: Path, name: str) -> None:
    table = committed(tmp_path, [(pa.table({"id": [1]}, pa.schema([SCHEMA.field("id")])), set())] * 2)
    alike = Table.create(str(tmp_path / "alike"), SCHEMA)
    alike.append(pa.table({each: pa.nulls(2, type_) for each, type_ in TYPES.items()}))
    for each in (table, alike):
        with pytest.raises(InvalidInput, match=rf"{name}"):
            each.sql(f"select {name} from t").to_arrow()


def test_threads_that_meet_new_columns_share_what_is_known_of_them(tmp_path: Path) -> None:
    adds = []
    for number in range(400):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({f"c{number // 4}": [1]}), path)
        adds.append(Add(path=path.name, size=path.stat().st_size, modificationTime=0))
    store, verified, usual = LocalStore(tmp_path), VerifiedFiles(), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            assert None not in list(pool.map(lambda add: verified.path(store, add), adds))
    finally:
        sys.setswitchinterval(usual)
    assert len({verified.columns(add) for add in adds}) == 100
