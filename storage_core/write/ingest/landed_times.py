"""Times in landed files: as numbers, with nanoseconds, or without a year.

The declaration selects the meaning of these times. `times` selects the unit of numbers, which count from 1970.
`nanoseconds` selects whether digits below the microsecond are cut. `year` selects the year of a `time_format` without a
year.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

TimeUnit = Literal["s", "ms", "us", "ns"]
Nanoseconds = Literal["reject", "truncate"]
Year = Literal["from_arrival"]

UNIT_NAMES: Final[Mapping[TimeUnit, str]] = {
    "s": "seconds",
    "ms": "milliseconds",
    "us": "microseconds",
    "ns": "nanoseconds",
}
BELOW = "digits below the microsecond, which tables do not support"

_LEAST, _MOST = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The first and the last microsecond of the years 1 to 9999."""
_DIGITS: Final[Mapping[TimeUnit, int]] = {"s": 6, "ms": 3, "us": 0}
_NUMBER_FORM = r"[+-]?[0-9]{1,20}(\.[0-9]*)?"
_FINE_FORM = (
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6})[0-9]+"
    r"( ?(?:Z|z|[+-][0-9]{2}(?::?[0-9]{2})?))?"
)
_NEXT_LEAP_YEARS = 8
"""Within this number of years there is always a 29 February, even around the years 1900 and 2100."""


@dataclass(frozen=True, slots=True)
class LandedTimes:
    """The meaning of times in landed files.

    - `units`: for columns of timestamps, the unit of numbers that count from 1970.
    - `truncates`: whether digits below the microsecond are cut off. Otherwise, the row or file with these digits is
      rejected.
    - `arrival_ms`: when the file landed, for a time format without a year. None if the format has a year.
    """

    units: Mapping[str, TimeUnit] = field(default_factory=dict)
    truncates: bool = False
    arrival_ms: int | None = None


AS_WRITTEN = LandedTimes()
"""Times as text or as typed values, with at most microseconds."""


# Conversion of text with SQL of DuckDB. `value` is always the name of a column of the statement.


def number_sql(value: str, unit: TimeUnit, *, is_instant: bool, truncates: bool) -> str:
    """Return SQL that converts a number in text to a time.

    The result is null for other text and for numbers out of range.
    """
    micros = _micros_sql(value, unit)
    make = "make_timestamptz" if is_instant else "make_timestamp"
    checks = [f"{micros} BETWEEN {_LEAST} AND {_MOST}"]
    if not truncates:
        checks.append(f"NOT ({_below_sql(value, unit)})")
    # Two nested CASE expressions are needed. DuckDB may evaluate the parts of AND in any order, and a text that is not
    # a number may cause an overflow.
    time = f"CASE WHEN {' AND '.join(checks)} THEN {make}(({micros})::BIGINT) END"
    return f"CASE WHEN {_is_number_sql(value)} THEN {time} END"


def number_faults(value: str, unit: TimeUnit, *, truncates: bool) -> Iterator[tuple[str, str]]:
    """Yield each condition under which a number is not a time, and the reason."""
    is_number = _is_number_sql(value)
    if not truncates:
        yield f"{is_number} AND ({_below_sql(value, unit)})", f"the number has {BELOW}"
    yield is_number, f"the number of {UNIT_NAMES[unit]} since 1970 is not between the years 1 and 9999"
    yield f"{value} IS NOT NULL", f"not a number of {UNIT_NAMES[unit]} since 1970"


def cut_sql(value: str) -> str:
    """Return SQL that cuts the text of a time to at most 6 digits after the second. Text of other form is unchanged."""
    return f"regexp_replace({value}, '^{_FINE_FORM}$', '\\1\\2')"


def yearless_sql(value: str, format_: str, arrival_ms: int) -> str:
    """Return SQL for a time without a year. The SQL selects the year that puts the time nearest to the file's arrival.

    Args:
        value: the name of a column with text.
        format_: the SQL literal of `%Y ` and the format of the text.
        arrival_ms: when the file landed.
    """
    year = int(np.datetime64(arrival_ms, "ms").astype("datetime64[Y]").astype(int)) + 1970
    near = _nearest_sql(value, format_, arrival_ms, range(year - 1, year + 2))
    leap = _nearest_sql(value, format_, arrival_ms, range(year - _NEXT_LEAP_YEARS, year + _NEXT_LEAP_YEARS + 1))
    return f"CASE WHEN {near} IS NOT NULL THEN {near} ELSE {leap} END"


def _nearest_sql(value: str, format_: str, arrival_ms: int, years: range) -> str:
    found = ", ".join(f"try_strptime('{each} ' || {value}, {format_})" for each in years if 1 <= each <= 9999)
    distance = f"abs(epoch_us(x) - {arrival_ms * 1000})"
    return f"list_sort([{{'d': {distance}, 't': x}} FOR x IN [{found}] IF x IS NOT NULL])[1].t"


