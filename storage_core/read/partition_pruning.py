"""What the values of a table's partitions say about the columns that they were made of.

A value of `day(ts)` bounds `ts` like statistics do, and is exact: a split whose `partitionValues` lack a field has null
in its column in every row. A value of `bucket[n](id)` says which values of `id` the split may have, one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.log.files.columns import ManifestBounds
from storage_core.read.bounds import ColumnBounds
from storage_core.read.compared_bounds import may_hold
from storage_core.read.literals import MICROSECONDS_OF_A_DAY, interval
from storage_core.read.predicate import Compare, Comparison, IsNull
from storage_core.rows.codes import Mask
from storage_core.rows.map_lookup import map_column
from storage_core.rows.partitions import buckets, range_keys
from storage_core.rows.sortable import bound_keys
from storage_core.settings.partition_fields import PartitionField, PartitionTransform


@dataclass(frozen=True, slots=True)
class FieldTexts:
    """Per part of a table the least and greatest text of a partition field, null where unknown.

    `nulls` and `rows` count rows whose column is null, and all, null where unknown.
    """

    low: pa.Array
    high: pa.Array
    nulls: pa.Array
    rows: pa.Array


Texts = Callable[[PartitionField], FieldTexts | None]
Answer = Callable[[Compare | IsNull], Mask | None]


def texts_of(files: pa.RecordBatch) -> Texts:
    """Return the texts of the fields in each of a batch of splits of a table of ours."""
    values = map_column(files.column("partitionValues"))

    def texts(field: PartitionField) -> FieldTexts:
        found, rows = values.lookup(field.name), files.column("numRecords")
        return FieldTexts(found, found, pc.if_else(found.is_valid(), pa.scalar(0, pa.int64()), rows), rows)

    return texts


def texts_of_manifest(manifest: ManifestBounds) -> Texts:
    """Return the texts of the fields in one manifest: those of which every split of it has a value."""

    def texts(field: PartitionField) -> FieldTexts | None:
        if field.name not in manifest.partitions or not manifest.in_order_of_type:
            return None
        low, high = (pa.array([text], pa.string()) for text in manifest.partitions[field.name])
        return FieldTexts(low, high, pa.array([0], pa.int64()), pa.nulls(1, pa.int64()))

    return texts


def by_partition_values(fields: Sequence[PartitionField], schema: pa.Schema, texts: Texts) -> Answer:
    """Return the answer of the partition fields to conditions on columns of `schema`; None where they say nothing."""

    def masks(condition: Compare | IsNull) -> Iterator[Mask]:
        for field in fields:
            if field.column == condition.column and (found := texts(field)) is not None:
                type_ = schema.field(field.column).type
                yield may_hold(_bounds(field, found, type_), condition)
                if field.transform is PartitionTransform.BUCKET and isinstance(condition, Compare):
                    yield _may_be_in_bucket(field, found, condition, type_)

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
    """The key of a literal (`rows.sortable`) as a value of the column; None where it is none."""
    try:
        if pa.types.is_date(type_):
            days, rest = divmod(int(str(key)), MICROSECONDS_OF_A_DAY)
            return None if rest else pa.array([days], pa.int32()).cast(type_)
        if pa.types.is_timestamp(type_):
            return pa.array([int(str(key))], pa.int64()).cast(type_)
        return pa.array([key], type_)
    except (ValueError, TypeError, OverflowError, pa.ArrowException):
        return None
