"""The calendar of a table: dates and timestamps in the years 1 to 9999, which every reader can write down.

Arrow's int64 microseconds reach 290,000 years further, Python, ISO 8601 and the texts of our statistics do not. So rows
beyond are refused at the door; those of early 0.1 are read like others.
"""

from __future__ import annotations

from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import InvalidInput

BEYOND = "not between the years 1 and 9999"

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)

_MICROSECONDS = (-62_135_596_800_000_000, 253_402_300_799_999_999)
_DAYS = (-719_162, 2_932_896)


def beyond(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array | None:
    """Return per value whether it lies outside the calendar, or None where none does; null for null."""
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

    Raises `InvalidInput` naming the column and the first row, counted from 0.
    """
    for name, column in zip(table.column_names, table.columns, strict=True):
        outside = beyond(column)
        if outside is not None:
            row = pc.index(outside, True).as_py()
            value = column.slice(row, 1).cast(pa.string())[0]
            raise InvalidInput(f"column {name!r}, row {row}: {value} is {BEYOND}", column=name, row=row)
    return table


def as_text(table: Rows) -> Rows:
    """Return the rows with columns that hold something beyond the calendar as text, so that Python can hold them."""
    for index, column in enumerate(table.columns):
        if beyond(column) is not None:
            table = table.set_column(index, table.column_names[index], column.cast(pa.string()))
    return table


def _is_dated(type_: pa.DataType) -> bool:
    return (pa.types.is_timestamp(type_) and type_.unit == "us") or bool(pa.types.is_date32(type_))
