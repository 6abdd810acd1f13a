"""A hook that fails all requests from one point on, with an error that the code under test may handle."""

from __future__ import annotations

import threading
from collections.abc import Callable

from storage_core.base.errors import Unavailable
from storage_core.store.meter import RequestKind


class Interruption:
    """A `watch` hook that fails all requests from one point on, as an outage does.

    The request number `fail_at` (from 0) and all later requests raise `Unavailable`. `counts` selects the requests that
    are numbered, by default all. Without `fail_at`, requests are only counted.
    """

    def __init__(self, fail_at: int | None = None, counts: Callable[[RequestKind, str], bool] | None = None) -> None:
        self._fail_at = fail_at
        self._counts = counts
        self._lock = threading.Lock()  # without the lock, threads could count a request wrong
        self.requests = 0

    def __call__(self, kind: RequestKind, key: str) -> None:
        """Number the request, and raise `Unavailable` from request `fail_at` on."""
        if self._counts is not None and not self._counts(kind, key):
            return
        with self._lock:
            number = self.requests
            self.requests += 1
        if self._fail_at is not None and number >= self._fail_at:
            raise Unavailable(f"{kind} {key}: interrupted at request {number}", key=key)
