"""What a task of distribution does: reads chunks, divides their records by table, and writes, committing nothing.

Memory: one chunk, and the rows of one work item; to fill a region, all of its rows of one round. Records that no table
takes, and late ones, are in quarantine when a function returns, so before any offset moves; the same records are the
same quarantine objects, however often they are distributed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from storage_core.clock import Clock
from storage_core.distribution import rejects
from storage_core.distribution.fitting import by_region, fit, fit_puts, of_table
from storage_core.distribution.parts import Part, read_part, write_part
from storage_core.distribution.unique import NONE, find_duplicates, note_ids
from storage_core.distribution.work import Divided, DivideResult, DivideWork, FillResult, FillWork, Target
from storage_core.errors import TidemarkError
from storage_core.ids import Ids
from storage_core.ingest.tally import tally
from storage_core.late_row_filter import LateRowFilter, Origin
from storage_core.log.actions import Add
from storage_core.objectstore.contract import ObjectStore
from storage_core.raw_log.chunks import Damage, RawChunkRef, read_columns
from storage_core.raw_log.read import RejectedRecord, TypedRecords
from storage_core.region import distributor
from storage_core.rows.late import LateMetrics, LateRule
from storage_core.settings.region_fields import Region
from storage_core.split.write import sort_and_write

_logger = logging.getLogger(__name__)

Opener = Callable[[str], ObjectStore]


def divide(work: DivideWork, raw: Sequence[ObjectStore], opened: Opener, *, clock: Clock, ids: Ids) -> DivideResult:
    """Write the rows of append tables as sorted splits, those of keyed ones as a part for each region.

    `raw` are the stores of the raw log, `opened` gives the store of a table. A work that meets records with ids of
    their producers, and is not given those of the round, notes its own and does nothing else. A chunk without a sound
    copy ends its writer here. What fails at the store of one table is told with that table. Requests: a GET per chunk,
    a PUT per split and part, and per chunk and table with rejections; with ids those of `note_ids`, then of
    `find_duplicates`. Raises `Unavailable` when no store has a chunk and one is silent.
    """
    taken = {each.name: _Taken(each, work.source.name) for each in work.targets}
    duplicates = NONE if work.ids is None else find_duplicates(work, work.ids, raw)
    damaged: dict[str, Damage] = {}
    unknown: Counter[str] = Counter()
    total = 0
    for ref in work.chunks:
        if ref.writer in damaged:
            continue
        found = read_columns(raw, ref)
        if isinstance(found, Damage):
            damaged[ref.writer] = found
            continue
        if found.unique_ids is not None and work.ids is None:
            return _noted(work, raw)
        total += found.records.num_rows
        unknown += rejects.keep_unknown(raw, work.source, ref, found.records)
        records = duplicates.without(ref, found.records)
        for name in pc.unique(records.column("table")).to_pylist():
            share = taken.get(name)
            if share is not None and share.target.takes(ref):
                share.take(ref, of_table(records, name), opened)
    tables = {name: share.finish(opened, clock=clock, ids=ids) for name, share in taken.items()}
    return DivideResult(
        tables=tables,
        unknown=unknown,
        damaged=tuple(damaged.values()),
        records=total,
        duplicates=duplicates.counts,
    )


def _noted(work: DivideWork, raw: Sequence[ObjectStore]) -> DivideResult:
    return DivideResult(tables={}, unknown={}, damaged=(), records=0, noted=note_ids(work, raw))


def fill(work: FillWork, store: ObjectStore, *, clock: Clock, ids: Ids) -> FillResult:
    """Write the records of one region, in the order of its parts, as the generation of the distributor's turn.

    A GET per part and the PUTs of `distributor.write`. Memory: all of these records. Raises what `read_part` and
    `distributor.write` raise.
    """
    records = pa.concat_tables([read_part(store, each) for each in work.parts])
    written = distributor.write(store, records, work.key, turn=work.turn, clock=clock, ids=ids, context=work.context)
    return FillResult(path=written.path, rows=written.records)


@dataclass(slots=True)
class _Taken:
    """What one table gets of the chunks of one work item."""

    target: Target
    source: str
    _parts: list[pa.Table] = field(default_factory=list)
    _regions: dict[Region, list[pa.Table]] = field(default_factory=dict)
    _rejected: dict[str, int] = field(default_factory=dict)
    _late: LateMetrics = field(default_factory=LateMetrics)
    _failure: TidemarkError | None = None

    def take(self, ref: RawChunkRef, records: pa.Table, opened: Opener) -> None:
        """Take the table's records of a chunk."""
        if self._failure is None:
            take = self._route if self.target.config.kind == "keyed" else self._append
            try:
                take(ref, records, opened(self.target.uri))
            except TidemarkError as error:
                self._failure = error

    def finish(self, opened: Opener, *, clock: Clock, ids: Ids) -> Divided:
        """Write the rows and return what became of them."""
        rows = sum(part.num_rows for part in self._parts)
        try:
            if self._failure is not None:
                raise self._failure
            adds = self._written(opened, clock=clock, ids=ids) if rows else []
            parts = tuple(self._kept(opened, clock=clock, ids=ids))
        except TidemarkError as error:
            _logger.warning("table %s: its rows were not written: %s", self.target.name, error)
            return Divided(failure=(error.kind, str(error)))
        return Divided(rows=rows, adds=tuple(adds), parts=parts, rejected=self._rejected, late=self._late)

    def _written(self, opened: Opener, *, clock: Clock, ids: Ids) -> list[Add]:
        context = self.target.context
        rows = pa.concat_tables(self._parts)
        return sort_and_write(opened(self.target.uri), rows, context=context, ids=ids, now_ms=clock.now_ms())

    def _kept(self, opened: Opener, *, clock: Clock, ids: Ids) -> Iterator[tuple[Region, Part]]:
        for region, several in self._regions.items():
            store, rows = opened(self.target.uri), pa.concat_tables(several)
            yield region, write_part(store, rows, region=region.id, clock=clock, ids=ids)

    def _route(self, ref: RawChunkRef, records: pa.Table, store: ObjectStore) -> None:
        fitting = fit(records, self.target)
        self._quarantine(ref, fitting.rejected, store)
        admitted = self._admitted(ref, fitting, fitting.records, store)
        for region, rows in by_region(admitted, ref, self.target):
            self._regions.setdefault(region, []).append(rows)

    def _append(self, ref: RawChunkRef, records: pa.Table, store: ObjectStore) -> None:
        fitting, rows = fit_puts(records, self.target)
        others = tuple(map(_no_put, records.filter(pc.not_equal(records.column("operation"), "put")).to_pylist()))
        self._quarantine(ref, (*fitting.rejected, *others), store)
        self._parts.append(self._admitted(ref, fitting, rows, store))

    def _admitted(self, ref: RawChunkRef, fitting: TypedRecords, rows: pa.Table, store: ObjectStore) -> pa.Table:
        """What is not quarantined as late: an entry per chunk, the same however often the chunk is distributed."""
        origin = Origin(source=rejects.source_of(self.source, ref), by="distribute")
        late_filter = LateRowFilter(store, LateRule.of(self.target.config), origin)
        admit = late_filter.admit_records if self.target.config.kind == "keyed" else late_filter.admit
        admitted = admit(rows, fitting.written_ms)
        self._late += late_filter.metrics
        return admitted

    def _quarantine(self, ref: RawChunkRef, rejected: Sequence[RejectedRecord], store: ObjectStore) -> None:
        rejects.keep(store, self.source, ref, rejected)
        self._rejected = tally(self._rejected, Counter(each.reason for each in rejected))


def _no_put(record: dict[str, Any]) -> RejectedRecord:
    return RejectedRecord.of(record, f"the table has no primary key: it takes puts, found {record['operation']!r}")
