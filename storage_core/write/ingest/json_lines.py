"""Fast reading of NDJSON lines with Arrow. Arrow reads a line only if DuckDB would certainly produce the same row.

The exact path (`text_files`) checks every line with a sequence of DuckDB functions. Most landed lines do not need these
functions. A plain line has one object, known names, and values of the columns' types. `read_plain` parses plain lines
in one pass and marks the other lines. The caller converts only the marked lines with DuckDB (the exact path). So DuckDB
produces every rejection reason.

Arrow accepts some input that the exact path refuses. So `read_plain` also marks two kinds of lines that Arrow accepts.
A line of the first kind does not begin with `{`, or does not end with `}`. A line of the other kind contains a number
that is not finite. A line that begins with `{` and ends with `}` cannot be only a part of an object. So if there are as
many objects as lines, each line is one object.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from storage_core.data.rows.vectors import is_vector
from storage_core.write.ingest.casts import Mask, cast_text
from storage_core.write.ingest.convert import RowFormat, as_array, has_own_form, without_null_words

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]

_ROW: Final = re.compile(r" in row ([0-9]+)$")
_GROUP: Final = 256
"""After an error without a row number, lines are parsed again in groups of this size."""

_FEWEST: Final = 16
"""After an error without a row number, a group of at most this many lines is not divided into smaller groups."""

_MOST_FAILURES: Final = 1 / 64
"""The limit for the number of failed parses divided by the number of lines that were parsed.

Above this limit, DuckDB converts the remaining lines (the exact path).

A failed parse takes about as long as the exact parsing of 64 lines.
"""

_EXPONENT: Final = "[0-9][eE]"


@dataclass(frozen=True, slots=True)
class PlainLines:
    """The rows of the lines that were read, in order, and a mark for each line that was not read.

    The rows lack the column for new fields, because a plain line has no new field.
    """

    rows: pa.Table
    marked: Mask


def read_plain(lines: pa.StringArray, target: RowFormat) -> PlainLines | None:
    """Return the rows of the plain lines, or None if no line can be read here.

    The function reads no line if Arrow and DuckDB convert the JSON of some column differently. The function also reads
    no line if the declared text for null is a JSON value, such as `-1`.
    """
    types = _types_of(target)
    if types is None or not len(lines):
        return None
    plain = _begin_and_end_as_object(lines)
    if any(map(pa.types.is_decimal128, types.types)):  # Arrow rounds some decimals with an exponent
        plain &= ~np.asarray(pc.match_substring_regex(lines, _EXPONENT))
    places = np.flatnonzero(plain)
    reader = _Reader(*_join_lines(lines if plain.all() else lines.filter(pa.array(plain))), types)
    reader.read(0, len(places))
    rows, read = _converted(reader, target)
    marked = np.ones(len(lines), np.bool_)
    marked[places[read]] = False
    return PlainLines(rows, marked)


def _begin_and_end_as_object(lines: pa.StringArray) -> Mask:
    """Return which lines begin with `{` and end with `}`. A line can be empty if it is an element of a JSON array."""
    _, offsets, data = lines.buffers()
    ends = np.frombuffer(offsets, np.int32)[lines.offset : lines.offset + len(lines) + 1]
    text = np.frombuffer(data or b"", np.uint8)
    filled = np.flatnonzero(np.diff(ends))
    found = np.zeros(len(lines), np.bool_)
    found[filled] = (text[ends[filled]] == ord("{")) & (text[ends[filled + 1] - 1] == ord("}"))
    return found


def _types_of(target: RowFormat) -> pa.Schema | None:
    if any(map(_is_json, target.null_values)):
        return None
    filled = target.drift.filled(target.schema)
    types = [_type_of(each, target) for each in filled]
    if any(each is None for each in types):
        return None
    return pa.schema(list(zip(filled.names, types, strict=True)))


def _is_json(word: str) -> bool:
    try:
        json.loads(word)
    except ValueError:
        return False
    return True


def _type_of(column: pa.Field, target: RowFormat) -> pa.DataType | None:
    """Return the type with which Arrow reads the column. Times are read as text and cast later."""
    types, type_ = pa.types, column.type
    if has_own_form(column, target):
        return None
    if types.is_string(type_) or types.is_date32(type_) or types.is_timestamp(type_):
        return pa.string()
    if types.is_integer(type_) or types.is_floating(type_) or types.is_boolean(type_) or types.is_decimal128(type_):
        return type_
    return pa.list_(type_.value_type) if is_vector(type_) else None


def _join_lines(lines: pa.StringArray) -> tuple[Bytes, Places]:
    """Return the lines, joined by line feeds, and the start of each line.

    The array of starts ends with the position after the last line.
    """
    _, offsets, _ = lines.buffers()
    ends = np.frombuffer(offsets, np.int32)[lines.offset : lines.offset + len(lines) + 1].astype(np.int64)
    starts = ends - ends[0] + np.arange(len(lines) + 1)
    whole = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
    text = pc.binary_join(whole, "\n")
    return np.frombuffer(text.buffers()[2] or b"", np.uint8), starts


@dataclass(slots=True)
class _Reader:
    """A parser for groups of consecutive lines. The parser divides a group until each part can be read or is small."""

    data: Bytes
    starts: Places
    types: pa.Schema
    tables: list[pa.Table] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    failures: int = 0

    def read(self, first: int, last: int) -> None:
        """Read the plain lines from `first` (included) to `last` (excluded)."""
        todo = [(first, last)]
        while todo:
            first, last = todo.pop()
            if first == last or self.failures > _FEWEST + first * _MOST_FAILURES:
                continue
            try:
                rows = self._parsed(first, last)
            except pa.ArrowInvalid as error:
                self.failures += 1
                todo += reversed(_divide(first, last, _ROW.search(str(error).rstrip())))
                continue
            if rows.num_rows == last - first:
                self.tables.append(rows)
                self.spans.append((first, last))
            else:  # a line has several objects
                self.failures += 1
                todo += reversed(_divide(first, last, None))

    def _parsed(self, first: int, last: int) -> pa.Table:
        text = pa.py_buffer(self.data[self.starts[first] : self.starts[last] - 1])
        return pa_json.read_json(
            pa.BufferReader(text),
            read_options=pa_json.ReadOptions(use_threads=False, block_size=text.size + 1),
            parse_options=pa_json.ParseOptions(
                explicit_schema=self.types, newlines_in_values=False, unexpected_field_behavior="error"
            ),
        )


def _divide(first: int, last: int, row: re.Match[str] | None) -> list[tuple[int, int]]:
    """Return the parts of a failed group that are parsed again. The group's other lines remain marked for DuckDB."""
    if row is not None and first + int(row[1]) < last:
        failed = first + int(row[1])
        return [(first, failed), (failed + 1, last)]
    size = last - first
    if size <= _FEWEST:
        return []
    step = _GROUP if size > _GROUP else (size + 1) // 2
    return [(start, min(start + step, last)) for start in range(first, last, step)]