def _is_number_sql(value: str) -> str:
    return f"regexp_full_match({value}, '{_NUMBER_FORM}')"


def _micros_sql(value: str, unit: TimeUnit) -> str:
    """Return SQL that rounds the number down to whole microseconds, as a HUGEINT."""
    if unit == "ns":
        whole = f"TRY_CAST(regexp_replace({value}, '\\.[0-9]*$', '') AS HUGEINT)"
        is_cut = f"{value} LIKE '-%' AND {whole} % 1000 = 0 AND {_fraction(value, 0)}"
        down = f"(({whole} < 0 AND {whole} % 1000 <> 0) OR ({is_cut}))"
        return f"({whole} // 1000 - ({down})::INT)"
    digits = _DIGITS[unit]
    cut = f"regexp_replace({value}, '(\\.[0-9]{{{digits}}})[0-9]*$', '\\1')"
    scaled = (
        f"(TRY_CAST({cut} AS DECIMAL(38,{digits})) * {10**digits})" if digits else f"TRY_CAST({cut} AS DECIMAL(38,0))"
    )
    return f"({scaled}::HUGEINT - ({value} LIKE '-%' AND {_fraction(value, digits)})::INT)"


def _below_sql(value: str, unit: TimeUnit) -> str:
    if unit == "ns":
        whole = f"TRY_CAST(regexp_replace({value}, '\\.[0-9]*$', '') AS HUGEINT)"
        return f"{whole} % 1000 <> 0 OR {_fraction(value, 0)}"
    return _fraction(value, _DIGITS[unit])


def _fraction(value: str, digits: int) -> str:
    """Return SQL that checks for a digit other than 0 after the first `digits` digits of the fraction."""
    return f"regexp_matches({value}, '\\.[0-9]{{{digits}}}[0-9]*[1-9]')"


# Typed values.


def timed_schema(found: pa.Schema, schema: pa.Schema, times: LandedTimes) -> pa.Schema:
    """Return the columns of a file. Numbers that are times, and nanoseconds that are truncated, get time types."""
    return pa.schema([each.with_type(_timed_type(each, schema, times)) for each in found])


def timed_columns(
    rows: pa.Table, schema: pa.Schema, times: LandedTimes
) -> tuple[pa.Table, list[tuple[str, npt.NDArray[np.bool_]]]]:
    """Return the rows with the types of `timed_schema`, and with null in place of numbers that are not times.

    Also return a reason and a mask of the rows for each kind of invalid number.
    """
    found: list[tuple[str, npt.NDArray[np.bool_]]] = []
    for index, each in enumerate(rows.schema):
        wanted = _timed_type(each, schema, times)
        if wanted == each.type:
            continue
        column = rows.column(index)
        if pa.types.is_timestamp(each.type):
            ticks, shown = column.cast(pa.int64()), "the time"
        else:
            ticks, shown = column, "the number"
        unit: TimeUnit = "ns" if pa.types.is_timestamp(each.type) else times.units[each.name]
        micros, below, outside = _micros(ticks, unit)
        if outside.any():
            reason = f"{shown} of {UNIT_NAMES[unit]} since 1970 is not between the years 1 and 9999"
            found.append((f"column {each.name}: {reason}", outside))
        if below.any() and not times.truncates:
            found.append((f"column {each.name}: {shown} has {BELOW}", below & ~outside))
        rows = rows.set_column(index, each.name, micros.cast(wanted))
    return rows, found


def _timed_type(column: pa.Field, schema: pa.Schema, times: LandedTimes) -> pa.DataType:
    place = schema.get_field_index(column.name)
    if place < 0 or not pa.types.is_timestamp(schema.field(place).type):
        return column.type
    if column.name in times.units and pa.types.is_integer(column.type):
        return schema.field(place).type
    if times.truncates and pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        return pa.timestamp("us", column.type.tz)
    return column.type


def _micros(
    ticks: pa.ChunkedArray, unit: TimeUnit
) -> tuple[pa.ChunkedArray, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return numbers as microseconds.

    Also return masks: one for numbers with finer digits, and one for numbers out of range.
    """
    per = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}[unit]
    divisor = 1_000 if unit == "ns" else 1
    if pa.types.is_uint64(ticks.type):
        largest = pa.scalar(2**63 - 1, pa.uint64())
        ticks = pc.min_element_wise(ticks, largest, skip_nulls=False)
    values = np.asarray(ticks.cast(pa.int64()).fill_null(0))
    outside = (values // divisor < _LEAST // per) | (values // divisor > _MOST // per)
    below = values % divisor != 0
    micros = np.where(outside, 0, values) // divisor * per
    nulls = np.asarray(ticks.is_null()) | outside
    return pa.chunked_array([pa.array(micros, mask=nulls)]), below, outside
