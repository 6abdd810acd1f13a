"""Opening of snapshots: read the hint and its state, then probe forward. Only if these reads fail, list the log.

A version exists if its file exists. The hint and the states only provide a starting point. If the hint or a state is
lost, opening costs more requests, but the result is the same. Any read error ends the load: an unreadable version file
is never skipped (lesson 32).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, TypeVar

from storage_core.base.errors import Corrupt, NotFound, SnapshotExpired, typed
from storage_core.data.formats.documents import CheckpointKind
from storage_core.data.formats.keys import state_key, version_key
from storage_core.log.actions import is_ours
from storage_core.log.listing import (
    Checkpointed,
    LogListing,
    first_version,
    list_head,
    list_log,
    list_near,
    newest_beyond,
    read_hint,
)
from storage_core.log.live_splits import Added, LiveFiles
from storage_core.log.snapshot import Snapshot, commit_timestamp
from storage_core.log.transactions import Transactions
from storage_core.log.versions import advance, read_version
from storage_core.store.contract import ObjectStore, exists
from storage_core.store.meter import both
from storage_core.store.pieces import NOT_CACHED, CachedPieces

if TYPE_CHECKING:
    from storage_core.log.checkpoint import MetadataSearch, Recovery

_logger = logging.getLogger(__name__)

_Load = Callable[[Checkpointed], Snapshot | None]
"""A function that returns the snapshot of a checkpoint, or None if the checkpoint is not usable."""


def open_head(store: ObjectStore, cached: CachedPieces = NOT_CACHED, *, seen: int | None = None) -> Snapshot:
    """Return the newest snapshot.

    Args:
        seen: A version that the caller has seen before. With a usable hint, this version replaces the LIST. A gap after
            this version then counts as the end of the log, as in `refresh`.

    Raises:
        NotFound: There is no table.
        Corrupt: The log has a gap.

    Cost:
        With a usable hint: one GET of the hint. Then one GET of its state and one LIST of later versions, concurrently.
        Then the GETs of `advance`. Without a usable hint: the LISTs of `list_head`, and the GETs that load a checkpoint
        and replay later versions. If no checkpoint is near, also a LIST of the whole log.
    """
    load = _loading(store, cached)
    hinted = read_hint(store)
    if hinted is not None:
        beyond = partial(newest_beyond, store, hinted.version) if seen is None else partial(max, seen, hinted.version)
        base, newest = both(partial(_derived, hinted, load), beyond)
        if base is not None:
            found = advance(store, base, seen=newest) or base
            return found if found.version >= newest else _without_gap(store, found)
    return _from_listing(store, None, load)


def open_version(store: ObjectStore, version: int, cached: CachedPieces = NOT_CACHED) -> Snapshot:
    """Return the snapshot at `version`, replayed from a state at or below that version.

    Raises `NotFound` with the retained versions. If the hint points to a later state, the cost includes the
    LIST of `list_near`. If no checkpoint is near, the cost includes a LIST of the whole log instead.
    """
    load = _loading(store, cached)
    base = _hinted(store, version, load)
    try:
        found = (advance(store, base, version) or base) if base is not None else _from_listing(store, version, load)
    except Corrupt:
        first = first_version(store)
        if version >= first:
            raise
        # Below the requested version, only the checkpoint of a tagged version is left. The versions after this
        # checkpoint were deleted.
        raise NotFound(
            f"{store.uri}: version {version} was collected. The oldest retained version is {first}", first=first
        ) from None
    if found.version != version:
        found = _without_gap(store, found)
        raise NotFound(
            f"{store.uri}: version {version} does not exist. The newest version is {found.version}. Give this or an "
            "older version",
            newest=found.version,
        )
    return found


def open_timestamp(store: ObjectStore, timestamp_ms: int, cached: CachedPieces = NOT_CACHED) -> Snapshot:
    """Return the newest snapshot committed at or before `timestamp_ms`.

    Raises `NotFound` if all retained versions are newer.

    Commit times always increase, and retained version files have no gap. The version is therefore found by a binary
    search from the head. The search costs two GETs each time the distance doubles. No listing is used, because a
    listing with a missing page would hide versions (lesson 49).
    """
    head = open_head(store, cached)
    if head.timestamp <= timestamp_ms:
        return head
    late, early, step = head.version, -1, 1
    while early < 0 and late > 0:
        tried = max(late - step, 0)
        if _is_later(store, tried, timestamp_ms):
            late, step = tried, step * 2
        else:
            early = tried
    while late - early > 1:
        middle = (early + late) // 2
        if _is_later(store, middle, timestamp_ms):
            late = middle
        else:
            early = middle
    if early < 0 or read_version(store, early) is None:
        raise NotFound(
            f"{store.uri}: no version from {timestamp_ms} ms or before is retained. The oldest version is {late}"
        )
    return open_version(store, early, cached)


def _is_later(store: ObjectStore, version: int, timestamp_ms: int) -> bool:
    """Return whether the version was committed after `timestamp_ms`.

    A deleted version is older than all existing versions.
    """
    actions = read_version(store, version)
    return actions is not None and commit_timestamp(actions, 0) > timestamp_ms


def _without_gap(store: ObjectStore, found: Snapshot) -> Snapshot:
    """Return the newest snapshot that follows `found`. Raise `Corrupt` if a later version exists after a gap.

    The cost is one LIST of the version files after the snapshot. A listing may miss a version that exists. So a listing
    can show that a gap exists, but not that no gap exists.
    """
    while (newest := newest_beyond(store, found.version)) > found.version:
        following = advance(store, found)
        if following is None or following.version == found.version:
            raise _gap(store, found.version + 1, newest)
        found = following
    return found


def _gap(store: ObjectStore, missing: int, newest: int) -> Corrupt:
    key = version_key(missing)
    return Corrupt(f"{key}: the file is missing, but {store.uri} has version {newest}", key=key)


def _hinted(store: ObjectStore, at: int, load: _Load) -> Snapshot | None:
    """Load the checkpoint of the hint. Return None if the checkpoint is not usable.

    A checkpoint is usable if it exists, is intact, is not after `at`, and was derived from version files.
    """
    hinted = read_hint(store)
    return None if hinted is None or hinted.version > at else _derived(hinted, load)


def _derived(hinted: Checkpointed, load: _Load) -> Snapshot | None:
    loaded = load(hinted)
    # In some logs, a state is itself a commit. A newer state may then exist without a version file. Only a LIST finds a
    # state without a version file.
    return loaded if loaded is not None and is_ours(loaded.protocol) else None


def based_on_newest_state(store: ObjectStore, snapshot: Snapshot) -> Snapshot:
    """Return the snapshot, based on the newest checkpoint that is not newer than the snapshot.

    A new state shares the manifests of the checkpoint on which it is based. The collector keeps the manifests of the
    newest checkpoint only.

    Cost:
        One GET of the hint. If the hint points to another checkpoint than the snapshot's, also the requests of
        `open_version`.
    """
    hinted, listed = read_hint(store), snapshot.splits.listed
    if hinted is not None and hinted.version > snapshot.version:
        return _without_state(snapshot)
    # A snapshot from a JSON checkpoint keeps the list of splits of an older state. The collector may delete the state
    # on which the list of splits is based.
    if hinted == snapshot.checkpoint and (listed is None or (hinted is not None and listed.version == hinted.version)):
        return snapshot
    if hinted is None and listed is None:
        return snapshot
    return open_version(store, snapshot.version)


def _without_state(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot with the same splits and transactions, but without a base checkpoint. A new state of the result
    then shares no manifests or transaction objects with an older state.
    """
    every = [(add, snapshot.splits.added_at(path)) for path, add in snapshot.splits.items()]
    splits = LiveFiles(added={add.path: Added(add, *at) for add, at in every})
    return replace(snapshot, splits=splits, txns=Transactions(recent=snapshot.txns.every()))


