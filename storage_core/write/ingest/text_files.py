"""Readers of landed text: CSV files with a header, and files with one record per line.

- `csv_blocks` reads CSV by RFC 4180. Quoted fields may contain commas, quotes and line breaks.
- `pattern_blocks` reads lines by a regular expression with named groups.
- `ndjson_blocks` reads one JSON object per line.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain
from operator import or_
from secrets import token_hex
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from storage_core.base.errors import damaged_file_error
from storage_core.base.process import scratch, scratch_folder
from storage_core.base.text import fitted, names_of, repeated, shortened, unknown_names
from storage_core.data.rows.conform import conform
from storage_core.data.rows.vectors import is_vector
from storage_core.write.ingest.changes import ChangeFormat
from storage_core.write.ingest.convert import (
    CONVERSION,
    MOST_CELLS,
    LineBlock,
    Parsed,
    Records,
    RejectedLine,
    RowFormat,
    conversion_session,
    convert,
    convert_or_reject,
    not_text,
    read_lines,
    rejected,
    valid_text,
)
from storage_core.write.ingest.drift import (
    NO_DRIFT,
    QUARANTINE,
    ColumnFields,
    Members,
    NewFields,
    ObjectFields,
    members_of,
    split_columns,
    without_nulls,
)
from storage_core.write.ingest.json_lines import read_plain
from storage_core.write.ingest.landing import Dialect
from storage_core.write.ingest.nested_json import is_nested_json, nested_column, without_exponent

_LONGEST_HEADER = 2**20
_MOST_NEW_COLUMNS = 1_000
_MOST_SHOWN = 20
_SPOOL = "the text of a CSV file"
_STEP_BYTES = 2**20
UNCLOSED = "a quote that opens in the record is never closed, so the record contains the rest of the file"
ESCAPED = "the file ends after an escape character, so the record is not complete"
CSV = Dialect()
"""CSV by RFC 4180."""


def csv_blocks(
    file: str, stream: BinaryIO, target: RowFormat, *, block_bytes: int, dialect: Dialect = CSV
) -> Iterator[Parsed]:
    """Yield the records of a CSV file. A header is record 1. Empty lines are not counted as records.

    An empty field is null, and a quoted empty field is empty text. Text that means null outside quotes is ordinary text
    inside quotes. A column is null if its name is in neither the header nor the dialect. A record with a quote that is
    never closed is rejected together with everything after it.

    Raises:
        Corrupt: the header has unknown or repeated columns, or a record is larger than about `block_bytes`.
        Unavailable: there is no space for temporary files of up to three times the whole text.
    """
    # A mark is added at the end of the text. The end mark is a record with more fields than any valid record. If the
    # reader does not return the end mark as a record, a quote before the mark was never closed.
    most = len(target.schema) + (0 if target.drift.new_field == "quarantine" else _MOST_NEW_COLUMNS)
    mark = dialect.delimiter * (most + 1)
    text = _mapped(_chunks(stream, block_bytes, mark))
    header_names = _check_header(text, target.schema.names, dialect, most) if dialect.columns is None else []
    form = _PLAIN if _is_utf8(text) else _RECODED
    if form is _RECODED:
        text = _mapped(_recoded(text))
    counter = _RecordCounter(file, form, mark, dialect)
    # The reader itself replaces the words for null, because only the reader knows which fields were quoted.
    as_read = replace(target, null_values=())
    as_written = _Written(dialect, frozenset(word.encode() for word in ("", *target.null_values)))
    most_rows = max(1, MOST_CELLS // max(1, len(target.schema), len(header_names)))
    reader = _open(text, target, counter, block_bytes, header=header_names)
    names = [counter.form.name(name) for name in reader.schema.names]
    header = _joined(names, dialect) if dialect.columns is None else None
    for batch, is_last in _batches(reader, most_rows, counter):
        plain = pa.record_batch([*map(form.value, batch.columns)], [*map(form.name, batch.schema.names)])
        numbers, misshapen = counter.number(batch.num_rows)
        if is_last and counter.all_passed:
            line = _line(plain.columns, batch.num_rows - 1, as_written, mark)
            misshapen.append(rejected(file, int(numbers[-1]), counter.unclosed(line), line))
            plain, numbers = plain.slice(0, batch.num_rows - 1), numbers[:-1]
        yield replace(_rows(file, plain, numbers, (as_read, as_written)).and_rejected(misshapen), header=header)
    yield Parsed(target.schema.empty_table(), tuple(counter.last()), header=header)


def _chunks(stream: BinaryIO, block_bytes: int, mark: str) -> Iterator[bytes]:
    while chunk := stream.read(block_bytes):
        if len(chunk) == block_bytes and not (b"\n" in chunk or b"\r" in chunk):
            raise damaged_file_error(
                f"the file has {block_bytes} bytes without the end of a line. The file is not a CSV file"
            )
        yield chunk
    yield f"\n{mark}".encode()


def _mapped(chunks: Iterator[bytes]) -> pa.NativeFile:
    """Write the text to a memory-mapped file without a name, and return the file.

    Arrow's reader runs up to 32 blocks ahead, in a thread that is never joined. Mapped blocks take no memory. A reader
    thread that used a Python stream could outlive Python, and would then abort the process.
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
    """Convert each byte to a character, because Arrow's handler of misshapen records accepts only UTF-8."""
    chunk = text.read(_STEP_BYTES).removeprefix(codecs.BOM_UTF8)
    while chunk:
        yield chunk.decode("latin-1").encode()
        chunk = text.read(_STEP_BYTES)


