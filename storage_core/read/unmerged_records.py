"""Records that a snapshot does not contain yet.

Reads and searches take unmerged records from WAL entries, generations and raw logs.

`split_unmerged_records` divides the unmerged records into groups for a search (decision 0022). Only the newest record
of a key counts:

- The newest record may be a whole row in a generation or in a WAL entry. The search then finds the row there. An index
  then identifies the row by its position.
- If the newest record is not a whole row, for example a patch, the search merges the record into the base.
  `Overlay.rest` contains the rows that result from the merge.
- If a key has an unmerged record, the base's row with this key is hidden.

`LogRuns` divides the rows of WAL entries into runs, and searches index each run. A run is a sequence of adjacent
entries. Entries never change, so an indexed run stays valid while new entries arrive (decision 0019).

`captured_with` adds undistributed rows of raw logs to the captured state of the regions (decision 0027). For each raw
log, a read makes one LIST per 1,000 chunks on each store. A read also makes one GET for each object that records
collected chunks. If the view has not cached a waiting chunk, the chunk takes one more GET. The order of these requests
is described in `distribution.undistributed_rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from storage_core.base.errors import Corrupt
from storage_core.data.formats.region_manifest import Generation
from storage_core.data.rows import fold
from storage_core.data.rows.codes import Mask
from storage_core.data.rows.fold import record_schema
from storage_core.data.rows.keys import bitmap_of, key_codes, positions
from storage_core.log.actions import Add
from storage_core.log.snapshot import Snapshot
from storage_core.log.split_columns import adds_of
from storage_core.read.plan import RawPart
from storage_core.split.context import context_of, places_in_order
from storage_core.split.deletion_vectors import deleted_rows
from storage_core.split.fetch import Footers
from storage_core.store.contract import ObjectStore
from storage_core.write.distribution.undistributed_rows import (
    PendingChunks,
    RawLogListing,
    RegionOffsets,
    find_pending_chunks,
)
from storage_core.write.region import merge_work
from storage_core.write.region.captured_regions import Captured, CapturedRegion, Unmerged
from storage_core.write.region.generation import may_hold
from storage_core.write.region.generation_write import gives_whole_rows, whole_rows
from storage_core.write.region.records import matching

if TYPE_CHECKING:
    from storage_core.log.log import TransactionLog
    from storage_core.store.pieces import KeptValues
    from storage_core.write.region.captured_regions import Regions


LEAST_RATIO = 2
"""The minimum ratio between the number of rows of a run and of the next run.

So there are few runs, and rows are rarely indexed again.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoggedRows:
    """The whole rows in the WAL entries of one region. The rows of each entry are in ascending order of the key.

    `entries[i]` is the entry of row `i`. `deleted` contains the rows for which a newer record of the same key exists.
    """

    region: str
    entries: npt.NDArray[np.int64]
    rows: pa.Table
    deleted: BitMap

    def part(self, begin: int, end: int) -> LoggedRows:
        """Return the rows from `begin` (inclusive) to `end` (exclusive)."""
        places = positions(self.deleted)
        own = places[(places >= begin) & (places < end)] - begin
        return LoggedRows(
            region=self.region,
            entries=self.entries[begin:end],
            rows=self.rows.slice(begin, end - begin),
            deleted=bitmap_of(own),
        )

    @property
    def name(self) -> str:
        """A text that identifies these rows. The text stays valid because WAL entries never change."""
        return f"log {self.region} {self.entries[0]} to {self.entries[-1]}, {len(self.entries)} rows"


