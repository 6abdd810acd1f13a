"""How far the raw log is distributed into one table (docs/architecture/ingestion.md, "Raw log"; decision 0053).

An offset is the number of a raw log writer's last chunk that is in the table. Writers have one id for ever, so offsets
need no name of a raw log.

| Where | Key | Says |
|---|---|---|
| table's log | transaction `raw:<writer>` | every row of the chunks up to it is in the table, whatever its region |
| region's manifest | `distributed` | every row of the chunks up to it that belongs to the region is in the region |

The rows of an append table come with their transaction. Those of a keyed table come with the offset of their region,
and the log's offset follows when every region that the chunks have rows for has them. So a region has what either
offset says: one that is not there yet, or had no rows in a chunk, needs no offset of its own.

A row also is in the table when a region of an earlier spec has its chunk: that region was merged whole before the next
spec became current, perhaps before the log's offset had followed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from storage_core.log.actions import Txn
from storage_core.log.conflicts.requirements import TxnProgress
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.prefetch import all_of
from storage_core.region.distributor import OFFSETS, Stretch, offsets
from storage_core.region.registry import PARALLEL_REGIONS, read_registry
from storage_core.region.spec import whole_table
from storage_core.settings.region_fields import BY_HAND_SPEC, WHOLE_TABLE, Region

WITH_IDS = "ids"
"""In the place of a writer: how often records with ids of their producers were distributed (decision 0135)."""

_APP = f"{OFFSETS}:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offsets:
    """The offsets of one table by writer: those of its log, and by id those of each region of its current spec.

    `further` are those of regions of earlier specs and of its current one, only where they are ahead of the log.
    """

    log: Mapping[str, int]
    regions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    further: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def log_offsets(snapshot: Snapshot) -> dict[str, int]:
    """Return the offsets in the table's log by writer: up to them nothing is left to distribute.

    One GET per object of transactions that has offsets, and only the first time.
    """
    return {app.removeprefix(_APP): txn.version for app, txn in snapshot.txns.every(OFFSETS).items()}


def read_offsets(store: ObjectStore, snapshot: Snapshot) -> Offsets:
    """Return the offsets of a table.

    The requests of `log_offsets`, and of a keyed table about three per region, those of earlier specs too, and one for
    the registry where it has or had a spec with fields.
    """
    log = log_offsets(snapshot)
    regions = _regions_of(store, snapshot)
    found = all_of(lambda each: offsets(store, each.id), regions, PARALLEL_REGIONS)
    current = snapshot.config.region_spec.id
    own: dict[str, Mapping[str, int]] = {}
    further: dict[str, Mapping[str, int]] = {}
    for region, recorded in zip(regions, found, strict=True):
        if region.spec_id == current:
            own[region.id] = recorded
        if more := {writer: last for writer, last in recorded.items() if last > log.get(writer, 0)}:
            further[region.id] = more
    return Offsets(log=log, regions=own, further=further)


def _regions_of(store: ObjectStore, snapshot: Snapshot) -> list[Region]:
    """Return the regions that a keyed table has or had, without those by hand; a new one may come at any time."""
    config = snapshot.config
    if config.kind != "keyed":
        return []
    whole = [whole_table(snapshot.table_id)] if WHOLE_TABLE in config.region_specs else []
    if config.region_specs == (WHOLE_TABLE,):
        return whole
    return [*whole, *(each for _, each in sorted(read_registry(store).regions.items()) if each.spec_id != BY_HAND_SPEC)]


def txns(stretches: Iterable[Stretch], now_ms: int) -> list[Txn]:
    """Return what a commit records of the chunks whose rows it carries."""
    return [Txn(appId=_APP + each.writer, version=each.last, lastUpdated=now_ms) for each in stretches]


def starts(stretches: Iterable[Stretch], planned: Snapshot) -> list[TxnProgress]:
    """Return what such a commit demands: that every writer's offset is still that of the snapshot of the plan."""
    apps = [_APP + each.writer for each in stretches]
    return [TxnProgress(app, planned.txns.get(app, 0)) for app in apps]
