"""What stands behind a snapshot: its state, how it is listed, and what opening and planning cost (`docs/spec.md`)."""

from __future__ import annotations

from storage_core.errors import NotFound
from storage_core.log.checkpoints.compact import has_compact_state
from storage_core.log.checkpoints.root import named_keys
from storage_core.log.files.listed import ListedFiles
from storage_core.log.interop.manifest_paths import key_of_manifest
from storage_core.log.log import TransactionLog
from storage_core.log.replay import open_head
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.meter import MeteredStore

Row = dict[str, object]


def describe_state(log: TransactionLog, snapshot: Snapshot) -> Row:
    """Return one object about the state behind the snapshot; without one `key` is null.

    The newest version is opened once more, uncached, to count what that takes. A HEAD of the root and of every manifest
    or part, and one GET of the root.
    """
    behind = snapshot.checkpoint
    listed = snapshot.splits.listed
    manifests = [] if behind is None or listed is None else _manifests(log.store, listed)
    sizes = [_size(log.store, key) for key in _parts(log, snapshot)] if not manifests else []
    root = None if behind is None else log.store.head(behind.key)
    entries = 0 if listed is None else sum(part.info.num_entries for part in listed.parts)
    return {
        "version": snapshot.version,
        "checkpoint_version": snapshot.checkpoint_version,
        "key": None if behind is None else behind.key,
        "format": None if behind is None else behind.kind.value,
        "root_bytes": None if root is None else root.size,
        "age_ms": None if root is None else max(0, log.clock.now_ms() - root.last_modified_ms),
        "versions_behind": None if behind is None else snapshot.version - behind.version,
        "entries": entries,
        "tombstones": 0 if listed is None else len(listed.tombstones),
        "manifest_bytes": sum(int(str(each["size"])) for each in manifests) + sum(sizes),
        "manifests": manifests,
        "compact": has_compact_state(snapshot),
        "opening": _opening(log.store, len(manifests)),
    }


def _manifests(store: ObjectStore, listed: ListedFiles) -> list[Row]:
    return [
        {
            "path": part.info.path,
            "size": _size(store, key_of_manifest(part.info.path, listed.version)),
            "entries": part.info.num_entries,
            "added_at": [part.info.min_added_at_version, part.info.max_added_at_version],
            "windows": None if part.info.windows is None else list(part.info.windows),
        }
        for part in listed.parts
    ]


def _parts(log: TransactionLog, snapshot: Snapshot) -> tuple[str, ...]:
    return () if snapshot.checkpoint is None else named_keys(log.store, snapshot.checkpoint)


def _size(store: ObjectStore, key: str) -> int:
    try:
        return store.head(key).size
    except NotFound:  # a manifest that is lost costs requests, not answers
        return 0


def _opening(store: ObjectStore, manifests: int) -> Row:
    """What opening the newest version takes, without cache, and how many GETs looking at all splits takes then."""
    metered = MeteredStore(store)
    open_head(metered)
    return {"requests": metered.meter.requests, "bytes": metered.meter.bytes_read, "manifest_gets": manifests}
