"""Times as people write them, in columns of dates and timestamps: one rule for every way in (decision 0190).

A time without a zone is UTC in a column of instants. Text in ISO 8601 is taken for the value that it spells.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.rows.leaves import Change, leaf_types, with_changed_leaves
from storage_core.rows.nested_faults import wrong_values
from storage_core.rows.vectors import Mask

# The expressions mean the same to Python and to RE2, and match no day that the calendar lacks.
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
    """Return whether the type, or a type inside of it, is one of dates or timestamps."""
    return any(map(is_timed, leaf_types(type_)))


def with_times(values: Sequence[object], type_: pa.DataType) -> Sequence[object]:
    """Return the values of a column of dates or timestamps, each text as the time that it spells; else as they are.

    A NaT of pandas becomes None. Raises `ValueError` that says what to write.
    """
    if not is_timed(type_) or not any(map(_is_foreign, {*map(type, values)})):
        return values
    return [_time(each, type_) if _is_foreign(type(each)) else each for each in values]


def refuse_text(values: Sequence[object], type_: pa.DataType, path: str) -> None:
    """Raise `ValueError` for text among values inside of a list, struct or map, which are dates or timestamps."""
    text = next((each for each in values if isinstance(each, str)), None) if is_timed(type_) else None
    if text is not None:
        raise ValueError(
            f"{quoted(text)} in {path.lstrip('.')} is text. Write dates and times inside of a column as date and "
            "datetime values"
        )


def conformed(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """Return a column whose times are of the kind that `field` has: text is read, and times without a zone are UTC.

    Text inside of lists, structs and maps, and other columns, stay as they are. Raises `InvalidInput` naming the column
    and the first row, counted from 0, whose text is not a time. Cost: no Python object per row.
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
    """Return the rows with null for each text that is not a time of its column, and which rows of a column have one."""
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
    """Return the rows with the texts that were given for their times."""
    for index, field in enumerate(rows.schema):
        if is_timed(field.type) and field.name in given.column_names and _is_text(given.column(field.name).type):
            rows = rows.set_column(index, field.name, given.column(field.name))
    return rows


def in_microseconds(rows: pa.Table) -> pa.Table:
    """Return the rows with their times of nanoseconds, at any depth, in microseconds.

    Raises `InvalidInput` naming the column and the first row, counted from 0, of a time with digits below these.
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
    """The texts that a column takes. A date is the midnight that it begins with."""
    if pa.types.is_date(type_):
        return _DAY
    return f"{_DAY}(?:{_CLOCK}{_ZONE if type_.tz else ''}{'?' if type_.tz else ''})?"


def _advice(shown: str, type_: pa.DataType, text: str = "") -> str:
    if pa.types.is_date(type_):
        return f"{shown} is not a date. Write it as 2026-11-01"
    if not type_.tz and re.fullmatch(f"{_DAY}{_CLOCK}{_ZONE}", text):
        return f"{shown} has a time zone, and the column has none. Write it as 2026-11-01T12:00:00"
    form = "2026-11-01T12:00:00Z" if type_.tz else "2026-11-01T12:00:00"
    return f"{shown} is not a time. Write it as {form}, with at most 6 digits of a second"


def _is_text(type_: pa.DataType) -> bool:
    kinds = pa.types
    held = type_.value_type if kinds.is_dictionary(type_) else type_
    return bool(kinds.is_string(held) or kinds.is_large_string(held) or kinds.is_string_view(held))


def _decoded(chunk: pa.Array) -> pa.Array:
    """The values of a dictionary. Arrow decodes no views: they are cast."""
    if not pa.types.is_dictionary(chunk.type):
        return chunk
    held = chunk.dictionary
    return (held.cast(pa.string()) if _is_text(held.type) else held).take(chunk.indices)


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pa.chunked_array([_decoded(each).cast(pa.string()) for each in column.chunks], pa.string())


def _are_times(texts: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    import pyarrow.compute as pc  # which opening a table does not need

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
        # An offset ends with a colon and two digits as well.
        texts = pc.replace_substring_regex(texts, r"([+-][0-9]{2}:[0-9]{2})Z\z", r"\1")
    return texts.cast(field.type)


def _zoned(leaf: pa.DataType, wanted: pa.DataType) -> Change | None:
    kinds = pa.types
    held = leaf.value_type if kinds.is_dictionary(leaf) else leaf
    if not (kinds.is_timestamp(held) and kinds.is_timestamp(wanted)) or held.tz is not None or wanted.tz is None:
        return None
    return lambda values: _decoded(values).cast(pa.timestamp(held.unit, "UTC"))
