"""Region fields are SQL expressions over `col0, col1…` or transforms. DuckDB runs the expressions (Lance MemWAL).

An expression must return one value per row. This value must depend only on the columns in the expression. The parser of
DuckDB checks this:

- Every node of the parse tree must be in a closed set.
- Every function must be scalar, and return the same value on every call.
- For every function, literals in the text of the expression must limit the size of the result.

An expression reads widened columns: integers and floats with 64 bits, instants in UTC without a zone. So a type
promotion does not change the value of an expression.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.base.errors import InvalidInput, Unavailable, out_of_memory
from storage_core.base.limits import QueryLimits
from storage_core.base.text import quoted
from storage_core.data.rows.hashes import is_hashable, murmur3
from storage_core.engine.session import session
from storage_core.engine.statement import (
    NESTED_TYPES,
    OF_ONE_ROW,
    TYPES,
    Node,
    arguments,
    check_copies,
    nodes_of,
    parse,
    refused,
    words,
)

if TYPE_CHECKING:
    import duckdb

# Functions whose result can be far larger than their arguments. A region expression may use these functions.
#
# `repeat('x', 2000000000)` creates two gigabytes. DuckDB has no limit that prevents a result of this size. DuckDB does
# not check the size of a function's output for one batch, and cannot interrupt the function. So the expression must
# contain the size of a large result as a literal number. `check_growth` limits the product of the literal numbers in
# one expression.


T = TypeVar("T")
_WHAT = "region expression"
_PADDING = frozenset({"lpad", "rpad"})
_BY_FORMAT = frozenset({"format", "printf"})
_WIDTH = re.compile(r"[0-9]+")
_WIDTH_FROM_ARGUMENTS = re.compile(r"%[^%a-zA-Z]*\*|\{[^{}]*\{")
_PUT_IN: Mapping[str, int] = {"replace": 2, "regexp_replace": 2, "overlay": 1}
"""For each function, the position of the argument with the text that the function inserts for each match."""
_LONGER: Mapping[str, int] = {
    "base64": 2,
    "bin": 8,
    "hex": 2,
    "regexp_escape": 2,
    "split": 4,
    "str_split": 4,
    "string_split": 4,
    "to_base64": 2,
    "to_binary": 8,
    "to_hex": 2,
    "url_encode": 3,
}
"""For each function, the maximum ratio of the result length to the length of the arguments."""
_SHORT = words("""
    ascii bit_length char_length character_length contains ends_with instr len length length_grapheme md5 md5_number
    octet_length ord position prefix sha1 sha256 starts_with strlen strpos suffix unicode
