"""Facets: how many of the rows that match have each value of a column that a bitmap index is over.

Of rows that a segment answers for, its bitmaps tell; the values of all others are read. Counts are exact either way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.index.coverage import coverage
from storage_core.index.damage import damaged
from storage_core.log.actions import IndexSegment
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.prefetch import prefetch
from storage_core.rows.positions import bitmap_of, positions
from storage_core.search.base import Base
from storage_core.search.matches import Matches, Query, matched
from storage_core.search.searched import Searched
from storage_core.search.source import usable
from storage_core.settings.index import IndexDefinition

VALUE, COUNT = "value", "count"

_AT_ONCE: Final = 4
_TAKEN_ROWS: Final = 2**18
_HELD_COUNTS: Final = 2**18


def search_facets(searched: Searched, query: Query, by: object, limit: int) -> pa.Table:
    """Return the `limit` most frequent values of the column `by` among the rows that match: `value`, `count` (int64).

    Most frequent first, then by value, null last. Null is a value too, so of all values the counts are those of rows.
    Memory is that of the distinct values. Requests: those of `Matches.rows`; per split with matches those of
    `bitmap_parts.Reading`, for its values and bitmaps, or of the column where no segment answers, or where it has more
    values than rows match. Raises `InvalidInput` for a column without a bitmap index, and as `search` does.
    """
    definition, column = bitmap_index_over(searched.snapshot, by)
    return matched(searched, query, lambda matches: _Facets(matches, definition, column).most_frequent(limit))


def bitmap_index_over(snapshot: Snapshot, by: object) -> tuple[IndexDefinition, str]:
    """Return the first bitmap index over a column, and its name. Raises `InvalidInput` where there is none."""
    defined = [each for each in snapshot.config.indexes if each.kind == "bitmap"]
    for definition in defined:
        if isinstance(by, str) and by in definition.columns:
            return definition, by
    known = ", ".join(dict.fromkeys(column for each in defined for column in each.columns)) or "none"
    raise InvalidInput(f"facets are of a column with a bitmap index ({known}), found {quoted(by)}")


class _Facets:
    """Counts the values of a column in matching rows."""

    def __init__(self, matches: Matches, definition: IndexDefinition, column: str) -> None:
        searched = matches.searched
        self._matches, self._definition, self._column = matches, definition, column
        self._type = searched.snapshot.schema.field(column).type
        self._covered = coverage(searched.snapshot, definition, without=matches.covered.without)
        self._parts = searched.kept.verified.bitmaps
        self._store = searched.store
        self._base = Base(
            searched.store,
            searched.snapshot,
            self._covered,
            matches.overlay,
            cache=matches.cached,
            kept=searched.kept,
        )

    def most_frequent(self, limit: int) -> pa.Table:
        counts, in_splits = self._none(), dict[str, BitMap]()
        for source, rows in self._matches.rows():
            own = self._matches.sources[source]
            numbers = rows.to_array().tolist()
            if not own.splits:
                counts = self._with(counts, [_counted(own.take(numbers, [self._column]).column(self._column))])
            for split, _, there in own.in_splits(numbers):
                held = in_splits.setdefault(split, BitMap())
                held |= bitmap_of(there)
        for found in prefetch(lambda split: [*self._of_split(split, in_splits[split])], in_splits, _AT_ONCE):
            counts = self._with(counts, found)
        ordered = _summed(counts).sort_by([(COUNT, "descending"), (VALUE, "ascending")])
        return ordered.slice(0, limit)

    def _none(self) -> pa.Table:
        return pa.table({VALUE: pa.array([], self._type), COUNT: pa.array([], pa.int64())})

    def _with(self, counts: pa.Table, found: list[pa.Table]) -> pa.Table:
        joined = pa.concat_tables([counts, *found])
        return joined if joined.num_rows < _HELD_COUNTS else _summed(joined)

    def _of_split(self, split: str, rows: BitMap) -> Iterator[pa.Table]:
        """The counts of these rows of a split's file: by segments, then of those that none answers for."""
        left = rows
        for path in self._covered.answers.get(split, ()):
            segment = self._covered.segments[path]
            own, there = self._in_segment(segment, split, rows)
            counted = self._by_bitmaps(segment, own) if own else None
            if counted is not None:
                yield counted
                left = left - there
        for start in range(0, len(left), _TAKEN_ROWS):
            taken = self._base.take(split, left[start : start + _TAKEN_ROWS].to_array().tolist(), [self._column])
            yield _counted(taken.column(self._column))

    def _in_segment(self, segment: IndexSegment, split: str, rows: BitMap) -> tuple[BitMap, BitMap]:
        """The rows of a segment that are among these of a split, and those of the split that they are."""
        if segment.origins is None and tuple(segment.covers) == (split,):
            return rows, rows
        own, there = self._base.places(segment).within(split)
        chosen = np.isin(there, positions(rows))
        return bitmap_of(own[chosen]), bitmap_of(there[chosen])

    def _by_bitmaps(self, segment: IndexSegment, rows: BitMap) -> pa.Table | None:
        """The counts of rows of a segment; None where there are more values than rows."""
        with usable(segment.path):
            columns = self._parts.reading(self._store, segment, self._definition).columns([self._column]) or {}
            held = columns[self._column].widened(self._type)
            if len(held.values.values) > len(rows):
                return None
            counts = held.counts(rows)
            nulls = len(rows) - int(counts.sum())
            if nulls < 0:
                raise damaged(segment.path, "a row has two values")
        values = pa.concat_arrays([held.values.values, pa.nulls(1, self._type)])
        found = pa.table({VALUE: values, COUNT: pa.array([*counts.tolist(), nulls], pa.int64())})
        return found.filter(pa.array(found.column(COUNT).to_numpy() > 0))


def _counted(values: pa.ChunkedArray) -> pa.Table:
    ones = pa.array(np.ones(len(values), np.int64))
    return _summed(pa.table({VALUE: values, COUNT: ones}))


def _summed(counts: pa.Table) -> pa.Table:
    found = counts.group_by(VALUE).aggregate([(COUNT, "sum")])
    return found.select([VALUE, f"{COUNT}_sum"]).rename_columns([VALUE, COUNT])
