"""Catch-up: segments for the rows of live splits that have none, in one commit (docs/architecture/indexes.md).

The driver plans and commits, tasks execute one work item each; items travel as JSON. A run that dies before its commit
leaves orphan segments, which the collector removes. A run with nothing to do plans nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain

from storage_core.ids import Ids
from storage_core.index import segment_merge_work, segments
from storage_core.index.coverage import Coverage, coverage, watermark_of
from storage_core.index.covering import Part
from storage_core.index.places import Ways, load_map, once, part_in
from storage_core.index.segment_merge_work import MergedSegments, SegmentMerge
from storage_core.log.actions import (
    Action,
    Add,
    IndexSegment,
    RemoveIndexSegment,
    RemoveTranslation,
    Translation,
    to_json_object,
)
from storage_core.log.encoding.action_json import read_action, read_actions, write_actions
from storage_core.log.moves import leading_to
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.rows.schema import from_schema_string
from storage_core.settings.index import IndexDefinition


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUpWork:
    """One split to index, with all that a task needs; `schema_string` is the table's schema as Spark JSON.

    With `answering` segments only the rows are indexed that none of them is over, to which `translations` lead; these
    came from the splits `origins`.
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
    """What an index lacks at a version, and what it has no use for any more: segments, and translations of no index.

    `merges` are of small segments that become one, or are trained again: with `retrain` all of vectors.
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
        """True when the index is caught up and has nothing stale: there is nothing to execute or commit."""
        return not self.work and not self.stale and not self.idle and not self.merges

    def actions(self, built: Iterable[IndexSegment], merged: Iterable[MergedSegments] = ()) -> list[Action]:
        """Return the actions of the commit that ends a run for this index alone, given what the tasks built."""
        return actions_of([self], built, merged)


def actions_of(
    plans: Iterable[CatchUpPlan],
    built: Iterable[IndexSegment],
    merged: Iterable[MergedSegments] = (),
    idle: Iterable[str] = (),
) -> list[Action]:
    """Return the actions of the one commit that ends a run, given what its tasks built, and what they merged.

    What was built or merged and became part of a larger segment in the same run is not named. `idle` are translations
    that no index needs then.
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
    """Merge what a run found and what it built, and return that, and the translations that no index needs then.

    `merge` executes items and returns those that were executed; as long as it does, what it makes is merged further.
    Segments that it leaves are trained again as the plans say.
    """
    stale = {path for each in plans for path in each.stale}
    live = {path: each for path, each in snapshot.segments.items() if path not in stale}
    live |= {each.path: each for each in built}
    done = list[MergedSegments]()

    def covered() -> Iterator[tuple[CatchUpPlan, Snapshot, Coverage]]:
        state = replace(snapshot, segments=live)
        for each in plans:
            yield each, state, coverage(state, segments.definition_of(state, each.index))

    def executed(items: Sequence[SegmentMerge]) -> bool:
        found = merge(items) if items else ()
        for each in found:
            for old in each.work.segments:
                del live[old.path]
            live[each.segment.path] = each.segment
        done.extend(found)
        return bool(found)

    while executed([item for _, state, each in covered() for item in segment_merge_work.plan(state, each)]):
        pass
    trained = [
        item
        for one, state, each in covered()
        for item in segment_merge_work.plan_training(state, each, every=one.retrain)
        if item.segments[0].path in snapshot.segments
    ]
    executed(trained)
    state = replace(snapshot, segments=live)
    return done, _idle(snapshot, (coverage(state, each) for each in state.config.indexes))


def plan(snapshot: Snapshot, index: str, *, retrain: bool = False) -> CatchUpPlan:
    """Return the work that makes `index` cover every live split of the snapshot. No request; same snapshot, same plan.

    With `retrain` all segments of vectors are trained again, else those of which the log says that it is time. Segments
    to rebuild are replaced, translations that no index needs then go. Raises `NotFound` for an index that is not
    defined, `InvalidInput` for one that does not fit the schema.
    """
    covered = coverage(snapshot, segments.definition_of(snapshot, index))
    if covered.rebuild:
        covered = coverage(snapshot, covered.definition, without=covered.rebuild)
    merges = segment_merge_work.plan(snapshot, covered)
    merged = {each.path for merge in merges for each in merge.segments}
    trained = [
        each
        for each in segment_merge_work.plan_training(snapshot, covered, every=retrain)
        if merged.isdisjoint(old.path for old in each.segments)
    ]
    others = (coverage(snapshot, each) for each in snapshot.config.indexes if each != covered.definition)
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
    """The translations that lead from no segment to a live split, once the indexes are covered so.

    Those behind a split that an index lacks stay: a run that is under way may have indexed the rows where they were.
    """
    if not snapshot.translations:
        return ()
    known = list(covered)
    used = {path for each in known for path in each.translations}
    used |= leading_to({add.path for each in known for add in each.missing}, snapshot.translations.values())
    return tuple(sorted(snapshot.translations.keys() - used))


def execute(store: ObjectStore, work: CatchUpWork, *, ids: Ids) -> IndexSegment:
    """Build and store the segment of one split, and return the action to commit. One GET, one PUT.

    Over a part of a split, one GET more per translation, and per segment over another part. Memory is bounded by the
    split. Executing an item twice gives two objects; only the one that is committed counts.
    """
    part = _part(store, work) if work.answering else None
    schema = from_schema_string(work.schema_string)
    files = segments.build(store, work.add, work.definition, schema, rows=None if part is None else [*part.rows])
    covers, count = work.add.path, work.add.numRecords or 0
    return segments.write(store, files, definition=work.definition, covers=covers, rows=count, ids=ids, part=part)


def _part(store: ObjectStore, work: CatchUpWork) -> Part:
    ways = Ways.of(
        {work.add.path},
        work.answering,
        work.translations,
        map_of=cache(lambda each: load_map(store, each)),
        part_of=once(lambda held: part_in(store, held)),
    )
    rows = ways.unanswered(work.add.path, work.add.numRecords or 0, work.answering)
    return Part(rows, work.origins)


def watermark(snapshot: Snapshot, index: str) -> int:
    """Return the version up to which the index covers every split that is live in the snapshot.

    Derived, never stored, so it cannot disagree with the segments: the snapshot's version when all live splits are
    covered, else one less than the version that added the oldest uncovered split. A compaction moves rows and leaves
    it where it is.
    """
    return watermark_of(snapshot, coverage(snapshot, segments.definition_of(snapshot, index)))
