"""Finding and loading snapshots: hint, state, then forward probes; a listing only when those do not answer.

A version exists when its file does. The hint and the states only say where to start, so losing them costs requests,
never answers. Any read error ends the load: a version file that cannot be read is never skipped (lesson 32).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeVar

from storage_core.cache.pieces import NOT_CACHED, CachedPieces
from storage_core.errors import Corrupt, NotFound, SnapshotExpired
from storage_core.formats.hint import CheckpointKind
from storage_core.formats.keys import state_key, version_key
from storage_core.log.actions import is_ours
from storage_core.log.advance import advance, read_version
from storage_core.log.boundary import first_version
from storage_core.log.checkpoints.checkpointed import Checkpointed
from storage_core.log.checkpoints.hint import read_hint
from storage_core.log.checkpoints.recovery import Recovery
from storage_core.log.files.live import Added, LiveFiles
from storage_core.log.interop.older_metadata import MetadataSearch
from storage_core.log.listing import LogListing, list_head, list_log, list_near, newest_beyond
from storage_core.log.snapshot import Snapshot, commit_timestamp
from storage_core.log.transactions import Transactions
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.prefetch import both
from storage_core.objectstore.reading import exists
from storage_core.system_errors import typed

_logger = logging.getLogger(__name__)

_Load = Callable[[Checkpointed], Snapshot | None]
"""Returns the snapshot of a checkpoint; None where it is not usable."""


def open_head(store: ObjectStore, cached: CachedPieces = NOT_CACHED, *, seen: int | None = None) -> Snapshot:
    """Return the newest snapshot. Raises `NotFound` when there is no table.

    With a good hint: a GET of it, one of its state beside one LIST of what lies beyond, then `advance`. Without one,
    the LISTs of `list_head` and as many GETs as it takes, or a LIST of the whole log where no checkpoint is near.
    Raises `Corrupt` for a gap. A version that was `seen` before stands for the LIST beyond a good hint: a gap after it
    is then no gap but the end, as it is to `refresh`.
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
    """Return the snapshot at `version`, from a state at or below it. Raises `NotFound` naming what there is.

    Where the hint names a later state, the LIST of `list_near`, or of the whole log where no checkpoint is near.
    """
    load = _loading(store, cached)
    base = _hinted(store, version, load)
    try:
        found = (advance(store, base, version) or base) if base is not None else _from_listing(store, version, load)
    except Corrupt:
        first = first_version(store)
        if version >= first:
            raise
        # The checkpoint of a tagged version is below it, and the versions after that one are gone.
        raise NotFound(
            f"{store.uri}: version {version} was collected; the oldest that is retained is {first}", first=first
        ) from None
    if found.version != version:
        found = _without_gap(store, found)
        raise NotFound(
            f"{store.uri}: version {version} does not exist; the newest is {found.version}", newest=found.version
        )
    return found


def open_timestamp(store: ObjectStore, timestamp_ms: int, cached: CachedPieces = NOT_CACHED) -> Snapshot:
    """Return the newest snapshot committed at or before `timestamp_ms`. Raises `NotFound` when all are newer.

    Commit times only grow and retained version files have no gap, so after the head this is a search by halving: two
    GETs per doubling of the distance. A listing is not asked: one that misses a page would hide versions (lesson 49).
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
            f"{store.uri}: nothing is retained from {timestamp_ms} ms or before; the oldest version is {late}"
        )
    return open_version(store, early, cached)


def _is_later(store: ObjectStore, version: int, timestamp_ms: int) -> bool:
    """Whether the version was committed after that time; one whose file is gone is older than all that are there."""
    actions = read_version(store, version)
    return actions is not None and commit_timestamp(actions, 0) > timestamp_ms


def _without_gap(store: ObjectStore, found: Snapshot) -> Snapshot:
    """Return the snapshot, moved on while versions are committed; raise `Corrupt` when a later one lies behind a gap.

    One LIST, of version files after the snapshot's. That they are missing there proves nothing: a listing only accuses.
    """
    while (newest := newest_beyond(store, found.version)) > found.version:
        following = advance(store, found)
        if following is None or following.version == found.version:
            raise _gap(store, found.version + 1, newest)
        found = following
    return found


def _gap(store: ObjectStore, missing: int, newest: int) -> Corrupt:
    key = version_key(missing)
    return Corrupt(f"{key}: missing, but {store.uri} has version {newest}", key=key)


def _hinted(store: ObjectStore, at: int, load: _Load) -> Snapshot | None:
    """Load the checkpoint that the hint names, when it is there, intact, not beyond `at`, and derived from versions."""
    hinted = read_hint(store)
    return None if hinted is None or hinted.version > at else _derived(hinted, load)


def _derived(hinted: Checkpointed, load: _Load) -> Snapshot | None:
    loaded = load(hinted)
    # Where states are commits themselves, a newer one may exist that no version file leads to: only a LIST shows it.
    return loaded if loaded is not None and is_ours(loaded.protocol) else None


def based_on_newest_state(store: ObjectStore, snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with the newest checkpoint behind it that is not newer.

    A new state shares the manifests of the one behind it, and only of the newest it is certain that the collector keeps
    them. One GET; where the hint names another checkpoint than is behind the snapshot, those of `open_version` more.
    """
    hinted, listed = read_hint(store), snapshot.splits.listed
    if hinted is not None and hinted.version > snapshot.version:
        return _without_state(snapshot)
    # A JSON checkpoint leaves the list as it is, of an older state, which the collector need not keep.
    if hinted == snapshot.checkpoint and (listed is None or (hinted is not None and listed.version == hinted.version)):
        return snapshot
    if hinted is None and listed is None:
        return snapshot
    return open_version(store, snapshot.version)


