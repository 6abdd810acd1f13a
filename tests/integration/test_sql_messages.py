"""Each SQL error message names the fault and the next action of the user. No text of DuckDB is in a message."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from storage_core.base.errors import InvalidInput
from storage_core.change.statement import expr
from storage_core.engine.faults import fault_of, syntax_fault
from storage_core.table import Table

SCHEMA = pa.schema([("time", pa.timestamp("us")), ("page", pa.string()), ("status", pa.int32())])
LIBRARY = re.compile(r"[A-Z]\w+ Error|LINE \d|\^\^|Candidate|[Bb]indings|INT32|_LITERAL|DuckDB's")
UNKNOWN = "unknown column 'statu'. The table has time, page, status. Did you mean 'status'?"


@pytest.fixture(scope="module")
def table() -> Table:
    made = Table.create(f"memory://{uuid4()}", SCHEMA, indexes=[{"name": "w", "kind": "fulltext", "columns": ["page"]}])
    made.append([{"page": "/shop", "status": 200}])
    return made


QUERIES = [
    ("select statu from t", UNKNOWN),
    ("select t.statu from t", UNKNOWN),
    ("select 1 from t order by statu", UNKNOWN),
    ("select * from nosuch", "unknown table 'nosuch'. A query can read only the table t"),
    ("select * from 'rows.ndjson'", "unknown table 'rows.ndjson'. A query can read only the table t"),
    ("selct * from t", "the query 'selct * from t' is not valid SQL near 'selct'. Correct it there"),
    ("select (1 from t", "the query 'select (1 from t' is not valid SQL near 'from'. Correct it there"),
    ("select 'a from t", "is not valid SQL: a quote is not closed. Correct it there"),
    ("select page + 1 from t", "no function + takes VARCHAR and INTEGER. Cast an argument to another type"),
    ("select sum(page) from t", "no function sum takes VARCHAR. Cast an argument"),
    ("select cast(page as int) from t", "the text '/shop' is not a value of the type INTEGER (column 'page'). Use try"),
    ("select date '2026-13-01' from t", "the text '2026-13-01' is not a valid date or time. Use try_cast"),
    ("select status, page from t group by page", "the column 'status' is neither in GROUP BY nor in an aggregate. Add"),
    ("select 1 from t where count(*) > 1", "the condition contains an aggregate. Use HAVING"),
    (
        "select sum(sum(status)) from t",
        "an aggregate contains another aggregate. Compute the inner aggregate in a subquery",
    ),
    ("select a.status from t a, t b where status = 1", "the column 'status' is in several tables. Write the name"),
    ("select x.page from t", "unknown table 'x'. Use a table of the FROM clause"),
    ("select 9223372036854775807 + status from t", "is too large for its type. Cast an operand"),
    ("select 1e30::int from t", "the value 1e+30 is out of the range of the type INTEGER. Cast the value"),
    ("select (select 1, 2) from t", "a subquery used as a value returns several columns. Select one"),
    (
        "select regexp_matches(page, '(') from t",
        "a regular expression is not valid: a group is not closed. Correct the expression at '('",
    ),
    ("select [1, 2]::int[3] from t", "a value cannot be converted to another type near '::int[3]'"),
    ("select struct_extract({'a': 1}, 'b') from t", "the struct has no field 'b'. It has a"),
    ("select lenght(page) from t", "unknown function 'lenght'. Did you mean 'length'?"),
    ("select * from lenght(1)", "unknown function 'lenght'. Did you mean 'length'?"),
    ("select read_text('/x') from t", "the function read_text is not allowed. Use functions that only compute a value"),
    ("select cast(page as strng) from t", "the type strng is not allowed. Did you mean 'STRING'?"),
    (
        "select status::date from t",
        "a value of the type INTEGER cannot be cast to DATE. Cast the value to VARCHAR first",
    ),
    ("select 1 from t; select 2", "is not one SELECT statement. To change rows, use append, upsert, update"),
    ("drop table t", "the query 'drop table t' is not one SELECT statement. To change rows, use append"),
]


@pytest.mark.parametrize(("query", "message"), QUERIES)
def test_a_query_that_cannot_run_is_refused_in_our_words(table: Table, query: str, message: str) -> None:
    for asked in (lambda: table.sql(query).to_arrow(), lambda: table.explain(query, analyze=True)):
        with pytest.raises(InvalidInput) as caught:
            asked()
        assert message in str(caught.value)
        assert not LIBRARY.search(str(caught.value))


@pytest.mark.parametrize("query", ["select statu from t", "select page + 1 from t", "select x.page from t"])
def test_explain_binds_the_query(table: Table, query: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        table.explain(query)
    with pytest.raises(InvalidInput) as of_sql:
        table.sql(query).to_arrow()
    assert str(caught.value) == str(of_sql.value)


ACTS: dict[str, Callable[[Table, str], Any]] = {
    "delete": lambda t, condition: t.delete(condition),
    "update": lambda t, condition: t.update({"status": 1}, condition),
    "overwrite": lambda t, condition: t.overwrite([{"page": "/shop", "status": 1}], condition),
    "forget": lambda t, condition: t.forget(condition),
    "scan": lambda t, condition: t.scan(filter=condition).to_arrow(),
    "search": lambda t, condition: t.search("shop", index="w", filter=condition).to_arrow(),
}
CONDITIONS = [
    ("status >", "the condition 'status >' is not valid SQL near '>'. Write a condition such as status >= 500"),
    ("statu = 1", UNKNOWN),
    ("cast(page as int) = 7", "the text '/shop' is not a value of the type INTEGER (column 'page'). Use try_cast"),
    ("count(*) > 1", "the condition contains an aggregate. Leave it out"),
    ("page + 1 = 2", "no function + takes VARCHAR and INTEGER. Cast an argument"),
    (
        "true; drop table t",
        "the condition 'true; drop table t' is not one expression over the columns. Write the expression",
    ),
    ("lenght(page) > 1", "unknown function 'lenght'. Did you mean 'length'?"),
    (
        "read_text(page) = 'a'",
        "the condition \"read_text(page) = 'a'\" is refused: the function read_text is not allowed.",
    ),
]


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize(("condition", "message"), CONDITIONS)
def test_a_condition_has_one_message_in_every_statement(table: Table, act: str, condition: str, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        ACTS[act](table, condition)
    assert str(caught.value).startswith(message)
    assert not LIBRARY.search(str(caught.value))


def test_an_unknown_column_of_a_join_lists_the_columns_of_each_table(table: Table) -> None:
    with pytest.raises(InvalidInput) as caught:
        table.sql("select statu from t join p on t.page = p.path", tables={"p": pa.table({"path": ["a"]})}).to_arrow()
    assert str(caught.value).startswith(
        "unknown column 'statu'. The table t has time, page, status. The table p has path. Did you mean"
    )


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        ("Binder Error: nobody knows this", "a name or a type does not fit. Correct this part"),
        (
            "Odd Error: secret\n\nLINE 1: select odd(1)\n               ^^^^^^",
            "a part of the text cannot be evaluated near 'odd(1)'",
        ),
        ("Binder Error: x\n\nLINE 1: select 1\n ^", "a name or a type does not fit"),
    ],
)
def test_an_unknown_error_becomes_a_general_sentence(error: str, fault: str) -> None:
    assert fault_of(error).startswith(fault)


def test_a_fault_of_syntax_names_the_word() -> None:
    assert syntax_fault('syntax error at or near "a "" b"') == " near 'a \"\" b'"
    assert syntax_fault("syntax error at end of input") == ": its end is missing"
    assert syntax_fault("anything else") == ""


def test_a_place_that_the_user_did_not_write_means_that_the_end_is_missing() -> None:
    error = 'syntax error at or near "FROM"'
    assert syntax_fault(error, "ms +") == ": its end is missing"
    assert syntax_fault(error, "ms + FROM") == " near 'FROM'"
    with pytest.raises(InvalidInput, match=r"^the expression 'ms \+' is not valid SQL: its end is missing"):
        expr("ms +")
