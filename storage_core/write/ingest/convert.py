"""Conversion of text to typed columns: every value converts exactly, or its line is rejected with a reason.

One SQL statement converts a whole block in DuckDB, in UTC. DuckDB's own casts accept too much: 1.5 becomes 2, 0x1f
becomes 31, infinity becomes a time. Landed data cannot be requested again. So the conversion first checks that the text
has the exact form of the type.

- `read_lines` splits bytes into numbered lines. A line ends with LF, CR LF or the end of the file. Empty lines are
  skipped.
- `convert` converts columns of text.
- `Parsed` is the result of parsing: rows of the table's schema, and every rejected line with its reason.
- `tally` counts rejections by reason. `tally` limits the number of reasons, because a file can cause an unlimited
  number of different reasons.
"""

from __future__ import annotations

import base64
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, BinaryIO, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.base.errors import InvalidInput, damaged_file_error, out_of_memory
from storage_core.base.limits import LONGEST_QUERY_SECONDS, QueryLimits
from storage_core.base.text import most_frequent, unknown_names
from storage_core.data.formats.arrow_files import RejectedLines
from storage_core.data.rows.conform import conform
from storage_core.data.rows.times import BEYOND
from storage_core.data.rows.vectors import NOT_FINITE, NULL_INSIDE, ZERO, is_vector, type_text
from storage_core.engine.session import session, sql_type
from storage_core.store.contract import ObjectStore
from storage_core.write.ingest.casts import Cast, Mask, cast_text
from storage_core.write.ingest.changes import ChangeFormat
from storage_core.write.ingest.drift import (
    NO_DRIFT,
    QUARANTINE,
    Drift,
    DriftRule,
    NewFields,
    drift_of,
    needed_type,
    widest_types,
    with_types,
)
from storage_core.write.ingest.landed_times import (
    AS_WRITTEN,
    LandedTimes,
    cut_sql,
    number_faults,
    number_sql,
    yearless_sql,
)
from storage_core.write.late_rows import QuarantineResult, write_quarantine_entry

if TYPE_CHECKING:
    import duckdb

MOST_REASONS = 50
LONGEST_REASON = 200
OTHERS = "other reasons"


def tally(*counts: Mapping[str, int]) -> dict[str, int]:
    """Return the sum of several counts by reason. `most_frequent` limits the number of reasons.

    The quarantine contains each reason in full.
    """
    return most_frequent(counts, OTHERS, LONGEST_REASON, MOST_REASONS)


