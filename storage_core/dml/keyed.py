"""Statements on a keyed table: records of the keys of the rows that match now, in the logs of their regions.

What matches is read at `latest`, and written only where nobody has written to the region since: the region is claimed
by the manifest that was looked at before, as a merge claims it, and its log has no entry that was not there. So a row
that somebody changed meanwhile is never judged by what it was. A live writer is not fenced by it: it claims again by
itself and goes on (decision 0131).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from storage_core.dml.changed import Changed
from storage_core.dml.homes import by_region, held_in
from storage_core.errors import CommitConflict, WriterFenced
from storage_core.formats.region_manifest import RegionManifest
from storage_core.ids import random_pause_ms
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.region import wal
from storage_core.region.claim import Claim, claim, claim_idle, require_unmerged
from storage_core.region.following import Following, Known
from storage_core.region.memtable import Memtable
from storage_core.region.options import WriterOptions
from storage_core.region.region_log import RegionLog
from storage_core.region.registry import closed_region, known_manifests
from storage_core.rows.fold import record_schema
from storage_core.settings.region_fields import Region

_logger = logging.getLogger(__name__)

MOST_ATTEMPTS: Final = 10
_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 50, 5_000

Matching = Callable[[], tuple[Snapshot, pa.Table]]
"""Reads the rows that match at `latest`, and the snapshot below them."""

Records = Callable[[Snapshot, pa.Table], pa.Table]
"""Makes of rows that matched the records that are written of them, row by row."""


@dataclass(frozen=True, slots=True)
class _Looked:
    """A region as it was before rows were read: its manifest, and the number of its last WAL entry."""

    manifest: RegionManifest
    tail: int


def change(log: TransactionLog, snapshot: Snapshot, matching: Matching, records: Records) -> Changed:
    """Write the records of all rows that match, a WAL entry and a generation per region; durable when this returns.

    What a region gets is atomic; regions follow one another. Memory holds the rows that match. Requests per attempt:
    those of `known_manifests`, of `matching`, and per region with such a row those of a claim and a flush. Raises
    `CommitConflict` when others wrote to a region during each of `MOST_ATTEMPTS` attempts: regions before it are done,
    and doing it again is right, for rows that were changed match by what they are now. Where regions are made by hand a
    record goes where `homes.by_region` says, which a merge may change between attempts: there a key is done, no region.
    """
    done: dict[str, int] = {}
    keys: list[pa.Table] = []
    left: list[str] = []
    for attempt in range(MOST_ATTEMPTS):
        if attempt:
            log.clock.sleep_ms(
                random_pause_ms(log.ids, attempt, first_ms=_FIRST_PAUSE_MS, longest_ms=_LONGEST_PAUSE_MS)
            )
        looked = {each.manifest.region_id: each for each in _look(log, snapshot)}
        snapshot, rows = matching()
        by_hand, key = snapshot.config.regions_by_hand, snapshot.config.primary_key
        if by_hand and keys:
            rows = rows.filter(pa.array(~held_in(keys, rows, key)))
        left = []
        for region, part in by_region(log.store, snapshot, rows):
            if region.id in done and not by_hand:
                continue
            if _Attempt(log, snapshot, region, looked.get(region.id)).wrote(records(snapshot, part)):
                done[region.id] = done.get(region.id, 0) + part.num_rows
                keys += [part.select(key)] if by_hand else []
            else:
                left.append(region.id)
        if not left:
            return Changed(version=snapshot.version, rows=sum(done.values()))
    raise CommitConflict(
        f"{log.store.uri}: others wrote to {len(left)} regions during each of {MOST_ATTEMPTS} attempts; "
        f"{len(done)} regions are done; try again when less is written, or have the writers delete and patch by key",
        regions=left,
    )


def _look(log: TransactionLog, snapshot: Snapshot) -> Iterator[_Looked]:
    for manifest in known_manifests(log.store, log.refresh(snapshot)):
        after, seed = manifest.replay_after_wal_id, manifest.wal_id_last_seen
        yield _Looked(manifest, wal.find_tail(log.store, manifest.region_id, after=after, seed=seed))


@dataclass(frozen=True, slots=True)
class _Attempt:
    """To write to a region what was made of rows that were read after it was looked at."""

    log: TransactionLog
    snapshot: Snapshot
    region: Region
    looked: _Looked | None

    def wrote(self, records: pa.Table) -> bool:
        """Write and flush, and return True; nothing, and False, where somebody has written since the look."""
        log, snapshot = self.log, self.snapshot
        try:
            claimed = self._claimed()
            if claimed is None:
                return False
            require_unmerged(claimed.manifest, snapshot)
            memtable = Memtable(record_schema(snapshot.schema), snapshot.config.primary_key)
            following = Following(None, log.clock, Known.of(snapshot))
            own = RegionLog(claimed, memtable, options=WriterOptions(), ids=log.ids, following=following)
            own.append(records)
        except WriterFenced as fenced:
            _logger.info("region %s is read again: %s", self.region.id, fenced.found)
            return False
        with suppress(WriterFenced):  # whose claim took over what is durable
            own.flush()
        return True

    def _claimed(self) -> Claim | None:
        """The region, if it is as it was looked at; else None. Raises as a claim does."""
        store, clock, ids, region, looked = self.log.store, self.log.clock, self.log.ids, self.region, self.looked
        records = record_schema(self.snapshot.schema)
        if looked is None:
            claimed = claim(store, region, record_schema=records, clock=clock, ids=ids)
            return claimed if claimed.manifest.version == 1 else None
        if looked.manifest.closed_by:
            raise closed_region(region.id, region.spec_id, looked.manifest.closed_by)
        claimed = claim_idle(store, looked.manifest, record_schema=records, clock=clock, ids=ids)
        return claimed if claimed.appender.next_id == looked.tail + 2 else None  # the claim's own entry is behind it
