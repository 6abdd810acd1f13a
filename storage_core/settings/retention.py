"""How long windows of a table may be kept."""

from __future__ import annotations

from storage_core.errors import InvalidInput
from storage_core.settings.late_data import LONGEST_ACCEPTANCE_MS

LONGEST_RETENTION_MS = LONGEST_ACCEPTANCE_MS


def check_retention(retention_ms: int, window_seconds: int | None) -> None:
    """Raise `InvalidInput` for one that is too long, and for a table without windows."""
    if retention_ms > LONGEST_RETENTION_MS:
        raise InvalidInput(f"retention_ms is {retention_ms}; it must be at most {LONGEST_RETENTION_MS} (999999999h)")
    if window_seconds is None:
        raise InvalidInput(
            "retention is by whole windows, and this table has none; declare a time_column and a window, or leave "
            "retention out"
        )
