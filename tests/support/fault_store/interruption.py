"""A watch that ends everything at one moment with an error that the code under test may handle."""

from __future__ import annotations

import threading
from collections.abc import Callable

from storage_core.errors import Unavailable
from storage_core.objectstore.meter import RequestKind


class Interruption:
    """A `watch` that ends everything at one moment, as an outage does.

    The request number `fail_at` (from 0) and all later ones raise `Unavailable`. `counts` says which requests are
    numbered, by default all. Without `fail_at` they are only counted.
    """

    def __init__(self, fail_at: int | None = None, counts: Callable[[RequestKind, str], bool] | None = None) -> None:
        self._fail_at = fail_at
        self._counts = counts
        self._lock = threading.Lock()  # manifests are read in parallel, and a lost count would move the moment
        self.requests = 0

    def __call__(self, kind: RequestKind, key: str) -> None:
        """Number the request, and fail it when its time has come."""
        if self._counts is not None and not self._counts(kind, key):
            return
        with self._lock:
            number = self.requests
            self.requests += 1
        if self._fail_at is not None and number >= self._fail_at:
            raise Unavailable(f"{kind} {key}: interrupted at request {number}", key=key)
