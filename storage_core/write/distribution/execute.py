"""Tasks of distribution: read chunks, divide their records by table, and write the records. The tasks commit nothing.

When a function returns, rejected and late records are in quarantine. Offsets move only after these records are in
quarantine. The same records always produce the same quarantine objects, after any number of distributions. A task keeps
one chunk and the rows of one work item in memory. A task that fills a region keeps in memory all rows that the round
writes to the region.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from storage_core.base.clock import Clock, Ids
from storage_core.base.errors import TidemarkError, Unavailable
from storage_core.data.rows.windows import LateMetrics, LateRule
from storage_core.data.settings.layout import Region
from storage_core.log.actions import Add
from storage_core.split.writer import sort_and_write
from storage_core.store.contract import ObjectStore
from storage_core.write.distribution.undistributed_rows import fit, fit_puts, group_by_region, of_table
from storage_core.write.distribution.unique import NONE, find_duplicates, note_ids
from storage_core.write.distribution.work import (
    Divided,
    DivideResult,
    DivideWork,
    FillPart,
    FillResult,
    FillWork,
    Source,
    Target,
    read_part,
    write_part,
)
from storage_core.write.ingest.convert import RejectedLine, tally, write_quarantine
from storage_core.write.late_rows import LateRowFilter, RowOrigin
from storage_core.write.raw_log.history import Damage, RawChunkRef, read_columns
from storage_core.write.raw_log.read import RejectedRecord, TypedRecords
from storage_core.write.region import router

# Quarantine of raw log records that no table takes (docs/architecture/README.md, rule 7).
#
# Each location has one quarantine object per chunk. The object has the same layout as the quarantine objects of landed
# files. The field `source` is `<raw log>/<writer>/<chunk>`, and the field `size` is the number of records in the
# object. `line` is the sequence number of the record, and `text` is the record as JSON. The key is derived from the
# content, so a repeated distribution writes the same object.


def source_of(raw_log: str, ref: RawChunkRef) -> str:
    """Return the source of quarantine entries for records of this chunk, as text."""
    return f"{raw_log}/{ref.writer}/{ref.number}"


def keep(store: ObjectStore, raw_log: str, ref: RawChunkRef, rejected: Sequence[RejectedRecord]) -> None:
    """Write the rejected records of one chunk to quarantine. The records are durable when the function returns.

    One PUT. No request if there are no records.
    """
    if rejected:
        source = source_of(raw_log, ref)
        lines = sorted((_line(source, each) for each in rejected), key=lambda each: each.line or 0)
        write_quarantine(store, source, len(lines), lines)


def keep_in_any(
    stores: Sequence[ObjectStore], raw_log: str, ref: RawChunkRef, rejected: Sequence[RejectedRecord]
) -> None:
    """Write the rejected records to the first store that answers. Raise `Unavailable` if no store answers."""
    reasons: list[str] = []
    for store in stores:
        try:
            keep(store, raw_log, ref, rejected)
        except Unavailable as error:
            reasons.append(str(error))
        else:
            return
    raise Unavailable(f"no store of raw log {raw_log} accepts the rejected records: {', '.join(reasons)}")


def keep_unknown(stores: Sequence[ObjectStore], source: Source, ref: RawChunkRef, records: pa.Table) -> Counter[str]:
    """Quarantine those records of a chunk whose table is unknown.

    Return the number of quarantined records by table name.

    Raises the errors of `keep_in_any`.
    """
    known = pc.is_in(records.column("table"), pa.array(source.tables, pa.string()))
    strangers = records.filter(pc.invert(known)).to_pylist()
    rejected = [RejectedRecord.of(each, f"{each['table']!r} is not a table of this raw log") for each in strangers]
    keep_in_any(stores, source.name, ref, rejected)
    return Counter(each["table"] for each in strangers)


def _line(source: str, record: RejectedRecord) -> RejectedLine:
    body = {"table": record.table, "operation": record.operation, "key": record.key, "fields": record.fields}
    text = json.dumps(body, ensure_ascii=False)
    return RejectedLine(source, int(record.record_id.rpartition(":")[2]), record.reason, text)


_logger = logging.getLogger(__name__)

Opener = Callable[[str], ObjectStore]


def divide(work: DivideWork, raw: Sequence[ObjectStore], opened: Opener, *, clock: Clock, ids: Ids) -> DivideResult:
    """Write the rows of append tables as sorted splits, and the rows of keyed tables as one part per region.

    If the records have producer ids and `work.ids` is None, the function only stores the producer ids. If a chunk has
    no valid copy, the function does not read later chunks of the same writer. If the store of a table raises an error,
    the table's result contains the error. Raises `Unavailable` if a store does not answer and no other store has one of
    the chunks to read.

    Args:
        raw: the stores of the raw log.
        opened: returns the store of a table.

    Cost:
        One GET per chunk. One PUT per split and part, and one PUT per chunk and table with rejections. If records have
        ids, also the requests of `note_ids`, and then of `find_duplicates`.
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
        unknown += keep_unknown(raw, work.source, ref, found.records)
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
    """Write the parts of a claimed region, in their order, as the region's next generation.

    Raises the errors of `read_part` and `router.write_distributed`. One GET per part, and the PUTs of
    `router.write_distributed`. All these records are in memory at the same time.
    """
    records = pa.concat_tables([read_part(store, each) for each in work.parts])
    written = router.write_distributed(
        store, records, work.key, turn=work.claim, clock=clock, ids=ids, context=work.context
    )
    return FillResult(path=written.path, rows=written.records)