def _bytes_of(column: pa.BinaryArray) -> pa.BinaryArray:
    """Return the values with each character converted back to its byte."""
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
    """The encoding of the text in the mapped file. `there(text)` converts a text to this encoding.

    `name` and `value` convert text of the mapped file back to the original text.
    """

    encoding: str
    value: Callable[[pa.BinaryArray], pa.BinaryArray]

    def there(self, text: str) -> str:
        return text.encode().decode(self.encoding)

    def name(self, name: str) -> str:
        return name.encode(self.encoding).decode()


_PLAIN = _Form("utf-8", lambda column: column)
_RECODED = _Form("latin-1", _bytes_of)


def _check_header(text: pa.NativeFile, names: Sequence[str], dialect: Dialect, most: int) -> list[str]:
    """Return the names in the header, with each byte as a character.

    Raise `Corrupt` if the header has more than `most` columns.

    With a million columns, Arrow's reader would end the process.
    """
    start = text.read(_LONGEST_HEADER).removeprefix(codecs.BOM_UTF8).decode("latin-1")
    text.seek(0)
    try:
        columns = next(filter(None, csv.reader(io.StringIO(start, newline=""), **_style(dialect))))
    except StopIteration:
        raise damaged_file_error("the file has no header, because all lines are empty") from None
    except csv.Error as error:
        raise damaged_file_error("the header is not a line of CSV. Check the quotes of the header") from error
    if len(columns) > most:
        raise damaged_file_error(_other_columns(columns, [each for each in columns if each not in names], names))
    return columns


def _style(dialect: Dialect) -> dict[str, Any]:
    """Return the dialect as arguments of the module `csv`."""
    quoting = csv.QUOTE_MINIMAL if dialect.quote else csv.QUOTE_NONE
    return {
        "delimiter": dialect.delimiter,
        "quotechar": dialect.quote,
        "escapechar": dialect.escape,
        "quoting": quoting,
    }


class _RecordCounter:
    """A counter that assigns numbers to records. The counter includes skipped records with a wrong number of fields."""

    def __init__(self, file: str, form: _Form, mark: str, dialect: Dialect) -> None:
        self._file, self.form, self._mark, self.dialect = file, form, mark, dialect
        self.records = 1 if dialect.columns is None else 0
        self._next = self.records + 1
        self._skipped: list[tuple[pa_csv.InvalidRow, str]] = []

    def skip(self, row: pa_csv.InvalidRow) -> str:
        """Store and skip a record with too many or too few fields. The reader calls this method."""
        names = "the header has" if self.dialect.columns is None else "`columns` has"
        reason = f"the record has {row.actual_columns} fields, {names} {row.expected_columns}"
        self._skipped.append((row, reason))
        self.records += 1
        return "skip"

    def number(self, rows: int) -> tuple[npt.NDArray[np.int64], list[RejectedLine]]:
        """Return the numbers of the next `rows` records, and the skipped records between these `rows` records."""
        taken = np.array([row.number for row, _ in self._skipped], np.int64)
        free = np.setdiff1d(np.arange(self._next, self._next + rows + len(taken)), taken)[:rows]
        self._next = int(free[-1]) + 1
        end = bisect_left(taken, self._next)  # the reader skips records in the order of the file
        passed, self._skipped = self._skipped[:end], self._skipped[end:]
        return free, [self._rejected(row, reason) for row, reason in passed]

    @property
    def all_passed(self) -> bool:
        """Return True if all records after the last numbered record have the right shape.

        At the end of the file, the mark is a misshapen record that follows.
        """
        return not self._skipped

    def last(self) -> list[RejectedLine]:
        """Return the records skipped after the last row, not the end mark. Call `last` after the last record."""
        if not self._skipped:
            return []
        *others, (row, _) = self._skipped
        found = [self._rejected(each, reason) for each, reason in others]
        if row.text == self._mark:
            return found
        return [*found, self._rejected(row, self.unclosed(row.text.removesuffix(f"\n{self._mark}").encode()))]

    def unclosed(self, record: bytes) -> str:
        """Return the reason why the last record of the file has no end."""
        escape = self.dialect.escape
        return ESCAPED if escape and record.endswith(escape.encode()) else UNCLOSED

    def _rejected(self, row: pa_csv.InvalidRow, reason: str) -> RejectedLine:
        text = row.text.removesuffix(f"\n{self._mark}") if reason in (UNCLOSED, ESCAPED) else row.text
        return rejected(self._file, row.number, reason, text.encode(self.form.encoding))


