"""One compaction task, from the splits of the inputs to the actions of a commit (docs/architecture/compaction.md).

Runs in a Spark task or in this process alike; needs a store and the task, not the table. Whether the result still
fits the table is decided by the commit: an input that another commit removed aborts it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from storage_core.compaction import invariants
from storage_core.compaction.kernel import MergeOrder, order_of
from storage_core.compaction.streaming import output_schema, piece_rows, pieces
from storage_core.compaction.translate import translate
from storage_core.compaction.work import CompactionTask
from storage_core.errors import Corrupt
from storage_core.ids import Ids
from storage_core.log.actions import Add, Translation
from storage_core.objectstore.contract import ObjectStore
from storage_core.rows.sort_order import SortOrder
from storage_core.scratch import scratch_folder
from storage_core.settings.table import TableConfig
from storage_core.split.encode import plain_schema
from storage_core.split.encodings import ROWS_PER_PAGE, Encodings, inherited
from storage_core.split.hidden import removal
from storage_core.split.lineage import Lineage
from storage_core.split.opened import OpenSplit
from storage_core.split.part import open_part
from storage_core.split.read import open_split
from storage_core.split.rewrite import Rewrite
from storage_core.split.rolling_writer import Expected, RollingWriter
from storage_core.split.writer import SplitHead

_logger = logging.getLogger(__name__)

_IN_MEMORY_BYTES = 64 * 2**20


def execute(store: ObjectStore, task: CompactionTask, *, ids: Ids, now_ms: int) -> Rewrite:
    """Merge the inputs into as few sorted splits as the target size allows and return the actions that swap them.

    Of a task that is a part of a merge, the rows of the part; the actions remove the inputs that leave with it.
    The rows stay the same multiset (MC-1), every value stays the same (MC-2), the output is sorted as the inputs were
    (MC-3) and has all their columns (MC-4), or those of the table where its columns have changed: checked piece by
    piece before it is written, so no result is returned in breach; an output that was written before is an orphan. One
    GET per input, one PUT per output, and one for the translation where the table has an index; nothing is deleted.
    Running it again writes new files under fresh ids, and at most one run's result can be committed. Raises
    `InvalidInput` for inputs that do not belong together, `Corrupt` for an input whose bytes changed or that is not
    sorted as it says, and for an output that breaks an invariant.
    """
    context, adds = task.context, task.inputs
    config = TableConfig.from_configuration(context.configuration)
    invariants.require_one_scope(context.table_id, task.window, adds, start=config.compaction.start)
    with _opened(store, task) as opened:
        splits = [split.of_table(context.schema) for split in opened]
        schemas = [(split.add.path, split.schema) for split in splits]
        schema = invariants.union_schema(schemas) if task.part is None else task.part.columns
        rows_in = sum(split.rows for split in splits)
        codec = context.codec.thorough if rows_in <= ROWS_PER_PAGE else context.codec
        head = SplitHead(
            context=replace(context, codec=codec, partition_values=adds[0].partitionValues),
            window=task.window,
            now_ms=now_ms,
            num_merge_ops=task.merge_ops,
            lineage=_lineage(task, splits, ids),
        )
        merged = merge(splits, schema, context.order)
        rolling = RollingWriter(store, head, _expected(splits, merged), ids)
        last: pa.Table | None = None
        for piece in merged.pieces:
            require_merged(piece, schema, task, after=last)
            rolling.add(piece)
            last = piece.take(pa.array([piece.num_rows - 1]))  # a slice would keep all of it
        outputs = rolling.finish()
        translation = translate(store, splits, merged.order.runs, outputs, ids=ids) if config.indexes else None
        return _result(task, outputs, translation, rows_in=rows_in, now_ms=now_ms)


@dataclass(frozen=True, slots=True)
class MergedRows:
    """The output of a merge: its order, how it is to be encoded (None: chosen anew), and its rows as they are made."""

    order: MergeOrder
    encodings: Encodings | None
    pieces: Iterator[pa.Table]


def merge(splits: Sequence[OpenSplit], schema: pa.Schema, order: SortOrder) -> MergedRows:
    """Return the rows of all splits in `order` with the columns of `schema`, strings as dictionaries where they pay.

    Memory: the sort columns until the order is known, then the order and what `streaming.pieces` holds, whatever the
    number of columns.
    """
    merged = order_of(partial(_column_of_each, splits), [split.rows for split in splits], order)
    pa.default_memory_pool().release_unused()
    _logger.debug("merge order: %d rows in %d runs of %d splits", merged.runs.rows, len(merged.runs), len(splits))
    encodings = inherited([(split.rows, split.metadata) for split in splits], schema)
    stored = output_schema(splits, schema, encodings or {})
    return MergedRows(merged, encodings, pieces(splits, merged.runs, stored, piece_rows(splits, schema)))


def _column_of_each(splits: Sequence[OpenSplit], name: str) -> list[pa.ChunkedArray | None]:
    return [split.read({name}).column(name) if name in split.schema.names else None for split in splits]


def require_merged(
    merged: pa.Table,
    schema: pa.Schema,
    task: CompactionTask,
    *,
    after: pa.Table | None = None,
) -> None:
    """Raise `Corrupt` when the merged rows break MC-3 or MC-4 against the inputs' order and union schema.

    They must not come before the rows of `after`, of which the last is the last of what was merged before. MC-1 and
    MC-2 are checked where the rows are moved (`streaming.pieces`).
    """
    inputs = task.inputs
    invariants.require_columns(plain_schema(merged.schema), schema, inputs)
    whole = merged if after is None else pa.concat_tables([after, merged])
    invariants.require_sorted(whole, task.context.order, inputs)


def _lineage(task: CompactionTask, splits: Sequence[OpenSplit], ids: Ids) -> Lineage:
    part = task.part
    return Lineage(
        operation="compact",
        operation_id=ids.uuid() if part is None else part.operation_id,
        replaces={split.add.path: split.rows for split in splits} if part is None else part.replaces,
    )


def _expected(splits: Sequence[OpenSplit], merged: MergedRows) -> Expected:
    return Expected(
        rows=merged.order.runs.rows,
        most_bytes=sum(split.add.size * split.rows // max(1, split.add.visible_rows) for split in splits),
        may_hold_nan=frozenset().union(*(split.may_hold_nan() for split in splits)),
        next_key=merged.order.next_key,
        encodings=merged.encodings,
    )


@contextmanager
def _opened(store: ObjectStore, task: CompactionTask) -> Iterator[list[OpenSplit]]:
    """The inputs, checked whole; above `_IN_MEMORY_BYTES` on disk, for together they are as wide as the table.

    Of a part of a merge, the row groups that have a row of it, on disk.
    """
    adds = task.inputs
    if task.part is not None:
        with scratch_folder("compact") as folder:
            yield [
                open_part(store, add, rows, spool=folder) for add, rows in zip(adds, task.part.row_ranges, strict=True)
            ]
        return
    if sum(add.size for add in adds) <= _IN_MEMORY_BYTES:
        yield [open_split(store, add, as_dictionary=True) for add in adds]
        return
    with scratch_folder("compact") as folder:
        yield [open_split(store, add, as_dictionary=True, spool=folder) for add in adds]


def _result(
    task: CompactionTask, outputs: Sequence[Add], translation: Translation | None, *, rows_in: int, now_ms: int
) -> Rewrite:
    leaving = [add for add in task.inputs if task.part is None or add.path in task.part.leaving]
    removes = (removal(add, now_ms, changes_rows=False) for add in leaving)
    adds = (replace(add, dataChange=False) for add in outputs)
    translations = () if translation is None else (translation,)
    result = Rewrite(adds=tuple(adds), removes=tuple(removes), rows_in=rows_in, translations=translations)
    if rows_in != result.rows_out:
        raise Corrupt(f"MC-1: {rows_in} rows were read and {result.rows_out} written; nothing was committed")
    return result
