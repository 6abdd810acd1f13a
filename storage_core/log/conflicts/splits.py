"""Splits that a commit adds and removes, against the head it would follow (the conflict table).

Three rules, whatever the operation calls itself. A removed split is live, with the deletion vector that the plan saw,
or that its rebase has seen: a compaction never brings back rows that somebody deleted meanwhile (lesson 26). An add
that changes the vector of a live split found it as the plan saw it. Any other add is a new file.

That a plain add is new is not looked up among all live splits: on a table of a million files that would read every
manifest for every commit. It is sound because a split is named by a UUID made for it, written by put-if-absent, so a
path is live already only when the very same file was committed before. A commit that is repeated is found by its
commit id or its `txn`; one that repeats neither is checked against what the head knows without a request, which is
what landed lately; and `fsck` reports a path that is live twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from storage_core.errors import CommitConflict, InvalidInput
from storage_core.log.actions import Action, Add, Remove
from storage_core.log.snapshot import Snapshot


def check_splits(actions: Sequence[Action], planned: Snapshot, head: Snapshot) -> None:
    """Return when `head` may be followed by these adds and removes, which were planned on `planned`.

    Raises `CommitConflict` when a split they rely on was rewritten, removed or given other deleted rows, `InvalidInput`
    for an add that would change more of a live split than its deletion vector.
    """
    marked = [each.path for each in actions if isinstance(each, Add) and each.deletionVector is not None]
    named = [*marked, *(each.path for each in actions if isinstance(each, Remove))]
    live = head.splits.among(named)
    found = _Found(live, live if head.version == planned.version else planned.splits.among(named), planned, head)
    for action in actions:
        match action:
            case Remove():
                _check_remove(action, found)
            case Add(deletionVector=None):
                _check_new(action, head)
            case Add():
                _check_vector(action, found)
            case _:
                pass


@dataclass(frozen=True, slots=True)
class _Found:
    """What the actions name, looked up at once: in the head (`live`), and in the plan's snapshot (`seen`)."""

    live: Mapping[str, Add]
    seen: Mapping[str, Add]
    planned: Snapshot
    head: Snapshot

    @property
    def between(self) -> str:
        """The versions between which something changed, as messages have them."""
        return f"between version {self.planned.version} and {self.head.version}"


def _check_remove(action: Remove, found: _Found) -> None:
    live, seen = found.live.get(action.path), found.seen.get(action.path)
    if live is None:
        raise CommitConflict(
            f"{action.path}: no longer live at version {found.head.version}; another commit removed it, plan again",
            path=action.path,
        )
    if live.deleted_rows != (None if seen is None else seen.deleted_rows):
        raise CommitConflict(
            f"{action.path}: rows of it were deleted or restored {found.between}; plan again", path=action.path
        )


def _check_new(action: Add, head: Snapshot) -> None:
    if head.splits.recent(action.path) is not None:
        raise CommitConflict(
            f"{action.path}: live already since version {head.splits.added_at(action.path)[0]}; plan again",
            path=action.path,
        )


def _check_vector(action: Add, found: _Found) -> None:
    live, seen = found.live.get(action.path), found.seen.get(action.path)
    if live is None and seen is None:
        return  # a new file, or one that a restore brings back
    if live != seen:
        change = "rewritten or removed" if live is None else "changed"
        raise CommitConflict(
            f"{action.path}: {change} {found.between}; plan its deletion vector again", path=action.path
        )
    if live is not None and replace(action, deletionVector=live.deletionVector, dataChange=live.dataChange) != live:
        raise InvalidInput(
            f"{action.path}: is live; an add may change nothing of it but its deletion vector", path=action.path
        )
