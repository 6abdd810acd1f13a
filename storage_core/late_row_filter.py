"""Late rows on their way in: accepted, quarantined or dropped, as the table's rule says (decision 0051)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.formats.quarantine_entry import QuarantinedRows
from storage_core.objectstore.contract import ObjectStore
from storage_core.quarantine import keep
from storage_core.rows.fold import OPERATION, Operation
from storage_core.rows.late import Arrival, LateMetrics, LateRule
from storage_core.rows.windows import split_by_window

_logger = logging.getLogger(__name__)

LATE = "late"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where rows come from and who brings them; see `QuarantinedRows`."""

    source: str
    by: str
    size: int | None = None


def late_records(rule: LateRule, records: pa.Table, arrived_ms: Arrival) -> pa.BooleanArray:
    """Return per record (`rows.fold.record_schema`) whether it is late; a delete never is."""
    late = rule.is_late(records, arrived_ms)
    deletes = np.asarray(pc.equal(records.column(OPERATION), int(Operation.DELETE)))
    return pa.array(np.asarray(late) & ~deletes)


def in_time(rule: LateRule | None, rows: pa.Table, arrived_ms: Arrival, *, are_records: bool) -> pa.Table:
    """Return what a `LateRowFilter` of this rule admits of rows, or of records, and keep nothing of the others."""
    if rule is None or rule.late_data.policy == "accept" or not rows.num_rows:
        return rows
    late = late_records(rule, rows, arrived_ms) if are_records else rule.is_late(rows, arrived_ms)
    return rows.filter(pc.invert(late))


class LateRowFilter:
    """What every row of one way in passes before it is acknowledged: late ones are accepted, quarantined or dropped.

    `metrics` counts the late rows so far, `keys` names the entries kept. With `window_seconds` each entry holds rows of
    one window only. Not safe for several threads at once: callers hold a lock of their own.
    """

    def __init__(
        self, store: ObjectStore, rule: LateRule | None, origin: Origin, *, window_seconds: int | None = None
    ) -> None:
        self._store = store
        self._rule = rule
        self._origin = origin
        self._window_seconds = window_seconds
        self.metrics = LateMetrics()
        self.keys: list[str] = []

    def admit(self, rows: pa.Table, arrived_ms: Arrival) -> pa.Table:
        """Return the rows to write, in order; rows to quarantine are durable there when this returns.

        No request when no row is late, else one PUT per entry. Raises what `keep` raises: nothing may be acknowledged
        then, and coming again may keep the same late rows once more.
        """
        if self._rule is None or rows.num_rows == 0:
            return rows
        return self._judged(rows, self._rule.is_late(rows, arrived_ms), arrived_ms)

    def admit_records(self, records: pa.Table, arrived_ms: Arrival) -> pa.Table:
        """Return the records to write: as `admit`, but a delete is never late."""
        if self._rule is None or records.num_rows == 0:
            return records
        return self._judged(records, late_records(self._rule, records, arrived_ms), arrived_ms)

    def _judged(self, rows: pa.Table, is_late: pa.BooleanArray, arrived_ms: Arrival) -> pa.Table:
        late = int(pc.sum(is_late).as_py() or 0)
        if late == 0 or self._rule is None:
            return rows
        match self._rule.late_data.policy:
            case "accept":
                self.metrics += LateMetrics(accepted=late)
                return rows
            case "drop":
                self.metrics += LateMetrics(dropped=late)
            case "quarantine":
                arrived = arrived_ms if isinstance(arrived_ms, int) else int(pc.max(arrived_ms.filter(is_late)).as_py())
                self._keep(rows.filter(is_late), arrived)
                self.metrics += LateMetrics(quarantined=late)
            case _:
                assert_never(self._rule.late_data.policy)
        _logger.info("%d late rows of %s: %s", late, self._origin.source, self._rule.late_data.policy)
        return rows.filter(pc.invert(is_late))

    def _keep(self, late: pa.Table, arrived_ms: int) -> None:
        parts = [late]
        if self._window_seconds is not None and self._rule is not None:
            parts = [part for _, part in split_by_window(late, self._rule.time_column, self._window_seconds)]
        for part in parts:
            origin = self._origin
            entry = QuarantinedRows(
                source=origin.source,
                size=origin.size,
                reason=LATE,
                by=origin.by,
                arrived_ms=arrived_ms,
                rows=part,
            )
            self.keys.append(keep(self._store, entry).key)
