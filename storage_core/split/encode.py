"""Encoding of sorted rows as one Parquet file, and size estimates to divide rows into files of the target size.

`choose` selects the encoding of each column. `FileWriter` writes a file, and `Sink` holds the bytes of the file in
memory or on disk. The module uses no store and no clock.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import weakref
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from types import MappingProxyType
from typing import Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage_core.base.errors import InvalidInput, typed
from storage_core.base.process import scratch, scratch_folder
from storage_core.data.formats.parquet_footer import MAGIC, footer_start, of_single_pages
from storage_core.data.rows.schema import identified
from storage_core.data.rows.sort_order import SortOrder, ranks
from storage_core.data.rows.vectors import is_vector
from storage_core.data.settings.table import USUAL_CODEC, SplitCodec
from storage_core.split import verification
from storage_core.split.metadata import PREFIX, json_object, with_checksum
from storage_core.split.verification import packed

# The choice of a Parquet encoding per column. The encoding with the smallest result on a sample of the stored rows is
# chosen.
#
# See docs/architecture/compaction.md, "Encodings". The best encoding depends on the sort order. For example, sorted
# counters are small if only their differences are stored. Sorted names are small if common prefixes are omitted. A
# dictionary of many names is large. Every file contains the chosen encodings. Therefore a merge of several files can
# reuse their encodings without a new measurement.


ROWS_PER_PAGE: Final = 4096
"""The number of rows per page. A lookup by page index decodes this number of rows per column.

Pages with fewer rows would make all reads except lookups slower (docs/architecture/compaction.md).
"""

VECTOR_PAGE_BYTES: Final = 65_536
"""The size of a page in bytes. A search reads one page per vector. In a file with vectors, all pages have this size."""

DICTIONARY_BYTES: Final = 65_536
"""The size limit of a dictionary without a chosen encoding. A larger dictionary makes a small row group larger.

Parquet's default size limit for dictionaries (1 MiB) is too large for numbers.
"""

CHOSEN_DICTIONARY_BYTES: Final = 2**20
"""The maximum size of a chosen dictionary.

This limit is larger than `DICTIONARY_BYTES`, because a dictionary is chosen only if the values repeat, and the values
may be texts.
"""

LEAST_ROWS: Final = 32_768
"""The minimum number of rows for which encodings are chosen.

Splits with fewer new rows than this minimum are merged soon. Choosing encodings would then cost more than it saves. If
encodings were chosen for fewer rows, they are not reused for more rows.
"""

_SAMPLE_SLICES: Final = 4
_SAMPLE_ROWS: Final = ROWS_PER_PAGE
_WORTH_BYTES: Final = 0.25
"""The minimum saving in bytes per row.

An encoding other than the dictionary is used for a string column only if it saves at least this number of bytes.

A merge does not decode dictionaries, so it is several times as fast with a dictionary.
"""

_KEY: Final = "encodings"


class Encoding(StrEnum):
    """The encodings of a column's values.

    The encoding `BYTE_STREAM_SPLIT` is missing, because Spark 4.2 cannot read it.
    """

    DICTIONARY = "DICTIONARY"
    PLAIN = "PLAIN"
    DELTA_BINARY_PACKED = "DELTA_BINARY_PACKED"
    DELTA_BYTE_ARRAY = "DELTA_BYTE_ARRAY"
    DELTA_LENGTH_BYTE_ARRAY = "DELTA_LENGTH_BYTE_ARRAY"


Encodings = Mapping[str, Encoding]
"""The chosen encoding per column.

