"""Search: rows by an index, exact however far the index and the merge lag (decision 0056).

What has no segment is indexed on the fly and takes part as if it had one. So rows, scores and order are the same caught
up, lagging, or without any segment. Equal scores are ordered by the rows (decision 0094).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from storage_core.index import fulltext
from storage_core.index.cache import SegmentCache
from storage_core.index.coverage import Coverage
from storage_core.index.fulltext import Hit
from storage_core.index.text_composed import Searcher
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.prefetch import prefetch
from storage_core.search.first_of import in_turns
from storage_core.search.kept import Kept
from storage_core.search.live import Live
from storage_core.search.order import SCORE, Best, free_name, row_name
from storage_core.search.question import IndexQuestion, SearchQuestion, VectorQuery, index_for, page, question
from storage_core.search.searched import Searched
from storage_core.search.source import Source, by_source
from storage_core.search.trace import Trace
from storage_core.search.vectors import DISTANCE, FIRST_WINDOW, Nearest, has_ties, with_distance
from storage_core.search.windows import in_windows

if TYPE_CHECKING:
    from storage_core.read.predicate import Predicate

_logger = logging.getLogger(__name__)

_MATCH = 1.0
_AT_ONCE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scored:
    """What an index found: the live `hits` of some sources, and the `sources` that may have some, by their places.

    The best are all that score more than `tied`, which are in the sources `better`, and the first `wanted` of those
    that score as much.
    """

    sources: Sequence[int]
    hits: Callable[[Sequence[int]], Mapping[int, Sequence[Hit]]]
    tied: float
    wanted: int
    better: frozenset[int] = frozenset()


def search(
    searched: Searched,
    given: SearchQuestion,
    columns: Sequence[str] | None = None,
    *,
    limit: object = 10,
    offset: object = 0,
    trace: Trace | None = None,
) -> pa.Table:
    """Return `limit` live rows of the table with their `score` (float64), those after the best `offset`, best first.

    Only rows that meet the filter count; it changes no score. Of records that are not merged the newest wins per key.
    Without `columns` the rows have all.
    Order: score descending, then by key; without one by the time column and then all others. So the same rows with the
    same scores give the same pages, wherever they are kept.

    A `vector` finds its nearest rows: `score` is 1 - distance for cosine and -distance for l2 and dot, `distance` the
    metric's own, both from exact vectors; `nprobe` clusters of each segment are looked into. Each ranking by codes is
    of a window of 10 rows, 40 and so on (`windows`): what a wider one finds besides comes behind the narrower ones.

    Full text scores by BM25 (`fulltext.parse` has the syntax) over all rows of the splits, the whole rows of each
    unmerged generation, and what the other records make of the base. Rows that are deleted or superseded weigh in the
    statistics until their split is written anew or their generation merged, and are never returned; decision 0094 has
    the bound. Every bitmap match scores 1.0 (`bitmap_query.parse`). The score column is `_score` where the table has a
    column `score`. `trace` is told what was looked at.

    Raises `NotFound` for an unknown index, `InvalidInput` where none is named and not exactly one takes a vector, or a
    query, for a query, vector or filter that cannot be read, a limit below 1 or an offset below 0, `Corrupt` and
    `SnapshotExpired` for damaged and vanished splits; a segment like that is not used, with a warning. `Unavailable`
    when the machine lacks disk, memory or open files, or the filter passes a limit.
    Requests. By vector: those of `Nearest.rows` per window. Else one GET per source whose segment is not cached
    (bitmaps: `bitmap_parts.Reading`); then one per split with hits that may be among the best, above 8 MiB its footer
    and the row groups with hits; none on a local disk. Hits tied with the last are left out where their first column is
    behind it (decision 0111). A filter adds its columns of the hits, unless bitmaps answer it wholly, which takes those
    of `Bitmaps.of_split`. One per stored deletion vector of splits with such hits; those of `overlay.take_apart`.
    """
    snapshot, kept = searched.snapshot, searched.kept
    definition = index_for(snapshot, given.index, by_vector=given.vector is not None)
    parsed = question(definition, snapshot, given)
    first, after = page(limit, offset)
    most = first + after
    names = tuple(snapshot.schema.names) if columns is None else tuple(columns)
    overlay = searched.overlay()
    score, distance = added_names(snapshot.schema)

    def best(covered: Sequence[Coverage], cached: SegmentCache) -> pa.Table:
        [found] = searched.sources(covered, overlay, cached)
        wanted = searched.row_filter()
        live = Live(found, wanted)
        if trace is not None:
            trace.begin({definition.name: live}, wanted)
        if isinstance(parsed, VectorQuery):
            answer = _nearest(Nearest(live, parsed, most, readers=kept.readers), snapshot, names, most)
        else:
            rows = Best(snapshot, most, names)
            add_best(live, IndexQuestion(definition, parsed), rows, most, kept=kept, root=cached.root)
            answer = rows.answer(names, score=score)
        live.require_sound()
        return answer

    found = searched.attempted(best, [definition]).slice(after)
    if not isinstance(parsed, VectorQuery):
        return found
    return with_distance(found, parsed.metric, score=score, distance=distance)


def add_best(live: Live, one: IndexQuestion, rows: Best, most: int, *, kept: Kept, root: Path) -> None:
    """Add the best `most` rows that one index finds, and perhaps others that score as the last of them."""
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
    """The nearest `most` rows with their score, from windows."""
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
    """Return what answers call the score and, of searches by vector, the distance: names that no column has."""
    return free_name(SCORE, schema.names), free_name(DISTANCE, schema.names)


def _text_matches(live: Live, query: fulltext.TextQuery, most: int, searcher: Searcher) -> _Scored:
    found = query.hits(searcher, most, live=live)
    hits = by_source(found)
    tied = found[-1].score if len(found) > most else -math.inf  # else all of them are among the best
    better = frozenset(source for source, own in hits.items() if own[0].score > tied)
    return _Scored(
        sources=sorted(hits),
        hits=lambda sources: {each: hits[each] for each in sources},
        tied=tied,
        wanted=most - sum(hit.score > tied for hit in found),
        better=better,
    )


def _bitmap_matches(live: Live, condition: Predicate, most: int) -> _Scored:
    """Only the sources that are asked for are opened, so those behind the answer stay closed."""

    def matching(source: int) -> list[Hit]:
        return [Hit(source=source, row=row, score=_MATCH) for row in live.sources[source].matching(condition)]

    def hits(sources: Sequence[int]) -> Mapping[int, Sequence[Hit]]:
        asked = [each for each in sources if not live.excludes(each)]
        return by_source(live(list(chain.from_iterable(prefetch(matching, asked, _AT_ONCE)))))

    return _Scored(sources=range(len(live.sources)), hits=hits, tied=_MATCH, wanted=most)


def _add_best(found: Sequence[Source], matches: _Scored, best: Best) -> None:
    """Read each source that has some of the best rows, or may have, once.

    Those that certainly have side by side; of the others more and more at a time, as long as rows are wanting.
    """

    def add(sources: Sequence[int]) -> None:
        hits = _contending(found, matches, matches.hits(sources), best)
        rows = prefetch(lambda each: best.taken(found[each], [hit.row for hit in hits[each]]), hits, _AT_ONCE)
        for own, taken in zip(hits.values(), rows, strict=True):
            best.add(taken, [hit.score for hit in own])

    def turn(source: int) -> tuple[Any, ...]:
        low = found[source].low()
        return low is not None, 0 if low is None else low, source

    add([each for each in matches.sources if each in matches.better])
    others = sorted({*matches.sources} - matches.better, key=turn)
    # Of two in this order the second begins where the first does, or behind it.
    for group in in_turns(
        others, lambda each: best.excludes(matches.tied, found[each].low()), lambda: 1 if best.is_full else _AT_ONCE
    ):
        add(group)


def _contending(
    found: Sequence[Source], matches: _Scored, hits: Mapping[int, Sequence[Hit]], best: Best
) -> Mapping[int, Sequence[Hit]]:
    """Leave out hits that score as much as the last of the best and order behind it, by what is known of their rows."""
    tied = {each: [hit.row for hit in own if hit.score == matches.tied] for each, own in hits.items()}
    if sum(map(len, tied.values())) <= matches.wanted and not best.is_full:
        return hits
    asked = [each for each, rows in tied.items() if rows]
    known = dict(zip(asked, prefetch(lambda each: found[each].between(tied[each]), asked, _AT_ONCE), strict=True))
    between = {each: keys for each, keys in known.items() if keys is not None}
    if not between:
        return hits
    low, high = map(np.concatenate, zip(*between.values(), strict=True))
    may = iter(best.contenders(low, high, score=matches.tied, wanted=matches.wanted).tolist())
    left = {
        each: [hit for hit in own if each not in between or hit.score != matches.tied or next(may)]
        for each, own in hits.items()
    }
    return {each: own for each, own in left.items() if own}
