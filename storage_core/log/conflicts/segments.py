"""Index segments that a commit adds and removes, against the head it would follow."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from storage_core.errors import CommitConflict
from storage_core.log.actions import Action, Add, IndexSegment, Metadata, RemoveIndexSegment
from storage_core.log.snapshot import Snapshot
from storage_core.settings.table import TableConfig


def without_stale_segments(actions: Sequence[Action], head: Snapshot) -> tuple[Action, ...]:
    """Return the actions without the segments whose splits are all gone: nobody could ever use them.

    A segment of which one split is left stays; it answers for that one. Raises `CommitConflict` when nothing is left.
    """
    added = {action.path for action in actions if isinstance(action, Add)}
    kept = tuple(
        action
        for action in actions
        if not isinstance(action, IndexSegment)
        or not action.covers
        or any(path in added or path in head.splits for path in action.covers)
    )
    if not kept:
        raise CommitConflict(f"every split that the new segments cover is gone at version {head.version}; plan again")
    return kept


def check_segments(actions: Sequence[Action], planned: Snapshot, head: Snapshot) -> None:
    """Return when `head` may be followed by these segments, which were planned on `planned`.

    Raises `CommitConflict` when a segment to remove is gone, an index was dropped or redefined, another segment of an
    index covers one of its splits by now, or an index that the commit drops has got segments that it does not remove.
    """
    removed = {action.path for action in actions if isinstance(action, RemoveIndexSegment)}
    deleted = sorted(removed - head.segments.keys())
    if deleted:
        raise CommitConflict(f"{deleted[0]}: no live segment at version {head.version}; plan again", path=deleted[0])
    added = [action for action in actions if isinstance(action, IndexSegment)]
    for segment in added:
        _check_segment(segment, planned, head)
    _check_coverage(added, removed, head)
    for action in actions:
        if isinstance(action, Metadata):
            _check_dropped(action, removed, planned, head)


def _check_segment(segment: IndexSegment, planned: Snapshot, head: Snapshot) -> None:
    definition = head.config.index(segment.index)
    if definition is None or definition != planned.config.index(segment.index):
        raise CommitConflict(
            f"index {segment.index!r} was dropped or redefined by version {head.version}; plan again",
            index=segment.index,
        )
    if _fields(head.schema, definition.columns) != _fields(planned.schema, definition.columns):
        raise CommitConflict(
            f"index {segment.index!r}: its columns changed between version {planned.version} and {head.version}; "
            "plan again",
            index=segment.index,
        )
    if segment.path in head.segments:
        raise CommitConflict(f"{segment.path}: live already at version {head.version}", path=segment.path)


def _check_coverage(added: Sequence[IndexSegment], removed: set[str], head: Snapshot) -> None:
    """No split is covered twice by one index: a row would be found twice."""
    wanted = {segment.index for segment in added}
    covered = {
        (segment.index, split): path
        for path, segment in head.segments.items()
        if segment.index in wanted and path not in removed
        for split in segment.covers
    }
    for segment in added:
        for split in segment.covers:
            other = covered.setdefault((segment.index, split), segment.path)
            if other != segment.path:
                raise CommitConflict(f"{split}: covered by {other} of index {segment.index!r} already; plan again")


def _check_dropped(mine: Metadata, removed: set[str], planned: Snapshot, head: Snapshot) -> None:
    """A segment that outlived its index would keep its object for ever."""
    kept = {index.name for index in TableConfig.from_configuration(mine.configuration).indexes}
    dropped = {index.name for index in planned.config.indexes} - kept
    for path, segment in head.segments.items():
        if segment.index in dropped and path not in removed and path not in planned.segments:
            raise CommitConflict(
                f"{path}: joined the index {segment.index!r}, which this commit drops, by version {head.version}; "
                "plan again",
                path=path,
            )


def _fields(schema: pa.Schema, columns: Sequence[str]) -> list[pa.Field]:
    return [schema.field(name) for name in columns if name in schema.names]