""")
"""Functions with results that are never longer than a row."""


def check_growth(tree: Any, text: str, *, most: int) -> None:
    """Raise `InvalidInput` if an expression can create values of more than `most` times the size of a row.

    A row counts as one unit of eight bytes, because no row is smaller. The length of a literal is counted in units of
    eight bytes. The length of a result is the sum of the argument lengths times the factor of the function.
    """
    made = _Made(text)
    made.by(tree)
    if made.of_all > most:
        raise refused(
            text, _WHAT, f"the expression can make a row {made.of_all} times as large. The limit is {most} times"
        )


@dataclass(slots=True)
class _Made:
    text: str
    of_all: int = 0

    def by(self, node: Any) -> int:
        """Return the maximum length of the values that a node of the parse tree creates, in units of eight bytes."""
        if isinstance(node, list):
            return sum(map(self.by, node))
        if not isinstance(node, dict):
            return 0
        match node.get("class"):
            case "COLUMN_REF":
                return 1
            case "CONSTANT":
                return _units(len((_text(node) or "").encode()))
            case "FUNCTION":
                length = self._call(str(node["function_name"]).lower(), arguments(node))
                self.of_all += length
                return length
        return sum(map(self.by, node.values()))

    def _call(self, name: str, given: Sequence[Node]) -> int:
        lengths = [self.by(each) for each in given]
        if name in _PADDING and len(given) > 1:
            return lengths[0] + _units(4 * self._said(name, _number(given[1])))  # a character has at most four bytes
        if name == "repeat" and len(given) > 1:
            return lengths[0] * self._said(name, _number(given[1]))
        if name == "concat_ws":
            return len(lengths) * sum(lengths[:1]) + sum(lengths[1:])
        if name in _BY_FORMAT and given:
            return self._formatted(name, _text(given[0]), sum(lengths))
        if name in _PUT_IN and len(given) > _PUT_IN[name]:
            size = len(self._said(name, _text(given[_PUT_IN[name]])).encode())
            taken_out = _text(given[1]) if name == "replace" else None
            # A regular expression can match between any two characters. A match of plain text is as long as this text.
            return sum(lengths) * (-(-size // len(taken_out.encode())) if taken_out else size + 1)
        return 1 if name in _SHORT else sum(lengths) * _LONGER.get(name, 1)

    def _formatted(self, name: str, template: str | None, length: int) -> int:
        found = self._said(name, template)
        if _WIDTH_FROM_ARGUMENTS.search(found):
            self._said(name, None)
        parts = found.count("{") + found.count("%")
        return length * max(1, parts) + _units(sum(_whole(each) for each in _WIDTH.findall(found)))

    def _said(self, name: str, found: T | None) -> T:
        if found is None:
            raise refused(self.text, _WHAT, f"the arguments that limit the result of {name} must be constants")
        return found


def _units(size: int) -> int:
    """Convert bytes to units of eight bytes, rounded up."""
    return -(-size // 8)


def _whole(digits: str) -> int:
    return int(digits) if len(digits) < 20 else 10**20


def _number(node: Node) -> int | None:
    """Return the whole number of a literal without its sign, or None for any other node."""
    while node["class"] == "FUNCTION" and node["function_name"] == "-" and len(node["arguments"]) == 1:
        node = node["arguments"][0]["expression"]
    literal = node.get("literal") or {}
    text = str(literal.get("text", ""))
    return _whole(text) if literal.get("kind") == "INTEGER" and text.isdecimal() else None


def _text(node: Node) -> str | None:
    literal = node.get("literal") or {}
    return str(literal["text"]) if literal.get("kind") == "STRING" else None


# Transforms of region fields: one value per row, independent of the batch.
#
# | Transform | Of | Value |
# |---|---|---|
# | `identity` | any key type | the value; integers as 64-bit, floats as float64 with one zero and one NaN |
# | `year`, `month`, `day` | date, timestamp | the part of the date in UTC (`date_part`): month 1-12, day 1-31 |
# | `hour` | timestamp | hour of the day in UTC, 0-23 |
# | `bucket(n)` | one column | `(murmur3(value) & 0x7fffffff) % n`; null is bucket 0 |
# | `multi_bucket(n)` | any columns | as `bucket`, over all columns; null fields are omitted, all null is bucket 0 |
# | `truncate(w)` | integer | the multiple of w at or below the value, at least -2**63 |
# | `truncate(w)` | string | the first w characters |
#
# The year, month and day are rounded down, also before 1970. A null value results in null, except for buckets. The
# original design does not define the year, month and day of a date. Tidemark defines these parts as Lance MemWAL does
# (`date_part`).


_TEXT = re.compile(r"([a-z_]+)(?:\(([1-9][0-9]{0,9})\))?", re.ASCII)
_HASH_MASK = 0x7FFFFFFF
_LEAST = -(2**63)
_MOST_PARAMETER = 2**31 - 1


class TransformKind(StrEnum):
    """The names of the transforms."""

    IDENTITY = "identity"
    YEAR = "year"
    MONTH = "month"
    DAY = "day"
    HOUR = "hour"
    BUCKET = "bucket"
    MULTI_BUCKET = "multi_bucket"
    TRUNCATE = "truncate"


_WITH_PARAMETER = {TransformKind.BUCKET, TransformKind.MULTI_BUCKET, TransformKind.TRUNCATE}


@dataclass(frozen=True, slots=True)
class Transform:
    """A transform. `parameter` is the number of buckets or the width, or 0 for transforms without a parameter."""

    kind: TransformKind
    parameter: int = 0

    @property
    def text(self) -> str:
        """The stored form: `bucket(4)`, `year`."""
        return f"{self.kind}({self.parameter})" if self.parameter else str(self.kind)

    @property
    def buckets(self) -> int:
        """The number of buckets, or 0 for other transforms."""
        return self.parameter if self.kind in (TransformKind.BUCKET, TransformKind.MULTI_BUCKET) else 0


def parse_transform(text: str) -> Transform:
    """Return the transform of this text. Raise `InvalidInput` with the valid transforms."""
    found = _TEXT.fullmatch(text)
    if found is not None and found[1] in set(TransformKind):
        kind, parameter = TransformKind(found[1]), int(found[2] or 0)
        if (kind in _WITH_PARAMETER) == (parameter > 0) and parameter <= _MOST_PARAMETER:
            return Transform(kind, parameter)
    known = ", ".join(f"{each}(n)" if each in _WITH_PARAMETER else str(each) for each in TransformKind)
    raise InvalidInput(f"{text!r} is not a region transform. Use one of {known}, n from 1 to 2**31 - 1", transform=text)


def result_type(transform: Transform, sources: Sequence[pa.DataType]) -> pa.DataType:
    """Return the type of a transform's values for columns of these types. Raise `InvalidInput` for a wrong type."""
    if transform.kind is not TransformKind.MULTI_BUCKET and len(sources) != 1:
        raise InvalidInput(f"{transform.text} takes one source column, found {len(sources)}")
    source, kinds = sources[0], pa.types
    match transform.kind:
        case TransformKind.IDENTITY:
            fits, result = is_hashable(source), widened(source)
        case TransformKind.YEAR | TransformKind.MONTH | TransformKind.DAY:
            fits, result = kinds.is_date32(source) or kinds.is_timestamp(source), pa.int32()
        case TransformKind.HOUR:
            fits, result = kinds.is_timestamp(source), pa.int32()
        case TransformKind.BUCKET | TransformKind.MULTI_BUCKET:
            fits, result = all(is_hashable(each) for each in sources), pa.int32()
        case TransformKind.TRUNCATE:
            fits, result = kinds.is_integer(source) or kinds.is_string(source), widened(source)
        case _:
            assert_never(transform.kind)
    if not fits:
        raise InvalidInput(
            f"{transform.text} cannot use columns of type {', '.join(map(str, sources))}. Use another column "
            "or transform"
        )
    return result