BLOCK_BYTES = 32 * 2**20
LONGEST_LINE_BYTES = 64 * 2**20
MOST_CELLS = 16 * 2**20
"""The maximum number of values that are converted at once.

For many columns, a block of short lines has many more values than a block of long lines.
"""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Lines of a file with their line numbers, from 1. `not_text` contains the lines that are not UTF-8, as bytes."""

    numbers: npt.NDArray[np.int64]
    text: pa.StringArray
    not_text: tuple[tuple[int, bytes], ...] = ()

    def pieces(self, weights: npt.NDArray[np.int64]) -> Iterator[LineBlock]:
        """Yield the same lines in order, in pieces of at most `MOST_CELLS` total weight.

        A piece has at least one line.
        """
        total = np.concatenate([[0], np.cumsum(weights)])
        start, bad = 0, self.not_text
        while start < len(self.numbers):
            end = max(start + 1, int(np.searchsorted(total, total[start] + MOST_CELLS, side="right")) - 1)
            passed = len(bad) if end == len(self.numbers) else bisect_left(bad, (int(self.numbers[end]),))
            yield LineBlock(self.numbers[start:end], self.text.slice(start, end - start), bad[:passed])
            start, bad = end, bad[passed:]
        if bad:
            yield LineBlock(self.numbers[:0], self.text.slice(0, 0), bad)


def read_lines(stream: BinaryIO, block_bytes: int = BLOCK_BYTES) -> Iterator[LineBlock]:
    """Yield the lines of the stream in blocks of about `block_bytes`. Memory holds a few blocks.

    Raises `Corrupt` for a line above 64 MB, and the errors of reading the stream.
    """
    first_number, rest, at_start = 1, b"", True
    while chunk := stream.read(block_bytes):
        if at_start:
            chunk, at_start = chunk.removeprefix(_BYTE_ORDER_MARK), False
        end = chunk.rfind(b"\n") + 1
        if end == 0:
            rest += chunk
            if len(rest) > LONGEST_LINE_BYTES:
                raise damaged_file_error(
                    f"line {first_number} is longer than {LONGEST_LINE_BYTES} bytes. This is not a file of lines"
                )
            continue
        lines, numbers, first_number = split_lines(rest + chunk[:end], first_number)
        rest = chunk[end:]
        yield _block(lines, numbers)
    if rest:
        lines, numbers, _ = split_lines(rest, first_number)
        yield _block(lines, numbers)


def split_lines(data: bytes, first_number: int = 1) -> tuple[pa.BinaryArray, npt.NDArray[np.int64], int]:
    """Return the non-empty lines of `data` without line ends, their numbers, and the number of the next line.

    The function uses array operations on all lines instead of a loop. Memory holds a copy of `data`, two boolean values
    per byte, and the non-empty lines. Empty lines use no additional memory. The memory for empty lines matters because
    a gzipped kilobyte can contain a million empty lines.
    """
    if b"\r\n" in data:
        data = data.replace(b"\r\n", b"\n")
    if not data.endswith(b"\n"):
        data += b"\n"
    ended = np.frombuffer(data, np.uint8) == ord("\n")
    if b"\n\n" not in data and data[0] != ord("\n"):  # no line is empty, so each line break ends a line
        ends = np.flatnonzero(ended)
        starts = np.concatenate([[0], ends[:-1] + 1])
    else:
        filled = ~ended
        starts = np.flatnonzero(filled[1:] & ended[:-1]) + 1
        starts = np.concatenate([[0], starts]) if filled[0] else starts
        ends = np.flatnonzero(ended[1:] & filled[:-1]) + 1
    # The bytes between two non-empty lines are all line ends.
    numbers = first_number + np.cumsum(starts - np.concatenate([[0], ends[:-1]])[: len(starts)], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(ends - starts)], dtype=np.int32)
    joined = pa.py_buffer(data.translate(None, b"\n"))
    lines = pa.Array.from_buffers(pa.binary(), len(ends), [None, pa.py_buffer(offsets), joined])
    return lines, numbers, first_number + int(np.count_nonzero(ended))


def valid_text(values: pa.BinaryArray) -> npt.NDArray[np.bool_]:
    """Return for each value whether it is UTF-8. Null counts as valid."""
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        # Values are checked one by one only in a block with an invalid byte.
        return np.fromiter((_is_text(value.as_py()) for value in values), np.bool_, len(values))
    return np.ones(len(values), np.bool_)


def _block(lines: pa.BinaryArray, numbers: npt.NDArray[np.int64]) -> LineBlock:
    valid = valid_text(lines)
    text = lines if valid.all() else lines.filter(pa.array(valid))
    not_text = tuple((int(numbers[index]), lines[int(index)].as_py()) for index in np.flatnonzero(~valid))
    return LineBlock(numbers[valid], text.cast(pa.string()), not_text)


def _is_text(value: bytes | None) -> bool:
    try:
        return value is None or value.decode() is not None
    except UnicodeDecodeError:
        return False


CONVERSION = QueryLimits(seconds=LONGEST_QUERY_SECONDS, memory_bytes=2**31)
"""The limits for the conversion of one piece of a file. `memory_bytes` limits the memory that DuckDB itself counts.

A line of 60 MB needs more than half of this memory.
"""

_SESSION: ContextVar[_Session | None] = ContextVar("session", default=None)


class _Session:
    """The DuckDB session for the conversions inside a `shared_session`. The first conversion opens the session."""

    def __init__(self) -> None:
        self.limits: QueryLimits | None = None
        self.connection: duckdb.DuckDBPyConnection | None = None

    def close(self) -> None:
        """Close the session, if it is open."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None


@contextmanager
def shared_session() -> Iterator[None]:
    """Share one session among all conversions of this thread inside the block. Opening a session takes 14 ms.

    A block inside another block uses the session of the outer block.
    """
    if _SESSION.get() is not None:
        yield
        return
    shared = _Session()
    token = _SESSION.set(shared)
    try:
        yield
    finally:
        _SESSION.reset(token)
        shared.close()


