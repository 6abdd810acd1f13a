"""Somebody else acting at one moment of an operation: the way to try a race at each of its requests."""

from __future__ import annotations

from collections.abc import Callable

from storage_core.objectstore.meter import RequestKind


class Meanwhile:
    """A `watch` of a `FaultStore` that lets somebody act once, before request number `instant` (from 0).

    Manifests are not counted: they are read by other threads, while the reading thread holds what the act may need.
    """

    def __init__(self, instant: int, act: Callable[[], object]) -> None:
        """Wait for the request of that number."""
        self._left = instant
        self._act: Callable[[], object] | None = act

    def __call__(self, _kind: RequestKind, key: str) -> None:
        """Count the request, and act when its time has come."""
        if self._act is None or "/manifests/" in key:
            return
        self._left -= 1
        if self._left < 0:
            act, self._act = self._act, None
            act()

    @property
    def acted(self) -> bool:
        """Whether there were that many requests."""
        return self._act is None
