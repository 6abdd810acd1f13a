"""A clock that tests control."""

from __future__ import annotations

START_MS = 1_700_000_000_000


class ManualClock:
    """A clock that moves when a test sets `now`, and when code sleeps.

    Each reading of the time also moves it by `step_ms`.

    By default, all readings return the same time. If `step_ms` is greater than 0, all readings return different times.
    `slept_ms` contains the durations of the sleeps.
    """

    def __init__(self, now_ms: int = START_MS, *, step_ms: int = 0) -> None:
        """Start at `now_ms`."""
        self.now = now_ms
        self.slept_ms: list[float] = []
        self._step_ms = step_ms

    def now_ms(self) -> int:
        """Advance by the step and return the time."""
        self.now += self._step_ms
        return self.now

    def sleep_ms(self, duration_ms: float) -> None:
        """Advance the time without waiting."""
        self.slept_ms.append(duration_ms)
        self.now += int(duration_ms)
