"""Results of `sql`: rows in every form, small results in memory, larger results streamed, and parameter values."""

from __future__ import annotations

import datetime as dt
import gc
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidemark as tm
from storage_core.base.errors import InvalidInput, Unavailable
from storage_core.engine.sandbox.process import end_all
from storage_core.engine.session import session
from storage_core.read.answers import AT_ONCE_BYTES
from tests.support.scale import scaled

SCHEMA = pa.schema([("n", pa.int64()), ("name", pa.string()), ("f", pa.float64()), ("day", pa.date32())])
ROWS = pa.table(
    [
        [1, 2, 3, None],
        ["a", "it's", None, "ü"],
        [0.5, 0.25, None, -1.0],
        [dt.date(2026, 1, 1), None, dt.date(2026, 1, 3), dt.date(1969, 12, 31)],
    ],
    schema=SCHEMA,
)
ALL = "select * from t order by n nulls last"
MANY = 3 * AT_ONCE_BYTES // 8
LARGE = f"select range as n from range({MANY}) where (select count(*) from t) = 4"
SMALL_MEMORY = tm.QueryLimits(memory_bytes=16 * 2**20)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tm.Table:
    made = tm.Table.create(str(tmp_path_factory.mktemp("results") / "table"), SCHEMA)
    made.append(ROWS)
    return made


def test_a_result_is_had_in_every_form(table: tm.Table) -> None:
    result = table.sql(ALL)
    assert result.schema == SCHEMA
    assert result.to_arrow().equals(ROWS)
    assert result.to_pandas().equals(ROWS.to_pandas())
    assert isinstance(result.to_pandas(), pd.DataFrame)
    assert result.to_polars().equals(pl.DataFrame(ROWS))
    assert result.to_duckdb().order("n nulls last").to_arrow_table().equals(ROWS)
    assert pa.Table.from_batches(result.fetch_batches()).equals(ROWS)
    assert [batch.num_rows for batch in result.fetch_batches(3)] == [3, 1]
    assert pa.table(result).equals(ROWS)
    assert duckdb.from_arrow(result).fetchall() == duckdb.from_arrow(ROWS).fetchall()
    scan = table.scan()
    assert scan.to_polars().sort("n", nulls_last=True).equals(pl.DataFrame(ROWS))
    assert pa.Table.from_batches(scan.fetch_batches(2)).sort_by("n").equals(ROWS)


def test_a_result_is_used_as_the_arrow_table_that_it_is(table: tm.Table) -> None:
    result = table.sql(ALL)
    assert result.num_rows == len(result) == 4
    assert result.column_names == SCHEMA.names
    assert result.column("n").to_pylist() == result["n"].to_pylist() == [1, 2, 3, None]
    assert result.to_pylist() == ROWS.to_pylist()
    assert result.select(["n"]).equals(ROWS.select(["n"]))
    assert result == ROWS
    assert result == table.sql(ALL)
    assert result != table.sql("select 1 as n")
    assert repr(result) == repr(ROWS)
    with pytest.raises(AttributeError, match="'SqlResult' object has no attribute 'colums'"):
        _ = result.colums


def test_an_answer_of_no_rows_has_its_columns(table: tm.Table) -> None:
    result = table.sql("select n, name from t where n > 3")
    assert result.to_arrow().equals(ROWS.select(["n", "name"]).slice(4))
    assert list(result.fetch_batches()) == []


def test_a_large_answer_is_streamed_in_bounded_memory(table: tm.Table) -> None:
    result = table.sql(LARGE, limits=SMALL_MEMORY)
    held, rows, total = pa.total_allocated_bytes(), 0, 0
    for batch in result.fetch_batches():
        assert pa.total_allocated_bytes() - held < AT_ONCE_BYTES
        rows += batch.num_rows
        total += int(batch.column("n").to_numpy().sum())
    assert (rows, total) == (MANY, MANY * (MANY - 1) // 2)
    with pytest.raises(InvalidInput, match=r"read as a stream, or the answer is closed. Run the query again"):
        result.to_arrow()


def test_a_large_answer_is_held_whole_up_to_its_limit(table: tm.Table) -> None:
    assert table.sql(LARGE).num_rows == MANY
    with pytest.raises(Unavailable, match=r"larger than `memory_bytes` = 16777216. Read the answer as a stream"):
        table.sql(LARGE, limits=SMALL_MEMORY).to_arrow()


def test_a_large_answer_that_is_closed_or_forgotten_ends_its_process(table: tm.Table) -> None:
    end_all()
    others = _processes()
    with table.sql(LARGE) as result:
        (process,) = _processes() - others
        assert "not read yet" in repr(result)
    assert process not in _processes()
    with pytest.raises(InvalidInput, match="closed"):
        result.to_reader()
    result = table.sql(LARGE)
    (process,) = _processes() - others
    del result
    gc.collect()
    assert process not in _processes()


def test_a_large_answer_that_fails_is_never_taken_for_its_first_rows(table: tm.Table) -> None:
    result = table.sql(f"select if(range < {MANY - 1}, range, ('x' || range)::bigint) as n from range({MANY})")
    with pytest.raises(InvalidInput, match="is not a value of the type"):
        result.to_arrow()
    with pytest.raises(InvalidInput, match="Run the query again"):
        result.to_arrow()


@pytest.mark.parametrize("batch_rows", [0, -1, "x"])
def test_a_batch_has_a_row(table: tm.Table, batch_rows: Any) -> None:
    for rows in (table.sql(ALL), table.scan(), table.scan(filter="n > 1")):
        with pytest.raises(InvalidInput, match="a batch has at least one row"):
            rows.to_reader(batch_rows)


def _processes() -> set[str]:
    """Return the running processes that any thread of this process has started."""
    tasks = Path("/proc/self/task").glob("*/children")
    return {each for task in tasks for each in task.read_text().split()}


VALUES: list[Any] = [
    None,
    True,
    -5,
    2**70,
    1.5,
    -0.0,
    float("nan"),
    float("-inf"),
    "it's -- a /* text */ $1 ?",
    "ü\0\n",
    b"\x00'\xff",
    Decimal("-1.50"),
    dt.date(1, 1, 1),
    dt.datetime(2020, 1, 1, 2, 3, 4, 567, dt.UTC).replace(tzinfo=None),
    dt.datetime(2020, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=2))),
    dt.time(1, 2, 3, 4),
    dt.timedelta(days=-1, microseconds=5),
    UUID(int=7),
    [1, 2],
    [],
    [[None], ["x'"]],
    {"a'b": 1, "c": [1.5]},
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_parameter_is_the_value_that_duckdb_takes_it_for(table: tm.Table, value: object) -> None:
    text = "select $1 as value, typeof($1) as type, [$1] as list, case $1 when $1 then 1 end as same"
    found = table.sql(text, parameters=[value]).to_arrow()
    with session() as connection:
        wanted = connection.sql(text, params=[value]).to_arrow_table()
    assert repr(found.to_pylist()) == repr(wanted.to_pylist())
    assert found.schema == wanted.schema


