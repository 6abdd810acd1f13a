"""Sorted rows to the bytes of one Parquet file, and what tells where to cut them so that each has the target size.

Pure: no store, no clock. Which encoding a column gets is the caller's choice (`split.encodings`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage_core.errors import InvalidInput
from storage_core.formats.parquet_footer import MAGIC, footer_start, of_single_pages
from storage_core.rows.field_ids import identified
from storage_core.rows.order import ranks
from storage_core.rows.sort_order import SortOrder
from storage_core.rows.vectors import is_vector
from storage_core.settings.split_codec import USUAL_CODEC, SplitCodec
from storage_core.split import chunk_checksums, vector_pages
from storage_core.split.encodings import (
    CHOSEN_DICTIONARY_BYTES,
    DICTIONARY_BYTES,
    ROWS_PER_PAGE,
    VECTOR_PAGE_BYTES,
    Encodings,
    by_dictionary,
)
from storage_core.split.metadata import with_checksum
from storage_core.split.packed_metadata import packed
from storage_core.split.sink import Sink

BLOOM_FALSE_POSITIVES: Final = 0.01

_SAMPLE_SLICES: Final = 8
_SAMPLE_ROWS: Final = 8192


@dataclass(frozen=True, slots=True)
class BloomFilters:
    """Parquet's own Bloom filters, one per column and row group, each for as many values as a row group has rows."""

    columns: Collection[str]
    rows: int

    def options(self, schema: pa.Schema, *, but: Collection[str]) -> dict[str, dict[str, float]] | None:
        """Return what Arrow's writer wants for the columns that the file has, without some; None for none of them."""
        present = [name for name in schema.names if name in self.columns and name not in but]
        return {name: {"ndv": max(1, self.rows), "fpp": BLOOM_FALSE_POSITIVES} for name in present} or None


class FileWriter:
    """One Parquet file, written row group by row group; in memory, or `on_disk` until it is complete.

    Dictionary columns are written as columns of their values, without being decoded where `encodings` says dictionary.
    Every page carries a checksum. The columns `may_hold_nan` have no statistics: Parquet's bounds leave NaN out, and
    readers would miss its rows. `schema` is that of the rows as they come, dictionaries included. Columns that have one
    of `field_ids` are written with it.
    """

    def __init__(
        self,
        schema: pa.Schema,
        order: SortOrder,
        encodings: Encodings,
        *,
        may_hold_nan: Collection[str] = (),
        bloom_filters: BloomFilters | None = None,
        field_ids: Mapping[str, int] = MappingProxyType({}),
        codec: SplitCodec = USUAL_CODEC,
        packed_metadata: bool = False,
        on_disk: bool = False,
    ) -> None:
        self._packed_metadata = packed_metadata
        self._schema = pa.schema([_identified(field, field_ids) for field in schema])
        self._sink = Sink(on_disk=on_disk)
        self._without_statistics = frozenset(may_hold_nan)
        plain = plain_schema(schema)
        shared = _shared_paths(plain)
        others = {
            name: each.value
            for name, each in encodings.items()
            if not by_dictionary(encodings, name) and name not in shared
        }
        vectors = {field.name for field in plain if is_vector(field.type)}
        # Numbers of vectors hardly become smaller, and a search takes few of them, each from another page.
        packed = _leaves(plain, but=vectors) if vectors else None
        level = codec.effective_level
        without_dictionary = {*others, *vectors}  # no number of a vector comes again
        self._writer = pq.ParquetWriter(
            self._sink.stream,
            self._schema,
            compression=codec.name if packed is None else dict.fromkeys(packed, codec.name),
            compression_level=level if packed is None or level is None else dict.fromkeys(packed, level),
            data_page_size=VECTOR_PAGE_BYTES if vectors else None,
            use_dictionary=_leaves(plain, but=without_dictionary) if without_dictionary else True,
            column_encoding=others or None,
            # the Arrow schema would bring dictionary types back on reading; the native types say everything
            store_schema=False,
            write_statistics=_leaves(plain, but=may_hold_nan) if may_hold_nan else True,
            write_page_index=True,
            write_page_checksum=True,
            max_rows_per_page=ROWS_PER_PAGE,
            dictionary_pagesize_limit=CHOSEN_DICTIONARY_BYTES if encodings else DICTIONARY_BYTES,
            sorting_columns=_native_sorting(order, plain),
            bloom_filter_options=None if bloom_filters is None else bloom_filters.options(plain, but=shared),
        )

    @property
    def size(self) -> int:
        """The bytes written so far; the footer is not among them."""
        return self._sink.size

    def add(self, rows: pa.Table) -> None:
        """Append rows as one row group; `row_groups.rows_per_group` says how many belong into one.

        Raises `InvalidInput` for NaN in a column that was not said to hold any.
        """
        unexpected = nan_columns(rows) - self._without_statistics
        if unexpected:
            raise InvalidInput(f"NaN in {sorted(unexpected)}, of which the writer was told that there is none")
        with self._sink.writing():
            self._writer.write_table(rows.replace_schema_metadata(None))

    def finish(self, metadata: Mapping[str, str]) -> pa.Buffer:
        """Return the complete bytes; nothing can be added afterwards.

        Among them are `metadata`, checksums of column chunks and of pages of vectors, and a checksum over all of these.
        A file of one page per column has no page index (decision 0153).
        """
        with self._sink.writing():
            self._writer.close()
            written = self._sink.finish()
            footer = pq.read_metadata(pa.BufferReader(written))
            pages = vector_pages.entry(written, footer, self._schema)
            checked = with_checksum({**metadata, **chunk_checksums.entry(written, footer), **pages})
            checked = packed(checked) if self._packed_metadata else checked
            end, start = _footer(self._schema, checked, footer), footer_start(written)
            if footer.num_row_groups == 1 and footer.num_rows <= ROWS_PER_PAGE:
                end, start = of_single_pages(end) or (end, start)
            return self._sink.with_end(written.slice(0, start), end)


