"""A condition must be true or false for a row. A number, a text or a time is refused, and no row changes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

import tidemark as tm
from storage_core.base.errors import InvalidInput
from storage_core.engine.statement import parser
from storage_core.read.sql_predicate import BOOLEAN_FUNCTIONS, from_sql
from storage_core.table import Table

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        ("page", pa.string()),
        ("status", pa.int32()),
        ("ok", pa.bool_()),
        ("seen", pa.timestamp("us", "UTC")),
    ]
)
ROWS = [
    {"id": 1, "page": "red", "status": 200, "ok": True, "seen": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)},
    {"id": 2, "page": "blue", "status": 0, "ok": False, "seen": None},
]
WORDS = {"name": "words", "kind": "fulltext", "columns": ["page"]}
CODES = {"name": "codes", "kind": "bitmap", "columns": ["status"]}


def _append(rows: list[dict[str, Any]]) -> Table:
    table = Table.create(f"memory://{uuid4()}", SCHEMA, indexes=[WORDS, CODES])
    table.append(rows)
    return table


def _keyed(rows: list[dict[str, Any]]) -> Table:
    table = Table.create(f"memory://{uuid4()}", SCHEMA, primary_key="id", indexes=[WORDS, CODES])
    table.upsert(rows, on="id")
    return table


WRONG = [
    (
        "status",
        "the condition 'status' is not true or false for a row. Compare the column with a value, such as status = 1",
    ),
    (
        "page",
        "the condition 'page' is not true or false for a row. Compare the column with a value, such as page = 'a'",
    ),
    ("seen", "Compare the column with a value, such as seen is not null"),
    ("T.Status", "the condition 'T.Status' is not true or false"),
    ("5", "the condition '5' is not true or false for a row. Compare a column with a value, such as id = 1"),
    ("0", "the condition '0' is not"),
    ("'red'", "is not true or false for a row"),
    ("id = 1 or status", "the condition 'status' is not true or false for a row"),
    ("not status", "the condition 'status' is not true or false for a row"),
    ("not (ok and (id > 0 or page))", "the condition 'page' is not true or false for a row"),
    ("status + 1", "is not true or false for a row"),
    ("case when ok then 1 else 0 end", "is not true or false for a row"),
    ("coalesce(status, 1)", "is not true or false for a row"),
    ("length(page)", "is not true or false for a row"),
    ("nullif(id, 1)", "is not true or false for a row"),
    ("cast(ok as int)", "is not true or false for a row"),
]

ACTS: dict[str, Callable[[Table, Any], object]] = {
    "delete": lambda table, condition: table.delete(condition),
    "update": lambda table, condition: table.update({"page": "x"}, condition),
    "overwrite": lambda table, condition: table.overwrite([ROWS[0]], condition),
    "forget": lambda table, condition: table.forget(condition),
    "forget_report": lambda table, condition: table.forget_report(condition),
    "scan": lambda table, condition: table.scan(filter=condition),
    "search": lambda table, condition: table.search("red", index="words", filter=condition).to_arrow(),
    "search_count": lambda table, condition: table.search_count(200, index="codes", filter=condition),
}


@pytest.mark.parametrize(("condition", "message"), WRONG)
def test_a_condition_of_another_type_deletes_no_row(condition: str, message: str) -> None:
    for table in (_append(ROWS), _append([]), _keyed(ROWS)):
        with pytest.raises(InvalidInput) as caught:
            table.delete(condition)
        assert message in str(caught.value)
        assert table.refresh().scan(consistency="latest").to_arrow().num_rows in (2, 0)


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("made", [_append, _keyed])
def test_every_statement_and_read_refuses_a_condition_of_another_type(
    made: Callable[[list[dict[str, Any]]], Table], act: str
) -> None:
    table = made(ROWS)
    if act == "overwrite" and made is _keyed:  # a keyed table has no overwrite
        return
    for condition in ("status", "5", "ok and length(page)"):
        with pytest.raises(InvalidInput, match="is not true or false for a row"):
            ACTS[act](table, condition)
    assert table.refresh().scan(consistency="latest").to_arrow().num_rows == 2


def test_a_condition_of_another_type_is_refused_within_a_filter_of_parts() -> None:
    table = _append(ROWS)
    wrong = from_sql("status")
    for given in (wrong & (tm.col("id") == 1), (tm.col("id") == 1) | wrong, ~wrong):
        with pytest.raises(InvalidInput, match="the condition 'status' is not true or false"):
            table.scan(filter=given)


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("ok", [1]),
        ("t.ok", [1]),
        ("not ok", [2]),
        ("true", [1, 2]),
        ("null", []),
        ("cast(status as bool)", [1]),
        ("coalesce(ok, false)", [1]),
        ("case when ok then true else false end", [1]),
        ("page like 'r%'", [1]),
        ("page in ('red', 'x')", [1]),
        ("status between 1 and 300", [1]),
        ("seen is null", [2]),
        ("ok is distinct from true", [2]),
        ("starts_with(page, 'b') and status = 0", [2]),
        ("list_contains([1, 3], id)", [1]),
        ("if(ok, true, false)", [1]),
    ],
)
def test_a_condition_that_is_true_or_false_is_answered(condition: str, found: list[int]) -> None:
    table = _append(ROWS)
    assert sorted(table.scan(["id"], condition).to_arrow().column("id").to_pylist()) == found
    assert table.delete(condition).rows == len(found)


def test_the_listed_functions_return_only_booleans() -> None:
    listed = parser().execute(
        "select function_name, bool_and(return_type = 'BOOLEAN') from duckdb_functions() "
        "where function_type = 'scalar' group by function_name"
    )
    of_duckdb = dict(listed.fetchall())
    assert [name for name in sorted(BOOLEAN_FUNCTIONS) if not of_duckdb.get(name)] == []
