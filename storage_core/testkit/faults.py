"""A store whose answers get lost on request, for tests of what happens then (design page 10, lessons 01 to 05)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import assert_never

from storage_core.errors import Unavailable
from storage_core.objectstore.contract import (
    Blob,
    IfAbsent,
    ObjectInfo,
    ObjectStore,
    OutcomeUnknown,
    PutMode,
    PutResult,
)


class Fault(StrEnum):
    """What happens to one PUT."""

    REPLY_LOST = "the put takes effect, the reply is lost"
    REPLY_LOST_THEN_CONFLICT = "the put takes effect, the reply is lost, and a retry below us answers with a conflict"
    REQUEST_LOST = "the put has no effect, and nobody says so"
    ARRIVES_LATE = "as if the request were lost; `deliver` makes it take effect"
    REFUSED = "the store is not reachable, the put has no effect"


class FaultyStore:
    """The wrapped store; `schedule` decides what happens to the next PUTs of keys that contain a text."""

    def __init__(self, store: ObjectStore) -> None:
        """Wrap `store`, with no fault scheduled."""
        self._store = store
        self._scheduled: list[tuple[str, Fault]] = []
        self._late: list[tuple[str, bytes, PutMode]] = []

    def schedule(self, fault: Fault, *, key: str, times: int = 1) -> None:
        """Let `fault` happen to the next `times` PUTs of keys that contain `key`."""
        self._scheduled += [(key, fault)] * times

    def deliver(self) -> list[PutResult]:
        """Make the late PUTs take effect now, as far as their preconditions hold, and return what became of them."""
        late, self._late = self._late, []
        return [self._store.put(*each) for each in late]

    @property
    def uri(self) -> str:
        """The URI of the wrapped store."""
        return self._store.uri

    def put(self, key: str, data: bytes | memoryview, mode: PutMode) -> PutResult:
        """Write one object, unless a fault is scheduled for it."""
        for index, (part, fault) in enumerate(self._scheduled):
            if part in key:
                del self._scheduled[index]
                return self._fail(fault, key, bytes(data), mode)
        return self._store.put(key, data, mode)

    def _fail(self, fault: Fault, key: str, data: bytes, mode: PutMode) -> PutResult:
        match fault:
            case Fault.REPLY_LOST:
                self._store.put(key, data, mode)
                return OutcomeUnknown("the reply was lost")
            case Fault.REPLY_LOST_THEN_CONFLICT:
                self._store.put(key, data, mode)
                return self._store.put(key, data, IfAbsent())
            case Fault.REQUEST_LOST:
                return OutcomeUnknown("the reply was lost")
            case Fault.ARRIVES_LATE:
                self._late.append((key, data, mode))
                return OutcomeUnknown("the reply was lost")
            case Fault.REFUSED:
                raise Unavailable(f"{key}: the store is not reachable", key=key)
            case _:
                assert_never(fault)

    def get(self, key: str) -> Blob:
        """Return the whole object."""
        return self._store.get(key)

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return some bytes of an object."""
        return self._store.get_range(key, start, end)

    def head(self, key: str) -> ObjectInfo:
        """Return the object's figures."""
        return self._store.head(key)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield the objects whose key starts with `prefix`."""
        return self._store.list(prefix, start_after)

    def delete(self, keys: Sequence[str]) -> Mapping[str, str | None]:
        """Delete objects."""
        return self._store.delete(keys)

    def local_path(self, key: str) -> Path | None:
        """Return the path of the object's file, where there is one."""
        return self._store.local_path(key)