def _without_state(snapshot: Snapshot) -> Snapshot:
    """The same splits and transactions with nothing behind them that a new state could share."""
    every = [(add, snapshot.splits.added_at(path)) for path, add in snapshot.splits.items()]
    splits = LiveFiles(added={add.path: Added(add, *at) for add, at in every})
    return replace(snapshot, splits=splits, txns=Transactions(recent=snapshot.txns.every()))


def _loading(store: ObjectStore, cached: CachedPieces = NOT_CACHED) -> _Load:
    """What loads the checkpoints that one opening tries, and remembers what it saw of older metadata."""
    return partial(_load, store, search=MetadataSearch(store), cached=cached)


def _load(store: ObjectStore, wanted: Checkpointed, *, search: MetadataSearch, cached: CachedPieces) -> Snapshot | None:
    try:
        if wanted.kind is not CheckpointKind.AVRO_STATE:
            return _load_json(store, wanted.version)
        with typed("this process"):
            from storage_core.log.checkpoints.load import load_checkpoint  # and Avro, which a young table does not need

        return load_checkpoint(store, wanted.version, recovery(store, wanted.version), search, cached=cached)
    except (NotFound, Corrupt) as error:
        _logger.warning("%s of %s is not usable, looking elsewhere: %s", wanted.key, store.uri, error)
        return None


def _load_json(store: ObjectStore, version: int) -> Snapshot:
    with typed("this process"):
        from storage_core.log.interop.json_checkpoint import load_json_checkpoint  # which few tables have

    return load_json_checkpoint(store, version)


_Seen = TypeVar("_Seen")


def recovery(store: ObjectStore, version: int) -> Recovery:
    """Return what tells the splits and transactions of `version` when its state cannot be read: without that state.

    A JSON checkpoint of the same version first: older ones lead there only while every version file behind them exists.
    """

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
                f"{store.uri}: the state of version {version} was collected while it was read; open a newer version",
                version=version,
            ) from error

    return Recovery(
        splits=partial(recover, lambda found: found.splits.table()),
        transactions=partial(recover, lambda found: found.txns.every()),
    )


def _from_listing(store: ObjectStore, at: int | None, load: _Load, *, below: int | None = None) -> Snapshot:
    """Replay from a checkpoint near `at` or the head; where none leads there, from any that a whole listing shows."""
    near = list_head(store) if at is None else list_near(store, at)
    found = _from_checkpoint_of(store, near.until(at, below), load, at)
    if found is not None and found.version == (near.newest if at is None else at):
        return found
    listing = list_log(store)
    found = _from_checkpoint_of(store, listing.until(at, below), load, at)
    if at is not None and below is None and (found is None or found.version < at):
        found = next(_of_forms(store, at, load), found)  # a listing that misses its checkpoint proves nothing
    if found is None:
        raise _nothing_to_start_from(store, listing, at)
    expected = listing.newest if at is None else min(at, listing.newest)
    if found.version < expected:
        raise _unreachable(store, listing, found, expected)
    return found


def _of_forms(store: ObjectStore, version: int, load: _Load) -> Iterator[Snapshot]:
    """Yield the checkpoints of exactly this version that load, asked for by key. One HEAD per form, and its GETs."""
    there = (each for each in Checkpointed.forms(version) if exists(store, each.key))
    yield from (loaded for each in there if (loaded := load(each)) is not None)


def _from_checkpoint_of(store: ObjectStore, listing: LogListing, load: _Load, at: int | None) -> Snapshot | None:
    """Replay from the newest usable checkpoint listed, and from nothing where the listing reaches back to version 0."""
    usable = map(load, reversed(listing.checkpoints))
    base = next((loaded for loaded in usable if loaded is not None), None)
    return None if base is None and listing.since > 0 else advance(store, base, at, seen=listing.newest)


def _unreachable(store: ObjectStore, listing: LogListing, found: Snapshot, wanted: int) -> NotFound | Corrupt:
    """Why a version within what is listed is not reached. Where states are commits, one that went left nothing."""
    shown = {*listing.versions, *(each.version for each in listing.checkpoints)}
    if is_ours(found.protocol) or wanted in shown:
        return _gap(store, found.version + 1, wanted)
    oldest = min((each.version for each in listing.checkpoints), default=found.version)
    return NotFound(
        f"{store.uri}: version {wanted} is no longer retained; the oldest state is that of version {oldest}, the "
        f"newest that of {listing.newest}",
        newest=listing.newest,
    )


def _nothing_to_start_from(store: ObjectStore, listing: LogListing, at: int | None) -> NotFound | Corrupt:
    if listing.newest < 0:
        return NotFound(
            f"{store.uri}: there is no table here; look at the place, or make one by `tidemark init` or Table.create",
            uri=store.uri,
        )
    if at is not None and at < listing.newest:
        later = (each.version for each in listing.checkpoints if each.version > at)
        openable = min(later, default=listing.newest)
        return NotFound(f"{store.uri}: version {at} is no longer retained; the oldest is {openable}", oldest=openable)
    return Corrupt(
        f"{store.uri}: the log has versions up to {listing.newest}, but neither version 0 nor an intact state "
        f"to start from",
        uri=store.uri,
    )