@dataclass(slots=True)
class _Taken:
    """The records for one table in the chunks of one work item."""

    target: Target
    source: str
    _parts: list[pa.Table] = field(default_factory=list)
    _regions: dict[Region, list[pa.Table]] = field(default_factory=dict)
    _rejected: dict[str, int] = field(default_factory=dict)
    _late: LateMetrics = field(default_factory=LateMetrics)
    _failure: TidemarkError | None = None

    def take(self, ref: RawChunkRef, records: pa.Table, opened: Opener) -> None:
        """Add the table's records of a chunk."""
        if self._failure is None:
            take = self._route if self.target.config.kind == "keyed" else self._append
            try:
                take(ref, records, opened(self.target.uri))
            except TidemarkError as error:
                self._failure = error

    def finish(self, opened: Opener, *, clock: Clock, ids: Ids) -> Divided:
        """Write the rows and return the result."""
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

    def _kept(self, opened: Opener, *, clock: Clock, ids: Ids) -> Iterator[tuple[Region, FillPart]]:
        for region, several in self._regions.items():
            store, rows = opened(self.target.uri), pa.concat_tables(several)
            yield region, write_part(store, rows, region=region.id, clock=clock, ids=ids)

    def _route(self, ref: RawChunkRef, records: pa.Table, store: ObjectStore) -> None:
        fitting = fit(records, self.target)
        self._quarantine(ref, fitting.rejected, store)
        admitted = self._admitted(ref, fitting, fitting.records, store)
        for region, rows in group_by_region(admitted, ref, self.target):
            self._regions.setdefault(region, []).append(rows)

    def _append(self, ref: RawChunkRef, records: pa.Table, store: ObjectStore) -> None:
        fitting, rows = fit_puts(records, self.target)
        others = tuple(map(_no_put, records.filter(pc.not_equal(records.column("operation"), "put")).to_pylist()))
        self._quarantine(ref, (*fitting.rejected, *others), store)
        self._parts.append(self._admitted(ref, fitting, rows, store))

    def _admitted(self, ref: RawChunkRef, fitting: TypedRecords, rows: pa.Table, store: ObjectStore) -> pa.Table:
        """Return the rows that are not late.

        Late rows get one quarantine entry per chunk. The entry is the same in every distribution.
        """
        origin = RowOrigin(source=source_of(self.source, ref), by="distribute")
        late_filter = LateRowFilter(store, LateRule.of(self.target.config), origin)
        admit = late_filter.admit_records if self.target.config.kind == "keyed" else late_filter.admit
        admitted = admit(rows, fitting.written_ms)
        self._late += late_filter.metrics
        return admitted

    def _quarantine(self, ref: RawChunkRef, rejected: Sequence[RejectedRecord], store: ObjectStore) -> None:
        keep(store, self.source, ref, rejected)
        self._rejected = tally(self._rejected, Counter(each.reason for each in rejected))


def _no_put(record: dict[str, Any]) -> RejectedRecord:
    return RejectedRecord.of(
        record,
        f"the operation {record['operation']!r} needs a primary key, and the table has none. Write only puts "
        "to this table",
    )
