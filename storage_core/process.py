"""Which process this is: writers and leases are of the process that opened them, no copy by fork() (decision 0087)."""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass, field
from itertools import count
from typing import ClassVar

from storage_core.errors import CopiedProcess


class _Forks:
    """How many forks lie between the first process and this one: a process id alone may be given a second time."""

    # Mutable state at module level: the state of a process is of the process.
    numbers = count(1)
    seen = 0
    locks: ClassVar[weakref.WeakSet[OwnLock]] = weakref.WeakSet()

    @classmethod
    def note(cls) -> None:
        cls.seen = next(cls.numbers)
        for each in cls.locks:
            each.renew()


os.register_at_fork(after_in_child=_Forks.note)


class OwnLock:
    """A lock between the threads of one process: in a copy by fork(), which has none of them, nobody holds it."""

    def __init__(self) -> None:
        self.renew()
        _Forks.locks.add(self)

    def renew(self) -> None:
        """Release it, also for threads that are gone."""
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        """Wait for it, and hold it."""
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        """Release it."""
        self._lock.release()


def _identity() -> tuple[int, int]:
    return os.getpid(), _Forks.seen


@dataclass(frozen=True, slots=True)
class HomeProcess:
    """The process in which this was made. Looking whether one is at home takes no lock and no request."""

    identity: tuple[int, int] = field(default_factory=_identity)

    @property
    def is_here(self) -> bool:
        """Whether this process is the one, and not a copy of it."""
        return self.identity == _identity()

    def require(self, what: str, advice: str) -> None:
        """Return in the process that made this. Raises `CopiedProcess` in a copy: `what` is not there to be used."""
        if not self.is_here:
            raise CopiedProcess(
                f"{what} belongs to process {self.identity[0]}, and this is process {os.getpid()}, a copy of it by "
                f"fork(); nothing was done here, {advice}",
                expected=self.identity[0],
                found=os.getpid(),
            )
