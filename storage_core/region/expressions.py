"""Region fields as SQL: one expression over `col0, col1…`, run by DuckDB (design page 03; source `001`).

An expression must give one value per row and depend on nothing but its columns. DuckDB's own parser and catalogue
decide: every node of its tree is one of a closed set, and every function a scalar one that is the same on each call.
Columns come in widened (64-bit integers and floats; instants as UTC without a zone), so a promotion changes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from storage_core.errors import InvalidInput
from storage_core.region.transforms import widen, widened

Node = Mapping[str, Any]

_NODES = {"FUNCTION", "COLUMN_REF", "CONSTANT", "CASE", "COMPARISON", "CONJUNCTION", "OPERATOR", "BETWEEN", "CAST"}
_TYPES = "TYPE"
_COLUMN = re.compile(r"col(0|[1-9][0-9]?)", re.ASCII)
_MACROS = {"split_part", "if", "nullif"}
"""Macros of DuckDB that are nothing but scalar functions; the others may look at the session."""
_CHANGING = {"age", "current_localtime", "current_localtimestamp", "hash", "timezone", "version"}
"""Functions that DuckDB calls consistent, and that depend on the day, the session's zone or the release."""
_ZONED = {"TIMESTAMPTZ", "TIMESTAMP WITH TIME ZONE", "TIMETZ", "TIME WITH TIME ZONE"}
_CLAUSES = ("where_clause", "group_expressions", "having", "qualify", "sample", "modifiers")
_UTC_FREE = pa.timestamp("us")


def check_expression(text: str, columns: int) -> None:
    """Return when this is one expression over `col0` … that depends on its columns only. Raises `InvalidInput`."""
    with _session() as connection:
        node = _parsed(connection, text)
        for each in _nodes(node["select_list"]):
            _check_node(connection, each, text, columns)


def evaluate(text: str, columns: Sequence[pa.Array]) -> pa.Array:
    """Return the value of a checked expression for each row, widened. Raises `InvalidInput` when a row has none."""
    rows = pa.table([_plain(column) for column in columns], names=[f"col{at}" for at in range(len(columns))])
    with _session() as connection:
        connection.register("source_rows", rows)
        try:
            answer = connection.sql(_statement(text)).to_arrow_table().column(0).combine_chunks()
        except duckdb.Error as error:
            raise InvalidInput(f"the region expression {text!r} fails: {error}", expression=text) from error
    if len(answer) != rows.num_rows:
        raise _refused(text, f"it gives {len(answer)} values for {rows.num_rows} rows")
    return _settled(answer, text)


def _statement(text: str) -> str:
    return f"SELECT ({text}\n) FROM source_rows"  # noqa: S608  # checked by `check_expression`


def _session() -> duckdb.DuckDBPyConnection:
    """One thread, so that rows keep their order; no file, no network, no extension."""
    return duckdb.connect(
        config={
            "threads": 1,
            "enable_external_access": False,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "lock_configuration": True,
        }
    )


def _plain(column: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64()).cast(_UTC_FREE)
    return widen(column)


def _settled(answer: pa.Array, text: str) -> pa.Array:
    kinds, type_ = pa.types, answer.type
    if kinds.is_large_string(type_) or kinds.is_large_binary(type_):
        return answer.cast(pa.string() if kinds.is_large_string(type_) else pa.binary())
    plain = (kinds.is_boolean, kinds.is_date32, kinds.is_decimal128, kinds.is_string, kinds.is_binary)
    if type_.equals(_UTC_FREE) or any(is_kind(type_) for is_kind in plain):
        return answer
    if kinds.is_floating(type_) or (kinds.is_integer(type_) and not kinds.is_uint64(type_)):
        return widen(answer)
    raise _refused(text, f"its values have the type {type_}; cast them to BIGINT, DOUBLE or VARCHAR")


def _parsed(connection: duckdb.DuckDBPyConnection, text: str) -> Node:
    row = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [_statement(text)]).fetchone()
    tree: dict[str, Any] = json.loads(row[0] if row else '{"error": true, "error_message": "no answer"}')
    if tree["error"]:
        raise _refused(text, str(tree["error_message"]))
    node: Node = tree["statements"][0]["node"]
    table = node.get("from_table") or {}
    plain = node.get("type") == "SELECT_NODE" and table.get("table_name") == "source_rows"
    more = [key for key in _CLAUSES if node.get(key)]
    if len(tree["statements"]) != 1 or not plain or more or len(node["select_list"]) != 1:
        raise _refused(text, "it is not one expression")
    return node


def _nodes(tree: object) -> Iterator[Node]:
    if isinstance(tree, Mapping):
        if "class" in tree and "type" in tree:
            yield tree
        for each in tree.values():
            yield from _nodes(each)
    elif isinstance(tree, list):
        for each in tree:
            yield from _nodes(each)


def _check_node(connection: duckdb.DuckDBPyConnection, node: Node, text: str, columns: int) -> None:
    kind = node["class"]
    if kind == _TYPES:
        if str(node.get("type_name", "")).upper() in _ZONED:
            raise _refused(text, "a time with a zone depends on the session; use TIMESTAMP, which is UTC")
        return
    if kind not in _NODES:
        raise _refused(text, f"it may not use {str(kind).lower().replace('_', ' ')}")
    if kind == "COLUMN_REF":
        names = node["column_names"]
        found = _COLUMN.fullmatch(names[0]) if len(names) == 1 else None
        if found is None or int(found[1]) >= columns:
            raise _refused(text, f"{'.'.join(names)} is none of its columns col0 to col{columns - 1}")
    if kind == "FUNCTION":
        _check_function(connection, str(node["function_name"]).lower(), text)


def _check_function(connection: duckdb.DuckDBPyConnection, name: str, text: str) -> None:
    query = "SELECT DISTINCT function_type, stability FROM duckdb_functions() WHERE function_name = ?"
    found = connection.execute(query, [name]).fetchall()
    scalar = all(each in (("scalar", "CONSISTENT"), ("macro", None)) for each in found)
    if not found or not scalar or name in _CHANGING or (("macro", None) in found and name not in _MACROS):
        raise _refused(text, f"{name} is no function that gives each row the same value on every call")


def _refused(text: str, why: str) -> InvalidInput:
    return InvalidInput(f"the region expression {text!r} cannot be used: {why}", expression=text)


def sample(type_: pa.DataType) -> pa.Array:
    """Return values of a column to try an expression on, a null first. Of a type that has none, nulls."""
    texts = [None, "", "0", "1", "a", "Zebra-42", "é"]
    numbers = [None, 0, 1, -1, 7, 42, 100]
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        return pa.array([None if each is None else each.encode() for each in texts], pa.binary()).cast(type_)
    if pa.types.is_boolean(type_):
        return pa.array([None, True, False, True, False, True, False])
    if pa.types.is_decimal(type_):
        return pa.array([None, *[0] * 6], type_)
    base = pa.int32() if pa.types.is_date32(type_) else pa.int64()
    wide = widened(type_)
    return pa.array([each if each is None else each * 100 for each in numbers], base).cast(wide)
