"""Which rows meet a condition, told without DuckDB: of literals that are values of their columns' own types.

Nothing of such a condition is cast or rounded, so Arrow's comparisons are DuckDB's: numbers and instants by value,
texts by their bytes, false before true, and never true of null.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Final, assert_never

import pyarrow as pa
import pyarrow.compute as pc

from storage_core.read.predicate import And, Compare, Comparison, IsNull, Literal, Opaque, Or, Predicate

_COMPARED: Final[Mapping[Comparison, Callable[[pa.ChunkedArray, pa.Scalar], pa.ChunkedArray]]] = {
    Comparison.EQ: pc.equal,
    Comparison.NE: pc.not_equal,
    Comparison.LT: pc.less,
    Comparison.LE: pc.less_equal,
    Comparison.GT: pc.greater,
    Comparison.GE: pc.greater_equal,
}


def is_exact(predicate: Predicate, columns: Mapping[str, pa.DataType]) -> bool:
    """Return whether a predicate asks for nothing but these columns, and no literal of it leaves a doubt."""
    match predicate:
        case And(children) | Or(children):
            return all(is_exact(each, columns) for each in children)
        case IsNull(column):
            return column in columns
        case Compare(column, _, value):
            return column in columns and _is_of(value, columns[column])
        case Opaque(_):
            return False
        case _:
            assert_never(predicate)


def meeting(rows: pa.Table, predicate: Predicate) -> pa.ChunkedArray:
    """Return per row whether it makes a predicate true that `is_exact` over their columns; null where it is unknown."""
    match predicate:
        case And(children) | Or(children):
            is_all = isinstance(predicate, And)
            found = [meeting(rows, each) for each in children] or [pa.repeat(pa.scalar(is_all), rows.num_rows)]
            return reduce(pc.and_kleene if is_all else pc.or_kleene, found)
        case IsNull(column, negated):
            values = rows.column(column)
            return values.is_valid() if negated else values.is_null()
        case Compare(column, comparison, value):
            values = rows.column(column)
            return _COMPARED[comparison](values, _scalar(value, values.type))
        case Opaque(sql):
            raise ValueError(f"nothing tells of rows whether {sql} is true")
        case _:
            assert_never(predicate)


def only_values(predicate: Predicate, columns: Mapping[str, pa.DataType]) -> dict[str, pa.Scalar]:
    """Return the columns that have one value in every row that makes a predicate true that is exact, and that value."""
    match predicate:
        case And(children):
            return {name: value for each in children for name, value in only_values(each, columns).items()}
        case Compare(column, Comparison.EQ, value):
            found = _scalar(value, columns[column])
            return {column: found} if found.type == columns[column] else {}
        case _:
            return {}


def _is_of(value: object, type_: pa.DataType) -> bool:
    """Whether a literal is a value of the column's own type, so that nothing is cast and nothing rounded."""
    kinds = pa.types
    match value:
        case bool():
            return bool(kinds.is_boolean(type_))
        case int():
            return bool(kinds.is_integer(type_)) and -(2**63) <= value < 2**63
        case str():
            return bool(kinds.is_string(type_)) and value.isprintable()
        case dt.datetime():
            return bool(kinds.is_timestamp(type_)) and (value.tzinfo is None) == (type_.tz is None)
        case dt.date():
            return bool(kinds.is_date(type_))
        case _:
            return False


def _scalar(value: Literal, type_: pa.DataType) -> pa.Scalar:
    """The literal in the column's type; of a number beyond that in one of its own, to which Arrow widens the column."""
    try:
        return pa.scalar(value, type_)
    except (pa.ArrowInvalid, OverflowError):
        return pa.scalar(value)
