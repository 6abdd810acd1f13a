"""A store whose requests fail as real ones do: lost replies, drops, late arrivals, outages, other writers in between.

Faults are queued per key and used up one per request; without any the wrapped store answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import assert_never

from storage_core.errors import TidemarkError, Unavailable
from storage_core.objectstore.contract import (
    Blob,
    Conflict,
    ObjectInfo,
    ObjectStore,
    OutcomeUnknown,
    PutMode,
    PutResult,
)


class PutFault(StrEnum):
    """What happens to one put."""

    APPLIED_THEN_CONFLICT = "applied, the client library retried, the retry met our own object"
    APPLIED_THEN_UNKNOWN = "applied, the reply was lost"
    APPLIED_THEN_UNAVAILABLE = "applied, the connection broke"
    DROPPED_THEN_UNKNOWN = "never applied, the reply was lost"
    DELAYED_THEN_UNKNOWN = "applied only when `deliver` is called"
    CONFLICT_WITH_NOTHING = "never applied, a transient conflict"


class FaultyStore:
    """The wrapped store with faults queued by `on_put`, `on_get` and `before_put`."""

    def __init__(self, store: ObjectStore) -> None:
        """Wrap `store`, without faults so far."""
        self._store = store
        self._put_faults: dict[str, list[PutFault]] = defaultdict(list)
        self._get_faults: dict[str, list[TidemarkError]] = defaultdict(list)
        self._interludes: dict[str, list[Callable[[], object]]] = defaultdict(list)
        self._delayed: list[Callable[[], PutResult]] = []
        self.deleted: list[str] = []

    def on_put(self, key: str, *faults: PutFault) -> None:
        """Let the next puts of `key` fail like this, in order."""
        self._put_faults[key].extend(faults)

    def on_get(self, key: str, *errors: TidemarkError) -> None:
        """Let the next gets of `key` raise these, in order."""
        self._get_faults[key].extend(errors)

    def before_put(self, key: str, act: Callable[[], object]) -> None:
        """Let somebody else act right before the next put of `key`."""
        self._interludes[key].append(act)

    def deliver(self) -> list[PutResult]:
        """Apply the delayed puts now, under the conditions they were sent with."""
        delayed, self._delayed = self._delayed, []
        return [put() for put in delayed]

    @property
    def uri(self) -> str:
        """The URI of the wrapped store."""
        return self._store.uri

    def get(self, key: str) -> Blob:
        """Return the object, or raise the next queued error."""
        if self._get_faults[key]:
            raise self._get_faults[key].pop(0)
        return self._store.get(key)

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return the bytes of the wrapped store."""
        return self._store.get_range(key, start, end)

    def head(self, key: str) -> ObjectInfo:
        """Return the figures of the wrapped store."""
        return self._store.head(key)

    def put(self, key: str, data: bytes | memoryview, mode: PutMode) -> PutResult:
        """Write the object, or do as the next queued fault says."""
        if self._interludes[key]:
            self._interludes[key].pop(0)()
        if not self._put_faults[key]:
            return self._store.put(key, data, mode)
        fault = self._put_faults[key].pop(0)
        match fault:
            case PutFault.APPLIED_THEN_CONFLICT:
                self._store.put(key, data, mode)
                return Conflict()
            case PutFault.APPLIED_THEN_UNKNOWN:
                self._store.put(key, data, mode)
                return OutcomeUnknown(fault)
            case PutFault.APPLIED_THEN_UNAVAILABLE:
                self._store.put(key, data, mode)
                raise Unavailable(f"{key}: {fault}")
            case PutFault.DROPPED_THEN_UNKNOWN:
                return OutcomeUnknown(fault)
            case PutFault.DELAYED_THEN_UNKNOWN:
                self._delayed.append(lambda: self._store.put(key, data, mode))
                return OutcomeUnknown(fault)
            case PutFault.CONFLICT_WITH_NOTHING:
                return Conflict()
            case unreachable:
                assert_never(unreachable)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield what the wrapped store yields."""
        return self._store.list(prefix, start_after)

    def delete(self, keys: Sequence[str]) -> Mapping[str, str | None]:
        """Delete, and remember in `deleted` that it happened."""
        self.deleted.extend(keys)
        return self._store.delete(keys)

    def local_path(self, key: str) -> Path | None:
        """Return the path of the wrapped store."""
        return self._store.local_path(key)
