"""Appending: rows that become visible in the base by one commit (docs/architecture/README.md)."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.quarantine import LateDoor, Origin
from storage_core.rows.late import LateFigures, LateRule
from storage_core.split.context import context_of
from storage_core.split.write import sort_and_write


@dataclass(frozen=True, slots=True)
class Appended:
    """What an append committed: the version that made the rows visible, and their number.

    `late` counts the late rows; those that were set aside are not among `rows`.
    """

    version: int
    commit_id: str
    rows: int
    splits: int
    late: LateFigures = field(default_factory=LateFigures)


def append(log: TransactionLog, snapshot: Snapshot, rows: pa.Table) -> tuple[Appended, Snapshot]:
    """Add rows to an append table in one commit; durable when this returns, with the version that they are in.

    `rows` has the schema of the table. Late rows are counted, and kept in quarantine or dropped where the table says so
    (decision 0051); without a row left nothing is committed. One PUT per split, and those of the commit.
    """
    door = LateDoor(log.store, LateRule.of(snapshot.config), Origin(source="append", by=log.ids.uuid()))
    admitted = door.admit(rows, log.clock.now_ms())
    if admitted.num_rows == 0:
        return Appended(snapshot.version, "", 0, 0, door.figures), snapshot
    context = context_of(snapshot)
    adds = sort_and_write(log.store, admitted, context=context, ids=log.ids, now_ms=log.clock.now_ms())
    metrics = {
        "rows_in": rows.num_rows,
        "rows_out": admitted.num_rows,
        "splits_out": len(adds),
        **door.figures.as_mapping(),
    }
    result = log.commit(snapshot, adds, operation="APPEND", metrics=metrics)
    return Appended(result.version, result.commit_id, admitted.num_rows, len(adds), door.figures), result.snapshot
