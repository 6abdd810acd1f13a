"""Listings of a log: versions, checkpoints, the checkpoint hint and the collector's boundary.

A reader uses a listing only as a starting point. A listed object can be damaged, and an object that is not listed can
exist. On a local disk, the functions probe keys if that is cheaper than a listing. The hint can be missing, partly
written, too old or too new. Readers then need more time, but the result is the same (lessons 05, 09).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice

from storage_core.base.errors import InvalidInput, NotFound, Unavailable
from storage_core.data.formats.documents import CheckpointHint, CheckpointKind, decode_hint, encode_hint
from storage_core.data.formats.keys import (
    LOG_PREFIX,
    STATES_PREFIX,
    VERSIONS_PREFIX,
    ParsedKey,
    gc_boundary_key,
    json_checkpoint_key,
    last_checkpoint_key,
    near_prefix,
    parse,
    state_key,
    version_key,
)
from storage_core.data.formats.kinds import KeyKind, document_of
from storage_core.data.settings.table import CheckpointFormat
from storage_core.store.contract import PAGE_KEYS, Committed, ObjectInfo, ObjectStore, exists, unchanged
from storage_core.store.meter import MeteredStore
from storage_core.store.resolve import locations_above, open_store

_BOUNDARY = document_of(KeyKind.GC_BOUNDARY)


def encode_boundary(first_version: int, *, nonce: str) -> bytes:
    """Return the bytes of a boundary. `nonce` must be unique."""
    return _BOUNDARY.encode({"firstVersion": first_version, "nonce": nonce})


def decode_boundary(data: bytes) -> int:
    """Return the first version. Raises `Corrupt`, because no other record of the deletions exists."""
    return _BOUNDARY.decode(data, gc_boundary_key(), lambda body: int(body["firstVersion"]))


def first_version(store: ObjectStore) -> int:
    """Return the first version that may exist. The version is 0 before any collection. One GET.

    Raises `Corrupt` if the boundary cannot be parsed. Unlike the hint, the boundary cannot be replaced: it is the only
    record of the deletions.
    """
    return read_boundary(store)[0]


def read_boundary(store: ObjectStore) -> tuple[int, str | None]:
    """Return the boundary and its ETag, or 0 and None if nothing was ever collected. One GET.

    Raises the errors of `first_version`.
    """
    try:
        blob = store.get(gc_boundary_key())
    except NotFound:
        return 0, None
    return decode_boundary(blob.data), blob.etag


_OF_KEY: Mapping[KeyKind, CheckpointKind] = {
    KeyKind.STATE: CheckpointKind.AVRO_STATE,
    KeyKind.JSON_CHECKPOINT: CheckpointKind.JSON,
}
_OF_FORMAT: Mapping[CheckpointFormat, CheckpointKind] = {
    "avro": CheckpointKind.AVRO_STATE,
    "json": CheckpointKind.JSON,
    "json-multipart": CheckpointKind.JSON_MULTIPART,
}


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """A version with a checkpoint, and the form of the checkpoint."""

    version: int
    kind: CheckpointKind

    @staticmethod
    def at(parsed: ParsedKey) -> Checkpointed | None:
        """Return the checkpoint whose root has this key, or None. A JSON checkpoint in parts counts as `JSON`, too."""
        kind = _OF_KEY.get(parsed.kind)
        return None if kind is None or parsed.version is None else Checkpointed(parsed.version, kind)

    @staticmethod
    def forms(version: int) -> tuple[Checkpointed, ...]:
        """Return the possible checkpoints of a version, one per root key. The form that opens fastest comes first."""
        return tuple(Checkpointed(version, kind) for kind in _OF_KEY.values())

    @staticmethod
    def in_format(version: int, form: CheckpointFormat) -> Checkpointed:
        """Return the checkpoint of a version, in the form that this setting of the table selects."""
        return Checkpointed(version, _OF_FORMAT[form])

    @property
    def key(self) -> str:
        """The key of the checkpoint's root, which is written last."""
        return state_key(self.version) if self.kind is CheckpointKind.AVRO_STATE else json_checkpoint_key(self.version)


