"""Roots of the Delta mirror: the splits that its retained versions name (decision 0155)."""

from __future__ import annotations

from dataclasses import dataclass

from storage_core.formats.keys import KeyKind, parse
from storage_core.log.published import checkpointed_files, commits_down, newest_commit
from storage_core.objectstore.contract import ObjectStore


@dataclass(frozen=True, slots=True)
class Published:
    """The keys that Delta versions from `first` on name; older commits and checkpoints are needed by nobody."""

    keys: frozenset[str] = frozenset()
    first: int = 0


def published(store: ObjectStore, *, cutoff_ms: int) -> Published:
    """Return what the mirror keeps: the newest Delta version, and those that were superseded after `cutoff_ms`.

    Two GETs where nothing was published; else one per commit that is kept, and those of a checkpoint below them.
    Raises `Corrupt` where a commit is missing or cannot be read, for it may name anything.
    """
    newest = newest_commit(store)
    if newest is None:
        return Published()
    named: set[str] = set()
    first = 0
    for commit in commits_down(store, newest.commit):
        named |= commit.added.keys()
        shown = commit.shown  # without it the commit is of somebody else, and nobody knows how old
        is_old = commit.version > 0 and shown is not None and shown.published_at_ms <= cutoff_ms
        below = checkpointed_files(store, commit.version) if is_old else None
        if below is not None:
            named |= below.files.keys()
            first = commit.version
            break
    keys = frozenset(key for key in named if _is_split(key))
    # Readers begin where the hint says, so that stays, too.
    return Published(keys, min(first, max(newest.hinted, 0)))


def _is_split(key: str) -> bool:
    parsed = parse(key)
    return parsed is not None and parsed.kind is KeyKind.SPLIT
