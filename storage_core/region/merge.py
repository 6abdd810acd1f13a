"""Merging: generations of a region into the base table (docs/architecture/ingestion.md, "Merge").

The folded records become new splits, and the rows that they supersede are hidden by deletion vectors in the same
commit; what is left of a split is rewritten by a compaction. The base never holds two live rows of one key, so reads of
it need no deduplication. Exactly-once is the commit's: the requirement and the progress action say which generations
it carries, and the log refuses it unless they follow the recorded ones (lessons 22 and 25).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from storage_core.errors import Corrupt
from storage_core.formats.generation_manifest import Generation
from storage_core.formats.region_manifest import FlushedGeneration, RegionManifest
from storage_core.ids import Ids
from storage_core.log.actions import Action, Add, MergedGenerations, Remove
from storage_core.log.commit import CommitResult
from storage_core.log.files.columns import adds_of
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.memory import MemoryStore
from storage_core.region import generation
from storage_core.region.indexed_base import IndexedBase, with_index
from storage_core.region.merge_segments import MovingSegments
from storage_core.region.merge_turns import in_turn, merges_of
from storage_core.region.merge_work import MergeResult, MergeWork
from storage_core.region.overlap import may_overlap
from storage_core.region.refused import REFUSALS, Attempt, Records, naming_works, quarantine_records, refused
from storage_core.region.registry import known_manifests
from storage_core.region.superseded import Superseded, find
from storage_core.rows import fold
from storage_core.rows.earlier_records import conformed
from storage_core.rows.keys import Positions, key_codes
from storage_core.split.context import context_of
from storage_core.split.hidden import hiding
from storage_core.split.lineage import Lineage, MergedRange
from storage_core.split.rewrite import Rewrite
from storage_core.split.vectors import deleted_rows
from storage_core.split.write import sort_and_write

_logger = logging.getLogger(__name__)

MAX_RECORDS = 1_000_000


def plan(
    store: ObjectStore,
    snapshot: Snapshot,
    *,
    manifests: Sequence[RegionManifest] | None = None,
    regions: Collection[str] | None = None,
    max_records: int = MAX_RECORDS,
) -> list[MergeWork]:
    """Return what there is to merge: at most one work per region, and none when the base has everything.

    Works may touch the same splits of the base: `actions_of` unites what they hide. A work takes the oldest unmerged
    generations, at least one, up to about `max_records` records; plan again for the rest, of `regions` where given. One
    GET per generation taken, and those of `known_manifests` unless given. Raises `Corrupt` for a gap in generations.
    """
    newest = known_manifests(store, snapshot) if manifests is None else manifests
    works = [_plan_region(store, snapshot, each, max_records) for each in in_turn(snapshot, newest, regions)]
    return with_index(snapshot, [work for work in works if work is not None])


def _plan_region(
    store: ObjectStore, snapshot: Snapshot, manifest: RegionManifest, max_records: int
) -> MergeWork | None:
    after = snapshot.merged_generations.get(manifest.region_id, 0)
    waiting = generation.unmerged(store, manifest, after)
    if not waiting:
        return None
    _require_consecutive(manifest.region_id, after, waiting)
    taken = _take(store, manifest.region_id, waiting, max_records)
    return MergeWork(
        region=manifest.region_id,
        after=after,
        generations=tuple(waiting[: len(taken)]),
        primary_key=snapshot.config.primary_key,
        base=_touched(snapshot, taken),
        context=context_of(snapshot),
        merged=merges_of(snapshot),
        opened=tuple(taken),
    )


def execute(store: ObjectStore, work: MergeWork, *, ids: Ids, now_ms: int, quarantine: bool = False) -> MergeResult:
    """Fold the generations, hide the base rows of touched keys in deletion vectors, and write the folded rows.

    Commits nothing: that is the caller's, with `actions_of`. No split is rewritten; one whose last live row is gone is
    removed. Memory holds the records, the keys of one split, a row group and the rows that patches hit. A delete of
    what does not exist writes nothing (lesson 28). Requests: those of the generations, of `IndexedBase.rows` and
    `superseded.find` per split of the base, one PUT per vector that is stored and per new split. Raises `Corrupt` for
    a damaged generation or split; what was written until then are orphans. An error of the data names region,
    generation, record and key.

    With `quarantine` the records of a key that cannot be applied are there when this returns, and the base keeps what
    it has of that key.
    """
    with naming_works(work):
        opened = [generation.read(store, work.region, each) for each in work.generations]
        records = _records(store, work, opened)
        if quarantine:
            records = _foldable(store, work, records, now_ms=now_ms)
        folded = _folded(records)
        if quarantine:
            folded = _applicable(store, work, records, folded, ids=ids, now_ms=now_ms)
        return _executed(store, work, folded, MovingSegments(opened, records, work.context), ids=ids, now_ms=now_ms)


def _executed(
    store: ObjectStore, work: MergeWork, folded: pa.Table, moving: MovingSegments, *, ids: Ids, now_ms: int
) -> MergeResult:
    records = moving.records
    found = _superseded(store, work, folded)
    read = _read(work, found)
    entries, lineage = [each.entry(store, ids=ids, now_ms=now_ms) for each in found], _lineage(work, found, ids)
    placed: list[Positions] | None = [] if moving.any else None
    try:
        rows = fold.apply(read, folded, work.primary_key)
        adds = sort_and_write(store, rows, context=work.context, ids=ids, now_ms=now_ms, lineage=lineage, placed=placed)
    except REFUSALS as error:
        for row, why in refused(folded, _application(work, read, ids=ids, now_ms=now_ms)):
            raise records.naming(int(np.flatnonzero(records.of_key(folded.slice(row, 1)))[-1]), why) from error
        raise
    rewrite = Rewrite(
        adds=tuple(adds),
        removes=tuple(each for each in entries if isinstance(each, Remove)),
        rows_in=records.rows.num_rows + read.num_rows,
    )
    if placed:
        rewrite = moving.followed(store, rewrite, rows, placed, ids=ids)
    result = MergeResult(
        rewrite=rewrite,
        marks=tuple(each for each in entries if isinstance(each, Add)),
        merged=MergedGenerations(region=work.region, generation=work.generations[-1].generation),
    )
    _logger.info(
        "region %s: merged generations %d to %d: %d rows in, %d superseded in %d splits, %d splits written, not "
        "committed yet",
        work.region,
        work.after + 1,
        result.merged.generation,
        result.rewrite.rows_in,
        sum(each.hit for each in found),
        len(found),
        len(adds),
    )
    return result


def _folded(records: Records) -> pa.Table:
    try:
        return fold.fold(records.rows, records.key)
    except REFUSALS as error:
        for record, why in refused(records.rows, lambda part: fold.fold(part, records.key)):
            raise records.naming(record, why) from error
        raise


def _foldable(store: ObjectStore, work: MergeWork, records: Records, *, now_ms: int) -> Records:
    """The records that can be folded; each other one is in quarantine."""
    found = list(refused(records.rows, lambda part: fold.fold(part, records.key)))
    if not found:
        return records
    quarantine_records(
        store, [(records.rows.slice(at, 1), why) for at, why in found], region=work.region, now_ms=now_ms
    )
    return records.without(np.isin(np.arange(records.rows.num_rows), [at for at, _ in found]))


def _applicable(
    store: ObjectStore, work: MergeWork, records: Records, folded: pa.Table, *, ids: Ids, now_ms: int
) -> pa.Table:
    """The folded records that can be applied; what each other one was folded of is in quarantine."""
    read = _read(work, _superseded(store, work, folded))
    found = list(refused(folded, _application(work, read, ids=ids, now_ms=now_ms)))
    if not found:
        return folded
    kept = [(records.rows.filter(pa.array(records.of_key(folded.slice(row, 1)))), why) for row, why in found]
    quarantine_records(store, kept, region=work.region, now_ms=now_ms)
    return folded.filter(pa.array(~np.isin(np.arange(folded.num_rows), [row for row, _ in found])))


def _application(work: MergeWork, read: pa.Table, *, ids: Ids, now_ms: int) -> Attempt:
    """Apply folded records to the base rows of their keys, and write the result where nobody sees it."""

    def attempt(part: pa.Table) -> None:
        wanted, held = key_codes([part, read], work.primary_key)
        rows = fold.apply(read.filter(pa.array(np.isin(held, wanted))), part, work.primary_key)
        scratch = MemoryStore("merge")
        lineage = _lineage(work, [], ids)
        sort_and_write(scratch, rows, context=work.context, ids=ids, now_ms=now_ms, lineage=lineage)

    return attempt


def _read(work: MergeWork, found: Sequence[Superseded]) -> pa.Table:
    return pa.concat_tables([work.context.schema.empty_table(), *(each.read for each in found)])


def _superseded(store: ObjectStore, work: MergeWork, folded: pa.Table) -> list[Superseded]:
    key, schema = work.primary_key, work.context.schema
    index = IndexedBase.of(store, work, folded)
    looked = [find(store, split, folded, key=key, schema=schema, among=index.rows(split)) for split in work.base]
    return [each for each in looked if each is not None]


def commit(
    log: TransactionLog, snapshot: Snapshot, works: Sequence[MergeWork], results: Sequence[MergeResult]
) -> CommitResult:
    """Commit the executed merges of several regions, planned on `snapshot`, at once: all of them or none.

    Requests: those of `actions_of` and of a commit. Raises `CommitConflict` when one of the regions or a split that a
    merge changed is no longer as it was planned; then nothing of them is in the table.
    """
    actions = actions_of(log.store, results, ids=log.ids, now_ms=log.clock.now_ms())
    requirements = [each for work in works for each in work.requirements]
    with naming_works(*works):
        return log.commit(snapshot, actions, operation="MERGE", requirements=requirements)


def actions_of(store: ObjectStore, results: Sequence[MergeResult], *, ids: Ids, now_ms: int) -> list[Action]:
    """Return the actions of one commit with the results of several regions, whose keys are disjoint.

    Where several of them hide rows of one split, its vector hides the rows of all. At most one PUT, and one GET per
    stored vector, for such a split.
    """
    marks: dict[str, list[Add]] = {}
    for each in results:
        for add in each.marks:
            marks.setdefault(add.path, []).append(add)
    return [
        *(removed for each in results for removed in each.rewrite.removes),
        *(_united(store, adds, ids=ids, now_ms=now_ms) for adds in marks.values()),
        *(add for each in results for add in each.rewrite.adds),
        *(each.merged for each in results),
        *(moved for each in results for moved in each.rewrite.translations),
        *(own for each in results for own in each.rewrite.segments),
    ]


def _united(store: ObjectStore, adds: Sequence[Add], *, ids: Ids, now_ms: int) -> Add | Remove:
    first = adds[0]
    if len(adds) == 1:
        return first
    deleted = BitMap.union(*(deleted_rows(store, add) for add in adds))
    return hiding(store, first, deleted, rows=first.numRecords or 0, ids=ids, now_ms=now_ms)


def _lineage(work: MergeWork, found: Sequence[Superseded], ids: Ids) -> Lineage:
    merged = MergedRange(region=work.region, after=work.after, generation=work.generations[-1].generation)
    replaces = {each.split.path: each.split.visible_rows for each in found if len(each.deleted) == each.rows}
    return Lineage(operation="merge", operation_id=ids.uuid(), replaces=replaces, merged=merged)


def _require_consecutive(region: str, after: int, waiting: Sequence[FlushedGeneration]) -> None:
    found = [number for each in waiting for number in range(each.first, each.generation + 1)]
    expected = list(range(after + 1, after + 1 + len(found)))
    if found != expected:
        raise Corrupt(
            f"region {region}: generations up to {after} are merged, expected {expected} next, the region's manifest "
            f"lists {found}; merging over the gap would lose rows",
            region=region,
        )


def _take(store: ObjectStore, region: str, waiting: Sequence[FlushedGeneration], max_records: int) -> list[Generation]:
    taken, records = list[Generation](), 0
    for each in waiting:
        opened = generation.read(store, region, each)
        records += opened.records
        if taken and records > max_records:
            break
        taken.append(opened)
    return taken


def _touched(snapshot: Snapshot, generations: Sequence[Generation]) -> tuple[Add, ...]:
    """The splits of the base that may hold a key of the generations."""
    files, key = snapshot.splits.table(), snapshot.config.primary_key
    return adds_of(files.filter(may_overlap(files, generations, key=key, schema=snapshot.schema)))


def _records(store: ObjectStore, work: MergeWork, opened: Sequence[Generation]) -> Records:
    empty = fold.record_schema(work.context.schema).empty_table()
    read = ((conformed(part, empty.schema) for part in generation.read_records(store, each)) for each in opened)
    parts = [pa.concat_tables([empty, *own]) for own in read]
    return Records(
        rows=pa.concat_tables([empty, *parts]),
        generations=tuple(each.generation for each in opened),
        lengths=tuple(each.num_rows for each in parts),
        key=work.primary_key,
    )
