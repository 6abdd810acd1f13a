"""A store that a raw log may lose: it gets every chunk as well as it can, and holds nobody up.

A thread of its own sends what is offered, in order. What waits is bounded in bytes; beyond that a chunk is left out of
this store and counted. The union of all stores heals what one of them lacks (`raw_log.history`).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from storage_core.clock import Clock
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.create import create_numbered
from storage_core.objectstore.probe import require_capable

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReport:
    """What became of the chunks of one writer in one store, counted since the writer was opened.

    `failed` are chunks that an optional store refused, did not answer for, or was too slow for; `pending` are on their
    way to it. A mandatory store has neither: what it does not keep ends the writer.
    """

    uri: str
    mandatory: bool
    acknowledged: int
    failed: int = 0
    pending: int = 0
    last_error: str | None = None


class OptionalStore:
    """Sends chunks in the background. `offer` never waits for the store and never raises for it."""

    def __init__(self, store: ObjectStore, *, clock: Clock, backlog_bytes: int, probe_key: Callable[[], str]) -> None:
        self._store = store
        self._clock = clock
        self._backlog_bytes = backlog_bytes
        self._probe_key = probe_key
        self._turn = threading.Condition()
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._waiting_bytes = 0
        self._thread: threading.Thread | None = None
        self._closed = False
        self._acknowledged = self._failed = 0
        self._last_error: str | None = None

    def offer(self, key: str, data: bytes) -> None:
        """Take the chunk for sending, or leave it out when too much waits already. No request in this thread."""
        with self._turn:
            if self._waiting and self._waiting_bytes + len(data) > self._backlog_bytes:
                self._note_failure(f"{key}: {self._waiting_bytes} bytes wait for this store already")
                return
            self._waiting.append((key, data))
            self._waiting_bytes += len(data)
            if self._thread is None:
                # A daemon: a store that hangs must not keep the process from ending.
                self._thread = threading.Thread(
                    target=self._send_all, name=f"raw log to {self._store.uri}", daemon=True
                )
                self._thread.start()
            self._turn.notify_all()

    def drain(self, wait_ms: int) -> bool:
        """Wait until nothing is on its way any more, at most `wait_ms` of real time; return whether that is so."""
        with self._turn:
            return self._turn.wait_for(lambda: not self._waiting, wait_ms / 1000)

    def close(self, wait_ms: int) -> None:
        """Send what waits, at most for `wait_ms`; what is left then is left out of this store."""
        self.drain(wait_ms)
        with self._turn:
            self._closed = True
            self._turn.notify_all()

    def report(self) -> StoreReport:
        """Return the metrics of this store so far."""
        with self._turn:
            return StoreReport(
                uri=self._store.uri,
                mandatory=False,
                acknowledged=self._acknowledged,
                failed=self._failed,
                pending=len(self._waiting),
                last_error=self._last_error,
            )

    def _send_all(self) -> None:
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                key, data = self._waiting[0]  # stays until it is settled, so that `drain` waits for it
            error = self._attempt(key, data)
            with self._turn:
                self._waiting.popleft()
                self._waiting_bytes -= len(data)
                if error is None:
                    self._acknowledged += 1
                    self._last_error = None
                else:
                    self._note_failure(error)
                self._turn.notify_all()

    def _attempt(self, key: str, data: bytes) -> str | None:
        try:
            require_capable(self._store, self._probe_key)
            kept = create_numbered(self._store, key, data, clock=self._clock)
        except BaseException as error:  # noqa: BLE001  # whatever it is, the other stores and the next chunk go on
            return f"{type(error).__name__}: {error}"
        return None if kept else f"{key}: holds another chunk: the writer id is in use"

    def _note_failure(self, error: str) -> None:
        if self._last_error is None:
            # Once per outage: the next line comes after a success.
            _logger.warning("raw log: the optional store %s misses a chunk: %s", self._store.uri, error)
        self._failed += 1
        self._last_error = error
