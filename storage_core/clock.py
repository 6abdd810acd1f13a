"""Time as a dependency. Clocks serve leases, retention, windows and timestamps; no commit decision depends on one."""

from __future__ import annotations

import time
from typing import Protocol

HOUR_MS = 3_600_000


class Clock(Protocol):
    """Milliseconds since the epoch, and sleeping; injected so that tests and simulations own time."""

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01T00:00:00Z. May step backwards; callers must not rely on order."""
        ...

    def sleep_ms(self, duration_ms: float) -> None:
        """Return after about `duration_ms` milliseconds."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch by the machine's clock."""
        return time.time_ns() // 1_000_000

    def sleep_ms(self, duration_ms: float) -> None:
        """Sleep in this thread."""
        time.sleep(duration_ms / 1000)
