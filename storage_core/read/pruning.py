"""Pruning: select the splits and the row groups that may contain a matching row.

Pruning never loses a row. A split is excluded only if none of its rows can make the filter true. A split is also kept
if pruning cannot decide, in these cases:

- a statistic is missing, or is not a valid value of its column,
- an `Opaque` condition,
- a literal with a type that is not comparable with the type of the column.

Splits are pruned in batches on the columns of the state (`log.split_columns`), and not one at a time.

The same rules prune the row groups of a split, with the bounds in the footer of the split. These bounds are used only
if the log contains the checksum of the footer. The checksum shows that Tidemark's own writer wrote the file. Tidemark's
writer writes no bounds for a column with NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Context, Decimal
from functools import cache, partial
from typing import Any, Final, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap

from storage_core.data.rows.codes import Mask, Unsigned, bound_keys, leading_keys, sortable
from storage_core.data.rows.columns import default_of, defaults, stored_name
from storage_core.data.rows.keys import map_column
from storage_core.data.rows.statistics import may_match
from storage_core.data.rows.windows import buckets, range_keys
from storage_core.data.settings.layout import PartitionField, PartitionTransform
from storage_core.log.actions import Add
from storage_core.log.snapshot import Snapshot
from storage_core.log.split_columns import ManifestBounds
from storage_core.read.bounds import (
    MICROSECONDS_OF_A_DAY,
    ColumnBounds,
    Source,
    expressions_of,
    interval,
    manifest_source,
    may_hold,
    partitions_of,
    statistics_of,
    windows_of,
)
from storage_core.read.predicate import And, Compare, Comparison, IsNull, Opaque, Or, Predicate


@dataclass(frozen=True, slots=True)
class FieldTexts:
    """The smallest and the greatest text of a partition field, for each part of a table.

    A text is null if it is unknown.

    `nulls` contains the number of rows with null in the column, and `rows` the number of all rows. A number is null if
    it is unknown.
    """

    low: pa.Array
    high: pa.Array
    nulls: pa.Array
    rows: pa.Array


Texts = Callable[[PartitionField], FieldTexts | None]
Answer = Callable[[Compare | IsNull], Mask | None]


def texts_of(files: pa.RecordBatch) -> Texts:
    """Return a function of a partition field. The function returns the field's text for each split.

    The splits must be in Tidemark's format.
    """
    values = map_column(files.column("partitionValues"))

    def texts(field: PartitionField) -> FieldTexts:
        found, rows = values.lookup(field.name), files.column("numRecords")
        return FieldTexts(found, found, pc.if_else(found.is_valid(), pa.scalar(0, pa.int64()), rows), rows)

    return texts


def texts_of_manifest(manifest: ManifestBounds) -> Texts:
    """Return a function that takes a partition field and returns its texts for one manifest.

    The texts of a field are known only if every split of the manifest has a value of the field.
    """

    def texts(field: PartitionField) -> FieldTexts | None:
        if field.name not in manifest.partitions or not manifest.in_order_of_type:
            return None
        low, high = (pa.array([text], pa.string()) for text in manifest.partitions[field.name])
        return FieldTexts(low, high, pa.array([0], pa.int64()), pa.nulls(1, pa.int64()))

    return texts


def by_partition_values(fields: Sequence[PartitionField], schema: pa.Schema, texts: Texts) -> Answer:
    """Return a function that uses the values of partition fields to evaluate conditions on columns of `schema`.

    The function returns None if the partition fields do not determine the result.
    """

    def masks(condition: Compare | IsNull) -> Iterator[Mask]:
        for each in fields:
            if each.column == condition.column and (found := texts(each)) is not None:
                type_ = schema.field(each.column).type
                yield may_hold(_bounds(each, found, type_), condition)
                if each.transform is PartitionTransform.BUCKET and isinstance(condition, Compare):
                    yield _may_be_in_bucket(each, found, condition, type_)

    def answer(condition: Compare | IsNull) -> Mask | None:
        found = list(masks(condition))
        return np.logical_and.reduce(found) if found else None

    return answer


def _bounds(field: PartitionField, found: FieldTexts, type_: pa.DataType) -> ColumnBounds:
    def key(texts: pa.Array, side: int) -> pa.Array:
        keys = range_keys(field, texts, type_)
        return bound_keys(pa.nulls(len(texts), pa.string()), type_) if keys is None else keys[side]

    return ColumnBounds(type_, lambda: key(found.low, 0), lambda: key(found.high, 1), found.nulls, found.rows)


def _may_be_in_bucket(field: PartitionField, found: FieldTexts, condition: Compare, type_: pa.DataType) -> Mask:
    everywhere = np.ones(len(found.low), np.bool_)
    wanted = interval(condition.value, type_)
    if condition.comparison is not Comparison.EQ or wanted is None or wanted.least != wanted.greatest:
        return everywhere
    value = _value(wanted.least, type_)
    if value is None:
        return everywhere
    number = buckets(value, field.parameter)
    low, high = (bound_keys(each, pa.int32()) for each in (found.low, found.high))
    inside = pc.and_(pc.less_equal(low, number[0]), pc.greater_equal(high, number[0]))
    mask: Mask = inside.fill_null(fill_value=True).to_numpy(zero_copy_only=False)
    return mask


def _value(key: object, type_: pa.DataType) -> pa.Array | None:
    """Return the column value that has this key (`data.rows.codes`), or None if no value has this key."""
    try:
        if pa.types.is_date(type_):
            days, rest = divmod(int(str(key)), MICROSECONDS_OF_A_DAY)
            return None if rest else pa.array([days], pa.int32()).cast(type_)
        if pa.types.is_timestamp(type_):
            return pa.array([int(str(key))], pa.int64()).cast(type_)
        return pa.array([key], type_)
    except (ValueError, TypeError, OverflowError, pa.ArrowException):
        return None


# A batch is large, so that few calls of Arrow are needed. A batch is also small enough for the processor's cache.
_BATCH_ROWS = 65_536
# If less than 1/`_FEW` of the rows remain, the remaining rows are copied. The removed rows are not in the copy, so they
# are not decoded.
_FEW = 8
_READ = [
    *("partitionValues", "minValues", "maxValues", "numRecords", "windowStart", "windowSeconds", "nullCounts"),
    "columnRegexes",
]

Leaf = Callable[[Compare | IsNull], Mask | None]
"""A function that returns for each split whether a row may meet the condition.

