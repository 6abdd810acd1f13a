"""Index segments and translations that a commit adds and removes, against the head it would follow."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from storage_core.errors import CommitConflict
from storage_core.log.actions import (
    Action,
    Add,
    IndexSegment,
    Metadata,
    RemoveIndexSegment,
    RemoveTranslation,
    Translation,
)
from storage_core.log.covered import origins_in
from storage_core.log.moves import by_input, leads_to, reaches
from storage_core.log.snapshot import Snapshot
from storage_core.settings.table import TableConfig


def without_idle(actions: Sequence[Action], planned: Snapshot, head: Snapshot) -> tuple[Action, ...]:
    """Return the actions without those about segments and translations that the head has no use for.

    Left out are a segment whose rows are in no live split, wherever they moved: nobody could ever use it; what concerns
    an index that was dropped or redefined since the plan, so that the work on other indexes is not lost; a translation
    on a head without indexes; and the removal of a translation that is gone, or that a segment needs which the plan did
    not see. Raises `CommitConflict` when nothing is left.
    """
    if not any(isinstance(action, IndexSegment | Translation | RemoveTranslation) for action in actions):
        return tuple(actions)
    kept = _without_stale(_without_dropped(actions, planned, head), head)
    needed = _needed_since(planned, head)
    kept = [
        action
        for action in kept
        if not (isinstance(action, Translation) and not head.config.indexes)
        and not (
            isinstance(action, RemoveTranslation) and (action.path not in head.translations or action.path in needed)
        )
    ]
    if not kept:
        raise CommitConflict(f"every split that the new segments cover is gone at version {head.version}; plan again")
    return tuple(kept)


def _without_dropped(actions: Sequence[Action], planned: Snapshot, head: Snapshot) -> list[Action]:
    """The actions without segments of such indexes, and without the removal of segments that went with their index."""
    others = {each.index for each in actions if isinstance(each, IndexSegment | RemoveIndexSegment)}
    others = {name for name in others if head.config.index(name) != planned.config.index(name)}
    kept = [
        action
        for action in actions
        if not (isinstance(action, IndexSegment) and action.index in others)
        and not (isinstance(action, RemoveIndexSegment) and action.index in others and action.path not in head.segments)
    ]
    if not kept:
        raise CommitConflict(
            f"index {min(others)!r} was dropped or redefined by version {head.version}; plan again", index=min(others)
        )
    return kept


def _without_stale(actions: Sequence[Action], head: Snapshot) -> list[Action]:
    added = {action.path for action in actions if isinstance(action, Add)}
    own = [action for action in actions if isinstance(action, Translation)]
    moved = by_input([*head.translations.values(), *own])
    segments = [action for action in actions if isinstance(action, IndexSegment)]
    stale = {
        each.path
        for each in segments
        if each.covers and not reaches(each, added, moved) and not reaches(each, head.splits, moved)
    }
    return [action for action in actions if not (isinstance(action, IndexSegment) and action.path in stale)]


def _needed_since(planned: Snapshot, head: Snapshot) -> frozenset[str]:
    """The translations of the segments that joined since the plan."""
    joined = [each for path, each in head.segments.items() if path not in planned.segments]
    moved = by_input(head.translations.values()) if joined else {}
    return leads_to([split for each in joined for split in each.covers], (), moved)[1]


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
    """No split is covered twice by one index, and of parts of one split no two are over rows of one origin."""
    wanted = {segment.index for segment in added}
    covered: dict[tuple[str, str], list[IndexSegment]] = {}
    for path, segment in head.segments.items():
        if segment.index in wanted and path not in removed:
            for split in segment.covers:
                covered.setdefault((segment.index, split), []).append(segment)
    for segment in added:
        for split in segment.covers:
            others = covered.setdefault((segment.index, split), [])
            for other in others:
                if _overlap(segment, other, split):
                    raise CommitConflict(
                        f"{split}: covered by {other.path} of index {segment.index!r} already; plan again"
                    )
            others.append(segment)


def _overlap(one: IndexSegment, other: IndexSegment, split: str) -> bool:
    own, others = origins_in(one, split), origins_in(other, split)
    return own is None or others is None or not set(own).isdisjoint(others)


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
