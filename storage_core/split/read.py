"""Reading of splits. The module opens a split, reads its row groups, and adapts the rows to the table's current schema.

A read either returns exactly the written rows that were not deleted, or raises an error. Three checks ensure that a
read returns only correct rows (lessons 60 and 61):

- The size and xxh3-64 in the log are compared with the whole file.
- If only a part of a file is read, the checksums of the footer and of column chunks are compared with the read bytes.
  Files from early releases of version 0.1 have no such checksums, so the reader compares the checksums of pages.
- The path in the file's own metadata must be the path of the split.

Start with `open_split`, which returns an `OpenSplit`.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from pyroaring import BitMap

from storage_core.base.errors import Corrupt, InvalidInput, SnapshotExpired, Unsupported, typed
from storage_core.base.process import scratch
from storage_core.data.rows.columns import (
    default_of,
    defaults,
    has_changed,
    is_of_earlier,
    of_earlier,
    stored_name,
    stored_schema,
    without_metadata,
)
from storage_core.data.rows.sort_order import OrderColumn
from storage_core.data.rows.vectors import is_vector, listed, require_dimensions, type_text, with_vector_types
from storage_core.log.actions import Add
from storage_core.split.deletion_vectors import deleted_rows, visible
from storage_core.split.encode import has_float
from storage_core.split.fetch import Footers, VerifiedChunks, whole_split
from storage_core.split.metadata import (
    GROUP_BYTES,
    Recorded,
    consecutive_groups,
    recorded_row_groups,
    visible_row_groups,
)
from storage_core.split.verification import (
    columns_of,
    corrupt_on_failure,
    entries_of,
    require_itself,
    require_known_format,
)
from storage_core.store.contract import ObjectFile, ObjectStore
from storage_core.store.meter import prefetch
from storage_core.store.pieces import CachedPieces


def conform_split(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of `schema` in the order of `schema`.

    Columns with dictionaries are decoded, and unknown columns are omitted.

    If the split lacks a column, the column gets its default value, or null. If a column had a narrower type when the
    split was written, the column is widened. Raises `InvalidInput` if the type of a column still differs from the
    schema.
    """
    columns = dict(zip(table.column_names, table.columns, strict=True))
    found = (columns.get(stored_name(field)) for field in schema)
    return pa.table([_conformed(*each, table.num_rows) for each in zip(found, schema, strict=True)], schema=schema)


def _conformed(column: pa.ChunkedArray | None, field: pa.Field, rows: int) -> pa.ChunkedArray:
    if column is None:
        return pa.chunked_array([defaults(field, rows)])
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if is_vector(field.type) and column.type == listed(field.type):  # This type occurs only in files of other writers.
        require_dimensions(column, field)
        column = column.cast(field.type)
    if column.type == field.type:
        return column
    if not is_of_earlier(column.type, field):
        raise InvalidInput(
            f"column {field.name!r} is {type_text(column.type)} in the split and {type_text(field.type)} in the "
            "table. The split was written with another schema",
            column=field.name,
        )
    return column.cast(field.type)


# Leaf columns of a Parquet file: the leaves of a table's column, and the memory for their chunks.


VALUE_BYTES = 16
"""The approximate memory for a decoded value, in bytes. Repeated texts take more memory after they are decoded."""


def decoded_bytes(chunk: pq.ColumnChunkMetaData) -> int:
    """Return the approximate memory in bytes that a chunk takes while Arrow decodes it.

    The decoded size of texts with a dictionary is not recorded. The function compares the lengths of the smallest and
    the largest text. For each text, the function assumes the length of the smallest or of the largest text, whichever
    is greater. If these two texts are too long, they are not recorded. In this case, the function assumes that the
    chunk takes the size of a row group.
    """
    size = int(chunk.total_uncompressed_size) + VALUE_BYTES * int(chunk.num_values)
    if chunk.physical_type != "BYTE_ARRAY":
        return size
    size += int(chunk.total_uncompressed_size)
    if not chunk.has_dictionary_page:
        return size
    found = chunk.statistics
    if found is not None and found.has_min_max:
        ends = [each if isinstance(each, bytes) else str(each).encode() for each in (found.min_raw, found.max_raw)]
        return max(size, max(map(len, ends)) * int(chunk.num_values))
    nulls = 0 if found is None else found.null_count or 0
    return size if nulls == chunk.num_values else max(size, GROUP_BYTES)