The function returns None if it cannot decide.
"""

Step = tuple[str, Callable[[pa.RecordBatch], Leaf]]


@dataclass(frozen=True, slots=True)
class PruneStep:
    """The effect of one pruning step.

    `PruneStep` contains the numbers of excluded splits, of excluded bytes, and of excluded row groups in remaining
    splits.

    If the step could not run, `note` contains the reason.
    """

    name: str
    splits: int
    bytes: int
    row_groups: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Pruned:
    """The splits that remain after all steps, and the effect of each step.

    The steps are in their order of execution.
    """

    splits: tuple[Add, ...]
    steps: tuple[PruneStep, ...]


@dataclass(frozen=True, slots=True)
class Narrowed:
    """The `splits` that may contain matching rows according to the indexes, and the cost of reading the indexes.

    The splits keep their order. If an index was used for a split, `rows` maps the path of the split to the rows that
    may meet the filter. If an index was used for a split, `told_by` maps the path of the split to the position of the
    index in `steps`.
    """

    splits: tuple[Add, ...]
    rows: Mapping[str, BitMap] = field(default_factory=dict)
    told_by: Mapping[str, int] = field(default_factory=dict)
    steps: tuple[PruneStep, ...] = ()
    requests: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class PrunedTable:
    """A mask of the remaining splits (`files.filter(keep)`), and the effect of each step in the order of execution."""

    keep: pa.BooleanArray
    steps: tuple[PruneStep, ...]


def prune(snapshot: Snapshot, predicate: Predicate | None) -> tuple[Add, ...]:
    """Return the live splits that may contain a matching row, in no order. The requests are those of `pruned`."""
    return pruned(snapshot, predicate).splits


def pruned(snapshot: Snapshot, predicate: Predicate | None, *, is_counted: bool = False) -> Pruned:
    """Return the live splits that may contain a matching row, in no order, and the effect of each pruning step.

    Makes one GET for each manifest that was not read yet, if its bounds may include a matching row. With `is_counted`,
    every manifest is read, and the steps count every split.
    """
    if predicate is None:
        return Pruned(tuple(snapshot.splits.values()), ())
    files = snapshot.splits.table(None if is_counted else manifests_for(snapshot, predicate))
    found = prune_of(snapshot, files, predicate)
    return Pruned(snapshot.splits.records_at(files, np.flatnonzero(found.keep)), found.steps)


def prune_of(snapshot: Snapshot, files: pa.Table, predicate: Predicate | None) -> PrunedTable:
    """Return which rows of `files` may contain a matching row.

    `files` is a table of splits of the snapshot. Makes no request.
    """
    config = snapshot.config
    return prune_table(
        files,
        predicate,
        schema=snapshot.schema,
        time_column=config.time_column,
        partition_by=config.partition_fields,
    )


def manifests_for(snapshot: Snapshot, predicate: Predicate) -> Callable[[ManifestBounds], bool]:
    """Return the function that `manifest_filter` creates for this snapshot."""
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
    """Return which rows of `files` may contain a matching row.

    `files` is a table of splits (`FILES_SCHEMA`). Makes no request.

    The steps run in the order `partition` (if splits have partition values), `window`, `min/max`, `regex`. Each step
    works on the splits that remain after the earlier steps.

    Args:
        files: The splits.
        predicate: The condition, or None for all splits.
        schema: The schema of the table. Its types determine the parsing of bounds and partition values.
        time_column: The time column of the table, or None.
        partition_by: The partition fields. Empty for a table of another format, which has column values as partition
            values.
    """
    if predicate is None:
        return PrunedTable(pa.array(np.ones(files.num_rows, dtype=bool)), ())
    steps = _steps(files, schema, time_column, partition_by)
    batches = [_prune_batch(each, predicate, steps) for each in files.select(_READ).to_batches(_BATCH_ROWS)]
    # The number -1 means that no step excluded the split.
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
    """Return a function that tests manifests.

    The function uses a manifest's bounds to decide whether a split of the manifest may have a matching row.

    The function returns False only if no split of the manifest can contain a matching row. The function uses only three
    kinds of bounds: those of the columns `partition_columns`, the fields `partition_by`, and the time column.
    """
    # A text bound of a Tidemark table may be truncated, so only its partition field can interpret it.
    trusted = frozenset[str]() if partition_by else frozenset(partition_columns)

    def may_match(manifest: ManifestBounds) -> bool:
        if predicate is None:
            return True
        partitions = {column: bounds for column, bounds in manifest.partitions.items() if column in trusted}
        leaf = by_bounds(manifest_source(replace(manifest, partitions=partitions), schema, time_column))
        by_value = by_partition_values(partition_by, schema, texts_of_manifest(manifest))
        return bool(possible(predicate, _both(leaf, by_value), 1)[0])

    return may_match


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
    """Return, for each split, the number of the step that excludes the split, or -1 for a split to read."""
    removed_by = np.full(files.num_rows, -1, dtype=np.int8)
    rows = np.arange(files.num_rows)  # the positions of the rows of `files` in the batch
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
    """Return a mask with one value for each of `count` parts. The mask is False if no row of a part can meet the
    predicate.
    """
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
    """Yield the conditions of a predicate in the order in which `possible` evaluates them."""
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
    """Return a `Leaf` function for the function `possible`. The `Leaf` compares a condition with the bounds from
    `source`.
    """

    def leaf(condition: Compare | IsNull) -> Mask | None:
        bounds = source(condition.column)
        return None if bounds is None else may_hold(bounds, condition)

    return leaf


def _both(one: Leaf, other: Leaf) -> Leaf:
    """Return a function that combines two functions.

    The combined function excludes a split if one of the two functions excludes the split.
    """

    def leaf(condition: Compare | IsNull) -> Mask | None:
        found = [mask for mask in (one(condition), other(condition)) if mask is not None]
        return np.logical_and.reduce(found) if found else None

    return leaf


def _by_expressions(expressions: Callable[[str], pa.Array | None]) -> Leaf:
    """Return a function that compares a condition with the regular expressions of the splits.

    Each distinct expression is compared only once. A comparison costs less than a request for a split.
    """

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


_EXACT: Final = Context(prec=80)


def groups_left(footer: pq.FileMetaData, predicate: Predicate | None, schema: pa.Schema) -> Sequence[int]:
    """Return the row groups, ascending, in which a row may make `predicate` true. Makes no request.

    `schema` is the schema of the table. A row group is kept if the footer has no usable bounds of the column. Bounds
    are not usable for columns without statistics, nested columns, and columns whose type in the file differs from the
    table. If the file lacks a column, all rows have the default value of the column, or null.
    """
    groups = range(footer.num_row_groups)
    if predicate is None:
        return groups
    left: list[int] = np.flatnonzero(possible(predicate, by_bounds(_bounds_in(footer, schema)), len(groups))).tolist()
    return left


def groups_with(rows: BitMap, footer: pq.FileMetaData, groups: Sequence[int]) -> Sequence[int]:
    """Return the given row groups that contain one of these rows of the file, in ascending order."""
    ends = np.cumsum([footer.row_group(index).num_rows for index in range(footer.num_row_groups)]).tolist()
    firsts = [0, *ends[:-1]]
    return [group for group in groups if rows.range_cardinality(firsts[group], ends[group])]


def _bounds_in(footer: pq.FileMetaData, schema: pa.Schema) -> Source:
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    rows = pa.array([group.num_rows for group in groups], pa.int64())
    found = footer.schema.to_arrow_schema()

    @cache
    def bounds(column: str) -> ColumnBounds | None:
        index = schema.get_field_index(column)
        if index < 0:
            return None
        type_, stored = schema.field(index).type, stored_name(schema.field(index))
        if stored not in found.names:
            added = partial(sortable, defaults(schema.field(index), len(groups)))
            nulls = pa.array([0] * len(groups), pa.int64()) if default_of(schema.field(index)) is not None else rows
            return ColumnBounds(type_, added, added, nulls, rows)
        leaf = _flat_leaf(footer, stored)
        if leaf is None or found.field(stored).type != type_:
            return None
        chunks = [group.column(leaf) for group in groups]
        statistics = [chunk.statistics if chunk.is_stats_set else None for chunk in chunks]
        nulls = [each.null_count if each is not None and each.has_null_count else None for each in statistics]
        low, high = (
            _keys([getattr(each, end) if each is not None and each.has_min_max else None for each in statistics], type_)
            for end in ("min_raw", "max_raw")
        )
        return ColumnBounds(type_, low, high, pa.array(nulls, pa.int64()), rows)

    return bounds


def leading_bounds(footer: pq.FileMetaData, field: pa.Field) -> tuple[Unsigned, Unsigned] | None:
    """Return the smallest and the greatest possible `leading_keys` of a column per row group, or None if unknown.

    The function `leading_keys` must support the type of the column.
    """
    bounds = _bounds_in(footer, pa.schema([field]))(field.name)
    if bounds is None:
        return None
    low, high = leading_keys(bounds.low()), leading_keys(bounds.high())
    low[bounds.low().is_null().to_numpy(zero_copy_only=False)] = 0
    high[bounds.nulls.fill_null(1).to_numpy() > 0] = leading_keys(pa.nulls(1, field.type))[0]
    return low, high


def _flat_leaf(footer: pq.FileMetaData, column: str) -> int | None:
    """Return the index of a column among the leaf columns.

    Return None for a nested column, or if several columns have the same path.
    """
    leaves = [index for index in range(footer.num_columns) if footer.schema.column(index).path == column]
    if len(leaves) != 1:
        return None
    leaf = footer.schema.column(leaves[0])
    return leaves[0] if not leaf.max_repetition_level and leaf.max_definition_level <= 1 else None


def _keys(raw: Sequence[Any], type_: pa.DataType) -> Callable[[], pa.Array]:
    """Return a function that converts Parquet bounds to bounds as keys of `data.rows.codes`.

    If one of the bounds is not a valid value, all bounds are unknown.
    """

    @cache
    def keys() -> pa.Array:
        try:
            return sortable(_values(raw, type_))
        except (pa.ArrowException, ValueError, OverflowError, ArithmeticError, TypeError):
            return sortable(pa.nulls(len(raw), type_))

    return keys


def _values(raw: Sequence[Any], type_: pa.DataType) -> pa.Array:
    kinds = pa.types
    if kinds.is_date32(type_):
        return pa.array(raw, pa.int32()).view(type_)  # Python's dates allow no year after 9999
    if kinds.is_timestamp(type_):
        return pa.array(raw, pa.int64()).view(type_)
    if kinds.is_decimal(type_):
        return pa.array([None if each is None else _decimal(each, type_.scale) for each in raw], type_)
    return pa.array(raw, pa.binary()).cast(type_) if kinds.is_string(type_) else pa.array(raw, type_)


def _decimal(raw: bytes | int, scale: int) -> Decimal:
    digits = int.from_bytes(raw, signed=True) if isinstance(raw, bytes) else raw
    return Decimal(digits).scaleb(-scale, context=_EXACT)
