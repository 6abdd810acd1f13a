"""Finding and loading snapshots: hint, state, then forward probes; a listing only when those do not answer (page 02).

A version exists when its file does. The hint and the states only say where to start, so losing them costs requests,
never answers. Any read error ends the load: a version file that cannot be read is never skipped (lesson 32).
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from dataclasses import dataclass

from storage_core.errors import SEE_CORRUPT, Corrupt, NotFound
from storage_core.formats.keys import LOG_PREFIX, KeyKind, parse, version_key
from storage_core.log.actions import Action
from storage_core.log.checkpoint import load_checkpoint
from storage_core.log.codec import decode_version
from storage_core.log.hint import read_hint
from storage_core.log.snapshot import Snapshot, SnapshotBuilder, commit_timestamp
from storage_core.objectstore.contract import ObjectStore

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogListing:
    """Versions and states that a listing showed, ascending. May lack what was written while it ran."""

    versions: tuple[int, ...]
    states: tuple[int, ...]

    @property
    def newest(self) -> int:
        """The highest version of either, -1 when there is none."""
        return max((*self.versions[-1:], *self.states[-1:]), default=-1)


def read_version(store: ObjectStore, version: int) -> list[Action] | None:
    """Return the actions of one version, or None when its file does not exist. One GET. Raises `Corrupt`."""
    key = version_key(version)
    try:
        data = store.get(key).data
    except NotFound:
        return None
    return decode_version(data, key)


def advance(store: ObjectStore, base: Snapshot | None, until: int | None = None) -> Snapshot | None:
    """Return the newest snapshot that version files lead to from `base`, at most `until`; None when there is none.

    One GET per version applied, and one more that finds nothing unless `until` was reached.
    """
    builder = SnapshotBuilder(base)
    start = builder.version
    while until is None or builder.version < until:
        actions = read_version(store, builder.version + 1)
        if actions is None:
            break
        builder.apply(builder.version + 1, actions)
    return base if builder.version == start else builder.build()


def open_head(store: ObjectStore) -> Snapshot:
    """Return the newest snapshot. Raises `NotFound` when there is no table.

    With a good hint: one GET each for hint, state and its manifest, then forward probes until one finds nothing; no
    LIST. Without one, a LIST and as many GETs as it takes.
    """
    base = _hinted(store, None)
    if base is not None:
        return advance(store, base) or base
    return _from_listing(store, None)


def open_version(store: ObjectStore, version: int) -> Snapshot:
    """Return the snapshot at `version`, from a state at or below it. Raises `NotFound` naming what there is."""
    base = _hinted(store, version)
    found = (advance(store, base, version) or base) if base is not None else _from_listing(store, version)
    if found.version != version:
        raise NotFound(
            f"{store.uri}: version {version} does not exist; the newest is {found.version}", newest=found.version
        )
    return found


def open_timestamp(store: ObjectStore, timestamp_ms: int) -> Snapshot:
    """Return the newest snapshot committed at or before `timestamp_ms`. Raises `NotFound` when all are newer.

    Commit times only grow, so after the head this is a binary search: a LIST and a GET per halving.
    """
    head = open_head(store)
    if head.timestamp <= timestamp_ms:
        return head
    versions = [version for version in list_log(store).versions if version <= head.version]
    before = bisect_right(versions, timestamp_ms, key=lambda version: _timestamp(store, version))
    if before == 0:
        oldest = versions[0] if versions else head.version
        raise NotFound(
            f"{store.uri}: nothing is retained from {timestamp_ms} ms or before; the oldest version is {oldest}"
        )
    return open_version(store, versions[before - 1])


def list_log(store: ObjectStore) -> LogListing:
    """Return the versions and states that exist. One LIST per 1,000 objects of the log."""
    versions: set[int] = set()
    states: set[int] = set()
    for info in store.list(LOG_PREFIX):
        parsed = parse(info.key)
        if parsed is None or parsed.version is None:
            continue
        if parsed.kind is KeyKind.VERSION:
            versions.add(parsed.version)
        elif parsed.kind is KeyKind.STATE:
            states.add(parsed.version)
    return LogListing(tuple(sorted(versions)), tuple(sorted(states)))


def _hinted(store: ObjectStore, at: int | None) -> Snapshot | None:
    """Load the state that the hint names, when it is there, intact, not beyond `at`, and derived from version files."""
    version = read_hint(store)
    if version is None or (at is not None and version > at):
        return None
    loaded = _load(store, version)
    # Where states are commits themselves, a newer one may exist that no version file leads to: only a LIST shows it.
    return loaded[0] if loaded is not None and loaded[1] else None


def _load(store: ObjectStore, version: int) -> tuple[Snapshot, bool] | None:
    try:
        return load_checkpoint(store, version)
    except (NotFound, Corrupt) as error:
        log.warning("state of version %d of %s is not usable, looking elsewhere: %s", version, store.uri, error)
        return None


def _from_listing(store: ObjectStore, at: int | None) -> Snapshot:
    listing = list_log(store)
    states = [version for version in reversed(listing.states) if at is None or version <= at]
    base = next((loaded[0] for loaded in (_load(store, version) for version in states) if loaded is not None), None)
    found = advance(store, base, at)
    if found is None:
        raise _nothing_to_start_from(store, listing, at)
    expected = listing.newest if at is None else min(at, listing.newest)
    if found.version < expected:
        raise Corrupt(
            f"{version_key(found.version + 1)}: missing, but {store.uri} has version {expected}; {SEE_CORRUPT}",
            key=version_key(found.version + 1),
        )
    return found


def _nothing_to_start_from(store: ObjectStore, listing: LogListing, at: int | None) -> NotFound | Corrupt:
    if listing.newest < 0:
        return NotFound(f"{store.uri}: there is no table here", uri=store.uri)
    if at is not None and at < listing.newest:
        openable = min(listing.states or listing.versions)
        return NotFound(f"{store.uri}: version {at} is no longer retained; the oldest is {openable}", oldest=openable)
    return Corrupt(
        f"{store.uri}: the log has versions up to {listing.newest}, but neither version 0 nor an intact state "
        f"to start from; {SEE_CORRUPT}",
        uri=store.uri,
    )


def _timestamp(store: ObjectStore, version: int) -> int:
    actions = read_version(store, version)
    if actions is None:
        raise Corrupt(f"{version_key(version)}: listed, but missing; {SEE_CORRUPT}", key=version_key(version))
    return commit_timestamp(actions, 0)
