"""An object store in the memory of one process, for tests, simulations and experiments."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import assert_never

from storage_core.base.clock import Clock, SystemClock
from storage_core.base.errors import Corrupt, NotFound
from storage_core.store.contract import (
    Blob,
    Committed,
    Conflict,
    IfAbsent,
    IfMatch,
    ObjectInfo,
    Overwrite,
    PutMode,
    PutResult,
    check_key,
    check_prefix,
    check_range,
)


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    etag: str
    last_modified_ms: int


class MemoryStore:
    """A dictionary as an object store. Safe for any number of threads. The given clock sets `last_modified_ms`."""

    def __init__(self, name: str, *, clock: Clock | None = None) -> None:
        self._name = name
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._objects: dict[str, _Object] = {}
        self._puts = 0

    @property
    def uri(self) -> str:
        """`memory://` and the name."""
        return f"memory://{self._name}"

    def get(self, key: str) -> Blob:
        """Return the whole object. Raises `NotFound`."""
        found = self._find(key)
        return Blob(found.data, found.etag)

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return bytes `start` to `end` (exclusive). Raises `NotFound`, or `Corrupt` if the object is shorter."""
        check_range(key, start, end)
        data = self._find(key).data
        if end > len(data) and end > start:
            raise Corrupt(f"{key}: expected bytes {start} to {end}, the object ends at {len(data)}", key=key)
        return data[start:end]

    def head(self, key: str) -> ObjectInfo:
        """Return the metadata of the object. Raises `NotFound`."""
        found = _info(key, self._find(key))
        return replace(found, age_ms=self._clock.now_ms() - found.last_modified_ms)

    def put(self, key: str, data: bytes | memoryview, mode: PutMode) -> PutResult:
        """Write one object. The result is never `OutcomeUnknown`."""
        check_key(key)
        content = bytes(data)
        with self._lock:
            current = self._objects.get(key)
            if not _holds(mode, current):
                return Conflict()
            # The ETag is the number of the put, not a hash. So if equal bytes are written again, the earlier ETag no
            # longer matches.
            self._puts += 1
            etag = f"m{self._puts}"
            self._objects[key] = _Object(content, etag, self._clock.now_ms())
            return Committed(etag)

    def make_durable(self, key: str) -> None:
        """Do nothing: an object lives as long as the store."""
        check_key(key)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield the objects whose key starts with `prefix`, in key order. Changes after the call have no effect."""
        check_prefix(prefix)
        with self._lock:
            found = [_info(key, each) for key, each in self._objects.items() if key.startswith(prefix)]
        return iter(sorted((info for info in found if info.key > (start_after or "")), key=lambda info: info.key))

    def browse(self) -> Iterator[ObjectInfo]:
        """Yield all objects. The store contains no other entries."""
        return self.list("")

    def delete(self, keys: Sequence[str]) -> Mapping[str, str | None]:
        """Delete objects. An invalid key raises `InvalidInput` before anything is deleted."""
        for key in keys:
            check_key(key)
        with self._lock:
            for key in keys:
                self._objects.pop(key, None)
        return dict.fromkeys(keys)

    def local_path(self, key: str) -> Path | None:
        """Return None, because the store has no files."""
        check_key(key)
        return None

    def _find(self, key: str) -> _Object:
        check_key(key)
        with self._lock:
            found = self._objects.get(key)
        if found is None:
            raise NotFound(f"{key}: no such object", key=key)
        return found


def _holds(mode: PutMode, current: _Object | None) -> bool:
    match mode:
        case IfAbsent():
            return current is None
        case IfMatch(etag):
            return current is not None and current.etag == etag
        case Overwrite():
            return True
        case _:
            assert_never(mode)


def _info(key: str, each: _Object) -> ObjectInfo:
    return ObjectInfo(key, len(each.data), each.etag, each.last_modified_ms)
