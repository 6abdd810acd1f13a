"""The answer of a SELECT depends only on the columns that it reads."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest

from storage_core.engine.statement import check, parse
from storage_core.read.sql_predicate import columns_read

ROWS = pa.table(
    {
        "a": [1, 2, 2, None],
        "B": ["x", "y", None, "x"],
        "x y": [1.5, None, 2.5, 3.5],
        "l": [[1], [], None, [2, 3]],
        "s": [{"a": 7, "n": 1}, {"a": 8, "n": 2}, None, {"a": 9, "n": 3}],
    }
)
READS = {
    "select count(*) from t": "",
    "select count(*) as a from t": "",
    "select 1 from t limit 2": "",
    "select count(*) from t where 1 = 0": "",
    "select count(*) from t as one, t as two": "",
    "select count(*) over () from t": "",
    "select (select count(*) from t) from t": "",
    "with c as (select 1 as n from t) select sum(n) from c": "",
    "select range from range(3), t": "",
    "select A from t": "a",
    'select "b" from t': "B",
    'select t."X Y" from t': "x y",
    "select count(a) from t": "a",
    "select count(*) from t where b = 'x'": "B",
    "select count(*) filter (a > 1) from t": "a",
    "select b, count(*) from t group by 1 having max(a) > 1": "a B",
    "select a from t order by b": "a B",
    "select a as n from t qualify row_number() over (partition by b order by l) = 1": "a B l",
    "select s.n from t": "s",
    "select t.s.n from t": "s",
    "select s.a from t": "a s",
    "select b.repeat(2) from t": "B",
    "select t.b.repeat(2) from t": "B",
    "select list_transform(l, lambda n: n + a) from t": "a l",
    "select count(*) from t join t as u using (a)": "a",
    "select count(*) from t as u join t as v on u.a = v.a": "a",
    "select count(*) from t asof join t as u on t.a >= u.a": "a",
    "select (select max(a) from t as v where v.b = u.b) from t as u": "a B",
    "select unnest(l) from t": "l",
    "select n from t, unnest(l) as v(n)": "l",
    "select distinct on (b) 1 from t": "B",
    "with c as (select a as n from t) select c.n from c": "a",
    "with recursive r(n) as (select max(a) from t union all select n - 1 from r where n > 0) select * from r": None,
    "select case when a is null then b end from t": "a B",
    "select a::varchar || b from t": "a B",
    "select a in (select length(b) from t) from t": "a B",
    "select string_agg(b order by a) from t": "a B",
    "select 1 from t group by grouping sets ((a), ())": "a",
    "from t": None,
    "select * from t": None,
    "select t from t": None,
    "select T from t": None,
    "select u from t as u": None,
    "select t.to_json() from t": None,
    "select count(t) from t": None,
    "select to_json(u) from t u": None,
    "select (u).b from t u": None,
    "select s from t as s(p, q, b, l, n)": None,
    "select p from t as u(p)": None,
    "select count(*) from t natural join t as u": None,
    "select columns('b') from t": None,
    "select count(columns(*)) from t": None,
    "select * exclude (a) from t": None,
    "select #2 from t": None,
    "select j from (t cross join (select 1 as one)) as j": None,
    "select count(u) from (t as u join t as v on true)": None,
    "select {'r': t} from t": None,
    "select (select t) from t": None,
    "select main.t from t": None,
    "select p.q, t.a from t, p": "a",
    "select p, t.a from t, p": "a",
    "select q from t as q, p": None,
    "select 1 from t group by t": None,
    "select x from (select unnest([t]) as x from t)": None,
    "select a from t order by all": None,
    "select 1 from (from t)": None,
    "from t pivot (count(*) for b in ('x', 'y'))": None,
    "describe select a from t": None,
    "summarize select a from t": None,
}


@pytest.mark.parametrize("text", READS)
def test_the_columns_that_are_named_are_found(text: str) -> None:
    tree = parse(text)
    check(tree, text, tables=["t", "p"])
    found = columns_read(tree, ROWS.column_names, "t")
    expected = READS[text]
    assert found == (None if expected is None else {each for each in ROWS.column_names if each in _names(expected)})


def _names(text: str) -> list[str]:
    return ["x y"] if text == "x y" else text.split()


@pytest.mark.parametrize("text", [each for each, columns in READS.items() if columns is not None])
def test_an_answer_does_not_depend_on_other_columns(text: str) -> None:
    read = columns_read(parse(text), ROWS.column_names, "t")
    assert read is not None
    blank = [ROWS[each] if each in read else pa.nulls(ROWS.num_rows, ROWS[each].type) for each in ROWS.column_names]
    assert _answer(text, pa.table(blank, schema=ROWS.schema)) == _answer(text, ROWS)


def _answer(text: str, rows: pa.Table) -> list[tuple[object, ...]]:
    with duckdb.connect() as connection:
        connection.register("t", rows)
        connection.register("p", pa.table({"q": [1, 2]}))
        return sorted(connection.sql(text).fetchall(), key=repr)


def test_names_that_differ_in_case_beyond_ascii_all_count() -> None:
    assert columns_read(parse('select "é" from t'), ["é", "É", "e"], "t") == frozenset({"é", "É"})
