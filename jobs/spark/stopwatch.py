"""How long something was going on, however much of it went on at a time."""

from __future__ import annotations

import threading
import time
from types import TracebackType


class Stopwatch:
    """Adds up the wall time in which at least one thread is in its block."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._since = 0.0
        self._seconds = 0.0

    @property
    def seconds(self) -> float:
        """The time so far, without that of blocks which have not ended."""
        return self._seconds

    def __enter__(self) -> None:
        """Start, unless it runs already."""
        with self._lock:
            if not self._inside:
                self._since = time.perf_counter()
            self._inside += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop when the last thread leaves."""
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._seconds += time.perf_counter() - self._since
