"""Execution of one compaction task: from input splits to the actions of a commit (docs/architecture/compaction.md).

`execute` runs in a Spark task or in this process. `execute` needs a store and the task, but not the table. The commit
checks whether the result still fits the table. If another commit has removed an input, the commit fails.

A merge that is too large for one task is executed in parts. The parts are ranges of the sort order (decision 0015). The
execution has three steps:

1. *Sample*: read the keys of some rows of every input.
2. *Locate*: in each input, find the exact positions of the keys at which a part can end.
3. *Merge*: each part reads, from every input, the rows between two cuts, and merges them as usual.

Each task of the steps *Sample* and *Locate* reads a few inputs. The outputs of all parts together equal the output of
one merge. If a part cannot contain all rows of one key, the rows of this key are divided between inputs or within an
input. Rows with equal keys keep their order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.base.clock import Ids
from storage_core.base.errors import Corrupt
from storage_core.base.process import scratch_folder
from storage_core.compact import invariants
from storage_core.compact.invariants import union_schema
from storage_core.compact.kernel import MergeOrder, Runs, merge_order, order_of, output_schema, piece_rows, pieces
from storage_core.compact.work import Bounds, CompactionTask, Ints, Part
from storage_core.data.formats.bundle import MOST_INPUTS, TranslationMap
from storage_core.data.rows.keys import Positions
from storage_core.data.rows.sort_order import SortOrder, is_sorted
from storage_core.data.settings.layout import MOST_RUN_INPUTS
from storage_core.data.settings.table import TableConfig
from storage_core.index.row_positions import store_translation
from storage_core.log.actions import Add, Translation
from storage_core.split.context import SplitContext
from storage_core.split.deletion_vectors import removal
from storage_core.split.encode import ROWS_PER_PAGE, Encodings, inherited, plain_schema
from storage_core.split.metadata import Lineage
from storage_core.split.read import OpenSplit, open_part, open_split
from storage_core.split.writer import Expected, Rewrite, RollingWriter, SplitHead
from storage_core.store.contract import ObjectStore

_logger = logging.getLogger(__name__)

_IN_MEMORY_BYTES = 64 * 2**20


def execute(store: ObjectStore, task: CompactionTask, *, ids: Ids, now_ms: int) -> Rewrite:
    """Merge the inputs into as few sorted splits as the target size allows, and return the actions of the commit.

    The actions replace the inputs by the outputs. If the task is a part of a merge, the function merges only the rows
    of this part. The actions of a part remove an input if the last row of the input is in this part.

    The rows stay the same multiset (MC-1) and every value stays the same (MC-2). The output has the sort order of the
    inputs (MC-3). The output has all columns of the inputs (MC-4). If the columns of the table have changed, the output
    has the changed columns. Each piece is checked before it is written, so no result breaks these rules. If a check
    fails, files that were already written are orphans. A second execution writes new files with new ids. Only one of
    the results can be committed.

    Raises:
        InvalidInput: the inputs do not belong together.
        Corrupt: the bytes of an input have changed, an input is not sorted as it claims, or an output breaks an
            invariant.

    Cost:
        One GET per input and one PUT per output. If the table has an index, one PUT for the translation. Nothing is
        deleted.
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
            last = piece.take(pa.array([piece.num_rows - 1]))  # a slice would keep the whole piece in memory
        outputs = rolling.finish()
        translation = translate(store, splits, merged.order.runs, outputs, ids=ids) if config.indexes else None
        return _result(task, outputs, translation, rows_in=rows_in, now_ms=now_ms)


@dataclass(frozen=True, slots=True)
class MergedRows:
    """Output of a merge: its order, its encodings, and its rows, which are produced on demand.

    `encodings` is None if the writer must choose the encodings again.
    """

    order: MergeOrder
    encodings: Encodings | None
    pieces: Iterator[pa.Table]


