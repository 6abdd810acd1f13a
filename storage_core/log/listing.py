"""What a listing shows of a log: all of it, or what lies near a version or the head, whatever the log's age.

On a local disk a listing reads the names of the whole folder, so there keys are probed instead where that is enough.

A listing only says where to start. What it shows may be damaged and what it lacks may be there, so nobody concludes
from one of these alone that a version does not exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from storage_core.formats.hint import CheckpointKind
from storage_core.formats.keys import (
    LOG_PREFIX,
    STATES_PREFIX,
    VERSIONS_PREFIX,
    KeyKind,
    ParsedKey,
    last_checkpoint_key,
    near_prefix,
    parse,
    state_key,
    version_key,
)
from storage_core.log.checkpoints.checkpointed import Checkpointed
from storage_core.log.checkpoints.hint import read_hint
from storage_core.objectstore.contract import PAGE_KEYS, ObjectInfo, ObjectStore

SPAN = 1_000
"""How many versions are near one another: those whose keys differ in the last three digits."""
CLOSE = 100
"""A state of so many versions ago is close: to look for a JSON checkpoint after it would cost more than it saves."""

MOST_ABSENT_KEYS = 32
"""So many absent versions in a row end a search on a local disk: a larger gap is found by `fsck`."""


@dataclass(frozen=True, slots=True)
class LogListing:
    """Versions and checkpoints that a listing showed, ascending. May lack what was written while it ran.

    `since` is the first version that was asked for: 0 when nothing of the log was left out.
    """

    versions: tuple[int, ...]
    checkpoints: tuple[Checkpointed, ...]
    since: int = 0

    @staticmethod
    def of(keys: Iterable[ParsedKey], since: int = 0) -> LogListing:
        """Return what the keys name. Of two forms of one version the state comes last: it is tried first."""
        versions, checkpoints = set(), set()
        for parsed in keys:
            if parsed.kind is KeyKind.VERSION and parsed.version is not None:
                versions.add(parsed.version)
            elif (checkpointed := Checkpointed.at(parsed)) is not None:
                checkpoints.add(checkpointed)
        in_order = sorted(checkpoints, key=lambda each: (each.version, each.kind is CheckpointKind.AVRO_STATE))
        return LogListing(tuple(sorted(versions)), tuple(in_order), since)

    def until(self, at: int | None, below: int | None) -> LogListing:
        """Return the listing without checkpoints beyond `at`, and at or beyond `below`; None is no limit."""
        limits = [limit for limit in (at, None if below is None else below - 1) if limit is not None]
        kept = (each for each in self.checkpoints if all(each.version <= limit for limit in limits))
        return replace(self, checkpoints=tuple(kept))

    @property
    def newest(self) -> int:
        """The highest version of either, -1 when there is none."""
        return max((*self.versions[-1:], *(each.version for each in self.checkpoints[-1:])), default=-1)


def list_log(store: ObjectStore) -> LogListing:
    """Return the versions and checkpoints that exist. One LIST per 1,000 objects of the log."""
    return LogListing.of(_parsed(store.list(LOG_PREFIX)))


def has_log(store: ObjectStore) -> bool:
    """Return whether there is any version or checkpoint. One LIST, one more per 1,000 manifests that came first.

    None on a local disk where version 0 is there, or what the hint names.
    """
    if _is_there(store, version_key(0)):
        return True
    hint = read_hint(store) if _is_there(store, last_checkpoint_key()) else None
    if hint is not None and _is_there(store, hint.key):
        return True
    return any(True for _ in _parsed(store.list(LOG_PREFIX)))


def list_near(store: ObjectStore, at: int) -> LogListing:
    """Return the checkpoints up to `at` of `at`'s thousand, else of the one before.

    One LIST where a state is close, none if that is on a local disk, up to four where none is. By prefixes of digits:
    stores need not list in order.
    """
    if (probed := _probed_state(store, at)) is not None:
        return probed
    states, since = _checkpoints_near(store, at, KeyKind.STATE)
    if _newest(states) > at - CLOSE:
        return LogListing.of(states, since)
    jsons, _ = _checkpoints_near(store, at, KeyKind.JSON_CHECKPOINT)
    return LogListing.of([*states, *jsons], since)


def list_head(store: ObjectStore) -> LogListing:
    """Return the newest versions and checkpoints near them. One LIST when all of the log fits on a page.

    Else another for the states, two more where none is close, and one for the versions per doubling of their number
    beyond 1,000, or twice that.
    """
    first = list(islice(store.list(LOG_PREFIX), PAGE_KEYS))
    if len(first) < PAGE_KEYS:
        return LogListing.of(_parsed(first))
    shown, since = _tail(store)
    newest = _newest(shown)
    # Others' states may be newer than any version file, so they are listed to the end.
    states = store.list(STATES_PREFIX, state_key(newest - SPAN) if newest >= SPAN else None)
    found = list(_parsed(states))
    if _newest(found) <= newest - CLOSE:
        found += _checkpoints_near(store, newest, KeyKind.JSON_CHECKPOINT)[0]
    return LogListing.of([*shown, *found], since)


def newest_beyond(store: ObjectStore, version: int) -> int:
    """Return the newest version whose file is listed after that of `version`; `version` where none is. One LIST.

    On a local disk keys are probed instead, until 32 in a row are absent.
    """
    if _is_there(store, version_key(version)):
        return _probed_beyond(store, version)
    later = _parsed(store.list(VERSIONS_PREFIX, version_key(version)))
    return max((parsed.version or 0 for parsed in later if parsed.kind is KeyKind.VERSION), default=version)


def listed_states(store: ObjectStore) -> list[int]:
    """Return the versions that a listing shows a state of, in no order. One LIST per 1,000 keys of states."""
    shown = _parsed(store.list(STATES_PREFIX))
    return [parsed.version for parsed in shown if parsed.kind is KeyKind.STATE and parsed.version is not None]


def _checkpoints_near(store: ObjectStore, at: int, kind: KeyKind) -> tuple[list[ParsedKey], int]:
    """Return the checkpoints up to `at` of its 1,000 versions, or of the 1,000 before, and the first version seen."""
    since = at
    for since in range(at - at % SPAN, max(-1, at - 2 * SPAN), -SPAN):
        shown = _parsed(store.list(near_prefix(since, kind)))
        found = [parsed for parsed in shown if parsed.kind is kind and (parsed.version or 0) <= at]
        if found:
            return found, since
    return [], since


def _tail(store: ObjectStore) -> tuple[list[ParsedKey], int]:
    """Return the version files, and what is named like them, from some version on to the last; and that version.

    Found by galloping, then halving, with a page for each try: what it shows is the new lower end, and one that shows
    nothing the upper.
    """
    since, shown, beyond, step = 0, _page(store, None), None, PAGE_KEYS
    while len(shown) == PAGE_KEYS:
        last = max(shown, key=lambda parsed: parsed.key)
        low = last.version or 0
        while True:
            near = beyond is not None and beyond - low <= PAGE_KEYS
            tried = low if near else low + step if beyond is None else (low + beyond) // 2
            # A page may end between the parts of a checkpoint: what comes next is looked for behind its last key.
            page = _page(store, last.key if near else version_key(tried))
            if page or near:
                break
            beyond = tried
        if not page:
            break
        since, shown, step = tried + 1, page, step * 2
    return shown, since


def _page(store: ObjectStore, after: str | None) -> list[ParsedKey]:
    """Up to 1,000 of the version files after a key, and of what is named like them: all that there are if fewer."""
    return list(islice(_parsed(store.list(VERSIONS_PREFIX, after)), PAGE_KEYS))


def _newest(found: Iterable[ParsedKey]) -> int:
    return max((parsed.version for parsed in found if parsed.version is not None), default=-1)


def _parsed(infos: Iterable[ObjectInfo]) -> Iterator[ParsedKey]:
    for info in infos:
        parsed = parse(info.key)
        if parsed is not None and parsed.version is not None:
            yield parsed


def _is_there(store: ObjectStore, key: str) -> bool:
    """Whether a file on a local disk is this object. False for every other store. No request."""
    return store.local_path(key) is not None


def _probed_beyond(store: ObjectStore, version: int) -> int:
    newest = tried = version
    while tried - newest < MOST_ABSENT_KEYS:
        tried += 1
        if _is_there(store, version_key(tried)):
            newest = tried
    return newest


def _probed_state(store: ObjectStore, at: int) -> LogListing | None:
    """The listing of the newest state on a local disk that is close below `at`; None where none is."""
    if _is_there(store, version_key(at)):
        for version in range(at, max(at - CLOSE, 0), -1):
            if _is_there(store, state_key(version)):
                return LogListing((), (Checkpointed(version, CheckpointKind.AVRO_STATE),), since=version)
    return None
