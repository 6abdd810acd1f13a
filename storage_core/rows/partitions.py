"""Values of partition fields: of rows, as text, and which values of the column a text stands for.

Transforms are Iceberg's, and so is the hash of `bucket`: murmur3 (x86, 32 bits, seed 0). Null gives null.

| Transform | Of | Value as text |
|---|---|---|
| `identity` | integer, decimal, boolean, date, timestamp, string | as bounds have it; of a string 1,024 code points |
| `bucket[n]` | the same but boolean | `(hash & 0x7fffffff) % n` |
| `truncate[w]` | integer, string | the multiple of w at or below; the first w code points, at most 1,024 |
| `year`, `month`, `day` | date, timestamp | `2015`, `2015-05`, `2015-05-17`, in UTC |
| `hour` | timestamp | `2015-05-17-10`, in UTC |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import InvalidInput
from storage_core.rows.bound_text import next_after_prefix, text_of
from storage_core.rows.codes import codes
from storage_core.rows.iceberg_hash import iceberg_hashes
from storage_core.rows.keys import dense_ranks, pack
from storage_core.rows.sortable import bound_keys
from storage_core.rows.vectors import type_text
from storage_core.settings.partition_fields import LONGEST_TEXT, PartitionField, PartitionTransform

Partition = Mapping[str, str]
"""The values of one partition, by the names of its fields, in their order; one that is null is left out."""

_UNITS: Final[Mapping[PartitionTransform, str]] = {
    PartitionTransform.YEAR: "Y",
    PartitionTransform.MONTH: "M",
    PartitionTransform.DAY: "D",
    PartitionTransform.HOUR: "h",
}
_LEAST, _MOST = -(2**63), 2**63 - 1


def value_type(field: PartitionField, source: pa.DataType) -> pa.DataType:
    """Return the type in whose order texts of the field are. Raises `InvalidInput` for a column it has no value of."""
    kinds, transform = pa.types, field.transform
    plain = kinds.is_integer(source) or kinds.is_decimal(source) or kinds.is_string(source)
    dated = kinds.is_date32(source) or kinds.is_timestamp(source)
    match transform:
        case PartitionTransform.IDENTITY:
            fits, found = plain or dated or kinds.is_boolean(source), source
        case PartitionTransform.BUCKET:
            fits, found = plain or dated, pa.int32()
        case PartitionTransform.TRUNCATE:
            fits, found = kinds.is_integer(source) or kinds.is_string(source), source
        case PartitionTransform.HOUR:
            fits, found = kinds.is_timestamp(source), pa.string()
        case _:
            fits, found = dated, pa.string()
    if not fits:
        raise InvalidInput(
            f"partition_by {field.text}: {transform} has no value for {field.column!r} of type {type_text(source)}; "
            "partition by another column, or by another transform",
            column=field.column,
        )
    return found


def check_partitions(fields: Sequence[PartitionField], schema: pa.Schema, primary_key: Sequence[str]) -> None:
    """Return when a table of this schema and key can be partitioned so. Raises `InvalidInput` naming the field."""
    folded = {name.casefold() for name in schema.names}
    for field in fields:
        if field.column not in schema.names:
            raise InvalidInput(
                f"partition_by names the column {field.column!r}; the table has {schema.names}", column=field.column
            )
        value_type(field, schema.field(field.column).type)
        if field.transform is not PartitionTransform.IDENTITY and field.name.casefold() in folded:
            raise InvalidInput(
                f"partition_by {field.text} is called {field.name!r} in the log, which is a column of the table; "
                "rename that column",
                column=field.name,
            )
        if primary_key and field.column not in primary_key:
            raise InvalidInput(
                f"partition_by {field.text}: a keyed table is partitioned by columns of its key {list(primary_key)} "
                f"only, for else one key could be in two partitions; add {field.column!r} to primary_key, or leave "
                "it out of partition_by",
                column=field.column,
            )


def value_schema(fields: Sequence[PartitionField], schema: pa.Schema) -> pa.Schema:
    """Return the fields as columns: their names, and the types in whose order their texts are."""
    return pa.schema([(each.name, value_type(each, schema.field(each.column).type)) for each in fields])


def by_partition(rows: pa.Table, fields: Sequence[PartitionField]) -> list[tuple[Partition, pa.Table]]:
    """Return the rows of each partition, in the order given. Rows already grouped are sliced, not copied.

    Partitions ascend by their values, null last. A column that the rows lack is null. No rows, no partitions.
    """
    if not rows.num_rows:
        return []
    if not fields:
        return [({}, rows)]
    values = [_values(each, _column(rows, each.column)) for each in fields]
    ranks = dense_ranks(pack([codes(pa.chunked_array([each])) for each in values], rows.num_rows)).astype(np.int64)
    if np.any(ranks[1:] < ranks[:-1]):
        order = np.argsort(ranks, kind="stable")
        rows, ranks = rows.take(pa.array(order)), ranks[order]
        values = [each.take(pa.array(order)) for each in values]
    first = np.flatnonzero(np.diff(ranks, prepend=-1))
    texts = [_texts(each, own.take(pa.array(first))) for each, own in zip(fields, values, strict=True)]
    ends = [*first[1:].tolist(), rows.num_rows]
    return [
        (
            {field.name: text for field, text in zip(fields, own, strict=True) if text is not None},
            rows.slice(start, end - start),
        )
        for start, end, *own in zip(first.tolist(), ends, *texts, strict=True)
    ]


def _column(rows: pa.Table, name: str) -> pa.Array:
    if name not in rows.column_names:
        return pa.nulls(rows.num_rows, pa.string())
    column = rows.column(name).combine_chunks()
    found = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    return found.dictionary_decode() if pa.types.is_dictionary(found.type) else found


def _values(field: PartitionField, column: pa.Array) -> pa.Array:
    """The values before they are text; those of times are numbers of units since 1970."""
    match field.transform:
        case PartitionTransform.IDENTITY:
            is_text = pa.types.is_string(column.type)
            return pc.utf8_slice_codeunits(column, 0, LONGEST_TEXT) if is_text else column
        case PartitionTransform.BUCKET:
            return buckets(column, field.parameter)
        case PartitionTransform.TRUNCATE if pa.types.is_string(column.type):
            return pc.utf8_slice_codeunits(column, 0, min(field.parameter, LONGEST_TEXT))
        case PartitionTransform.TRUNCATE:
            return _multiples(column, field.parameter)
        case _:
            return _like(column, _microseconds(column).astype(f"datetime64[{_UNITS[field.transform]}]").view(np.int64))


def buckets(column: pa.Array, count: int) -> pa.Array:
    """Return the number of the bucket of each value, null for null."""
    return _like(column, (iceberg_hashes(column) & np.uint32(0x7FFFFFFF)).astype(np.int64) % count)


def _multiples(column: pa.Array, width: int) -> pa.Array:
    values = column.cast(pa.int64()).fill_null(0).to_numpy()
    remainder = np.mod(values, np.int64(width))  # never negative, so this is the floor
    # The lowest multiples lie below 64 bits: those values share the least one.
    return _like(column, np.where(values < _LEAST + remainder, np.int64(_LEAST), values - remainder))


def _microseconds(column: pa.Array) -> npt.NDArray[np.datetime64]:
    zone = getattr(column.type, "tz", None)
    ticks = column.cast(pa.timestamp("us", tz=zone)).cast(pa.int64()).fill_null(0).to_numpy()
    found: npt.NDArray[np.datetime64] = ticks.view("datetime64[us]")
    return found


def _like(column: pa.Array, values: npt.NDArray[np.int64]) -> pa.Array:
    return pa.array(values, pa.int64(), mask=column.is_null().to_numpy(zero_copy_only=False))


def _texts(field: PartitionField, values: pa.Array) -> list[str | None]:
    unit = _UNITS.get(field.transform)
    if unit is None:
        return [text_of(each) for each in values]
    times = np.datetime_as_string(values.fill_null(0).to_numpy().view(f"datetime64[{unit}]"))
    return [
        str(text).replace("T", "-") if known else None for text, known in zip(times, values.is_valid(), strict=True)
    ]


def range_keys(field: PartitionField, texts: pa.Array, type_: pa.DataType) -> tuple[pa.Array, pa.Array] | None:
    """Return keys (`rows.sortable`) of the least and the greatest value of the column that each text may stand for.

    Null where unknown. None for buckets, which have values of everywhere.
    """
    unit = _UNITS.get(field.transform)
    if unit is not None:
        return _of_times(texts, unit)
    if field.transform is PartitionTransform.BUCKET:
        return None
    low = bound_keys(texts, type_)
    if pa.types.is_string(type_):
        width = min(field.parameter or LONGEST_TEXT, LONGEST_TEXT)
        return low, _mapped(texts, lambda text: text if len(text) < width else next_after_prefix(text), pa.string())
    if field.transform is PartitionTransform.TRUNCATE:
        most = pc.min_element_wise(low, pa.scalar(_MOST - field.parameter + 1))
        return low, pc.add(most, field.parameter - 1)
    return low, low


def _of_times(texts: pa.Array, unit: str) -> tuple[pa.Array, pa.Array]:
    def start(text: str, step: int) -> int | None:
        try:
            first = np.array([f"{text[:10]}T{text[11:]}" if unit == "h" else text], f"datetime64[{unit}]")
        except ValueError:
            return None
        return int((first + step).astype("datetime64[us]").view(np.int64)[0]) - step

    first, last = (_mapped(texts, partial(start, step=step), pa.int64()) for step in (0, 1))
    return first, last


def _mapped(texts: pa.Array, make: Callable[[str], object], type_: pa.DataType) -> pa.Array:
    """What each text becomes; each distinct one is looked at once."""
    coded = texts.dictionary_encode()
    found = pa.array([make(text) for text in coded.dictionary.to_pylist()], type_)
    return found.take(coded.indices)