def merge(splits: Sequence[OpenSplit], schema: pa.Schema, order: SortOrder) -> MergedRows:
    """Return the rows of all splits in `order`, with the columns of `schema`.

    Strings are dictionary-encoded if this saves memory. Until the order is known, only the sort columns are in memory.
    After this, the order and the data of `kernel.pieces` are in memory. The amount of memory does not depend on the
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
    """Raise `Corrupt` if the merged rows break MC-3 or MC-4. The order and the union schema come from the inputs.

    The first merged row must not sort before the last row of `after`. The rows of `after` were merged earlier.
    `kernel.pieces` checks MC-1 and MC-2 when it moves the rows.
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
    """Open the inputs, and check each input completely.

    If the inputs have more than `_IN_MEMORY_BYTES` in total, they are kept on disk.

    For a part of a merge, open only the row groups that have rows of the part. Keep these row groups on disk.
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
        raise Corrupt(f"MC-1: {rows_in} rows were read and {result.rows_out} written. Nothing was committed")
    return result


def translate(
    store: ObjectStore, inputs: Sequence[OpenSplit], runs: Runs, outputs: Sequence[Add], *, ids: Ids
) -> Translation | None:
    """Store the translation from input rows to output rows, and return its action. One PUT.

    The function compares the translation with the order of the written rows. The function returns None if the rows of
    an input change their order. The function also returns None if there are too many inputs. The outputs then need new
    index segments. Raises `CommitUnknown` if the store did not report the outcome and does not have the object.
    """
    if len(inputs) > MOST_INPUTS or not outputs:
        return None
    kind = np.uint8 if len(inputs) <= 2**8 else np.uint16
    found = TranslationMap(
        input_rows=tuple(split.rows + len(split.deleted) for split in inputs),
        output_rows=tuple(add.numRecords or 0 for add in outputs),
        order=np.repeat(runs.input.astype(kind), runs.count),
        dropped=tuple(split.deleted for split in inputs),
    )
    if not _is_of(found, runs.positions([split.rows for split in inputs])):
        _logger.warning("no translation of %s: not all rows of an input keep their order", inputs[0].add.path)
        return None
    return store_translation(store, found, [split.add.path for split in inputs], outputs, ids=ids)


def _is_of(translation: TranslationMap, positions: Positions) -> bool:
    """Return whether the translation maps each row to its output.

    `positions` has the input position of each output row.
    """
    by_input = np.argsort(translation.order, kind="stable")
    return bool(np.array_equal(positions[by_input], np.arange(len(positions))))


Floats = npt.NDArray[np.float64]

_STEPS = 4
"""Number of samples of each input per part.

A part of a merge can end only at certain positions. With this number of samples per part, at most half of the rows of a
part are between two consecutive possible ends.
"""

_MOST_TASKS = 64
"""Maximum number of sampling tasks of a merge."""


def bounds_of(context: SplitContext) -> Bounds:
    """Return the limits of one task of the table."""
    config = TableConfig.from_configuration(context.configuration)
    return Bounds.of(config.compaction, config.target_split_bytes)


def is_too_large(task: CompactionTask) -> bool:
    """Return whether the merge is too large for one task."""
    rows, size = sum(add.visible_rows for add in task.inputs), sum(add.size for add in task.inputs)
    return not bounds_of(task.context).holds(rows, size, len(task.inputs))


@dataclass(frozen=True, slots=True)
class Sample:
    """The keys of sampled rows from some inputs of a merge, and the columns of these inputs."""

    keys: pa.Table
    columns: pa.Schema


Sampled = Callable[[Sequence[CompactionTask]], Sequence[Sample]]
"""A function that takes a list of tasks, calls `sample` for each task, and returns the samples."""

Located = Callable[[Sequence[CompactionTask], pa.Table], Sequence[Sequence[Sequence[int]]]]
"""A function with tasks and keys as its arguments.

