"""Region fields as SQL: one expression over `col0, col1…`, run by DuckDB (Lance MemWAL).

An expression must give one value per row and depend on nothing but its columns. DuckDB's own parser decides: every node
of its tree is one of a closed set, and every function a scalar one that is the same on each call and makes no more of
its arguments than the text says.
Columns come in widened (64-bit integers and floats; instants as UTC without a zone), so a promotion changes nothing.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.engine.functions import NESTED_TYPES, OF_ONE_ROW, TYPES
from storage_core.engine.session import session
from storage_core.engine.statement import check_copies, parse
from storage_core.engine.tree import Node, nodes_of
from storage_core.errors import InvalidInput, Unavailable
from storage_core.foreign_text import quoted
from storage_core.region.expression_growth import check_growth
from storage_core.region.transforms import widen, widened
from storage_core.settings.query import QueryLimits
from storage_core.system_errors import out_of_memory

if TYPE_CHECKING:
    import duckdb

LONGEST_EXPRESSION = 4096
LARGEST_VALUE = 65_536
"""Bytes of the value of one row: it becomes part of a region's name."""

_NODES = {"FUNCTION", "COLUMN_REF", "CONSTANT", "CASE", "COMPARISON", "CONJUNCTION", "OPERATOR", "BETWEEN", "CAST"}
_TYPES = "TYPE"
_COLUMN = re.compile(r"col(0|[1-9][0-9]?)", re.ASCII)
_ZONED = {"TIMESTAMPTZ", "TIMESTAMP WITH TIME ZONE", "TIMETZ", "TIME WITH TIME ZONE"}
_BATCH_ROWS = 2048
_CLAUSES = ("where_clause", "group_expressions", "having", "qualify", "sample", "modifiers")
_UTC_FREE = pa.timestamp("us")
_INTERRUPTED = "INTERRUPT Error"
LIMITS = QueryLimits(seconds=60, memory_bytes=512 * 2**20)
MOST_MADE = 4096
"""What all calls of an expression make of a row, in rows."""
_PIECE_BYTES = LIMITS.memory_bytes // MOST_MADE
"""Of columns at a time."""


def check_expression(text: str, columns: int) -> None:
    """Return when this is one expression over `col0` … that depends on its columns only. Raises `InvalidInput`."""
    for each in nodes_of(_parsed(text)["select_list"]):
        if "class" in each:
            _check_node(each, text, columns)
    check_bounded(text)


@functools.lru_cache(maxsize=64)
def check_bounded(text: str) -> None:
    """Return when the text tells how long its values can be, at most. Raises `InvalidInput`."""
    try:
        tree = _parsed(text)
        check_growth(tree["select_list"], text, most=MOST_MADE)
        check_copies(tree, text, "region expression")
    except InvalidInput as error:
        raise InvalidInput(error.found, expression=text) from error


def evaluate(text: str, columns: Sequence[pa.Array]) -> pa.Array:
    """Return the value of a checked expression for each row, widened.

    Raises `InvalidInput` when a row has none, `Unavailable` when a piece of them takes more than `LIMITS`.
    """
    import duckdb

    rows = pa.table([_plain(column) for column in columns], names=[f"col{at}" for at in range(len(columns))])
    check_bounded(text)  # a table of early 0.1 may have another
    try:
        with session(LIMITS, threads=1) as connection:
            answer = pa.concat_arrays([_answer(connection, text, piece) for piece in _pieces(rows)])
    except (duckdb.Error, OSError) as error:  # a stream of batches wraps each of them, and keeps the text only
        if out_of_memory(error) or str(error).startswith(_INTERRUPTED):
            raise Unavailable(
                f"the region expression {text!r} takes more than {LIMITS.seconds:g} seconds or "
                f"{LIMITS.memory_bytes} bytes of memory for {rows.num_rows} rows: {error}; write fewer at a time, "
                "or declare a simpler `expression`",
                expression=text,
            ) from error
        raise InvalidInput(f"the region expression {text!r} fails: {error}", expression=text) from error
    if len(answer) != rows.num_rows:
        raise _refused(text, f"it gives {len(answer)} values for {rows.num_rows} rows")
    return _settled(answer, text)


