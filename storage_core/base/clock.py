"""Sources of time, identifiers and jitter. The caller passes these sources to the code that uses them.

Leases, retention, windows and timestamps use a clock. No commit decision depends on a clock. A simulation creates its
`Clock` and `Ids` from a seed, so each run gives the same result.
"""

from __future__ import annotations

import random
import time
import uuid
from typing import Protocol

HOUR_MS = 3_600_000


class Clock(Protocol):
    """A source of the current time, which can also pause a thread. Tests inject a clock that they control."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970-01-01T00:00:00Z. A later call may return an earlier time."""
        ...

    def sleep_ms(self, duration_ms: float) -> None:
        """Return after about `duration_ms` milliseconds."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Return milliseconds since the epoch, read from the machine's clock."""
        return time.time_ns() // 1_000_000

    def sleep_ms(self, duration_ms: float) -> None:
        """Sleep in this thread."""
        time.sleep(duration_ms / 1000)


class Ids(Protocol):
    """Fresh identifiers and random numbers."""

    def uuid(self) -> str:
        """Return a fresh version-4 UUID in its 36-character form."""
        ...

    def fraction(self) -> float:
        """Return a random number in [0, 1), for jitter."""
        ...


def random_pause_ms(ids: Ids, failures: int, *, first_ms: int, longest_ms: int) -> float:
    """Return a random pause in ms after `failures` consecutive failures.

    After the first failure, the pause is at most `first_ms`. This limit doubles with each further failure, up to
    `longest_ms`.
    """
    return ids.fraction() * float(min(first_ms * 2 ** (failures - 1), longest_ms))


class SystemIds:
    """Identifiers and random numbers from the operating system."""

    def uuid(self) -> str:
        """Return a fresh version-4 UUID."""
        return str(uuid.uuid4())

    def fraction(self) -> float:
        """Return a random number in [0, 1)."""
        return random.SystemRandom().random()
