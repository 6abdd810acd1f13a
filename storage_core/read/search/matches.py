"""All rows that match a query, without scores, and counts of their values (facets).

- `Searched` is the table that a search reads: the base, the unmerged records, and the filter.
- `Matches` finds all matching rows of each source. The result is exact, regardless of which rows are indexed or merged.
- `search_facets` counts the matching rows per value of a column that has a bitmap index. If a segment covers the rows,
  the bitmaps of the segment are counted. Otherwise the values of the rows are read. The counts are exact whether or not
  a segment covers the rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from storage_core.base.errors import InvalidInput
from storage_core.base.process import QUERY_BYTES, check_free_resources
from storage_core.base.text import names_of, quoted, unknown_names
from storage_core.data.rows.keys import bitmap_of, positions
from storage_core.data.settings.index import IndexDefinition
from storage_core.index import fulltext
from storage_core.index.damage import damaged
from storage_core.index.fulltext import BLOCK_ROWS, matches, number_of_matches
from storage_core.index.row_positions import SegmentCache, open_cache
from storage_core.index.segments import Coverage, compute_coverage
from storage_core.index.text_files import Searcher
from storage_core.log.actions import IndexSegment
from storage_core.log.snapshot import Snapshot
from storage_core.read.predicate import Predicate
from storage_core.read.row_filter import RowFilter
from storage_core.read.search.base import SearchBase
from storage_core.read.search.search_cache import SearchCache
from storage_core.read.search.search_request import SearchQuestion, index_for, one_index, question
from storage_core.read.search.source_protocol import LiveFilter, Source, Unusable, usable
from storage_core.read.search.sources import sources
from storage_core.read.unmerged_records import Overlay, split_unmerged_records
from storage_core.store.contract import ObjectStore
from storage_core.store.meter import prefetch

if TYPE_CHECKING:
    from storage_core.base.limits import QueryLimits
    from storage_core.read.plan import RawPart
    from storage_core.read.predicate import Filter
    from storage_core.write.region.captured_regions import Unmerged


_logger = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")


@dataclass(slots=True)
class Trace:
    """The sources of each index, by index name, in the successful attempt of a search.

    In this attempt, no damaged object was found.
    """

    lives: Mapping[str, LiveFilter] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """The rows that a search reads: a snapshot and its unmerged records, with a filter and limits.

    Unpacked segments are stored in `cache_dir`. If `cache_dir` is None, unpacked segments exist only during one search.
    Earlier searches cached values in `kept`. The search does not fetch, open or decode these values again. Some
    unmerged records come from the `raw` logs.
    """

    store: ObjectStore
    snapshot: Snapshot
    unmerged: Sequence[Unmerged] = ()
    raw: tuple[RawPart, ...] = ()
    filter: Filter | None = None
    limits: QueryLimits | None = None
    cache_dir: Path | None = None
    kept: SearchCache = field(default_factory=SearchCache)

    def overlay(self) -> Overlay:
        """Return the unmerged records in the form of an overlay.

        Logs have the same runs as in earlier searches. See `split_unmerged_records`.
        """
        kept = self.kept
        return split_unmerged_records(
            self.store, self.snapshot, self.unmerged, footers=kept.verified.footers, runs=kept.runs
        )

    def sources(self, covered: Sequence[Coverage], overlay: Overlay, cached: SegmentCache) -> list[list[Source]]:
        """Return the sources of each index with the given coverage. See `sources.sources`."""
        return sources(self.store, self.snapshot, covered, overlay=overlay, cache=cached, kept=self.kept)

    def row_filter(self, *, is_run: bool = True) -> RowFilter | None:
        """Return the filter, or None. The results of the filter for rows are cached. See `RowFilter`."""
        if self.filter is None:
            return None
        parts, values = self.kept.verified.bitmaps, self.kept.values
        return RowFilter(
            self.store, self.snapshot, self.filter, limits=self.limits, parts=parts, values=values, is_run=is_run
        )

    def lives(
        self, covered: Sequence[Coverage], overlay: Overlay, cached: SegmentCache, *, is_run: bool = True
    ) -> list[LiveFilter]:
        """Return, for each index, the rows of the sources that meet the filter.

        Every search and `explain_search` start with this method. Requests: those of `sources`.
        """
        found, wanted = self.sources(covered, overlay, cached), self.row_filter(is_run=is_run)
        return [LiveFilter(own, wanted) for own in found]

    def attempt(
        self,
        attempt: Callable[[Sequence[Coverage], SegmentCache], _Answer],
        definitions: Sequence[IndexDefinition],
    ) -> _Answer:
        """Call `attempt` and return its result.

        If a segment or translation is unusable, call `attempt` again without it.

        `attempt` gets the coverage of each index. A warning is logged for each unusable object.

        Raises:
            Unavailable: The machine lacks disk or memory.
        """
        covered, unusable = [self.kept.coverage(self.snapshot, each) for each in definitions], set[str]()
        names = ", ".join(repr(each.name) for each in definitions)
        with (
            check_free_resources(f"search of index {names}", size=QUERY_BYTES),
            open_cache(self.cache_dir) as cached,
        ):
            while True:
                try:
                    return attempt(covered, cached)
                except Unusable as gone:
                    _logger.warning("%s is not usable, reading splits instead: %s", gone.path, gone)
                    unusable.add(gone.path)
                    covered = [compute_coverage(self.snapshot, each, without=unusable) for each in definitions]


_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Query:
    """A query that selects rows: a full-text query, or a condition on columns that have bitmaps."""

    definition: IndexDefinition
    parsed: fulltext.TextQuery | Predicate

    @staticmethod
    def of(
        snapshot: Snapshot,
        query: object,
        *,
        index: object,
        syntax: object = fulltext.LENIENT,
        what: str = "a count or a facet",
    ) -> Query:
        """Return the query for one index.

        Error messages use the text `what` for the query. Raises `InvalidInput` and `NotFound`.
        """
        definition = index_for(snapshot, one_index(index, what), by_vector=False)
        parsed = question(definition, snapshot, SearchQuestion(query=query, syntax=syntax))
        if not isinstance(parsed, fulltext.TextQuery | Predicate):
            raise InvalidInput(
                f"index {definition.name!r} is a vector index, which ranks rows but does not match them. Use a "
                "full-text or bitmap index"
            )
        return Query(definition, parsed)


def matched(searched: Searched, query: Query, of: Callable[[Matches], _Answer]) -> _Answer:
    """Call `of(matches)`, and return the result of `of`. If a segment is unusable, call `of` again without the segment.

    Makes the requests of `unmerged_records.split_unmerged_records` and of `Matches`. Raises the errors of `search`.
    """
    overlay = searched.overlay()

    def attempt(covered: Sequence[Coverage], cached: SegmentCache) -> _Answer:
        own = Matches(searched, query, overlay, covered=covered[0], cached=cached)
        found = of(own)
        own.require_valid()
        return found

    return searched.attempt(attempt, [query.definition])


class Matches:
    """The live rows that match a query and meet the filter. The rows are grouped by `sources`."""

    def __init__(
        self, searched: Searched, query: Query, overlay: Overlay, *, covered: Coverage, cached: SegmentCache
    ) -> None:
        """Prepare the search without reading rows."""
        self.searched, self.overlay, self.covered, self.cached = searched, overlay, covered, cached
        self._query = query
        [self._live] = searched.lives([covered], overlay, cached)
        self.sources = self._live.sources

    def rows(self, numbers: Sequence[int] | None = None) -> Iterator[tuple[int, BitMap]]:
        """Yield the matching rows of the sources with these numbers, or of all sources if `numbers` is None.

        The rows of a source may be yielded in several pieces.

        Cost:
            One GET per source without a cached segment. For each source with matches, the requests that find the
            deleted rows. If bitmap indexes do not decide the filter, also the requests that read the filter's columns
            for these rows.
        """
        every = range(len(self.sources)) if numbers is None else numbers
        held, count = dict[int, BitMap](), 0
        for source, found in self._found([each for each in every if not self._live.excludes(each)]):
            held[source] = held[source] | found if source in held else found
            count += len(found)
            if count >= BLOCK_ROWS:
                yield from self._of_live(held)
                held, count = {}, 0
        yield from self._of_live(held)

    def number(self) -> int:
        """Return the number of matching rows. If no row can be hidden, the function does not check single rows."""
        parsed = self._query.parsed
        if isinstance(parsed, fulltext.TextQuery) and self._is_whole():
            with self._searcher(range(len(self.sources))) as searcher:
                return number_of_matches(parsed, searcher)
        return sum(len(rows) for _, rows in self.rows())

    def require_valid(self) -> None:
        """Raise `InvalidInput` if the filter cannot be evaluated."""
        self._live.require_valid()

    def _searcher(self, numbers: Sequence[int]) -> AbstractContextManager[Searcher]:
        parts = [self.sources[each] for each in numbers]
        return self.searched.kept.searchers.searcher(self._query.definition, parts, self.cached.root)

    def _found(self, numbers: Sequence[int]) -> Iterator[tuple[int, BitMap]]:
        """Yield matching rows in pieces. The pieces may contain hidden rows. One piece is in memory at a time."""
        parsed = self._query.parsed
        if isinstance(parsed, fulltext.TextQuery):
            with self._searcher(numbers) as searcher:
                for place, found in matches(parsed, searcher):
                    yield numbers[place], found
            return
        each_found = prefetch(lambda each: self.sources[each].matching_rows(parsed), numbers, _AT_ONCE)
        for source, found in zip(numbers, each_found, strict=True):
            for start in range(0, len(found), BLOCK_ROWS):
                yield source, found[start : start + BLOCK_ROWS]

    def _of_live(self, found: Mapping[int, BitMap]) -> Iterator[tuple[int, BitMap]]:
        return ((source, rows) for source, rows in self._live.drop_hidden(found).items() if rows)

    def _is_whole(self) -> bool:
        """Return whether every row of every source is visible and meets the filter."""
        if self._live.is_filtered or self.overlay.deletes.num_rows:
            return False
        if any(add.deleted_rows is not None for add in self.searched.snapshot.splits.marked()):
            return False
        return not any(prefetch(lambda each: each.deleted_rows(), self.sources, _AT_ONCE))


VALUE, COUNT = "value", "count"

_TAKEN_ROWS: Final = 2**18
_HELD_COUNTS: Final = 2**18


def search_facets(searched: Searched, query: Query, by: object, limit: int) -> pa.Table:
    """Return the `limit` most frequent values of the column `by` among the matching rows: `value`, `count` (int64).

    The most frequent value is first. Values with equal counts are ordered by value, with null last. Rows with null are
    also counted, so the sum of all counts is the number of rows.

    Raises:
        InvalidInput: The column has no bitmap index. The errors of `search` are raised, too.

    Cost:
        Memory: the distinct values. The requests of `Matches.rows`. For each split with matches, the requests of
            `segment_reader.SegmentReader` for values and bitmaps. If no segment covers the split, or the segment has
            more values than there are matching rows, the column is read instead.
    """
    definition, column = bitmap_index_over(searched.snapshot, by)
    return matched(searched, query, lambda matches: _Facets(matches, definition, column).most_frequent(limit))


def bitmap_index_over(snapshot: Snapshot, by: object) -> tuple[IndexDefinition, str]:
    """Return the first bitmap index over a column, and the name of the column.

    Raises `InvalidInput` if no bitmap index contains the column.
    """
    defined = [each for each in snapshot.config.indexes if each.kind == "bitmap"]
    for definition in defined:
        if isinstance(by, str) and by in definition.columns:
            return definition, by
    if not isinstance(by, str) or by not in snapshot.schema.names:
        raise InvalidInput(unknown_names("column", [str(by)], snapshot.schema.names))
    known = names_of(list(dict.fromkeys(column for each in defined for column in each.columns)))
    advice = f"Name one of the columns {known}" if known else "Add a bitmap index over the column to indexes"
    raise InvalidInput(f"facets need a column with a bitmap index, and {quoted(by)} has none. {advice}")


class _Facets:
    """Counts the values of a column in matching rows."""

    def __init__(self, matches: Matches, definition: IndexDefinition, column: str) -> None:
        searched = matches.searched
        self._matches, self._definition, self._column = matches, definition, column
        self._type = searched.snapshot.schema.field(column).type
        self._covered = compute_coverage(searched.snapshot, definition, without=matches.covered.without)
        self._parts = searched.kept.verified.bitmaps
        self._store = searched.store
        self._base = SearchBase(
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
            numbers = positions(rows)
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
        """Yield the counts for these rows of a split's file.

        Counts from segments come first, then counts of uncovered rows.
        """
        left = rows
        for path in self._covered.answers.get(split, ()):
            segment = self._covered.segments[path]
            own, there = self._in_segment(segment, split, rows)
            counted = self._by_bitmaps(segment, own) if own else None
            if counted is not None:
                yield counted
                left = left - there
        for start in range(0, len(left), _TAKEN_ROWS):
            taken = self._base.take(split, positions(left[start : start + _TAKEN_ROWS]), [self._column])
            yield _counted(taken.column(self._column))

    def _in_segment(self, segment: IndexSegment, split: str, rows: BitMap) -> tuple[BitMap, BitMap]:
        """Return the segment's rows that correspond to the given rows of a split.

        Also return their positions in the split.
        """
        if segment.origins is None and tuple(segment.covers) == (split,):
            return rows, rows
        own, there = self._base.row_positions(segment).within(split)
        chosen = np.isin(there, positions(rows))
        return bitmap_of(own[chosen]), bitmap_of(there[chosen])

    def _by_bitmaps(self, segment: IndexSegment, rows: BitMap) -> pa.Table | None:
        """Return the counts for `rows`, or None if the segment has more distinct values than there are `rows`."""
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
