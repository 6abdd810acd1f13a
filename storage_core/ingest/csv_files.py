"""CSV files with a header (RFC 4180: quoted fields may hold commas, quotes and line breaks)."""

from __future__ import annotations

import codecs
import csv
import io
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from storage_core.errors import unsound
from storage_core.foreign_text import shortened
from storage_core.ingest.convert import RowFormat
from storage_core.ingest.lines import MOST_CELLS, valid_text
from storage_core.ingest.rejection import Parsed, Records, RejectedLine, convert_or_reject, not_text, rejected
from storage_core.scratch import scratch, scratch_folder

_LONGEST_HEADER = 2**20
_MOST_SHOWN = 20
_SPOOL = "the text of a CSV file"
_STEP_BYTES = 2**20
UNCLOSED = "a quote that opens in the record is never closed; the rest of the file is in it"


def csv_blocks(file: str, stream: BinaryIO, target: RowFormat, *, block_bytes: int) -> Iterator[Parsed]:
    """Yield the records of a CSV file; the header is record 1, empty lines are none.

    An empty field is null, a quoted empty one is empty text; the words for null are not applied inside quotes. A
    column that the header lacks is null. A record with a quote that is never closed is rejected with all that follows.
    Raises `Corrupt` for a header with unknown or repeated columns, and for records above about `block_bytes`;
    `Unavailable` without room for temporary files of up to three times the whole text.
    """
    # What follows the text is a record that no table has. Where it is not read as one, a quote is open.
    mark = "," * (len(target.schema) + 1)
    text = _mapped(_chunks(stream, block_bytes, mark))
    _check_header(text, target.schema.names)
    form = _PLAIN if _is_utf8(text) else _RECODED
    if form is _RECODED:
        text = _mapped(_recoded(text))
    counter = _RecordCounter(file, form, mark)
    # The reader takes out the words for null, because only it knows which fields were quoted.
    as_read = replace(target, null_values=())
    most_rows = max(1, MOST_CELLS // max(1, len(target.schema)))
    for batch, is_last in _batches(_open(text, target, counter, block_bytes), most_rows, counter):
        plain = pa.record_batch([*map(form.value, batch.columns)], [*map(form.name, batch.schema.names)])
        numbers, misshapen = counter.number(batch.num_rows)
        if is_last and counter.all_passed:
            line = _line(plain.columns, batch.num_rows - 1, mark)
            misshapen.append(rejected(file, int(numbers[-1]), UNCLOSED, line))
            plain, numbers = plain.slice(0, batch.num_rows - 1), numbers[:-1]
        yield _rows(file, plain, numbers, as_read).and_rejected(misshapen)
    yield Parsed(target.schema.empty_table(), tuple(counter.last()))


def _chunks(stream: BinaryIO, block_bytes: int, mark: str) -> Iterator[bytes]:
    while chunk := stream.read(block_bytes):
        if len(chunk) == block_bytes and not (b"\n" in chunk or b"\r" in chunk):
            raise unsound(f"it has {block_bytes} bytes without the end of a line; not a CSV file")
        yield chunk
    yield f"\n{mark}".encode()


def _mapped(chunks: Iterator[bytes]) -> pa.NativeFile:
    """The text as a mapped file without a name. Arrow's reader runs 32 blocks ahead in a thread that is never joined.

    Mapped blocks take no memory; and a Python stream in that thread would abort the process where Python ends first.
    """
    with scratch_folder("landed") as folder:
        with scratch(_SPOOL):
            spool = (folder / "rows").open("wb")
        with spool:
            for chunk in chunks:
                with scratch(_SPOOL):
                    spool.write(chunk)
                    spool.flush()
        with scratch(_SPOOL):
            return pa.memory_map(str(folder / "rows"))


def _is_utf8(text: pa.NativeFile) -> bool:
    data = text.read_buffer()
    text.seek(0)
    ends = pa.py_buffer(np.array([0, data.size], np.int64))
    try:
        pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, data]).cast(pa.large_string())
    except pa.ArrowInvalid:
        return False
    return True


def _recoded(text: pa.NativeFile) -> Iterator[bytes]:
    """Each byte as a character: Arrow's handler of misshapen records takes nothing but UTF-8."""
    chunk = text.read(_STEP_BYTES).removeprefix(codecs.BOM_UTF8)
    while chunk:
        yield chunk.decode("latin-1").encode()
        chunk = text.read(_STEP_BYTES)


def _bytes_of(column: pa.BinaryArray) -> pa.BinaryArray:
    """The values with each character as the byte that it was."""
    _, offsets, data = column.buffers()
    if data is None:
        return column
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    text = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    second = np.concatenate([[0], np.cumsum((text & 0xC0) == 0x80, dtype=np.int32)], dtype=np.int32)
    places = ends - ends[0]
    values = pa.py_buffer(text.tobytes().decode().encode("latin-1"))
    whole = pa.Array.from_buffers(pa.binary(), len(column), [None, pa.py_buffer(places - second[places]), values])
    return pc.if_else(column.is_valid(), whole, pa.scalar(None, pa.binary()))


@dataclass(frozen=True, slots=True)
class _Form:
    """How the text stands in the mapped file: there a text is `there(text)`; `name` and `value` undo it."""

    encoding: str
    value: Callable[[pa.BinaryArray], pa.BinaryArray]

    def there(self, text: str) -> str:
        return text.encode().decode(self.encoding)

    def name(self, name: str) -> str:
        return name.encode(self.encoding).decode()


_PLAIN = _Form("utf-8", lambda column: column)
_RECODED = _Form("latin-1", _bytes_of)


