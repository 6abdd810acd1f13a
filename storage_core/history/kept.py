"""Which objects an older version consists of, and whether they stay."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from storage_core.errors import SnapshotExpired
from storage_core.gc.protection import planned_for_deletion
from storage_core.log.actions import Add
from storage_core.log.files.columns import adds_of, paths_of, without_paths
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.reading import missing


def replaced(mine: Snapshot, other: Snapshot) -> tuple[Add, ...]:
    """Return the splits of `mine` that `other` does not have, by path. Works on columns: most have to be no record."""
    files = mine.splits.table()
    return adds_of(without_paths(files, paths_of(other.splits.table())).sort_by("path"))


def objects_of(adds: Sequence[Add]) -> list[str]:
    """Return the keys of the objects that reading these splits takes."""
    vectors = [add.deletionVector for add in adds if add.deletionVector is not None]
    return [*(add.path for add in adds), *(vector.path for vector in vectors if vector.path is not None)]


def require_kept(store: ObjectStore, keys: Collection[str], *, version: int) -> None:
    """Raise `SnapshotExpired` unless every key has its object and the collector has no plan to delete it.

    One GET of the plan, and the requests of `missing`, in this order: what a collector deletes in between is either
    still in the plan, or seen to be missing.
    """
    if not keys:
        return
    lost = sorted(planned_for_deletion(store, keys)) or missing(store, keys)
    if lost:
        shown = ", ".join(lost[:3]) + (" …" if len(lost) > 3 else "")
        raise SnapshotExpired(
            f"version {version} of {store.uri} is no longer retained: {len(lost)} of its objects are collected, or due "
            f"to be ({shown}); nothing was changed, choose a newer version",
            version=version,
            keys=lost,
        )
