"""The functions that a query may use, compared with the list of the installed engine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_core.base.errors import InvalidInput
from storage_core.engine.session import session
from storage_core.engine.statement import (
    AGGREGATES,
    COPYING,
    LISTED_AS_CONSISTENT,
    MACROS,
    NAMED,
    OF_ONE_ROW,
    OPERATORS,
    SCALARS,
    TABLE_FUNCTIONS,
    check,
    parse,
    unstable,
)

LOOKED_AT = Path(__file__).parents[1] / "golden" / "duckdb-functions.txt"


def functions() -> Iterator[tuple[str, str]]:
    query = "SELECT DISTINCT function_type, function_name FROM duckdb_functions() ORDER BY ALL"
    with session() as connection:
        yield from connection.execute(query).fetchall()


def test_every_function_of_the_engine_was_looked_at() -> None:
    """For a new or removed name, decide whether a query may call it (`engine.statement`), and update this list."""
    known = LOOKED_AT.read_text(encoding="utf-8").splitlines()
    assert [f"{kind} {name}" for kind, name in functions()] == known


def test_every_function_that_a_query_may_call_is_one_of_the_engine() -> None:
    names = {name for _, name in functions()}
    assert not (OPERATORS | SCALARS | AGGREGATES | MACROS | TABLE_FUNCTIONS | OF_ONE_ROW) - names


def test_the_macros_that_copy_an_argument_are_known() -> None:
    query = "SELECT function_name, parameters, macro_definition FROM duckdb_functions() WHERE function_type = 'macro'"
    with session() as connection:
        macros = connection.execute(query).fetchall()
    copying = {
        name
        for name, parameters, definition in macros
        if any(len(re.findall(rf"\b{re.escape(each)}\b", definition)) > 1 for each in parameters)
    }
    assert copying & MACROS == COPYING


def test_what_serves_one_row_of_a_region_may_be_called_by_a_query() -> None:
    assert not OF_ONE_ROW - NAMED


@pytest.mark.parametrize(
    "name",
    sorted({name for kind, name in functions() if kind != "pragma" and name.isidentifier()} - NAMED - TABLE_FUNCTIONS),
)
def test_what_is_not_listed_can_neither_be_called_nor_read_from(name: str) -> None:
    for text in (
        f"select {name}('a')",
        f"select {name}()",
        f"from {name}('a')",
        f"select count(*) over (order by {name}(1))",
    ):
        with pytest.raises(InvalidInput):
            check(parse(text), text, tables=["t"])


def test_what_is_another_at_another_time_is_told_by_the_engine() -> None:
    named = {each for each in unstable() if each in {name.lower() for name in NAMED}}
    assert {"random", "uuid", "uuidv7", "now", "today", "ago", "get_current_timestamp", *LISTED_AS_CONSISTENT} <= named
    assert not named & OF_ONE_ROW


def test_every_function_that_gives_a_time_of_nothing_is_another_at_another_time() -> None:
    """If DuckDB lists a further time function as consistent, add the function to `LISTED_AS_CONSISTENT`.

    If DuckDB no longer lists a function as consistent, remove the function from `LISTED_AS_CONSISTENT`.
    """
    query = """
        SELECT DISTINCT function_name, stability FROM duckdb_functions()
        WHERE function_type = 'scalar' AND len(parameters) = 0 AND regexp_matches(return_type, 'TIME|DATE|UUID')
    """
    with session() as connection:
        found = dict(connection.execute(query).fetchall())
    assert {*found} <= unstable()
    assert {name for name, stability in found.items() if stability == "CONSISTENT"} == LISTED_AS_CONSISTENT
