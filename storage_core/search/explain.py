"""How a search is answered: planned by the sources that it would open, or told by the search that was run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from storage_core.index import catch_up, segments, vector
from storage_core.index.cache import SegmentCache
from storage_core.index.coverage import Coverage, coverage
from storage_core.log.snapshot import Snapshot
from storage_core.read.plan import Analysis
from storage_core.read.row_filter import RowFilter
from storage_core.search.fusion import fusion_of
from storage_core.search.hybrid_question import asks_several, names_of, of_one_index, parts_of
from storage_core.search.live import Live
from storage_core.search.plan import FilterPlan, How, IndexPlan, SearchPlan, SourcePlan
from storage_core.search.question import IndexQuestion, SearchQuestion, VectorQuery, index_for, question
from storage_core.search.searched import Searched
from storage_core.search.trace import Trace
from storage_core.search.vectors import most_scored
from storage_core.settings.index import IndexDefinition


@dataclass(frozen=True, slots=True)
class Searching:
    """An index of a search, what it weighs beside others, and into how many clusters it is told to look."""

    definition: IndexDefinition
    weight: float | None = None
    nprobe: int | None = None


def indexes_of(snapshot: Snapshot, given: SearchQuestion) -> list[Searching]:
    """Return the indexes that a search asks; without query and vector those that are named. Raises as `search` does."""
    if given.query is None and given.vector is None:
        return [Searching(segments.definition_of(snapshot, name)) for name in names_of(given.index)]
    fusion_of(given.fusion)  # which raises for one that there is not
    if not asks_several(given):
        one = of_one_index(given)
        definition = index_for(snapshot, one.index, by_vector=one.vector is not None)
        return [_part_of(IndexQuestion(definition, question(definition, snapshot, one)), None)]
    parts = parts_of(snapshot, given)
    ranking = [_part_of(part, weight) for part, weight in zip(parts.ranking, parts.weights, strict=True)]
    return [*ranking, *(_part_of(part, 0.0) for part in parts.filtering)]


def planned(searched: Searched, indexes: Sequence[Searching]) -> Trace:
    """Return the sources that a search would open, of which nothing is read.

    Requests: those of `overlay.take_apart`, and of maps where segments answer for a part of a split.
    """
    overlay = searched.overlay()
    trace, names = Trace(), [each.definition.name for each in indexes]

    def attempt(covered: Sequence[Coverage], cached: SegmentCache) -> None:
        found = searched.sources(covered, overlay, cached)
        wanted = searched.row_filter(is_run=False)
        trace.begin({name: Live(own, wanted) for name, own in zip(names, found, strict=True)}, wanted)
        for own in found:
            for source in own:
                source.count()  # a map that is damaged is met here

    searched.attempted(attempt, [each.definition for each in indexes])
    return trace


def search_plan(
    searched: Searched, indexes: Sequence[Searching], trace: Trace, *, done: Analysis | None = None
) -> SearchPlan:
    """Return what a trace tells, which is of a search that was run where `done` says what that did."""
    is_run, is_filtered = done is not None, trace.filter is not None or any(each.weight == 0 for each in indexes)
    plans = [_index(searched, each, trace, is_run=is_run, is_filtered=is_filtered) for each in indexes]
    wanted = None if trace.filter is None else _filter(searched.snapshot, trace.filter, is_run=is_run)
    return SearchPlan(indexes=plans, filter=wanted, analysis=done, raw_logs=searched.raw)


def covered(snapshot: Snapshot, *, index: str) -> dict[str, Any]:
    """Return which splits a search would answer from segments and which it would index on the fly. No request.

    These fields of `IndexPlan`: `index, kind, version, watermark, segments, scanned`. Raises `NotFound` for an unknown
    index, `InvalidInput` for one that does not fit the schema.
    """
    definition = segments.definition_of(snapshot, index)
    found = coverage(snapshot, definition)
    return {
        "index": index,
        "kind": definition.kind,
        "version": snapshot.version,
        "watermark": catch_up.watermark(snapshot, index),
        "segments": {split: list(paths) for split, paths in sorted(found.answers.items())},
        "scanned": [add.path for add in found.missing],
    }


def _part_of(part: IndexQuestion, weight: float | None) -> Searching:
    nprobe = part.question.nprobe if isinstance(part.question, VectorQuery) else None
    return Searching(part.definition, weight, nprobe)


def _index(searched: Searched, own: Searching, trace: Trace, *, is_run: bool, is_filtered: bool) -> IndexPlan:
    live = trace.lives[own.definition.name]
    has_judged = is_run and live.is_filtered
    return IndexPlan(
        **covered(searched.snapshot, index=own.definition.name),
        sources=[
            _source(searched.snapshot, own.definition, live, number, is_filtered=is_filtered)
            for number in range(len(live.sources))
        ],
        weight=own.weight,
        nprobe=own.nprobe,
        judged=live.judged if has_judged else None,
        met=live.met if has_judged else None,
    )


def _source(
    snapshot: Snapshot, definition: IndexDefinition, live: Live, number: int, *, is_filtered: bool
) -> SourcePlan:
    source, looked = live.sources[number], live.looked.get(number)
    origin, rows = source.origin, source.count()
    trained = None if origin.segment is None else snapshot.segments.get(origin.segment)
    training = None if trained is None else vector.Training.of(trained)
    decides = definition.kind == "vector" and is_filtered and origin.segment is not None
    return SourcePlan(
        place=origin.place,
        name=origin.name,
        rows=rows,
        how=_how(live, number, definition.kind),
        segment=origin.segment,
        segment_bytes=source.segment_bytes,
        exact_up_to=most_scored(rows, snapshot.schema.field(definition.columns[0]).type.list_size) if decides else None,
        clusters=None if training is None else training.clusters,
        matching=None if looked is None else looked.matching,
        probed=None if looked is None else looked.clusters,
        ranked=None if looked is None else looked.ranked,
    )


def _how(live: Live, number: int, kind: str) -> How:
    source, looked = live.sources[number], live.looked.get(number)
    if kind != "fulltext" and live.excludes(number):  # the statistics of full text are of all rows
        return "left_out"
    if source.origin.segment is None:
        return "exact" if kind == "vector" else "indexed"
    return "exact" if looked is not None and looked.is_exact and live.is_filtered else "segment"


def _filter(snapshot: Snapshot, wanted: RowFilter, *, is_run: bool) -> FilterPlan:
    return FilterPlan(
        condition=wanted.condition,
        live_splits=len(snapshot.splits),
        admitted_splits=len(wanted.splits),
        bitmap_indexes=wanted.bitmap_indexes,
        is_exact=wanted.is_answered_by_bitmaps,
        columns=wanted.columns,
        told_splits=sum(each.rows is not None for each in wanted.answers.values()) if is_run else None,
        not_asked=dict(Counter(why for each in wanted.answers.values() for why in each.not_asked.values())),
        rows_read=wanted.rows_read if is_run else None,
    )