_ATTEMPTS = 5

_logger = logging.getLogger(__name__)


def read_hint(store: ObjectStore) -> Checkpointed | None:
    """Return the checkpoint in the hint, or None if there is no usable hint. One GET."""
    try:
        return _checkpointed(store.get(last_checkpoint_key()).data)
    except NotFound:
        return None


def advance_hint(store: ObjectStore, hint: CheckpointHint, nonce: Callable[[], str]) -> bool:
    """Update the hint to a newer state. Return True if this call changed the hint.

    The function keeps a hint to the same or a newer state. It replaces the hint if the state of the hint does not
    exist. The call succeeds even if other processes win every attempt, because they write usable hints. Without any
    hint, opening the table only takes longer.

    Cost:
        One GET and one PUT if no other process changes the hint meanwhile.
    """
    for _ in range(_ATTEMPTS):
        try:
            blob = store.get(last_checkpoint_key())
        except NotFound:
            etag = None
        else:
            current = _checkpointed(blob.data)
            if current is not None and current.version >= hint.version and exists(store, current.key):
                return False
            etag = blob.etag
        if isinstance(store.put(last_checkpoint_key(), encode_hint(hint, nonce=nonce()), unchanged(etag)), Committed):
            _logger.info("checkpoint hint of %s points at version %d", store.uri, hint.version)
            return True
    _logger.warning(
        "checkpoint hint of %s not moved to version %d: other processes changed it during each of %d attempts",
        store.uri,
        hint.version,
        _ATTEMPTS,
    )
    return False


def _checkpointed(data: bytes) -> Checkpointed | None:
    found = decode_hint(data)
    return None if found is None else Checkpointed(*found)


SPAN = 1_000
"""The number of versions in one listing by prefix. The keys of these versions differ only in the last three digits."""
CLOSE = 100
"""If a state is older than the wanted version by at most this number of versions, it counts as close.

If the newest state is close, replaying from it is cheaper than searching for a newer JSON checkpoint.
"""

MOST_ABSENT_KEYS = 32
"""The number of consecutive absent versions that ends a search on a local disk. `fsck` finds a larger gap."""


@dataclass(frozen=True, slots=True)
class LogListing:
    """The listed versions and checkpoints, in ascending order. Objects written during the listing may be missing.

    Attributes:
        since: The first version that was requested. 0 if the whole log was listed.
    """

    versions: tuple[int, ...]
    checkpoints: tuple[Checkpointed, ...]
    since: int = 0

    @staticmethod
    def of(keys: Iterable[ParsedKey], since: int = 0) -> LogListing:
        """Return the listing of these keys.

        If a version has checkpoints of two forms, the state comes after the JSON checkpoint, so that readers try the
        state first.
        """
        versions, checkpoints = set(), set()
        for parsed in keys:
            if parsed.kind is KeyKind.VERSION and parsed.version is not None:
                versions.add(parsed.version)
            elif (checkpointed := Checkpointed.at(parsed)) is not None:
                checkpoints.add(checkpointed)
        in_order = sorted(checkpoints, key=lambda each: (each.version, each.kind is CheckpointKind.AVRO_STATE))
        return LogListing(tuple(sorted(versions)), tuple(in_order), since)

    def until(self, at: int | None, below: int | None) -> LogListing:
        """Return the listing with only the checkpoints that are within two limits.

        The result has no checkpoint after `at`, and no checkpoint at or after `below`.

        A limit of None excludes no checkpoint.
        """
        limits = [limit for limit in (at, None if below is None else below - 1) if limit is not None]
        kept = (each for each in self.checkpoints if all(each.version <= limit for limit in limits))
        return replace(self, checkpoints=tuple(kept))

    @property
    def newest(self) -> int:
        """The highest version with a version file or a checkpoint, or -1 if there is none."""
        return max((*self.versions[-1:], *(each.version for each in self.checkpoints[-1:])), default=-1)


def list_log(store: ObjectStore) -> LogListing:
    """Return the versions and checkpoints that exist. One LIST per 1,000 objects of the log."""
    return LogListing.of(_parsed(store.list(LOG_PREFIX)))