def apply_transform(transform: Transform, columns: Sequence[pa.Array]) -> pa.Array:
    """Return one value per row, of type `result_type`. The transform must accept the types of the columns."""
    column = columns[0]
    match transform.kind:
        case TransformKind.IDENTITY:
            return widen(column)
        case TransformKind.YEAR:
            return pc.year(_calendar(column)).cast(pa.int32())
        case TransformKind.MONTH:
            return pc.month(_calendar(column)).cast(pa.int32())
        case TransformKind.DAY:
            return pc.day(_calendar(column)).cast(pa.int32())
        case TransformKind.HOUR:
            return pc.hour(_calendar(column)).cast(pa.int32())
        case TransformKind.BUCKET | TransformKind.MULTI_BUCKET:
            return pa.array((murmur3(columns) & np.int32(_HASH_MASK)) % np.int32(transform.parameter))
        case TransformKind.TRUNCATE:
            return _truncated(widen(column), transform.parameter)
        case _:
            assert_never(transform.kind)


def widened(type_: pa.DataType) -> pa.DataType:
    """Return the widest type: 64 bits for integers and floats, the same type otherwise.

    A type promotion cannot change this type.
    """
    if pa.types.is_integer(type_):
        return pa.int64()
    return pa.float64() if pa.types.is_floating(type_) else type_


def widen(column: pa.Array) -> pa.Array:
    """Return the column as its `widened` type. Every zero becomes 0.0, and every NaN becomes the same NaN."""
    wide = column.cast(widened(column.type))
    if not pa.types.is_floating(wide.type):
        return wide
    wide = pc.add(wide, 0.0)  # turns -0.0 into 0.0
    return pc.if_else(pc.is_nan(wide), float("nan"), wide)


def _calendar(column: pa.Array) -> pa.Array:
    """Return dates unchanged, and instants as times in UTC without a zone."""
    if pa.types.is_date32(column.type):
        return column
    return column.cast(pa.int64()).cast(pa.timestamp(column.type.unit))


def _truncated(column: pa.Array, width: int) -> pa.Array:
    if not pa.types.is_integer(column.type):
        return pc.utf8_slice_codeunits(column, 0, width)
    values = column.fill_null(0).to_numpy()
    remainder = np.mod(values, np.int64(width))  # no remainder is negative, so the difference is the floor
    # For the smallest integers, the next lower multiple of the width is below the 64-bit range. Integers near the lower
    # limit therefore get the smallest 64-bit integer.
    floors = np.where(values < _LEAST + remainder, np.int64(_LEAST), values - remainder)
    return pa.array(floors, mask=column.is_null().to_numpy(zero_copy_only=False))


LONGEST_EXPRESSION = 4096
LARGEST_VALUE = 65_536
"""Maximum size in bytes of the value of one row. The value becomes part of the name of a region."""

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
"""The limit for the total size of the values that an expression creates from a row, in units of eight bytes."""
_PIECE_BYTES = LIMITS.memory_bytes // MOST_MADE
"""Number of bytes of columns that are evaluated at a time."""


def check_expression(text: str, columns: int) -> None:
    """Raise `InvalidInput` unless the text is one expression over `col0` … that depends only on its columns."""
    for each in nodes_of(_parsed(text)["select_list"]):
        if "class" in each:
            _check_node(each, text, columns)
    check_bounded(text)


@functools.lru_cache(maxsize=64)
def check_bounded(text: str) -> None:
    """Raise `InvalidInput` if the values of the expression `text` have no maximum length."""
    try:
        tree = _parsed(text)
        check_growth(tree["select_list"], text, most=MOST_MADE)
        check_copies(tree, text, "region expression")
    except InvalidInput as error:
        raise InvalidInput(error.found, expression=text) from error


