"""How a search is answered: planned by the sources that it would open, or told by the search that was run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from storage_core.index import catch_up, segments, vector
from storage_core.index.cache import SegmentCache
from storage_core.index.coverage import Coverage, coverage
from storage_core.log.snapshot import Snapshot
from storage_core.read.plan import Analysis
from storage_core.read.row_filter import RowFilter
from storage_core.search.attempts import attempted
from storage_core.search.fusion import fusion_of
from storage_core.search.hybrid_question import asked_index, asks_several, names_of, parts_of
from storage_core.search.live import Live
from storage_core.search.matches import Searched
from storage_core.search.plan import FilterPlan, How, IndexPlan, SearchPlan, SourcePlan
from storage_core.search.question import IndexQuestion, VectorQuery, index_for, question
from storage_core.search.sources import sources
from storage_core.search.trace import Trace
from storage_core.search.vectors import most_scored
from storage_core.settings.index import IndexDefinition


@dataclass(frozen=True, slots=True)
class Searching:
    """An index of a search, what it weighs beside others, and into how many clusters it is told to look."""

    definition: IndexDefinition
    weight: float | None = None
    nprobe: int | None = None


def indexes_of(
    snapshot: Snapshot,
    query: object,
    *,
    vector: object,
    index: object,
    fusion: object,
    weights: object,
    syntax: object,
    boosts: Mapping[str, float] | None,
    nprobe: object,
) -> list[Searching]:
    """Return the indexes that a search asks; without query and vector those that are named. Raises as `search` does."""
    if query is None and vector is None:
        return [Searching(segments.definition_of(snapshot, name)) for name in names_of(index)]
    how = fusion_of(fusion)
    if not asks_several(index, query=query, vector=vector):
        definition = index_for(snapshot, asked_index(index, fusion=how, weights=weights), by_vector=vector is not None)
        parsed = question(definition, snapshot, query=query, vector=vector, syntax=syntax, boosts=boosts, nprobe=nprobe)
        return [_part_of(IndexQuestion(definition, parsed), None)]
    parts = parts_of(
        snapshot, index, query=query, vector=vector, weights=weights, syntax=syntax, boosts=boosts, nprobe=nprobe
    )
    ranking = [_part_of(part, weight) for part, weight in zip(parts.ranking, parts.weights, strict=True)]
    return [*ranking, *(_part_of(part, 0.0) for part in parts.filtering)]


def planned(searched: Searched, indexes: Sequence[Searching]) -> Trace:
    """Return the sources that a search would open, of which nothing is read.

    Requests: those of `overlay.take_apart`, and of maps where segments answer for a part of a split.
    """
    overlay = searched.kept.overlay(searched.store, searched.snapshot, searched.unmerged)
    trace, names = Trace(), [each.definition.name for each in indexes]

    def attempt(covered: Sequence[Coverage], cached: SegmentCache) -> None:
        found = sources(searched.store, searched.snapshot, covered, overlay=overlay, cache=cached, kept=searched.kept)
        of = searched.store, searched.snapshot, searched.filter, searched.limits
        wanted = searched.kept.row_filter(*of, is_run=False)
        trace.begin({name: Live(own, wanted) for name, own in zip(names, found, strict=True)}, wanted)
        for own in found:
            for source in own:
                source.count()  # a map that is damaged is met here

    definitions = [each.definition for each in indexes]
    attempted(attempt, searched.snapshot, definitions, kept=searched.kept, cache_dir=searched.cache_dir)
    return trace


def search_plan(
    searched: Searched, indexes: Sequence[Searching], trace: Trace, *, done: Analysis | None = None
) -> SearchPlan:
    """Return what a trace tells, which is of a search that was run where `done` says what that did."""
    is_run, is_filtered = done is not None, trace.filter is not None or any(each.weight == 0 for each in indexes)
    plans = [_index(searched, each, trace, is_run=is_run, is_filtered=is_filtered) for each in indexes]
    wanted = None if trace.filter is None else _filter(searched.snapshot, trace.filter, is_run=is_run)
    return SearchPlan(indexes=plans, filter=wanted, analysis=done)


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
            _source(searched.snapshot, own.definition.kind, live, number, is_filtered=is_filtered)
            for number in range(len(live.sources))
        ],
        weight=own.weight,
        nprobe=own.nprobe,
        judged=live.judged if has_judged else None,
        met=live.met if has_judged else None,
    )


def _source(snapshot: Snapshot, kind: str, live: Live, number: int, *, is_filtered: bool) -> SourcePlan:
    source, looked = live.sources[number], live.looked.get(number)
    origin, rows = source.origin, source.count()
    trained = None if origin.segment is None else snapshot.segments.get(origin.segment)
    training = None if trained is None else vector.Training.of(trained)
    decides = kind == "vector" and is_filtered and origin.segment is not None
    return SourcePlan(
        place=origin.place,
        name=origin.name,
        rows=rows,
        how=_how(live, number, kind),
        segment=origin.segment,
        segment_bytes=source.segment_bytes,
        exact_up_to=most_scored(rows) if decides else None,
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
