"""A split that is open: its rows, in the pieces in which they are wanted."""

from __future__ import annotations

import functools
import io
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap

from storage_core.errors import Corrupt
from storage_core.log.actions import Add
from storage_core.objectstore.prefetch import prefetch
from storage_core.rows.columns import default_of, has_changed, of_earlier, stored_schema, without_metadata
from storage_core.rows.sort_order import OrderColumn
from storage_core.rows.vectors import typed
from storage_core.split.encode import has_float
from storage_core.split.failures import corrupt_on_failure
from storage_core.split.group_bounds import Recorded, recorded
from storage_core.split.leaves import decoded_bytes, leaves_of, native_order
from storage_core.split.ranges import VerifiedChunks
from storage_core.split.row_groups import shown, stretches
from storage_core.split.vectors import visible

BATCH_ROWS = 8192
"""Rows that `OpenSplit.since` holds decoded at once."""

TAKEN_BYTES = 64 * 2**20
"""Of row groups that `OpenSplit.take` reads side by side; of a larger one at a time."""
_TAKEN_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class OpenSplit:
    """A split whose footer has been read and found to be the one that the log names.

    Its rows are those that its deletion vector leaves, `rows` of them. `deleted` are the others, by their place in the
    file. Of `add.as_written` the rows are all that the file has, each at its place. They come with the columns of
    `schema`: those that are `stored`, or those of a table (`of_table`).
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
        """Return the split with the columns of its table, which may have changed since it was written.

        As of `conform_split`, but dictionaries stay, and names are those that splits have. Of a table that never
        changed it is the split itself.
        """
        stored = stored_schema(schema)
        return replace(self, schema=without_metadata(stored), _table=stored) if has_changed(schema) else self

    @property
    def rows(self) -> int:
        """The number of rows."""
        return int(self._file.metadata.num_rows) - len(self.deleted)

    def read(self, columns: Collection[str] | None = None) -> pa.Table:
        """Return the rows in file order with the columns in file order; names the split does not have are left out."""
        if not self._in_memory and self.row_groups:
            return pa.concat_tables(self.batches(columns, groups=self._shown() or [0]))
        with corrupt_on_failure(self.add):
            table = typed(self._file.read(columns=self._present(columns), use_threads=True), self.stored)
        return self._visible(self._of_table(table, columns), 0)

    def batches(
        self, columns: Collection[str] | None = None, *, groups: Sequence[int] | None = None
    ) -> Iterator[pa.Table]:
        """Yield the rows in file order, one table per row group or per one of `groups`, ascending.

        At most one row group is in memory.
        """
        chosen = range(self.row_groups) if groups is None else groups
        first_rows = self.first_rows
        for index in chosen:
            yield self._visible(self._row_group(index, columns), int(first_rows[index]))

    def pieces(self, columns: Collection[str] | None, groups: Sequence[int] | None = None) -> list[Piece]:
        """Return the rows that `batches` yields as pieces to be read in this order, each by any thread.

        Each is a row group, with these columns, and with another where the split has none of them.
        """
        names = None if columns is None else self._wanted(columns) or self.schema.names[:1]
        chosen = range(self.row_groups) if groups is None else groups
        return [Piece(self, names, group, is_alone=len(chosen) == 1) for group in chosen]

    def chunk_bytes(self, columns: Collection[str] | None, group: int) -> int:
        """Return about what these columns of a row group take in memory, encoded and decoded."""
        chunks = map(self._file.metadata.row_group(group).column, self._leaves(columns))
        return sum(each.total_compressed_size + decoded_bytes(each) for each in chunks)

    def apart(self) -> OpenSplit:
        """Return the same split with a file of its own, which another thread may read."""
        own = self._source.another() if isinstance(self._source, VerifiedChunks) else self._source
        return replace(self, _source=own, _file=parquet_file(own, self.footer, sorted(self.dictionaries())))

    @property
    def _chunks(self) -> VerifiedChunks | None:
        return self._source if isinstance(self._source, VerifiedChunks) else None

    def since(self, place: int, batch_rows: int = BATCH_ROWS) -> Iterator[tuple[npt.NDArray[np.int64], pa.Table]]:
        """Yield the rows from this place in the file on, and the place of each, in tables of at most `batch_rows`.

        Reads the row group of the place from its start, no other before it, and none without a visible row; of a row
        group only the encoded columns and one table are in memory.
        """
        # what `read` has set stays set: Arrow's `use_threads=False` below would not take it back
        self._file.reader.set_use_threads(False)
        group = max(0, int(np.searchsorted(self.first_rows, place, side="right")) - 1)
        with corrupt_on_failure(self.add):
            for first, batch in self._batches_from(group, batch_rows):
                skipped = min(max(0, place - first), batch.num_rows)
                rows = self._of_table(typed(pa.Table.from_batches([batch.slice(skipped)]), self.stored), None)
                mask = visible(self.deleted, first + skipped, rows.num_rows)
                places = np.arange(first + skipped, first + batch.num_rows)
                yield (places, rows) if mask is None else (places[mask], rows.filter(pa.array(mask)))

    def _batches_from(self, group: int, batch_rows: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows of the shown row groups from this one on, each batch with the place of its first row."""
        chosen, first_rows = self._shown(group), self.first_rows
        for groups in stretches(chosen) if self._chunks is None else [[each] for each in chosen]:
            if self._chunks is not None:
                self._chunks.fetch(groups[0], range(self._file.metadata.num_columns))
            first = int(first_rows[groups[0]])
            for batch in self._file.iter_batches(batch_rows, row_groups=groups, use_threads=False):
                yield first, batch
                first += batch.num_rows

    def _shown(self, first: int = 0) -> list[int]:
        """The row groups from this one on that have a visible row."""
        return [each for each in shown(self._file.metadata, self.deleted) if each >= first]

    def take(self, places: npt.NDArray[np.int64], columns: Collection[str] | None = None) -> pa.Table:
        """Return the rows at these ascending places in the file, whether they are gone or not; columns as of `read`.

        Reads the row groups that hold one: fetched ones side by side (`TAKEN_BYTES`), of others one is in memory.
        """
        first_rows = self.first_rows
        groups = np.searchsorted(first_rows, places, side="right") - 1

        def rows_of(index: int) -> pa.Table:
            own = self.apart() if self.is_ranged else self
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
            rows = self._of_table(typed(rows, self.stored), columns)
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
        """Whether column chunks are fetched as they are read."""
        return self._chunks is not None

    @property
    def bounds(self) -> Recorded | None:
        """The column that the file bounds in each of its row groups. Raises `Corrupt` where they are damaged."""
        return recorded(self.metadata, self.add.path, self.row_groups)

    @property
    def footer(self) -> pq.FileMetaData:
        """The footer of the file."""
        return self._file.metadata

    @property
    def first_rows(self) -> npt.NDArray[np.int64]:
        """The place in the file of the first row of each row group."""
        counts = np.array([self._file.metadata.row_group(index).num_rows for index in range(self.row_groups)], np.int64)
        return np.cumsum(counts) - counts

    def _visible(self, table: pa.Table, first: int) -> pa.Table:
        mask = visible(self.deleted, first, table.num_rows)
        return table if mask is None else table.filter(pa.array(mask))

    def dictionaries(self) -> frozenset[str]:
        """Return the columns whose values are read as dictionaries."""
        return frozenset(field.name for field in self._file.schema_arrow if pa.types.is_dictionary(field.type))

    def may_hold_nan(self) -> frozenset[str]:
        """Return the columns that may hold NaN: floats without bounds in some row group, and nested floats."""
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
        """Return the columns of the order that Parquet itself records, if any. Raises `Corrupt` for one of others."""
        return native_order(self._file.metadata, self.stored.names, self.add.path)

    def _leaves(self, columns: Collection[str] | None) -> list[int]:
        return leaves_of(self._file.metadata, self._present(columns))

    def _present(self, columns: Collection[str] | None) -> list[str] | None:
        if columns is None:
            return None
        names = [name for name in self.stored.names if name in columns]
        return names if self._table is None else names or self.stored.names[:1]  # for the number of rows

    def _wanted(self, columns: Collection[str]) -> list[str]:
        return [name for name in self.schema.names if name in columns]

    def _of_table(self, rows: pa.Table, columns: Collection[str] | None) -> pa.Table:
        if self._table is None:
            present = self._present(columns)  # Arrow reads each leaf with a path: for `a` also the column `a.b`
            return rows if present is None or rows.num_columns == len(present) else rows.select(present)
        names = self.schema.names if columns is None else self._wanted(columns)
        wanted = pa.schema([self._table.field(name) for name in names])
        return pa.table(list(of_earlier(rows, wanted)), names=names) if names else rows.select([])


