"""How many requests a read makes one after the other, because one waits for another.

Clocks cannot tell: of two requests side by side the first may end before the second begins, on a busy machine or in a
store that answers at once. So it is followed who waits for whom. A request is one wave behind the deepest one that was
over, as far as its thread could know, when it began: in its thread, in the thread that gave it its work, and in the
work whose results these took. What other threads did meanwhile counts for nothing.
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

from storage_core.objectstore.contract import Blob, ObjectInfo, ObjectStore, PutMode, PutResult


class Waves:
    """The requests that were made, each with the wave it was in, from 1 on."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, str, str]] = []
        """Wave, kind and key, as they began."""
        self.bytes = Counter[str]()
        """Those that were got, by key."""
        self._here = threading.local()
        self._ended: WeakKeyDictionary[Future[Any], list[int]] = WeakKeyDictionary()

    @property
    def number(self) -> int:
        """How many waves there were."""
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
        """A request, from its beginning to its end."""
        wave = self._wave + 1
        self.requests.append((wave, kind, key))
        try:
            yield
        finally:
            self._wave = wave

    @contextmanager
    def followed(self) -> Iterator[Waves]:
        """Begin anew, and follow which thread gives work to which, and takes its results."""
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
    """The wrapped store; `waves` takes note of every request. It has no local files."""

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
