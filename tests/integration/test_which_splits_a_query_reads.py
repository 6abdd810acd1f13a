"""For every form of a condition, a query reads exactly the splits that can contain a matching row."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from storage_core.engine.session import session
from tidemark import Table, col

SPLITS = 20
DAYS = [dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(days=each, hours=5) for each in range(SPLITS)]
ROWS = pa.table(
    {
        "n": pa.array(range(SPLITS)),
        "Status": pa.array(range(SPLITS)),
        "É": pa.array(range(SPLITS)),
        "s": pa.array([f"s{each:02}" for each in range(SPLITS)]),
        "ts": pa.array(DAYS, pa.timestamp("us", "UTC")),
        "local": pa.array([each.replace(tzinfo=None) for each in DAYS], pa.timestamp("us")),
        "pair": pa.array([{"n": SPLITS - each} for each in range(SPLITS)]),
    }
)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Make a table with one split per row."""
    made = Table.create(str(tmp_path_factory.mktemp("which") / "t"), ROWS.schema)
    for number in range(SPLITS):
        made.append(ROWS.slice(number, 1))
    return made


def require_answer(table: Table, text: str, splits: int, tables: dict[str, Any] | None = None) -> None:
    """Check that the query returns the same answer as DuckDB and reads the given number of splits."""
    connection = session()
    for name, rows in {"t": ROWS, **(tables or {})}.items():
        connection.from_arrow(rows).create(name)
    found, expected = table.sql(text, tables=tables).to_arrow(), connection.sql(text).to_arrow_table()
    if "order by" in text:
        assert found.to_pylist() == expected.to_pylist()
    else:
        assert sorted(map(str, found.to_pylist())) == sorted(map(str, expected.to_pylist()))
    assert found.schema.names == expected.schema.names
    assert len(table.explain(text, tables=tables).splits) == splits, text


@pytest.mark.parametrize(
    ("condition", "splits"),
    [
        ("n = 3", 1),
        ("N = 3", 1),
        ("T.N = 3", 1),
        ("status = 3", 1),
        ('"STATUS" in (3, 5) or N = 7', 3),
        ("Pair.N = 3", SPLITS),
        ("S = 's03'", 1),
    ],
)
def test_a_column_is_found_whatever_the_case_of_its_name(table: Table, condition: str, splits: int) -> None:
    require_answer(table, f"select * from t where {condition}", splits)
    assert len(table.scan(filter=condition).explain().splits) == splits


@pytest.mark.parametrize("name", ["N", "STATUS", "status"])
def test_a_filter_finds_a_column_whatever_the_case_of_its_name(table: Table, name: str) -> None:
    wanted = ~(col(name) != 3)
    assert len(table.scan(filter=wanted).explain().splits) == 1
    assert table.scan(["n"], filter=wanted).to_arrow().to_pylist() == [{"n": 3}]


def test_another_name_for_a_column_is_not_the_column(table: Table) -> None:
    require_answer(table, "select n + 1 as N from t where N = 3", 1)
    require_answer(table, 'select n + 1 as "é" from t where "é" = 3', SPLITS)
    require_answer(table, "select n + 1 as m from t where M = 3", SPLITS)


@pytest.mark.parametrize(
    ("condition", "splits"),
    [
        ("n = 3::bigint", 1),
        ("n = cast('3' as bigint)", 1),
        ("3::smallint = n", 1),
        ("n = '3'::int", 1),
        ("n < 2::int8", 2),
        ("n = -3 + 6", 1),
        ("n = -(-4 * 2) - 5", 1),
        ("n between 1 + 1 and 2 * 2", 3),
        ("n = 6 / 2", SPLITS),
        ("n = '3.2'::bigint", SPLITS),
        ("n = 3.4::bigint", SPLITS),
        ("n = try_cast('3' as bigint)", SPLITS),
        ("n is not distinct from 3", 1),
        ("3 is not distinct from n", 1),
        ("not (n is distinct from 3)", 1),
        ("n is distinct from 3", SPLITS - 1),
        ("n is not distinct from null", SPLITS),
        ("n = any([3])", 1),
        ("n = any([3, 2 + 3])", 2),
        ("n = any([3, null])", SPLITS),
        ("n = any([3.5, 3])", SPLITS),
        ("not n = any([3])", SPLITS),
        ("n = any(select unnest([3, 5]) limit 1)", 2),
        ("not n = any(select unnest([3, 5]) limit 1)", SPLITS),
        ("n <> all([3])", SPLITS),
        ("ts::date = '2024-01-03'", 1),
        ("cast(local as date) = date '2024-01-03'", 1),
        ("ts::date in ('2024-01-03', '2024-01-05')", 2),
        ("ts::date between '2024-01-03' and '2024-01-05'", 3),
        ("ts::date >= timestamp '2024-01-19'", 2),
        ("'2024-01-19' <= ts::date", 2),
        ("ts::date = '2024-1-3'", SPLITS),
        ("ts::date = timestamp '2024-01-03 05:00:00'", SPLITS),
        ("not (ts::date <> '2024-01-03')", 1),
        ("ts::date is not distinct from '2024-01-03'", 1),
    ],
)
def test_a_value_is_understood_behind_casts_and_arithmetic(table: Table, condition: str, splits: int) -> None:
    require_answer(table, f"select * from t where {condition}", splits)