def _check_header(text: pa.NativeFile, names: Sequence[str]) -> None:
    """Raise `Corrupt` for more columns than the table has: a million of them end the process in Arrow's reader."""
    start = text.read(_LONGEST_HEADER).decode("latin-1")
    text.seek(0)
    try:
        columns = next(filter(None, csv.reader(io.StringIO(start, newline=""))))
    except StopIteration:
        raise unsound("it is not a CSV file with a header (it has no line)") from None
    except csv.Error as error:
        raise unsound(f"it is not a CSV file with a header ({error})") from error
    if len(columns) > len(names):
        raise unsound(_other_columns([each for each in columns if each not in names]))


class _RecordCounter:
    """Numbers the records that come out, given the numbers of the misshapen ones that the reader skips."""

    def __init__(self, file: str, form: _Form, mark: str) -> None:
        self._file, self.form, self._mark = file, form, mark
        self._next = 2
        self._skipped: list[tuple[pa_csv.InvalidRow, str]] = []
        self.records = 1

    def skip(self, row: pa_csv.InvalidRow) -> str:
        """Take note of a record with too many or too few fields; the reader's handler."""
        reason = f"the record has {row.actual_columns} fields, the header has {row.expected_columns}"
        self._skipped.append((row, reason))
        self.records += 1
        return "skip"

    def number(self, rows: int) -> tuple[npt.NDArray[np.int64], list[RejectedLine]]:
        """Return the numbers of the next `rows` records, and the misshapen ones before the last of them."""
        taken = np.array([row.number for row, _ in self._skipped], np.int64)
        free = np.setdiff1d(np.arange(self._next, self._next + rows + len(taken)), taken)[:rows]
        self._next = int(free[-1]) + 1
        end = bisect_left(taken, self._next)  # the reader skips in the order of the file
        passed, self._skipped = self._skipped[:end], self._skipped[end:]
        return free, [self._rejected(row, reason) for row, reason in passed]

    @property
    def all_passed(self) -> bool:
        """Whether no misshapen record follows the last that was numbered; at the end of the file the mark does."""
        return not self._skipped

    def last(self) -> list[RejectedLine]:
        """Return the misshapen records after the last row, once all were read: the mark is none of them."""
        if not self._skipped:
            return []
        *others, (row, _) = self._skipped
        found = [self._rejected(each, reason) for each, reason in others]
        return found if row.text == self._mark else [*found, self._rejected(row, UNCLOSED)]

    def _rejected(self, row: pa_csv.InvalidRow, reason: str) -> RejectedLine:
        text = row.text.removesuffix(f"\n{self._mark}") if reason == UNCLOSED else row.text
        return rejected(self._file, row.number, reason, text.encode(self.form.encoding))


def _open(
    source: pa.NativeFile, target: RowFormat, counter: _RecordCounter, block_bytes: int
) -> pa_csv.CSVStreamingReader:
    there = counter.form.there
    try:
        reader = pa_csv.open_csv(
            source,
            # Threads would lose the record numbers.
            read_options=pa_csv.ReadOptions(use_threads=False, block_size=block_bytes),
            parse_options=pa_csv.ParseOptions(
                newlines_in_values=True, ignore_empty_lines=True, invalid_row_handler=counter.skip
            ),
            convert_options=pa_csv.ConvertOptions(
                column_types=dict.fromkeys(map(there, target.schema.names), pa.binary()),
                null_values=["", *map(there, target.null_values)],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        names = [counter.form.name(name) for name in reader.schema.names]
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise unsound(f"it is not a CSV file with a header ({error})") from error
    unknown = [name for name in names if name not in target.schema.names]
    if unknown or len(set(names)) != len(names):
        raise unsound(_other_columns(unknown or names))
    return reader


def _other_columns(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_SHOWN])
    return f"its header has columns that the table has not, or has them twice: {shortened(shown, 500)}"


def _batches(
    reader: pa_csv.CSVStreamingReader, most_rows: int, counter: _RecordCounter
) -> Iterator[tuple[pa.RecordBatch, bool]]:
    """Yield what is read, and whether it is the last: only then all misshapen records are known."""
    held: pa.RecordBatch | None = None
    try:
        for batch in reader:
            counter.records += batch.num_rows
            for start in range(0, batch.num_rows, most_rows):
                if held is not None:
                    yield held, False
                held = batch.slice(start, most_rows)
    except pa.ArrowInvalid as error:
        raise unsound(
            f"record {counter.records + 1}: it is too long, or a quote that opens in it is never closed ({error})"
        ) from error
    if held is not None:
        yield held, True


def _rows(file: str, batch: pa.RecordBatch, numbers: npt.NDArray[np.int64], target: RowFormat) -> Parsed:
    valid = np.ones(batch.num_rows, np.bool_)
    for column in batch.columns:
        valid &= valid_text(column)
    bad = [(int(numbers[index]), _line(batch.columns, int(index))) for index in np.flatnonzero(~valid)]
    kept = batch.filter(pa.array(valid))
    fields = pa.table([column.cast(pa.string()) for column in kept.columns], names=kept.schema.names)
    records = Records(file, fields, numbers[valid], lambda index: _line(kept.columns, index).decode())
    return convert_or_reject(records, target).and_rejected(not_text(file, bad))


def _line(columns: Sequence[pa.Array], index: int, mark: str | None = None) -> bytes:
    """The text of a record rebuilt from its values: the reader does not hand out its bytes. It loses the mark."""
    values = [(column[index].as_py() or b"").decode("utf-8", "surrogateescape") for column in columns]
    if mark is not None:
        values[-1] = values[-1].removesuffix(f"\n{mark}")
    written = io.StringIO()
    csv.writer(written, lineterminator="").writerow(values)
    return written.getvalue().encode("utf-8", "surrogateescape")
