"""What the log knows about the values in splits, column by column: statistics, windows, partitions.

A `Source` answers for a batch of splits at once. Its bounds are keys of `rows.sortable`, inclusive, null where unknown;
each side is decoded when somebody compares with it, and once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.log.files.columns import ManifestBounds
from storage_core.rows.columns import stored_name
from storage_core.rows.map_lookup import MapColumn, map_column
from storage_core.rows.sortable import bound_keys

_MICROSECONDS = 1_000_000
# Windows beyond it (126,000 years) are not times that a column can hold, and their microseconds would overflow.
_FURTHEST_SECOND = 4 * 10**12


@dataclass(frozen=True, slots=True)
class ColumnBounds:
    """Bounds of one column per split: `low` and `high` on demand; `nulls` and `rows` count, null where unknown."""

    type: pa.DataType
    low: Callable[[], pa.Array]
    high: Callable[[], pa.Array]
    nulls: pa.Array
    rows: pa.Array


Source = Callable[[str], ColumnBounds | None]


def statistics_of(files: pa.RecordBatch, schema: pa.Schema) -> Source:
    """Bounds from the least and greatest values, the null counts and the rows of the splits."""
    lows, highs, nulls = (cache(_Maps(files, name)) for name in ("minValues", "maxValues", "nullCounts"))

    @cache
    def bounds(column: str) -> ColumnBounds | None:
        type_ = _type_of(column, schema)
        if type_ is None:
            return None
        stored = stored_name(schema.field(column))
        return ColumnBounds(
            type_,
            cache(lambda: bound_keys(lows().lookup(stored), type_)),
            cache(lambda: bound_keys(highs().lookup(stored), type_)),
            nulls().lookup(stored),
            files.column("numRecords"),
        )

    return bounds


def expressions_of(files: pa.RecordBatch, schema: pa.Schema) -> Callable[[str], pa.Array | None]:
    """Per column of strings, the expressions that match all its values in each split, null where unknown."""
    expressions = cache(_Maps(files, "columnRegexes"))

    @cache
    def of(column: str) -> pa.Array | None:
        type_ = _type_of(column, schema)
        if type_ is None or not pa.types.is_string(type_):
            return None
        return expressions().lookup(stored_name(schema.field(column)))

    return of


def partitions_of(files: pa.RecordBatch, schema: pa.Schema) -> Source:
    """Bounds from partition values: every row of a split has the one value. An empty text may stand for null."""
    values = cache(_Maps(files, "partitionValues"))

    @cache
    def bounds(column: str) -> ColumnBounds | None:
        type_ = _type_of(column, schema)
        if type_ is None:
            return None
        texts = values().lookup(column)
        known = pc.coalesce(pc.greater(pc.binary_length(texts), 0), pa.scalar(value=False))
        exact = cache(lambda: bound_keys(pc.if_else(known, texts, None), type_))
        return ColumnBounds(type_, exact, exact, pc.if_else(known, 0, None), files.column("numRecords"))

    return bounds


def windows_of(files: pa.RecordBatch, schema: pa.Schema, time_column: str | None) -> Source:
    """Bounds from the splits' windows: [start, start + duration) of the time column. No window, no bound."""
    return _windows(files.column("windowStart"), files.column("windowSeconds"), schema, time_column)


def manifest_source(manifest: ManifestBounds, schema: pa.Schema, time_column: str | None) -> Source:
    """Bounds of a manifest as of one split that holds the rows of all of its splits."""
    first, last = manifest.windows if manifest.windows and not manifest.has_null_window else (None, None)
    duration = None if first is None or last is None else manifest.window_seconds
    span = None if duration is None or first is None or last is None else last - first + duration
    start, seconds = (pa.array([None if span is None else each], pa.int64()) for each in (first, span))
    windows = _windows(start, seconds, schema, time_column)

    def bounds(column: str) -> ColumnBounds | None:
        type_ = _type_of(column, schema)
        if type_ is None or column not in manifest.partitions:
            return windows(column)
        low, high = manifest.partitions[column]
        if low != high and not manifest.in_order_of_type:
            return None  # the order they are bounds in may be another: 10 before 9, UTF-16 before UTF-8
        keys = [bound_keys(pa.array([text], pa.string()), type_) for text in (low, high)]
        # Ours bound a column only where every split has a value of it; those of others leave nulls out.
        nulls = pa.array([0 if manifest.in_order_of_type else None], pa.int64())
        return ColumnBounds(type_, lambda: keys[0], lambda: keys[1], nulls, pa.nulls(1, pa.int64()))

    return bounds


@dataclass(frozen=True)
class _Maps:
    """One map column of the batch, prepared for lookups when it is first asked for."""

    files: pa.RecordBatch
    name: str

    def __call__(self) -> MapColumn:
        return map_column(self.files.column(self.name))


def _windows(start: pa.Array, seconds: pa.Array, schema: pa.Schema, time_column: str | None) -> Source:
    def bounds(column: str) -> ColumnBounds | None:
        type_ = _type_of(column, schema)
        if column != time_column or type_ is None or not (pa.types.is_timestamp(type_) or pa.types.is_date(type_)):
            return None
        unknown = pa.nulls(len(start), pa.int64())
        return ColumnBounds(type_, lambda: keys()[0], lambda: keys()[1], unknown, unknown)

    @cache
    def keys() -> tuple[pa.Array, pa.Array]:
        first, length = (each.fill_null(_FURTHEST_SECOND).to_numpy() for each in (start, seconds))
        # Not by `abs`: the least int64 is its own.
        held = (first > -_FURTHEST_SECOND) & (first < _FURTHEST_SECOND) & (length > 0) & (length < _FURTHEST_SECOND)
        unknown = ~held
        low = np.where(unknown, 0, first) * _MICROSECONDS
        high = low + np.where(unknown, 1, length) * _MICROSECONDS - 1
        return pa.array(low, mask=unknown), pa.array(high, mask=unknown)

    return bounds


def _type_of(column: str, schema: pa.Schema) -> pa.DataType | None:
    index = schema.get_field_index(column)
    return None if index < 0 else schema.field(index).type
