"""Version files in their order: one, and those that lead on from a snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from storage_core.errors import NotFound
from storage_core.formats.keys import version_key
from storage_core.log.actions import Action
from storage_core.log.encoding.codec import decode_numbered
from storage_core.log.snapshot import Snapshot, SnapshotBuilder
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.prefetch import all_of

_AT_ONCE = 16


def read_version(store: ObjectStore, version: int) -> list[Action] | None:
    """Return the actions of one version, or None when its file does not exist. One GET. Raises `Corrupt`."""
    data = _version_file(store, version)
    return None if data is None else decode_numbered(data, version)


def _version_file(store: ObjectStore, version: int) -> bytes | None:
    try:
        return store.get(version_key(version)).data
    except NotFound:
        return None


def advance(
    store: ObjectStore, base: Snapshot | None, until: int | None = None, *, seen: int | None = None
) -> Snapshot | None:
    """Return the newest snapshot that version files lead to from `base`, at most `until`; None when there is none.

    One GET per version applied, and one more that finds nothing unless `until` was reached: side by side, up to 16,
    where `until` or `seen`, a version that a listing showed, says that they are there. Else as many at once as were
    found so far, so that of n versions at most n GETs more find nothing.
    """
    builder = SnapshotBuilder(base)
    start = builder.version
    for version, data in _following(store, start, until, seen):
        builder.apply(version, decode_numbered(data, version))
    return base if builder.version == start else builder.build()


def versions_after(store: ObjectStore, version: int) -> Iterator[tuple[int, list[Action]]]:
    """Yield the versions after this one, each with its actions, up to the first that does not exist.

    The GETs of `advance`, as the versions are taken. Raises `Corrupt`.
    """
    for number, data in _following(store, version, None, None):
        yield number, decode_numbered(data, number)


def _following(store: ObjectStore, start: int, until: int | None, seen: int | None) -> Iterator[tuple[int, bytes]]:
    """Yield the version files after `start` as `advance` reads them, up to the first that does not exist."""
    last = start
    while until is None or last < until:
        if until is not None:
            count = until - last
        elif seen is not None and seen > last:
            count = seen - last + 1
        else:
            count = max(1, last - start)
        versions = range(last + 1, last + 1 + min(count, _AT_ONCE))
        for version, data in zip(versions, all_of(partial(_version_file, store), versions, _AT_ONCE), strict=True):
            if data is None:
                return
            yield version, data
        last = versions[-1]