def has_log(store: ObjectStore) -> bool:
    """Return whether any version or checkpoint exists.

    Cost:
        One LIST, and one more per 1,000 manifests whose keys sort before the versions. On a local disk, no LIST is
        needed if version 0 or the checkpoint of the hint exists.
    """
    if _is_there(store, version_key(0)):
        return True
    hint = read_hint(store) if _is_there(store, last_checkpoint_key()) else None
    if hint is not None and _is_there(store, hint.key):
        return True
    return any(True for _ in _parsed(store.list(LOG_PREFIX)))


def list_near(store: ObjectStore, at: int) -> LogListing:
    """Return the checkpoints up to `at` whose version numbers differ from `at` only in the last three digits.

    If these versions have no checkpoint, use the previous thousand versions.

    Keys are listed by prefixes of digits, because a store need not list in order.

    Cost:
        One LIST if a state is close, otherwise up to four LISTs. On a local disk, a close state needs no LIST.
    """
    if (probed := _probed_state(store, at)) is not None:
        return probed
    states, since = _checkpoints_near(store, at, KeyKind.STATE)
    if _newest(states) > at - CLOSE:
        return LogListing.of(states, since)
    jsons, _ = _checkpoints_near(store, at, KeyKind.JSON_CHECKPOINT)
    return LogListing.of([*states, *jsons], since)


def list_head(store: ObjectStore) -> LogListing:
    """Return the newest versions and the checkpoints near them.

    Cost:
        One LIST if the whole log fits on one page. For a longer log, one more LIST for the states, and two more LISTs
        if no state is close. The versions then cost one or two LISTs per doubling of their number beyond 1,000.
    """
    first = list(islice(store.list(LOG_PREFIX), PAGE_KEYS))
    if len(first) < PAGE_KEYS:
        return LogListing.of(_parsed(first))
    shown, since = _tail(store)
    newest = _newest(shown)
    # Programs other than Tidemark may write a state that is newer than the newest version file, so all states after
    # `newest` - `SPAN` are listed.
    states = store.list(STATES_PREFIX, state_key(newest - SPAN) if newest >= SPAN else None)
    found = list(_parsed(states))
    if _newest(found) <= newest - CLOSE:
        found += _checkpoints_near(store, newest, KeyKind.JSON_CHECKPOINT)[0]
    return LogListing.of([*shown, *found], since)


def newest_beyond(store: ObjectStore, version: int) -> int:
    """Return the newest listed version after `version`, or `version` if there is none. One LIST.

    On a local disk, the function probes keys instead, until 32 consecutive keys are absent.
    """
    if _is_there(store, version_key(version)):
        return _probed_beyond(store, version)
    later = _parsed(store.list(VERSIONS_PREFIX, version_key(version)))
    return max((parsed.version or 0 for parsed in later if parsed.kind is KeyKind.VERSION), default=version)


def listed_states(store: ObjectStore) -> list[int]:
    """Return the versions with a listed state, unordered. One LIST per 1,000 keys of states."""
    shown = _parsed(store.list(STATES_PREFIX))
    return [parsed.version for parsed in shown if parsed.kind is KeyKind.STATE and parsed.version is not None]


def _checkpoints_near(store: ObjectStore, at: int, kind: KeyKind) -> tuple[list[ParsedKey], int]:
    """Return the checkpoints at or shortly before version `at`, and the first version that the listing includes.

    The function first lists the thousand versions whose numbers differ from `at` only in the last three digits. If
    these versions have no checkpoint, the previous thousand versions are listed.
    """
    since = at
    for since in range(at - at % SPAN, max(-1, at - 2 * SPAN), -SPAN):
        shown = _parsed(store.list(near_prefix(since, kind)))
        found = [parsed for parsed in shown if parsed.kind is kind and (parsed.version or 0) <= at]
        if found:
            return found, since
    return [], since


