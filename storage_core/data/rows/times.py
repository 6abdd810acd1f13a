"""Dates and timestamps: their texts, and the range of valid years (decision 0009).

**Texts.** A text in ISO 8601 is converted to its date or time. In a column of instants, a time without a zone is UTC.

**The calendar.** The dates and timestamps of a table are in the years 1 to 9999, which every reader supports. Arrow's
int64 microseconds can represent 290,000 years after the year 9999, but Python, ISO 8601 and the texts of the statistics
cannot. Writers therefore refuse rows outside these years. Early 0.1 releases wrote such rows, and readers return them
like any other row.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.base.errors import InvalidInput
from storage_core.base.text import quoted
from storage_core.data.rows.codes import Mask
from storage_core.data.rows.values import (
    TOO_LONG,
    Change,
    find_long_decimals,
    leaf_types,
    with_changed_leaves,
    wrong_values,
)

# Texts of times.

# The expressions have the same meaning in Python and in RE2. The expressions do not match days that do not exist.
_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_FOURTH = "(?:0[48]|[2468][048]|[13579][26])"
_DAY: Final = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    rf"|02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{{2}}{_FOURTH}|{_FOURTH}00)-02-29)"
)
_CLOCK: Final = r"[T ](?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{1,6})?)?"
_ZONE: Final = "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"


def is_timed(type_: pa.DataType) -> bool:
    """Return whether values of the type are dates or timestamps."""
    return bool(pa.types.is_date(type_) or pa.types.is_timestamp(type_))


def has_times(type_: pa.DataType) -> bool:
    """Return whether the type, or a type inside of it, is a date or a timestamp."""
    return any(map(is_timed, leaf_types(type_)))


def with_times(values: Sequence[object], type_: pa.DataType) -> Sequence[object]:
    """Return the values of a column of dates or timestamps, with each text converted to its time.

    NaT of pandas becomes None. Values of other columns are unchanged. Raises `ValueError`, which describes the valid
    form.
    """
    if not is_timed(type_) or not any(map(_is_foreign, {*map(type, values)})):
        return values
    return [_time(each, type_) if _is_foreign(type(each)) else each for each in values]


def refuse_text(values: Sequence[object], type_: pa.DataType, path: str) -> None:
    """Raise `ValueError` for a text in place of a date or timestamp inside of a list, struct or map."""
    text = next((each for each in values if isinstance(each, str)), None) if is_timed(type_) else None
    if text is not None:
        raise ValueError(
            f"{quoted(text)} in {path.lstrip('.')} is text. Give dates and times in nested columns as date and "
            "datetime values"
        )


def conformed(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """Return a column of times with the type of `field`. Texts are converted, and times without a zone are UTC.

    Texts inside of lists, structs and maps are not changed. Columns without times are not changed.

    Raises:
        InvalidInput: A text is not a time. The error names the column and the first such row, counted from 0.

    Cost: the function creates no Python object per row.
    """
    if _is_text(column.type) and is_timed(field.type):
        return _read(_texts(column), field)
    leaves, wanted = leaf_types(column.type), leaf_types(field.type)
    if len(leaves) != len(wanted):
        return column
    changes = [_zoned(leaf, to) for leaf, to in zip(leaves, wanted, strict=True)]
    if not any(changes):
        return column
    kind = with_changed_leaves(pa.nulls(0, column.type), iter(changes)).type
    return pa.chunked_array([with_changed_leaves(each, iter(changes)) for each in column.chunks], kind)


def without_misfits(rows: pa.Table, schema: pa.Schema) -> tuple[pa.Table, list[tuple[str, Mask]]]:
    """Return the rows with null in place of each text that is not a time.

    Also return, for each column with an invalid text, a reason and a mask of the rows.
    """
    import pyarrow.compute as pc

    found: list[tuple[str, Mask]] = []
    for index, name in enumerate(rows.column_names):
        place, column = schema.get_field_index(name), rows.column(index)
        if place < 0 or not is_timed(kind := schema.field(place).type) or not _is_text(column.type):
            continue
        texts = _texts(column)
        is_time = _are_times(texts, kind).fill_null(pa.scalar(value=True))
        if not pc.all(is_time).as_py():
            found.append((f"column {name}: {_advice('the text', kind)}", ~np.asarray(is_time, np.bool_)))
            rows = rows.set_column(index, name, pc.if_else(is_time, texts, pa.scalar(None, pa.string())))
    return rows, found


def with_texts(rows: pa.Table, given: pa.Table) -> pa.Table:
    """Return the rows. If the caller gave a time column as text, the result contains the text column."""
    for index, field in enumerate(rows.schema):
        if is_timed(field.type) and field.name in given.column_names and _is_text(given.column(field.name).type):
            rows = rows.set_column(index, field.name, given.column(field.name))
    return rows


def in_microseconds(rows: pa.Table) -> pa.Table:
    """Return the rows with nanosecond times converted to microseconds, at any depth.

    Raises:
        InvalidInput: A time has digits below the microsecond. The error names the column and the first such row,
            counted from 0.
    """
    for index, field in enumerate(rows.schema):
        changes = [_coarser(each) for each in leaf_types(field.type)]
        if not any(changes):
            continue
        column = rows.column(index)
        finer = wrong_values(column, _below_microseconds)
        if finer is not None:
            row = int(finer.argmax())
            raise InvalidInput(
                f"column {field.name!r}, row {row}: a time has digits below the microsecond. Round it.",
                column=field.name,
                row=row,
            )
        kind = with_changed_leaves(pa.nulls(0, field.type), iter(changes)).type
        chunks = [with_changed_leaves(each, iter(changes)) for each in column.chunks]
        rows = rows.set_column(index, field.name, pa.chunked_array(chunks, kind))
    return rows


def _coarser(leaf: pa.DataType) -> Change | None:
    if not pa.types.is_timestamp(leaf) or leaf.unit != "ns":
        return None
    return lambda values: values.cast(pa.timestamp("us", leaf.tz), safe=False)


def _below_microseconds(values: pa.Array) -> Mask | None:
    if _coarser(values.type) is None:
        return None
    ticks = values.cast(pa.int64()).fill_null(0).to_numpy()
    finer = np.asarray(ticks % 1000 != 0, np.bool_)
    return finer if finer.any() else None


def _is_foreign(kind: type) -> bool:
    return issubclass(kind, str) or kind.__name__ == "NaTType"


def _time(value: Any, type_: pa.DataType) -> object:
    if isinstance(value, str):
        if re.fullmatch(_pattern(type_), value) is None:
            raise ValueError(_advice(quoted(value), type_, value))
        return dt.date.fromisoformat(value) if pa.types.is_date(type_) else dt.datetime.fromisoformat(value)
    return None


def _pattern(type_: pa.DataType) -> str:
    """Return the pattern of valid texts. A text with only a date means midnight."""
    if pa.types.is_date(type_):
        return _DAY
    return f"{_DAY}(?:{_CLOCK}{_ZONE if type_.tz else ''}{'?' if type_.tz else ''})?"


def _advice(shown: str, type_: pa.DataType, text: str = "") -> str:
    if pa.types.is_date(type_):
        return f"{shown} is not a date. Write the date as 2026-11-01"
    if not type_.tz and re.fullmatch(f"{_DAY}{_CLOCK}{_ZONE}", text):
        return f"{shown} has a time zone, and the column has none. Write the time as 2026-11-01T12:00:00"
    form = "2026-11-01T12:00:00Z" if type_.tz else "2026-11-01T12:00:00"
    return f"{shown} is not a time. Write the time as {form}, with at most 6 digits of a second"


def _is_text(type_: pa.DataType) -> bool:
    kinds = pa.types
    held = type_.value_type if kinds.is_dictionary(type_) else type_
    return bool(kinds.is_string(held) or kinds.is_large_string(held) or kinds.is_string_view(held))


def _decoded(chunk: pa.Array) -> pa.Array:
    """Return the values of a dictionary. Arrow cannot decode views, so they are cast."""
    if not pa.types.is_dictionary(chunk.type):
        return chunk
    held = chunk.dictionary
    return (held.cast(pa.string()) if _is_text(held.type) else held).take(chunk.indices)


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pa.chunked_array([_decoded(each).cast(pa.string()) for each in column.chunks], pa.string())


def _are_times(texts: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    import pyarrow.compute as pc  # imported here because opening a table does not need it

    return pc.match_substring_regex(texts, rf"\A(?:{_pattern(type_)})\z")


def _read(texts: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    import pyarrow.compute as pc

    row = pc.index(_are_times(texts, field.type), False).as_py()
    if row >= 0:
        text = texts[row].as_py()
        why = _advice(quoted(text), field.type, text)
        raise InvalidInput(f"column {field.name!r}, row {row}: {why}.", column=field.name, row=row)
    if pa.types.is_timestamp(field.type) and field.type.tz:
        texts = pc.replace_substring_regex(texts, rf"\A({_DAY})\z", r"\1T00:00")
        texts = pc.replace_substring_regex(texts, r"(:[0-9.]+)\z", r"\1Z")
        # The offset of a time zone, such as `+02:00`, ends with a colon and two digits, as a time without a zone does.
        texts = pc.replace_substring_regex(texts, r"([+-][0-9]{2}:[0-9]{2})Z\z", r"\1")
    return texts.cast(field.type)


def _zoned(leaf: pa.DataType, wanted: pa.DataType) -> Change | None:
    kinds = pa.types
    held = leaf.value_type if kinds.is_dictionary(leaf) else leaf
    if not (kinds.is_timestamp(held) and kinds.is_timestamp(wanted)) or held.tz is not None or wanted.tz is None:
        return None
    return lambda values: _decoded(values).cast(pa.timestamp(held.unit, "UTC"))


# The calendar.

BEYOND = "not between the years 1 and 9999"

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)

_MICROSECONDS = (-62_135_596_800_000_000, 253_402_300_799_999_999)
_DAYS_OF_400_YEARS = 146_097
_DAYS = (-719_162, 2_932_896)


def beyond(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array | None:
    """Return, for each value, whether the value or a value inside of it is outside of the years 1 to 9999.

    Return None if no value is outside of these years. For a null, the result is null. For a null in a column of a
    nested type, the result is False.
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
    """Return the table if all its dates and timestamps are in the years 1 to 9999.

    Each column of the table must have an Arrow type that a Tidemark table can store. The decimals of the table must
    have no more digits than their types.

    Raises:
        InvalidInput: A value breaks one of these rules. The error names the column and the first such row, counted from
            0.
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
    """Return the first date or timestamp outside of the years 1 to 9999 as text.

    The returned date or timestamp may have any time unit, and it may be inside lists, structs and maps.

    Return None if all dates and timestamps are in these years.
    """
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
    """Return the rows with text in place of each column that has a value outside of the years 1 to 9999.

    Python can represent the texts of these dates and timestamps, but not the dates and timestamps themselves.
    """
    for index, column in enumerate(table.columns):
        if beyond(column) is not None:
            table = table.set_column(index, table.column_names[index], column.cast(_textual(column.type)))
    return table


def _per_second(type_: pa.DataType) -> int | None:
    """Return the number of ticks per second.

    Return 1 for dates. Return None for nanoseconds and types that are not dates.
    """
    if pa.types.is_date32(type_):
        return 1
    return {"s": 1, "ms": 10**3, "us": 10**6}.get(type_.unit) if pa.types.is_timestamp(type_) else None


def _ticks(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    whole = pa.int32() if pa.types.is_date32(values.type) else pa.int64()
    return values.cast(whole).cast(pa.int64())


def _text(values: pa.Array | pa.ChunkedArray) -> str:
    """Return the first date or timestamp as text. Arrow itself would write a wrong year for a distant date."""
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
    """Return the type with text in place of dates and timestamps."""
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


def row_text(rows: pa.Table, index: int) -> str:
    """Return a row as readable JSON, even if the row contains a time that Python cannot represent."""
    return json.dumps(as_text(rows.slice(index, 1)).to_pylist()[0], default=str, ensure_ascii=False)
