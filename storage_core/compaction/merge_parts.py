"""Merges that are too large for one task, in parts: ranges of the sort order, each within the bounds of a merge.

Three steps, each of tasks that read a few inputs. The keys of some rows of every input are *sampled*. Where each input
has those at which the order may be cut is *located*, exactly. Each part then reads of every input the rows between two
cuts, and merges them as any merge does: what the parts write, one after the other, is what one merge would have
written. Rows of one key that are too many for a part are cut between inputs, or within one, as ties are ordered.
Decision 0147.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.compaction.invariants import union_schema
from storage_core.compaction.kernel import merge_order
from storage_core.compaction.merges import Ints
from storage_core.compaction.work import Bounds, CompactionTask, Part
from storage_core.errors import Corrupt
from storage_core.log.actions import Add
from storage_core.objectstore.contract import ObjectStore
from storage_core.rows.order import is_sorted
from storage_core.rows.sort_order import SortOrder
from storage_core.settings.compaction import MOST_RUN_INPUTS
from storage_core.settings.table import TableConfig
from storage_core.split.context import SplitContext
from storage_core.split.opened import OpenSplit
from storage_core.split.read import open_split
from storage_core.split.rewrite import Rewrite

Floats = npt.NDArray[np.float64]

_STEPS = 4
"""A part has room for so many samples of each input, so that rows between two cuts are at most half a part."""

_MOST_TASKS = 64
"""Into so many tasks the inputs of a merge are divided at most to be looked at."""


def bounds_of(context: SplitContext) -> Bounds:
    """Return what one task reads at most of the table."""
    config = TableConfig.from_configuration(context.configuration)
    return Bounds.of(config.compaction, config.target_split_bytes)


def is_too_large(task: CompactionTask) -> bool:
    """Whether the merge is more than one task may read."""
    rows, size = sum(add.visible_rows for add in task.inputs), sum(add.size for add in task.inputs)
    return not bounds_of(task.context).holds(rows, size, len(task.inputs))


@dataclass(frozen=True, slots=True)
class Sample:
    """The keys of some rows of some inputs of a merge, and the columns of these inputs."""

    keys: pa.Table
    columns: pa.Schema


Sampled = Callable[[Sequence[CompactionTask]], Sequence[Sample]]
"""Calls `sample` for each of these tasks, and returns what it returns."""

Located = Callable[[Sequence[CompactionTask], pa.Table], Sequence[Sequence[Sequence[int]]]]
"""Calls `locate` for each of these tasks with these keys, and returns what it returns."""


def divide(task: CompactionTask, sampled: Sampled, located: Located, *, operation_id: str) -> list[CompactionTask]:
    """Return the tasks of the parts of a merge, in their order.

    Its inputs are looked at by tasks of some of them each, first for keys and then for where these are.
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
    """Return the keys of some rows of the splits of a task, which are some of so many inputs of a merge.

    Ranged GETs of the sort columns. Raises what `open_split` raises.
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
    """Return the keys at which the merge may be cut, ascending and each once, given the samples of all its inputs."""
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
    """Return, per split of the task, how many of its rows come before each of these keys, and how many not after it.

    Rows of the file are counted, deleted ones too. Ranged GETs of the sort columns; a row group is in memory. Raises
    `Corrupt` (SS-1) for a split that is not sorted, and what `open_split` raises.
    """
    return [_located(_all_of(store, add, task.context), task.context, keys) for add in task.inputs]


def parts(
    task: CompactionTask, located: Sequence[Sequence[int]], *, columns: pa.Schema, operation_id: str
) -> list[CompactionTask]:
    """Return the merge as the tasks of its parts, in their order, given where its inputs have the keys of `cuts`.

    Each is within the bounds of a merge, if rows of one part of the order between two cuts are.
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
    """Raise `Corrupt` (MC-1) unless the results of the parts are together what the merge reads, and all of it."""
    expected = sum(add.visible_rows for add in task.inputs)
    read, written = (sum(each) for each in zip(*((one.rows_in, one.rows_out) for one in results), strict=True))
    removed = sorted(remove.path for result in results for remove in result.removes)
    if not expected == read == written or removed != sorted(add.path for add in task.inputs):
        raise Corrupt(
            f"MC-1: of {expected} rows of {len(task.inputs)} splits the {len(results)} parts of a merge read {read} of "
            f"{len(removed)} and wrote {written}; nothing was committed"
        )


def sort_columns(split: OpenSplit, order: SortOrder) -> list[str]:
    """Return the names of the sort columns that a split has, and where it has none that of another: for its rows."""
    names = {each.name for each in order.columns}
    return [name for name in split.schema.names if name in names] or split.schema.names[:1]


def _step(bounds: Bounds, add: Add, inputs: int) -> int:
    """Every how many rows a split is sampled that is one of so many inputs."""
    rows = max(1, add.numRecords or 0)
    per_part = min(bounds.rows, int(bounds.bytes * rows / max(1, add.size)))
    return max(1, per_part // (_STEPS * _at_once(inputs)))


def _at_once(inputs: int) -> int:
    return min(inputs, MOST_RUN_INPUTS)


def _all_of(store: ObjectStore, add: Add, context: SplitContext) -> OpenSplit:
    """The split with all rows of its file, as its table has them now."""
    return open_split(store, add.as_written, whole=False).of_table(context.schema)


def _keys(rows: pa.Table | None, context: SplitContext) -> pa.Table:
    """The sort columns of rows, null where there is none; without rows a table that has no row."""
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
            raise Corrupt(f"SS-1: {split.add.path} is not sorted as it says", key=split.add.path)
        found += _counted(rows, keys, context.order)
        last = rows.slice(max(0, rows.num_rows - 1))
    return [int(each) for each in found.ravel()]


def _counted(rows: pa.Table, keys: pa.Table, order: SortOrder) -> Ints:
    """Of each key, how many of the rows come before it, and how many not after it."""
    count = keys.num_rows
    tables = [keys, rows, keys]  # ties keep their order: a key is before the rows that equal it, and again after them
    sizes = [each.num_rows for each in tables]
    place = np.empty(sum(sizes), np.int64)
    place[merge_order(tables, order).runs.positions(sizes)] = np.arange(len(place))
    number = np.arange(count)
    return np.column_stack([place[:count] - 2 * number, place[-count:] - 2 * number - 1])


def _packed(edges: Ints, weights: Floats, bounds: Bounds, *, all_equal: bool) -> Iterator[Ints]:
    """Where each part ends in each input: parts of about one size, as many as the bounds ask for."""
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
    """Where the order may be cut, in turn, per input: between keys, and within a key that has too many rows."""
    for number in range(1, edges.shape[1]):
        first, end = edges[:, number - 1], edges[:, number]
        of_one_key = all_equal or number % 2 == 0
        if of_one_key and not _fits(end - first, weights, bounds):
            yield from _within(first, end, weights, bounds)
        yield end


def _within(first: Ints, end: Ints, weights: Floats, bounds: Bounds) -> Iterator[Ints]:
    """Cuts between rows of one key, which follow one another by input, and in it by row."""
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