@contextmanager
def conversion_session(limits: QueryLimits, **tables: pa.Table) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a session of DuckDB in which these tables are registered.

    Inside of `shared_session`, yield the shared session.

    After an error, a shared session is closed, and the next conversion opens another one.
    """
    shared = _SESSION.get() or _Session()
    if shared.connection is None or shared.limits != limits:
        shared.close()
        shared.connection, shared.limits = session(limits, threads=1), limits
    connection = shared.connection
    try:
        for name, table in tables.items():
            connection.register(name, table)
        yield connection
        for name in tables:
            connection.unregister(name)
    except BaseException:
        shared.close()
        raise
    if shared is not _SESSION.get():
        shared.close()


_INTEGER_FORM = "[+-]?[0-9]+"
_FLOAT_FORM = r"(?i)[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|[+-]?inf(inity)?|nan"
_VECTOR_FORM = r"(?i)\s*\[\s*(({number})(\s*,\s*({number}))*)?\s*\]\s*".replace(
    "{number}", f"{_FLOAT_FORM.removeprefix('(?i)')}|null"
)
_INFINITE_FORM = r"(?i)[+-]?inf(inity)?"
_DATE_FORM = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK_FORM = r"[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6}0*)?)?"
_ZONE_FORM = " ?(Z|z|[+-][0-9]{2}(:?[0-9]{2})?)"
_NO_TIME = (
    (
        r"\s*[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?\s*",
        "which must be text such as 2026-01-01T10:00:00Z, not a number",
    ),
    (
        rf"{_DATE_FORM}[T ][0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}\.[0-9]{{7,}}({_ZONE_FORM})?",
        "which may have at most 6 digits after the second",
    ),
)
"""Texts that other programs accept as times, and the reasons why they are rejected here."""


@dataclass(frozen=True, slots=True)
class RowFormat:
    """The target schema of a conversion, and the format of the text.

    The format has three parts: the time column, its strptime format, and the words for null. `nonzero` contains the
    embedding columns whose values must not be zero. `times` defines the meaning of times that are numbers, have
    nanoseconds, or have no year. For a keyed table, `schema` is `changes.fields`, and `changes.faults` rejects records.
    `drift` defines the effect of new fields.
    """

    schema: pa.Schema
    time_column: str | None = None
    time_format: str | None = None
    null_values: tuple[str, ...] = ()
    nonzero: frozenset[str] = frozenset()
    times: LandedTimes = AS_WRITTEN
    drift: DriftRule = QUARANTINE
    changes: ChangeFormat | None = None


@dataclass(frozen=True, slots=True)
class Converted:
    """The converted rows with the table's schema, one for each input row.

    For each row, `reasons` contains the reason why the row is rejected, or null for a valid row.
    """

    rows: pa.Table
    reasons: pa.StringArray


def convert(raw: pa.Table, target: RowFormat) -> Converted:
    """Convert columns of text to the schema. Columns that are missing in `raw` become null.

    Nested columns are not converted. Empty text is a value only for strings. A time without a zone is UTC. A row gets a
    rejection reason if a required value is missing or a value does not fit its column. The reason contains the name of
    the first faulty column in schema order.

    Raises:
        InvalidInput: a column is unknown, a type has no text form, or the time format is invalid.

    An out-of-memory error of DuckDB is raised unchanged.
    """
    unknown = sorted(set(raw.column_names) - set(target.schema.names))
    if unknown:
        raise InvalidInput(unknown_names("column", unknown, target.schema.names), columns=unknown)
    raw = raw.combine_chunks()
    casts = {field.name: cast for field in target.schema if (cast := _cast(raw, field, target)) is not None}
    undecided = np.zeros(raw.num_rows, np.bool_)
    for each in casts.values():
        undecided |= each.undecided
    decided = _assembled(raw, casts, target, ~undecided)
    if not undecided.any():
        return decided
    exact = _converted(raw.filter(pa.array(undecided)), target)
    order = pa.array(np.argsort(np.concatenate([np.flatnonzero(~undecided), np.flatnonzero(undecided)])))
    columns = [exact.rows.column(name).cast(decided.rows.field(name).type) for name in exact.rows.column_names]
    both = pa.concat_tables([decided.rows, pa.table(columns, schema=decided.rows.schema)]).take(order)
    return Converted(both, pa.concat_arrays([decided.reasons, exact.reasons]).take(order))


def _cast(raw: pa.Table, field: pa.Field, target: RowFormat) -> Cast | None:
    """Return the values that Arrow can convert with certainty, or None if DuckDB must convert the whole column."""
    if field.name not in raw.column_names:
        return Cast(pa.nulls(raw.num_rows, field.type), np.full(raw.num_rows, not field.nullable))
    column = raw.column(field.name)
    if not pa.types.is_string(column.type) or has_own_form(field, target):
        return None
    return cast_text(without_null_words(as_array(column), field, target), field)


def as_array(column: pa.ChunkedArray) -> pa.Array:
    """Return the column as one array."""
    whole = column.combine_chunks()
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole


def without_null_words(texts: pa.StringArray, field: pa.Field, target: RowFormat) -> pa.StringArray:
    """Return the texts of a column, with null for each text that is a word for null.

    Empty text is also a word for null, except in a text column.
    """
    words = [*target.null_values] if pa.types.is_string(field.type) else ["", *target.null_values]
    is_word = pc.is_in(texts, value_set=pa.array(words, pa.string()))
    return pc.if_else(is_word, pa.scalar(None, pa.string()), texts) if is_word.true_count else texts


def has_own_form(field: pa.Field, target: RowFormat) -> bool:
    """Return whether the declaration sets a special text format for this column, which only DuckDB can read."""
    if field.name == target.time_column and target.time_format is not None:
        return True
    return field.name in target.times.units or (pa.types.is_timestamp(field.type) and target.times.truncates)


def _assembled(raw: pa.Table, casts: Mapping[str, Cast], target: RowFormat, chosen: Mask) -> Converted:
    """Return the chosen rows. Columns in `casts` are already converted, and DuckDB converts the other columns."""
    whole = bool(chosen.all())
    slow = pa.schema([field for field in target.schema if field.name not in casts])
    others = Converted(pa.table({}), pa.nulls(int(chosen.sum()), pa.string()))
    if len(slow):
        texts = raw.select(slow.names)
        others = _converted(texts if whole else texts.filter(pa.array(chosen)), replace(target, schema=slow))
    columns = [
        others.rows.column(slow.names.index(field.name))
        if field.name not in casts
        else casts[field.name].values
        if whole
        else casts[field.name].values.filter(pa.array(chosen))
        for field in target.schema
    ]
    return Converted(pa.table(columns, names=target.schema.names), others.reasons)


def _converted(raw: pa.Table, target: RowFormat) -> Converted:
    """Convert all columns with DuckDB."""
    import duckdb

    with conversion_session(CONVERSION, raw=raw) as connection:
        try:
            table = connection.sql(_statement(raw.schema, target)).to_arrow_table()
        except duckdb.Error as error:
            if out_of_memory(error):  # the cause is not the format of the text
                raise
            what = "a text of the file cannot be converted to the type of its column. Correct the file"
            if target.time_format is not None:
                what += f", or check that the times have the form of time_format {target.time_format!r}"
            raise InvalidInput(what) from error
    last = table.num_columns - 1  # selected by position, because a column of the table may have any name
    return Converted(table.remove_column(last), table.column(last).combine_chunks())


def _statement(present: pa.Schema, target: RowFormat) -> str:
    """Return the SQL statement of the conversion, which has three steps.

    In step 1, `c<i>` is column i without the words for null. In step 2, `t<i>` is the typed value. Step 3 sets the
    names and the reason.
    """
    schema = target.schema
    maps = {field.name for field in present if pa.types.is_nested(field.type)}
    clean = [_clean(field, present, target) for field in schema]
    typed = [
        f"c{index}" if field.name in maps else _typed(f"c{index}", field, target) for index, field in enumerate(schema)
    ]
    cases = [case for index, field in enumerate(schema) for case in _reasons(index, field, target)]
    named = [f"t{index} AS {_quoted(field.name)}" for index, field in enumerate(schema)]
    reason = f"CASE {' '.join(cases)} END" if cases else "NULL"
    # `_quoted` and `_literal` quote names and literals. Values never become part of the statement.
    return (
        f"WITH clean AS (SELECT {', '.join(f'{each} AS c{index}' for index, each in enumerate(clean))} FROM raw), "  # noqa: S608
        f"typed AS (SELECT *, {', '.join(f'{each} AS t{index}' for index, each in enumerate(typed))} FROM clean) "
        f"SELECT {', '.join(named)}, ({reason})::VARCHAR AS reason FROM typed"
    )


def _clean(field: pa.Field, present: pa.Schema, target: RowFormat) -> str:
    if field.name not in present.names:
        return "NULL::VARCHAR"
    is_map = pa.types.is_nested(present.field(field.name).type)
    if is_map:
        return _quoted(field.name)
    cleaned = _cleaned(field, target.null_values)
    is_cut = target.times.truncates and pa.types.is_timestamp(field.type) and field.name not in target.times.units
    return cut_sql(cleaned) if is_cut else cleaned


def _cleaned(field: pa.Field, null_values: Sequence[str]) -> str:
    name = _quoted(field.name)
    nulls = [*null_values] if pa.types.is_string(field.type) else ["", *null_values]
    return f"CASE WHEN {name} NOT IN ({', '.join(map(_literal, nulls))}) THEN {name} END" if nulls else name


def _typed(value: str, field: pa.Field, target: RowFormat) -> str:
    if pa.types.is_timestamp(field.type) and field.name == target.time_column and target.time_format is not None:
        if target.times.arrival_ms is not None:
            yearless = yearless_sql(value, _literal(f"%Y {target.time_format}"), target.times.arrival_ms)
            return f"TRY_CAST({yearless} AS {_sql_type(field)})"
        return f"TRY_CAST(try_strptime({value}, {_literal(target.time_format)}) AS {_sql_type(field)})"
    if pa.types.is_timestamp(field.type) and (unit := target.times.units.get(field.name)):
        return number_sql(value, unit, is_instant=field.type.tz is not None, truncates=target.times.truncates)
    form = _form(field)
    if is_vector(field.type):
        return f"CASE WHEN regexp_full_match({value}, {_literal(_VECTOR_FORM)}) THEN TRY_CAST({value} AS FLOAT[]) END"
    cast = f"TRY_CAST({value} AS {_sql_type(field)})"
    if pa.types.is_floating(field.type):  # the cast converts too large numbers to infinity
        cast = f"CASE WHEN NOT isinf({cast}) OR regexp_full_match({value}, {_literal(_INFINITE_FORM)}) THEN {cast} END"
    return cast if form is None else f"CASE WHEN regexp_full_match({value}, {_literal(form)}) THEN {cast} END"


def _form(field: pa.Field) -> str | None:
    """Return the pattern of valid texts of a type, or None if the cast accepts only valid texts."""
    types, type_ = pa.types, field.type
    if types.is_integer(type_):
        return _INTEGER_FORM
    if types.is_floating(type_):
        return _FLOAT_FORM
    if types.is_decimal(type_):
        return rf"[+-]?[0-9]+(\.[0-9]{{0,{type_.scale}}}0*)?"
    if types.is_date(type_):
        return _DATE_FORM
    if types.is_timestamp(type_):
        return f"{_DATE_FORM}({_CLOCK_FORM}" + (f"({_ZONE_FORM})?" if type_.tz else "") + ")?"
    return None


def _sql_type(field: pa.Field) -> str:
    found = sql_type(field.type)
    if found is None:
        message = f"column {field.name!r}: {field.type} has no text form. Land the files as Parquet"
        raise InvalidInput(message, column=field.name)
    return found


def _reasons(index: int, field: pa.Field, target: RowFormat) -> Iterator[str]:
    nonzero, formatted = target.nonzero, {target.time_column} if target.time_format else ()
    if not field.nullable:
        yield f"WHEN c{index} IS NULL THEN {_literal(f'column {field.name}: a value is required')}"
    if not pa.types.is_string(field.type):
        unread = f"t{index} IS NULL AND c{index} IS NOT NULL"
        wrong = f"column {field.name}: not a valid {_readable(field.type)}"
        if pa.types.is_timestamp(field.type) and (unit := target.times.units.get(field.name)):
            for fault, why in number_faults(f"c{index}", unit, truncates=target.times.truncates):
                yield f"WHEN {unread} AND ({fault}) THEN {_literal(f'column {field.name}: {why}')}"
        if pa.types.is_timestamp(field.type) and field.name not in formatted:
            for form, why in _NO_TIME:
                known = f"regexp_full_match(c{index}, {_literal(form)})"
                yield f"WHEN {unread} AND {known} THEN {_literal(f'{wrong}, {why}')}"
        yield f"WHEN {unread} THEN {_literal(wrong)}"
    if is_vector(field.type):
        yield from _vector_reasons(f"t{index}", field, is_nonzero=field.name in nonzero)
    if pa.types.is_timestamp(field.type) or pa.types.is_date(field.type):
        last = "9999-12-31" if pa.types.is_date(field.type) else "9999-12-31 23:59:59.999999"
        outside = f"NOT BETWEEN {_sql_type(field)} '0001-01-01' AND {_sql_type(field)} '{last}'"
        yield f"WHEN t{index} {outside} THEN {_literal(f'column {field.name}: {BEYOND}')}"


def _vector_reasons(vector: str, field: pa.Field, *, is_nonzero: bool) -> Iterator[str]:
    size, where = field.type.list_size, f"column {field.name}: "
    begin, end = (
        _literal(f"{where}the vector has "),
        _literal(f" numbers, but the column has the type {type_text(field.type)}"),
    )
    yield f"WHEN len({vector}) <> {size} THEN {begin} || len({vector}) || {end}"
    yield f"WHEN list_count({vector}) < {size} THEN {_literal(where + NULL_INSIDE)}"
    yield f"WHEN NOT isfinite(list_sum({vector})) THEN {_literal(where + NOT_FINITE)}"
    if is_nonzero:
        yield f"WHEN list_min({vector}) = 0 AND list_max({vector}) = 0 THEN {_literal(where + ZERO)}"


def _readable(type_: pa.DataType) -> str:
    if is_vector(type_):
        return type_text(type_)
    return re.sub(r"\[.*\]|128", "", str(type_))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


NOT_TEXT = "the line is not UTF-8"


@dataclass(frozen=True, slots=True)
class RejectedLine:
    """A rejected line. `line` is the line number from 1, or None if the whole file is rejected.

    For CSV and Parquet, `line` is the number of the record. `text` is the line as it is in the file, or the values of
    the record for CSV and Parquet. A text that is not UTF-8 is stored in base64.
    """

    file: str
    line: int | None
    reason: str
    text: str
    encoding: Literal["utf-8", "base64"] = "utf-8"

    def to_object(self) -> dict[str, object]:
        """Return the line as an object of a quarantine entry. The entry contains the name of the file."""
        return {"line": self.line, "reason": self.reason, "text": self.text, "encoding": self.encoding}


@dataclass(frozen=True, slots=True)
class Parsed:
    """Rows with exactly the table's schema, and the rejected lines.

    - `numbers`: the line number of each row, as in `RejectedLine`.
    - `unreadable`: no row of the file may be used.
    - `header`: the header of a CSV file.
    - `drift`: the new fields and wider values. `rows` contains the rows with new fields or wider values only if the
      drift rule neither adds nor widens columns.
    - `given`: the names of the fields that each patch sets, if the format stores field names in each record.
    - `skipped`: the number of records that have no effect, such as the tombstones of a Kafka topic.
    """

    rows: pa.Table
    rejected: tuple[RejectedLine, ...]
    numbers: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64), compare=False)
    unreadable: bool = False
    header: str | None = None
    drift: Drift = NO_DRIFT
    given: pa.ListArray | None = field(default=None, compare=False)
    skipped: int = 0

    def and_rejected(self, more: Iterable[RejectedLine]) -> Parsed:
        """Return the same rows with more rejections, in line order."""
        rejected = sorted([*self.rejected, *more], key=lambda each: each.line or 0)
        return replace(self, rejected=tuple(rejected))


@dataclass(frozen=True, slots=True)
class Records:
    """The records of one block as text, with one column per field. `text_of` returns the text of a record.

    `new` contains the fields that are not columns of the table.
    """

    file: str
    fields: pa.Table
    numbers: npt.NDArray[np.int64]
    text_of: Callable[[int], str]
    new: NewFields | None = None


def convert_or_reject(records: Records, target: RowFormat) -> Parsed:
    """Convert the records to rows, and reject the records that do not convert. Raise the errors of `convert`."""
    fields, rule = records.fields, target.drift
    if records.new is not None and rule.column is not None:
        fields = fields.append_column(rule.column, records.new.objects())
    converted = convert(fields, target)
    reasons = converted.reasons
    if target.changes is not None:
        reasons = pc.coalesce(reasons, target.changes.faults(converted.rows))
    if records.new is not None:
        reasons = pc.coalesce(records.new.faults(rule, target.schema), reasons)
    fits = reasons.is_null()
    bad = np.flatnonzero(~np.asarray(fits))
    drift = _drift_of(records, np.asarray(fits), target)
    refused = tuple(
        RejectedLine(
            records.file,
            int(records.numbers[index]),
            reasons[int(index)].as_py(),
            records.text_of(int(index)),
        )
        for index in bad
    )
    rows = converted.rows.filter(fits) if len(bad) else converted.rows
    return Parsed(conform(rows, target.schema), refused, records.numbers[np.asarray(fits)], drift=drift)


def _drift_of(records: Records, fits: Mask, target: RowFormat) -> Drift:
    """Return the schema drift of the records that fit the table as it is or after columns become wider."""
    rule, new = target.drift, records.new
    widened: dict[str, pa.DataType] = {}
    if rule.widens and not fits.all():
        widened, fits = _widened(records, fits, target)
    drift = Drift(widened=widened)
    return drift if new is None else drift | drift_of(new.filter(fits), rule)


def _widened(records: Records, fits: Mask, target: RowFormat) -> tuple[dict[str, pa.DataType], Mask]:
    """Return the wider types with which more records fit.

    Also return a mask of all records that fit with these types.
    """
    widest, bad = widest_types(target.schema), np.flatnonzero(~fits)
    if records.new is not None:
        bad = bad[np.asarray(records.new.faults(target.drift, target.schema).is_null())[bad]]
    if not widest or not len(bad):
        return {}, fits
    tried = convert(records.fields.take(pa.array(bad)), replace(target, schema=with_types(target.schema, widest)))
    fits_wide = tried.reasons.is_null()
    fits = fits.copy()
    fits[bad[np.asarray(fits_wide)]] = True
    rows = tried.rows.filter(fits_wide)
    needed = {name: needed_type(rows.column(name), target.schema.field(name).type) for name in widest}
    return {name: type_ for name, type_ in needed.items() if type_ is not None}, fits


def rejected(file: str, number: int, reason: str, data: bytes) -> RejectedLine:
    """Return the rejection of one line. If the line is not UTF-8, the rejection contains its bytes in base64."""
    try:
        return RejectedLine(file, number, reason, data.decode())
    except UnicodeDecodeError:
        return RejectedLine(file, number, reason, base64.b64encode(data).decode("ascii"), "base64")


def not_text(file: str, lines: Iterable[tuple[int, bytes]]) -> list[RejectedLine]:
    """Return the rejections of lines that are not UTF-8."""
    return [rejected(file, number, NOT_TEXT, data) for number, data in lines]


# The rejected lines of one source are stored with their reasons as one object in the table's quarantine. Rejected lines
# of several landed files share quarantine objects (`storage_core.write.late_rows.SharedEntries`).


def write_quarantine(store: ObjectStore, source: str, size: int, rejected: Sequence[RejectedLine]) -> QuarantineResult:
    """Write the rejections of one file (`source`, of `size` bytes) to the quarantine.

    The rejections are durable when the function returns. The call is idempotent, because the same rejections always
    produce the same object. Raises the errors of `late_rows.write_quarantine_entry`. One PUT.
    """
    lines = tuple(each.to_object() for each in rejected)
    return write_quarantine_entry(store, RejectedLines(source=source, size=size, rejected=lines))