def _converted(reader: _Reader, target: RowFormat) -> tuple[pa.Table, Mask]:
    """Return the converted rows, and a mask of the lines that have a row."""
    read = np.zeros(len(reader.starts) - 1, np.bool_)
    for first, last in reader.spans:
        read[first:last] = True
    found = pa.concat_tables(reader.tables) if reader.tables else reader.types.empty_table()
    undecided = np.zeros(found.num_rows, np.bool_)
    columns = []
    filled = target.drift.filled(target.schema)
    for column in filled:
        values, wrong = _cast_column(found.column(column.name), column, target)
        columns.append(values)
        undecided |= wrong
    rows = pa.table(columns, names=filled.names)
    if target.changes is not None:  # the exact path with DuckDB returns the text of each record that is rejected
        undecided |= np.asarray(target.changes.faults(rows).is_valid())
    if undecided.any():
        rows = rows.filter(pa.array(~undecided))
        read[np.flatnonzero(read)[undecided]] = False
    return rows, read


def _cast_column(values: pa.ChunkedArray, column: pa.Field, target: RowFormat) -> tuple[pa.Array, Mask]:
    """Return the column in its type, and a mask of the rows that the exact path must convert."""
    whole = as_array(values)
    if pa.types.is_string(whole.type):
        if (cast := cast_text(without_null_words(whole, column, target), column)) is None:
            raise AssertionError(column.type)  # `_type_of` selects text only for columns that can be cast from text
        return cast.values, cast.undecided
    wrong = np.zeros(len(whole), np.bool_)
    if is_vector(column.type):
        whole, wrong = _vectors(whole, column, is_nonzero=column.name in target.nonzero)
    elif pa.types.is_floating(whole.type):
        wrong = ~np.asarray(pc.fill_null(pc.is_finite(whole), fill_value=True))
    if not column.nullable:
        wrong = wrong | np.asarray(whole.is_null())
    return whole, wrong


def _vectors(lists: pa.ListArray, column: pa.Field, *, is_nonzero: bool) -> tuple[pa.Array, Mask]:
    """Return embeddings with a fixed size, and a mask of invalid lists.

    A list is invalid if its length is not the size of the embedding, or if one of its values is not allowed.
    """
    size = column.type.list_size
    is_null = np.asarray(lists.is_null())
    fits = is_null | (np.asarray(pc.fill_null(pc.list_value_length(lists), size)) == size)
    present = fits & ~is_null
    numbers = lists.filter(pa.array(present)).flatten()
    matrix = np.asarray(numbers.fill_null(np.nan)).reshape(-1, size)
    sound = np.isfinite(matrix).all(axis=1)
    if is_nonzero:
        sound &= matrix.any(axis=1)
    fits[np.flatnonzero(present)[~sound]] = False
    present &= fits
    taken = np.zeros((len(lists), size), matrix.dtype)
    taken[present] = matrix[sound]
    flat = pa.array(taken.reshape(-1), column.type.value_type)
    return pa.FixedSizeListArray.from_arrays(flat, type=column.type, mask=pa.array(~present)), ~fits