def _statement(text: str) -> str:
    return f"SELECT ({text}\n) FROM source_rows"  # noqa: S608  # checked by `check_expression`


def _pieces(rows: pa.Table) -> Iterator[pa.Table]:
    """The rows in pieces of bounded size, or of one row; one piece without rows where there are none."""
    widths = np.full(rows.num_rows, 8 * rows.num_columns, np.int64)
    for column in rows.columns:
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            widths += pc.fill_null(pc.binary_length(column), 0).to_numpy()
    ends, start = np.cumsum(widths), 0
    while start < rows.num_rows:
        before = int(ends[start]) - int(widths[start])
        stop = max(start + 1, int(np.searchsorted(ends, before + _PIECE_BYTES, side="right")))
        yield rows.slice(start, stop - start)
        start = stop
    if rows.num_rows == 0:
        yield rows


def _answer(connection: duckdb.DuckDBPyConnection, text: str, rows: pa.Table) -> pa.Array:
    """The values, taken batch by batch: of one that is too large no more than a batch is made."""
    connection.register("source_rows", rows)
    reader = connection.sql(_statement(text)).to_arrow_reader(_BATCH_ROWS)
    batches = []
    for batch in reader:
        column = batch.column(0)
        is_text = pa.types.is_string(column.type) or pa.types.is_binary(column.type)
        longest = pc.max(pc.binary_length(column)).as_py() if is_text else None
        if longest is not None and longest > LARGEST_VALUE:
            raise _refused(text, f"a value has {longest} bytes where {LARGEST_VALUE} are the most")
        batches.append(batch)
    return pa.Table.from_batches(batches, reader.schema).column(0).combine_chunks()


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


def _parsed(text: str) -> Node:
    if len(text) > LONGEST_EXPRESSION:
        raise _refused(text, f"it has more than {LONGEST_EXPRESSION} characters")
    try:
        node = parse(_statement(text), "region expression")
    except InvalidInput as error:
        raise _refused(text, error.found) from error
    table = node.get("from_table") or {}
    plain = node.get("type") == "SELECT_NODE" and table.get("table_name") == "source_rows"
    if not plain or any(node.get(key) for key in _CLAUSES) or len(node["select_list"]) != 1:
        raise _refused(text, "it is not one expression")
    return node


def _check_node(node: Node, text: str, columns: int) -> None:
    kind = node["class"]
    if kind == _TYPES:
        name = str(node.get("type_name", "")).upper()
        if name in _ZONED:
            raise _refused(text, "a time with a zone depends on the session; use TIMESTAMP, which is UTC")
        if name not in TYPES - NESTED_TYPES:
            raise _refused(text, f"it may not use the type {name}")
        return
    if kind not in _NODES:
        raise _refused(text, f"it may not use {str(kind).lower().replace('_', ' ')}")
    if kind == "COLUMN_REF":
        names = node["column_names"]
        found = _COLUMN.fullmatch(names[0]) if len(names) == 1 else None
        if found is None or int(found[1]) >= columns:
            raise _refused(text, f"{'.'.join(names)} is none of its columns col0 to col{columns - 1}")
    if kind == "OPERATOR" and node["type"] == "ARRAY_CONSTRUCTOR":
        raise _refused(text, "it may not use lists")
    name = str(node.get("function_name", "")).lower()
    if kind == "FUNCTION" and name not in OF_ONE_ROW:
        raise _refused(text, f"{name} is no function that gives each row the same bounded value on every call")


def _refused(text: str, why: str) -> InvalidInput:
    return InvalidInput(f"the region expression {quoted(text)} cannot be used: {why}", expression=text)


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
