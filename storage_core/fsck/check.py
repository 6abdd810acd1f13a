"""`fsck`: everything that can be said about the bytes of a table, without changing one
(docs/architecture/transaction-log.md, "History").
"""

from __future__ import annotations

from collections.abc import Iterator

from storage_core.clock import Clock
from storage_core.errors import NotFound
from storage_core.fsck.base_check import check_older_splits, check_segments, check_splits
from storage_core.fsck.inventory import Inventory, take_inventory
from storage_core.fsck.kept_log import older_splits
from storage_core.fsck.log_check import LogCheck, check_log
from storage_core.fsck.region_check import check_regions
from storage_core.fsck.report import Finding, Report
from storage_core.fsck.rest_check import check_rest, check_unreferenced
from storage_core.fsck.shared_objects import named_by, with_shared
from storage_core.history.kept import objects_of
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.meter import MeteredStore


def fsck(store: ObjectStore, *, clock: Clock, deep: bool = False) -> Report:
    """Return what is wrong with the table in `store`, as data: damage is a finding, never an error. Writes nothing.

    Reads the whole log, what is not merged yet, and of splits and segments the sizes; `deep` reads and hashes each of
    them and every other object of a known kind. Requests: one LIST per 1,000 objects, one or two GETs per file of the
    log and per unmerged WAL entry, those of the collector's mark; deep one GET per object more. Memory: a key and its
    metadata per object, two snapshots and one split.

    Of a table whose log others keep (no writer feature `tidemark`) it says what a reader would stumble over, and no
    more: a log that does not open, live files that are not there.

    What cannot be seen: a hint, plan, boundary or lock whose damage reads as another legal value, the loss of what
    nothing needs, and that of the newest version or WAL entry while nothing was planned on it. Raises `NotFound` when
    nothing lies there, `Unavailable` when the store cannot be reached.
    """
    metered = MeteredStore(store)
    inventory = take_inventory(metered)
    if not inventory.parsed:
        raise NotFound(f"{store.uri}: there is no table here, nor anything of one", uri=store.uri)
    log = check_log(metered, inventory)
    findings = [*log.findings]
    if log.is_ours:
        findings += _objects(metered, inventory, log, clock=clock, deep=deep)
    elif log.head is not None:  # what else lies there is theirs, under names and in formats that are theirs as well
        findings += check_splits(metered, inventory, log.head, deep=False)
    return Report(
        uri=store.uri,
        version=None if log.head is None else log.head.version,
        deep=deep,
        findings=tuple(_distinct(findings)),
        objects=len(inventory.objects),
        bytes=sum(info.size for info in inventory.objects.values()),
        requests=metered.requests,
    )


def _objects(store: ObjectStore, inventory: Inventory, log: LogCheck, *, clock: Clock, deep: bool) -> Iterator[Finding]:
    if log.head is not None:
        seen = with_shared(store, inventory, named_by(log.head))
        yield from check_splits(store, seen, log.head, deep=deep)
        yield from check_segments(store, seen, log.head, deep=deep)
        if deep:
            older = list(older_splits(store, log))
            yield from check_older_splits(store, with_shared(store, seen, objects_of(older)), older)
    merged = {} if log.head is None else dict(log.head.merged_generations)
    yield from check_regions(store, inventory, merged, deep=deep)
    yield from check_rest(store, inventory, log.head)
    if log.head is None or log.newest <= log.head.version:
        yield from check_unreferenced(store, clock=clock)  # else what nothing names may be what a lost version added


def _distinct(findings: list[Finding]) -> list[Finding]:
    """Each finding once: one object may be met on several ways."""
    return list(dict.fromkeys(findings))
