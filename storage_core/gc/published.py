"""Roots of the mirrors: what their retained versions name (decisions 0155, 0159)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from storage_core.errors import Corrupt, NotFound
from storage_core.formats.iceberg_metadata import IcebergMetadata, ShownSnapshot, files_of, manifests_of
from storage_core.formats.keys import KeyKind, ParsedKey, parse
from storage_core.log.published_delta import checkpointed_files, commits_down, newest_commit
from storage_core.log.published_iceberg import ADVICE, newest_metadata, read_metadata
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.prefetch import all_of

_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Published:
    """The keys that what is kept names; older commits and checkpoints, or metadata files, are needed by nobody.

    `first` is the number of the oldest that is kept.
    """

    keys: frozenset[str] = frozenset()
    first: int = 0


def published(store: ObjectStore, *, cutoff_ms: int) -> Published:
    """Return what the Delta mirror keeps: the newest Delta version, and those that were superseded after `cutoff_ms`.

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


def published_in_iceberg(store: ObjectStore, listed: Iterable[ParsedKey], *, cutoff_ms: int) -> Published:
    """Return what the Iceberg mirror keeps: the newest snapshot, and those that were superseded after `cutoff_ms`.

    The keys are those of manifest lists, manifests and splits. `listed` tells where to look if the hint is lost. Two
    GETs where nothing was published; else those of `newest_metadata`, one per hundred snapshots that are kept, and one
    per list and manifest of them. Raises `Corrupt` where one of these is missing or cannot be read, for it may name
    anything.
    """
    numbers = (each.version or 1 for each in listed if each.kind is KeyKind.ICEBERG_METADATA)
    newest = newest_metadata(store, listed=max(numbers, default=1))
    if newest is None:
        return Published()
    lists, first = _kept(store, newest.metadata, newest.hinted, cutoff_ms)
    named = {(root, key) for root, each in lists for key in manifests_of(_read(store, each.files), root, each.files)}
    manifests = sorted(named)
    files = all_of(lambda at: files_of(_read(store, at[1]), *at), manifests, _AT_ONCE)
    splits = {file.key for found in files for file in found if file.is_live and _is_split(file.key)}
    return Published(frozenset({*splits, *(key for _, key in manifests), *(each.files for _, each in lists)}), first)


def _kept(
    store: ObjectStore, newest: IcebergMetadata, hinted: int, cutoff_ms: int
) -> tuple[list[tuple[str, ShownSnapshot]], int]:
    """The snapshots that are kept, each with the location of the table then, and the first metadata file that is.

    A metadata file has the number of its newest snapshot, and a hundred before that.
    """
    kept = [(newest.root, each) for each in reversed(newest.snapshots)]
    first, last = _first_kept(kept, hinted, cutoff_ms)
    while first == last > 1:  # perhaps there are older ones
        older = read_metadata(store, last - 1)
        if older is None:
            break
        known = [(older.root, each) for each in reversed(older.snapshots) if each.sequence < last]
        if not known:  # of somebody else
            break
        kept += known
        first, last = _first_kept(kept, hinted, cutoff_ms)
    return [(root, each) for root, each in kept if each.sequence >= first], first


def _first_kept(kept: list[tuple[str, ShownSnapshot]], hinted: int, cutoff_ms: int) -> tuple[int, int]:
    """The oldest snapshot of these that was the newest within the retention or is hinted, and the oldest of all."""
    first = kept[0][1].sequence
    for (_, later), (_, each) in pairwise(kept):
        is_young = later.published_at_ms is None or later.published_at_ms > cutoff_ms
        if is_young or each.sequence >= hinted > 0:
            first = each.sequence
    return first, kept[-1][1].sequence


def _read(store: ObjectStore, key: str) -> bytes:
    try:
        return store.get(key).data
    except NotFound as error:
        raise Corrupt(f"{key}: missing, but the Iceberg mirror names it", advice=ADVICE, key=key) from error


def _is_split(key: str) -> bool:
    parsed = parse(key)
    return parsed is not None and parsed.kind is KeyKind.SPLIT
