"""Merge of a region: apply its generations to the base table (docs/architecture/ingestion.md, "Merge").

A merge writes the folded records as new splits. In the same commit, deletion vectors hide the superseded rows. A later
compaction rewrites the remaining rows of these splits. The base never contains two live rows of one key, so reads of
the base need no deduplication.

The commit ensures that each generation is merged exactly once. The requirement and the progress action of the commit
contain the numbers of the merged generations. The log refuses the commit unless these generations directly follow the
recorded generations (lessons 22 and 25).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from storage_core.base.clock import Ids
from storage_core.base.errors import Corrupt, NotFound
from storage_core.data.formats.bundle import MOST_INPUTS, TranslationMap
from storage_core.data.formats.key_hashes import Hashes, key_hashes
from storage_core.data.formats.region_manifest import FlushedGeneration, Generation, RegionManifest
from storage_core.data.rows import fold
from storage_core.data.rows.fold import conformed
from storage_core.data.rows.keys import Positions, bitmap_of, key_codes
from storage_core.data.settings.index import IndexDefinition
from storage_core.data.settings.layout import BY_HAND_SPEC
from storage_core.data.settings.table import TableConfig
from storage_core.index import segments
from storage_core.index.row_positions import store_translation
from storage_core.index.segment_reader import KeyReading, candidate_rows, index_of
from storage_core.index.segments import REBUILD_SHARE
from storage_core.log.actions import Action, Add, IndexSegment, MergedGenerations, Remove
from storage_core.log.snapshot import Snapshot
from storage_core.log.split_columns import adds_of
from storage_core.split import metadata
from storage_core.split.context import SplitContext, context_of, places_in_order
from storage_core.split.deletion_vectors import deleted_rows, hide_rows
from storage_core.split.fetch import REQUEST_COST_BYTES
from storage_core.split.metadata import Lineage, MergedRange
from storage_core.split.read import is_small
from storage_core.split.writer import Rewrite, sort_and_write
from storage_core.store.contract import ObjectStore
from storage_core.store.memory import MemoryStore
from storage_core.store.pieces import NOTHING
from storage_core.write.region import generation, generation_write
from storage_core.write.region.generation import may_overlap
from storage_core.write.region.merge_work import (
    REFUSALS,
    Attempt,
    MergeResult,
    MergeWork,
    Records,
    Superseded,
    find,
    naming_works,
    quarantine_records,
    refused,
)
from storage_core.write.region.spec import known_manifests

# The primary-key index returns candidate rows of the base. A merge uses the index if the index costs less than reading
# the keys (decision 0021). Without the index, a merge reads the key columns of every split that may contain one of its
# keys. If few records are spread over many splits, most of these reads find nothing. The index then returns the splits
# and rows to read. With many records, most of the keys are needed anyway, and the index is not used.


def with_index(snapshot: Snapshot, works: Sequence[MergeWork]) -> list[MergeWork]:
    """Return the planned merges with the index parts for the splits of the base. Skip small splits. No request."""
    index = index_of(snapshot) if works else None
    if index is None:
        return list(works)
    answering_of = index[1]

    def indexed(work: MergeWork) -> MergeWork:
        found = {add.path: answering_of(add) for add in work.base if add.numRecords and not is_small(add)}
        return replace(work, answering={path: each for path, each in found.items() if each is not None})

    return [indexed(work) for work in works]


@dataclass(frozen=True, slots=True)
class IndexedBase:
    """The base of a merge. `hashes` are the distinct, ascending hashes of the keys of the folded records."""

    store: ObjectStore
    work: MergeWork
    hashes: Hashes

    @staticmethod
    def of(store: ObjectStore, work: MergeWork, folded: pa.Table) -> IndexedBase:
        """Return the base of a merge, with the key hashes that the index needs. No request."""
        hashes = np.unique(key_hashes(folded, work.primary_key)) if work.answering else np.zeros(0, np.uint64)
        return IndexedBase(store, work, hashes)

    def rows(self, split: Add) -> Positions | None:
        """Return the ascending positions of all rows that may have a key of a record, or None if they are unknown.

        The index is read only if this costs less than a read of the keys. Requests: see `candidate_rows`.
        """
        found = self.work.answering.get(split.path)
        if found is None:
            return None
        return candidate_rows(KeyReading(self.store, split, found, NOTHING), self.hashes, self._is_dear)[0]

    def _is_dear(self, reading: KeyReading) -> bool:
        """Return whether the use of the index costs more than a read of all keys of the split.

        The cost of the index includes the read of keys in the row groups that the index gives.
        """
        split, columns = reading.add, len(self.work.context.schema.names)
        groups = metadata.groups_about(split.numRecords or 1, split.size)
        keys = groups * REQUEST_COST_BYTES + split.size * len(self.work.primary_key) / columns
        asked, size = reading.cost(self.hashes)
        hits = len(self.hashes) / len(self.work.base)  # each key has at most one row
        left = min(1.0, hits) * REQUEST_COST_BYTES + (1 - math.exp(-hits / groups)) * keys
        return asked * REQUEST_COST_BYTES + size + left >= REQUEST_COST_BYTES + keys


# Segments of generations that become segments of the base. For each written row, a merge stores the source generation
# and the row number in this generation. A generation may have the whole row of a key. If no later generation has a
# record of this key, the base gets exactly this row. A translation maps the row in the generation to the row in the
# base, so the segments of the generation also cover the base's row. The merge only adds the segments to the log.
# Segments number rows in the order of a merge, so the translation is small (decision 0019). No segment covers the other
# rows of the merge, which are called the rest.


_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MovingSegments:
    """The generations of a merge, and the merged records of these generations."""

    generations: Sequence[Generation]
    records: Records
    context: SplitContext

    @property
    def any(self) -> bool:
        """Return whether a generation has a segment of an index of the table."""
        return bool(self._indexes) and any(each.segments for each in self.generations)

    def followed(
        self, store: ObjectStore, rewrite: Rewrite, rows: pa.Table, placed: Sequence[Positions], *, ids: Ids
    ) -> Rewrite:
        """Return the rewrite together with the index segments of generations that cover the rewritten rows.

        Also add the translation of these segments.

        A generation is skipped if more than a fifth of its rows were superseded, or if some of its records were
        quarantined. No segment is written.

        Args:
            rows: the rows that were written.
            placed: the position of each of the `rows` in the order of the splits.

        Cost:
            One GET per segment for a check, and one PUT.
        """
        if len(self.generations) >= MOST_INPUTS:
            return rewrite
        origins = self._origins(rows.select(self.records.key).take(pa.array(np.concatenate(placed))))
        worth = ((number, self._segments(store, number, origins.whole[number])) for number in self._worth_it(origins))
        moved = {number: own for number, own in worth if own}
        if not moved:
            return rewrite
        found = _map(origins, [*moved], [add.numRecords or 0 for add in rewrite.adds])
        if not _is_of(found, origins, [*moved]):
            _logger.warning(
                "the index segments of %s are not carried over: the rows are not in the order of the segments", [*moved]
            )
            return rewrite
        names = [generation_write.covered_name(each) for each in self.generations]
        inputs = [*(names[number] for number in moved), f"{names[-1]}/rest"]
        translation = store_translation(store, found, inputs, rewrite.adds, ids=ids)
        joining = tuple(each for own in moved.values() for each in own)
        return replace(rewrite, translations=(translation,), segments=joining)

    @property
    def _indexes(self) -> tuple[IndexDefinition, ...]:
        return TableConfig.from_configuration(self.context.configuration).indexes

    def _origins(self, rows: pa.Table) -> _Origins:
        ends = np.cumsum(self.records.lengths)
        parts = [
            self.records.rows.slice(int(end) - length, length)
            for end, length in zip(ends, self.records.lengths, strict=True)
        ]
        key = self.records.key
        folded = [fold.fold(part, key) for part in parts]
        *codes, final = key_codes([each.select(key) for each in (*folded, rows)], key)
        most = max((int(each.max()) for each in (*codes, final) if len(each)), default=0) + 1
        source, row, counts = np.full(most, -1), np.zeros(most, np.int64), []
        for number, (own, part) in enumerate(zip(codes, folded, strict=True)):
            whole = generation_write.gives_whole_rows(part)
            source[own] = np.where(whole, number, -1)  # for each key, the last generation counts
            places = places_in_order(part.filter(pa.array(whole)), self.context)
            row[own[whole][places]] = np.arange(len(places))
            counts.append(len(places))
        return _Origins(source[final], row[final], counts)

    def _worth_it(self, origins: _Origins) -> list[int]:
        """Return the generations that have enough remaining rows and no quarantined record."""
        found = []
        for number, (each, rows) in enumerate(zip(self.generations, origins.whole, strict=True)):
            superseded = rows - int((origins.source == number).sum())
            complete = self.records.lengths[number] == each.records
            if rows and complete and superseded <= REBUILD_SHARE * rows:
                found.append(number)
        return found

    def _segments(self, store: ObjectStore, number: int, rows: int) -> list[IndexSegment]:
        """Return the valid segments of a generation."""
        found, sound = self.generations[number], []
        for definition in self._indexes:
            segment = generation_write.segment_for(found, definition, rows, self.context.arrangement)
            if segment is None:
                continue
            try:
                segments.load(store, segment)
            except (Corrupt, NotFound) as error:
                _logger.warning("a segment of generation %s is not usable and not moved: %s", found.path, error)
                continue
            sound.append(segment)
        return sound


@dataclass(frozen=True, slots=True, eq=False)
class _Origins:
    """The origin of each row of a merge: the generation with the whole row, and the row number in this generation.

    The number of the generation is -1 if no generation has the whole row. `whole` is the number of whole rows of each
    generation. The row numbers follow the order in which a merge sorts the rows of the generation.
    """

    source: Positions
    row: Positions
    whole: Sequence[int]


def _map(origins: _Origins, taken: Sequence[int], outputs: Sequence[int]) -> TranslationMap:
    numbers = np.full(len(origins.whole) + 1, len(taken))
    numbers[list(taken)] = np.arange(len(taken))
    order = numbers[origins.source]  # the source -1 means no generation, and selects the last element of `numbers`
    gone = [BitMap(range(origins.whole[each])) - _rows_of(origins, each) for each in taken]
    return TranslationMap(
        input_rows=(*(origins.whole[each] for each in taken), int((order == len(taken)).sum())),
        output_rows=tuple(outputs),
        order=order.astype(np.uint8 if len(taken) < 2**8 else np.uint16),
        dropped=(*gone, BitMap()),
    )


def _is_of(found: TranslationMap, origins: _Origins, taken: Sequence[int]) -> bool:
    """Return whether the translation maps every row of a generation to the right row of the merge."""
    for number, source in enumerate(taken):
        rows, there = found.places(number, np.arange(origins.whole[source]))
        own = np.flatnonzero(origins.source == source)
        if not (np.array_equal(there, own) and np.array_equal(rows, origins.row[own])):
            return False
    return True


def _rows_of(origins: _Origins, source: int) -> BitMap:
    return bitmap_of(origins.row[origins.source == source])


# Regions that one commit merges in a table with manual regions (docs/architecture/ingestion.md). Only the callers
# ensure that a key is not in two manual regions. Two manual regions could each add a row of the same key. So no commit
# merges two manual regions.


def in_turn(
    snapshot: Snapshot, manifests: Sequence[RegionManifest], regions: Collection[str] | None
) -> list[RegionManifest]:
    """Return the regions of `regions` that one commit can merge. None means all regions. No request.

    If the table allows manual regions, the result is either all regions of the spec or one manual region. The version
    of the snapshot determines which of these groups is returned.
    """
    chosen = [each for each in manifests if regions is None or each.region_id in regions]
    if not snapshot.config.regions_by_hand:
        return chosen
    merged = snapshot.merged_generations
    waiting = [each for each in chosen if each.current_generation - 1 > merged.get(each.region_id, 0)]
    routed = [each for each in waiting if each.region_spec_id != BY_HAND_SPEC]
    turns = [*([routed] if routed else []), *([each] for each in waiting if each.region_spec_id == BY_HAND_SPEC)]
    # A hash of the snapshot's version selects the group of regions that merges next. If the version itself selected the
    # group, regular commits of other processes could make one group wait forever.
    return turns[crc32(str(snapshot.version).encode()) % len(turns)] if turns else []


def merges_of(snapshot: Snapshot) -> Mapping[str, int] | None:
    """Return the merged generation of every region.

    Return None unless the commit must check that no region has changed.
    """
    return dict(snapshot.merged_generations) if snapshot.config.regions_by_hand else None


MAX_RECORDS = 1_000_000


def plan(
    store: ObjectStore,
    snapshot: Snapshot,
    *,
    manifests: Sequence[RegionManifest] | None = None,
    regions: Collection[str] | None = None,
    max_records: int = MAX_RECORDS,
) -> list[MergeWork]:
    """Return the merges that are needed, at most one per region. The list is empty if the base contains everything.

    Several merges can change the same splits of the base. `actions_of` then combines the hidden rows. A merge takes the
    oldest unmerged generations, up to about `max_records` records. A merge takes at least one generation. Plan again
    for the later generations. Raises `Corrupt` for a gap in the generations.

    Args:
        manifests: the manifests of the regions. None means that this call reads them.
        regions: the regions to merge. None means all.

    Cost:
        One GET per generation that is taken, and the requests of `known_manifests` if `manifests` is None.
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
    """Fold the generations, hide the base rows of the same keys with deletion vectors, and write the folded rows.

    Nothing is committed. The caller commits the result with `actions_of`. No split is rewritten. A split without a live
    row is removed. A delete of a row that does not exist writes nothing (lesson 28).

    Args:
        quarantine: whether to quarantine the records of a key that cannot be applied. The quarantined records are
            durable when this returns, and the base keeps its row of the key.

    Raises:
        Corrupt: a generation or a split is damaged. Files that were written before are orphans.

    An error in the data contains the region, the generation, the record and the key.

    Cost:
        The requests for the generations. For each split of the base, the requests of `IndexedBase.rows` and
        `merge_work.find`. One PUT per stored deletion vector and per new split. Memory holds the records, the keys of
        one split, a row group, and the patched rows.
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
    """Return the records that can be folded, and quarantine the other records."""
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
    """Return the folded records that can be applied, and quarantine the source records of the other folded records."""
    read = _read(work, _superseded(store, work, folded))
    found = list(refused(folded, _application(work, read, ids=ids, now_ms=now_ms)))
    if not found:
        return folded
    kept = [(records.rows.filter(pa.array(records.of_key(folded.slice(row, 1)))), why) for row, why in found]
    quarantine_records(store, kept, region=work.region, now_ms=now_ms)
    return folded.filter(pa.array(~np.isin(np.arange(folded.num_rows), [row for row, _ in found])))


def _application(work: MergeWork, read: pa.Table, *, ids: Ids, now_ms: int) -> Attempt:
    """Return a function that applies folded records to the base rows of the same keys.

    The function writes to a scratch store in memory.
    """

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


def actions_of(store: ObjectStore, results: Sequence[MergeResult], *, ids: Ids, now_ms: int) -> list[Action]:
    """Return the actions of one commit with the results of several regions. The regions have disjoint keys.

    If several results hide rows of one split, the new deletion vector hides the rows of all results.

    Cost:
        At most one PUT, and one GET per stored deletion vector, for each split with several results.
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
    return hide_rows(store, first, deleted, rows=first.numRecords or 0, ids=ids, now_ms=now_ms)


def _lineage(work: MergeWork, found: Sequence[Superseded], ids: Ids) -> Lineage:
    merged = MergedRange(region=work.region, after=work.after, generation=work.generations[-1].generation)
    replaces = {each.split.path: each.split.visible_rows for each in found if len(each.deleted) == each.rows}
    return Lineage(operation="merge", operation_id=ids.uuid(), replaces=replaces, merged=merged)


def _require_consecutive(region: str, after: int, waiting: Sequence[FlushedGeneration]) -> None:
    found = [number for each in waiting for number in range(each.first, each.generation + 1)]
    expected = list(range(after + 1, after + 1 + len(found)))
    if found != expected:
        raise Corrupt(
            f"region {region}: the manifest of the region lists the generations {found}, expected {expected} after "
            f"the merged generation {after}. A merge would lose the rows of the missing generations",
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
    """Return the splits of the base that may contain a key of the generations."""
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