def _open(
    source: pa.NativeFile, target: RowFormat, counter: _RecordCounter, block_bytes: int, *, header: Sequence[str]
) -> pa_csv.CSVStreamingReader:
    there, dialect = counter.form.there, counter.dialect
    new = [each.encode("latin-1").decode(counter.form.encoding) for each in header]
    given = None if dialect.columns is None else [*map(there, dialect.columns)]
    try:
        reader = pa_csv.open_csv(
            source,
            # With threads, the record numbers would be lost.
            read_options=pa_csv.ReadOptions(use_threads=False, block_size=block_bytes, column_names=given),
            parse_options=pa_csv.ParseOptions(
                delimiter=dialect.delimiter,
                quote_char=dialect.quote or False,
                escape_char=dialect.escape or False,
                newlines_in_values=True,
                ignore_empty_lines=True,
                invalid_row_handler=counter.skip,
            ),
            convert_options=pa_csv.ConvertOptions(
                column_types=dict.fromkeys([*map(there, target.schema.names), *new], pa.binary()),
                null_values=["", *map(there, target.null_values)],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        names = [counter.form.name(name) for name in reader.schema.names]
    except UnicodeDecodeError as error:
        raise damaged_file_error(
            "its header is not UTF-8. Declare its `encoding` in `landing`, or write it as UTF-8"
        ) from error
    except pa.ArrowInvalid as error:
        raise damaged_file_error("the header is not a line of CSV. Check the quotes of the header") from error
    unknown = [name for name in names if name not in target.schema.names and target.drift.new_field == "quarantine"]
    if unknown or len(set(names)) != len(names):
        raise damaged_file_error(_other_columns(names, unknown, target.schema.names))
    if any(not pa.types.is_binary(each.type) for each in reader.schema):
        raise damaged_file_error(
            "the header has both quoted and unquoted names. Quote each name of the header, or none"
        )
    return reader


def _other_columns(header: Sequence[str], unknown: Sequence[str], known: Sequence[str]) -> str:
    if not unknown:
        return f"the header has a column twice: {names_of(sorted(repeated(header)))}. Write each column once"
    why = shortened(unknown_names("column", unknown, known), 500)
    said = f"the columns of the file are not the columns of the table ({why})"
    other = next((sign for sign in ";\t|" if len(unknown) == 1 and sign in unknown[0]), None)
    return said if other is None else f"{said}. Declare `delimiter: {json.dumps(other)}` in `landing`"


def _batches(
    reader: pa_csv.CSVStreamingReader, most_rows: int, counter: _RecordCounter
) -> Iterator[tuple[pa.RecordBatch, bool]]:
    """Yield each batch, and whether it is the last batch. The skipped records are complete only then."""
    held: pa.RecordBatch | None = None
    try:
        for batch in reader:
            counter.records += batch.num_rows
            for start in range(0, batch.num_rows, most_rows):
                if held is not None:
                    yield held, False
                held = batch.slice(start, most_rows)
    except pa.ArrowInvalid as error:
        raise damaged_file_error(
            f"record {counter.records + 1}: it is too long, or a quote that opens in it is never closed"
        ) from error
    if held is not None:
        yield held, True


@dataclass(frozen=True, slots=True)
class _Written:
    """The settings for rebuilding the text of a record: the dialect, and the words for null."""

    dialect: Dialect
    words: frozenset[bytes]


def _rows(file: str, batch: pa.RecordBatch, numbers: npt.NDArray[np.int64], form: tuple[RowFormat, _Written]) -> Parsed:
    target, written = form
    valid = np.ones(batch.num_rows, np.bool_)
    for column in batch.columns:
        valid &= valid_text(column)
    bad = [(int(numbers[index]), _line(batch.columns, int(index), written)) for index in np.flatnonzero(~valid)]
    kept = batch.filter(pa.array(valid))
    fields = pa.table([column.cast(pa.string()) for column in kept.columns], names=kept.schema.names)
    fields, others = split_columns(fields, target.drift.filled(target.schema).names)
    new = ColumnFields(others, is_text=True) if others.num_columns else None
    records = Records(file, fields, numbers[valid], lambda index: _line(kept.columns, index, written).decode(), new)
    return convert_or_reject(records, target).and_rejected(not_text(file, bad))


def _line(columns: Sequence[pa.Array], index: int, written: _Written, mark: str | None = None) -> bytes:
    """Return the text of a record, without the end mark `mark`.

    The text is rebuilt from the values, because the reader does not return the bytes of the record. A value that is a
    word for null was in quotes. So the rebuilt text has the quotes again.
    """
    quote = written.dialect.quote
    texts: list[str] = []
    for number, column in enumerate(columns):
        value = column[index].as_py()
        text = (value or b"").decode("utf-8", "surrogateescape")
        if mark is not None and number == len(columns) - 1:
            text = text.removesuffix(f"\n{mark}")
        if quote and value is not None and value in written.words:
            texts.append(quote + text.replace(quote, 2 * quote) + quote)
        else:
            texts.append(_joined([text], written.dialect) if text else "")
    return written.dialect.delimiter.join(texts).encode("utf-8", "surrogateescape")


def _joined(values: Sequence[str], dialect: Dialect) -> str:
    """Return the values as a record of the dialect. Without quotes, an escape character precedes special characters."""
    if not dialect.quote:
        return dialect.delimiter.join(_escaped(each, dialect) for each in values)
    if dialect.escape:
        values = [each.replace(dialect.escape, 2 * dialect.escape) for each in values]
    written = io.StringIO()
    csv.writer(written, lineterminator="", delimiter=dialect.delimiter, quotechar=dialect.quote).writerow(values)
    return written.getvalue()


def _escaped(value: str, dialect: Dialect) -> str:
    escape = dialect.escape
    if not escape:
        return value
    return "".join(escape + each if each in (escape, dialect.delimiter, "\n", "\r") else each for each in value)


def is_one_record(text: str, dialect: Dialect) -> bool:
    """Return whether the text is exactly one complete record of the dialect.

    The text of a line may be in an older dialect.

    The text is not one complete record if a quote is never closed or the end is escaped. The text is also not one
    complete record if there is a line break outside of quotes. The check makes one pass over a text that has quotes,
    escapes or line breaks.
    """
    special = [each for each in (dialect.quote, dialect.escape, "\n", "\r") if each is not None]
    if not any(each in text for each in special):
        return True
    after = next(each for each in "xyzw" if each not in (dialect.delimiter, dialect.quote, dialect.escape))
    try:
        records = [*csv.reader(io.StringIO(f"{text}\n{after}", newline=""), **_style(dialect))]
    except csv.Error:  # a field is longer than the limit of the module
        return False
    return len(records) == 2 and records[1] == [after]


# JSON numbers with their original digits. DuckDB reads a number with a point or an exponent as a double and writes the
# double, which can have other digits.
#
# DuckDB writes most JSON numbers with the same digits. If DuckDB could change a number in a line, the function passes
# the numbers of this line through DuckDB as text. This text begins with a mark. The mark is a random text that does not
# occur in any line.


# A double keeps at least 15 digits, which are 16 characters with the point. A double is written without trailing zeros,
# and -0 is not an integer.
_DOUBTFUL = (
    r"[:,\[]\s*-?[0-9](?:[0-9.]{16}|[0-9.]*[eE]|[0-9]*\.[0-9]+0[\s,}\]]|\.0{6})|"  # six zeros: 1e-7
    r"[:,\[]\s*-0[\s,}\]]"
)
_NUMBER = r"-?[0-9]+[.eE][-+.eE0-9]*|-0"
# After a letter, a digit or an underscore, a quote ends a text. A quote that begins a text follows a space or a sign.
# A quote inside a text follows a backslash.
_NAMED = rf'([0-9A-Za-z_]"\s*:\s*)({_NUMBER})'
# The repetitions are possessive, because a repetition that can backtrack stores a hundred bytes per character. A
# sequence of digits is matched as a whole. Otherwise the regular expression would search for a decimal point at each
# digit of a long number.
_TEXT_OR_NUMBER = re.compile(rf'"[^"\\]*+(?:\\.[^"\\]*+)*+"|({_NUMBER})|[0-9]++')


def marked(objects: pa.StringArray, mark: str) -> pa.StringArray:
    """Return the lines. A number becomes marked text if DuckDB would change its digits.

    Each line must be a valid JSON object.

    The function also replaces some numbers whose digits DuckDB would not change. The function makes one pass over all
    bytes. Two kinds of lines are processed separately. Lines of the first kind have an array with a number whose digits
    DuckDB would change. Lines of the second kind have this number in a field whose name does not end in an ASCII letter
    or digit.

    Args:
        mark: letters and digits that are in none of the lines.
    """
    replacement = rf'\1"{mark}\2"'
    named = _in_doubtful(
        objects, lambda lines: pc.replace_substring_regex(lines, pattern=_NAMED, replacement=replacement)
    )
    return _in_doubtful(named, lambda lines: _one_by_one(lines, mark))


def unmarked(texts: pa.ChunkedArray, mark: str) -> pa.ChunkedArray:
    """Return the texts. Each marked text that `marked` inserted is replaced by the original number."""
    if not pc.any(pc.match_substring(texts, mark)).as_py():
        return texts
    return pc.replace_substring_regex(texts, pattern=f'"?{mark}([-+.eE0-9]+)"?', replacement=r"\1")


def _in_doubtful(lines: pa.StringArray, change: Callable[[pa.StringArray], pa.StringArray]) -> pa.StringArray:
    doubtful = pc.match_substring_regex(lines, _DOUBTFUL)
    if not pc.any(doubtful).as_py():
        return lines
    return pc.replace_with_mask(lines, doubtful, change(lines.filter(doubtful)))


def _one_by_one(lines: pa.StringArray, mark: str) -> pa.StringArray:
    def text(found: re.Match[str]) -> str:
        return found[0] if found[1] is None else f'"{mark}{found[1]}"'

    return pa.array([_TEXT_OR_NUMBER.sub(text, each) for each in lines.to_pylist()], pa.string())


# JSON objects as maps with text keys. Each value must exactly fit the map's type, or its row is rejected with a reason.


Entries = tuple[tuple[str, str | None], ...]


def is_json_map(type_: pa.DataType) -> bool:
    """Return whether a value of this type can be a JSON object without nested values."""
    is_plain = pa.types.is_map(type_) and not pa.types.is_nested(type_.item_type)
    return bool(is_plain and pa.types.is_string(type_.key_type))


def map_column(texts: pa.ChunkedArray, field: pa.Field, target: RowFormat) -> tuple[pa.MapArray, list[str | None]]:
    """Convert the texts of JSON objects to maps.

    Also return for each row the reason why its text is not a map, or null.

    For a row without a value, the reason is null. The values of a map are converted like the values of a column with
    the same type (`convert`). Raises `InvalidInput` if text cannot represent the type.
    """
    nulls = ("", *target.null_values)
    found = [None if text is None or text in nulls else _entries(text) for text in texts.to_pylist()]
    maps: list[Entries | None] = [None if isinstance(each, str) else each for each in found]
    entries = [*chain.from_iterable(each or () for each in maps)]
    item = pa.field(field.name, field.type.item_type)
    values = pa.table({field.name: pa.array([value for _, value in entries], pa.string())})
    items = convert(values, RowFormat(pa.schema([item]), null_values=target.null_values))
    reasons = [f"column {field.name}: {each}" if isinstance(each, str) else None for each in found]
    ends = np.cumsum([0, *(len(each or ()) for each in maps)])
    for index in np.flatnonzero(np.asarray(items.reasons.is_valid())):
        reasons[int(np.searchsorted(ends, index, side="right")) - 1] = items.reasons[int(index)].as_py()
    offsets = pa.array([*(None if each is None else end for each, end in zip(maps, ends, strict=False)), ends[-1]])
    keys = pa.array([key for key, _ in entries], pa.string())
    column = items.rows.column(0).combine_chunks().cast(item.type)
    return pa.MapArray.from_arrays(offsets.cast(pa.int32()), keys, column), reasons


def _entries(text: str) -> Entries | str:
    """Return the names and texts of the values in a JSON object, or a description of the fault."""
    try:
        found = _DECODE(text)
    except (ValueError, IndexError, RecursionError):
        found = None
    if not isinstance(found, tuple) or any(isinstance(value, tuple | list) for _, value in found):
        return "not a JSON object of names and values"
    if len(dict(found)) < len(found):
        return "a name is given twice"
    return tuple((name, json.dumps(value) if isinstance(value, bool) else value) for name, value in found)


def _as_tuple(pairs: list[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
    return tuple(pairs)  # a tuple, because a JSON array becomes a list


_DECODE = json.JSONDecoder(object_pairs_hook=_as_tuple, parse_float=str, parse_int=str, parse_constant=str).decode


# The number of values in a line of JSON. A parser needs about 200 bytes per value, even for a tiny value.


MOST_PARTS = 1_000_000
"""The maximum number of values of a line.

A line with more than `MOST_PARTS` values is rejected, because it would take about a hundred times its length in memory.
"""

TOO_MANY = f"the line has more than {MOST_PARTS:,} values in it"

_IS_START = np.zeros(256, np.bool_)
_IS_START[list(b",[{")] = True


def parts_of(lines: pa.StringArray) -> npt.NDArray[np.int64]:
    """Return an upper limit of the number of values per line.

    The limit is the number of commas and opening brackets, including the commas and brackets in texts.
    """
    _, offsets, data = lines.buffers()
    if data is None or not len(lines):
        return np.zeros(len(lines), np.int64)
    ends = np.frombuffer(offsets, np.int32)[lines.offset : lines.offset + len(lines) + 1]
    text = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    found = np.flatnonzero(_IS_START[text]) + ends[0]
    return np.diff(np.searchsorted(found, ends)).astype(np.int64)


def has_too_many(line: str) -> bool:
    """Return whether the line has more than `MOST_PARTS` values, without counting commas and brackets in texts."""
    # After all escaped quotes are removed, texts are the parts between two quotes.
    text = np.frombuffer(line.encode().replace(rb"\\", b"").replace(rb"\"", b""), np.uint8)
    is_outside = ~np.logical_xor.accumulate(text == ord('"'))
    return int(np.count_nonzero(_IS_START[text] & is_outside)) >= MOST_PARTS


NO_MATCH = "the line does not match the pattern"

# For each line, the reason why the line is rejected, or null for a valid line. `Fields` also contains the fields of the
# valid lines as text.
Fields = tuple[pa.StringArray, pa.Table]
FieldsOf = Callable[[pa.StringArray], tuple[Fields, NewFields | None]]
"""A function that divides the fields of lines into two parts: the fields that are columns, and the other fields."""

# Time and memory are proportional to the length of the line, which may repeat a name millions of times.
_WHY_NO_OBJECT = """
    SELECT CASE WHEN NOT json_valid(line) THEN 'the line is not valid JSON'
                WHEN json_type(line) <> 'OBJECT' THEN 'the line is not a JSON object'
                WHEN len(json_keys(line)) > len($names) OR NOT list_has_all($names, json_keys(line))
                     OR len(list_distinct(json_keys(line))) < len(json_keys(line)) THEN 'misnamed'
           END FROM lines
"""
# One JSON value takes the same memory as this number of column values.
_CELLS_PER_PART = 4
_FIELDS = "SELECT json_keys(line) FROM lines"
_LONGEST_NAME = 100
MARK_BYTES = 8


def pattern_blocks(
    file: str, stream: BinaryIO, target: RowFormat, *, pattern: str, block_bytes: int
) -> Iterator[Parsed]:
    """Yield the lines that match `pattern`. The fields of a line come from the named groups, which may nest.

    A group without a match is empty text. Raises `InvalidInput` if a group is not a column.
    """

    def capture(lines: pa.StringArray) -> tuple[Fields, None]:
        groups = pc.extract_regex(lines, pattern=pattern)
        matched = groups.is_valid()
        reasons = pc.if_else(matched, pa.scalar(None, pa.string()), NO_MATCH)
        return (reasons, pa.Table.from_struct_array(groups.filter(matched))), None

    columns = len(target.schema)
    for block in read_lines(stream, block_bytes):
        for piece in block.pieces(np.full(len(block.numbers), columns, np.int64)):
            yield _parsed(file, piece, capture, target)


Reader = Callable[[BinaryIO, int], Iterator[LineBlock]]
"""A function that divides a stream into records, in blocks of about the given number of bytes."""


def ndjson_blocks(
    file: str, stream: BinaryIO, target: RowFormat, *, block_bytes: int, read: Reader = read_lines
) -> Iterator[Parsed]:
    """Yield the lines that are JSON objects whose fields are columns of the table.

    `read` may divide the stream into records that are not lines.

    A nested value is read as its JSON text. A missing field and a JSON null are null. Numbers keep their original
    digits. A number with an exponent can be a decimal if it exactly fits the column. An object can be a map with text
    keys or a struct, and an array can be a list.
    """
    for block in read(stream, block_bytes):
        for piece in json_pieces(block, target):
            (rows,) = json_rows([(file, piece)], target)
            yield rows if target.changes is None else _with_given(rows, piece, target.changes)


def json_pieces(block: LineBlock, target: RowFormat) -> Iterator[LineBlock]:
    """Return the lines of the block in pieces that can be parsed at once."""
    columns = len(target.schema)
    if _CELLS_PER_PART * block.text.nbytes + columns * len(block.numbers) <= MOST_CELLS:
        return iter([block])  # a part has at least one byte, so the parts need not be counted
    return block.pieces(_CELLS_PER_PART * parts_of(block.text) + columns)


def _with_given(rows: Parsed, block: LineBlock, changes: ChangeFormat) -> Parsed:
    """Return the rows, and add the names of the fields that each patch sets."""
    patches = changes.patches(rows.rows)
    if not len(patches):
        return rows
    lines = block.text.take(pa.array(np.searchsorted(block.numbers, rows.numbers[patches])))
    with conversion_session(CONVERSION, lines=pa.table({"line": lines})) as connection:
        return replace(rows, given=connection.sql(_FIELDS).to_arrow_table().column(0).combine_chunks())


def json_rows(blocks: Sequence[tuple[str, LineBlock]], target: RowFormat) -> list[Parsed]:
    """Return the rows and rejections of each block. A block has lines of the named file.

    Arrow reads the plain lines. DuckDB converts the lines that are not plain. DuckDB
    converts the lines of all blocks together, because a DuckDB statement takes milliseconds even for one line.
    """
    plain, rest = [], []
    for file, block in blocks:
        found = read_plain(block.text, target)
        marked = np.ones(len(block.numbers), np.bool_) if found is None else found.marked
        rows = target.schema.empty_table() if found is None else conform(found.rows, target.schema)
        plain.append(Parsed(rows, (), block.numbers[~marked]))
        text = block.text.filter(pa.array(marked)) if marked.any() else block.text.slice(0, 0)
        rest.append((file, LineBlock(block.numbers[marked], text, block.not_text)))
    # Each file has its own drift (columns or types that the table does not have). If the rule allows drift, DuckDB
    # therefore reads the lines of each file separately.
    groups = [rest] if target.drift == QUARANTINE else [[each] for each in rest]
    exact = chain.from_iterable(_exact_rows(each, target) for each in groups)
    return [_in_order(*each) for each in zip(plain, exact, strict=True)]


def _exact_rows(blocks: Sequence[tuple[str, LineBlock]], target: RowFormat) -> Iterator[Parsed]:
    """Read the lines of all blocks together with DuckDB. Yield the rows and rejections of each block.

    The lines of all blocks are numbered from 0. The number of a line determines its block. The function uses this
    number to assign each row and each rejection to a block.
    """
    ends = np.cumsum([0, *(len(block.numbers) for _, block in blocks)])
    lines = LineBlock(
        np.arange(ends[-1]), pa.concat_arrays([pa.array([], pa.string()), *(each.text for _, each in blocks)])
    )
    parts = [
        _parsed("", each, lambda text: _json_fields(text, target), target)
        for each in json_pieces(lines, target)
        if len(each.numbers)
    ]
    rows = pa.concat_tables([target.schema.empty_table(), *(each.rows for each in parts)])
    places = np.concatenate([np.zeros(0, np.int64), *(each.numbers for each in parts)])
    drift = reduce(or_, (each.drift for each in parts), NO_DRIFT)
    refused = [(line.line or 0, line) for part in parts for line in part.rejected]
    refused_places = [place for place, _ in refused]
    for (file, block), start, end in zip(blocks, ends[:-1], ends[1:], strict=True):
        first, last = np.searchsorted(places, (start, end))
        own = refused[bisect_left(refused_places, start) : bisect_left(refused_places, end)]
        again = tuple(
            RejectedLine(file, int(block.numbers[place - start]), each.reason, each.text) for place, each in own
        )
        found = Parsed(rows.slice(first, last - first), again, block.numbers[places[first:last] - start], drift=drift)
        yield found.and_rejected(not_text(file, block.not_text)) if block.not_text else found


def _in_order(plain: Parsed, exact: Parsed) -> Parsed:
    """Return the rows of `plain` and `exact` in the order of their lines. Keep the rejections of `exact`."""
    if not (plain.rows.num_rows and exact.rows.num_rows):
        return replace(exact if exact.rows.num_rows else plain, rejected=exact.rejected, drift=exact.drift)
    numbers = np.concatenate([plain.numbers, exact.numbers])
    order = np.argsort(numbers, kind="stable")
    rows = pa.concat_tables([plain.rows, exact.rows]).take(pa.array(order))
    return Parsed(rows, exact.rejected, numbers[order], drift=exact.drift)


def _parsed(
    file: str,
    block: LineBlock,
    fields_of: FieldsOf,
    target: RowFormat,
) -> Parsed:
    (reasons, fields), new = fields_of(block.text)
    whole = reasons.is_null()
    is_whole = np.asarray(whole)
    broken = [
        RejectedLine(file, int(block.numbers[index]), reasons[int(index)].as_py(), block.text[int(index)].as_py())
        for index in np.flatnonzero(~is_whole)
    ]
    lines = block.text if not broken else block.text.filter(whole)
    new = None if new is None else new.filter(is_whole)
    records = Records(file, fields, block.numbers[is_whole], lambda index: str(lines[index]), new)
    return convert_or_reject(records, target).and_rejected([*broken, *not_text(file, block.not_text)])


def _json_fields(lines: pa.StringArray, target: RowFormat) -> tuple[Fields, NewFields | None]:
    large = [
        index for index in np.flatnonzero(parts_of(lines) >= MOST_PARTS) if has_too_many(lines[int(index)].as_py())
    ]
    if not large:
        return _fields_of(lines, target)
    fits = np.ones(len(lines), np.bool_)
    fits[large] = False
    (reasons, fields), new = _fields_of(lines.filter(pa.array(fits)), target)
    every = pc.replace_with_mask(pa.array([TOO_MANY] * len(lines)), pa.array(fits), reasons)
    places = np.flatnonzero(fits)
    moved = ObjectFields({int(places[row]): each for row, each in new.rows.items()}, len(lines)) if new else None
    return (every, fields), moved


def _fields_of(lines: pa.StringArray, target: RowFormat) -> tuple[Fields, ObjectFields | None]:
    filled = target.drift.filled(target.schema)
    names, new = filled.names, dict[int, Members]()
    # JSON pointers are used, because a field name may contain characters with a meaning in a JSON path.
    pointers = ["/" + name.replace("~", "~0").replace("/", "~1") for name in names]
    chosen = ", ".join(f"{_chosen(index + 1, field)} AS c{index}" for index, field in enumerate(filled))
    with conversion_session(CONVERSION, lines=pa.table({"line": lines})) as connection:
        table = connection.sql(_WHY_NO_OBJECT, params={"names": names}).to_arrow_table()
    reasons = table.column(0).combine_chunks()
    misnamed = pc.fill_null(pc.equal(reasons, "misnamed"), fill_value=False)
    if pc.any(misnamed).as_py():
        misread = _Misread(names, target)
        texts = zip(np.flatnonzero(misnamed).tolist(), lines.filter(misnamed).to_pylist(), strict=True)
        found = [(row, *misread.find(text)) for row, text in texts]
        new = {row: members for row, reason, members in found if reason is None and members}
        named = pa.array([reason for _, reason, _ in found], pa.string())
        reasons = pc.replace_with_mask(reasons.cast(pa.string()), misnamed, named)
    mark = token_hex(MARK_BYTES)
    objects = pa.table({"line": marked(lines.filter(reasons.is_null()), mark)})
    with conversion_session(CONVERSION, objects=objects) as connection:
        fields = connection.sql(
            # `chosen` contains column numbers only.
            f"SELECT {chosen} FROM (SELECT line, $nulls AS nulls, $pointers AS pointers, "  # noqa: S608
            "json_extract_string(line, $pointers) AS found FROM objects)",
            params={"pointers": pointers, "nulls": ["", *target.null_values]},
        ).to_arrow_table()
    columns = [
        without_exponent(column) if pa.types.is_decimal(field.type) else column
        for field, column in zip(filled, (unmarked(each, mark) for each in fields.columns), strict=True)
    ]
    whole = _with_maps(reasons.cast(pa.string()), pa.Table.from_arrays(columns, names=names), target)
    return whole, ObjectFields(new, len(lines)) if new else None


def _chosen(number: int, field: pa.Field) -> str:
    """Return SQL for the value of a field as text.

    In an embedding column, a text value keeps its quotes, so that it is not read as a list.
    """
    found = f"found[{number}]"
    if not is_vector(field.type):
        return found
    is_text = f"json_type(line, pointers[{number}]) = 'VARCHAR' AND NOT list_contains(nulls, {found})"
    return f"CASE WHEN {is_text} THEN to_json({found})::VARCHAR ELSE {found} END"


class _Misread:
    """A check of objects that have a repeated field or a field that is not a column."""

    def __init__(self, names: Sequence[str], target: RowFormat) -> None:
        self._names, self._target = frozenset(names), target
        self._faults: dict[str, str | None] = {}

    def find(self, line: str) -> tuple[str | None, Members]:
        """Return the reason why the object is invalid, or the new fields of a valid object.

        The reason is the first new field that the rule does not accept, or else a field that occurs twice.
        """
        try:
            members = members_of(line)
        except (ValueError, RecursionError):
            return "the line is not valid JSON, or nests too deeply", ()
        new = without_nulls((each for each in members if each[0] not in self._names), self._target.null_values)
        if fault := next(filter(None, (self._fault(name) for name, _ in new)), None):
            return fault, ()
        if len({name for name, _ in members}) < len(members):
            counts = Counter(name for name, _ in members)
            twice = next(name for name, count in counts.items() if count > 1)
            return f"the field {fitted(twice, _LONGEST_NAME)} is given twice", ()
        return None, new

    def _fault(self, name: str) -> str | None:
        if name not in self._faults:
            self._faults[name] = self._target.drift.fault(name, self._target.schema)
        return self._faults[name]


def _with_maps(reasons: pa.StringArray, fields: pa.Table, target: RowFormat) -> Fields:
    """Convert the columns with a map, list or struct type, and reject the rows whose value is not a valid map."""
    wrong: list[str | None] = [None] * fields.num_rows
    for index, field in enumerate(target.drift.filled(target.schema)):
        if is_json_map(field.type):
            maps, why = map_column(fields.column(index), field, target)
            fields = fields.set_column(index, field.name, maps)
            wrong = [first or then for first, then in zip(wrong, why, strict=True)]
        elif is_nested_json(field.type):
            nested, why = nested_column(fields.column(index), field, target)
            fields = fields.set_column(index, field.name, nested)
            wrong = [first or then for first, then in zip(wrong, why, strict=True)]
    if not any(wrong):
        return reasons, fields
    found = pa.array(wrong, pa.string())
    return pc.replace_with_mask(reasons, reasons.is_null(), found), fields.filter(found.is_null())
