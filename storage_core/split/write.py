"""Rows to splits, sorted and window by window (docs/architecture/compaction.md). Nothing here commits."""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from storage_core.ids import Ids
from storage_core.log.actions import Add
from storage_core.objectstore.contract import ObjectStore
from storage_core.rows.columns import stored_rows
from storage_core.rows.keys import Positions
from storage_core.rows.timeseries_id import with_series
from storage_core.split.arrangement import PLACE, arranged, with_places
from storage_core.split.context import SplitContext
from storage_core.split.encode import nan_columns, next_key_change
from storage_core.split.encodings import LEAST_ROWS, Encodings, choose
from storage_core.split.lineage import APPENDED, Lineage
from storage_core.split.rolling_writer import Expected, RollingWriter
from storage_core.split.writer import SplitHead, SplitWriter


def sort_and_write(
    store: ObjectStore,
    rows: pa.Table,
    *,
    context: SplitContext,
    ids: Ids,
    now_ms: int,
    lineage: Lineage = APPENDED,
    placed: list[Positions] | None = None,
    encodings: Encodings | None = None,
) -> list[Add]:
    """Write rows in any order as sorted splits: one partition and window each, about the target size, ids fresh.

    `placed` is given the places in `rows` that the rows of the splits had, in the order of the splits. Where there are
    enough rows for a choice of `encodings` it is this one, or one that is measured.

    Rows that arrive get the `timeseries_id` that they lack (`rows.timeseries_id`); rows of a merge have it or not.
    A batch of several partitions or windows is split before anything is written. No rows, no splits. One PUT per split;
    when one fails the earlier ones are orphans. Raises what `write_split` raises.
    """
    adds: list[Add] = []
    arrived = with_series(rows, context.order) if lineage.operation == APPENDED.operation else rows
    if placed is not None:
        arrived = with_places(arrived)
    for own, window, part in arranged(arrived, context):
        ordered = part
        if placed is not None:
            placed.append(part.column(PLACE).to_numpy())
            ordered = part.drop_columns([PLACE])
        ordered = stored_rows(ordered, context.schema)
        head = SplitHead(context=own, window=window, now_ms=now_ms, lineage=lineage)
        expected = Expected(
            rows=ordered.num_rows,
            most_bytes=ordered.nbytes,
            may_hold_nan=nan_columns(ordered),
            next_key=partial(next_key_change, ordered, context.order),
            encodings=_choice(ordered, context, encodings),
        )
        rolling = RollingWriter(store, head, expected, ids)
        rolling.add(ordered)
        adds.extend(rolling.finish())
    return adds


def write_split(
    store: ObjectStore,
    rows: pa.Table,
    *,
    context: SplitContext,
    window: int | None,
    num_merge_ops: int,
    split_id: str,
    now_ms: int,
    lineage: Lineage = APPENDED,
) -> Add:
    """Write sorted `rows` as one split and return the action that adds it; the file is durable when this returns.

    `rows` must be sorted by `context.order` and lie in `window` (None: the bucket of null timestamps, or a table
    without windows); the file holds the columns of `rows`, which may be fewer than the table's. One PUT. Writing the
    same rows under the same id again succeeds; other rows under it raise `CommitConflict`. Raises `InvalidInput` when a
    row lies outside the window (TW-1), `CommitUnknown` when the store did not say whether it kept the file.
    """
    rows = stored_rows(rows, context.schema)
    head = SplitHead(context=context, window=window, num_merge_ops=num_merge_ops, now_ms=now_ms, lineage=lineage)
    may_hold_nan = nan_columns(rows)
    writer = SplitWriter(
        head, split_id, rows.schema, _choice(rows, context), rows=rows.num_rows, may_hold_nan=may_hold_nan
    )
    writer.add(rows)
    return writer.finish(store)


def _choice(rows: pa.Table, context: SplitContext, known: Encodings | None = None) -> Encodings:
    if rows.num_rows < LEAST_ROWS:
        return {}
    return choose(rows, rows.num_rows, context.codec) if known is None else known
