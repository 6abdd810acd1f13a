"""What raw logs have for a table and it does not have yet, over what was captured of its regions (decision 0144).

Per raw log and read a LIST per 1,000 of the chunks that each store keeps, and a GET of each note of collected chunks;
a GET per chunk that waits, as long as the view does not keep it. See `distribution.undistributed` for the order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import pyarrow as pa

from storage_core.distribution.undistributed import Listed, RegionOffsets, Waiting, settled
from storage_core.errors import Corrupt, Unavailable
from storage_core.log.snapshot import Snapshot
from storage_core.read.plan import RawPart
from storage_core.read.view import Consistency, Regions
from storage_core.region.memtable import matching
from storage_core.region.unmerged import Captured, CapturedRegion, Unmerged
from storage_core.rows.fold import record_schema

if TYPE_CHECKING:
    from storage_core.read.scan import Scan
    from storage_core.read.view import View

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class WithRawLogs:
    """What was captured of regions, none of an append table, and the `raw` records that come after all of theirs.

    `raw_parts` tell which raw logs these are of. Both are of one snapshot, which `captured_with` returned.
    """

    captured: Captured
    raw: pa.Table
    raw_parts: tuple[RawPart, ...]

    @property
    def regions(self) -> tuple[CapturedRegion, ...]:
        """The regions that were captured."""
        return self.captured.regions

    def above(self, snapshot: Snapshot, *, keys: pa.Table | None = None) -> pa.Table:
        """Return the records that the snapshot does not have; see `Captured.above`."""
        records = self.captured.above(snapshot, keys=keys)
        raw = self.raw if keys is None or not self.raw.num_rows else matching(self.raw, keys, keys.column_names)
        return pa.concat_tables([records, raw])

    def parts(self, snapshot: Snapshot) -> list[Unmerged]:
        """Return them part by part; those of raw logs are the last one."""
        raw = [Unmerged(generation=None, records=(self.raw,))] if self.raw.num_rows else []
        return [*self.captured.parts(snapshot), *raw]


def require_distributed(scan: Scan, rows: pa.Table) -> None:
    """Return when none of these rows of a keyed table has a record in a raw log that waits; they are of the scan.

    Raises `Unavailable` else: whatever is written of its key now, that record comes after it.
    """
    waiting = sum(each.records for each in scan.raw)
    if not waiting or scan.records is None or not rows.num_rows:
        return
    key = scan.snapshot.config.primary_key
    raw = scan.records.slice(scan.records.num_rows - waiting)  # they come last
    found = matching(raw, rows.select(key), key).num_rows
    if found:
        names = ", ".join(each.name for each in scan.raw)
        raise Unavailable(
            f"{scan.store.uri}: {found} records of rows that match are in raw log {names} and not distributed yet, so "
            f"they would come back over what is written of their keys now; first run tidemark distribute {names}",
            records=found,
        )


def captured_with(view: View, regions: Regions | None) -> tuple[Snapshot, WithRawLogs]:
    """Return the newest snapshot, and what lies over it: of these regions, and of the raw logs of the table.

    What is gone of a raw log since it was listed may have been distributed and collected: it is looked at once more.
    Raises what `Listed.look` and `Waiting.records` raise.
    """
    was_damaged = False
    while True:
        try:
            found = _captured(view, regions)
        except Corrupt as error:
            if was_damaged or "raw_log" not in error.context:
                raise
            was_damaged = True
        else:
            if found is not None:
                return found


def _captured(view: View, regions: Regions | None) -> tuple[Snapshot, WithRawLogs] | None:
    def capture(before: Snapshot) -> Capture[Captured]:
        chosen = None if regions is None else regions(before)
        captured = Captured(regions=())
        if before.config.kind == "keyed":
            captured = view.capture(Consistency.LATEST, lambda _: chosen, before)
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
    """What was `found` of regions, what tells their offsets, and which regions it is of, None for all."""

    found: _Found
    offsets: Callable[[], Sequence[RegionOffsets]]
    regions: frozenset[str] | None = None


def undistributed_over(
    view: View, capture: Callable[[Snapshot], Capture[_Found]]
) -> tuple[Snapshot, _Found, tuple[Waiting, ...]] | None:
    """Return the head, what `capture` found of regions before it, and what raw logs have that neither has.

    None where others distributed, merged or changed the regions meanwhile; see `undistributed.settled`. Requests: those
    of `Listed.look`, of `capture` and of `refresh`, and those of the offsets where chunks wait.
    """
    before = view.snapshot
    listed = [Listed.look(each, view.raw_store) for each in before.config.raw_logs]
    captured = capture(before)
    snapshot = view.refresh()
    if snapshot.config.dividing != before.config.dividing:
        return None
    waiting = settled(
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


def _part(waiting: Waiting, tables: Sequence[pa.Table]) -> RawPart:
    name, records = waiting.listed.raw_log.name, sum(each.num_rows for each in tables)
    return RawPart(name=name, chunks=len(waiting.chunks), records=records)