def _loading(store: ObjectStore, cached: CachedPieces = NOT_CACHED) -> _Load:
    """Return a checkpoint loader for one call that opens a log. The loader caches older metadata."""

    @cache
    def search() -> MetadataSearch:
        from storage_core.log.checkpoint import MetadataSearch

        return MetadataSearch(store)

    return partial(_load, store, search=search, cached=cached)


def _load(
    store: ObjectStore, wanted: Checkpointed, *, search: Callable[[], MetadataSearch], cached: CachedPieces
) -> Snapshot | None:
    try:
        if wanted.kind is not CheckpointKind.AVRO_STATE:
            return _load_json(store, wanted.version)
        with typed("this process"):
            # This import also loads Avro, which a table without a state does not need.
            from storage_core.log.checkpoint import load_checkpoint

        return load_checkpoint(store, wanted.version, recovery(store, wanted.version), search(), cached=cached)
    except (NotFound, Corrupt) as error:
        _logger.warning("%s of %s is not usable, looking elsewhere: %s", wanted.key, store.uri, error)
        return None


def _load_json(store: ObjectStore, version: int) -> Snapshot:
    with typed("this process"):
        from storage_core.log.checkpoint import load_json_checkpoint  # Few tables have JSON checkpoints.

    return load_json_checkpoint(store, version)