def _tail(store: ObjectStore) -> tuple[list[ParsedKey], int]:
    """Return the last page of version files, and the first version of the page.

    The page includes keys of other objects if these keys sort between the keys of version files.

    The function finds the page by an exponential search, then by a binary search, and lists one page per step. If a
    tried page has keys, the page becomes the lower end of the search. If the page after a version is empty, this
    version becomes the upper end of the search.
    """
    since, shown, beyond, step = 0, _page(store, None), None, PAGE_KEYS
    while len(shown) == PAGE_KEYS:
        last = max(shown, key=lambda parsed: parsed.key)
        low = last.version or 0
        while True:
            near = beyond is not None and beyond - low <= PAGE_KEYS
            tried = low if near else low + step if beyond is None else (low + beyond) // 2
            # A page may end between the parts of a checkpoint. The next page therefore starts after the last key.
            page = _page(store, last.key if near else version_key(tried))
            if page or near:
                break
            beyond = tried
        if not page:
            break
        since, shown, step = tried + 1, page, step * 2
    return shown, since


def _page(store: ObjectStore, after: str | None) -> list[ParsedKey]:
    """Return up to 1,000 keys after a key.

    The result has keys of version files, and keys of objects that sort between version files.

    If the result has fewer than 1,000 keys, no later key exists.
    """
    return list(islice(_parsed(store.list(VERSIONS_PREFIX, after)), PAGE_KEYS))


def _newest(found: Iterable[ParsedKey]) -> int:
    return max((parsed.version for parsed in found if parsed.version is not None), default=-1)


def _parsed(infos: Iterable[ObjectInfo]) -> Iterator[ParsedKey]:
    for info in infos:
        parsed = parse(info.key)
        if parsed is not None and parsed.version is not None:
            yield parsed


def _is_there(store: ObjectStore, key: str) -> bool:
    """Return True if the store is a local disk and the file of this object exists. Sends no request."""
    return store.local_path(key) is not None


def _probed_beyond(store: ObjectStore, version: int) -> int:
    newest = tried = version
    while tried - newest < MOST_ABSENT_KEYS:
        tried += 1
        if _is_there(store, version_key(tried)):
            newest = tried
    return newest


def _probed_state(store: ObjectStore, at: int) -> LogListing | None:
    """Return a listing with the newest state among the last `CLOSE` versions up to `at`, or None. Only for a local
    disk.
    """
    if _is_there(store, version_key(at)):
        for version in range(at, max(at - CLOSE, 0), -1):
            if _is_there(store, state_key(version)):
                return LogListing((), (Checkpointed(version, CheckpointKind.AVRO_STATE),), since=version)
    return None


MOST_LEVELS = 16


def reject_nested_table(store: ObjectStore, *, is_new: bool = False) -> None:
    """Raise `InvalidInput` if the location is inside another table's folder, or has another table inside its own.

    If `is_new` is True, the location also must not have splits. Splits without a log belong to a table whose log was
    lost. The log of a new table would hide the loss.

    The error contains the location of the other table. If this process may not list a parent folder, the folder counts
    as a folder without a table. The function does not find a table that another process is creating.

    Cost:
        One LIST of the location, which finds tables among its first 1,000 objects, and one LIST for each of the 16
        nearest parent folders.
    """
    for outer in islice(locations_above(store.uri), MOST_LEVELS):
        with suppress(Unavailable):
            above = open_store(outer)
            if has_log(MeteredStore(above, store.meter) if isinstance(store, MeteredStore) else above):
                raise InvalidInput(
                    f"{store.uri}: the location is in the folder of the table {outer}. Choose a "
                    "location outside of this folder"
                )
    for info in islice(store.list(""), PAGE_KEYS):
        if is_new and (own := parse(info.key)) is not None and own.kind is KeyKind.SPLIT and not has_log(store):
            raise InvalidInput(
                f"{store.uri}: contains the split {info.key} of a table whose log is lost. Put the folder {LOG_PREFIX} "
                "back from a backup, or choose another location",
                key=info.key,
            )
        folder, found, inside = info.key.rpartition(f"/{LOG_PREFIX}")
        parsed = parse(LOG_PREFIX + inside) if found else None
        if parsed is not None and parsed.version is not None:
            raise InvalidInput(f"{store.uri}: holds another table in {folder}. Choose another location")
