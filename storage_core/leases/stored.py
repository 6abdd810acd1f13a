"""Lease objects in the store: reading them, and writing them once where replies are lost
(docs/architecture/ingestion.md, "Leases").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never
from urllib.parse import unquote

from storage_core.clock import Clock
from storage_core.errors import CommitUnknown, Corrupt, NotFound, NotWritten, Unavailable
from storage_core.formats.keys import LOCKS_PREFIX
from storage_core.formats.lease import LeaseRecord, decode, encode
from storage_core.objectstore.contract import (
    Committed,
    Conflict,
    ObjectStore,
    OutcomeUnknown,
    unchanged,
)
from storage_core.objectstore.create import put_or_unknown

_ATTEMPTS = 4
_FIRST_PAUSE_MS = 50


@dataclass(frozen=True, slots=True)
class StoredLease:
    """A lease as the store has it. `record` is None when the object is no lease."""

    record: LeaseRecord | None
    key: str
    etag: str

    @property
    def resource(self) -> str:
        """What the lease is of, also where the object is none: its name says it."""
        name = self.key.removeprefix(LOCKS_PREFIX).removesuffix(".json")
        return self.record.resource if self.record else unquote(name)


class CasLost(Exception):  # noqa: N818 -- an answer to who swaps, never seen by callers of `lease`
    """Somebody else wrote the lease object: `found` is what they left."""

    def __init__(self, found: StoredLease | None) -> None:
        super().__init__()
        self.found = found


def stored_leases(store: ObjectStore) -> Iterator[StoredLease]:
    """Yield every lease object of the table, in key order. One LIST per 1,000 and one GET each."""
    for key in sorted(info.key for info in store.list(LOCKS_PREFIX)):
        found = read_lease(store, key)
        if found is not None:
            yield found


def read_lease(store: ObjectStore, key: str, *, strict: bool = False) -> StoredLease | None:
    """The lease at `key`. What is no lease has no record, or is `Corrupt` when `strict`. One GET."""
    try:
        blob = store.get(key)
    except NotFound:
        return None
    try:
        return StoredLease(decode(blob.data, key), key, blob.etag)
    except Corrupt:
        if strict:
            raise
        return StoredLease(None, key, blob.etag)


def swap_lease(store: ObjectStore, clock: Clock, wanted: LeaseRecord, before: StoredLease) -> StoredLease:
    """Write `wanted` in place of `before`, once, also when replies are lost; `CasLost` when somebody else was first.

    One PUT; after anything but `Committed` one GET, and the put again while `before` is still there: it can take effect
    only once. A write of the same acquisition whose reply was lost earlier counts as `before`.
    """
    reason = ""
    for attempt in range(_ATTEMPTS):
        if attempt:
            clock.sleep_ms(_FIRST_PAUSE_MS * 2 ** (attempt - 1))
        try:
            result = put_or_unknown(store, before.key, encode(wanted), unchanged(before.etag or None))
        except NotWritten as error:
            if not reason:
                raise
            result = OutcomeUnknown(f"{reason}; then {error}")
        match result:
            case Committed(etag):
                return StoredLease(wanted, before.key, etag)
            case Conflict():
                reason = "a conflict, and yet nobody wrote"
            case OutcomeUnknown(reason):
                pass
            case unreachable:
                assert_never(unreachable)
        try:
            found = read_lease(store, before.key)
            store.make_durable(before.key)  # before it is called ours: a read may show what goes with the power
        except Unavailable as error:
            reason = f"{reason}; then {error}"
            continue
        if found is not None and found.record == wanted:
            return found
        if (found.etag if found else "") == before.etag:
            continue
        if found is None or found.record is None or found.record.acquisition != wanted.acquisition:
            raise CasLost(found)
        before = found
    raise CommitUnknown(f"{before.key}: the store did not say whether the lease was written ({reason})", key=before.key)
