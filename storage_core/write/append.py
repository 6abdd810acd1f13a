"""Append rows to a table. One commit makes all rows of an append visible in the base (docs/architecture/README.md)."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field

import pyarrow as pa

from storage_core.base.clock import Clock, Ids
from storage_core.base.errors import InvalidInput
from storage_core.data.rows.conform import conform
from storage_core.data.rows.incoming import Rows, is_stream, pieces_of, read_whole, table_of
from storage_core.data.rows.times import within_calendar
from storage_core.data.rows.vectors import require_valid_embeddings
from storage_core.data.rows.windows import LateMetrics, LateRule
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Action, Add, read_actions, write_actions
from storage_core.log.log import TransactionLog, once
from storage_core.log.snapshot import Snapshot
from storage_core.split.context import SplitContext, context_of
from storage_core.split.writer import sort_and_write
from storage_core.store.contract import ObjectStore
from storage_core.write.late_rows import LateRowFilter, RowOrigin


@dataclass(frozen=True, slots=True)
class Appended:
    """Result of an append: the version that made the rows visible, and the number of rows.

    `late` counts the late rows. `rows` does not include quarantined or dropped late rows.
    """

    version: int
    commit_id: str
    rows: int
    splits: int
    late: LateMetrics = field(default_factory=LateMetrics)


def fitting(rows: Rows, schema: pa.Schema, nonzero: Collection[str] = ()) -> Iterator[pa.Table]:
    """Yield the rows, converted to exactly this schema. A stream is read piece by piece.

    `nonzero` contains the embedding columns in which no embedding may be zero
    (`rows.vectors.require_valid_embeddings`). Raises `InvalidInput` for a row that does not fit. The error message
    contains the number of the row within its piece.
    """
    first = 0
    for piece in pieces_of(rows) if is_stream(rows) else (table_of(rows, schema),):
        try:
            fits = require_valid_embeddings(within_calendar(conform(piece, schema)), nonzero)
        except InvalidInput as error:
            if not first:
                raise
            raise error.reworded(f"{error.found} (add {first} to the row number)") from error
        yield fits
        first += piece.num_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRows:
    """The splits that one writer of an append wrote. The numbers count the writer's input, output and late rows.

    The writer used the table version `version`. A task sends this object to the driver as JSON.
    """

    version: int
    adds: tuple[Add, ...] = ()
    rows_in: int = 0
    rows_out: int = 0
    late: LateMetrics = field(default_factory=LateMetrics)

    def to_json(self) -> str:
        """Return this object as JSON text for `from_json`."""
        plain = {name: getattr(self, name) for name in ("version", "rows_in", "rows_out")}
        return json.dumps({**plain, "adds": write_actions(self.adds), "late": asdict(self.late)}, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> WrittenRows:
        """Return the object that `to_json` wrote."""
        body = json.loads(text)
        adds, late = read_actions(body.pop("adds"), Add, "written rows"), LateMetrics(**body.pop("late"))
        return WrittenRows(adds=adds, late=late, **body)


def append(
    log: TransactionLog, snapshot: Snapshot, pieces: Iterable[pa.Table], application: tuple[str, int] | None = None
) -> tuple[Appended, Snapshot]:
    """Add rows to an append table in one commit. The rows are durable on return. Return the new version.

    See `write_rows` and `commit_rows`. If reading `pieces` raises an error, the append ends without a commit. The
    collector then deletes the written splits. If the work of the transaction `application` is already committed, the
    function reads no piece.
    """
    _, is_done = once(log, snapshot, application)
    if is_done:
        return Appended(snapshot.version, "", 0, 0), snapshot
    written = write_rows(log.store, context_of(snapshot), pieces, clock=log.clock, ids=log.ids)
    return commit_rows(log, snapshot, [written], application)


def write_rows(
    store: ObjectStore, context: SplitContext, pieces: Iterable[pa.Table], *, clock: Clock, ids: Ids
) -> WrittenRows:
    """Write rows as splits of an append table, without a commit. The splits are durable when the function returns.

    The function counts late rows. If the table's rule requires it, the function also quarantines or drops the late rows
    (docs/architecture/ingestion.md). One PUT per split.

    Args:
        pieces: tables with the schema of the table. Each piece is sorted and written as separate splits before the next
            piece is read.
    """
    rule = LateRule.of(TableConfig.from_configuration(context.configuration))
    late_filter = LateRowFilter(store, rule, RowOrigin(source="append", by=ids.uuid()))
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
    """Add the written splits to an append table in one commit that is planned on `snapshot`.

    Without rows, the function commits nothing. If there are rows, the function makes the requests of one commit.

    Args:
        snapshot: must not be newer than the version of the written rows.
        application: a name and a number. The work with this number is committed once. A second attempt commits nothing,
            and the collector deletes its splits.
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
    if result.already_committed:  # Another process has committed the same work.
        return Appended(result.version, "", 0, 0), result.snapshot
    return Appended(result.version, result.commit_id, rows_out, len(adds), late), result.snapshot


def put(log: TransactionLog, snapshot: Snapshot, rows: Rows) -> Appended:
    """Put rows into a keyed table through a region writer and flush them. The rows are durable on return.

    The function claims the region only if there are rows and all keys are present and have a valid length. Raises the
    errors of `open_writer`, and of the writer's `put` and `flush`.
    """
    from storage_core.data.rows.keys import require_short_keys
    from storage_core.write.region.records import require_keys
    from storage_core.write.region.router import open_writer

    (table,) = fitting(read_whole(rows), snapshot.schema, snapshot.config.nonzero_vectors)
    if table.num_rows == 0:
        return Appended(snapshot.version, "", 0, 0)
    require_keys(table, snapshot.config.primary_key)  # checked before the claim, because a claim fences a live writer
    require_short_keys(table, snapshot.config.primary_key)
    with open_writer(log, snapshot) as writer:
        writer.put(table)
        writer.flush()
    return Appended(snapshot.version, "", table.num_rows - writer.metrics.not_written, 0, writer.metrics)
