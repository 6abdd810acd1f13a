"""How far the raw log is dealt into one table (design page 03, "Raw log"; decision 0053).

A mark is the number of a raw log writer's last chunk that is in the table. Writers have one id for ever, so marks need
no name of a raw log.

| Where | Key | Says |
|---|---|---|
| table's log | transaction `raw:<writer>` | every row of the chunks up to it is in the table |
| region's manifest | `dealt` | every row of the chunks up to it that belongs to the region is in the region |

The rows of an append table come with their transaction. Those of a keyed table come with the mark of their region; its
log records only what had no rows for it, so that such chunks are not read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from storage_core.log.actions import Txn
from storage_core.log.requirements import TxnProgress
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.region.dealt import Stretch, positions
from storage_core.region.manifest import region_of

_APP = "raw:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """The marks of one table by writer: those of its log, and those of each region."""

    log: Mapping[str, int]
    regions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def after(self) -> dict[str, int]:
        """Return per writer the chunk up to which nothing is left to deal: by the log, or by every region."""
        found = dict(self.log)
        for writer in {writer for marks in self.regions.values() for writer in marks}:
            least = min(marks.get(writer, 0) for marks in self.regions.values())
            found[writer] = max(found.get(writer, 0), least)
        return found


def read_marks(store: ObjectStore, snapshot: Snapshot) -> Marks:
    """Return the marks of a table. No request for an append table, about three per region of a keyed one."""
    log = {app.removeprefix(_APP): last for app, last in snapshot.txns.items() if app.startswith(_APP)}
    regions = {each: positions(store, each) for each in regions_of(snapshot)}
    return Marks(log=log, regions=regions)


def regions_of(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the regions of a keyed table that rows can belong to, none of an append table."""
    return (region_of(snapshot.table_id),) if snapshot.config.kind == "keyed" else ()


def txns(stretches: Iterable[Stretch], now_ms: int) -> list[Txn]:
    """Return what a commit records of the chunks whose rows it carries."""
    return [Txn(appId=_APP + each.writer, version=each.last, lastUpdated=now_ms) for each in stretches]


def starts(stretches: Iterable[Stretch], planned: Snapshot) -> list[TxnProgress]:
    """Return what such a commit demands: that every writer's mark is still that of the snapshot of the plan."""
    apps = [_APP + each.writer for each in stretches]
    return [TxnProgress(app, planned.txns.get(app, 0)) for app in apps]