@pytest.mark.parametrize(
    ("text", "splits"),
    [
        ("select n from t order by n limit 1", 1),
        ("from t order by N desc limit 2 offset 1", 3),
        ("select s as m, n + 1 as more from t order by t.n nulls first, s limit 3", 3),
        ("select x.n, 7 from t as x order by x.n desc nulls last limit 3", 3),
        ("select ts from t order by ts desc limit 1", 1),
        ("select local from t order by local limit 20", SPLITS),
        ("from t order by n limit 0", 1),
        ("select s from t order by s limit 1", SPLITS),
        ("select -n as n from t order by n limit 1", SPLITS),
        ("select -n as N from t order by n limit 1", SPLITS),
        ("select pair.n from t order by n limit 1", SPLITS),
        ("select struct_extract(pair, 'n') from t order by n limit 1", SPLITS),
        ("select * replace (-n as n) from t order by n limit 1", SPLITS),
        ("select n from t order by -n limit 1", SPLITS),
        ("select n from t order by 1 limit 1", SPLITS),
        ("select distinct n from t order by n limit 1", SPLITS),
        ("select n, sum(n) over () from t order by n limit 1", SPLITS),
        ("select n from t group by n order by n limit 1", SPLITS),
        ("select n from t where n > 3 order by n limit 1", SPLITS - 4),
        ("select n from t qualify row_number() over (order by n desc) = 1 order by n limit 1", SPLITS),
        ("select n from t union all select n from t order by n limit 1", SPLITS),
    ],
)
def test_the_first_rows_in_the_order_of_a_column_are_read_of_the_splits_that_have_them(
    table: Table, text: str, splits: int
) -> None:
    require_answer(table, text, splits)


@pytest.mark.parametrize(
    ("text", "splits"),
    [
        ("select n from t limit 1", 1),
        ("from t limit 3 offset 2", 5),
        ("select n * 2 as n from t limit 30", SPLITS),
        ("select n from t limit 0", 0),
        ("select n from t offset 3", SPLITS),
        ("select sum(n) from t limit 1", SPLITS),
        ("select unnest([n, n]) from t limit 1", SPLITS),
        ("select distinct n from t limit 20", SPLITS),
    ],
)
def test_the_first_rows_as_they_come_are_read_of_the_first_splits(table: Table, text: str, splits: int) -> None:
    whole, _, limits = text.partition(" t ")
    numbers = dict(zip(limits.split()[::2], map(int, limits.split()[1::2]), strict=True))
    offset, limit = numbers.get("offset", 0), numbers.get("limit", SPLITS)
    rows = table.sql(f"{whole} t").to_arrow().to_pylist()
    found = table.sql(text).to_arrow().to_pylist()
    assert len(table.explain(text).splits) == splits
    if "distinct" in text:
        assert sorted(map(str, found)) == sorted(map(str, rows[offset : offset + limit]))
    else:
        assert found == rows[offset : offset + limit]


def test_a_plan_names_what_the_first_rows_leave_out(table: Table) -> None:
    for text, name in (("from t order by n limit 1", "order"), ("from t limit 1", "limit")):
        assert [(step.name, step.splits) for step in table.explain(text).steps if step.splits] == [(name, SPLITS - 1)]


@pytest.mark.parametrize(
    ("text", "splits"),
    [
        ("select min(n), max(n), count(n), count(*) from t", 0),
        ("select max(x.TS) - min(ts) as span, count(*) as rows, max(x.local) from t as x", 0),
        ("select min(n), sum(n) from t", SPLITS),
        ("select min(s) from t", SPLITS),
        ("select min(pair.n) from t", SPLITS),
        ("select count(distinct n) from t", SPLITS),
        ("select min(n) filter (n > 3) from t", SPLITS),
        ("select min(n, 2) from t", SPLITS),
        ("select min(n) over () from t", SPLITS),
        ("select n, max(n) from t group by n", SPLITS),
        ("select min(n + 1) from t", SPLITS),
        ("select max(n) from t where n < 3", 3),
        ("select max(n), (select 3) from t", SPLITS),
    ],
)
def test_the_log_answers_what_it_tells_exactly(table: Table, text: str, splits: int) -> None:
    require_answer(table, text, splits)
    names = [step.name for step in table.explain(text).steps]
    assert (names == ["metrics"]) == (splits == 0)