class LogRuns:
    """For each region, the last entry of each run of WAL entries.

    Threads may share an instance. In the worst case, two threads index the same run.
    """

    def __init__(self) -> None:
        self._ends: dict[str, frozenset[int]] = {}

    def divided(self, logged: LoggedRows) -> list[LoggedRows]:
        """Return the rows as runs. A run contains only whole entries.

        The result contains the earlier runs that still exist, and a run of the new entries.

        An earlier run joins the last run if the earlier run has less than `LEAST_RATIO` times the rows of the last run.
        """
        entries, known = logged.entries, self._ends.pop(logged.region, frozenset())
        if not len(entries):
            return []
        is_end = np.append(entries[1:] != entries[:-1], True) & np.isin(entries, list(known))
        ends = sorted({*(np.flatnonzero(is_end) + 1).tolist(), len(entries)})
        while len(ends) > 1 and _last_but_one(ends) < LEAST_RATIO * (ends[-1] - ends[-2]):
            del ends[-2]
        self._ends[logged.region] = frozenset(entries[[end - 1 for end in ends]].tolist())
        return [logged.part(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


def _last_but_one(ends: list[int]) -> int:
    return ends[-2] - (ends[-3] if len(ends) > 2 else 0)


_ENTRY = "\0entry"  # no column has this name


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRows:
    """The whole rows of a generation.

    `deleted` contains the rows for which a newer record of the same key exists in another place.

    The rows are in ascending order of the key. If `order` is set, the rows have the order of the generation's index
    segments.
    """

    generation: Generation
    rows: pa.Table
    deleted: BitMap
    order: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """The rows of all unmerged records that are neither deleted nor replaced.

    These are the rows of `generations` and of `logs` that are not deleted, and the rows of `rest`. The rows of `rest`
    are in ascending order of the key. `logs` contains the rows of each log, divided into runs of consecutive WAL
    entries.

    `deletes` are records that hide base rows. A base row is hidden if a newer record of the same key exists. `touched`
    contains the paths of the splits that may have one of these keys. `footers` caches footers and deletion vectors, so
    each is fetched once.
    """

    generations: tuple[WholeRows, ...]
    logs: tuple[LoggedRows, ...]
    rest: pa.Table
    deletes: pa.Table
    touched: frozenset[str]
    footers: Footers

    def hidden_rows(self, store: ObjectStore, snapshot: Snapshot, split: Add) -> BitMap:
        """Return the rows of a base split that are deleted, or that have an unmerged record with the same key.

        Cost:
            One GET for a stored deletion vector. For a touched split, the requests of `merge_work.find`.
        """
        if split.path in self.touched:
            found = _find(store, snapshot, split, self.deletes, footers=self.footers)
            if found is not None:
                return found.deleted
        return deleted_rows(store, split, self.footers.cached)


def split_unmerged_records(
    store: ObjectStore,
    snapshot: Snapshot,
    unmerged: Sequence[Unmerged],
    *,
    footers: Footers,
    runs: LogRuns | None = None,
) -> Overlay:
    """Return the effect of the unmerged records on the snapshot.

    Args:
        store: The store of the table.
        snapshot: The snapshot to which the records apply.
        unmerged: The records. The records of one region are in the order of their acknowledgement. If the entries of a
            log are not known, its rows become part of `rest`, even if they are whole rows.
        footers: The cache of footers and deletion vectors.
        runs: The earlier division of the logs into runs.

    Raises:
        InvalidInput: A row has no value in a required column.
        Corrupt: A split is damaged.

    Cost:
        As in a merge, patches take ranged GETs of the splits that may contain the keys of the patches.
    """
    key, schema = snapshot.config.primary_key, snapshot.schema
    if not key:
        return _of_append_table(schema, unmerged, footers)
    empty = fold.record_schema(schema).empty_table() if unmerged else schema.empty_table()
    folded = [_folded(each, empty, key) for each in unmerged]
    records = (each.select(empty.column_names) for each in folded)
    words = fold.fold(pa.concat_tables([empty, *records]), key) if unmerged else empty
    if not words.num_rows:
        nothing = schema.empty_table()
        return Overlay(generations=(), logs=(), rest=nothing, deletes=words, touched=frozenset(), footers=footers)
    # The codes are consecutive and in the order of the keys. `words` contains each key once, so the code of a key is
    # the key's row number in `words`.
    *codes, _ = key_codes([each.select(key) for each in (*folded, words)], key)
    newest = np.zeros(words.num_rows, np.int64)
    at = np.cumsum([0, *map(len, codes)])
    for begin, each in zip(at, codes, strict=False):
        newest[each] = begin + np.arange(len(each))  # if a key appears twice, its last record is used
    generations: list[WholeRows] = []
    logs: list[LoggedRows] = []
    settled = np.zeros(words.num_rows, np.bool_)
    for begin, own, records, part in zip(at, codes, folded, unmerged, strict=False):
        whole, last = gives_whole_rows(records), newest[own] == begin + np.arange(len(own))
        if part.generation is None and not part.entries:
            continue
        settled[own[whole & last]] = True
        rows = whole_rows(records.select(empty.column_names), schema)
        if part.generation is not None:
            generations.append(_in_order_of_segments(snapshot, part.generation, rows, ~last[whole]))
        else:
            entries = records.column(_ENTRY).to_numpy()[whole]
            gone = bitmap_of(np.flatnonzero(~last[whole]))
            logs.append(LoggedRows(region=part.region, entries=entries, rows=rows, deleted=gone))
    deletes = _deletes(words, key)
    return Overlay(
        generations=tuple(each for each in generations if each.rows.num_rows),
        logs=tuple(run for each in logs for run in (runs or LogRuns()).divided(each)),
        rest=_rows(store, snapshot, words.filter(pa.array(~settled)), footers),
        deletes=deletes,
        touched=frozenset(each.path for each in _holding(snapshot, deletes)),
        footers=footers,
    )


def _of_append_table(schema: pa.Schema, unmerged: Sequence[Unmerged], footers: Footers) -> Overlay:
    """Return the put records of an append table. These records come from raw logs.

    Each record is an additional row and hides no row.
    """
    records = [fold.record_schema(schema).empty_table(), *(part for each in unmerged for part in each.records)]
    rows = whole_rows(pa.concat_tables(records), schema)
    return Overlay(generations=(), logs=(), rest=rows, deletes=rows.slice(0, 0), touched=frozenset(), footers=footers)


def _folded(unmerged: Unmerged, empty: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return one record per key. For a log, return one record per entry and key, ordered by entry and key."""
    records = pa.concat_tables([empty, *unmerged.records])
    if not unmerged.entries:
        return fold.fold(records, key)
    numbers = np.repeat(np.array(unmerged.entries, np.int64), [each.num_rows for each in unmerged.records])
    return fold.fold(records.append_column(_ENTRY, pa.array(numbers)), (_ENTRY, *key))


def _in_order_of_segments(snapshot: Snapshot, generation: Generation, rows: pa.Table, deleted: Mask) -> WholeRows:
    context = context_of(snapshot)
    order = next((each.order for each in generation.segments if each.order == context.arrangement), "")
    if order:
        places = places_in_order(rows, context)
        rows, deleted = rows.take(pa.array(places)), deleted[places]
    return WholeRows(generation=generation, rows=rows, deleted=bitmap_of(np.flatnonzero(deleted)), order=order)


def _rows(store: ObjectStore, snapshot: Snapshot, words: pa.Table, footers: Footers) -> pa.Table:
    """Merge these folded records into the base, and return the resulting rows."""
    patches = words.filter(pc.equal(words.column(fold.OPERATION), int(fold.Operation.PATCH)))
    base = [snapshot.schema.empty_table()]
    for split in _holding(snapshot, patches):
        found = _find(store, snapshot, split, patches, footers=footers)
        base += [] if found is None else [found.read]
    return fold.apply(pa.concat_tables(base), words, snapshot.config.primary_key)


def _find(
    store: ObjectStore, snapshot: Snapshot, split: Add, records: pa.Table, *, footers: Footers
) -> merge_work.Superseded | None:
    key, schema = snapshot.config.primary_key, snapshot.schema
    return merge_work.find(store, split, records, key=key, schema=schema, footers=footers)


def _holding(snapshot: Snapshot, records: pa.Table) -> tuple[Add, ...]:
    """Return the splits of the base that may contain a key of the records."""
    if not records.num_rows:
        return ()
    files = snapshot.splits.table()
    return adds_of(files.filter(may_hold(files, records.select(snapshot.config.primary_key))))


def _deletes(words: pa.Table, key: Sequence[str]) -> pa.Table:
    operations = np.full(words.num_rows, int(fold.Operation.DELETE), np.int8)
    return words.select(key).append_column(fold.OPERATION, pa.array(operations))


_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class WithRawLogs:
    """The captured state of the regions, and the `raw` records.

    The `raw` records are newer than all records of the regions. An append table has no regions. `raw_parts` describes
    the parts of raw logs with these records. `captured` and `raw` belong to the snapshot that the same call of
    `captured_with` returned.
    """

    captured: Captured
    raw: pa.Table
    raw_parts: tuple[RawPart, ...]

    @property
    def regions(self) -> tuple[CapturedRegion, ...]:
        """The captured regions."""
        return self.captured.regions

    def above(self, snapshot: Snapshot, *, keys: pa.Table | None = None) -> pa.Table:
        """Return the records that the snapshot does not contain, in the same way as `Captured.above`."""
        records = self.captured.above(snapshot, keys=keys)
        raw = self.raw if keys is None or not self.raw.num_rows else matching(self.raw, keys, keys.column_names)
        return pa.concat_tables([records, raw])

    def parts(self, snapshot: Snapshot) -> list[Unmerged]:
        """Return the records in parts. The last part of the result contains the records of raw logs."""
        raw = [Unmerged(generation=None, records=(self.raw,))] if self.raw.num_rows else []
        return [*self.captured.parts(snapshot), *raw]


class OpenView(Protocol):
    """An open table from which unmerged records are captured, for example a `read.view.View`."""

    log: TransactionLog
    kept: KeptValues

    @property
    def store(self) -> ObjectStore:
        """The store of the table."""

    @property
    def snapshot(self) -> Snapshot:
        """The version that is read."""

    def raw_store(self, uri: str) -> ObjectStore:
        """Open the store of a raw log."""

    def refresh(self) -> Snapshot:
        """Move to the newest version, and return it."""


def captured_with(
    view: OpenView, latest: Callable[[Regions | None, Snapshot], Captured], regions: Regions | None
) -> tuple[Snapshot, WithRawLogs]:
    """Return the newest snapshot, and the records of regions and raw logs that are newer than this snapshot.

    The regions are read with the consistency `latest`. If a chunk disappears from a raw log after the listing, another
    process may have distributed and collected it. Then the function captures everything once more. Raises the errors of
    `RawLogListing.load` and of `PendingChunks.records`.
    """
    was_damaged = False
    while True:
        try:
            found = _captured(view, latest, regions)
        except Corrupt as error:
            if was_damaged or "raw_log" not in error.context:
                raise
            was_damaged = True
        else:
            if found is not None:
                return found


def _captured(
    view: OpenView, latest: Callable[[Regions | None, Snapshot], Captured], regions: Regions | None
) -> tuple[Snapshot, WithRawLogs] | None:
    def capture(before: Snapshot) -> Capture[Captured]:
        chosen = None if regions is None else regions(before)
        captured = Captured(regions=())
        if before.config.kind == "keyed":
            captured = latest(lambda _: chosen, before)
        ids = None if chosen is None else frozenset(each.id for each in chosen)
        return Capture(captured, lambda: [_offsets(each) for each in captured.regions], ids)

    found = undistributed_over(view, capture)
    if found is None:
        return None
    snapshot, captured, waiting = found
    parts = [(each, list(each.records(view.store, snapshot, view.kept))) for each in waiting]
    empty = record_schema(snapshot.schema).empty_table()
    return snapshot, WithRawLogs(
        captured=captured,
        raw=pa.concat_tables([empty, *(table for _, tables in parts for table in tables)]),
        raw_parts=tuple(_part(each, tables) for each, tables in parts),
    )


@dataclass(frozen=True, slots=True)
class Capture(Generic[_Found]):
    """The captured state of regions (`found`), a function that returns the regions' offsets, and the regions' ids.

    If the ids are None, all regions were captured.
    """

    found: _Found
    offsets: Callable[[], Sequence[RegionOffsets]]
    regions: frozenset[str] | None = None


def undistributed_over(
    view: OpenView, capture: Callable[[Snapshot], Capture[_Found]]
) -> tuple[Snapshot, _Found, tuple[PendingChunks, ...]] | None:
    """Return the newest snapshot, the result of the earlier `capture`, and the raw log chunks that still wait.

    The function returns None if another process distributed, merged or changed the regions in the meantime.
    `undistributed_rows.find_pending_chunks` also returns None in these cases.

    Cost:
        The requests of `RawLogListing.load`, of `capture` and of `refresh`. If chunks wait, also the requests for the
        offsets.
    """
    before = view.snapshot
    listed = [RawLogListing.load(each, view.raw_store) for each in before.config.raw_logs]
    captured = capture(before)
    snapshot = view.refresh()
    if snapshot.config.dividing != before.config.dividing:
        return None
    waiting = find_pending_chunks(
        listed,
        before,
        snapshot,
        captured.offsets,
        store=view.store,
        now_ms=view.log.clock.now_ms(),
        regions=captured.regions,
    )
    return None if waiting is None else (snapshot, captured.found, waiting)


def _offsets(region: CapturedRegion) -> RegionOffsets:
    manifest = region.manifest
    if manifest is None:
        return RegionOffsets(region=region.region, generation=0, distributed={})
    return RegionOffsets(
        region=region.region, generation=manifest.current_generation - 1, distributed=manifest.distributed
    )


def _part(waiting: PendingChunks, tables: Sequence[pa.Table]) -> RawPart:
    name, records = waiting.listed.raw_log.name, sum(each.num_rows for each in tables)
    return RawPart(name=name, chunks=len(waiting.chunks), records=records)