def _may_hold_nan(field: pa.Field, unbounded: Collection[str]) -> bool:
    return has_float(field.type) and (pa.types.is_nested(field.type) or field.name in unbounded)


@dataclass(frozen=True, slots=True)
class Piece:
    """A row group of a split, with some columns."""

    split: OpenSplit
    columns: Collection[str] | None
    group: int
    is_alone: bool = False
    """Nobody else reads the split."""

    def read(self) -> pa.Table:
        """Return its rows. Ranged GETs where the split is read by ranges. Raises what `open_split` raises."""
        return next(read_together([self]))

    @property
    def memory_bytes(self) -> int:
        """About what reading it takes: its chunks, as they are and decompressed, and `VALUE_BYTES` for each value."""
        return self.split.chunk_bytes(self.columns, self.group)


def read_together(pieces: Sequence[Piece]) -> Iterator[pa.Table]:
    """Yield the rows of pieces of one split that have the same columns, one after the other; see `Piece.read`."""
    first = pieces[0]
    own = first.split if first.is_alone else first.split.apart()
    return own.batches(first.columns, groups=[each.group for each in pieces])


def parquet_file(
    source: pa.NativeFile | io.RawIOBase, footer: pq.FileMetaData | None = None, dictionaries: Sequence[str] = ()
) -> pq.ParquetFile:
    """Return a file that reads nothing ahead; these columns come as dictionaries. Reads the footer, unless given.

    Pages are compared with their checksums, unless column chunks were.
    """
    return pq.ParquetFile(
        source,
        metadata=footer,
        read_dictionary=list(dictionaries) or None,
        pre_buffer=False,
        page_checksum_verification=not isinstance(source, VerifiedChunks),
    )
