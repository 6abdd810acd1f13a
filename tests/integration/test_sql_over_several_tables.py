"""A query over several named tables skips splits of each table if the answer stays the same, and reads nothing more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidemark as tm
from storage_core.base.errors import Corrupt, InvalidInput
from tests.support.scale import scaled

FLIGHTS = pa.table(
    {"id": [1, 2, 3, 4, 5, 6], "plane": ["a", "b", "a", None, "c", "d"], "late": [5, -3, None, 40, 0, 7]}
)
PLANES = pa.table({"plane": ["a", "b", "c", "e"], "seats": [100, 150, None, 9], "id": [1, 2, 3, 4]})
JOIN = "select t.id, p.seats from t join p on t.plane = p.plane order by all"


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> tm.Table:
    return _table(tmp_path_factory.mktemp("flights"), FLIGHTS, each=2)


@pytest.fixture(scope="module")
def planes(tmp_path_factory: pytest.TempPathFactory) -> tm.Table:
    return _table(tmp_path_factory.mktemp("planes"), PLANES, each=1)


def _table(folder: Path, rows: pa.Table, each: int) -> tm.Table:
    table = tm.Table.create(str(folder / "table"), rows.schema)
    for first in range(0, rows.num_rows, each):
        table.append(rows.slice(first, each))
    return table


def _native(text: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        connection.register("t", FLIGHTS)
        connection.register("p", PLANES)
        return connection.sql(text).fetchall()


def _rows(result: tm.SqlResult) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in result.to_pylist()]


OTHERS: dict[str, Callable[[tm.Table], Any]] = {
    "a table": lambda planes: planes,
    "a scan": lambda planes: planes.scan(),
    "an answer": lambda planes: planes.sql("from t"),
    "an Arrow table": lambda _: PLANES,
    "a record batch": lambda _: PLANES.to_batches()[0],
    "a data frame of Polars": lambda _: pl.DataFrame(PLANES),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_query_joins_a_table_with(flights: tm.Table, planes: tm.Table, kind: str) -> None:
    assert _rows(flights.sql(JOIN, tables={"p": OTHERS[kind](planes)})) == _native(JOIN) != []


def test_a_table_is_joined_with_itself_and_with_its_past(flights: tm.Table) -> None:
    before = tm.Table.open(flights.uri, at=1)
    text = "select count(*) as now, (select count(*) from before) as before, (select count(*) from same) as same from t"
    assert _rows(flights.sql(text, tables={"Before": before, "same": flights})) == [(6, 2, 6)]


def test_every_table_has_the_consistency_of_the_query(tmp_path: Path, flights: tm.Table) -> None:
    schema = pa.schema([pa.field("plane", pa.string(), nullable=False), ("seats", pa.int64())])
    planes = tm.Table.create(str(tmp_path / "keyed"), schema, primary_key="plane")
    planes.append([{"plane": "a", "seats": 7}])
    assert flights.sql(JOIN, tables={"p": planes}).num_rows == 0
    assert _rows(flights.sql(JOIN, tables={"p": planes}, consistency="latest")) == [(1, 7), (3, 7)]
    with pytest.raises(InvalidInput, match="returns only merged rows"):
        flights.sql(JOIN, tables={"p": tm.Table.open(planes.uri, at=0)}, consistency="latest")


@pytest.mark.parametrize(
    ("text", "mine", "theirs"),
    [
        ("select t.id from t join p on t.plane = p.plane where t.id = 1", 1, 4),
        ("select t.id from t, p where t.id = 1 and p.seats = 9", 1, 1),
        ("select f.id from t as f join p as a using (plane) where f.id > 4 and a.id < 3", 1, 2),
        ("select t.id from t left join p on t.plane = p.plane where t.id = 1 and p.seats = 9", 1, 4),
        ("select p.id from p left join t on t.plane = p.plane where t.id is null and p.id = 4", 3, 1),
        ("select t.id from t right join p on t.plane = p.plane where t.id = 1 and p.id = 2", 3, 1),
        ("select t.id from t full join p on t.plane = p.plane where t.id = 1", 3, 4),
        ("select t.id from t semi join p using (plane) where t.id = 1", 1, 4),
        ("select t.id from t join p using (plane) where seats = 9 and late = 5", 2, 1),
        ("select t.id from t, t as u, p where t.id = 1 and u.id = 2 and p.id = 3", 1, 1),
        ("select 1 from t where exists (select 1 from p where p.id = 1) and t.id = 1", 1, 1),
        ("select t.id from t join p on t.plane = p.plane and t.id = 1 and p.id < 3", 1, 2),
        ("select t.id, p.id as of from t left join p on t.plane = p.plane and t.id = 1 and p.id < 3", 3, 2),
        ("select t.id, p.id as of from t right join p on t.plane = p.plane and t.id = 1 and p.id < 3", 1, 4),
        ("select t.id from t semi join p on t.plane = p.plane and p.id < 3 and t.id = 1", 1, 2),
        ("select t.id from t anti join p on t.plane = p.plane and p.id < 3 where t.id > 4", 1, 2),
        ("select t.id from t full join p on t.plane = p.plane and t.id = 1", 3, 4),
        ("select id from t join p using (id) where id = 3", 1, 1),
        ("select id from t left join p using (id) where id = 3", 1, 4),
        ("select id from t right join p using (id) where id = 3", 3, 4),
        ("select id from t full join p using (id) where id = 3", 3, 4),
        ("select id from t semi join p using (id) where id = 3", 1, 4),
        ("select id from t join p using (id) join p as q using (id) where id = 3", 1, 1),
        ("select t.id from t positional join p where t.id = 3", 3, 4),
        ("select 1 from t, (select seats from p) as q where late = 5", 3, 4),
        ("select late from t, p where LATE = 5 and seats = 9", 2, 1),
        ("select * from (select id from t where id = 1), (select id as i from p where id = 2)", 1, 1),
        ("with x as (select id from t where id = 1) select x.id from x, p where p.id = 2", 1, 1),
        ("select id from t where id = 1 union all select id from p where id = 2", 1, 1),
        ("select id from t where id = 1 except select id from t where id = 6", 2, 4),
        ("select id from t where id = 1 union select id from t", 3, 4),
        ("with recursive r as (select id from t where id = 1 union select r.id from r, t where t.id = 2) from r", 1, 4),
        ("with p as (select 1 as id) select t.id from t, p where p.id = 1 and t.id = 1", 1, 4),
    ],
)
def test_each_table_is_pruned_by_what_is_said_of_its_columns(
    flights: tm.Table, planes: tm.Table, text: str, mine: int, theirs: int
) -> None:
    found = _rows(flights.sql(text, tables={"p": planes}))
    assert sorted(found, key=repr) == sorted(_native(text), key=repr)
    plan = flights.explain(text, tables={"p": planes})
    assert [len(plan[name].splits) for name in ("t", "p")] == [mine, theirs]


CONDITION = st.sampled_from(
    ["t.id = 1", "p.id < 3", "t.late is null", "p.seats is null", "t.late > 5 or p.id = 1", "not t.id < 4", "p.id = 4"]
)
KIND = st.sampled_from(["join", "left join", "right join", "full join", "semi join", "anti join", "cross join"])


@settings(max_examples=scaled(60), deadline=None)
@given(KIND, st.lists(CONDITION, min_size=1, max_size=3), st.lists(CONDITION, max_size=2), st.booleans())
def test_pruning_changes_no_answer_of_a_join(
    flights: tm.Table, planes: tm.Table, kind: str, conditions: list[str], met: list[str], swapped: bool
) -> None:
    left, right = ("p", "t") if swapped else ("t", "p")
    if kind in ("semi join", "anti join"):
        conditions = [each for each in conditions if f"{right}." not in each] or ["true"]
    on = "" if kind == "cross join" else f"on {' and '.join(['t.plane = p.plane', *met])}"
    text = f"select {left}.id, {left}.plane from {left} {kind} {right} {on} where {' and '.join(conditions)}"
    assert sorted(_rows(flights.sql(text, tables={"p": planes})), key=repr) == sorted(_native(text), key=repr)


@settings(max_examples=scaled(30), deadline=None)
@given(KIND.filter(lambda each: each != "cross join"), st.sampled_from(["id", "plane"]), st.booleans(), st.data())
def test_pruning_changes_no_answer_of_a_join_by_a_shared_column(
    flights: tm.Table, planes: tm.Table, kind: str, shared: str, swapped: bool, data: st.DataObject
) -> None:
    left, right = ("p", "t") if swapped else ("t", "p")
    alone = kind in ("semi join", "anti join")
    said = {"id": ["ID = 3", "id > 4", "id is null"], "plane": ["plane = 'a'", "Plane is null", "plane > 'b'"]}[shared]
    said += ["t.late = 5"] if not alone or left == "t" else []
    said += ["late is null", "seats = 9"] if not alone else []
    text = f"select {shared} from {left} {kind} {right} using ({shared}) where {data.draw(st.sampled_from(said))}"
    text = data.draw(st.sampled_from([text, f"with x as ({text}) from x", f"{text} union all select plane from p"]))
    if "union" in text and shared == "id":
        text = text.replace("select plane", "select id")
    assert sorted(_rows(flights.sql(text, tables={"p": planes})), key=repr) == sorted(_native(text), key=repr)


def test_a_damaged_split_of_any_table_is_noticed(tmp_path: Path, flights: tm.Table) -> None:
    planes = _table(tmp_path, PLANES, each=4)
    (split,) = (tmp_path / "table").glob("splits/**/*.parquet")
    content = bytearray(split.read_bytes())
    content[50] ^= 1
    split.write_bytes(content)
    with pytest.raises(Corrupt, match=split.name):
        flights.sql(JOIN, tables={"p": planes})


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"t": PLANES}, "the name of a table in a query cannot be 't'"),
        ({"T": PLANES}, "the name of a table in a query cannot be 'T'"),
        ({"p": PLANES, "P": PLANES}, "the name of a table in a query cannot be 'P'"),
        ({"": PLANES}, "the name of a table in a query cannot be ''"),
        ({'p" as x': PLANES}, "the name of a table in a query cannot be"),
        ({"duckdb_settings": PLANES}, "the name of a table in a query cannot be 'duckdb_settings'"),
        ({"tidemark_template_t": PLANES}, "the name of a table in a query cannot be 'tidemark_template_t'"),
        ({1: PLANES}, "the name of a table in a query cannot be 1"),
        ([PLANES], "Give a mapping"),
        ({"p": "planes"}, "the table 'p' of the query is 'planes'. Give a Table or Arrow data"),
        ({"p": [{"a": 1}]}, "the table 'p' of the query is"),
        ({"q": PLANES}, "unknown table 'p'. A query can read only the tables t, q"),
        (None, "unknown table 'p'. A query can read only the table t"),
    ],
)
def test_what_is_no_table_of_a_query_is_refused(flights: tm.Table, tables: Any, said: str) -> None:
    with pytest.raises(InvalidInput) as error:
        flights.sql(JOIN, tables=tables)
    assert said in str(error.value)
