"""Asking a store once whether it keeps the contract, before a table is trusted to it.

Some servers that speak S3's protocol take a conditional write for a plain one. On such a store two writers would both
commit a version, and nobody would notice: so it is refused, with the name of what is missing. Some fronts drop the
user metadata of objects: there a put whose reply was lost would take its own object for somebody else's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from storage_core.errors import NotFound, TidemarkError, Unavailable, Unsupported
from storage_core.objectstore.contract import Committed, IfAbsent, IfMatch, ObjectStore, OutcomeUnknown, PutMode

_NEVER_AN_ETAG = '"tidemark-probe"'

# Mutable state at module level, for "once per process and store" is what the probe promises and what it costs.
_PROVEN: set[str] = set()
_PROVEN_LOCK = threading.Lock()


class Capability(StrEnum):
    """What a store must do, by the name under which it is reported missing."""

    CREATE_ONLY = "create_only"
    SWAP_FRESH = "swap_fresh"
    SWAP_STALE = "swap_stale"
    METADATA = "metadata"
    LIST = "list"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Trial:
    """One capability, whether the store has it, and what it was seen to do."""

    capability: Capability
    ok: bool
    found: str


@dataclass(frozen=True, slots=True)
class Probe:
    """What probing a store found: every capability once."""

    uri: str
    trials: tuple[Trial, ...]

    @property
    def missing(self) -> tuple[Trial, ...]:
        """The capabilities that the store lacks."""
        return tuple(each for each in self.trials if not each.ok)

    def require(self) -> None:
        """Return when nothing is missing. Raises `Unsupported` naming what is."""
        if self.missing:
            what = "; ".join(f"{each.capability}: {each.found}" for each in self.missing)
            raise Unsupported(
                f"{self.uri}: this store cannot hold a table, for it lacks {what}; use one with conditional writes "
                "and user metadata",
                uri=self.uri,
                missing=[str(each.capability) for each in self.missing],
            )


def probe(store: ObjectStore, key: str) -> Probe:
    """Try every capability on a fresh key, which is gone afterwards. Four PUTs, one LIST, two DELETEs, on S3 one HEAD.

    Raises `Unavailable` when the store cannot be reached, denies access or does not say what it did, and `Unsupported`
    when it says that the bucket is elsewhere: then nothing is proven either way.
    """
    try:
        trials = (*_puts(store, key), _metadata(store, key), _listing(store, key), _deletion(store, key))
    except TidemarkError:
        with suppress(TidemarkError):  # what went wrong matters more; what is left over the collector takes
            store.delete([key])
        raise
    return Probe(store.uri, trials)


def require_capable(store: ObjectStore, new_key: Callable[[], str]) -> None:
    """Return when the store has every capability, probing it once per process and URI under a key of `new_key`.

    Local and memory stores are proven by the conformance suite: no request. Raises as `probe` does, and `Unsupported`.
    """
    if not _is_remote(store):
        return
    with _PROVEN_LOCK:
        if store.uri in _PROVEN:
            return
    probe(store, new_key()).require()
    with _PROVEN_LOCK:
        _PROVEN.add(store.uri)


def _is_remote(store: ObjectStore) -> bool:
    return store.uri.startswith("s3://")


def _puts(store: ObjectStore, key: str) -> tuple[Trial, ...]:
    first = _put(store, key, 1, IfAbsent())
    second = _put(store, key, 2, IfAbsent())
    if first is None:
        created = Trial(Capability.CREATE_ONLY, ok=False, found="the first write of a fresh key was refused")
    else:
        created = _refused(Capability.CREATE_ONLY, second, "a second create-only write")
    current = second or first or _NEVER_AN_ETAG
    fresh = _put(store, key, 3, IfMatch(current))
    found = "a write with the object's own ETag was " + ("refused" if fresh is None else "accepted")
    swapped = Trial(Capability.SWAP_FRESH, ok=fresh is not None, found=found)
    stale = _put(store, key, 4, IfMatch(current if fresh else _NEVER_AN_ETAG))
    return created, swapped, _refused(Capability.SWAP_STALE, stale, "a write with an outdated ETag")


def _put(store: ObjectStore, key: str, step: int, mode: PutMode) -> str | None:
    """The new ETag, or None when the put was refused. Every body differs: an ETag may be a hash of it."""
    try:
        result = store.put(key, f'{{"probe":"{key}","step":{step}}}'.encode(), mode)
    except Unsupported:
        return None
    if isinstance(result, OutcomeUnknown):
        raise Unavailable(f"{key}: probing {store.uri} came to no result ({result.reason}); try again later", key=key)
    return result.etag if isinstance(result, Committed) else None


def _refused(capability: Capability, etag: str | None, what: str) -> Trial:
    return Trial(capability, ok=etag is None, found=f"{what} was {'refused' if etag is None else 'accepted'}")


def _metadata(store: ObjectStore, key: str) -> Trial:
    if not _is_remote(store):
        return Trial(Capability.METADATA, ok=True, found="none is needed: no reply can be lost")
    try:
        kept = store.head(key).write_id is not None
    except NotFound:
        return Trial(Capability.METADATA, ok=False, found="no object to look at")
    found = f"the user metadata of a write {'came back' if kept else 'did not come back'}"
    return Trial(Capability.METADATA, ok=kept, found=found)


def _listing(store: ObjectStore, key: str) -> Trial:
    seen = any(info.key == key for info in store.list(key))
    return Trial(Capability.LIST, ok=seen, found=f"a key just written was {'listed' if seen else 'not listed'}")


def _deletion(store: ObjectStore, key: str) -> Trial:
    reason = store.delete([key])[key] or store.delete([key])[key]
    found = "an object, then its absence, was deleted" if reason is None else f"a delete failed: {reason}"
    return Trial(Capability.DELETE, ok=reason is None, found=found)