@pytest.mark.parametrize(
    ("text", "parameters", "numbers"),
    [
        ("select n from t where n = ?", [2], [2]),
        ("select n from t where 'é' <> 'e' and n in (?, ?) order by n", (3, 1), [1, 3]),
        ("select n from t where n = $2 or n = $1 or n = $2 order by n", [1, 3], [1, 3]),
        ("select n from t where name = $who", {"who": "it's"}, [2]),
        ("select n from t where name = $who", {"who": "x' or 1=1 --"}, []),
        ("select n from t order by n limit ? offset ?", [2, 1], [2, 3]),
        ("select n from t where n between $low and $high order by n", {"low": 2, "high": 3}, [2, 3]),
        ("select n -? as n from t where n = 1 -- ?", [-5], [6]),
        ("select n from t where day >= ?", [dt.date(2026, 1, 2)], [3]),
        ("select n from t where '?' = ? and n = 1", ["?"], [1]),
        ("select n from (select n from t where n > ?) order by n", [1], [2, 3]),
        ("select n from t where list_contains(?, n) order by n", [[1, 2]], [1, 2]),
        ("select n from t where n = 1", [], [1]),
    ],
)
def test_a_query_with_parameters_is_answered(
    table: tm.Table, text: str, parameters: Sequence[object] | Mapping[str, object], numbers: list[int]
) -> None:
    assert table.sql(text, parameters=parameters).column("n").to_pylist() == numbers


@pytest.mark.parametrize(
    ("text", "parameters", "said"),
    [
        ("select ?", None, "needs a value for the parameter 1. Pass it in `parameters`, or write it into the query"),
        ("select ?", [], "needs a value for the parameter 1. Pass it in `parameters`"),
        ("select ?, ?", [1], "needs a value for the parameter 2. Pass it"),
        ("select 1", [1], "has no parameter 1. Leave the value out"),
        ("select $a", {"b": 1}, "needs a value for the parameter a. Pass it"),
        ("select ?", {"a": 1}, "needs a value for the parameter 1. Pass it"),
        ("select ?", "a", "Give a list of values, or a mapping from names to values"),
        ("select ?", 1, "Give a list of values, or a mapping from names to values"),
        ("select ?", [object()], "parameter 1 cannot be a value of the type object. Give a number, a text"),
        ("select ?", [2**5000], "parameter 1 cannot be an integer of 5,001 bits"),
        ("select ?", [2**200], "parameter 1 cannot be a whole number of 201 bits"),
        ("select ?", ["\ud800"], "parameter 1 cannot be"),
        ("select ? from read_blob(?)", [1, "/etc/passwd"], "the table function read_blob is not allowed"),
    ],
)
def test_wrong_parameters_are_refused(table: tm.Table, text: str, parameters: Any, said: str) -> None:
    with pytest.raises(InvalidInput) as error:
        table.sql(text, parameters=parameters)
    assert said in str(error.value)


@settings(max_examples=scaled(50), deadline=None)
@given(st.text(max_size=12), st.text(max_size=12))
def test_a_text_is_never_more_than_a_value(table: tm.Table, first: str, second: str) -> None:
    found = table.sql("select ? as a, $name as b".replace("?", "$first"), parameters={"first": first, "name": second})
    assert found.to_pylist() == [{"a": first, "b": second}]


def test_the_values_of_parameters_prune_like_any_other(tmp_path: Path) -> None:
    table = tm.Table.create(str(tmp_path / "table"), SCHEMA)
    for first in (0, 2):
        table.append(ROWS.slice(first, 2))
    for value in (2, "2", True, 0.5, Decimal("0.5"), dt.date(2026, 1, 3)):
        column = {float: "f", Decimal: "f", dt.date: "day"}.get(type(value), "n")
        literal = table.explain(f"select n from t where {column} = {duckdb.ConstantExpression(value)}")
        given = table.explain(f"select n from t where {column} = ?", parameters=[value])
        assert given == literal
        assert len(given.splits) == (2 if isinstance(value, bool | str | Decimal) else 1)