def _footer(schema: pa.Schema, metadata: Mapping[str, str], closed: pq.FileMetaData) -> bytes:
    """The end of a file with the row groups of `closed` and this metadata: what Arrow adds only before they are known.

    It knows where the column chunks are when it has written its own footer.
    """
    empty, end = pa.BufferOutputStream(), pa.BufferOutputStream()
    with pq.ParquetWriter(empty, schema, store_schema=False) as writer:
        writer.add_key_value_metadata(dict(metadata))
    footer = pq.read_metadata(pa.BufferReader(empty.getvalue()))
    footer.append_row_groups(closed)
    footer.write_metadata_file(end)
    return bytes(memoryview(end.getvalue())[len(MAGIC) :])


def nan_columns(rows: pa.Table) -> frozenset[str]:
    """Return the columns in which NaN occurs; of floats inside nested columns nobody asks, so there it is assumed."""
    return frozenset(
        name for name, column in zip(rows.column_names, rows.columns, strict=True) if _may_hold_nan(column)
    )


def decoded(rows: pa.Table) -> pa.Table:
    """Return the same rows with dictionary columns as plain columns."""
    if not any(pa.types.is_dictionary(field.type) for field in rows.schema):
        return rows
    return rows.cast(plain_schema(rows.schema))


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema that `decoded` rows of this one have."""
    return pa.schema([_plain(field) for field in schema])


def has_float(type_: pa.DataType) -> bool:
    """Whether values of the type are floats or have floats in them."""
    inner = [type_.field(index).type for index in range(type_.num_fields)]
    return bool(pa.types.is_floating(type_)) or any(has_float(each) for each in inner)


def next_key_change(rows: pa.Table, order: SortOrder, start: int) -> int:
    """Return the first row from `start` on, at least 1, whose key differs from the row before; else the row count."""
    if not order.columns:
        return start
    keys = order.present(rows.column_names).columns
    width = 64
    while start < rows.num_rows:
        end = min(start + width, rows.num_rows)
        piece = rows.slice(start - 1, end - start + 1)
        changed = np.zeros(piece.num_rows - 1, dtype=np.bool_)
        for each in keys:
            codes = ranks(piece.column(each.name), each.descending)
            changed |= codes[1:] != codes[:-1]
        hits = np.flatnonzero(changed)
        if hits.size:
            return start + int(hits[0])
        if end == rows.num_rows:
            break
        width *= 2
    return int(rows.num_rows)


def encoded_bytes_per_row(
    rows: pa.Table,
    order: SortOrder,
    encodings: Encodings,
    codec: SplitCodec = USUAL_CODEC,
) -> float:
    """Return what a row takes in a file, measured on evenly spread slices; exact for up to 65,536 rows.

    Slices are decoded, because each would carry the dictionary of all rows.
    """
    starts = np.linspace(0, max(0, rows.num_rows - _SAMPLE_ROWS), _SAMPLE_SLICES).astype(np.int64)
    if rows.num_rows <= _SAMPLE_SLICES * _SAMPLE_ROWS:
        sample = rows
    else:
        sample = pa.concat_tables([decoded(rows.slice(int(start), _SAMPLE_ROWS)) for start in starts])
    file = FileWriter(sample.schema, order, encodings, may_hold_nan=nan_columns(sample), codec=codec)
    file.add(sample)
    return int(file.finish({}).size) / int(sample.num_rows)


def _identified(field: pa.Field, ids: Mapping[str, int]) -> pa.Field:
    """The field as Arrow writes it with its id and those of what is inside, or without any."""
    number = ids.get(field.name)
    return field.remove_metadata() if number is None else identified(field, number)


def _plain(field: pa.Field) -> pa.Field:
    if pa.types.is_dictionary(field.type):
        return pa.field(field.name, field.type.value_type, field.nullable)
    return pa.field(field.name, field.type, field.nullable)


def _may_hold_nan(column: pa.ChunkedArray) -> bool:
    """Whether NaN occurs; of floats inside nested columns nobody asks, so there it is assumed."""
    if pa.types.is_nested(column.type):
        return has_float(column.type)
    return pa.types.is_floating(column.type) and bool(pc.any(pc.is_nan(column)).as_py())


def _leaves(schema: pa.Schema, *, but: Collection[str]) -> list[str]:
    """The leaf columns of a Parquet file of this schema, as paths, without those of the columns `but`.

    Arrow's writer finds a leaf by its path alone, so other leaves with the path of an excluded one are excluded too.
    """
    paths = _paths(schema)
    excluded = {path for path, owner in paths if owner in but}
    return [path for path, _ in paths if path not in excluded]


def _shared_paths(schema: pa.Schema) -> frozenset[str]:
    """The paths that two leaves have, such as column `a.b` and field `b` of column `a`.

    What Arrow's writer is told of such a path holds for both, whose types may differ. So both are written as usual.
    """
    if not any("." in name for name in schema.names):
        return frozenset()
    times = Counter(path for path, _ in _paths(schema))
    return frozenset(path for path, number in times.items() if number > 1)


def _paths(schema: pa.Schema) -> list[tuple[str, str]]:
    """The path of each leaf column of a Parquet file of this schema, and the column that it belongs to."""
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    leaves = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    owners = [name for field in schema for name in [field.name] * _leaf_count(field.type)]
    return [(leaves.column(index).path, owner) for index, owner in enumerate(owners)]


def _leaf_count(type_: pa.DataType) -> int:
    return sum(_leaf_count(type_.field(index).type) for index in range(type_.num_fields)) or 1


def _native_sorting(order: SortOrder, schema: pa.Schema) -> list[pq.SortingColumn] | None:
    keys = order.present(schema.names).columns
    counts = [_leaf_count(field.type) for field in schema]
    first = dict(zip(schema.names, accumulate(counts, initial=0), strict=False))  # not by path, which two may have
    nulls_first = any(each.nulls_first for each in keys)
    return [pq.SortingColumn(first[each.name], each.descending, nulls_first) for each in keys] or None
