"""Counting requests: budgets are stable where latencies are not (docs/architecture/object-store.md, "Request
budgets").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from storage_core.objectstore.contract import PAGE_KEYS, Blob, ObjectInfo, ObjectStore, PutMode, PutResult
from storage_core.process import OwnLock

RequestKind = Literal["get", "put", "list", "head", "delete"]


def add_requests(*counts: Mapping[str, int]) -> dict[str, int]:
    """Return the sum of several request counts, by kind."""
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


class RequestMeter:
    """Requests by kind and bytes both ways, counted from any number of threads."""

    def __init__(self) -> None:
        self._lock = OwnLock()
        self._requests: dict[str, int] = {"get": 0, "put": 0, "list": 0, "head": 0, "delete": 0}
        self._bytes_read = 0
        self._bytes_written = 0
        self._waves = 0
        self._under_way = 0

    @property
    def requests(self) -> dict[str, int]:
        """Requests so far: the five kinds get, put, list, head, delete, each present. A copy."""
        with self._lock:
            return dict(self._requests)

    @property
    def bytes_read(self) -> int:
        """Bytes of object content that GETs returned."""
        return self._bytes_read

    @property
    def bytes_written(self) -> int:
        """Bytes of object content that PUTs carried, whatever their outcome."""
        return self._bytes_written

    @property
    def waves(self) -> int:
        """How often a request began while none was under way. As often, at least, a reader had to wait."""
        return self._waves

    def begin(self) -> None:
        """Take note that a request begins, of which `end` will be told."""
        with self._lock:
            self._waves += not self._under_way
            self._under_way += 1

    def end(self) -> None:
        """Take note that a request that began has ended."""
        with self._lock:
            self._under_way -= 1

    def count(self, kind: RequestKind, number: int = 1, *, read: int = 0, written: int = 0) -> None:
        """Add so many requests and their bytes."""
        with self._lock:
            self._requests[kind] += number
            self._bytes_read += read
            self._bytes_written += written


@dataclass(slots=True)
class _Bytes:
    """What a request moves."""

    read: int = 0
    written: int = 0


class MeteredStore:
    """The wrapped store, unchanged but counted. Failed requests count as well: they cost the same.

    One LIST per 1,000 keys yielded, one DELETE per 1,000 keys. A file opened through `local_path` is no request.
    """

    def __init__(self, store: ObjectStore, meter: RequestMeter | None = None) -> None:
        self._store = store
        self.meter = meter or RequestMeter()
        self._meters: tuple[RequestMeter, ...] = (self.meter,)
        self._lock = OwnLock()

    @property
    def uri(self) -> str:
        """The URI of the wrapped store."""
        return self._store.uri

    @property
    def requests(self) -> dict[str, int]:
        """Requests so far, by kind."""
        return self.meter.requests

    @property
    def bytes_read(self) -> int:
        """Bytes of object content read so far."""
        return self.meter.bytes_read

    @property
    def bytes_written(self) -> int:
        """Bytes of object content written so far."""
        return self.meter.bytes_written

    def get(self, key: str) -> Blob:
        """Count one GET."""
        with self._request("get") as count:
            blob = self._store.get(key)
            count.read = len(blob.data)
            return blob

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Count one GET of the bytes in the range."""
        with self._request("get") as count:
            data = self._store.get_range(key, start, end)
            count.read = len(data)
            return data

    def head(self, key: str) -> ObjectInfo:
        """Count one HEAD."""
        with self._request("head"):
            return self._store.head(key)

    def put(self, key: str, data: bytes | memoryview, mode: PutMode) -> PutResult:
        """Count one PUT."""
        with self._request("put") as count:
            count.written = memoryview(data).nbytes
            return self._store.put(key, data, mode)

    def make_durable(self, key: str) -> None:
        """Count nothing."""
        self._store.make_durable(key)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Count one LIST per page of 1,000 keys, the first one at once."""
        with self._request("list"):
            found = self._store.list(prefix, start_after)
        return self._counted(found)

    def delete(self, keys: Sequence[str]) -> Mapping[str, str | None]:
        """Count one DELETE per 1,000 keys."""
        if not keys:
            return self._store.delete(keys)
        with self._request("delete", -(-len(keys) // PAGE_KEYS)):
            return self._store.delete(keys)

    def local_path(self, key: str) -> Path | None:
        """Count nothing."""
        return self._store.local_path(key)

    @contextmanager
    def counted_by(self, meter: RequestMeter) -> Iterator[None]:
        """Let another meter count as well, whatever asks meanwhile."""
        with self._lock:
            self._meters = (*self._meters, meter)
        try:
            yield
        finally:
            with self._lock:
                self._meters = tuple(each for each in self._meters if each is not meter)

    @contextmanager
    def _request(self, kind: RequestKind, number: int = 1) -> Iterator[_Bytes]:
        meters, found = self._meters, _Bytes()
        for meter in meters:
            meter.begin()
        try:
            yield found
        finally:
            for meter in meters:
                meter.end()
                meter.count(kind, number, read=found.read, written=found.written)

    def _counted(self, found: Iterator[ObjectInfo]) -> Iterator[ObjectInfo]:
        for number, info in enumerate(found):
            if number and number % PAGE_KEYS == 0:
                with self._request("list"):
                    pass
            yield info