_Seen = TypeVar("_Seen")


def recovery(store: ObjectStore, version: int) -> Recovery:
    """Return a fallback for unreadable objects of the state of `version`. The fallback reads other log objects.

    The fallback first tries a JSON checkpoint of the version `version`. Older checkpoints help only while all version
    files after them exist.
    """
    from storage_core.log.checkpoint import Recovery  # This loads Avro, which a table without a state does not need.

    def recover(look: Callable[[Snapshot], _Seen], error: Exception) -> _Seen:
        _logger.warning("the state of version %d of %s is damaged, looking elsewhere: %s", version, store.uri, error)
        try:
            return look(_load_json(store, version))
        except (NotFound, Corrupt) as other:
            _logger.info("no JSON checkpoint of version %d of %s to read instead: %s", version, store.uri, other)
        try:
            return look(_from_listing(store, version, _loading(store), below=version))
        except (NotFound, Corrupt):
            if exists(store, state_key(version)):
                raise error from None
            raise SnapshotExpired(
                f"{store.uri}: the state of version {version} was collected while it was read. Open a newer version",
                version=version,
            ) from error

    return Recovery(
        splits=partial(recover, lambda found: found.splits.table()),
        transactions=partial(recover, lambda found: found.txns.every()),
    )


def _from_listing(store: ObjectStore, at: int | None, load: _Load, *, below: int | None = None) -> Snapshot:
    """Open the snapshot of version `at`, or of the head if `at` is None, from a checkpoint shortly before this version.

    If the replay fails, use any checkpoint in a listing of the whole log.
    """
    near = list_head(store) if at is None else list_near(store, at)
    found = _from_checkpoint_of(store, near.until(at, below), load, at)
    if found is not None and found.version == (near.newest if at is None else at):
        return found
    listing = list_log(store)
    found = _from_checkpoint_of(store, listing.until(at, below), load, at)
    if at is not None and below is None and (found is None or found.version < at):
        found = next(_of_forms(store, at, load), found)  # A checkpoint may exist although the listing lacks it.
    if found is None:
        raise _nothing_to_start_from(store, listing, at)
    expected = listing.newest if at is None else min(at, listing.newest)
    if found.version < expected:
        raise _unreachable(store, listing, found, expected)
    return found


def _of_forms(store: ObjectStore, version: int, load: _Load) -> Iterator[Snapshot]:
    """Yield the loadable checkpoints of exactly this version, found by key.

    The cost is one HEAD per form of checkpoint (Avro state or JSON), plus the GETs that load the checkpoint.
    """
    there = (each for each in Checkpointed.forms(version) if exists(store, each.key))
    yield from (loaded for each in there if (loaded := load(each)) is not None)


def _from_checkpoint_of(store: ObjectStore, listing: LogListing, load: _Load, at: int | None) -> Snapshot | None:
    """Replay from the newest usable listed checkpoint, or from version 0 if the listing starts there."""
    usable = map(load, reversed(listing.checkpoints))
    base = next((loaded for loaded in usable if loaded is not None), None)
    return None if base is None and listing.since > 0 else advance(store, base, at, seen=listing.newest)


def _unreachable(store: ObjectStore, listing: LogListing, found: Snapshot, wanted: int) -> NotFound | Corrupt:
    """Return the error for a listed version that cannot be reached.

    In some logs, a state is itself a commit. After the deletion of such a state, the log contains no trace of the
    version of the state.
    """
    shown = {*listing.versions, *(each.version for each in listing.checkpoints)}
    if is_ours(found.protocol) or wanted in shown:
        return _gap(store, found.version + 1, wanted)
    oldest = min((each.version for each in listing.checkpoints), default=found.version)
    return NotFound(
        f"{store.uri}: version {wanted} is no longer retained. The oldest version with a state is {oldest}, and the "
        f"newest version is {listing.newest}",
        newest=listing.newest,
    )


def _nothing_to_start_from(store: ObjectStore, listing: LogListing, at: int | None) -> NotFound | Corrupt:
    if listing.newest < 0:
        return NotFound(
            f"{store.uri}: there is no table here. Check the location, or create a table with `tidemark init` or "
            "Table.create",
            uri=store.uri,
        )
    if at is not None and at < listing.newest:
        later = (each.version for each in listing.checkpoints if each.version > at)
        openable = min(later, default=listing.newest)
        return NotFound(f"{store.uri}: version {at} is no longer retained. The oldest is {openable}", oldest=openable)
    return Corrupt(
        f"{store.uri}: the log has versions up to {listing.newest}, but neither version 0 nor an intact state "
        f"to start from",
        uri=store.uri,
    )
