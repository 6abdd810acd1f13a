"""Conditions whose values come from outside, as text or as instants: each becomes a value of its column and stays one.

No text of a caller becomes a part of SQL, whatever it holds.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.read.predicate import Filter, col
from storage_core.rows.bound_text import has_bounds, text_of
from storage_core.rows.columns import value_of
from storage_core.rows.vectors import type_text

MIDNIGHT = dt.time(0)


def one_of(field: pa.Field, texts: Iterable[str]) -> Filter:
    """Return the condition that a column has one of these values, each given as text; without any no row meets it.

    Raises `InvalidInput` naming a text that is no value of the column's type, or not the one text of its value.
    """
    return col(field.name).isin([_value(field, each) for each in texts])


def between(field: pa.Field, start: dt.datetime, end: dt.datetime) -> Filter:
    """Return the condition that the time in a column is from `start` on and before `end`, which have a time zone.

    A timestamp without a time zone is taken as UTC, a date as a day of the zone of `start`. Raises `InvalidInput` for
    a column of another type, and for a column of dates where `start` or `end` is not midnight.
    """
    column = col(field.name)
    first, last = _instant(field, start), _instant(field, end)
    return (column >= first) & (column < last)


def _value(field: pa.Field, text: str) -> Any:
    if pa.types.is_string(field.type):
        return text
    if not has_bounds(field.type):
        raise InvalidInput(
            f"column {field.name!r}: no text stands for a value of {type_text(field.type)}; name another column",
            column=field.name,
        )
    try:
        found = value_of(text, field.type)
    except (ValueError, pa.ArrowException) as error:
        raise InvalidInput(
            f"column {field.name!r}: {quoted(text)} is not a value of {type_text(field.type)}: {error}",
            column=field.name,
        ) from error
    if (own := text_of(found)) != text:
        raise InvalidInput(
            f"column {field.name!r}: {quoted(text)} is the value {own} in other words, by which two texts would be the "
            f"same rows; write {own}",
            column=field.name,
        )
    return found.as_py()


def _instant(field: pa.Field, instant: dt.datetime) -> dt.datetime | dt.date:
    if pa.types.is_timestamp(field.type):
        utc = instant.astimezone(dt.UTC)
        return utc if field.type.tz else utc.replace(tzinfo=None)
    if not pa.types.is_date(field.type):
        raise InvalidInput(
            f"column {field.name!r} is {type_text(field.type)}, which is no time; name a column of timestamps or dates",
            column=field.name,
        )
    if instant.time() != MIDNIGHT:
        raise InvalidInput(
            f"column {field.name!r} has dates, and {instant.isoformat()} is within a day; name a column of timestamps",
            column=field.name,
        )
    return instant.date()
