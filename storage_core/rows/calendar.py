"""The calendar of a table: dates and timestamps in the years 1 to 9999, which every reader can write down.

Arrow's int64 microseconds reach 290,000 years further, Python, ISO 8601 and the texts of our statistics do not. So rows
beyond are refused at the door; those of early 0.1 are read like others.
"""

from __future__ import annotations

import datetime as dt
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
_DAYS_OF_400_YEARS = 146_097
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
            shown = "a value inside" if pa.types.is_nested(column.type) else _text(column.slice(row, 1))
            raise InvalidInput(f"column {name!r}, row {row}: {shown} is {BEYOND}", column=name, row=row)
        wrong = find_long_decimals(column)
        if wrong is not None:
            row = int(np.flatnonzero(wrong)[0])
            advice = "Give the column a wider type, or write the value as text."
            raise InvalidInput(f"column {name!r}, row {row}: {TOO_LONG}, {column.type}. {advice}", column=name, row=row)
    return table


def first_beyond(column: pa.Array | pa.ChunkedArray) -> str | None:
    """Return the first date or timestamp, of any unit, at any depth, outside the calendar, as text; None for none."""
    found: list[str] = []

    def check(values: pa.Array) -> Mask | None:
        per_second = _per_second(values.type)
        if per_second is None:
            return None
        least, most = (each // 10**6 * per_second for each in (_MICROSECONDS[0], _MICROSECONDS[1] + 1))
        if pa.types.is_date32(values.type):
            least, most = _DAYS[0], _DAYS[1] + 1
        ticks = _ticks(values)
        lowest, highest = (each.as_py() for each in pc.min_max(ticks).values())
        if lowest is None or (lowest >= least and highest < most):
            return None
        wrong = np.asarray(pc.or_(pc.less(ticks, least), pc.greater_equal(ticks, most)).fill_null(False))  # noqa: FBT003
        found.append(_text(values.slice(int(wrong.argmax()), 1)))
        return wrong

    return found[0] if wrong_values(column, check) is not None else None


def as_text(table: Rows) -> Rows:
    """Return the rows with columns that hold something beyond the calendar as text, so that Python can hold them."""
    for index, column in enumerate(table.columns):
        if beyond(column) is not None:
            table = table.set_column(index, table.column_names[index], column.cast(_textual(column.type)))
    return table


def _per_second(type_: pa.DataType) -> int | None:
    """Return how many ticks a second has; 1 for dates, and None for types without dates and for nanoseconds."""
    if pa.types.is_date32(type_):
        return 1
    return {"s": 1, "ms": 10**3, "us": 10**6}.get(type_.unit) if pa.types.is_timestamp(type_) else None


def _ticks(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    whole = pa.int32() if pa.types.is_date32(values.type) else pa.int64()
    return values.cast(whole).cast(pa.int64())


def _text(values: pa.Array | pa.ChunkedArray) -> str:
    """The first date or timestamp as text: Arrow writes another year for one that is far away."""
    ticks, type_ = _ticks(values)[0].as_py(), values.type
    per_second = _per_second(type_) or 1
    seconds, below = divmod(ticks, per_second)
    days, seconds = (ticks, 0) if pa.types.is_date32(type_) else divmod(seconds, 86_400)
    cycles, days = divmod(days - _DAYS[0], _DAYS_OF_400_YEARS)
    day = dt.date.fromordinal(days + 1)
    year = day.year + 400 * cycles
    text = f"{'-' if year < 0 else ''}{abs(year):04}-{day:%m-%d}"
    if pa.types.is_date32(type_):
        return text
    digits = len(str(per_second)) - 1
    fraction = f".{below:0{digits}}" if below else ""
    return f"{text} {dt.timedelta(seconds=seconds)!s:0>8}{fraction}{'' if type_.tz is None else 'Z'}"


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
