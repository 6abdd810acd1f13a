"""Time that tests own."""

from __future__ import annotations

START_MS = 1_700_000_000_000


class ManualClock:
    """A clock that moves when it is told to (`now`), slept on, and by `step_ms` per look; `slept_ms` are the sleeps.

    It stands still between looks by default. With a step no two looks see one time.
    """

    def __init__(self, now_ms: int = START_MS, *, step_ms: int = 0) -> None:
        """Stand at `now_ms`."""
        self.now = now_ms
        self.slept_ms: list[float] = []
        self._step_ms = step_ms

    def now_ms(self) -> int:
        """Move by the step and return where the clock stands."""
        self.now += self._step_ms
        return self.now

    def sleep_ms(self, duration_ms: float) -> None:
        """Move forward without waiting."""
        self.slept_ms.append(duration_ms)
        self.now += int(duration_ms)
