"""Appending: rows that become visible in the base by one commit (docs/architecture/README.md)."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field

import pyarrow as pa

from storage_core.clock import Clock
from storage_core.errors import InvalidInput
from storage_core.ids import Ids
from storage_core.late_row_filter import LateRowFilter, Origin
from storage_core.log.actions import Action, Add
from storage_core.log.applications import once
from storage_core.log.encoding.action_json import read_actions, write_actions
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.rows.calendar import within_calendar
from storage_core.rows.incoming import Rows, is_stream, pieces_of, read_whole, table_of
from storage_core.rows.late import LateMetrics, LateRule
from storage_core.rows.schema import conform
from storage_core.rows.vectors import require_sound
from storage_core.settings.table import TableConfig
from storage_core.split.context import SplitContext, context_of
from storage_core.split.write import sort_and_write


@dataclass(frozen=True, slots=True)
class Appended:
    """What an append committed: the version that made the rows visible, and their number.

    `late` counts the late rows; those that were quarantined or dropped are not among `rows`.
    """

    version: int
    commit_id: str
    rows: int
    splits: int
    late: LateMetrics = field(default_factory=LateMetrics)


def fitting(rows: Rows, schema: pa.Schema, nonzero: Collection[str] = ()) -> Iterator[pa.Table]:
    """Yield the rows with exactly this schema, those of a stream piece by piece. Raises `InvalidInput` for one that
    does not fit, by its number in its piece; `nonzero` as of `rows.vectors.require_sound`.
    """
    first = 0
    for piece in pieces_of(rows) if is_stream(rows) else (table_of(rows, schema),):
        try:
            fits = require_sound(within_calendar(conform(piece, schema)), nonzero)
        except InvalidInput as error:
            if not first:
                raise
            raise error.reworded(f"{error.found} (rows are counted from row {first} of the stream)") from error
        yield fits
        first += piece.num_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRows:
    """What one writer of an append wrote: splits that are to be committed, and how many rows came and were late.

    They were planned on a `version`; travels from a task to the driver as JSON.
    """

    version: int
    adds: tuple[Add, ...] = ()
    rows_in: int = 0
    rows_out: int = 0
    late: LateMetrics = field(default_factory=LateMetrics)

    def to_json(self) -> str:
        """Return the text from which `from_json` makes equal ones."""
        plain = {name: getattr(self, name) for name in ("version", "rows_in", "rows_out")}
        return json.dumps({**plain, "adds": write_actions(self.adds), "late": asdict(self.late)}, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> WrittenRows:
        """Return what `to_json` wrote."""
        body = json.loads(text)
        adds, late = read_actions(body.pop("adds"), Add, "written rows"), LateMetrics(**body.pop("late"))
        return WrittenRows(adds=adds, late=late, **body)


def append(
    log: TransactionLog, snapshot: Snapshot, pieces: Iterable[pa.Table], application: tuple[str, int] | None = None
) -> tuple[Appended, Snapshot]:
    """Add rows to an append table in one commit; durable when this returns, with the version that they are in.

    See `write_rows` and `commit_rows`. What `pieces` raises ends it without a commit; the splits written until then are
    the collector's. Of the work of an application that is recorded already no piece is taken.
    """
    _, is_done = once(log, snapshot, application)
    if is_done:
        return Appended(snapshot.version, "", 0, 0), snapshot
    written = write_rows(log.store, context_of(snapshot), pieces, clock=log.clock, ids=log.ids)
    return commit_rows(log, snapshot, [written], application)


def write_rows(
    store: ObjectStore, context: SplitContext, pieces: Iterable[pa.Table], *, clock: Clock, ids: Ids
) -> WrittenRows:
    """Write rows as splits of an append table, for somebody to commit; durable when this returns.

    `pieces` have the schema of the table; each is sorted and written before the next one is taken, as splits of its
    own. Late rows are counted, and kept in quarantine or dropped where the table says so (decision 0051). One PUT per
    split.
    """
    rule = LateRule.of(TableConfig.from_configuration(context.configuration))
    late_filter = LateRowFilter(store, rule, Origin(source="append", by=ids.uuid()))
    adds: list[Add] = []
    rows_in = rows_out = 0
    for rows in pieces:
        admitted = late_filter.admit(rows, clock.now_ms())
        rows_in, rows_out = rows_in + rows.num_rows, rows_out + admitted.num_rows
        adds += sort_and_write(store, admitted, context=context, ids=ids, now_ms=clock.now_ms())
    return WrittenRows(
        version=context.planned_version,
        adds=tuple(adds),
        rows_in=rows_in,
        rows_out=rows_out,
        late=late_filter.metrics,
    )


def commit_rows(
    log: TransactionLog,
    snapshot: Snapshot,
    written: Sequence[WrittenRows],
    application: tuple[str, int] | None = None,
) -> tuple[Appended, Snapshot]:
    """Add what was written to an append table in one commit, planned on `snapshot`, which is no newer than theirs.

    With `application`, a name and a number, the work of that number is committed once: again it is nothing, and its
    splits are the collector's. Without a row to add nothing is committed. Requests: those of a commit.
    """
    adds = [add for each in written for add in each.adds]
    late = sum((each.late for each in written), LateMetrics())
    if not adds:
        return Appended(snapshot.version, "", 0, 0, late), snapshot
    rows_out = sum(each.rows_out for each in written)
    metrics = {
        "rows_in": sum(each.rows_in for each in written),
        "rows_out": rows_out,
        "splits_out": len(adds),
        **late.as_mapping(),
    }
    txn, is_done = once(log, snapshot, application)
    if is_done:
        return Appended(snapshot.version, "", 0, 0), snapshot
    actions: list[Action] = [*adds] if txn is None else [*adds, txn]
    result = log.commit(snapshot, actions, operation="APPEND", metrics=metrics)
    if result.already_committed:  # by another process that does the same work
        return Appended(result.version, "", 0, 0), result.snapshot
    return Appended(result.version, result.commit_id, rows_out, len(adds), late), result.snapshot


def put(log: TransactionLog, snapshot: Snapshot, rows: Rows) -> Appended:
    """Put rows into a keyed table through a region writer and flush them; durable when this returns.

    Nothing is claimed where there is no row, or one without a key or with too long a one. Raises what `open_writer`,
    `put` and `flush` of the writer raise.
    """
    from storage_core.region.records import require_keys
    from storage_core.region.router import open_writer
    from storage_core.rows.key_limit import require_short_keys

    (table,) = fitting(read_whole(rows), snapshot.schema, snapshot.config.nonzero_vectors)
    if table.num_rows == 0:
        return Appended(snapshot.version, "", 0, 0)
    require_keys(table, snapshot.config.primary_key)  # before a claim fences a live writer
    require_short_keys(table, snapshot.config.primary_key)
    with open_writer(log, snapshot) as writer:
        writer.put(table)
        writer.flush()
    return Appended(snapshot.version, "", table.num_rows - writer.metrics.not_written, 0, writer.metrics)
