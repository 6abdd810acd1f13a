"""Which rows are late: those whose event time is older than their arrival less the table's acceptance window.

Decided before the acknowledgement, wherever rows come in (decision 0051). A row exactly at the
bound is in time; a time in the future and no time at all are never late.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import InvalidInput
from storage_core.settings.late_data import LateData
from storage_core.settings.table import TableConfig

Arrival: TypeAlias = int | pa.Int64Array
"""When rows arrived, in milliseconds since the epoch: all at once, or each at its own time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LateMetrics:
    """How many late rows were accepted, quarantined and dropped."""

    accepted: int = 0
    quarantined: int = 0
    dropped: int = 0

    @property
    def not_written(self) -> int:
        """Rows that came in and are not in the table."""
        return self.quarantined + self.dropped

    def __add__(self, other: LateMetrics) -> LateMetrics:
        """Return the sum of both."""
        return LateMetrics(
            accepted=self.accepted + other.accepted,
            quarantined=self.quarantined + other.quarantined,
            dropped=self.dropped + other.dropped,
        )

    def as_mapping(self) -> dict[str, int]:
        """Return the metrics under the names that commit metrics and reports use."""
        return {
            "rows_late_accepted": self.accepted,
            "rows_late_quarantined": self.quarantined,
            "rows_late_dropped": self.dropped,
        }


@dataclass(frozen=True, slots=True)
class LateRule:
    """How one table judges its rows: by the times of `time_column`."""

    time_column: str
    late_data: LateData

    @staticmethod
    def of(config: TableConfig) -> LateRule | None:
        """Return the rule of a table, None for a table where no row is late."""
        if config.late_data is None or config.time_column is None:
            return None
        return LateRule(config.time_column, config.late_data)

    def is_late(self, rows: pa.Table, arrived_ms: Arrival) -> pa.BooleanArray:
        """Return per row whether it is late; one array without nulls, in order.

        Raises `InvalidInput` when the time column is no timestamp in microseconds, as those of tables are.
        """
        times = rows.column(self.time_column)
        if not pa.types.is_timestamp(times.type) or times.type.unit != "us":
            raise InvalidInput(f"{self.time_column!r}: lateness needs timestamps in microseconds, found {times.type}")
        # Without a zone a time is UTC, with one it is an instant: the ticks are comparable either way.
        ticks = times.cast(pa.int64())
        arrived = pa.scalar(arrived_ms, pa.int64()) if isinstance(arrived_ms, int) else arrived_ms
        bounds = pc.multiply_checked(pc.subtract_checked(arrived, self.late_data.acceptance_ms), 1000)
        found = pc.fill_null(pc.less(ticks, bounds), False)  # noqa: FBT003  # Arrow's own parameter
        return pa.array(np.asarray(found), pa.bool_())
