"""CSV files with a header (RFC 4180: quoted fields may hold commas, quotes and line breaks)."""

from __future__ import annotations

import csv
import io
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from tempfile import NamedTemporaryFile
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pa_csv

from storage_core.errors import Corrupt
from storage_core.ingest.convert import RowFormat
from storage_core.ingest.lines import MOST_CELLS, valid_text
from storage_core.ingest.rejection import Parsed, Records, RejectedLine, not_text, typed
from storage_core.os_errors import scratch

_LONGEST_HEADER = 2**20
_MOST_SHOWN = 20
_SPOOL = "the text of a CSV file"


def csv_blocks(file: str, stream: BinaryIO, target: RowFormat, *, block_bytes: int) -> Iterator[Parsed]:
    """Yield the records of a CSV file; the header is record 1, empty lines are none.

    An empty field is null, a quoted empty one is empty text; the words for null are not applied inside quotes. A
    column that the header lacks is null. Raises `Corrupt` for a header with unknown or repeated columns, and for
    records above about `block_bytes`; `Unavailable` without room for a temporary file of the whole text.
    """
    counter = _RecordCounter(file)
    # The reader takes out the words for null, because only it knows which fields were quoted.
    as_read = replace(target, null_values=())
    most_rows = max(1, MOST_CELLS // max(1, len(target.schema)))
    spooled = _spooled(stream, block_bytes)
    _check_header(spooled, target.schema.names)
    for batch in _batches(_open(spooled, target, counter, block_bytes), most_rows):
        numbers, misshapen = counter.number(batch.num_rows)
        yield _rows(file, batch, numbers, as_read).and_rejected(misshapen)
    _, misshapen = counter.number(0, at_end=True)
    yield Parsed(target.schema.empty_table(), tuple(misshapen))


def _spooled(stream: BinaryIO, block_bytes: int) -> pa.NativeFile:
    """The text as a mapped file without a name. Arrow's reader runs 32 blocks ahead in a thread that is never joined.

    Mapped blocks take no memory; and a Python stream in that thread would abort the process where Python ends first.
    """
    with scratch(_SPOOL):
        spool = NamedTemporaryFile(prefix="tidemark-landed-")  # noqa: SIM115  # it is closed below
    with spool:
        while chunk := stream.read(block_bytes):
            if len(chunk) == block_bytes and not (b"\n" in chunk or b"\r" in chunk):
                raise Corrupt(f"it has {block_bytes} bytes without the end of a line; not a CSV file")
            with scratch(_SPOOL):
                spool.write(chunk)
                spool.flush()
        with scratch(_SPOOL):
            return pa.memory_map(spool.name)


def _check_header(text: pa.NativeFile, names: Sequence[str]) -> None:
    """Raise `Corrupt` for more columns than the table has: a million of them end the process in Arrow's reader."""
    start = text.read(_LONGEST_HEADER).decode("latin-1")
    text.seek(0)
    try:
        columns = next(filter(None, csv.reader(io.StringIO(start, newline=""))), [])
    except csv.Error as error:
        raise Corrupt(f"it is not a CSV file with a header ({error})") from error
    if len(columns) > len(names):
        shown = ", ".join([each for each in columns if each not in names][:_MOST_SHOWN])
        raise Corrupt(f"its header has columns that the table has not, or has them twice: {shown}")


class _RecordCounter:
    """Numbers the records that come out, given the numbers of the misshapen ones that the reader skips."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._next = 2
        self._skipped: list[RejectedLine] = []

    def skip(self, row: pa_csv.InvalidRow) -> str:
        """Take note of a record with too many or too few fields; the reader's handler."""
        reason = f"the record has {row.actual_columns} fields, the header has {row.expected_columns}"
        self._skipped.append(RejectedLine(self._file, row.number, reason, row.text))
        return "skip"

    def number(self, rows: int, *, at_end: bool = False) -> tuple[npt.NDArray[np.int64], list[RejectedLine]]:
        """Return the numbers of the next `rows` records, and the misshapen ones before the last of them."""
        taken = np.array([each.line for each in self._skipped], np.int64)
        free = np.setdiff1d(np.arange(self._next, self._next + rows + len(taken)), taken)[:rows]
        self._next = int(free[-1]) + 1 if rows else self._next
        end = len(taken) if at_end else bisect_left(taken, self._next)  # the reader skips in the order of the file
        passed, self._skipped = self._skipped[:end], self._skipped[end:]
        return free, passed


def _open(
    source: pa.NativeFile, target: RowFormat, counter: _RecordCounter, block_bytes: int
) -> pa_csv.CSVStreamingReader:
    try:
        reader = pa_csv.open_csv(
            source,
            # Threads would lose the record numbers.
            read_options=pa_csv.ReadOptions(use_threads=False, block_size=block_bytes),
            parse_options=pa_csv.ParseOptions(
                newlines_in_values=True, ignore_empty_lines=True, invalid_row_handler=counter.skip
            ),
            convert_options=pa_csv.ConvertOptions(
                column_types=dict.fromkeys(target.schema.names, pa.binary()),
                null_values=["", *target.null_values],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        names = reader.schema.names
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise Corrupt(f"it is not a CSV file with a header ({error})") from error
    unknown = [name for name in names if name not in target.schema.names]
    if unknown or len(set(names)) != len(names):
        raise Corrupt(
            f"its header has columns that the table has not, or has them twice: {', '.join(unknown or names)}"
        )
    return reader


def _batches(reader: pa_csv.CSVStreamingReader, most_rows: int) -> Iterator[pa.RecordBatch]:
    try:
        for batch in reader:
            for start in range(0, batch.num_rows, most_rows):
                yield batch.slice(start, most_rows)
    except pa.ArrowInvalid as error:
        raise Corrupt(f"it is not CSV throughout ({error})") from error


def _rows(file: str, batch: pa.RecordBatch, numbers: npt.NDArray[np.int64], target: RowFormat) -> Parsed:
    valid = np.ones(batch.num_rows, np.bool_)
    for column in batch.columns:
        valid &= valid_text(column)
    bad = [(int(numbers[index]), _line(batch.columns, int(index))) for index in np.flatnonzero(~valid)]
    kept = batch.filter(pa.array(valid))
    fields = pa.table([column.cast(pa.string()) for column in kept.columns], names=kept.schema.names)
    records = Records(file, fields, numbers[valid], lambda index: _line(kept.columns, index).decode())
    return typed(records, target).and_rejected(not_text(file, bad))


def _line(columns: Sequence[pa.Array], index: int) -> bytes:
    """The text of a record rebuilt from its values: the reader does not hand out its bytes."""
    values = [(column[index].as_py() or b"").decode("utf-8", "surrogateescape") for column in columns]
    written = io.StringIO()
    csv.writer(written, lineterminator="").writerow(values)
    return written.getvalue().encode("utf-8", "surrogateescape")
