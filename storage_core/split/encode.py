"""Sorted rows to the bytes of one Parquet file, and where to cut rows so that each file has the target size.

Pure: no store, no clock. Encodings are Parquet's defaults (dictionary where it stays small) with zstd; choosing them
per column is a decision of its own (design page 04, "Encodings are chosen").
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage_core.rows.order import ranks
from storage_core.rows.sort_order import SortOrder
from storage_core.split import row_groups

ZSTD_LEVEL: Final = 3
ROWS_PER_PAGE: Final = 1024
"""Small pages make the page index selective: one lookup in a sorted file decodes about this many rows per column."""

DICTIONARY_BYTES: Final = 65_536
"""Where a dictionary stops paying in so small a row group; Parquet's mebibyte would hold every value of a number."""

_SAMPLE_SLICES: Final = 8
_SAMPLE_ROWS: Final = 8192


def present_order(order: SortOrder, names: list[str]) -> SortOrder:
    """Return `order` without the columns not among `names`: a missing column is all null and orders nothing."""
    return SortOrder(columns=tuple(each for each in order.columns if each.name in names), text=order.text)


def encode(rows: pa.Table, order: SortOrder, metadata: Mapping[str, str]) -> pa.Buffer:
    """Return the complete bytes of a Parquet file that holds `rows` as they come, which must be sorted by `order`.

    Dictionary columns are written as columns of their values, without being decoded. Every page carries a checksum.
    A float column that holds NaN has no statistics: Parquet's bounds leave NaN out, and readers would miss its rows.
    """
    sink = pa.BufferOutputStream()
    plain = pa.schema([_plain(field) for field in rows.schema])
    holds_nan = {field.name for field in plain if _may_hold_nan(rows.column(field.name))}
    writer = pq.ParquetWriter(
        sink,
        rows.schema.remove_metadata(),
        compression="zstd",
        compression_level=ZSTD_LEVEL,
        # the Arrow schema would bring dictionary types back on reading; the native types say everything
        store_schema=False,
        write_statistics=_leaves(plain, but=holds_nan) if holds_nan else True,
        write_page_index=True,
        write_page_checksum=True,
        max_rows_per_page=ROWS_PER_PAGE,
        dictionary_pagesize_limit=DICTIONARY_BYTES,
        sorting_columns=_native_sorting(order, plain),
    )
    with writer:
        writer.write_table(rows.replace_schema_metadata(None), row_group_size=row_groups.ROWS_PER_GROUP)
        writer.add_key_value_metadata(dict(metadata))
    return sink.getvalue()


def decoded(rows: pa.Table) -> pa.Table:
    """Return the same rows with dictionary columns as plain columns."""
    if not any(pa.types.is_dictionary(field.type) for field in rows.schema):
        return rows
    return rows.cast(pa.schema([_plain(field) for field in rows.schema]))


def cut(rows: pa.Table, order: SortOrder, target_bytes: int) -> list[pa.Table]:
    """Return sorted `rows` as consecutive pieces of about `target_bytes` when encoded, cut only where the key changes.

    So the row keys of the pieces do not overlap. A run of equal keys is never cut, whatever its size. The number of
    pieces is rounded, not rounded up: with more than one, each has at least about three quarters of the target, and
    the planner does not take it for a small split that should be merged again.
    """
    if rows.num_rows == 0:
        return []
    if rows.nbytes <= target_bytes:
        return [rows]
    pieces = max(1, round(rows.num_rows * _encoded_bytes_per_row(rows, order) / target_bytes))
    keys = present_order(order, rows.column_names)
    wanted = [rows.num_rows * piece // pieces for piece in range(1, pieces)]
    cuts = sorted({_next_key_change(rows, keys, start) for start in wanted if start > 0} - {rows.num_rows})
    bounds = [0, *cuts, rows.num_rows]
    return [rows.slice(start, end - start) for start, end in pairwise(bounds)]


def _plain(field: pa.Field) -> pa.Field:
    if pa.types.is_dictionary(field.type):
        return pa.field(field.name, field.type.value_type, field.nullable)
    return pa.field(field.name, field.type, field.nullable)


def _may_hold_nan(column: pa.ChunkedArray) -> bool:
    """Whether NaN occurs; of floats inside nested columns nobody asks, so there it is assumed."""
    if pa.types.is_nested(column.type):
        return _has_float(column.type)
    return pa.types.is_floating(column.type) and bool(pc.any(pc.is_nan(column)).as_py())


def _has_float(type_: pa.DataType) -> bool:
    inner = [type_.field(index).type for index in range(type_.num_fields)]
    return bool(pa.types.is_floating(type_)) or any(_has_float(each) for each in inner)


def _leaves(schema: pa.Schema, *, but: Collection[str]) -> list[str]:
    """The leaf columns of a Parquet file of this schema, as paths, without those of the columns `but`."""
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    leaves = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    owners = [name for field in schema for name in [field.name] * _leaf_count(field.type)]
    return [leaves.column(index).path for index, owner in enumerate(owners) if owner not in but]


def _leaf_count(type_: pa.DataType) -> int:
    return sum(_leaf_count(type_.field(index).type) for index in range(type_.num_fields)) or 1


def _native_sorting(order: SortOrder, schema: pa.Schema) -> list[pq.SortingColumn] | None:
    keys = present_order(order, schema.names).columns
    sorting = [(each.name, "descending" if each.descending else "ascending") for each in keys]
    nulls = "at_start" if any(each.nulls_first for each in keys) else "at_end"
    return list(pq.SortingColumn.from_ordering(schema, sorting, nulls)) or None


def _encoded_bytes_per_row(rows: pa.Table, order: SortOrder) -> float:
    """Measure on evenly spread slices; decoded, because a slice would carry the dictionary of all rows."""
    starts = np.linspace(0, max(0, rows.num_rows - _SAMPLE_ROWS), _SAMPLE_SLICES).astype(np.int64)
    if rows.num_rows <= _SAMPLE_SLICES * _SAMPLE_ROWS:
        sample = rows
    else:
        sample = pa.concat_tables([decoded(rows.slice(int(start), _SAMPLE_ROWS)) for start in starts])
    size: int = encode(sample, order, {}).size
    return size / int(sample.num_rows)


def _next_key_change(rows: pa.Table, order: SortOrder, start: int) -> int:
    """Return the first row from `start` on whose key differs from the row before it, or the number of rows."""
    if not order.columns:
        return start
    width = 64
    while True:
        end = min(start + width, rows.num_rows)
        piece = rows.slice(start - 1, end - start + 1)
        changed = np.zeros(piece.num_rows - 1, dtype=np.bool_)
        for each in order.columns:
            codes = ranks(piece.column(each.name), each.descending)
            changed |= codes[1:] != codes[:-1]
        hits = np.flatnonzero(changed)
        if hits.size:
            return start + int(hits[0])
        if end == rows.num_rows:
            return int(rows.num_rows)
        width *= 2
