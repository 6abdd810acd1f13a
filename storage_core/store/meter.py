"""Request counts of a store, and concurrent reads.

`RequestMeter` and `MeteredStore` count requests. Tests check budgets of requests, because request counts are stable and
latencies are not (docs/architecture/object-store.md, "Request budgets").

The functions `prefetch` and `all_of` run several reads concurrently. The reason is that the latency of a request is
usually larger than the transfer time. Choose between two functions:

- `prefetch` yields results one by one and bounds the memory.
- `all_of` returns all results at once, so a slow read delays no other read. If some reads take ten times as long as the
  other reads, `all_of` finishes several times faster than `prefetch`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Literal, TypeVar

from storage_core.base.process import OwnLock
from storage_core.store.contract import PAGE_KEYS, Blob, ObjectInfo, ObjectStore, PutMode, PutResult

RequestKind = Literal["get", "put", "list", "head", "delete"]


def add_requests(*counts: Mapping[str, int]) -> dict[str, int]:
    """Return the sum of several request counts, by kind."""
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


class RequestMeter:
    """Counts of requests by kind, and of bytes read and written. Safe for any number of threads."""

    def __init__(self) -> None:
        self._lock = OwnLock()
        self._requests: dict[str, int] = {"get": 0, "put": 0, "list": 0, "head": 0, "delete": 0}
        self._bytes_read = 0
        self._bytes_written = 0
        self._waves = 0
        self._under_way = 0

    @property
    def requests(self) -> dict[str, int]:
        """A copy of the counts so far, by kind. All five kinds are present: get, put, list, head, delete."""
        with self._lock:
            return dict(self._requests)

    @property
    def bytes_read(self) -> int:
        """Bytes of object content that GETs returned."""
        return self._bytes_read

    @property
    def bytes_written(self) -> int:
        """Bytes of object content in PUTs, including PUTs that failed."""
        return self._bytes_written

    @property
    def round_trips(self) -> int:
        """The number of round trips. A round trip is a request that began while no other request was active.

        The caller has waited for the store at least this many times.
        """
        return self._waves

    def begin(self) -> None:
        """Record that a request begins. The caller calls `end` afterwards."""
        with self._lock:
            self._waves += not self._under_way
            self._under_way += 1

    def end(self) -> None:
        """Record that a request has ended."""
        with self._lock:
            self._under_way -= 1

    def count(self, kind: RequestKind, number: int = 1, *, read: int = 0, written: int = 0) -> None:
        """Add `number` requests and their bytes."""
        with self._lock:
            self._requests[kind] += number
            self._bytes_read += read
            self._bytes_written += written


@dataclass(slots=True)
class _Bytes:
    """The bytes that one request reads and writes."""

    read: int = 0
    written: int = 0


class MeteredStore:
    """A wrapper that counts the requests of a store. Failed requests count too, because they cost the same.

    A call of `list` counts one LIST per 1,000 yielded keys. A call of `delete` counts one DELETE per 1,000 keys.
    The wrapper does not count the opening of a file through `local_path`.
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
        """Count one GET and the bytes of the range."""
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
        """Count one LIST per page of 1,000 keys. The wrapper counts the first LIST at the call."""
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
        """Within the block, also count the requests of all threads in `meter`."""
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


Key = TypeVar("Key")
Found = TypeVar("Found")


def prefetch(
    read: Callable[[Key], Found],
    keys: Iterable[Key],
    at_once: int,
    *,
    weight: Callable[[Key], int] = lambda _: 0,
    most: int = 0,
) -> Generator[Found]:
    """Yield the result of `read` for each key, in the order of the keys.

    The function iterates over the keys in the caller's thread, and only when it needs the next key. If there is only
    one key, the function also calls `read` in the caller's thread. `at_once` and `most` limit the memory. `at_once` and
    `most` also limit the number of useless reads if the caller stops early or a read raises an error.

    If a read fails, the function raises the error in place of the result. No further read starts, and the function
    waits for the active reads.

    Args:
        read: Must be safe for threads.
        at_once: The maximum number of started reads with a result that the caller has not taken.
        weight: The weight of a key, for example its bytes.
        most: The maximum total weight of the started keys, unless only one key is started.
    """
    waiting = iter(keys)
    first = list(islice(waiting, 2))
    if len(first) < 2 or at_once < 2:
        yield from map(read, chain(first, waiting))
        return
    begun: deque[tuple[Future[Found], int]] = deque()
    held = 0
    with ThreadPoolExecutor(at_once, thread_name_prefix="tidemark-prefetch") as pool:
        try:
            for key in chain(first, waiting):
                own = weight(key)
                while begun and (len(begun) == at_once or held + own > most):
                    result, freed = begun.popleft()
                    held -= freed
                    yield result.result()
                begun.append((pool.submit(read, key), own))
                held += own
            while begun:
                yield begun.popleft()[0].result()
        finally:
            for result, _ in begun:
                result.cancel()


def all_of(read: Callable[[Key], Found], keys: Sequence[Key], at_once: int) -> list[Found]:
    """Return the results of `read` for all keys, in the order of the keys. Up to `at_once` reads run concurrently.

    If several reads raise an error, the function raises the error of the first failed key in the order of `keys`. Reads
    that have not started are skipped, and the function waits for the active reads. If there are enough threads for all
    keys, the first key is read in the caller's thread.

    Args:
        read: Must be safe for threads.
    """
    if len(keys) < 2 or at_once < 2:
        return list(map(read, keys))
    if len(keys) > at_once:
        with ThreadPoolExecutor(at_once, thread_name_prefix="tidemark-prefetch") as pool:
            return list(pool.map(read, keys))
    with ThreadPoolExecutor(len(keys) - 1, thread_name_prefix="tidemark-prefetch") as pool:
        others = pool.map(read, keys[1:])
        return [read(keys[0]), *others]


@contextmanager
def under_way(read: Callable[[], Found], *, near: bool = False) -> Iterator[Callable[[], Found]]:
    """Run `read` concurrently with the block.

    The context manager yields a function that waits until `read` ends. This function then returns the result of `read`,
    or raises its error.

    Args:
        near: True if the read does not wait for a store. `read` then runs only when the block calls the function.
    """
    if near:
        yield read
        return
    with ThreadPoolExecutor(1, thread_name_prefix="tidemark-prefetch") as pool:
        yield pool.submit(read).result


def both(first: Callable[[], Key], second: Callable[[], Found]) -> tuple[Key, Found]:
    """Run both functions concurrently and return both results. If both functions fail, raise the error of `first`."""
    with ThreadPoolExecutor(1, thread_name_prefix="tidemark-prefetch") as pool:
        other = pool.submit(second)
        return first(), other.result()
