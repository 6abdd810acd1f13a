"""Catch-up: builds missing segments for the rows of live splits, in one commit (docs/architecture/indexes.md).

The driver plans and commits, and each task executes one work item. Items are sent as JSON. If a run fails before its
commit, no version refers to its segments, and the collector removes the segments. A run without work plans nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain

from storage_core.base.clock import Ids
from storage_core.data.rows.schema import from_schema_string
from storage_core.data.settings.index import IndexDefinition
from storage_core.index import segment_merge, segments, vector
from storage_core.index.row_positions import RowTranslations, load_map, once, read_covered_rows
from storage_core.index.segment_merge import MergedSegments, SegmentMerge
from storage_core.index.segments import Coverage, Part, compute_coverage, watermark_of
from storage_core.log.actions import (
    Action,
    Add,
    IndexSegment,
    RemoveIndexSegment,
    RemoveTranslation,
    Translation,
    read_action,
    read_actions,
    to_json_object,
    write_actions,
)
from storage_core.log.coverage import OUTLIVED_MOVES, leading_to
from storage_core.log.snapshot import Snapshot
from storage_core.store.contract import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUpWork:
    """One split to index, with everything that a task needs.

    `schema_string` is the table's schema as Spark JSON. The segments in `answering` already cover some rows of the
    split. The task indexes only the rows that no segment in `answering` covers. `translations` map the rows of the
    `answering` segments to rows of the split. `origins` are the splits from which the rows came.
    """

    definition: IndexDefinition
    add: Add
    schema_string: str
    answering: tuple[IndexSegment, ...] = ()
    translations: tuple[Translation, ...] = ()
    origins: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the text from which `from_json` makes an equal item."""
        body = {
            "index": [self.definition.key, self.definition.to_text()],
            "split": to_json_object(self.add),
            "schema": self.schema_string,
            "answering": write_actions(self.answering),
            "translations": write_actions(self.translations),
            "origins": list(self.origins),
        }
        return json.dumps(body, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> CatchUpWork:
        """Return the item that `to_json` wrote."""
        body, where = json.loads(text), "catch-up work item"
        return CatchUpWork(
            definition=IndexDefinition.from_text(*body["index"]),
            add=read_action(body["split"], Add, where),
            schema_string=body["schema"],
            answering=read_actions(body["answering"], IndexSegment, where),
            translations=read_actions(body["translations"], Translation, where),
            origins=tuple(body["origins"]),
        )


@dataclass(frozen=True, slots=True)
class CatchUpPlan:
    """The work that an index needs at a version, and the objects that the index no longer uses.

    `stale` are unused segments, and `idle` are translations that no index uses. `merges` has two kinds of work: to
    merge small segments, and to train vector segments again. With `retrain`, all segments of embeddings are trained
    again.
    """

    index: str
    version: int
    work: tuple[CatchUpWork, ...]
    stale: tuple[str, ...]
    idle: tuple[str, ...]
    merges: tuple[SegmentMerge, ...] = ()
    retrain: bool = False

    @property
    def empty(self) -> bool:
        """True if the index covers everything and has no unused object.

        In this case nothing is executed or committed.
        """
        return not self.work and not self.stale and not self.idle and not self.merges

    def actions(self, built: Iterable[IndexSegment], merged: Iterable[MergedSegments] = ()) -> list[Action]:
        """Return the actions of the last commit of a run that maintains only this index.

        The arguments are task results.
        """
        return actions_of([self], built, merged)


def actions_of(
    plans: Iterable[CatchUpPlan],
    built: Iterable[IndexSegment],
    merged: Iterable[MergedSegments] = (),
    idle: Iterable[str] = (),
) -> list[Action]:
    """Return the actions of a run's last commit. The arguments are the segments that the run's tasks built and merged.

    A run can build or merge a segment and then merge it into a larger segment. The actions do not contain the smaller
    segment. `idle` are translations that no index needs after the commit.
    """
    found, done = list(plans), list(merged)
    added = {each.path: each for each in (*built, *(each.segment for each in done))}
    replaced = {old.path: old for each in done for old in each.work.segments}
    idle_paths = dict.fromkeys([*(path for each in found for path in each.idle), *idle])
    return [
        *(RemoveIndexSegment(index=each.index, path=path) for each in found for path in each.stale),
        *(RemoveIndexSegment(index=old.index, path=path) for path, old in replaced.items() if path not in added),
        *(RemoveTranslation(path=path) for path in idle_paths),
        *sorted((added[path] for path in added.keys() - replaced.keys()), key=lambda each: (each.index, each.covers)),
    ]


def merge_all(
    snapshot: Snapshot,
    plans: Sequence[CatchUpPlan],
    built: Iterable[IndexSegment],
    merge: Callable[[Sequence[SegmentMerge]], Sequence[MergedSegments]],
) -> tuple[list[MergedSegments], tuple[str, ...]]:
    """Merge the segments that a run found and built.

    Return the merges, and the translations that no index needs after the merges.

    `merge` executes work items and returns the results of the items that it executed. The function merges the results
    with other segments again, until a call of `merge` returns no results. Then the remaining segments are trained again
    if the plans require this training.
    """
    stale = {path for each in plans for path in each.stale}
    live = {path: each for path, each in snapshot.segments.items() if path not in stale}
    live |= {each.path: each for each in built}
    done = list[MergedSegments]()

    def covered() -> Iterator[tuple[CatchUpPlan, Snapshot, Coverage]]:
        state = replace(snapshot, segments=live)
        for each in plans:
            yield each, state, compute_coverage(state, segments.definition_of(state, each.index))

    def executed(items: Sequence[SegmentMerge]) -> bool:
        found = merge(items) if items else ()
        for each in found:
            for old in each.work.segments:
                del live[old.path]
            live[each.segment.path] = each.segment
        done.extend(found)
        return bool(found)

    while executed([item for _, state, each in covered() for item in segment_merge.plan(state, each)]):
        pass
    trained = [
        item
        for one, state, each in covered()
        for item in segment_merge.plan_training(state, each, every=one.retrain)
        if item.segments[0].path in snapshot.segments
    ]
    executed(trained)
    state = replace(snapshot, segments=live)
    return done, _idle(snapshot, (compute_coverage(state, each) for each in state.config.indexes))


def plan(snapshot: Snapshot, index: str, *, retrain: bool = False) -> CatchUpPlan:
    """Return the work that is needed until `index` covers every live split of the snapshot.

    Makes no request. The same snapshot gives the same plan. The plan replaces segments that must be rebuilt, and
    removes translations that no index needs afterwards. With `retrain`, all segments of embeddings are trained again.
    Without `retrain`, a segment is trained again only if the log shows that it needs a new training.

    Raises:
        NotFound: The index is not defined.
        InvalidInput: The index does not fit the schema.
    """
    covered = compute_coverage(snapshot, segments.definition_of(snapshot, index))
    if covered.rebuild:
        covered = compute_coverage(snapshot, covered.definition, without=covered.rebuild)
    merges = segment_merge.plan(snapshot, covered)
    merged = {each.path for merge in merges for each in merge.segments}
    trained = [
        each
        for each in segment_merge.plan_training(snapshot, covered, every=retrain)
        if merged.isdisjoint(old.path for old in each.segments)
    ]
    others = (compute_coverage(snapshot, each) for each in snapshot.config.indexes if each != covered.definition)
    return CatchUpPlan(
        index=index,
        version=snapshot.version,
        work=tuple(_work(snapshot, covered, add) for add in covered.missing),
        stale=covered.stale,
        idle=_idle(snapshot, chain([covered], others)),
        merges=(*merges, *trained),
        retrain=retrain,
    )


def _work(snapshot: Snapshot, covered: Coverage, add: Add) -> CatchUpWork:
    answering = [covered.segments[path] for path in covered.answers.get(add.path, ())]
    return CatchUpWork(
        definition=covered.definition,
        add=add,
        schema_string=snapshot.metadata.schemaString,
        answering=tuple(answering),
        translations=tuple(covered.translations.values()) if answering else (),
        origins=covered.origins[add.path] if answering else (),
    )


def _idle(snapshot: Snapshot, covered: Iterable[Coverage]) -> tuple[str, ...]:
    """Return the translations that no index needs.

    An index needs a translation if the translation connects a segment with a live split that contains rows of the
    segment. `covered` is the coverage of all indexes.

    If an index does not cover a split, the last translations before the split are kept. A run that is still active may
    have indexed rows that moved to this split.
    """
    if not snapshot.translations:
        return ()
    known = list(covered)
    used = {path for each in known for path in each.translations}
    missing = {add.path for each in known for add in each.missing}
    used |= leading_to(missing, snapshot.translations.values(), moves=OUTLIVED_MOVES)
    return tuple(sorted(snapshot.translations.keys() - used))


def execute(store: ObjectStore, work: CatchUpWork, *, ids: Ids) -> IndexSegment:
    """Build and store the segment of one split, and return the action to commit.

    Executing an item twice creates two objects, and only the committed object is used.

    Cost:
        One GET and one PUT. For a part of a split, also one GET per translation and one GET per segment over another
        part. Memory is bounded by the size of the split.
    """
    part = _part(store, work) if work.answering else None
    schema = from_schema_string(work.schema_string)
    files = segments.build(store, work.add, work.definition, schema, rows=None if part is None else [*part.rows])
    covers, count = work.add.path, work.add.numRecords or 0
    return segments.write(store, files, definition=work.definition, covers=covers, rows=count, ids=ids, part=part)


def _part(store: ObjectStore, work: CatchUpWork) -> Part:
    ways = RowTranslations.of(
        {work.add.path},
        work.answering,
        work.translations,
        map_of=cache(lambda each: load_map(store, each)),
        part_of=once(lambda held: read_covered_rows(store, held)),
    )
    rows = ways.uncovered_rows(work.add.path, work.add.numRecords or 0, work.answering)
    return Part(rows, work.origins)


def watermark(snapshot: Snapshot, index: str) -> int:
    """Return the version up to which the index covers every live split of the snapshot.

    If all live splits are covered, the result is the version of the snapshot. Otherwise, the result is the version
    directly before the version that added the oldest uncovered split. The watermark is computed and never stored, so it
    always agrees with the segments. A compaction moves rows and does not change the watermark.
    """
    return watermark_of(snapshot, compute_coverage(snapshot, segments.definition_of(snapshot, index)))


# Pending work of an index, computed from the log: rows without a segment, and segments that are slow or imprecise.


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexBacklog:
    """The state of an index at a version, in numbers.

    Attributes:
        watermark: The version up to which every live split is covered.
        segments: The number of segments that answer for rows.
        stale_segments: The number of segments that are not used.
        covered_splits: The number of live splits that are covered completely.
        uncovered_splits: The number of live splits that are not covered completely.
        uncovered_rows: The approximate number of rows that searches index while they run.
        uncovered_bytes: The approximate bytes of these rows. A partly covered split counts by its share of rows.
        index_bytes: The bytes of the segments in use.
        merges_due: The number of small segments that wait for a merge.
        dead_share: The share of segment rows that are in no live split.
        translation_depth: The maximum number of moves of a row since its segment was written.
        imbalance: The imbalance of the segment with the most unequal clusters, or None if the index has no embeddings.
    """

    watermark: int
    segments: int
    stale_segments: int
    covered_splits: int
    uncovered_splits: int
    uncovered_rows: int
    uncovered_bytes: int
    index_bytes: int
    merges_due: int
    dead_share: float
    translation_depth: int
    imbalance: float | None = None


def measure_backlog(snapshot: Snapshot, index: str) -> IndexBacklog:
    """Return the pending work of an index at a snapshot. Reads only manifests. Raises the errors of `plan`."""
    definition = segments.definition_of(snapshot, index)
    covered = compute_coverage(snapshot, definition)
    rows = sum(each.numRecords for each in covered.segments.values())
    trained = [vector.Training.of(each) for each in covered.segments.values()]
    missing, is_vector = covered.missing, definition.kind == "vector"
    return IndexBacklog(
        watermark=watermark_of(snapshot, covered),
        segments=len(covered.segments),
        stale_segments=len(covered.stale),
        covered_splits=len(snapshot.splits) - len(missing),
        uncovered_splits=len(missing),
        uncovered_rows=round(sum(covered.missing_rows.values())),
        uncovered_bytes=round(
            sum(add.size * min(1.0, covered.missing_rows[add.path] / (add.numRecords or 1)) for add in missing)
        ),
        index_bytes=sum(each.size for each in covered.segments.values()),
        merges_due=sum(len(each.segments) for each in segment_merge.plan(snapshot, covered)),
        dead_share=max(0.0, 1 - sum(covered.live_rows.values()) / rows) if rows else 0.0,
        translation_depth=max(covered.moves.values(), default=0),
        imbalance=max((each.imbalance for each in trained if each), default=1.0) if is_vector else None,
    )
