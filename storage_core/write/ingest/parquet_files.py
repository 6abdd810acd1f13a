"""Reader of landed Parquet files.

The values in these files have types, so the reader checks the values and does not parse them.

- Spark, Hive and Impala write INT96 timestamps. An INT96 timestamp consists of a day and the nanosecond of that day.
  Arrow reads all INT96 values of a file in the same unit, such as nanoseconds. Nanoseconds cover only the years 1677 to
  2262, and times of other years overflow silently. A table stores microseconds. The reader therefore reads INT96 values
  in microseconds. The reader compares the result with a second read in seconds and a third read in nanoseconds.
- The headers of pages are checked before Arrow reads the pages, because a small page can claim to expand to gigabytes.
- Logical types such as UUID, ENUM and JSON become the types of the table.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import BinaryIO, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from storage_core.base.errors import Corrupt, InvalidInput, damaged_file_error, raise_refused
from storage_core.base.text import quoted, shortened
from storage_core.data.formats import parquet_footer
from storage_core.data.formats.parquet_footer import require_valid_chunks
from storage_core.data.rows import times
from storage_core.data.rows.columns import may_widen
from storage_core.data.rows.conform import conform
from storage_core.data.rows.schema import table_type
from storage_core.data.rows.times import BEYOND, beyond, row_text
from storage_core.data.rows.values import (
    TOO_LONG,
    Change,
    examined,
    find_long_decimals,
    leaf_types,
    with_bytes,
    with_changed_leaves,
)
from storage_core.data.rows.vectors import faults, is_vector, with_lists, without_misfits
from storage_core.write.ingest.convert import MOST_CELLS, Parsed, RejectedLine, RowFormat
from storage_core.write.ingest.drift import (
    NO_DRIFT,
    QUARANTINE,
    ColumnFields,
    Drift,
    DriftRule,
    drift_of,
    json_texts,
    split_columns,
    unheld,
    widest_types,
    with_types,
)
from storage_core.write.ingest.landed_times import AS_WRITTEN, LandedTimes, timed_columns, timed_schema
from storage_core.write.ingest.landing import HEAD_BYTES, Expansion, plain_bytes, require_uncompressed, watched

Unit = Literal["s", "us", "ns"]

_INSTANT = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class Int96Columns:
    """The columns of a Parquet file.

    If a column has INT96 values, its type in `coarse` differs from its type in `columns`. The type of a column without
    INT96 values is the same in `coarse` and in `columns`.
    """

    columns: pa.Schema
    coarse: pa.Schema

    @staticmethod
    def of(columns: Callable[[Unit], pa.Schema]) -> Int96Columns:
        """Return the columns of a file. `columns(unit)` returns the columns with INT96 values in this unit."""
        return Int96Columns(columns("us"), columns("s"))

    @property
    def names(self) -> list[str]:
        """The columns with INT96 values, at any depth."""
        return [each.name for each, coarse in zip(self.columns, self.coarse, strict=True) if each.type != coarse.type]

    def fitting(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns. INT96 values are instants if the same column of the table `schema` has instants.

        INT96 is an instant for Spark and a local time for Hive. The file does not record which of the two it contains.
        """
        wanted = {each.name.casefold(): each.type for each in schema}
        fields = [
            each.with_type(_fitting(each.type, coarse.type, wanted.get(each.name.casefold())))
            for each, coarse in zip(self.columns, self.coarse, strict=True)
        ]
        return pa.schema(fields)


