"""What may have another value when it is evaluated again: told by DuckDB's own list of its functions (decision 0151).

That list has a stability per function, but none per macro, whose definition says what it calls. And some words are
functions where no column has the name, such as `current_date`: DuckDB binds them without a table.
"""

from __future__ import annotations

import functools
from collections.abc import Collection

from storage_core.engine.functions import MACROS
from storage_core.engine.statement import parse, parser
from storage_core.engine.tree import Node, arguments, nodes_of, refused

LISTED_AS_CONSISTENT = frozenset({"current_localtime", "current_localtimestamp"})
"""What DuckDB's list takes for the same at all times though it is the time, as `age` of one argument is."""

_LISTED = """
    SELECT DISTINCT function_name FROM duckdb_functions()
    WHERE stability <> 'CONSISTENT' AND return_type <> '"NULL"' -- what returns nothing, as error does, has no value
"""
_DEFINED = "SELECT function_name, parameters, macro_definition FROM duckdb_functions() WHERE function_type = 'macro'"


def require_repeatable(text: str, columns: Collection[str], what: str) -> None:
    """Return when one expression over the columns of a table has the same value whenever it is evaluated for a row.

    Raises `InvalidInput` that calls it `what`, and names what has another value at another time.
    """
    found = _first(parse(f"SELECT {text}", what), {name.lower() for name in columns}, unstable())
    if found is not None:
        raise refused(
            text,
            what,
            f"{found} may have another value when it is evaluated again, as it is where others commit meanwhile; write "
            "the value itself, as in ts < TIMESTAMP '2026-01-31 12:00:00', or choose by what rows hold, as in "
            "hash(id) % 10 = 0",
        )


@functools.cache
def unstable() -> frozenset[str]:
    """Return the names, in lower case, of the functions and macros that may have another value for the same arguments.

    `age` of one argument is not among them.
    """
    listed = parser().execute(_LISTED).fetchall()
    found = LISTED_AS_CONSISTENT | {str(name).lower() for (name,) in listed}
    macros = [
        (str(name), {str(each).lower() for each in parameters}, parse(f"SELECT {definition}"))
        for name, parameters, definition in parser().execute(_DEFINED).fetchall()
        if name in MACROS
    ]
    while new := {name for name, own, tree in macros if name not in found and _first(tree, own, found)}:
        found |= new
    return found


def _first(tree: Node, columns: Collection[str], functions: Collection[str]) -> str | None:
    """The first function or word that is not the same at all times; None where there is none."""
    for node in nodes_of(tree):
        if "function_name" in node:
            name = str(node["function_name"]).lower()
            if name in functions or (name == "age" and len(arguments(node)) == 1):
                return name
        elif node.get("class") == "COLUMN_REF" and len(node["column_names"]) == 1:
            name = str(node["column_names"][0]).lower()
            if name not in columns and _has_value_without_table(name):
                return name
    return None


@functools.lru_cache(maxsize=256)
def _has_value_without_table(name: str) -> bool:
    """Whether a word that is no column is one of DuckDB's own, as `current_date` is."""
    import duckdb

    quoted = name.replace('"', '""')
    try:
        parser().execute(f'SELECT "{quoted}"')  # one identifier
    except duckdb.Error:
        return False
    return True
