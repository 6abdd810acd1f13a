"""Rows that were ingested under windows of another duration than the table has now (decision 0136)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.rows.windows import window_starts
from storage_core.settings.table import TableConfig

Span = tuple[int, int]
"""A window that is in: its start and its duration in seconds."""


@dataclass(frozen=True, slots=True)
class Durations:
    """The duration of the windows that records without one are of, and that of the windows of now; None: none."""

    first: int | None = None
    current: int | None = None

    @staticmethod
    def of(config: TableConfig, current: int | None = None) -> Durations:
        """Return those of a table; `current` is what its windows are about to become, where that is known."""
        seconds = config.window_seconds
        return Durations((*config.former_windows, seconds)[0], current or seconds)

    @property
    def recorded(self) -> int | None:
        """What a record of a window of now has to say of its duration; None where it need not."""
        return None if self.current == self.first else self.current


NO_WINDOWS: Final = Durations()


def outside(rows: pa.Table, time_column: str, spans: Collection[Span]) -> pa.Table:
    """Return the rows that lie in none of the spans; rows without a time lie in none."""
    if not spans or not rows.num_rows:
        return rows
    by_duration: defaultdict[int, list[int]] = defaultdict(list)
    for start, seconds in spans:
        by_duration[seconds].append(start)
    inside = np.zeros(rows.num_rows, np.bool_)
    for seconds, starts in by_duration.items():
        found = pc.is_in(window_starts(rows.column(time_column), seconds), value_set=pa.array(starts, pa.int64()))
        inside |= found.to_numpy(zero_copy_only=False)
    return rows.filter(pa.array(~inside)) if inside.any() else rows
