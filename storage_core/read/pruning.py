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

from storage_core.log.actions import Add
from storage_core.log.files.columns import ManifestBounds
from storage_core.log.snapshot import Snapshot
from storage_core.read.bounds import (
    Source,
    expressions_of,
    manifest_source,
    partitions_of,
    statistics_of,
    windows_of,
)
from storage_core.read.compared_bounds import may_hold
from storage_core.read.partition_pruning import by_partition_values, texts_of, texts_of_manifest
from storage_core.read.predicate import And, Compare, Comparison, IsNull, Opaque, Or, Predicate
from storage_core.rows.codes import Mask
from storage_core.rows.column_regex import may_match
from storage_core.settings.partition_fields import PartitionField

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
    return _chosen(snapshot.splits.table(manifests_for(snapshot, predicate)), predicate, snapshot).splits


def explain(snapshot: Snapshot, predicate: Predicate | None) -> Pruned:
    """Return what `prune` returns, and what each step leaves out. Reads every manifest, for it counts every split."""
    if predicate is None:
        return Pruned(tuple(snapshot.splits.values()), ())
    return _chosen(snapshot.splits.table(), predicate, snapshot)


def prune_of(snapshot: Snapshot, files: pa.Table, predicate: Predicate | None) -> PrunedTable:
    """Tell which rows of a table of splits of the snapshot may hold a row that matches. No request is made."""
    config = snapshot.config
    return prune_table(
        files,
        predicate,
        schema=snapshot.schema,
        time_column=config.time_column,
        partition_by=config.partition_fields,
    )


def manifests_for(snapshot: Snapshot, predicate: Predicate) -> Callable[[ManifestBounds], bool]:
    """Return the `manifest_filter` of the snapshot."""
    return manifest_filter(
        predicate,
        schema=snapshot.schema,
        time_column=snapshot.config.time_column,
        partition_columns=snapshot.metadata.partitionColumns,
        partition_by=snapshot.config.partition_fields,
    )


def prune_table(
    files: pa.Table,
    predicate: Predicate | None,
    *,
    schema: pa.Schema,
    time_column: str | None,
    partition_by: Sequence[PartitionField] = (),
) -> PrunedTable:
    """Tell which rows of a table of splits (`FILES_SCHEMA`) may hold a row that matches. No request is made.

    `schema` is the table's: it types the texts of bounds and partition values, which are those of the fields
    `partition_by`, or in a table of others values of columns. Steps run in the order `partition`
    (where splits have partition values), `window`, `min/max`, `regex`, each on what the ones before it left.
    """
    if predicate is None:
        return PrunedTable(pa.array(np.ones(files.num_rows, dtype=bool)), ())
    steps = _steps(files, schema, time_column, partition_by)
    batches = [_prune_batch(each, predicate, steps) for each in files.select(_READ).to_batches(_BATCH_ROWS)]
    # -1 stands for a split that no step removed.
    removed_by = np.concatenate([np.empty(0, dtype=np.int8), *batches])
    sizes = files.column("size").fill_null(0).to_numpy()
    counted = (PruneStep(name, *_count(sizes, removed_by == number)) for number, (name, _) in enumerate(steps))
    return PrunedTable(pa.array(removed_by < 0), tuple(counted))


def manifest_filter(
    predicate: Predicate | None,
    *,
    schema: pa.Schema,
    time_column: str | None,
    partition_columns: Iterable[str],
    partition_by: Sequence[PartitionField] = (),
) -> Callable[[ManifestBounds], bool]:
    """Return a function that tells from a manifest's bounds whether a split of it can hold a row that matches.

    False only when none can. Bounds of columns other than `partition_columns`, the fields `partition_by` and the time
    column are not looked at.
    """
    # Of ours a text may be cut, which only its field knows.
    trusted = frozenset[str]() if partition_by else frozenset(partition_columns)

    def may_match(manifest: ManifestBounds) -> bool:
        if predicate is None:
            return True
        partitions = {column: bounds for column, bounds in manifest.partitions.items() if column in trusted}
        leaf = by_bounds(manifest_source(replace(manifest, partitions=partitions), schema, time_column))
        by_value = by_partition_values(partition_by, schema, texts_of_manifest(manifest))
        return bool(possible(predicate, _both(leaf, by_value), 1)[0])

    return may_match


def _chosen(files: pa.Table, predicate: Predicate, snapshot: Snapshot) -> Pruned:
    pruned = prune_of(snapshot, files, predicate)
    return Pruned(snapshot.splits.records_at(files, np.flatnonzero(pruned.keep)), pruned.steps)


def _steps(
    files: pa.Table, schema: pa.Schema, time_column: str | None, partition_by: Sequence[PartitionField]
) -> Sequence[Step]:
    always: Sequence[Step] = (
        ("window", lambda batch: by_bounds(windows_of(batch, schema, time_column))),
        ("min/max", lambda batch: by_bounds(statistics_of(batch, schema))),
        ("regex", lambda batch: _by_expressions(expressions_of(batch, schema))),
    )
    by_partition: Step = ("partition", lambda batch: by_bounds(partitions_of(batch, schema)))
    if partition_by:
        own: Step = ("partition", lambda batch: by_partition_values(partition_by, schema, texts_of(batch)))
        return (own, *always)
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
        return None if bounds is None else may_hold(bounds, condition)

    return leaf


def _both(one: Leaf, other: Leaf) -> Leaf:
    """What neither of the answers excludes."""

    def leaf(condition: Compare | IsNull) -> Mask | None:
        found = [mask for mask in (one(condition), other(condition)) if mask is not None]
        return np.logical_and.reduce(found) if found else None

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