def exact_moments(
    batches: Iterator[pa.RecordBatch],
    names: Sequence[str],
    again: Callable[[Unit, Sequence[str]], Iterator[pa.RecordBatch]],
    *,
    truncates: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Check that the INT96 values are exact, and yield the batches, which are read in microseconds.

    Args:
        batches: the rows of a file.
        names: the columns with INT96 values. If there are no such columns, nothing is read again.
        again: reads these columns of the same rows in another unit.
        truncates: whether digits below the microsecond are cut off, and not refused.

    Raises:
        Corrupt: a value has digits below the microsecond, or is beyond the range of microseconds.
    """
    readings = [again(unit, names) if names else repeat(None) for unit in ("s", "ns")]
    for batch, seconds, nanos in zip(batches, *readings, strict=False):
        if seconds is not None and nanos is not None:
            for name in names:
                for leaves in _leaves(*(each.column(name) for each in (batch, seconds, nanos))):
                    _require_exact(name, *map(_ticks, leaves), truncates=truncates)
        yield batch


def as_instants(batch: pa.RecordBatch, names: Sequence[str], columns: pa.Schema) -> pa.RecordBatch:
    """Return the batch with the columns `names` cast to the types that `columns` contains (`Int96Columns.fitting`)."""
    for name in names:
        index, wanted = batch.schema.get_field_index(name), columns.field(name)
        batch = batch.set_column(index, wanted, batch.column(index).cast(wanted.type))
    return batch


def _fitting(fine: pa.DataType, coarse: pa.DataType, wanted: pa.DataType | None) -> pa.DataType:
    """Return the type of a column. If `fine` and `coarse` differ, the values are INT96 timestamps."""
    if wanted is None or fine == coarse:
        return fine
    kinds = pa.types
    if kinds.is_timestamp(fine):
        return _INSTANT if wanted == _INSTANT else fine
    if kinds.is_struct(fine) and kinds.is_struct(wanted):
        inside: Mapping[str, pa.DataType] = {each.name: each.type for each in wanted.fields}
        pairs = zip(fine.fields, coarse.fields, strict=True)
        return pa.struct([a.with_type(_fitting(a.type, b.type, inside.get(a.name))) for a, b in pairs])
    if kinds.is_map(fine) and kinds.is_map(wanted):
        key = _fitting(fine.key_type, coarse.key_type, wanted.key_type)
        return pa.map_(key, _fitting(fine.item_type, coarse.item_type, wanted.item_type))
    if kinds.is_list(fine) and kinds.is_list(wanted):
        element = fine.value_field.with_type(_fitting(fine.value_type, coarse.value_type, wanted.value_type))
        return pa.list_(element)
    return fine


def _leaves(fine: pa.Array, coarse: pa.Array, other: pa.Array) -> Iterator[tuple[pa.Array, pa.Array, pa.Array]]:
    """Yield the INT96 values inside a column, in three units."""
    kinds, type_ = pa.types, fine.type
    if kinds.is_timestamp(type_):
        if type_ != coarse.type:
            yield fine, coarse, other
    elif kinds.is_map(type_):
        yield from _leaves(fine.keys, coarse.keys, other.keys)
        yield from _leaves(fine.items, coarse.items, other.items)
    elif kinds.is_list(type_):
        yield from _leaves(fine.values, coarse.values, other.values)
    elif kinds.is_struct(type_):
        for index in range(type_.num_fields):
            yield from _leaves(fine.field(index), coarse.field(index), other.field(index))


def _ticks(moments: pa.Array) -> npt.NDArray[np.int64]:
    return np.asarray(moments.cast(pa.int64()).fill_null(0))


def _require_exact(
    name: str,
    micros: npt.NDArray[np.int64],
    seconds: npt.NDArray[np.int64],
    nanos: npt.NDArray[np.int64],
    *,
    truncates: bool,
) -> None:
    if (micros // 1_000_000 != seconds).any():
        raise damaged_file_error(f"column {name!r}: an INT96 timestamp is {BEYOND}")
    if not truncates and (micros * 1_000 != nanos).any():  # both sides overflow in the same way
        raise damaged_file_error(
            f"column {name!r}: an INT96 timestamp has digits below the microsecond, which tables do not support"
        )


# Checks of the page headers of a Parquet file, before Arrow reads them.
#
# A page of a hundred bytes can claim to expand to 2 GB, or to contain two billion values, and Arrow allocates memory
# for them. The headers are not compressed. The page headers use Thrift's compact protocol, as the Parquet specification
# defines.


LARGEST_PAGE = 256 * 2**20
PAGE_RATIO = 20
"""A page may be larger than `LARGEST_PAGE` if its expanded size is at most this number times its stored size.

Some writers put a thousand long texts into one page.
"""

MOST_VALUES = 2**27
"""The maximum number of values of one nested column in one row group.

One row may contain all values, and is read as a whole.
"""

DELTA_BYTE_ARRAY: Final = 7

# Field numbers in `PageHeader` of parquet.thrift, and in the structs of its three kinds of pages.
_EXPANDED_SIZE, _STORED_SIZE = 2, 3
_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 5, 7, 8
_NUM_VALUES = 1
_ENCODINGS = {_DATA_PAGE: 2, _DICTIONARY_PAGE: 2, _DATA_PAGE_V2: 4}


@dataclass(frozen=True, slots=True)
class Chunk:
    """The byte range of one column in one row group, and the properties that its pages may have."""

    column: str
    start: int
    end: int
    is_nested: bool
    may_be_delta: bool


def groups_of_rows(metadata: pq.FileMetaData) -> list[int]:
    """Return the row groups that have rows. An empty row group may have invalid page offsets, so it is never read."""
    return [group for group in range(metadata.num_row_groups) if metadata.row_group(group).num_rows]


def chunks_of(metadata: pq.FileMetaData) -> dict[int, Chunk]:
    """Return the column chunks of row groups with rows, by start position.

    Raises `Corrupt` if the metadata of a chunk refers to another file.
    """
    found: dict[int, Chunk] = {}
    for group in map(metadata.row_group, groups_of_rows(metadata)):
        for index in range(group.num_columns):
            column = group.column(index)
            if column.file_path:
                raise damaged_file_error(
                    f"its column {column.path_in_schema} is stored in another file. Land Parquet files that "
                    "contain all their columns"
                )
            first = column.dictionary_page_offset
            start = min(first, column.data_page_offset) if first else column.data_page_offset
            path = column.path_in_schema
            leaf = metadata.schema.column(index)
            nested, delta = leaf.max_repetition_level > 0, "DELTA_BYTE_ARRAY" in column.encodings
            found[start] = Chunk(path, start, start + column.total_compressed_size, nested, delta)
    return found


def check_read(chunks: Mapping[int, Chunk], position: int, data: bytes) -> None:
    """Call `check_pages` if a column chunk begins at the position."""
    if position in chunks:
        check_pages(data, chunks[position])


def check_pages(data: bytes, chunk: Chunk) -> None:
    """Raise `Corrupt` if a page of a column chunk claims more than memory can hold.

    `data` begins at the start of the chunk.
    """
    position, end, values = 0, min(len(data), chunk.end - chunk.start), 0
    while position < len(data):
        is_beyond = position >= end  # old writers do not count a dictionary header, so Arrow reads past `end`
        try:
            header, position = parquet_footer.struct(data, position)
        except (IndexError, ValueError) as error:
            if is_beyond:
                return
            raise damaged_file_error(f"column {chunk.column}: the header of a page cannot be read") from error
        expanded, length = header.get(_EXPANDED_SIZE), header.get(_STORED_SIZE)
        if not isinstance(expanded, int) or not isinstance(length, int) or not 0 <= length <= len(data) - position:
            if is_beyond:
                return
            raise damaged_file_error(f"column {chunk.column}: a page is truncated")
        most = max(LARGEST_PAGE, PAGE_RATIO * length)
        if not 0 <= expanded <= most:
            raise damaged_file_error(
                f"column {chunk.column}: a page expands from {length} to {expanded} bytes. The limit is {most} bytes"
            )
        for place, encoding in _ENCODINGS.items():
            about = header.get(place)
            if isinstance(about, dict):
                if place != _DICTIONARY_PAGE:  # values in a dictionary page are not row values
                    count = about.get(_NUM_VALUES)
                    values += count if isinstance(count, int) else 0
                if about.get(encoding) == DELTA_BYTE_ARRAY and not chunk.may_be_delta:
                    raise damaged_file_error(
                        f"column {chunk.column}: the encoding of its pages differs from the footer"
                    )
        if values > MOST_VALUES and chunk.is_nested:
            raise damaged_file_error(
                f"column {chunk.column}: more than {MOST_VALUES} values in a row group. Write smaller row groups"
            )
        position += length


# Logical types of the columns of a Parquet file, and the columns that are read as dictionaries. Arrow has no type for
# ENUM, and detects a UUID only if the file contains Arrow's own schema. JSON is text.


_VARIANT = re.compile(r"group field_id=\S+ (.*) \(Variant\(")
_DICTIONARIES = {"PLAIN_DICTIONARY", "RLE_DICTIONARY"}


@dataclass(frozen=True, slots=True)
class LogicalTypes:
    """For each leaf column, the conversion from Arrow's type to the logical type.

    None means that there is no conversion.
    """

    changes: Sequence[Change | None]

    @staticmethod
    def of(opened: pq.ParquetFile, table: pa.Schema | None = None) -> LogicalTypes:
        """Return the conversions for a file whose rows are added to a table. Nothing is read.

        Raises `Corrupt` for a logical type that neither Arrow nor a table supports.
        """
        if variant := _VARIANT.search(str(opened.schema)):
            raise _unheld(variant[1], "VARIANT")
        columns, found = iter(leaves(opened)), list[Change | None]()
        for column in opened.schema_arrow:
            inside = leaf_types(column.type)
            for leaf, wanted in zip(inside, _wanted(column.name, inside, table), strict=True):
                stored = leaf.storage_type if isinstance(leaf, pa.BaseExtensionType) else leaf
                first, *_ = [next(columns) for _ in leaf_types(stored)]
                if first.converted_type == "INTERVAL":
                    raise _unheld(first.path, "INTERVAL")
                found.append(_change(first.logical_type.type, leaf, wanted))
        return LogicalTypes(found)

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns with their logical types."""
        if not any(self.changes):
            return schema
        return pa.schema(list(self._changed(pa.nulls(0, pa.struct(list(schema)))).type))

    def batch(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows with their logical types, without a copy. Text is not validated."""
        return pa.RecordBatch.from_struct_array(self._changed(rows.to_struct_array())) if any(self.changes) else rows

    def _changed(self, rows: pa.StructArray) -> pa.StructArray:
        return with_changed_leaves(rows, iter(self.changes))


def leaves(opened: pq.ParquetFile) -> list[pq.ColumnSchema]:
    """Return the physical columns of a file."""
    return [opened.metadata.schema.column(index) for index in range(opened.metadata.num_columns)]


def dictionary_paths(opened: pq.ParquetFile) -> list[str]:
    """Return the text columns that Arrow can read as dictionaries: the columns without a delta-encoded page."""
    delta = {column.path_in_schema for column in _text_chunks(opened) if _is_delta(column)}
    return [each.path for each in leaves(opened) if each.physical_type == "BYTE_ARRAY" and each.path not in delta]


def repeats_texts(opened: pq.ParquetFile, dictionaries: Sequence[str]) -> bool:
    """Return whether pages of a column outside `dictionaries` can store a repeated text only once."""
    known = {*dictionaries}
    return any(
        "DELTA_BYTE_ARRAY" in column.encodings
        or (column.path_in_schema not in known and not _DICTIONARIES.isdisjoint(column.encodings))
        for column in _text_chunks(opened)
    )


def _text_chunks(opened: pq.ParquetFile) -> list[pq.ColumnChunkMetaData]:
    chunks = [
        group.column(index)
        for group in map(opened.metadata.row_group, groups_of_rows(opened.metadata))
        for index in range(group.num_columns)
    ]
    return [each for each in chunks if each.physical_type in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")]


def _is_delta(column: pq.ColumnChunkMetaData) -> bool:
    return any(each.startswith("DELTA_") for each in column.encodings)


def _unheld(column: str, logical: str) -> Corrupt:
    return damaged_file_error(
        f"column {quoted(column)} has the logical type {logical}, which tables do not support. Import a DuckDB query "
        "that casts the column",
        column=column,
        logical_type=logical,
    )


def _wanted(name: str, inside: Sequence[pa.DataType], table: pa.Schema | None) -> Sequence[pa.DataType | None]:
    """Return the table's types for the leaves of a column, or None for each leaf if the types are unknown."""
    place = -1 if table is None else table.get_field_index(name)
    wanted = [] if table is None or place < 0 else leaf_types(table.field(place).type)
    return wanted if len(wanted) == len(inside) else [None] * len(inside)


def _change(logical: str, leaf: pa.DataType, wanted: pa.DataType | None) -> Change | None:
    if logical == "UUID" and pa.types.is_fixed_size_binary(leaf):
        return lambda values: pa.ExtensionArray.from_storage(pa.uuid(), values)
    held = leaf.value_type if pa.types.is_dictionary(leaf) else leaf
    if logical not in ("ENUM", "JSON") or held not in (pa.string(), pa.binary()):
        return None
    kind = wanted if wanted == pa.binary() else pa.string()
    return None if held == kind else partial(_viewed, kind=kind)


def _viewed(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_dictionary(values.type):
        return values.view(kind)
    return pa.DictionaryArray.from_arrays(values.indices, values.dictionary.view(kind))


_BATCH_ROWS = 250_000
_BATCH_BYTES = 256 * 2**20
_REPEATED_ROWS = 256
"""The maximum number of rows in a batch if each text of a column may be as long as a page.

A page needs only a few bytes for each repetition of a text.
"""

_MAGIC, _ENCRYPTED = b"PAR1", b"PARE"
_LARGEST_FOOTER = 32 * 2**20
_MOST_FOOTER_ITEMS = 100_000


def parquet_blocks(
    file: str,
    stream: BinaryIO,
    schema: pa.Schema,
    *,
    nonzero: Collection[str] = (),
    times: LandedTimes = AS_WRITTEN,
    drift: DriftRule = QUARANTINE,
) -> Iterator[Parsed]:
    """Yield the records of a Parquet file, numbered from 1.

    A record is rejected for any of these values:

    - a value that is not valid for its type, such as text that is not UTF-8
    - a missing required value
    - a time that is not between the years 1 and 9999
    - a list that is not a valid embedding of its column, or an embedding of only zeros in a column of `nonzero`

    Raises:
        Corrupt: the file is truncated or damaged, its columns do not convert exactly to the table's, or it expands too
            far.
        Unavailable: the system refuses the read. The file may be valid.
    """
    first_number = 1
    target = RowFormat(schema, nonzero=frozenset(nonzero), times=times, drift=drift)
    for batch in valid_batches(file, stream, partial(check_columns, target=target), schema, truncates=times.truncates):
        yield checked_rows(file, batch, first_number, target)
        first_number += batch.num_rows


def valid_batches(
    file: str,
    stream: BinaryIO,
    check: Callable[[pa.Schema], object],
    schema: pa.Schema,
    *,
    truncates: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file in limited memory, after `check` has accepted its columns.

    Texts that the file stores as a dictionary are returned as a dictionary. So a text that the file stores once is in
    memory only once. INT96 timestamps get the types of `schema`, the table's schema. If `truncates` is True, digits
    below the microsecond are cut off.

    Raises:
        Corrupt: the file is truncated or damaged, it expands too far, or it has an INT96 timestamp that a table cannot
            store.
        Unavailable: the system refuses the read. The file may be valid.

    The function also raises the errors of `check`.
    """
    size = _sized(stream)
    expansion = Expansion(size)
    chunks: dict[int, Chunk] = {}
    checked = watched(stream, partial(check_read, chunks))
    try:
        opened = _open(checked, ())
        require_valid_chunks(opened.metadata, size)
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
        for read in exact_moments(batches, found.names, again, truncates=truncates):
            batch = as_instants(read, found.names, columns)
            yield from in_pieces(batch, expansion)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise_refused(file, error)
        raise _unreadable(error) from error


def in_pieces(batch: pa.RecordBatch, expansion: Expansion) -> Iterator[pa.RecordBatch]:
    """Yield the rows in pieces that expand to a limited size. Raise `Corrupt` if the file expands too far."""
    expanded = sum(map(plain_bytes, batch.columns))
    expansion.add(expanded)
    rows = max(1, min(batch.num_rows, batch.num_rows * _BATCH_BYTES // max(1, expanded)))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def check_columns(found: pa.Schema, target: RowFormat) -> None:
    """Raise `Corrupt` if columns of these types do not convert exactly to the table's columns.

    Columns that are not in the table are refused unless the rule for drift accepts new fields.
    """
    empty, _ = _without_new(pa.Table.from_batches([], timed_schema(found, target.schema, target.times)), target)
    _conformed(empty, _with_own_types(_wide_schema(empty.schema, target), empty.schema, target.drift))


def _without_new(rows: pa.Table, target: RowFormat) -> tuple[pa.Table, ColumnFields | None]:
    """Return the columns of the table, and the other columns if the rule for drift accepts new fields."""
    if target.drift.new_field == "quarantine":
        return rows, None
    known, others = split_columns(rows, target.drift.filled(target.schema).names)
    return known, ColumnFields(others) if others.num_columns else None


def _with_new(rows: pa.Table, new: pa.Table, rule: DriftRule) -> pa.Table:
    """Return the rows with the new fields of the file. The column that stores new fields as an object is omitted."""
    known = rows if rule.column is None else rows.drop_columns([rule.column])
    return pa.table([*known.columns, *new.columns], names=[*known.column_names, *new.column_names])


def _wide_schema(found: pa.Schema, target: RowFormat) -> pa.Schema:
    """Return the table schema.

    If the drift rule allows wider types, each column that may become wider has the type that the file contains.
    """
    if not target.drift.widens:
        return target.schema
    types = {each.name: table_type(each.type) for each in found if each.name in widest_types(target.schema)}
    wider = {name: to for name, to in types.items() if may_widen(target.schema.field(name).type, to)}
    return with_types(target.schema, wider)


def _with_own_types(schema: pa.Schema, found: pa.Schema, rule: DriftRule) -> pa.Schema:
    """Return the schema. A text column gets the type of the file if the file has typed values for this column.

    Only the rule `add` accepts typed values for a text column, because `add` chooses text for fields whose types
    differ. If the schema is settled, the type of a new non-text column may also differ between the table and the file.
    This column also gets the type of the file. Each row with a value in this column is then rejected.
    """
    if rule.new_field != "add":
        return schema
    types = {
        each.name: each.type if pa.types.is_integer(each.type) else table_type(each.type)
        for each in found
        if each.name in schema.names and _is_foreign(each, schema.field(each.name), rule)
    }
    return with_types(schema, types)


def _is_foreign(found: pa.Field, column: pa.Field, rule: DriftRule) -> bool:
    """Return whether the column is accepted although it does not convert to the table's column."""
    if not (rule.is_settled or pa.types.is_string(column.type)):
        return False
    try:
        _conformed(pa.schema([found]).empty_table(), pa.schema([column]))
    except Corrupt:
        return True
    return False


def _foreign_faults(rows: pa.Table, schema: pa.Schema) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
    """Yield each rejection reason with a mask of the rows.

    A value is rejected if it has no text form. A value is also rejected if its type differs from the type of its column
    and this column is not a text column.
    """
    for own, field in zip(rows.schema, schema, strict=True):
        if own.type == field.type:
            continue
        why = unheld(own)
        if why is None and not pa.types.is_string(field.type):
            why = f"column {field.name}: a value of type {own.type} does not fit {field.type}"
        if why is not None:
            yield why, np.asarray(rows.column(field.name).is_valid())


def _in_types(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows without faults in exactly this schema. In text columns, typed values become text."""
    for index, (own, field) in enumerate(zip(rows.schema, schema, strict=True)):
        if own.type != field.type:
            is_text = pa.types.is_string(field.type)
            values = json_texts(rows.column(index)) if is_text else pa.nulls(rows.num_rows, field.type)
            rows = rows.set_column(index, field, values)
    return conform(rows, schema)


def _widened(rows: pa.Table, target: RowFormat) -> dict[str, pa.DataType]:
    """Return the columns whose values do not fit, each with its type in the file. That type can store the values."""
    found = {}
    for own, wide in zip(target.schema, _wide_schema(rows.schema, target), strict=True):
        if own.type != wide.type:
            try:
                _conformed(rows.select([own.name]), pa.schema([own]))
            except Corrupt:
                found[own.name] = wide.type
    return found


def footer_of(file: str, stream: BinaryIO) -> tuple[Int96Columns, int]:
    """Return the columns of a Parquet file and the number of its rows. Raise the errors of `valid_batches`."""
    try:
        _sized(stream)
        metadata = _open(stream, ()).metadata
        return _columns(stream, metadata), metadata.num_rows
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise_refused(file, error)
        raise _unreadable(error) from error


def _columns(stream: BinaryIO, metadata: pq.FileMetaData, table: pa.Schema | None = None) -> Int96Columns:
    """Return the columns of a file from its footer."""

    def columns(unit: Unit) -> pa.Schema:
        opened = _open(stream, (), metadata, unit)
        return LogicalTypes.of(opened, table).schema(opened.schema_arrow.remove_metadata())

    return Int96Columns.of(columns)


def _unreadable(error: Exception) -> Corrupt:
    if isinstance(error, pa.ArrowNotImplementedError):
        return damaged_file_error("it uses a codec, an encoding or a nesting of Parquet that Tidemark cannot read")
    if "keys must be annotated as required" in str(error):
        return damaged_file_error(
            "its schema allows null as a key of a map. Import a query of DuckDB that reads the file"
        )
    if "decrypt" in str(error):
        return damaged_file_error("the file is encrypted, and Tidemark has no keys")
    return damaged_file_error("the file is not a whole Parquet file, or the file is damaged")


def _sized(stream: BinaryIO) -> int:
    """Return the size of a file. Raise `Corrupt` for another kind of file, and for a footer that is too large."""
    size = stream.seek(0, io.SEEK_END)
    stream.seek(max(0, size - 8))
    footer, magic = int.from_bytes(stream.read(4), "little"), stream.read(4)
    stream.seek(0)
    if magic == _ENCRYPTED:
        raise damaged_file_error("the file is encrypted, and Tidemark has no keys")
    if magic != _MAGIC:  # if a file ends like a Parquet file, its head is not read
        require_uncompressed(stream.read(HEAD_BYTES))
        stream.seek(0)
    elif footer > size:
        raise damaged_file_error("the file is not a whole Parquet file, or the footer is damaged")
    elif footer > _LARGEST_FOOTER:
        raise damaged_file_error(f"the footer has {footer:,} bytes. The limit is {_LARGEST_FOOTER:,} bytes")
    return size


def _open(
    file: BinaryIO, texts: Sequence[str], metadata: pq.FileMetaData | None = None, int96: Unit = "us"
) -> pq.ParquetFile:
    # No threads and no read-ahead: a thread that holds the stream would abort the process if Python ends first.
    return pq.ParquetFile(
        file,
        metadata=metadata,
        pre_buffer=False,
        read_dictionary=list(texts),
        coerce_int96_timestamp_unit=int96,
        thrift_container_size_limit=_MOST_FOOTER_ITEMS,
        arrow_extensions_enabled=False,  # with this extension enabled, Arrow does not read JSON columns as dictionaries
    )


def _batches(opened: pq.ParquetFile, rows: int, names: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows. Each batch contains rows of only one row group.

    Arrow reads nested texts with one dictionary, and ends a batch where the dictionary changes. This function also ends
    batches where a row group ends. As a result, batches of different columns of a file contain the same rows.
    """
    for group in groups_of_rows(opened.metadata):
        yield from opened.iter_batches(rows, [group], names, use_threads=False)


def _batch_rows(opened: pq.ParquetFile, texts: Sequence[str]) -> int:
    """Return how many rows are read at once. The number is lower for many columns, wide values and long lists."""
    width = sum(max(8, each.length or 0) for each in leaves(opened))
    rows = min(_BATCH_ROWS, max(1, _BATCH_BYTES // max(1, width)))
    if repeats_texts(opened, texts):
        rows = min(rows, _REPEATED_ROWS)
    for group in map(opened.metadata.row_group, groups_of_rows(opened.metadata)):
        longest = max((group.column(index).num_values for index in range(group.num_columns)), default=0)
        rows = min(rows, max(1, MOST_CELLS * max(1, group.num_rows) // max(1, longest)))
    return rows


def checked_rows(file: str, batch: pa.RecordBatch, first_number: int, target: RowFormat) -> Parsed:
    """Convert a batch of typed values to rows with the table's schema, and reject the rows with a fault.

    Raises `Corrupt` if the columns do not convert exactly to the table's columns, or if their values are not
    consistent.
    """
    rule = target.drift
    numbers = np.arange(first_number, first_number + batch.num_rows)
    try:
        given, invalid = examined(pa.Table.from_batches([batch]))
    except InvalidInput as error:
        raise damaged_file_error(f"the values of the file are not valid ({shortened(str(error), 500)})") from error
    rejected: list[RejectedLine] = []
    if invalid:  # checked before any conversion, because some conversions refuse the whole column
        reasons = [(f"column {each.column}: {each.reason}", each.rows) for each in invalid]
        rejected, valid = _rejected(file, numbers, reasons, with_bytes(given, invalid))
        given, numbers = given.filter(pa.array(valid)), numbers[valid]
    given, new = _without_new(given, target)
    fitting, numbered = timed_columns(given, target.schema, target.times)
    schema = _with_own_types(target.schema, fitting.schema, rule)
    fitting, misfits = without_misfits(fitting, schema)
    fitting, texts = times.without_misfits(fitting, schema)
    if rule.widens and (widened := _widened(fitting, target)):
        return Parsed(target.schema.empty_table(), (), drift=Drift(fields=new.types() if new else {}, widened=widened))
    if new is not None and rule.column is not None:
        fitting = fitting.append_column(rule.column, new.objects())
    rows = _conformed(fitting, schema)
    shown = times.with_texts(with_lists(rows, given), given)
    for name in given.column_names if numbered else ():
        if pa.types.is_integer(given.column(name).type):
            shown = shown.set_column(shown.schema.get_field_index(name), name, given.column(name))
    if new is not None:
        shown = _with_new(shown, new.columns, rule)
    refused = [] if new is None else new.reasons(rule, schema)
    foreign = _foreign_faults(rows, target.schema)
    faults = [*refused, *numbered, *misfits, *texts, *foreign, *_faults(rows, schema, target.nonzero)]
    more, complete = _rejected(file, numbers, faults, shown)
    kept = rows.filter(pa.array(complete)) if more else rows
    drift = NO_DRIFT if new is None else drift_of(new.filter(complete), rule)
    rows = _in_types(kept, target.schema)
    return Parsed(rows, (), numbers[complete], drift=drift).and_rejected([*rejected, *more])


def _rejected(
    file: str,
    numbers: npt.NDArray[np.int64],
    reasons: Iterable[tuple[str, npt.NDArray[np.bool_]]],
    shown: pa.Table,
) -> tuple[list[RejectedLine], npt.NDArray[np.bool_]]:
    """Reject each row that has a fault, with its first fault as the reason.

    Also return a mask of the rows without a fault.
    """
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
        raise damaged_file_error(
            f"the columns of the file are not the columns of the table ({shortened(str(error), 500)})"
        ) from error


def _faults(rows: pa.Table, schema: pa.Schema, nonzero: Collection[str]) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
    """Yield each fault and the rows that have it, column by column."""
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