The function calls `locate` for each task with the keys, and returns the results.
"""


def divide(task: CompactionTask, sampled: Sampled, located: Located, *, operation_id: str) -> list[CompactionTask]:
    """Return the tasks for the parts of a merge, in order.

    First, each task samples the keys of a few inputs. Then each task finds the positions of the possible ends of parts
    in a few inputs.
    """
    size = -(-len(task.inputs) // _MOST_TASKS)
    starts = range(0, len(task.inputs), size)
    several = [replace(task, inputs=task.inputs[start : start + size]) for start in starts]
    samples = sampled(several)
    columns = union_schema([(one.inputs[0].path, each.columns) for one, each in zip(several, samples, strict=True)])
    keys = cuts(task, [each.keys for each in samples])
    places = [each for one in located(several, keys) for each in one]
    return parts(task, places, columns=columns, operation_id=operation_id)


def sample(store: ObjectStore, task: CompactionTask, inputs: int) -> Sample:
    """Return the keys of sampled rows from the splits of a task. The merge has `inputs` inputs in total.

    Ranged GETs of the sort columns. Raises the errors of `open_split`.
    """
    bounds, found = bounds_of(task.context), [_keys(None, task.context)]
    schemas: list[tuple[str, pa.Schema]] = []
    for add in task.inputs:
        step = _step(bounds, add, inputs)
        places = np.arange(step - 1, add.numRecords or 0, step, dtype=np.int64)
        split = _all_of(store, add, task.context)
        schemas.append((add.path, split.schema))
        if len(places):
            found.append(_keys(split.take(places, sort_columns(split, task.context.order)), task.context))
    return Sample(pa.concat_tables(found), union_schema(schemas))


def cuts(task: CompactionTask, samples: Sequence[pa.Table]) -> pa.Table:
    """Return the distinct keys at which the merge can be cut, in ascending order. Uses the samples of all inputs."""
    order, bounds, inputs = task.context.order, bounds_of(task.context), len(task.inputs)
    if not order.columns:
        return _keys(None, task.context)
    keys = pa.concat_tables(samples).combine_chunks()
    longest = max(_step(bounds, add, inputs) for add in task.inputs)
    stride = max(1, min(_at_once(inputs), bounds.rows // (_STEPS * longest)))
    sorted_ = merge_order([keys], order)
    keys = keys.take(pa.array(sorted_.runs.positions([keys.num_rows])[stride - 1 :: stride]))
    if not keys.num_rows:
        return keys
    is_new = merge_order([keys], order).begins
    is_new[0] = True
    return keys.filter(pa.array(is_new))


def locate(store: ObjectStore, task: CompactionTask, keys: pa.Table) -> list[list[int]]:
    """Return two counts for each split and key: the rows that sort before the key, and these rows plus the equal rows.

    The counts include the deleted rows of the file. Raises `Corrupt` (SS-1) for a split that is not sorted, and the
    errors of `open_split`. Ranged GETs of the sort columns. One row group is in memory at a time.
    """
    return [_located(_all_of(store, add, task.context), task.context, keys) for add in task.inputs]


def parts(
    task: CompactionTask, located: Sequence[Sequence[int]], *, columns: pa.Schema, operation_id: str
) -> list[CompactionTask]:
    """Return the tasks for the parts of a merge, in order.

    Args:
        located: the positions of the keys of `cuts` in each input.

    Each part fits into the limits of a merge if the rows between two adjacent cuts fit.
    """
    counts = np.array([add.numRecords or 0 for add in task.inputs], np.int64)
    edges = np.column_stack([np.zeros_like(counts), np.array(located, np.int64).reshape(len(counts), -1), counts])
    weights = np.array([add.size for add in task.inputs]) / np.maximum(1, counts)
    bounds = bounds_of(task.context)
    ends = list(_packed(edges, weights, bounds, all_equal=not task.context.order.columns))
    replaces = {add.path: add.visible_rows for add in task.inputs}
    left_in = np.argmax(np.array(ends) >= counts, axis=0)
    found, first = list[CompactionTask](), np.zeros_like(counts)
    for number, end in enumerate(ends):
        leaving = left_in == number
        chosen = np.flatnonzero((end > first) | leaving).tolist()
        part = Part(
            row_ranges=tuple((int(first[each]), int(end[each])) for each in chosen),
            leaving=tuple(task.inputs[each].path for each in np.flatnonzero(leaving).tolist()),
            columns=columns,
            operation_id=operation_id,
            replaces=replaces,
        )
        found.append(replace(task, inputs=tuple(task.inputs[each] for each in chosen), part=part))
        first = end
    return found


def require_whole(task: CompactionTask, results: Sequence[Rewrite]) -> None:
    """Raise `Corrupt` (MC-1) unless the results of the parts together contain exactly the rows of the merge."""
    expected = sum(add.visible_rows for add in task.inputs)
    read, written = (sum(each) for each in zip(*((one.rows_in, one.rows_out) for one in results), strict=True))
    removed = sorted(remove.path for result in results for remove in result.removes)
    if not expected == read == written or removed != sorted(add.path for add in task.inputs):
        raise Corrupt(
            f"MC-1: the merge has {expected} rows in {len(task.inputs)} splits. The {len(results)} parts of the "
            f"merge read {read} "
            f"rows of {len(removed)} splits and wrote {written} rows. Nothing was committed"
        )


def sort_columns(split: OpenSplit, order: SortOrder) -> list[str]:
    """Return the names of the sort columns that a split has.

    If the split has no sort column, return another column, so that its rows can be counted.
    """
    names = {each.name for each in order.columns}
    return [name for name in split.schema.names if name in names] or split.schema.names[:1]


def _step(bounds: Bounds, add: Add, inputs: int) -> int:
    """Return the number of rows between two samples of a split. The merge has `inputs` inputs."""
    rows = max(1, add.numRecords or 0)
    per_part = min(bounds.rows, int(bounds.bytes * rows / max(1, add.size)))
    return max(1, per_part // (_STEPS * _at_once(inputs)))


def _at_once(inputs: int) -> int:
    return min(inputs, MOST_RUN_INPUTS)


def _all_of(store: ObjectStore, add: Add, context: SplitContext) -> OpenSplit:
    """Return the split with all rows of its file, including deleted rows, and with the current columns of its table."""
    return open_split(store, add.as_written, whole=False).of_table(context.schema)


def _keys(rows: pa.Table | None, context: SplitContext) -> pa.Table:
    """Return the sort columns of rows, with null for a missing column. If `rows` is None, return an empty table."""
    fields = [pa.field(each.name, context.schema.field(each.name).type) for each in context.order.columns]
    if rows is None:
        return pa.schema(fields).empty_table()
    columns = [
        rows.column(each.name).cast(each.type) if each.name in rows.column_names else pa.nulls(rows.num_rows, each.type)
        for each in fields
    ]
    return pa.table(columns, schema=pa.schema(fields))


def _located(split: OpenSplit, context: SplitContext, keys: pa.Table) -> list[int]:
    found, last = np.zeros((keys.num_rows, 2), np.int64), _keys(None, context)
    if not keys.num_rows:
        return []
    for batch in split.batches(sort_columns(split, context.order)):
        rows = _keys(batch, context)
        if not is_sorted(pa.concat_tables([last, rows]), context.order):
            raise Corrupt(f"SS-1: {split.add.path} is not sorted by its sort schema", key=split.add.path)
        found += _counted(rows, keys, context.order)
        last = rows.slice(max(0, rows.num_rows - 1))
    return [int(each) for each in found.ravel()]


def _counted(rows: pa.Table, keys: pa.Table, order: SortOrder) -> Ints:
    """Return two counts for each key.

    The counts are the number of rows before the key, and the number of rows that do not sort after the key.
    """
    count = keys.num_rows
    # Rows with equal keys keep the order of the tables. The first copy of `keys` therefore sorts before equal rows of
    # `rows`, and the second copy sorts after equal rows.
    tables = [keys, rows, keys]
    sizes = [each.num_rows for each in tables]
    place = np.empty(sum(sizes), np.int64)
    place[merge_order(tables, order).runs.positions(sizes)] = np.arange(len(place))
    number = np.arange(count)
    return np.column_stack([place[:count] - 2 * number, place[-count:] - 2 * number - 1])


def _packed(edges: Ints, weights: Floats, bounds: Bounds, *, all_equal: bool) -> Iterator[Ints]:
    """Yield the end of each part in each input.

    Parts have about the same size. The limits define the number of parts.
    """
    counts = edges[:, -1]
    many = max(1.0, np.ceil(counts.sum() / bounds.rows), np.ceil(counts @ weights / bounds.bytes))
    aim = counts.sum() / many, counts @ weights / many
    first = last = edges[:, 0]
    for end in _cells(edges, weights, bounds, all_equal=all_equal):
        if (last > first).any() and not _fits(end - first, weights, bounds):
            yield last
            first = last
        last = end
        rows = last - first
        if rows.sum() >= aim[0] and rows @ weights >= aim[1] and (last < counts).any():
            yield last
            first = last
    if (last > first).any() or not counts.any():
        yield last


def _cells(edges: Ints, weights: Floats, bounds: Bounds, *, all_equal: bool) -> Iterator[Ints]:
    """Yield the possible ends of parts. Each yielded end of a part is an array with one row position per input.

    A part ends between two keys, or within a key that has too many rows.
    """
    for number in range(1, edges.shape[1]):
        first, end = edges[:, number - 1], edges[:, number]
        of_one_key = all_equal or number % 2 == 0
        if of_one_key and not _fits(end - first, weights, bounds):
            yield from _within(first, end, weights, bounds)
        yield end


def _within(first: Ints, end: Ints, weights: Floats, bounds: Bounds) -> Iterator[Ints]:
    """Yield the positions at which a part can end within a key. The rows of a key are ordered by input, then by row."""
    reached, since = first.copy(), first.copy()
    for number in range(len(first)):
        while reached[number] < end[number]:
            taken = reached - since
            room = min(bounds.rows - taken.sum(), int((bounds.bytes - taken @ weights) / max(weights[number], 1e-9)))
            if np.count_nonzero(taken) == MOST_RUN_INPUTS or (room < 1 and taken.any()):
                yield reached.copy()
                since = reached.copy()
                continue
            reached[number] = min(int(end[number]), int(reached[number]) + max(1, int(room)))


def _fits(rows: Ints, weights: Floats, bounds: Bounds) -> bool:
    return bool(bounds.holds(int(rows.sum()), float(rows @ weights), int(np.count_nonzero(rows))))
