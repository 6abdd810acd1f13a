"""What becomes of late rows, and its form in `metaData.configuration` (decision 0051)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

from storage_core.arguments import checked_fields
from storage_core.clock import HOUR_MS
from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.settings.json_text import json_text, json_value

LATE_DATA_KEY = "tidemark.lateData"
LONGEST_ACCEPTANCE_MS = 999_999_999 * HOUR_MS
"""The longest that a text says; no row is ever late by it. Microseconds since the epoch overflow at more than twice."""

LatePolicy = Literal["accept", "quarantine", "drop"]


@checked_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class LateData:
    """What becomes of rows that arrive later than `acceptance_ms` after their event time (decision 0051)."""

    policy: LatePolicy = "quarantine"
    acceptance_ms: int = HOUR_MS

    def __post_init__(self) -> None:
        """Refuse an unknown policy and a window that no time lies in."""
        if self.policy not in get_args(LatePolicy):
            raise InvalidInput(f"late_data policy {self.policy!r} is not one of {', '.join(get_args(LatePolicy))}")
        if self.acceptance_ms < 0:
            raise InvalidInput(f"acceptance_ms is {self.acceptance_ms}; it must be at least 0")
        if self.acceptance_ms > LONGEST_ACCEPTANCE_MS:
            raise InvalidInput(
                f"acceptance_ms is {self.acceptance_ms}; it must be at most {LONGEST_ACCEPTANCE_MS} (999999999h)"
            )

    def to_text(self) -> str:
        """Return the value of the entry `LATE_DATA_KEY`."""
        return json_text({"policy": self.policy, "acceptanceWindowMs": self.acceptance_ms})

    @staticmethod
    def from_text(text: str) -> LateData:
        """Return what `to_text` wrote. Raises `InvalidInput`."""
        value = json_value(LATE_DATA_KEY, text)
        window = value.get("acceptanceWindowMs") if isinstance(value, dict) else None
        if not isinstance(value, dict) or type(window) is not int:
            raise InvalidInput(
                f"table configuration {LATE_DATA_KEY!r}: expected policy and acceptanceWindowMs, found {quoted(text)}",
                key=LATE_DATA_KEY,
            )
        return LateData(policy=cast("LatePolicy", value.get("policy")), acceptance_ms=window)
