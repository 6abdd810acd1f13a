"""Which splits can hold a row that a filter wants: by partition, window, bounds, expressions.

Pruning is sound: a split is left out only when no row of it can make the filter true. Whatever is unknown (a missing
statistic, or one that is no value of its column; an `Opaque` condition; a literal of another family than the column)
keeps the split. It works on the columns of the state (`log.files.columns`), batch by batch, never split by split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.log.actions import Add
from storage_core.log.files.columns import ManifestBounds
from storage_core.log.snapshot import Snapshot
from storage_core.read.bounds import (
    ColumnBounds,
    Source,
    expressions_of,
    manifest_source,
    partitions_of,
    statistics_of,
    windows_of,
)
from storage_core.read.literals import Interval, at_least, at_most, interval
from storage_core.read.predicate import And, Compare, Comparison, IsNull, Opaque, Or, Predicate
from storage_core.rows.codes import Mask
from storage_core.rows.column_regex import may_match
from storage_core.rows.sortable import unless_false

# Enough rows to make a call of Arrow cheap, few enough that a batch's columns stay in the processor's cache.
_BATCH_ROWS = 65_536
# Copying the rows that are left is worth it when it spares decoding this many times as many.
_FEW = 8
_READ = [
    *("partitionValues", "minValues", "maxValues", "numRecords", "windowStart", "windowSeconds", "nullCounts"),
    "columnRegexes",
]

Leaf = Callable[[Compare | IsNull], Mask | None]
"""Per split of a batch whether some row may make the condition true; None where nothing is known of any."""

Step = tuple[str, Callable[[pa.RecordBatch], Leaf]]


@dataclass(frozen=True, slots=True)
class PruneStep:
    """What one step left out: its name, and the splits, row groups of splits that are left, and bytes it removed.

    `note` says where the step could not be taken, and why.
    """

    name: str
    splits: int
    bytes: int
    row_groups: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Pruned:
    """The splits that are left, and what each step removed, in the order the steps ran."""

    splits: tuple[Add, ...]
    steps: tuple[PruneStep, ...]


@dataclass(frozen=True, slots=True)
class PrunedTable:
    """Per row of the table whether its split is left (`files.filter(keep)`), and what each step removed, in order."""

    keep: pa.BooleanArray
    steps: tuple[PruneStep, ...]


def prune(snapshot: Snapshot, predicate: Predicate | None) -> tuple[Add, ...]:
    """Return the live splits that may hold a matching row, in no order.

    One GET per manifest that was not read yet and whose bounds leave room for such a row.
    """
    if predicate is None:
        return tuple(snapshot.splits.values())
    schema, time_column = snapshot.schema, snapshot.config.time_column
    partition_columns = snapshot.metadata.partitionColumns
    reads = manifest_filter(predicate, schema=schema, time_column=time_column, partition_columns=partition_columns)
    return _chosen(snapshot.splits.table(reads), predicate, snapshot).splits


def explain(snapshot: Snapshot, predicate: Predicate | None) -> Pruned:
    """Return what `prune` returns, and what each step leaves out. Reads every manifest, for it counts every split."""
    if predicate is None:
        return Pruned(tuple(snapshot.splits.values()), ())
    return _chosen(snapshot.splits.table(), predicate, snapshot)


def prune_table(
    files: pa.Table, predicate: Predicate | None, *, schema: pa.Schema, time_column: str | None
) -> PrunedTable:
    """Tell which rows of a table of splits (`FILES_SCHEMA`) may hold a row that matches. No request is made.

    `schema` is the table's: it types the texts of bounds and partition values. Steps run in the order `partition`
    (where splits have partition values), `window`, `min/max`, `regex`, each on what the ones before it left.
    """
    if predicate is None:
        return PrunedTable(pa.array(np.ones(files.num_rows, dtype=bool)), ())
    steps = _steps(files, schema, time_column)
    batches = [_prune_batch(each, predicate, steps) for each in files.select(_READ).to_batches(_BATCH_ROWS)]
    # -1 stands for a split that no step removed.
    removed_by = np.concatenate([np.empty(0, dtype=np.int8), *batches])
    sizes = files.column("size").fill_null(0).to_numpy()
    counted = (PruneStep(name, *_count(sizes, removed_by == number)) for number, (name, _) in enumerate(steps))
    return PrunedTable(pa.array(removed_by < 0), tuple(counted))


def manifest_filter(
    predicate: Predicate | None, *, schema: pa.Schema, time_column: str | None, partition_columns: Iterable[str]
) -> Callable[[ManifestBounds], bool]:
    """Return a function that tells from a manifest's bounds whether a split of it can hold a row that matches.

    False only when none can. Bounds of columns other than `partition_columns` and the time column are not looked at.
    """
    trusted = frozenset(partition_columns)

    def may_match(manifest: ManifestBounds) -> bool:
        if predicate is None:
            return True
        partitions = {column: bounds for column, bounds in manifest.partitions.items() if column in trusted}
        source = manifest_source(replace(manifest, partitions=partitions), schema, time_column)
        return bool(possible(predicate, by_bounds(source), 1)[0])

    return may_match


def _chosen(files: pa.Table, predicate: Predicate, snapshot: Snapshot) -> Pruned:
    pruned = prune_table(files, predicate, schema=snapshot.schema, time_column=snapshot.config.time_column)
    return Pruned(snapshot.splits.records_at(files, np.flatnonzero(pruned.keep)), pruned.steps)


def _steps(files: pa.Table, schema: pa.Schema, time_column: str | None) -> Sequence[Step]:
    always: Sequence[Step] = (
        ("window", lambda batch: by_bounds(windows_of(batch, schema, time_column))),
        ("min/max", lambda batch: by_bounds(statistics_of(batch, schema))),
        ("regex", lambda batch: _by_expressions(expressions_of(batch, schema))),
    )
    by_partition: Step = ("partition", lambda batch: by_bounds(partitions_of(batch, schema)))
    partitioned = any(len(chunk.items) for chunk in files.column("partitionValues").chunks)
    return (by_partition, *always) if partitioned else always


def _prune_batch(files: pa.RecordBatch, predicate: Predicate, steps: Sequence[Step]) -> npt.NDArray[np.int8]:
    """Return per split the number of the step that removes it, -1 where none does."""
    removed_by = np.full(files.num_rows, -1, dtype=np.int8)
    rows = np.arange(files.num_rows)  # where in the batch the rows of `files` are
    for number, (_, leaf) in enumerate(steps):
        left = removed_by[rows] < 0
        if not left.any():
            break
        if left.sum() * _FEW < len(rows):
            rows, files = rows[left], files.filter(pa.array(left))
            left = left[left]
        keeps = possible(predicate, leaf(files), files.num_rows)
        removed_by[rows[left & ~keeps]] = number
    return removed_by


def _count(sizes: npt.NDArray[np.int64], removed: Mask) -> tuple[int, int]:
    return int(removed.sum()), int(sizes[removed].sum())


def possible(predicate: Predicate, leaf: Leaf, count: int) -> Mask:
    """Return per part of a table, of which there are `count`, False only where no row can make the predicate true."""
    match predicate:
        case And(children):
            mask = np.ones(count, dtype=bool)
            for child in children:
                if mask.any():
                    mask &= possible(child, leaf, count)
            return mask
        case Or(children):
            mask = np.zeros(count, dtype=bool)
            for child in children:
                if not mask.all():
                    mask |= possible(child, leaf, count)
            return mask
        case IsNull() | Compare():
            found = leaf(predicate)
            return np.ones(count, dtype=bool) if found is None else found
        case Opaque(_):
            return np.ones(count, dtype=bool)
        case _:
            assert_never(predicate)


def conditions(predicate: Predicate) -> Iterator[Compare | IsNull]:
    """Yield the conditions of a predicate that `possible` asks about, in their order."""
    match predicate:
        case And(children) | Or(children):
            for child in children:
                yield from conditions(child)
        case Compare() | IsNull():
            yield predicate
        case Opaque(_):
            return
        case _:
            assert_never(predicate)


def by_bounds(source: Source) -> Leaf:
    """Return the answer by bounds, for `possible`: of the parts of a table whose bounds `source` gives."""

    def leaf(condition: Compare | IsNull) -> Mask | None:
        bounds = source(condition.column)
        if bounds is None:
            return None
        if isinstance(condition, IsNull):
            return _nullness_may_match(bounds, negated=condition.negated)
        # A comparison with null is never true, whatever it compares with.
        some = _nullness_may_match(bounds, negated=True)
        wanted = interval(condition.value, bounds.type)
        return some if wanted is None else some & _compare_may_match(bounds, condition.comparison, wanted)

    return leaf


def _by_expressions(expressions: Callable[[str], pa.Array | None]) -> Leaf:
    """Each distinct expression is tried once. One that is left costs less than the request for its split."""

    def leaf(condition: Compare | IsNull) -> Mask | None:
        if not isinstance(condition, Compare) or condition.comparison is not Comparison.EQ:
            return None
        texts = expressions(condition.column)
        if texts is None or not isinstance(condition.value, str):
            return None
        coded = texts.dictionary_encode()
        wanted = condition.value
        matching = np.array([may_match(text, wanted) for text in coded.dictionary.to_pylist()] + [True], np.bool_)
        codes = coded.indices.fill_null(len(matching) - 1).to_numpy()
        found: Mask = matching[codes]
        return found

    return leaf


def _nullness_may_match(bounds: ColumnBounds, *, negated: bool) -> Mask:
    """Whether some row may be null, or with `negated` may not be."""
    some = pc.not_equal(bounds.nulls, bounds.rows) if negated else pc.greater(bounds.nulls, 0)
    return unless_false(some)


def _compare_may_match(bounds: ColumnBounds, comparison: Comparison, wanted: Interval) -> Mask:
    match comparison:
        case Comparison.EQ:
            return at_most(bounds.low(), wanted.greatest) & at_least(bounds.high(), wanted.least)
        case Comparison.LT:
            return at_most(bounds.low(), wanted.greatest, strictly=True)
        case Comparison.LE:
            return at_most(bounds.low(), wanted.greatest)
        case Comparison.GT:
            return at_least(bounds.high(), wanted.least, strictly=True)
        case Comparison.GE:
            return at_least(bounds.high(), wanted.least)
        case Comparison.NE:
            return ~_is_everywhere(bounds, wanted)
        case _:
            assert_never(comparison)


def _is_everywhere(bounds: ColumnBounds, wanted: Interval) -> Mask:
    """Whether every value of the split is certainly the literal's."""
    low, high = bounds.low(), bounds.high()
    if wanted.least != wanted.greatest:
        return np.zeros(len(low), dtype=bool)
    known: Mask = pc.and_(low.is_valid(), high.is_valid()).to_numpy(zero_copy_only=False)
    return known & at_least(low, wanted.least) & at_most(high, wanted.least)