For a column without a chosen encoding, Parquet uses a dictionary while the dictionary is small.
"""


def candidates(type_: pa.DataType) -> tuple[Encoding, ...]:
    """Return the encodings to try for values of this type, with the dictionary first.

    Return none if there is no choice.

    Booleans and nested columns have Parquet's own encodings.
    """
    kinds = pa.types
    if kinds.is_dictionary(type_):
        return candidates(type_.value_type)
    always = (Encoding.DICTIONARY, Encoding.PLAIN)
    if kinds.is_integer(type_) or kinds.is_date(type_) or kinds.is_timestamp(type_):
        return (*always, Encoding.DELTA_BINARY_PACKED)
    if kinds.is_string(type_) or kinds.is_binary(type_):
        return (*always, Encoding.DELTA_LENGTH_BYTE_ARRAY, Encoding.DELTA_BYTE_ARRAY)
    return always if kinds.is_floating(type_) or kinds.is_decimal(type_) else ()


def choose(rows: pa.Table, total_rows: int, codec: SplitCodec = USUAL_CODEC) -> dict[str, Encoding]:
    """Return the encoding with the smallest result for each column.

    The file will have `total_rows` rows. These rows are similar to `rows` and have the same order.

    Each column is measured separately with the codec. The sample has 4 slices of one page each, and 1 to 4 encodings
    are tried. The size of a dictionary for all rows is estimated. The estimate uses the growth of the number of
    distinct values over the sample. If there are at least `LEAST_ROWS` rows, a string column prefers the dictionary.
    The dictionary may take up to a quarter of a byte per row more than the smallest encoding.
    """
    slices = _slices(rows)
    chosen: dict[str, Encoding] = {}
    for name in rows.column_names:
        tried = candidates(rows.schema.field(name).type)
        if tried:
            parts = [_plain(rows.column(name).slice(start, count)) for start, count in slices]
            chosen[name] = _smallest(parts, tried, total_rows, codec)
    return chosen


def inherited(inputs: Sequence[tuple[int, Mapping[str, str]]], schema: pa.Schema) -> dict[str, Encoding] | None:
    """Return, for each column, the encoding that was used for most rows of the inputs.

    Each input is a pair (rows, file metadata).

    Return None if the inputs do not determine the encodings, which happens in two cases. The caller then chooses
    encodings again:

    - At least half of the rows are in files without recorded encodings or in files with fewer than `LEAST_ROWS` rows.
    - A column needs an encoding, but no file recorded an encoding for the column.

    If a record contains an encoding that this release does not know, the record is ignored.
    """
    votes: dict[str, dict[Encoding, int]] = {}
    voting = 0
    for rows, metadata in inputs:
        choice = recorded(metadata) if rows >= LEAST_ROWS else {}
        voting += rows if choice else 0
        for name, encoding in choice.items():
            ballot = votes.setdefault(name, {})
            ballot[encoding] = ballot.get(encoding, 0) + rows
    wanted = [field.name for field in schema if candidates(field.type)]
    if 2 * voting <= sum(rows for rows, _ in inputs) or any(name not in votes for name in wanted):
        return None
    # If two encodings were used for the same number of rows, the encoding whose name sorts last is chosen. Therefore
    # equal inputs give equal files.
    return {name: max(votes[name], key=lambda each: (votes[name][each], each.value)) for name in wanted}


def record(encodings: Encodings, rows: int) -> dict[str, str]:
    """Return the encodings as key-value metadata, or an empty result if no merge would reuse the encodings."""
    if not encodings or rows < LEAST_ROWS:
        return {}
    return {PREFIX + _KEY: json.dumps(dict(encodings), sort_keys=True, ensure_ascii=False, separators=(",", ":"))}


def recorded(metadata: Mapping[str, str]) -> dict[str, Encoding]:
    """Return the encodings recorded in a file. The result is empty without supported encodings."""
    try:
        found = json_object(metadata, _KEY) or {}
        return {name: Encoding(value) for name, value in found.items()}
    except (ValueError, RecursionError):
        return {}


def by_dictionary(encodings: Encodings, name: str) -> bool:
    """Return whether the column is written with a dictionary, and is best read as a dictionary."""
    return encodings.get(name, Encoding.DICTIONARY) is Encoding.DICTIONARY


def _slices(rows: pa.Table) -> list[tuple[int, int]]:
    """Return slices of one page each, evenly distributed over the rows, as (start, rows).

    For a small table, return a single slice.
    """
    if rows.num_rows <= _SAMPLE_SLICES * _SAMPLE_ROWS:
        return [(0, rows.num_rows)]
    starts = np.linspace(0, rows.num_rows - _SAMPLE_ROWS, _SAMPLE_SLICES).astype(np.int64)
    return [(int(start), _SAMPLE_ROWS) for start in starts]


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _smallest(
    parts: Sequence[pa.ChunkedArray], tried: Sequence[Encoding], total_rows: int, codec: SplitCodec
) -> Encoding:
    sample = pa.chunked_array([chunk for part in parts for chunk in part.chunks], parts[0].type)
    growth = _growth(parts, sample) if total_rows > len(sample) else 0.0
    factor = max(1.0, total_rows / max(1, len(sample)))
    sizes = {encoding: _estimate(_measured(sample, encoding, codec), factor, growth) for encoding in tried}
    if pa.types.is_string(sample.type) and total_rows >= LEAST_ROWS:
        sizes[Encoding.DICTIONARY] -= _WORTH_BYTES * total_rows
    return min(tried, key=lambda encoding: sizes[encoding])


def _growth(parts: Sequence[pa.ChunkedArray], sample: pa.ChunkedArray) -> float:
    """Return Heaps' exponent, which describes how the number of distinct values grows with the rows.

    The exponent is from 0 to 1.
    """
    every_other = pa.chunked_array([chunk for part in parts[::2] for chunk in part.chunks], sample.type)
    half, whole = (max(1, int(pc.count_distinct(each).as_py())) for each in (every_other, sample))
    return min(1.0, max(0.0, math.log(whole / half) / math.log(max(2.0, len(sample) / max(1, len(every_other))))))


def _measured(sample: pa.ChunkedArray, encoding: Encoding, codec: SplitCodec) -> pq.ColumnChunkMetaData:
    by_dictionary = encoding is Encoding.DICTIONARY
    collected: list[pq.FileMetaData] = []
    pq.write_table(
        pa.table([sample], names=["c"]),
        pa.BufferOutputStream(),
        compression=codec.name,
        compression_level=codec.effective_level,
        use_dictionary=by_dictionary,
        column_encoding=None if by_dictionary else {"c": encoding.value},
        max_rows_per_page=ROWS_PER_PAGE,
        dictionary_pagesize_limit=CHOSEN_DICTIONARY_BYTES,
        write_statistics=False,
        store_schema=False,
        metadata_collector=collected,
    )
    return collected[0].row_group(0).column(0)


def _estimate(column: pq.ColumnChunkMetaData, factor: float, growth: float) -> float:
    """Return the estimated compressed bytes for rows that are `factor` times the sample.

    The exponent `growth` determines the size of the dictionary.
    """
    dictionary = column.data_page_offset - column.dictionary_page_offset if column.has_dictionary_page else 0
    pages = cast("int", column.total_compressed_size) - dictionary
    return float(dictionary * factor**growth + pages * factor)


# The encoded bytes of a split before it is complete. The encoded bytes are in memory, or on disk if the split is large.
#
# The store receives a split as a whole, and a split may have hundreds of megabytes (decision 0016).


_WHAT = "the bytes of a split"


class Sink:
    """A buffer of bytes.

    A writer first appends bytes to `stream`, and then the bytes are read back. After the bytes are read back, the
    writer can replace the last bytes of the buffer once.

    On disk, the bytes are in an unnamed file in the folder for temporary files. Therefore no file remains after a
    failure. The bytes are read back through a mapping. The operating system may drop pages of this mapping and read
    them again.
    """

    __slots__ = ("__weakref__", "_close", "_descriptor", "stream")

    def __init__(self, *, on_disk: bool) -> None:
        self.stream: pa.NativeFile = pa.BufferOutputStream()
        self._descriptor: int | None = None
        if on_disk:
            with scratch(_WHAT), scratch_folder("split") as folder:
                path = folder / "split"
                self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                self._close = weakref.finalize(self, os.close, self._descriptor)
                self.stream = pa.OSFile(str(path), "wb")

    @property
    def size(self) -> int:
        """The number of bytes that were appended so far."""
        return int(self.stream.tell())

    def writing(self) -> AbstractContextManager[None]:
        """Return a context that raises file errors and a lack of memory as `Unavailable`, with the reason."""
        return typed(_WHAT) if self._descriptor is None else scratch(_WHAT)

    def finish(self) -> pa.Buffer:
        """Return all bytes. After this call, nothing can be appended to `stream`."""
        if self._descriptor is None:
            return self.stream.getvalue()
        with self.writing():
            self.stream.close()
            return _mapped(self._descriptor)

    def with_end(self, kept: pa.Buffer, end: bytes) -> pa.Buffer:
        """Return `kept` followed by `end`. `kept` must be a prefix of the bytes that `finish` returned.

        Can be called once, at the end.
        """
        with self.writing():
            if self._descriptor is None:
                whole = pa.allocate_buffer(kept.size + len(end))
                memory = pa.FixedSizeBufferWriter(whole)
                memory.write(kept)
                memory.write(end)
                return whole
            with os.fdopen(self._descriptor, "r+b", closefd=False) as file:
                file.truncate(kept.size)
                file.seek(kept.size)
                file.write(end)
            whole = _mapped(self._descriptor)
        self._close()
        return whole


def _mapped(descriptor: int) -> pa.Buffer:
    return pa.py_buffer(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))


BLOOM_FALSE_POSITIVES: Final = 0.01

_DRAWN_SLICES: Final = 8
_DRAWN_ROWS: Final = 8192


@dataclass(frozen=True, slots=True)
class BloomFilters:
    """Parquet's Bloom filters, one per column and row group.

    The size of each filter fits the number of rows in a row group.
    """

    columns: Collection[str]
    rows: int

    def options(self, schema: pa.Schema, *, but: Collection[str]) -> dict[str, dict[str, float]] | None:
        """Return the options of Arrow's writer for the columns of the file. The result omits columns in `but`.

        Return None if the file has no such column.
        """
        present = [name for name in schema.names if name in self.columns and name not in but]
        return {name: {"ndv": max(1, self.rows), "fpp": BLOOM_FALSE_POSITIVES} for name in present} or None


class FileWriter:
    """A writer of one Parquet file.

    The writer writes one row group after the other. The bytes are in memory, or on disk with `on_disk`.

    Dictionary columns are written as columns of their values. If `encodings` contains a dictionary for a dictionary
    column, the column is not decoded. Every page has a checksum.

    Args:
        schema: The schema of the rows, including dictionaries.
        may_hold_nan: The columns without statistics. Parquet's bounds ignore NaN, so readers would miss such rows.
        field_ids: The ids to write, by column name.
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
        # Vectors cannot be compressed much. A search reads a few vectors, and each vector is in a different page.
        packed = _leaves(plain, but=vectors) if vectors else None
        level = codec.effective_level
        without_dictionary = {*others, *vectors}  # The numbers in vectors do not repeat.
        self._writer = pq.ParquetWriter(
            self._sink.stream,
            self._schema,
            compression=codec.name if packed is None else dict.fromkeys(packed, codec.name),
            compression_level=level if packed is None or level is None else dict.fromkeys(packed, level),
            data_page_size=VECTOR_PAGE_BYTES if vectors else None,
            use_dictionary=_leaves(plain, but=without_dictionary) if without_dictionary else True,
            column_encoding=others or None,
            # The Arrow schema would restore dictionary types on reading. The native types are sufficient.
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
        """The number of bytes written so far, without the footer."""
        return self._sink.size

    def add(self, rows: pa.Table) -> None:
        """Append rows as one row group. `metadata.rows_per_group` returns the number of rows.

        Raises `InvalidInput` for NaN in a column that is not in `may_hold_nan`.
        """
        unexpected = nan_columns(rows) - self._without_statistics
        if unexpected:
            raise InvalidInput(
                f"the columns {sorted(unexpected)} contain NaN, but the caller declared columns without NaN"
            )
        with self._sink.writing():
            self._writer.write_table(rows.replace_schema_metadata(None))

    def finish(self, metadata: Mapping[str, str]) -> pa.Buffer:
        """Return all bytes of the file. After this call, no row can be added.

        The file contains `metadata`, checksums of column chunks and of vector pages, and a checksum over all of these.
        A file with one page per column has no page index (docs/architecture/compaction.md).
        """
        with self._sink.writing():
            self._writer.close()
            written = self._sink.finish()
            footer = pq.read_metadata(pa.BufferReader(written))
            pages = verification.vector_pages_entry(written, footer, self._schema)
            checked = with_checksum({**metadata, **verification.checksums_entry(written, footer), **pages})
            checked = packed(checked) if self._packed_metadata else checked
            end, start = _footer(self._schema, checked, footer), footer_start(written)
            if footer.num_row_groups == 1 and footer.num_rows <= ROWS_PER_PAGE:
                end, start = of_single_pages(end) or (end, start)
            return self._sink.with_end(written.slice(0, start), end)


def _footer(schema: pa.Schema, metadata: Mapping[str, str], closed: pq.FileMetaData) -> bytes:
    """Return the footer bytes of a file. The file has the row groups of `closed` and this metadata.

    The metadata contains the positions of column chunks. The positions are known only after Arrow has written its own
    footer. Arrow cannot add metadata after it has written the footer.
    """
    empty, end = pa.BufferOutputStream(), pa.BufferOutputStream()
    with pq.ParquetWriter(empty, schema, store_schema=False) as writer:
        writer.add_key_value_metadata(dict(metadata))
    footer = pq.read_metadata(pa.BufferReader(empty.getvalue()))
    footer.append_row_groups(closed)
    footer.write_metadata_file(end)
    return bytes(memoryview(end.getvalue())[len(MAGIC) :])


def nan_columns(rows: pa.Table) -> frozenset[str]:
    """Return the columns that contain NaN.

    Nested columns with floats are always included, because they are not checked.
    """
    return frozenset(
        name for name, column in zip(rows.column_names, rows.columns, strict=True) if _may_hold_nan(column)
    )


def decoded(rows: pa.Table) -> pa.Table:
    """Return the same rows, but with dictionary columns converted to plain columns."""
    if not any(pa.types.is_dictionary(field.type) for field in rows.schema):
        return rows
    return rows.cast(plain_schema(rows.schema))


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of the rows that `decoded` returns for rows of the given schema."""
    return pa.schema([_plain_field(field) for field in schema])


def has_float(type_: pa.DataType) -> bool:
    """Return whether values of the type are floats or contain floats."""
    inner = [type_.field(index).type for index in range(type_.num_fields)]
    return bool(pa.types.is_floating(type_)) or any(has_float(each) for each in inner)


def next_key_change(rows: pa.Table, order: SortOrder, start: int) -> int:
    """Return the number of the first row, from row `start`, whose key differs from the previous row's key.

    If the key does not change after `start`, return the row count.

    `start` is at least 1.
    """
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
    """Return the bytes per row in a file, measured on evenly distributed slices. Exact for up to 65,536 rows.

    The slices are decoded. Otherwise each slice would contain the dictionary of all rows.
    """
    starts = np.linspace(0, max(0, rows.num_rows - _DRAWN_ROWS), _DRAWN_SLICES).astype(np.int64)
    if rows.num_rows <= _DRAWN_SLICES * _DRAWN_ROWS:
        sample = rows
    else:
        sample = pa.concat_tables([decoded(rows.slice(int(start), _DRAWN_ROWS)) for start in starts])
    file = FileWriter(sample.schema, order, encodings, may_hold_nan=nan_columns(sample), codec=codec)
    file.add(sample)
    return int(file.finish({}).size) / int(sample.num_rows)


def _identified(field: pa.Field, ids: Mapping[str, int]) -> pa.Field:
    """Return the field in the form that Arrow writes.

    The result has the ids of the field and of its inner fields, or no ids.
    """
    number = ids.get(field.name)
    return field.remove_metadata() if number is None else identified(field, number)


def _plain_field(field: pa.Field) -> pa.Field:
    if pa.types.is_dictionary(field.type):
        return pa.field(field.name, field.type.value_type, field.nullable)
    return pa.field(field.name, field.type, field.nullable)


def _may_hold_nan(column: pa.ChunkedArray) -> bool:
    """Return whether the column contains NaN.

    For a nested column with floats, the result is always True, because the column is not checked.
    """
    if pa.types.is_nested(column.type):
        return has_float(column.type)
    return pa.types.is_floating(column.type) and bool(pc.any(pc.is_nan(column)).as_py())


def _leaves(schema: pa.Schema, *, but: Collection[str]) -> list[str]:
    """Return the paths of the leaf columns in a Parquet file of this schema.

    The result omits leaves of columns in `but`.

    Arrow's writer identifies a leaf only by its path. Therefore, if a leaf outside these columns has the same path as
    an excluded leaf, the result omits both leaves.
    """
    paths = _paths(schema)
    excluded = {path for path, owner in paths if owner in but}
    return [path for path, _ in paths if path not in excluded]


def _shared_paths(schema: pa.Schema) -> frozenset[str]:
    """Return the paths that two leaves share, for example the column `a.b` and the field `b` of the column `a`.

    Arrow's writer applies a setting for a shared path to both leaves with this path. But the types of the leaves may
    differ. Therefore both leaves get Parquet's defaults.
    """
    if not any("." in name for name in schema.names):
        return frozenset()
    times = Counter(path for path, _ in _paths(schema))
    return frozenset(path for path, number in times.items() if number > 1)


def _paths(schema: pa.Schema) -> list[tuple[str, str]]:
    """Return the path of each leaf column of a Parquet file of this schema, and the column that contains the leaf."""
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
    # The columns are identified by position, because two leaves may have the same path.
    first = dict(zip(schema.names, accumulate(counts, initial=0), strict=False))
    nulls_first = any(each.nulls_first for each in keys)
    return [pq.SortingColumn(first[each.name], each.descending, nulls_first) for each in keys] or None