def leaves_of(footer: pq.FileMetaData, columns: Collection[str] | None) -> list[int]:
    """Return the leaf columns that Arrow reads for `columns` (None for all columns), in ascending order.

    For the column `a`, the result includes the leaf `a.b`.
    """
    if columns is None:
        return [*range(footer.num_columns)]
    wanted = {*columns}
    paths = [footer.schema.column(index).path.split(".") for index in range(footer.num_columns)]
    return [
        index
        for index, path in enumerate(paths)
        if any(".".join(path[:length]) in wanted for length in range(1, len(path) + 1))
    ]


def native_order(footer: pq.FileMetaData, columns: Collection[str], path: str) -> list[OrderColumn]:
    """Return the sort order that the metadata of a file records.

    The file has these columns. Raises `Corrupt` if the order contains other columns.

    The columns are identified by path. In files of earlier releases, the order may refer to another leaf with the same
    path.
    """
    try:
        recorded = footer.row_group(0).sorting_columns
        named = [(footer.schema.column(each.column_index).path, each) for each in recorded]
        unknown = [name for name, _ in named if name not in columns]
    except (IndexError, ValueError, OverflowError) as error:
        unknown, named = [repr(error)], []
    if unknown:
        raise Corrupt(f"{path}: the sort order in its footer is damaged: {', '.join(unknown)}", key=path)
    return [OrderColumn(name, each.descending, each.nulls_first) for name, each in named]


BATCH_ROWS = 8192
"""The maximum number of decoded rows that `OpenSplit.since` holds in memory."""

