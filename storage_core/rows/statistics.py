"""Column statistics that never lie: every value lies between the bounds, in the total order of `rows.codes`.

The bounds are text (`rows.bound_text`), because the log stores them as text (lessons 62, 64 and 66).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.rows.bound_text import has_bounds, lower, upper
from storage_core.rows.codes import Mask

TRUNCATE_AT = 32

_FEW = 8


@dataclass(frozen=True, slots=True)
class Statistics:
    """Bounds in text form per column, and the number of nulls of every column.

    A column without a bound on one side has no entry there: no values, a type without bounds, a maximum that cannot
    be rounded up, or an instant that the calendar of the text cannot write (years 1 to 9999). No entry never prunes.
    """

    min_values: dict[str, str] = field(default_factory=dict)
    max_values: dict[str, str] = field(default_factory=dict)
    null_counts: dict[str, int] = field(default_factory=dict)


class Running:
    """The statistics of rows that pass in pieces: those that `compute` finds in all of them together."""

    __slots__ = ("_extremes", "_nulls")

    def __init__(self) -> None:
        self._extremes: dict[str, list[pa.Array]] = {}
        self._nulls: dict[str, int] = {}

    def add(self, table: pa.Table) -> None:
        """Count the next rows; every piece must have the same columns."""
        for name, column in zip(table.column_names, table.columns, strict=True):
            values, nulls = values_and_nulls(column)
            self._nulls[name] = self._nulls.get(name, 0) + nulls
            if has_bounds(values.type):
                low, high = _extremes(values)
                self._extremes.setdefault(name, []).append(pa.array([low, high], low.type))

    def result(self, truncate_at: int = TRUNCATE_AT) -> Statistics:
        """Return the statistics of all rows so far; strings are cut after `truncate_at` code points."""
        statistics = Statistics(null_counts=dict(self._nulls))
        for name, pieces in self._extremes.items():
            low, high = _extremes(pa.chunked_array(pieces))
            for bounds, text in (
                (statistics.min_values, lower(low, truncate_at)),
                (statistics.max_values, upper(high, truncate_at)),
            ):
                if text is not None:
                    bounds[name] = text
        return statistics


def compute(table: pa.Table, truncate_at: int = TRUNCATE_AT) -> Statistics:
    """Return the statistics of every column; strings are cut after `truncate_at` code points."""
    running = Running()
    running.add(table)
    return running.result(truncate_at)


def values_and_nulls(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, int]:
    """The values that occur (of a dictionary column: once each), and how many rows are null."""
    if not pa.types.is_dictionary(column.type):
        return column, column.null_count
    used: list[pa.Array] = []
    nulls = 0
    for chunk in column.chunks:
        nulls += chunk.null_count
        if chunk.dictionary.null_count:
            nulls += chunk.dictionary_decode().null_count - chunk.null_count
        used.append(_used(chunk))
    return pa.chunked_array(used, column.type.value_type), nulls


def used_values(column: pa.DictionaryArray) -> Mask:
    """Return which places of the dictionary rows have; of null rows none. Several times as fast as a hash of them."""
    indices = (column.indices.drop_null() if column.indices.null_count else column.indices).to_numpy()
    changes = indices[1:] != indices[:-1]
    if np.count_nonzero(changes) < len(indices) // _FEW:  # as in a column of the sort order
        indices = np.append(indices[:1], indices[1:][np.flatnonzero(changes)])
    used = np.zeros(len(column.dictionary), np.bool_)
    used[indices.astype(np.int64)] = True
    return used


def _used(column: pa.DictionaryArray) -> pa.Array:
    """The values of the dictionary that rows have, each once, and null where a row is."""
    if column.indices.null_count or len(column.dictionary) > len(column):
        return column.dictionary.take(pc.unique(column.indices))
    used = used_values(column)
    return column.dictionary if used.all() else column.dictionary.filter(pa.array(used))


def _extremes(values: pa.ChunkedArray) -> tuple[pa.Scalar, pa.Scalar]:
    if not pa.types.is_floating(values.type):
        bounds = pc.min_max(values.cast(pa.string()) if pa.types.is_string_view(values.type) else values)
        return bounds["min"], bounds["max"]
    if not values.null_count:  # numpy is many times as fast; its extremes are NaN where any value is
        chunks = [chunk.to_numpy() for chunk in values.chunks if len(chunk)]
        ends = [end for chunk in chunks for end in (chunk.min(), chunk.max())]
        if ends and not np.isnan(ends).any():
            return pa.scalar(min(ends), values.type), pa.scalar(max(ends), values.type)
    unordered = pc.is_nan(values)
    bounds = pc.min_max(values.filter(pc.invert(unordered)))
    if not pc.any(unordered).as_py():
        return bounds["min"], bounds["max"]
    nan = pa.scalar(math.nan, values.type)
    return (bounds["min"] if bounds["min"].is_valid else nan), nan
