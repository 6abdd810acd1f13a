"""The module reads version files in order, forward from a snapshot or backward through history.

The module also returns the changes that each commit made.

See docs/architecture/transaction-log.md, "History".
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from storage_core.base.errors import NotFound
from storage_core.data.formats.keys import version_key
from storage_core.log.actions import Action, Add, IndexSegment, Remove
from storage_core.log.codec import commit_info, decode_numbered
from storage_core.log.snapshot import Snapshot, SnapshotBuilder, commit_timestamp
from storage_core.store.contract import ObjectStore
from storage_core.store.meter import all_of, prefetch

_AT_ONCE = 16


def read_version(store: ObjectStore, version: int) -> list[Action] | None:
    """Return the actions of one version, or None if its file does not exist. One GET. Raises `Corrupt`."""
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
    """Return the newest snapshot that follows `base` in the version files, or `base` if none follows.

    The result is None if `base` is None and version 0 does not exist.

    Args:
        until: The last version to apply.
        seen: A version that a listing has shown.

    Cost:
        One GET per applied version, and one more GET that finds nothing, unless `until` was reached. `until` and `seen`
        show that versions exist. For these versions, up to 16 GETs run concurrently. For later versions, the number of
        concurrent GETs is at most the number of versions found so far. So if n versions exist, at most n further GETs
        find nothing.
    """
    builder = SnapshotBuilder(base)
    start = builder.version
    for version, data in _following(store, start, until, seen):
        builder.apply(version, decode_numbered(data, version))
    return base if builder.version == start else builder.build()


def versions_after(store: ObjectStore, version: int) -> Iterator[tuple[int, list[Action]]]:
    """Yield the versions after this one with their actions. Stop at the first missing version.

    The function sends the GETs of `advance`, but only when the caller takes further versions. Raises `Corrupt`.
    """
    for number, data in _following(store, version, None, None):
        yield number, decode_numbered(data, number)


def versions_down(
    store: ObjectStore, newest: int, oldest: int = 0, *, at_once: int = 1
) -> Generator[tuple[int, list[Action]]]:
    """Yield the versions from `newest` down to `oldest` with their actions. Stop at the first missing version.

    The cost is one GET per version. `at_once` GETs run concurrently, so up to `at_once` GETs may find nothing. Raises
    `Corrupt`.
    """
    versions = range(newest, oldest - 1, -1)
    with closing(prefetch(partial(read_version, store), versions, at_once)) as read:
        for version, actions in zip(versions, read, strict=False):
            if actions is None:
                return
            yield version, actions


def _following(store: ObjectStore, start: int, until: int | None, seen: int | None) -> Iterator[tuple[int, bytes]]:
    """Yield the version files after `start`.

    The function reads the files in the same way as `advance`. Stop at the first missing file.
    """
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


UNRECORDED = "unrecorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """One version of the history.

    A version of another writer has no commit information. The operation of a version without commit information is
    `unrecorded`, and its id is empty.

    Attributes:
        timestamp: The commit time in ms.
        metrics: The metrics that the commit recorded.
    """

    version: int
    timestamp: int
    operation: str
    commit_id: str
    metrics: Mapping[str, Any] = field(default_factory=dict)
    job_run_id: str | None = None


def entries(store: ObjectStore, newest: int) -> Iterator[HistoryEntry]:
    """Yield the retained versions from `newest` down, with one GET per version. Stop at the first missing version."""
    for version, actions in versions_down(store, newest):
        info = commit_info(actions)
        yield HistoryEntry(
            version=version,
            timestamp=commit_timestamp(actions, 0),
            operation=info.operation if info else UNRECORDED,
            commit_id=info.commitId if info else "",
            metrics=info.metrics if info else {},
            job_run_id=info.jobRunId if info else None,
        )


def find_commit(store: ObjectStore, newest: int, commit_id: str) -> int | None:
    """Return the version that the commit `commit_id` became, searching from `newest` down.

    The result is None if the commit wrote none of the retained versions up to `newest`. The cost is one GET per
    searched version.
    """
    return next((entry.version for entry in entries(store, newest) if entry.commit_id == commit_id), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The changes of one commit.

    Attributes:
        timestamp: The commit time in ms.
        brings_rows: False if the commit only moved rows.
        metrics: The metrics that the commit recorded.
    """

    version: int
    timestamp: int
    operation: str
    job_run_id: str | None
    splits_added: int
    bytes_added: int
    splits_removed: int
    bytes_removed: int
    segments_added: int
    segment_bytes: int
    brings_rows: bool
    metrics: Mapping[str, Any] = field(default_factory=dict)


def written(store: ObjectStore, newest: int) -> Iterator[Written]:
    """Yield the changes of the retained versions from `newest` down, with one GET per version."""
    yield from (_counted(version, actions) for version, actions in versions_down(store, newest))


def brings_rows(action: Action) -> bool:
    """Return whether the action adds a split with new rows.

    The result is False for a split with moved rows. The result is also False for an entry that adds a deletion vector
    to a live split.
    """
    return isinstance(action, Add) and action.dataChange and action.deletionVector is None


def _counted(version: int, actions: list[Action]) -> Written:
    info = commit_info(actions)
    # An `Add` with `dataChange` and a deletion vector adds no split. This `Add` gives a live split a deletion vector.
    adds = [each for each in actions if isinstance(each, Add) and (not each.dataChange or each.deletionVector is None)]
    removes = [each for each in actions if isinstance(each, Remove)]
    segments = [each for each in actions if isinstance(each, IndexSegment)]
    return Written(
        version=version,
        timestamp=commit_timestamp(actions, 0),
        operation=info.operation if info else UNRECORDED,
        job_run_id=info.jobRunId if info else None,
        splits_added=len(adds),
        bytes_added=sum(each.size for each in adds),
        splits_removed=len(removes),
        bytes_removed=sum(each.size or 0 for each in removes),
        segments_added=len(segments),
        segment_bytes=sum(each.size for each in segments),
        brings_rows=any(map(brings_rows, actions)),
        metrics=info.metrics if info else {},
    )
