"""Conditions that Spark pushes down, as filters of ours: those that mean the same here and there, and those that prune.

Spark keeps rows where a condition is true, and so does DuckDB. Of integers, texts, booleans, dates, instants and bytes
both compare alike, and a condition on them need not be checked again. All others stay with Spark, which finds fewer
rows to check where they prune.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any

from pyspark.sql import datasource as spark
from pyspark.sql import types

from storage_core.read.predicate import Column, Filter, col

_EXACT: tuple[type[types.DataType], ...] = (
    *(types.ByteType, types.ShortType, types.IntegerType, types.LongType),
    *(types.BooleanType, types.StringType, types.BinaryType),
    *(types.DateType, types.TimestampType, types.TimestampNTZType),
)
_COMPARED: Mapping[type[spark.Filter], Callable[[Column, Any], Filter]] = {
    spark.EqualTo: lambda column, value: column == value,
    spark.EqualNullSafe: lambda column, value: column == value,
    spark.GreaterThan: lambda column, value: column > value,
    spark.GreaterThanOrEqual: lambda column, value: column >= value,
    spark.LessThan: lambda column, value: column < value,
    spark.LessThanOrEqual: lambda column, value: column <= value,
}


def is_exact(pushed: spark.Filter, schema: types.StructType) -> bool:
    """Return whether the filter that `filter_of` makes of a condition keeps just the rows that Spark would."""
    path = _path(pushed.child if isinstance(pushed, spark.Not) else pushed)
    return filter_of(pushed) is not None and isinstance(schema[path[0]].dataType, _EXACT)


def filter_of(pushed: spark.Filter) -> Filter | None:
    """Return a filter that is true of every row of which the condition is true; None where there is none of ours."""
    if isinstance(pushed, spark.Not):
        return _negated(pushed.child)
    column = _column(pushed)
    if column is None:
        return None
    match pushed:
        case spark.IsNull() | spark.EqualNullSafe(value=None):
            return column.is_null()
        case spark.IsNotNull():
            return column.is_not_null()
        case spark.In(value=values):
            return column.isin([each for each in map(_value, values) if each is not None])
        case _:
            compare = _COMPARED.get(type(pushed))
            value = getattr(pushed, "value", None)
            return None if compare is None or value is None else compare(column, _value(value))


def all_of(pushed: Iterable[spark.Filter]) -> Filter | None:
    """Return a filter that is true of every row of which all conditions are; None where none has one of ours."""
    found = [each for each in map(filter_of, pushed) if each is not None]
    return reduce(lambda one, other: one & other, found) if found else None


def _negated(child: spark.Filter) -> Filter | None:
    column = _column(child)
    if column is None:
        return None
    match child:
        case spark.EqualNullSafe(value=value) if value is not None:
            differs: Filter = column != _value(value)
            return differs | column.is_null()
        case spark.In(value=values) if None in values:
            return None  # true of no row, which Spark knows
        case _:
            found = filter_of(child)
            return None if found is None else ~found


def _column(pushed: spark.Filter) -> Column | None:
    """The column of the table that a condition is on; a field of one is none."""
    path = _path(pushed)
    return col(path[0]) if len(path) == 1 else None


def _path(pushed: spark.Filter) -> tuple[str, ...]:
    """The column, and the fields in it, that a condition is on."""
    found: tuple[str, ...] = getattr(pushed, "attribute", ())
    return found


def _value(value: Any) -> Any:
    """The value as our filters have it: bytes that do not change, instants in UTC."""
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC)
    return value
