"""Parquet files: typed already, so only valid values, required ones and the calendar are checked row by row."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from storage_core.errors import Corrupt, InvalidInput, unsound
from storage_core.foreign_text import shortened
from storage_core.formats.parquet_footer import require_sound_chunks
from storage_core.ingest.expansion import Expansion, plain_bytes
from storage_core.ingest.file_kind import HEAD_BYTES, require_uncompressed
from storage_core.ingest.int96 import Int96Columns, Unit, as_instants, exact_moments
from storage_core.ingest.lines import MOST_CELLS
from storage_core.ingest.parquet_columns import LogicalTypes, dictionary_paths, leaves, repeats_texts
from storage_core.ingest.parquet_pages import Chunk, check_read, chunks_of, groups_of_rows
from storage_core.ingest.rejection import Parsed, RejectedLine
from storage_core.ingest.watched_stream import watched
from storage_core.rows import times
from storage_core.rows.calendar import BEYOND, beyond
from storage_core.rows.decimals import TOO_LONG, find_long_decimals
from storage_core.rows.schema import conform
from storage_core.rows.validity import examined, row_text, with_bytes
from storage_core.rows.vectors import faults, is_vector, with_lists, without_misfits
from storage_core.system_errors import raise_refused

_BATCH_ROWS = 250_000
_BATCH_BYTES = 256 * 2**20
_REPEATED_ROWS = 256
"""Rows at once where each text may be as long as a page, and takes a few bytes of the page: it repeats another one."""

_MAGIC, _ENCRYPTED = b"PAR1", b"PARE"
_LARGEST_FOOTER = 32 * 2**20
_MOST_FOOTER_ITEMS = 100_000


def parquet_blocks(
    file: str, stream: BinaryIO, schema: pa.Schema, *, nonzero: Collection[str] = ()
) -> Iterator[Parsed]:
    """Yield the records of a Parquet file, numbered from 1.

    A record is rejected with a value that is not valid for its type, such as text that is not UTF-8, without a required
    value, with a time beyond the calendar, or with a list that is no vector of its column; of the columns `nonzero`,
    also with one of zeros. Raises `Corrupt` for a cut or damaged file, for one whose columns do not convert exactly to
    the table's, and for one that expands too far, and `Unavailable` where it is the system that refuses: the file may
    be sound.
    """
    first_number = 1
    for batch in sound_batches(
        file, stream, lambda found: _conformed(pa.Table.from_batches([], found), schema), schema
    ):
        yield _rows(file, batch, first_number, (schema, nonzero))
        first_number += batch.num_rows


def sound_batches(
    file: str, stream: BinaryIO, check: Callable[[pa.Schema], object], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file, whose columns `check` sees first, in bounded memory.

    Texts come as dictionaries where the file has them so: a value that it holds once is held once. INT96 timestamps
    come as `schema`, which is that of the table, has them. Raises what `check` raises, `Corrupt` for a cut or damaged
    file, one that expands too far, and one with an INT96 timestamp that no table holds, `Unavailable` as
    `parquet_blocks` does.
    """
    size = _sized(stream)
    expansion = Expansion(size)
    chunks: dict[int, Chunk] = {}
    checked = watched(stream, partial(check_read, chunks))
    try:
        opened = _open(checked, ())
        require_sound_chunks(opened.metadata, size)
        chunks.update(chunks_of(opened.metadata))
        texts, logical = dictionary_paths(opened), LogicalTypes.of(opened, schema)
        found = _columns(checked, opened.metadata, schema)
        columns = found.fitting(schema)
        check(columns)
        opened = _open(checked, texts, opened.metadata)
        rows_at_once = _batch_rows(opened, texts)

        def again(unit: Unit, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
            return _batches(_open(checked, (), opened.metadata, unit), rows_at_once, names)

        batches = map(logical.batch, _batches(opened, rows_at_once))
        for read in exact_moments(batches, found.names, again):
            batch = as_instants(read, found.names, columns)
            expanded = sum(map(plain_bytes, batch.columns))
            expansion.add(expanded)
            rows = max(1, min(batch.num_rows, batch.num_rows * _BATCH_BYTES // max(1, expanded)))
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise_refused(file, error)
        raise _unreadable(error) from error


def footer_of(file: str, stream: BinaryIO) -> tuple[Int96Columns, int]:
    """Return the columns of a Parquet file and the number of its rows. Raises what `sound_batches` raises."""
    try:
        _sized(stream)
        metadata = _open(stream, ()).metadata
        return _columns(stream, metadata), metadata.num_rows
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise_refused(file, error)
        raise _unreadable(error) from error


def _columns(stream: BinaryIO, metadata: pq.FileMetaData, table: pa.Schema | None = None) -> Int96Columns:
    """The columns, of a file whose footer is read."""

    def columns(unit: Unit) -> pa.Schema:
        opened = _open(stream, (), metadata, unit)
        return LogicalTypes.of(opened, table).schema(opened.schema_arrow.remove_metadata())

    return Int96Columns.of(columns)


def _unreadable(error: Exception) -> Corrupt:
    if isinstance(error, pa.ArrowNotImplementedError):
        return unsound("it uses a codec, an encoding or a nesting of Parquet that Tidemark cannot read")
    if "keys must be annotated as required" in str(error):
        return unsound("its schema allows null as a key of a map. Import a query of DuckDB that reads the file")
    if "decrypt" in str(error):
        return unsound("it is encrypted, and Tidemark has no keys")
    return unsound("it is not a whole Parquet file, or it is damaged")


def _sized(stream: BinaryIO) -> int:
    """The size of a file. Raises `Corrupt` that names another kind of file, and for a footer that is too large."""
    size = stream.seek(0, io.SEEK_END)
    stream.seek(max(0, size - 8))
    footer, magic = int.from_bytes(stream.read(4), "little"), stream.read(4)
    stream.seek(0)
    if magic == _ENCRYPTED:
        raise unsound("it is encrypted, and Tidemark has no keys")
    if magic != _MAGIC:  # a whole Parquet file saves the read of the head
        require_uncompressed(stream.read(HEAD_BYTES))
        stream.seek(0)
    elif footer > min(size, _LARGEST_FOOTER):
        raise unsound(f"its footer has {footer} bytes, {min(size, _LARGEST_FOOTER)} are the most")
    return size


def _open(
    file: BinaryIO, texts: Sequence[str], metadata: pq.FileMetaData | None = None, int96: Unit = "us"
) -> pq.ParquetFile:
    # In this thread, nothing ahead: one that holds the stream would abort the process where Python ends first.
    return pq.ParquetFile(
        file,
        metadata=metadata,
        pre_buffer=False,
        read_dictionary=list(texts),
        coerce_int96_timestamp_unit=int96,
        thrift_container_size_limit=_MOST_FOOTER_ITEMS,
        arrow_extensions_enabled=False,  # JSON of the extension type comes never as a dictionary
    )


def _batches(opened: pq.ParquetFile, rows: int, names: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows. A batch is of one row group: Arrow reads nested texts with one dictionary, and ends a batch at another.

    So batches of other columns of the file have the same rows.
    """
    for group in groups_of_rows(opened.metadata):
        yield from opened.iter_batches(rows, [group], names, use_threads=False)


def _batch_rows(opened: pq.ParquetFile, texts: Sequence[str]) -> int:
    """How many rows are read at once: fewer of many columns, of wide values, and of long lists."""
    width = sum(max(8, each.length or 0) for each in leaves(opened))
    rows = min(_BATCH_ROWS, max(1, _BATCH_BYTES // max(1, width)))
    if repeats_texts(opened, texts):
        rows = min(rows, _REPEATED_ROWS)
    for group in map(opened.metadata.row_group, groups_of_rows(opened.metadata)):
        longest = max((group.column(index).num_values for index in range(group.num_columns)), default=0)
        rows = min(rows, max(1, MOST_CELLS * max(1, group.num_rows) // max(1, longest)))
    return rows


def _rows(file: str, batch: pa.RecordBatch, first_number: int, wanted: tuple[pa.Schema, Collection[str]]) -> Parsed:
    schema, nonzero = wanted
    numbers = np.arange(first_number, first_number + batch.num_rows)
    try:
        given, invalid = examined(pa.Table.from_batches([batch]))
    except InvalidInput as error:
        raise unsound(f"its values are not valid ({shortened(str(error), 500)})") from error
    rejected: list[RejectedLine] = []
    if invalid:  # before any conversion, of which some refuse the whole column
        reasons = [(f"column {each.column}: {each.reason}", each.rows) for each in invalid]
        rejected, valid = _rejected(file, numbers, reasons, with_bytes(given, invalid))
        given, numbers = given.filter(pa.array(valid)), numbers[valid]
    fitting, misfits = without_misfits(given, schema)
    fitting, texts = times.without_misfits(fitting, schema)
    rows = _conformed(fitting, schema)
    shown = times.with_texts(with_lists(rows, given), given)
    more, complete = _rejected(file, numbers, [*misfits, *texts, *_faults(rows, schema, nonzero)], shown)
    kept = rows.filter(pa.array(complete)) if more else rows
    return Parsed(conform(kept, schema), ()).and_rejected([*rejected, *more])


def _rejected(
    file: str,
    numbers: npt.NDArray[np.int64],
    reasons: Iterable[tuple[str, npt.NDArray[np.bool_]]],
    shown: pa.Table,
) -> tuple[list[RejectedLine], npt.NDArray[np.bool_]]:
    """Reject each row by the first reason that it has; return also which rows have none."""
    rejected: list[RejectedLine] = []
    complete = np.ones(len(numbers), np.bool_)
    for reason, found in reasons:
        faulty = found & complete
        complete &= ~faulty
        rejected += [
            RejectedLine(file, int(numbers[index]), reason, row_text(shown, int(index)))
            for index in np.flatnonzero(faulty)
        ]
    return rejected, complete


def _conformed(batch: pa.Table | pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    optional = pa.schema([field.with_nullable(nullable=True) for field in schema])
    try:
        return conform(batch, optional)
    except InvalidInput as error:
        raise unsound(f"its columns are not those of the table ({shortened(str(error), 500)})") from error


def _faults(rows: pa.Table, schema: pa.Schema, nonzero: Collection[str]) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
    """Yield why rows cannot be taken, and which, column by column."""
    for field in schema:
        column = rows.column(field.name)
        if not field.nullable and column.null_count:
            yield f"column {field.name}: a value is required", np.asarray(column.is_null())
        outside = beyond(column)
        if outside is not None:
            yield f"column {field.name}: {BEYOND}", np.asarray(outside.fill_null(fill_value=False))
        long = find_long_decimals(column)
        if long is not None:
            yield f"column {field.name}: {TOO_LONG}", long
        if is_vector(field.type):
            for why, wrong in faults(column, nonzero=field.name in nonzero):
                yield f"column {field.name}: {why}", wrong
