"""Which versions the log of a Delta table has files of."""

from __future__ import annotations

from operator import itemgetter

from storage_core.formats.keys import DELTA_PREFIX, KeyKind, delta_commit_key, parse
from storage_core.ingest.delta_progress import delta_progress
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectInfo, ObjectStore
from storage_core.objectstore.resolve import open_store


def versions(store: ObjectStore, first: int = 0) -> dict[int, ObjectInfo]:
    """Return the files of the versions from `first` on, and of the one before, ascending. A LIST per 1,000 objects."""
    after = delta_commit_key(first - 1).removesuffix(".json") if first else None
    found = ((parse(info.key), info) for info in store.list(DELTA_PREFIX, after))
    commits = ((each.version, info) for each, info in found if each is not None and each.kind is KeyKind.DELTA_COMMIT)
    return {version: info for version, info in sorted(commits, key=itemgetter(0)) if version is not None}


def waiting_versions(uri: str, snapshot: Snapshot | None) -> range:
    """Return the versions of the Delta table at a place that are not in yet; none where there is no table."""
    reached = None if snapshot is None else delta_progress(snapshot.txns)
    first = 0 if reached is None else reached.next_version
    return range(first, max(versions(open_store(uri), first), default=first - 1) + 1)
