"""Which versions the log of a Delta table has files of."""

from __future__ import annotations

import re
from typing import Final

from storage_core.ingest.delta_progress import delta_progress
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectInfo, ObjectStore
from storage_core.objectstore.resolve import open_store

LOG: Final = "_delta_log/"
_VERSION = re.compile(rf"{LOG}(\d{{20}})\.json", re.ASCII)


def version_key(version: int) -> str:
    """Return the key of the file of a version."""
    return f"{LOG}{version:020}.json"


def versions(store: ObjectStore, first: int = 0) -> dict[int, ObjectInfo]:
    """Return the files of the versions from `first` on, and of the one before, ascending. A LIST per 1,000 objects."""
    after = version_key(first - 1).removesuffix(".json") if first else None
    found = ((_VERSION.fullmatch(info.key), info) for info in store.list(LOG, after))
    return dict(sorted((int(match[1]), info) for match, info in found if match))


def waiting_versions(uri: str, snapshot: Snapshot | None) -> range:
    """Return the versions of the Delta table at a place that are not in yet; none where there is no table."""
    reached = None if snapshot is None else delta_progress(snapshot.txns)
    first = 0 if reached is None else reached.next_version
    return range(first, max(versions(open_store(uri), first), default=first - 1) + 1)
