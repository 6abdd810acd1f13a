"""Searches by one index. Results are ordered by score or by a column.

A search is exact, regardless of which rows are indexed or merged (decision 0022). Rows without a segment are indexed
during the search. The search then treats these rows like rows with a segment. Therefore the rows, scores and order are
the same with a complete, an incomplete and an empty index. Rows with equal scores are ordered by the values of their
columns (decision 0022).

`search_ordered` returns matching rows in the order of a column instead of the score. For example, the newest rows come
first. The log contains bounds of the column for each split. The sources that may contain the first rows are searched
first. If all rows of a source sort after the last row of the result, the search does not read the source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from storage_core.base.errors import InvalidInput
from storage_core.base.text import quoted, unknown_names
from storage_core.data.rows.codes import Mask, bound_keys, codes, sortable
from storage_core.data.rows.columns import stored_name
from storage_core.data.rows.keys import Positions, bitmap_of, pack, positions, sorted_order
from storage_core.data.rows.vectors import type_text
from storage_core.index import fulltext
from storage_core.index.fulltext import LENIENT, Hits
from storage_core.index.row_positions import SegmentCache
from storage_core.index.segments import Coverage
from storage_core.index.text_files import Searcher
from storage_core.log.snapshot import Snapshot
from storage_core.read.search.matches import Matches, Query, Searched, Trace, matched
from storage_core.read.search.order import (
    BOUNDED,
    SCORE,
    Best,
    FirstRows,
    codes_of,
    free_name,
    in_turns,
    in_windows,
    row_name,
    tie_columns,
)
from storage_core.read.search.search_cache import SearchCache
from storage_core.read.search.search_request import IndexQuestion, VectorQuery, page
from storage_core.read.search.source_protocol import Between, LiveFilter, Source
from storage_core.read.search.vectors import DISTANCE, FIRST_WINDOW, Nearest, has_ties, with_distance
from storage_core.store.meter import prefetch

if TYPE_CHECKING:
    from storage_core.read.predicate import Predicate


_AT_ONCE: Final = 4
_MOST_SOURCES: Final = 16


@dataclass(frozen=True, slots=True)
class Order:
    """The order of result rows by the values of one column. Nulls are last.

    If `descending` is True, the greatest value is first. Otherwise the smallest value is first.
    """

    column: str
    descending: bool = True

    @staticmethod
    def of(column: object, descending: object) -> Order:
        """Return the requested order. Raises `InvalidInput` if the order is invalid."""
        if not isinstance(descending, bool):
            raise InvalidInput(f"descending is {quoted(descending)}. Give true or false")
        if not isinstance(column, str):
            raise InvalidInput(f"order_by is {quoted(column)}. Give the name of a column, and `descending` separately")
        return Order(column, descending)

    def require_known(self, schema: pa.Schema) -> None:
        """Raise `InvalidInput` if the column does not exist or has no order."""
        if self.column not in schema.names:
            raise InvalidInput(unknown_names("column", [self.column], schema.names, where="order_by"))
        if pa.types.is_nested(kind := schema.field(self.column).type):
            raise InvalidInput(
                f"order_by is {self.column!r}, which is {type_text(kind)}: its values have no order. "
                "Name another column"
            )


def refuse_scores(of_scores: Mapping[str, object]) -> None:
    """Raise `InvalidInput` if a parameter for scores is given, because an ordered search has no scores."""
    if given := [name for name, value in of_scores.items() if value is not None]:
        raise InvalidInput(
            f"order_by cannot be combined with {given[0]}, because order_by computes no scores. Leave one of them out"
        )


def search_ordered(
    searched: Searched,
    query: object,
    order: Order,
    columns: Sequence[str] | None = None,
    *,
    index: object = None,
    syntax: object = LENIENT,
    limit: object = 10,
    offset: object = 0,
) -> pa.Table:
    """Return `limit` matching rows after the first `offset` rows. The rows are ordered by a column and have no score.

    The tie columns (`order.tie_columns`) order rows with equal values, as in a search by score. Therefore pages of one
    version do not overlap and do not miss a row.

    Raises:
        InvalidInput: The column has no order. The errors of `search` are raised, too.

    Cost:
        The requests of `Matches.rows`, and the requests for the rows that may be in the result. A source takes no
        request if its bounds in the log come after the result. Integers, decimals, dates and timestamps have such
        bounds.
    """
    snapshot = searched.snapshot
    order.require_known(snapshot.schema)
    wanted, (first, after) = Query.of(snapshot, query, index=index, syntax=syntax, what="order_by"), page(limit, offset)
    names = tuple(snapshot.schema.names) if columns is None else tuple(columns)

    def answer(matches: Matches) -> pa.Table:
        rows = _First(snapshot, order, first + after, names)
        _add_first(matches, rows)
        return rows.rows.rows().select(list(names)).slice(after)

    return matched(searched, wanted, answer)


@dataclass(frozen=True, slots=True)
class _Bounded:
    """A source, or some rows of a source (`rows`).

    `bound` is the sort key of the first value that the source may contain. If the bound is unknown, `bound` is None.
    """

    bound: Any
    source: int
    rows: BitMap = field(default_factory=BitMap)


class _First:
    """The first of all added rows, in the order of a column."""

    def __init__(self, snapshot: Snapshot, order: Order, limit: int, columns: Collection[str]) -> None:
        self.by, self.descending, self.limit = order.column, order.descending, limit
        self._ties = tie_columns(snapshot)
        wanted = {self.by, *columns, *self._ties}
        schema = pa.schema([each for each in snapshot.schema if each.name in wanted])
        self.columns: Sequence[str] = tuple(schema.names)
        self._type = schema.field(self.by).type
        self.rows = FirstRows(schema, limit, self._order)

    def in_order(self, found: Iterable[_Bounded]) -> list[_Bounded]:
        """Return the pieces in the order of their bounds. Pieces without a bound come first."""
        each_found = [*found]
        known = [each for each in each_found if each.bound is not None]
        ordered = sorted(known, key=lambda each: each.bound, reverse=self.descending)
        return [*(each for each in each_found if each.bound is None), *ordered]

    def bound(self, bounds: Iterable[Any]) -> Any:
        """Return the bound that comes first in the order of the result, or None if one bound is unknown."""
        known = [*bounds]
        return None if not known or None in known else (max if self.descending else min)(known)

    def excludes(self, bound: Any) -> bool:
        """Return True if a row with the key `bound` or a later key cannot be in the result."""
        if bound is None or not self.rows.is_full:
            return False
        last = sortable(self.rows.last().column(self.by).combine_chunks())[0].as_py()
        return last is not None and bool(last > bound if self.descending else last < bound)

    def contenders(self, values: pa.ChunkedArray) -> Mask:
        """Return a mask that is True for each of `values` whose row may be in the result."""
        last = self.rows.last().column(self.by) if self.rows.is_full else values.slice(0, 0)
        coded = codes(pa.chunked_array([*last.chunks, *values.chunks], self._type), descending=self.descending).values
        own = coded[len(last) :]
        reached = [coded[0]] if len(last) else []
        if len(own) > self.limit:
            reached.append(np.partition(own, self.limit - 1)[self.limit - 1])
        return own <= min(reached) if reached else np.ones(len(own), np.bool_)

    def _order(self, rows: pa.Table) -> Positions:
        coded = [codes(rows.column(self.by), descending=self.descending)]
        coded += [codes_of(rows.column(name)) for name in self._ties]
        return sorted_order(pack(coded, rows.num_rows))


def _add_first(matches: Matches, first: _First) -> None:
    """Search the sources in the order of their bounds. Stop if all later sources sort after the result.

    The function searches a growing number of sources concurrently.
    """
    splits = {split for source in matches.sources for split in source.splits}
    bounds = _bounds(matches.searched.snapshot, first, splits)
    waiting = first.in_order(
        _Bounded(first.bound(bounds[split] for split in source.splits), number)
        for number, source in enumerate(matches.sources)
    )
    at_once = sum(each.bound is None for each in waiting) or 1
    for group in in_turns(waiting, lambda each: first.excludes(each.bound), lambda: _MOST_SOURCES, at_once=at_once):
        _add(matches, first, _pieces(matches, bounds, [each.source for each in group]))


def _bounds(snapshot: Snapshot, first: _First, splits: Collection[str]) -> Mapping[str, Any]:
    """Return, for each split, a lower bound of the split's keys in this order.

    The bound is None if the log has no bound.
    """
    kind, adds = snapshot.schema.field(first.by).type, [snapshot.splits[each] for each in splits]
    if not any(is_kind(kind) for is_kind in BOUNDED):
        return dict.fromkeys(splits)
    known = [(add.maxValues if first.descending else add.minValues) or {} for add in adds]
    stored = stored_name(snapshot.schema.field(first.by))
    keys = bound_keys(pa.array([each.get(stored) for each in known], pa.string()), kind)
    return dict(zip(splits, keys.to_pylist(), strict=True))


def _pieces(matches: Matches, bounds: Mapping[str, Any], numbers: Sequence[int]) -> Iterator[_Bounded]:
    """Yield the matching rows of some sources. Each piece has the rows of one split."""
    for number, rows in matches.rows(numbers):
        source, own = matches.sources[number], positions(rows)
        if len(source.splits) < 2:
            yield _Bounded(bounds[source.splits[0]] if source.splits else None, number, rows)
            continue
        for split, which, _ in source.in_splits(own):
            yield _Bounded(bounds[split], number, bitmap_of(own[which]))


def _add(matches: Matches, first: _First, pieces: Iterable[_Bounded]) -> None:
    """Add the rows of some pieces in the order of their bounds.

    The function first reads the column that determines the order. Then the function reads the other columns for the
    rows that may be in the result.
    """

    def values(piece: _Bounded) -> pa.ChunkedArray:
        return matches.sources[piece.source].take(positions(piece.rows), [first.by]).column(first.by)

    for group in in_turns(first.in_order(pieces), lambda each: first.excludes(each.bound), lambda: _AT_ONCE):
        for piece, own in zip(group, prefetch(values, group, _AT_ONCE), strict=True):
            wanted = np.flatnonzero(first.contenders(own))
            rows = positions(piece.rows)[wanted]
            if len(rows):
                first.rows.add(matches.sources[piece.source].take(rows, first.columns))


_MATCH = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scored:
    """The result of one index: the live hits of each source, and the numbers of the sources that may have hits.

    All rows with a score greater than `tied` are among the best rows. `better` contains the sources of the rows with a
    score greater than `tied`. The first `wanted` rows with the score `tied` are among the best as well.
    """

    sources: Sequence[int]
    hits: Callable[[Sequence[int]], Mapping[int, Hits]]
    tied: float
    wanted: int
    better: frozenset[int] = frozenset()


def search(
    searched: Searched,
    one: IndexQuestion,
    columns: Sequence[str] | None = None,
    *,
    most: int,
    trace: Trace | None = None,
) -> pa.Table:
    """Return the best `most` live rows of the table according to one index.

    The rows have a `score` and are ordered best first.

    The search returns only rows that meet the filter. The filter does not change scores. If a key has several unmerged
    records, the newest record is used.

    Rows are ordered by descending score, then by key. In a table without a key, the time column and then all other
    columns replace the key. Therefore the same rows with the same scores always produce the same pages. The location of
    rows in splits and generations has no effect on the result.

    If a `vector` is given, the search finds the nearest rows. `score` is 1 - distance for cosine, and -distance for l2
    and dot. `distance` is the distance of the metric. `score` and `distance` are computed from exact embeddings. The
    search reads `nprobe` clusters of each segment. Codes rank the candidates in windows of 10 rows, 40 rows and so on
    (`windows`). Additional rows of a wider window come after the rows of the narrower window.

    A search in full text computes scores with BM25 (`fulltext.parse` documents the syntax). The statistics for BM25
    cover all rows of the splits, and the whole rows of each unmerged generation. The statistics also cover the rows
    that result from a merge of other records into the base. Deleted or replaced rows stay in the statistics until their
    split is rewritten or their generation is merged. The search never returns deleted or replaced rows. Decision 0022
    describes how much deleted or replaced rows can change scores. Every match of a bitmap index has the score 1.0
    (`search_request.parse_bitmap_query`).

    Args:
        searched: The table, the filter and the limits.
        one: The index and the question.
        columns: The columns of the result, or None for all.
        most: The number of wanted rows.
        trace: Receives the sources that were used.

    Returns:
        The rows. The score column is called `_score` if the table has a column `score`.

    Raises:
        InvalidInput: The filter cannot be evaluated.
        Corrupt: A split is damaged. A damaged segment is not used, and a warning is logged.
        SnapshotExpired: A split was removed. A removed segment is not used, and a warning is logged.
        Unavailable: The machine lacks disk, memory or open files, or the filter exceeds a limit.

    Cost:
        A search by vector makes the requests of `Nearest.rows` for each window. Any other search makes one GET per
        source without a cached segment, or the requests of `segment_reader.SegmentReader` for bitmaps. Then it makes
        one GET per split with hits that may be among the best. From a split above 8 MiB, it reads only the footer and
        the row groups with hits. Files on a local disk take no request. A hit with the score of the last row is skipped
        if its first column comes after the first column of that row (decision 0022). A filter adds the requests that
        read its columns for the hits. If bitmap indexes decide the whole filter, it adds the requests of
        `Bitmaps.of_split` instead. A stored deletion vector of a split with such hits takes one GET. The requests of
        `unmerged_records.split_unmerged_records` are added.
    """
    snapshot, kept, parsed = searched.snapshot, searched.kept, one.question
    names = tuple(snapshot.schema.names) if columns is None else tuple(columns)
    overlay = searched.overlay()
    score, distance = added_names(snapshot.schema)

    def best(covered: Sequence[Coverage], cached: SegmentCache) -> pa.Table:
        [live] = searched.lives(covered, overlay, cached)
        if trace is not None:
            trace.lives = {one.definition.name: live}
        if isinstance(parsed, VectorQuery):
            answer = _nearest(Nearest(live, parsed, most, readers=kept.readers), snapshot, names, most)
        else:
            rows = Best(snapshot, most, names)
            add_best(live, one, rows, most, kept=kept, root=cached.root)
            answer = rows.answer(names, score=score)
        live.require_valid()
        return answer

    found = searched.attempt(best, [one.definition])
    if not isinstance(parsed, VectorQuery):
        return found
    return with_distance(found, parsed.metric, score=score, distance=distance)


def add_best(live: LiveFilter, one: IndexQuestion, rows: Best, most: int, *, kept: SearchCache, root: Path) -> None:
    """Add the best `most` rows of one index.

    The function may also add other rows that have the score of the last row.
    """
    match one.question:
        case fulltext.TextQuery() as query:
            with kept.searchers.searcher(one.definition, live.sources, root) as searcher:
                _add_best(live.sources, _text_matches(live, query, most, searcher), rows)
        case VectorQuery() as query:
            nearest = Nearest(live, query, most, readers=kept.readers)
            nearest.add(nearest.rows(most), rows)
        case condition:
            _add_best(live.sources, _bitmap_matches(live, condition, most), rows)


def _nearest(nearest: Nearest, snapshot: Snapshot, names: Sequence[str], most: int) -> pa.Table:
    """Return the nearest `most` rows with their scores. The function reads windows of the ranking (`in_windows`)."""
    name, (score, _) = row_name(snapshot), added_names(snapshot.schema)
    held = [*dict.fromkeys([*names, *name])]

    def ranked(window: int) -> tuple[pa.Table, bool]:
        near = nearest.rows(window)
        rows = Best(snapshot, min(window, most), names, is_named=True, has_ties=has_ties(near))
        nearest.add(near, rows)
        found = rows.answer(held, score=score)
        return found, found.num_rows < window

    return in_windows(ranked, most, name, first=FIRST_WINDOW).select([*names, score])


def added_names(schema: pa.Schema) -> tuple[str, str]:
    """Return the names of the added columns for the score and the distance. The schema has no columns with the returned
    names.
    """
    return free_name(SCORE, schema.names), free_name(DISTANCE, schema.names)


def _text_matches(live: LiveFilter, query: fulltext.TextQuery, most: int, searcher: Searcher) -> _Scored:
    found = query.hits(searcher, most, live=live)
    hits = found.by_source()
    tied = float(found.scores[-1]) if len(found) > most else -math.inf  # at most `most` hits are all among the best
    better = frozenset(source for source, own in hits.items() if own.scores[0] > tied)
    return _Scored(
        sources=sorted(hits),
        hits=lambda sources: {each: hits[each] for each in sources},
        tied=tied,
        wanted=most - int((found.scores > tied).sum()),
        better=better,
    )


def _bitmap_matches(live: LiveFilter, condition: Predicate, most: int) -> _Scored:
    """Return the matches of a bitmap index. The search opens a source only if its hits are needed."""

    def matching(source: int) -> Hits:
        return Hits.of_source(source, positions(live.sources[source].matching_rows(condition)), _MATCH)

    def hits(sources: Sequence[int]) -> Mapping[int, Hits]:
        asked = [each for each in sources if not live.excludes(each)]
        return live(Hits.joined([*prefetch(matching, asked, _AT_ONCE)])).by_source()

    return _Scored(sources=range(len(live.sources)), hits=hits, tied=_MATCH, wanted=most)


def _add_best(found: Sequence[Source], matches: _Scored, best: Best) -> None:
    """Read each source that may have some of the best rows. The function reads each source only once.

    The function concurrently reads the sources that certainly have some of the best rows. The function reads the
    sources that only may have such rows in groups of increasing size, until the best rows are complete.
    """

    def add(sources: Sequence[int]) -> None:
        hits = _contending(found, matches, matches.hits(sources), best)
        rows = prefetch(lambda each: best.taken(found[each], hits[each].rows), hits, _AT_ONCE)
        for own, taken in zip(hits.values(), rows, strict=True):
            best.add(taken, own.scores)

    def turn(source: int) -> tuple[Any, ...]:
        low = found[source].low()
        return low is not None, 0 if low is None else low, source

    add([each for each in matches.sources if each in matches.better])
    others = sorted({*matches.sources} - matches.better, key=turn)
    # The sources are in the order of their first rows. The search stops at the first source whose rows all sort after
    # the last row of the result.
    for group in in_turns(
        others, lambda each: best.excludes(matches.tied, found[each].low()), lambda: 1 if best.is_full else _AT_ONCE
    ):
        add(group)


def _contending(found: Sequence[Source], matches: _Scored, hits: Mapping[int, Hits], best: Best) -> Mapping[int, Hits]:
    """Return the hits that may be among the best rows.

    A hit with the score `tied` is removed if it sorts after the last of the best rows found so far. The bounds in the
    log remove most of these hits. Values are read only for hits that the bounds do not remove.
    """
    hits = _within_bounds(matches, hits, best, lambda source, rows: found[source].bounds(rows))
    return _within_bounds(matches, hits, best, lambda source, rows: found[source].between(rows))


def _within_bounds(
    matches: _Scored, hits: Mapping[int, Hits], best: Best, bounds: Callable[[int, Positions], Between | None]
) -> Mapping[int, Hits]:
    """Return the hits. Omit hits with the score `tied` if their `bounds` sort after the best rows."""
    tied = {each: rows for each, own in hits.items() if len(rows := own.rows[own.scores == matches.tied])}
    if sum(map(len, tied.values())) <= matches.wanted and not best.is_full:
        return hits
    known = dict(zip(tied, prefetch(lambda each: bounds(each, tied[each]), tied, _AT_ONCE), strict=True))
    between = {each: keys for each, keys in known.items() if keys is not None}
    if not between:
        return hits
    low, high = map(np.concatenate, zip(*between.values(), strict=True))
    may = best.contenders(low, high, score=matches.tied, wanted=matches.wanted)
    left, ends = dict(hits), np.cumsum([len(keys) for keys, _ in between.values()])
    for each, own in zip(between, np.split(may, ends[:-1]), strict=True):
        is_wanted = hits[each].scores != matches.tied
        is_wanted[~is_wanted] = own
        left[each] = hits[each].take(is_wanted)
    return {each: own for each, own in left.items() if len(own)}