def evaluate(text: str, columns: Sequence[pa.Array]) -> pa.Array:
    """Return the value of a checked expression for each row. Integers and floats in the result have 64 bits.

    Raises `InvalidInput` if a row has no value, and `Unavailable` if some of the rows exceed `LIMITS`.
    """
    import duckdb

    rows = pa.table([_plain(column) for column in columns], names=[f"col{at}" for at in range(len(columns))])
    check_bounded(text)  # A table of an early 0.1 release may have an unchecked expression.
    try:
        with session(LIMITS, threads=1) as connection:
            answer = pa.concat_arrays([_answer(connection, text, piece) for piece in _pieces(rows)])
    except (duckdb.Error, OSError) as error:  # a stream of batches wraps errors and keeps only the text of the error
        if out_of_memory(error) or str(error).startswith(_INTERRUPTED):
            raise Unavailable(
                f"the region expression {text!r} takes more than {LIMITS.seconds:g} seconds or {LIMITS.memory_bytes} "
                f"bytes of memory for {rows.num_rows} rows: {error}. Write fewer rows at a time, or declare a simpler "
                "`expression`",
                expression=text,
            ) from error
        raise InvalidInput(f"the region expression {text!r} fails: {error}", expression=text) from error
    if len(answer) != rows.num_rows:
        raise _refused(text, f"the expression returns {len(answer)} values for {rows.num_rows} rows")
    return _settled(answer, text)


def _statement(text: str) -> str:
    return f"SELECT ({text}\n) FROM source_rows"  # noqa: S608  # checked by `check_expression`


def _pieces(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows in pieces of limited size, at least one row each. Without rows, yield one empty piece."""
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
    """Return the values.

    The function reads one batch at a time. So the function stops after one batch if the result is too large.
    """
    connection.register("source_rows", rows)
    reader = connection.sql(_statement(text)).to_arrow_reader(_BATCH_ROWS)
    batches = []
    for batch in reader:
        column = batch.column(0)
        is_text = pa.types.is_string(column.type) or pa.types.is_binary(column.type)
        longest = pc.max(pc.binary_length(column)).as_py() if is_text else None
        if longest is not None and longest > LARGEST_VALUE:
            raise _refused(text, f"a value has {longest} bytes. The limit is {LARGEST_VALUE} bytes")
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
    raise _refused(text, f"the values have the type {type_}. Cast the values to BIGINT, DOUBLE or VARCHAR")


def _parsed(text: str) -> Node:
    if len(text) > LONGEST_EXPRESSION:
        raise _refused(text, f"the expression has more than {LONGEST_EXPRESSION} characters")
    try:
        node = parse(_statement(text), "region expression")
    except InvalidInput as error:
        raise _refused(text, error.found) from error
    table = node.get("from_table") or {}
    plain = node.get("type") == "SELECT_NODE" and table.get("table_name") == "source_rows"
    if not plain or any(node.get(key) for key in _CLAUSES) or len(node["select_list"]) != 1:
        raise _refused(text, "the text is not one expression")
    return node


def _check_node(node: Node, text: str, columns: int) -> None:
    kind = node["class"]
    if kind == _TYPES:
        name = str(node.get("type_name", "")).upper()
        if name in _ZONED:
            raise _refused(text, "a time with a zone depends on the session. Use TIMESTAMP, which is UTC")
        if name not in TYPES - NESTED_TYPES:
            raise _refused(text, f"the expression may not use the type {name}")
        return
    if kind not in _NODES:
        raise _refused(text, f"the expression may not use {str(kind).lower().replace('_', ' ')}")
    if kind == "COLUMN_REF":
        names = node["column_names"]
        found = _COLUMN.fullmatch(names[0]) if len(names) == 1 else None
        if found is None or int(found[1]) >= columns:
            raise _refused(text, f"{'.'.join(names)} is not one of the columns col0 to col{columns - 1}")
    if kind == "OPERATOR" and node["type"] == "ARRAY_CONSTRUCTOR":
        raise _refused(text, "the expression may not use lists")
    name = str(node.get("function_name", "")).lower()
    if kind == "FUNCTION" and name not in OF_ONE_ROW:
        raise _refused(
            text, f"the function {name} is not allowed, because its value may differ between calls or be unbounded"
        )


def _refused(text: str, why: str) -> InvalidInput:
    return InvalidInput(f"the region expression {quoted(text)} cannot be used: {why}", expression=text)


def sample(type_: pa.DataType) -> pa.Array:
    """Return sample values of a column for the test of an expression. The first value is null.

    For a type without samples, all values are null.
    """
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
