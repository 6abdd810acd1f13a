"""What several threads of one search make once."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

_Value = TypeVar("_Value")


class Locks:
    """Locks by name."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._locks: dict[str, Lock] = {}

    def __call__(self, name: str) -> Lock:
        """Return the lock of this name."""
        with self._lock:
            return self._locks.setdefault(name, Lock())


class Once(Generic[_Value]):
    """Values by name, each made once, however many threads ask at the same time."""

    def __init__(self) -> None:
        self._making = Locks()
        self._values: dict[str, _Value] = {}

    def __call__(self, name: str, make: Callable[[], _Value]) -> _Value:
        """Return the value of this name, which `make` makes where there is none."""
        with self._making(name):
            if name not in self._values:
                self._values[name] = make()
            return self._values[name]