TAKEN_BYTES = 64 * 2**20
"""The maximum total bytes of row groups that `OpenSplit.take` reads concurrently. A row group above this size is read
alone.
"""
_TAKEN_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class OpenSplit:
    """An open split. The footer of the split has been read and verified against the log.

    Only rows that are not deleted belong to the split. If the split was opened with `add.as_written`, all rows of the
    file belong to the split.

    Attributes:
        schema: The columns of the rows: the `stored` columns, or after `of_table` the columns of the table.
        stored: The columns of the file.
        metadata: The file's own key-value metadata.
        deleted: The deleted rows, by their row numbers in the file.
    """

    add: Add
    schema: pa.Schema
    stored: pa.Schema
    metadata: Mapping[str, str]
    deleted: BitMap
    row_groups: int
    _file: pq.ParquetFile
    _in_memory: bool
    _source: pa.NativeFile | VerifiedChunks
    _table: pa.Schema | None = None

    def of_table(self, schema: pa.Schema) -> OpenSplit:
        """Return the split with the columns of its table. These columns may have changed since the split was written.

        The columns are adapted as in `conform_split`, but dictionaries are kept, and columns keep the names that splits
        use. If the table's columns never changed, the split itself is returned.
        """
        stored = stored_schema(schema)
        return replace(self, schema=without_metadata(stored), _table=stored) if has_changed(schema) else self

    @property
    def rows(self) -> int:
        """The number of rows that are not deleted."""
        return int(self._file.metadata.num_rows) - len(self.deleted)

    def read(self, columns: Collection[str] | None = None) -> pa.Table:
        """Return the rows and columns in file order. Names that the split does not have are ignored."""
        if not self._in_memory and self.row_groups:
            return pa.concat_tables(self.batches(columns, groups=self._shown() or [0]))
        with corrupt_on_failure(self.add):
            table = with_vector_types(self._file.read(columns=self._present(columns), use_threads=True), self.stored)
        return self._visible(self._of_table(table, columns), 0)

    def batches(
        self, columns: Collection[str] | None = None, *, groups: Sequence[int] | None = None
    ) -> Iterator[pa.Table]:
        """Yield the rows in file order, one table per row group.

        At most one row group is in memory.

        Args:
            groups: The row groups to read, ascending. By default all.
        """
        chosen = range(self.row_groups) if groups is None else groups
        first_rows = self.first_rows
        for index in chosen:
            yield self._visible(self._row_group(index, columns), int(first_rows[index]))

    def pieces(self, columns: Collection[str] | None, groups: Sequence[int] | None = None) -> list[Piece]:
        """Return the rows of `batches` as pieces, in the same order. Any thread may read a piece.

        Each piece is a row group with these columns. If the split lacks all of these columns, the piece has one other
        column.
        """
        names = None if columns is None else self._wanted(columns) or self.schema.names[:1]
        chosen = range(self.row_groups) if groups is None else groups
        return [Piece(self, names, group, is_alone=len(chosen) == 1) for group in chosen]

    def chunk_bytes(self, columns: Collection[str] | None, group: int) -> int:
        """Return the approximate memory in bytes for these columns of a row group, encoded plus decoded."""
        chunks = map(self._file.metadata.row_group(group).column, self._leaves(columns))
        return sum(each.total_compressed_size + decoded_bytes(each) for each in chunks)

    def reopen(self) -> OpenSplit:
        """Return the same split with a separate file handle. Another thread may read the result."""
        own = self._source.another() if isinstance(self._source, VerifiedChunks) else self._source
        return replace(self, _source=own, _file=parquet_file(own, self.footer, sorted(self.dictionaries())))

    @property
    def _chunks(self) -> VerifiedChunks | None:
        return self._source if isinstance(self._source, VerifiedChunks) else None

    def since(self, place: int, batch_rows: int = BATCH_ROWS) -> Iterator[tuple[npt.NDArray[np.int64], pa.Table]]:
        """Yield the rows from the row number `place` on, in tables of at most `batch_rows`.

        Each table comes with its row numbers.

        The function reads the row group that contains `place` from its start, and no earlier row group. Row groups
        without a visible row are skipped. The memory holds the encoded columns of one row group, and one table.
        """
        # If `read` enabled threads, the setting remains. The argument `use_threads=False` of a later call would not
        # reset this setting.
        self._file.reader.set_use_threads(False)
        group = max(0, int(np.searchsorted(self.first_rows, place, side="right")) - 1)
        with corrupt_on_failure(self.add):
            for first, batch in self._batches_from(group, batch_rows):
                skipped = min(max(0, place - first), batch.num_rows)
                rows = self._of_table(
                    with_vector_types(pa.Table.from_batches([batch.slice(skipped)]), self.stored), None
                )
                mask = visible(self.deleted, first + skipped, rows.num_rows)
                places = np.arange(first + skipped, first + batch.num_rows)
                yield (places, rows) if mask is None else (places[mask], rows.filter(pa.array(mask)))

    def _batches_from(self, group: int, batch_rows: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows of the visible row groups, starting at row group `group`.

        Each batch comes with the row number of its first row.
        """
        chosen, first_rows = self._shown(group), self.first_rows
        for groups in consecutive_groups(chosen) if self._chunks is None else [[each] for each in chosen]:
            if self._chunks is not None:
                self._chunks.fetch(groups[0], range(self._file.metadata.num_columns))
            first = int(first_rows[groups[0]])
            for batch in self._file.iter_batches(batch_rows, row_groups=groups, use_threads=False):
                yield first, batch
                first += batch.num_rows

    def _shown(self, first: int = 0) -> list[int]:
        """Return the row groups with a visible row, starting at row group `first`."""
        return [each for each in visible_row_groups(self._file.metadata, self.deleted) if each >= first]

    def take(self, places: npt.NDArray[np.int64], columns: Collection[str] | None = None) -> pa.Table:
        """Return the rows at these ascending row numbers, including deleted rows. The columns are those of `read`.

        Only row groups with a requested row are read. If row groups must be fetched, several are read concurrently
        (`TAKEN_BYTES`). Otherwise one row group is in memory at a time.
        """
        first_rows = self.first_rows
        groups = np.searchsorted(first_rows, places, side="right") - 1

        def rows_of(index: int) -> pa.Table:
            own = self.reopen() if self.is_ranged else self
            rows = own._row_group(index, columns)  # noqa: SLF001  # of the same split
            return rows.take(pa.array(places[groups == index] - first_rows[index]))

        wanted, at_once = np.unique(groups).tolist(), _TAKEN_AT_ONCE if self.is_ranged else 1
        size = functools.partial(self.chunk_bytes, columns)
        parts = [*prefetch(rows_of, wanted, at_once, weight=size, most=TAKEN_BYTES)]
        return pa.concat_tables(parts) if parts else self.schema.empty_table()

    def _row_group(self, index: int, columns: Collection[str] | None) -> pa.Table:
        with corrupt_on_failure(self.add):
            if self._chunks is not None:
                self._chunks.fetch(index, self._leaves(columns))
            rows = self._file.read_row_group(index, columns=self._present(columns), use_threads=self._in_memory)
            rows = self._of_table(with_vector_types(rows, self.stored), columns)
            if self._chunks is not None:
                self._chunks.drop()
        expected = self._file.metadata.row_group(index).num_rows
        if rows.num_rows != expected and rows.num_columns:
            raise Corrupt(
                f"{self.add.path}: expected {expected} rows in row group {index}, found {rows.num_rows}",
                key=self.add.path,
            )
        return rows

    @property
    def is_ranged(self) -> bool:
        """Whether each column chunk is fetched only when it is read."""
        return self._chunks is not None

    @property
    def bounds(self) -> Recorded | None:
        """The column for which the file records bounds per row group, and these bounds.

        Raises `Corrupt` if the bounds are damaged.
        """
        return recorded_row_groups(self.metadata, self.add.path, self.row_groups)

    @property
    def footer(self) -> pq.FileMetaData:
        """The footer of the file."""
        return self._file.metadata

    @property
    def first_rows(self) -> npt.NDArray[np.int64]:
        """For each row group, the row number of its first row in the file."""
        counts = np.array([self._file.metadata.row_group(index).num_rows for index in range(self.row_groups)], np.int64)
        return np.cumsum(counts) - counts

    def _visible(self, table: pa.Table, first: int) -> pa.Table:
        mask = visible(self.deleted, first, table.num_rows)
        return table if mask is None else table.filter(pa.array(mask))

    def dictionaries(self) -> frozenset[str]:
        """Return the columns that are read as dictionaries."""
        return frozenset(field.name for field in self._file.schema_arrow if pa.types.is_dictionary(field.type))

    def may_hold_nan(self) -> frozenset[str]:
        """Return the columns that may contain NaN.

        These are floats without bounds in a row group, and nested floats.
        """
        footer = self._file.metadata
        groups = [footer.row_group(index) for index in range(self.row_groups)]
        columns = [group.column(index) for group in groups for index in range(group.num_columns)]
        unbounded = {each.path_in_schema for each in columns if not each.is_stats_set}
        added = () if self._table is None else (each for each in self._table if each.name not in self.stored.names)
        return frozenset(
            [
                *(each.name for each in self.stored if _may_hold_nan(each, unbounded)),
                *(each.name for each in added if default_of(each) == "NaN"),
            ]
        )

    def native_sorting(self) -> list[OrderColumn]:
        """Return the sort order that Parquet's own metadata contains, if any.

        Raises `Corrupt` if the order contains other columns.
        """
        return native_order(self._file.metadata, self.stored.names, self.add.path)

    def _leaves(self, columns: Collection[str] | None) -> list[int]:
        return leaves_of(self._file.metadata, self._present(columns))

    def _present(self, columns: Collection[str] | None) -> list[str] | None:
        if columns is None:
            return None
        names = [name for name in self.stored.names if name in columns]
        # At least one column is needed to know the number of rows.
        return names if self._table is None else names or self.stored.names[:1]

    def _wanted(self, columns: Collection[str]) -> list[str]:
        return [name for name in self.schema.names if name in columns]

    def _of_table(self, rows: pa.Table, columns: Collection[str] | None) -> pa.Table:
        if self._table is None:
            present = self._present(columns)  # For the column `a`, Arrow also reads the column `a.b`.
            return rows if present is None or rows.num_columns == len(present) else rows.select(present)
        names = self.schema.names if columns is None else self._wanted(columns)
        wanted = pa.schema([self._table.field(name) for name in names])
        return pa.table(list(of_earlier(rows, wanted)), names=names) if names else rows.select([])


def _may_hold_nan(field: pa.Field, unbounded: Collection[str]) -> bool:
    return has_float(field.type) and (pa.types.is_nested(field.type) or field.name in unbounded)


@dataclass(frozen=True, slots=True)
class Piece:
    """Some columns of one row group of a split."""

    split: OpenSplit
    columns: Collection[str] | None
    group: int
    is_alone: bool = False
    """True if no other piece uses the same split."""

    def read(self) -> pa.Table:
        """Return the rows of the piece. Raises the errors of `open_split`.

        If the split is read by ranges, the function sends ranged GETs.
        """
        return next(read_together([self]))

    @property
    def memory_bytes(self) -> int:
        """The approximate memory in bytes for reading the piece.

        This is the size of its chunks, encoded plus decompressed, and `VALUE_BYTES` per value.
        """
        return self.split.chunk_bytes(self.columns, self.group)


def read_together(pieces: Sequence[Piece]) -> Iterator[pa.Table]:
    """Yield the rows of several pieces, in order.

    All pieces have the same split and the same columns. See `Piece.read`.
    """
    first = pieces[0]
    own = first.split if first.is_alone else first.split.reopen()
    return own.batches(first.columns, groups=[each.group for each in pieces])


def parquet_file(
    source: pa.NativeFile | io.RawIOBase, footer: pq.FileMetaData | None = None, dictionaries: Sequence[str] = ()
) -> pq.ParquetFile:
    """Return a reader of a Parquet file that reads no data in advance. The footer is read if `footer` is None.

    Page checksums are verified, unless the checksums of column chunks were verified.

    Args:
        dictionaries: The columns to return as dictionaries.
    """
    return pq.ParquetFile(
        source,
        metadata=footer,
        read_dictionary=list(dictionaries) or None,
        pre_buffer=False,
        page_checksum_verification=not isinstance(source, VerifiedChunks),
    )


WHOLE_SPLIT_BYTES = 8 * 2**20
"""The size limit for a read of some rows with one GET. A larger split is read by ranges."""

SMALL_SPLIT_BYTES = 2**20
"""If nearly all bytes of a split are wanted, a split up to this size is read whole.

The transfer of a split of this size takes about as long as one request.
"""

NEEDLESS_BYTES = 2**16
"""The approximate maximum of unneeded bytes in a split that is read whole."""

AHEAD_BYTES = 2**20
"""The minimum bytes of a ranged GET, for splits from early releases of version 0.1."""

_WIDE = 8

UNREADABLE = (Corrupt, SnapshotExpired, Unsupported)
"""The errors that show that the rows of a split cannot be read."""

_DICTIONARY = frozenset({"RLE_DICTIONARY", "PLAIN_DICTIONARY"})


def is_small(add: Add, share: float = 1) -> bool:
    """Return whether one GET reads the whole split if the given share of its bytes is wanted (see `share_of`)."""
    return add.size <= SMALL_SPLIT_BYTES and add.size * (1 - share) <= NEEDLESS_BYTES


def share_of(names: Collection[str], schema: pa.Schema) -> float:
    """Return the approximate share of a split's bytes that these columns take.

    A text or list counts as much as 8 columns of other types. Columns that are not in `schema` count as 0.
    """
    taken = {field.name: 1 if _is_narrow(field.type) else _WIDE for field in schema}
    return sum(taken.get(name, 0) for name in {*names}) / max(1, sum(taken.values()))


def _is_narrow(kind: pa.DataType) -> bool:
    try:
        return int(kind.bit_width) <= 128
    except ValueError:  # The values have a variable length.
        return False


def open_split(
    store: ObjectStore,
    add: Add,
    *,
    whole: bool = True,
    share: float = 1,
    as_dictionary: bool = False,
    spool: Path | None = None,
    file_path: Path | None = None,
    footers: Footers | None = None,
    deleted: BitMap | None = None,
) -> OpenSplit:
    """Open a split for reading.

    Args:
        whole: True to read the file with one GET. The size and the xxh3-64 of the file are compared with the log before
            any byte is interpreted. The encoded file stays in memory as long as the result exists. False to send ranged
            GETs when columns are read. The footer is read first, unless `footers` contains it, then each part is read
            and its checksum is verified. A small split (`is_small`) is still read with one GET. In files of earlier
            releases, the checksums of pages are verified instead.
        share: The share of the bytes that will be read.
        as_dictionary: True to return a string column as a dictionary, without decoding, if the file stores it by
            dictionary.
        spool: A folder. If it is given with `whole`, the file is mapped instead of held in memory. The mapped file is
            the store's own file or a copy in this folder.
        file_path: The local file of the split. Its content is already verified. The file is mapped.
        footers: The cached footers and pieces. A cached part costs no request.
        deleted: The rows to hide instead of the rows of the deletion vector.

    Raises:
        Corrupt: The bytes are not what was written.
        SnapshotExpired: The file no longer exists.

    Cost:
        The requests described at `whole`. If the deletion vector is stored in an object and is not cached, also one
        GET, unless `deleted` is given.
    """
    footers = footers or Footers()
    deleted = deleted_rows(store, add, footers.cached) if deleted is None else deleted
    has_checksums = add.footerXxh3 is not None
    whole = whole or (has_checksums and file_path is None and is_small(add, share))
    footer = None
    with corrupt_on_failure(add):
        # A thread of Arrow may be the last owner of a Python object. In this case, the process aborts when Python
        # exits. So threads read only buffers that Arrow owns. The calling thread reads ranges, and never reads them in
        # advance.
        if file_path is not None:
            footer, source = footers.cached_footer(add), mapped(add, file_path)
        elif whole:
            source = _source(store, add, spool, footers.cached)
        elif has_checksums:
            footer = footers.of(store, add)
            source = VerifiedChunks(store, add, footer, footers.cached)
        else:
            source = ObjectFile(store, add.path, add.size, ahead=AHEAD_BYTES)
        file = parquet_file(source, None if footer is None else footer.file)
        entries = entries_of(file.metadata, add.path)
        schema = columns_of(add, file.schema_arrow, entries)
        if as_dictionary:
            file = parquet_file(source, file.metadata, _stored_by_dictionary(schema, file.metadata))
        if whole or footer is not None:  # Otherwise, the content of the footer has not been verified by a checksum.
            require_known_format(add, entries)
        require_itself(add, entries, schema, file.metadata)
        if deleted and deleted.max() >= file.metadata.num_rows:
            raise Corrupt(
                f"{add.path}: its deletion vector contains row {deleted.max()}, but the split has "
                f"{file.metadata.num_rows} rows",
                key=add.path,
            )
    return OpenSplit(add, schema, schema, entries, deleted, file.metadata.num_row_groups, file, whole, source)


def read_split(
    store: ObjectStore,
    add: Add,
    columns: Collection[str] | None = None,
    *,
    verify: bool = False,
    as_dictionary: bool = False,
) -> pa.Table:
    """Return the visible rows of a split in their stored order, verified against the log.

    If all columns are requested or `verify` is True, one GET reads the file, and its checksum is compared. Otherwise,
    only the byte ranges of the requested columns are read. The result omits columns that the split lacks
    (`conform_split` adds them). Raises the errors of `open_split`.
    """
    whole = verify or columns is None
    return open_split(store, add, whole=whole, as_dictionary=as_dictionary).read(columns)


def _source(store: ObjectStore, add: Add, spool: Path | None, cached: CachedPieces) -> pa.NativeFile:
    data = whole_split(store, add, cached)
    if spool is None:
        held = pa.allocate_buffer(len(data))
        memoryview(held).cast("B")[:] = data
        return pa.BufferReader(held)
    path = store.local_path(add.path)
    if path is None:
        path = spool / xxhash.xxh3_128_hexdigest(add.path.encode())
        with scratch(f"a copy of {add.path}"):
            path.write_bytes(data)
    return mapped(add, path)


def mapped(add: Add, path: Path) -> pa.NativeFile:
    """Return the memory-mapped file of a split. Errors of the system are raised as `Unavailable`."""
    with typed(add.path):
        return pa.memory_map(str(path))


def _stored_by_dictionary(schema: pa.Schema, footer: pq.FileMetaData) -> list[str]:
    """Return the string columns with a dictionary in every row group.

    The other columns are excluded, because Arrow cannot read delta encodings as dictionaries.
    """
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    columns = [group.column(index) for group in groups for index in range(group.num_columns)]
    without = {each.path_in_schema for each in columns if not _DICTIONARY.intersection(each.encodings)}
    return [field.name for field in schema if pa.types.is_string(field.type) and field.name not in without]


# Reading of a range of rows of a split for one part of a merge. Row groups without these rows are not fetched.


RowRange = tuple[int, int]
"""A range of rows of a file.

The first number is the first row, and the second number is the number after the last row.
"""


def open_part(store: ObjectStore, add: Add, rows: RowRange, *, spool: Path) -> OpenSplit:
    """Open a range of rows of a split, without the deleted rows. Rows outside `rows` count as deleted.

    The function copies the row groups that contain a wanted row to a file in `spool`. Each column chunk is verified by
    its checksum. One row group at a time is in memory. Small files, and files from early releases of version 0.1, are
    read whole. Raises the errors of `open_split`.

    Cost:
        Ranged GETs of the footer and of chunks, and one GET for a stored deletion vector.
    """
    hidden = deleted_rows(store, add) | outside(add, rows)
    if add.footerXxh3 is None or is_small(add, 1):
        return open_split(store, add, as_dictionary=True, spool=spool, deleted=hidden)
    with corrupt_on_failure(add):
        footers = Footers()
        chunks = VerifiedChunks(store, add, footers.of(store, add))
        path = spool / xxhash.xxh3_128_hexdigest(add.path.encode())
        with scratch(f"a copy of {add.path}"), path.open("wb") as file:
            file.truncate(add.size)
            _copy(chunks, hidden, file)
    return open_split(store, add, whole=False, as_dictionary=True, file_path=path, footers=footers, deleted=hidden)


def outside(add: Add, rows: RowRange) -> BitMap:
    """Return the rows of a split's file that are not in `rows`."""
    first, end = rows
    return BitMap(range(first)) | BitMap(range(end, add.numRecords or 0))


def _copy(chunks: VerifiedChunks, hidden: BitMap, file: BinaryIO) -> None:
    footer = chunks.footer
    for group in visible_row_groups(footer, hidden) or [
        0
    ]:  # A split without a visible row is read as one row group without rows.
        chunks.fetch(group, range(footer.num_columns))
        chunks.write_to(file)
