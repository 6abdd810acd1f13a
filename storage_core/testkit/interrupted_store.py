"""A store that fails at a chosen request: what a crash or an outage at that moment leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from storage_core.errors import Unavailable
from storage_core.objectstore.contract import Blob, ObjectInfo, ObjectStore, PutMode, PutResult


class InterruptedStore:
    """The wrapped store, whose request number `fail_at` (from 0) and all later ones raise `Unavailable`.

    `counts(kind, key)` says which requests are numbered; kinds are get, put, list, head, delete. A delete of several
    keys is that many requests, so it can stop in the middle.
    """

    def __init__(self, store: ObjectStore, fail_at: int, counts: Callable[[str, str], bool] | None = None) -> None:
        self._store = store
        self._fail_at = fail_at
        self._counts = counts
        self.requests = 0

    @property
    def uri(self) -> str:
        """The URI of the wrapped store."""
        return self._store.uri

    @property
    def failed(self) -> bool:
        """Whether a request has failed yet."""
        return self.requests > self._fail_at

    def get(self, key: str) -> Blob:
        """One GET."""
        self._step("get", key)
        return self._store.get(key)

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """One GET."""
        self._step("get", key)
        return self._store.get_range(key, start, end)

    def head(self, key: str) -> ObjectInfo:
        """One HEAD."""
        self._step("head", key)
        return self._store.head(key)

    def put(self, key: str, data: bytes | memoryview, mode: PutMode) -> PutResult:
        """One PUT; the failing one writes nothing."""
        self._step("put", key)
        return self._store.put(key, data, mode)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """One LIST."""
        self._step("list", prefix)
        return self._store.list(prefix, start_after)

    def delete(self, keys: Sequence[str]) -> Mapping[str, str | None]:
        """One DELETE per key."""
        results: dict[str, str | None] = {}
        for key in keys:
            self._step("delete", key)
            results |= self._store.delete([key])
        return results

    def local_path(self, key: str) -> Path | None:
        """No request."""
        return self._store.local_path(key)

    def _step(self, kind: str, key: str) -> None:
        if self._counts is not None and not self._counts(kind, key):
            return
        self.requests += 1
        if self.failed:
            raise Unavailable(f"{kind} {key}: interrupted at request {self.requests - 1}", key=key)
