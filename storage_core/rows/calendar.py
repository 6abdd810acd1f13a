"""The calendar of a table: dates and timestamps in the years 1 to 9999, which every reader can write down.

Arrow's int64 microseconds reach 290,000 years further, Python, ISO 8601 and the texts of our statistics do not. So rows
beyond are refused at the door; those of early 0.1 are read like others.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import InvalidInput
from storage_core.rows.codes import Mask
from storage_core.rows.decimals import TOO_LONG, find_long_decimals
from storage_core.rows.nested_faults import wrong_values

BEYOND = "not between the years 1 and 9999"

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)

_MICROSECONDS = (-62_135_596_800_000_000, 253_402_300_799_999_999)
_DAYS = (-719_162, 2_932_896)


def beyond(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array | None:
    """Return per value whether it, or a value inside of it, lies outside the calendar, or None where none does.

    A null is null, or of a nested type outside of nothing.
    """
    if pa.types.is_nested(column.type):
        wrong = wrong_values(column, _beyond_inside)
        return None if wrong is None else pa.array(wrong)
    if not _is_dated(column.type):
        return None
    least, greatest = _MICROSECONDS if pa.types.is_timestamp(column.type) else _DAYS
    ticks = column.cast(pa.int64() if pa.types.is_timestamp(column.type) else pa.int32())
    lowest, highest = (each.as_py() for each in pc.min_max(ticks).values())
    if lowest is None or (lowest >= least and highest <= greatest):
        return None
    return pc.or_(pc.less(ticks, least), pc.greater(ticks, greatest))


def within_calendar(table: pa.Table) -> pa.Table:
    """Return the table, whose types are a table's, if all its dates and timestamps are of the calendar.

    Its decimals must have no more digits than their types. Raises `InvalidInput` naming the column and the first row,
    counted from 0.
    """
    for name, column in zip(table.column_names, table.columns, strict=True):
        outside = beyond(column)
        if outside is not None:
            row = pc.index(outside, True).as_py()
            value = column.slice(row, 1).cast(_textual(column.type))[0]
            raise InvalidInput(f"column {name!r}, row {row}: {value} is {BEYOND}", column=name, row=row)
        wrong = find_long_decimals(column)
        if wrong is not None:
            row = int(np.flatnonzero(wrong)[0])
            advice = "Give the column a wider type, or write the value as text."
            raise InvalidInput(f"column {name!r}, row {row}: {TOO_LONG}, {column.type}. {advice}", column=name, row=row)
    return table


def as_text(table: Rows) -> Rows:
    """Return the rows with columns that hold something beyond the calendar as text, so that Python can hold them."""
    for index, column in enumerate(table.columns):
        if beyond(column) is not None:
            table = table.set_column(index, table.column_names[index], column.cast(_textual(column.type)))
    return table


def _beyond_inside(values: pa.Array) -> Mask | None:
    found = beyond(values)
    return None if found is None else np.asarray(found.fill_null(False))  # noqa: FBT003  # which has no other name


def _textual(type_: pa.DataType) -> pa.DataType:
    """The type with text in place of dates and timestamps."""
    kinds = pa.types
    if kinds.is_struct(type_):
        return pa.struct([each.with_type(_textual(each.type)) for each in type_.fields])
    if kinds.is_list(type_):
        return pa.list_(type_.value_field.with_type(_textual(type_.value_type)))
    if kinds.is_map(type_):
        return pa.map_(_textual(type_.key_type), _textual(type_.item_type))
    return pa.string() if _is_dated(type_) else type_


def _is_dated(type_: pa.DataType) -> bool:
    return (pa.types.is_timestamp(type_) and type_.unit == "us") or bool(pa.types.is_date32(type_))
