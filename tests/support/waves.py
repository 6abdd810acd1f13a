"""Count the sequential round trips of a read. In sequential round trips, one request waits for another.

Clocks cannot measure the number of round trips. On a busy machine, or in a fast store, one of two concurrent requests
may end before the other begins. This module therefore tracks which thread waits for which other thread.

Each request has a round trip number. The thread of the request may have waited for earlier requests. The round trip
number of a request is one higher than the highest number of the requests for which its thread has waited. A thread
waits for its own requests. A worker thread also waits for the earlier requests of the thread that submitted the work.
If a thread takes a result, the thread also waits for all requests that this result needed. Concurrent requests of other
threads do not count.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from storage_core.store.contract import Blob, ObjectInfo, ObjectStore, PutMode, PutResult


class Waves:
    """The requests that were made, each with its round trip, counted from 1."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, str, str]] = []
        """The round trip number, kind and key of each request, in the order in which the requests started."""
        self.bytes = Counter[str]()
        """The bytes read, by key."""
        self._here = threading.local()
        self._ended: WeakKeyDictionary[Future[Any], list[int]] = WeakKeyDictionary()

    @property
    def number(self) -> int:
        """Return the number of round trips."""
        return max((wave for wave, _, _ in self.requests), default=0)

    @property
    def _wave(self) -> int:
        found: int = getattr(self._here, "wave", getattr(threading.current_thread(), "wave_at_start", 0))
        return found

    @_wave.setter
    def _wave(self, wave: int) -> None:
        self._here.wave = wave

    @contextmanager
    def request(self, kind: str, key: str) -> Iterator[None]:
        """Record a request from its start to its end."""
        wave = self._wave + 1
        self.requests.append((wave, kind, key))
        try:
            yield
        finally:
            self._wave = wave

    @contextmanager
    def followed(self) -> Iterator[Waves]:
        """Reset the counts. Then track which thread submits work to which thread, and which takes the result."""
        submit, result, start = ThreadPoolExecutor.submit, Future.result, threading.Thread.start

        def submitted(pool: ThreadPoolExecutor, work: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
            wave = [self._wave]

            def worked() -> Any:
                self._wave = wave[0]
                try:
                    return work(*args, **named)
                finally:
                    wave[0] = self._wave

            future = submit(pool, worked)
            self._ended[future] = wave
            return future

        def taken(future: Future[Any], timeout: float | None = None) -> Any:
            try:
                return result(future, timeout)
            finally:
                self._wave = max(self._wave, *self._ended.get(future, [0]))

        def started(thread: threading.Thread) -> None:
            vars(thread)["wave_at_start"] = self._wave
            start(thread)

        self.requests.clear()
        self.bytes.clear()
        self._wave = 0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ThreadPoolExecutor, "submit", submitted)
            patch.setattr(Future, "result", taken)
            patch.setattr(threading.Thread, "start", started)
            yield self


class WavesStore:
    """A wrapped store without local files that records every request in `waves`."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.waves = Waves()

    @property
    def uri(self) -> str:
        return self._store.uri

    def get(self, key: str) -> Blob:
        with self.waves.request("get", key):
            found = self._store.get(key)
        self.waves.bytes[key] += len(found.data)
        return found

    def get_range(self, key: str, start: int, end: int) -> bytes:
        with self.waves.request("get", key):
            found = self._store.get_range(key, start, end)
        self.waves.bytes[key] += len(found)
        return found

    def head(self, key: str) -> ObjectInfo:
        with self.waves.request("head", key):
            return self._store.head(key)

    def put(self, key: str, data: bytes | memoryview, mode: PutMode) -> PutResult:
        with self.waves.request("put", key):
            return self._store.put(key, data, mode)

    def make_durable(self, key: str) -> None:
        self._store.make_durable(key)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectInfo]:
        with self.waves.request("list", prefix):
            found = [*self._store.list(prefix, start_after)]
        return iter(found)

    def delete(self, keys: Sequence[str]) -> Mapping[str, str | None]:
        with self.waves.request("delete", ", ".join(keys)):
            return self._store.delete(keys)

    def local_path(self, _key: str) -> Path | None:
        return None
