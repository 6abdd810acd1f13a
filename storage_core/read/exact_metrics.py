"""Least and greatest values of columns, and how many they have, as the log tells them exactly."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.log.snapshot import Snapshot
from storage_core.rows.bound_text import decode_column
from storage_core.rows.columns import stored_name
from storage_core.rows.map_lookup import map_column


@dataclass(frozen=True, slots=True)
class ExactMetrics:
    """What is known of all rows of a table: how many there are, and of columns how many have a value.

    `ends` are two rows with the least and the greatest value of each of these columns, null where there is none.
    """

    rows: int
    values: dict[str, int]
    ends: pa.Table


def exact_metrics(snapshot: Snapshot, columns: Collection[str]) -> ExactMetrics | None:
    """Return the metrics of the columns; None where the log does not tell one of them exactly. Reads every manifest.

    It does of integers, dates, timestamps, decimals and booleans in splits of our writers that have no deleted row.
    Bounds of texts are cut, those of floats do not tell of NaN, and those of others may be rounded.
    """
    fields = [snapshot.schema.field(name) for name in columns]
    if not snapshot.has_all_counts or not all(_is_exact(each.type) for each in fields):
        return None
    if any(add.deleted_rows is not None for add in snapshot.splits.marked()):
        return None
    files = snapshot.splits.table()
    if files.column("footerXxh3").null_count:
        return None
    values, ends = {}, {}
    for field in fields:
        found = _of_column(files, field)
        if found is None:
            return None
        values[field.name], ends[field.name] = found
    return ExactMetrics(snapshot.rows, values, pa.table(ends, schema=pa.schema(fields)))


def _is_exact(type_: pa.DataType) -> bool:
    kinds = pa.types
    exact = (kinds.is_integer, kinds.is_date32, kinds.is_decimal128, kinds.is_boolean)
    return any(each(type_) for each in exact) or (kinds.is_timestamp(type_) and type_.unit == "us")


def _of_column(files: pa.Table, field: pa.Field) -> tuple[int, pa.Array] | None:
    """How many rows have a value, and the least and the greatest."""
    rows, nulls = files.column("numRecords").to_numpy(), _counts(files, stored_name(field))
    if nulls is None or (nulls > rows).any() or (nulls < 0).any():
        return None
    ends = []
    for bounds, end in (("minValues", "min"), ("maxValues", "max")):
        texts = _looked_up(files, bounds, stored_name(field))
        try:
            known = pa.concat_arrays([decode_column(each, field.type).cast(field.type) for each in texts])
        except pa.ArrowInvalid:  # what is no value of the column
            return None
        if known.is_null().to_numpy(zero_copy_only=False)[nulls < rows].any():
            return None
        ends.append(pc.min_max(known)[end])
    return int((rows - nulls).sum()), pa.array(ends, field.type)


def _counts(files: pa.Table, column: str) -> np.ndarray[tuple[int], np.dtype[np.int64]] | None:
    found = pa.concat_arrays(list(_looked_up(files, "nullCounts", column)))
    return None if found.null_count else found.to_numpy()


def _looked_up(files: pa.Table, name: str, column: str) -> Iterator[pa.Array]:
    """What a map column has of a column of the table, per split."""
    for chunk in files.column(name).chunks or [pa.array([], files.schema.field(name).type)]:
        yield map_column(chunk).lookup(column)
