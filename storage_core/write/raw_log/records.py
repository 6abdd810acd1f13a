"""Records of producers. The writer checks the records and converts them to text before the first write.

See docs/architecture/ingestion.md, "Records".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import pyarrow as pa

from storage_core.base.errors import InvalidInput
from storage_core.base.text import quoted
from storage_core.data.formats.keys import validate_table_name
from storage_core.data.formats.raw_chunk import OPERATIONS, LogRecord, Operation
from storage_core.data.formats.raw_fields import NOT_IN_PYTHON, encode_fields, encode_rows
from storage_core.data.rows.incoming import InMemory
from storage_core.data.rows.keys import MAX_KEY_BYTES, size_of_key

# Limits of a raw log writer (docs/architecture/ingestion.md, "Raw log").


MAX_RECORD_BYTES = 8 * 2**20
"""Maximum size of one record in bytes: table name, key and fields as text."""

MAX_ID_BYTES = 256
"""Maximum size in bytes of a record id from a producer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawLimits:
    """Limits of segments and chunks, and of the backlog of an optional store.

    - `segment_bytes`, `segment_ms`: a segment ends before a chunk would make it larger than `segment_bytes`. A segment
      also ends at the first append after `segment_ms`.
    - `chunk_bytes`: maximum size in bytes of the records in a chunk, before compression.
    - `backlog_bytes`: maximum number of pending bytes for an optional store. Further chunks are not sent to this store.
    - `close_wait_ms`: maximum time in ms that `close` waits for pending chunks.
    """

    segment_bytes: int = 50 * 10**6
    segment_ms: int = 5 * 60_000
    chunk_bytes: int = 8 * 2**20
    backlog_bytes: int = 64 * 2**20
    close_wait_ms: int = 10_000

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value < (1 if each.name in ("segment_bytes", "segment_ms", "chunk_bytes") else 0):
                raise InvalidInput(f"{each.name} must be positive, found {value}. Give 1 or more")
        if self.chunk_bytes > 2 * MAX_RECORD_BYTES:
            raise InvalidInput(
                f"chunk_bytes is at most {2 * MAX_RECORD_BYTES}, found {self.chunk_bytes}. Give a smaller number"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRecord:
    """One record of a producer: an operation on one row of a table.

    `fields` are the values of the row by column. A put and a reset have all fields. A patch has the changed fields and
    the key. A delete has the key. `key` is the producer's name for the row. The key helps people who read the log. If
    several records have the same `id`, a table takes only one of them. A table also takes only one record per `id` if
    several writers or appends send the record (docs/architecture/ingestion.md).
    """

    table: str
    fields: Mapping[str, object]
    operation: Operation = "put"
    key: str | None = None
    id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """The names of the fields with the key and the id of the record. None if there is no such field.

    The values of these fields are texts or integers.
    """

    key: str | None = None
    id: str | None = None


UNNAMED = Named()


def record_of(
    table: str, row: Mapping[str, object], *, operation: Operation = "put", named: Named = UNNAMED
) -> RawRecord:
    """Return the record of a row. Raise `InvalidInput` if a named field is not text or an integer."""
    key, given = _value(row, named.key, "key"), _value(row, named.id, "id")
    return RawRecord(table=table, fields=row, operation=operation, key=key, id=given)


def _value(row: Mapping[str, object], name: str | None, what: str) -> str | None:
    if name is None:
        return None
    value = row.get(name)
    if value is None:
        raise InvalidInput(f"the record has no value in its {what} field {name!r}. Name another field", column=name)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InvalidInput(
            f"the {what} field {name!r} is {value!r}. The value must be a text or an integer. Correct the "
            "value, or name "
            "another field",
            column=name,
        )
    return str(value)


def prepared(given: RawRecord, *, now_ms: int) -> LogRecord:
    """Return the record in its written form, with the time `now_ms`.

    Raises `InvalidInput` for any of these faults:

    - a table name that no table can have, or an unknown operation
    - a key that is not valid text or is too long (`data.rows.keys`)
    - an id that is not valid text, is empty, or has more than `MAX_ID_BYTES`
    - a value that cannot be represented (`formats.raw_fields`)
    - a record of more than `MAX_RECORD_BYTES`
    """
    validate_table_name(given.table)
    if given.operation not in OPERATIONS:
        raise InvalidInput(f"the operation of a record is {given.operation!r}. Give one of {', '.join(OPERATIONS)}")
    if given.key is not None and not _is_text(given.key):
        raise InvalidInput(
            f"the key of a record is {given.key!r}, which is not valid text. Give a text that UTF-8 can encode"
        )
    if given.key is not None and given.operation != "delete" and size_of_key(given.key) > MAX_KEY_BYTES:
        raise InvalidInput(
            f"the key has {size_of_key(given.key)} bytes. The limit is {MAX_KEY_BYTES} bytes. Use a shorter key"
        )
    if given.id is not None and not _is_id(given.id):
        raise InvalidInput(f"the id of a record is {quoted(given.id)}. Give a valid text of 1 to {MAX_ID_BYTES} bytes")
    record = LogRecord(
        timestamp_ms=now_ms,
        table=given.table,
        operation=given.operation,
        fields=encode_fields(given.fields),
        key=given.key,
        unique_id=given.id,
    )
    if size_of(record) > MAX_RECORD_BYTES:
        raise InvalidInput(
            f"the record has {size_of(record)} bytes. The limit is {MAX_RECORD_BYTES} bytes. Split the record"
        )
    return record


def all_prepared(records: Iterable[RawRecord], *, now_ms: int) -> Iterator[LogRecord]:
    """Yield each record in the form that is stored. Raise `InvalidInput` with the number of the record, from 0."""
    if not isinstance(records, Iterable):
        raise InvalidInput(f"records is {quoted(records)}. Give a list of RawRecord.")
    for index, each in enumerate(records):
        if not isinstance(each, RawRecord):
            raise InvalidInput(f"record {index} is {quoted(each)}. Give a RawRecord. Nothing was appended.", row=index)
        try:
            yield prepared(each, now_ms=now_ms)
        except InvalidInput as error:
            raise InvalidInput(f"record {index}: {error}. Nothing was appended", row=index, **error.context) from error


def prepared_columns(rows: pa.Table, given: RawRecord, *, named: Named, now_ms: int) -> list[LogRecord] | None:
    """Return one record per row, with the same result as `record_of` and `prepared`.

    Returns None if `record_of` or `prepared` would raise an error. `given` has the table and the operation. The
    argument `named` has the same meaning as in `record_of`. Memory holds the texts and a batch of columns.
    """
    if not rows.num_rows:
        return []
    try:
        prepared(given, now_ms=now_ms)
    except InvalidInput:
        return None
    texts, keys, ids = encode_rows(rows), _values(rows, named.key), _values(rows, named.id)
    if texts is None or keys is None or ids is None:
        return None
    records = [
        LogRecord(
            timestamp_ms=now_ms,
            table=given.table,
            operation=given.operation,
            fields=fields,
            key=key,
            unique_id=each,
        )
        for fields, key, each in zip(texts, keys, ids, strict=True)
    ]
    return records if all(map(_is_taken, records)) else None


def _is_taken(record: LogRecord) -> bool:
    has_key = record.key is None or record.operation == "delete" or size_of_key(record.key) <= MAX_KEY_BYTES
    has_id = record.unique_id is None or _is_id(record.unique_id)
    return has_key and has_id and size_of(record) <= MAX_RECORD_BYTES


def _is_id(text: str) -> bool:
    return _is_text(text) and 1 <= _bytes(text) <= MAX_ID_BYTES


def _values(rows: pa.Table, name: str | None) -> list[str | None] | None:
    if name is None:
        return [None] * rows.num_rows
    if rows.schema.get_field_index(name) < 0:
        return None
    column = rows.column(name)
    is_key = pa.types.is_integer(column.type) or pa.types.is_string(column.type)
    return column.cast(pa.string()).to_pylist() if is_key and not column.null_count else None


def size_of(record: LogRecord) -> int:
    """Return the approximate size of the record in bytes before compression."""
    return _bytes(record.fields) + len(record.table) + _bytes(record.key or "") + _bytes(record.unique_id or "") + 64


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def rows_of(rows: InMemory) -> Sequence[Mapping[str, object]]:
    """Return the rows one by one.

    Raises `InvalidInput` for anything except mappings and Arrow data. Also raises `InvalidInput` for Arrow data with a
    value that Python does not support. Examples are a date beyond the year 9999, text that is not UTF-8, and an unknown
    time zone. The error contains the number of the row, counted from 0.
    """
    if isinstance(rows, pa.Table | pa.RecordBatch):
        return _rows_of_arrow(rows)
    listed = [rows] if isinstance(rows, Mapping) else [*rows] if isinstance(rows, Iterable) else [rows]
    if not all(isinstance(each, Mapping) for each in listed):
        raise InvalidInput(
            f"the rows are of the type {type(rows).__name__}. Give mappings of columns to values, or Arrow data"
        )
    return listed


def _rows_of_arrow(rows: pa.Table | pa.RecordBatch) -> list[Mapping[str, object]]:
    try:
        found: list[Mapping[str, object]] = rows.to_pylist()
    except NOT_IN_PYTHON:  # the error does not contain the number of the row
        return [_row_of_arrow(rows, index) for index in range(rows.num_rows)]
    return found


def _row_of_arrow(rows: pa.Table | pa.RecordBatch, index: int) -> Mapping[str, object]:
    row: dict[str, object] = {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        try:
            row[name] = column[index].as_py()
        except NOT_IN_PYTHON as error:
            why = f"field {name!r}: a value of {column.type} has no equivalent in Python. Convert it first"
            raise InvalidInput(f"record {index}: {why}. Nothing was appended", row=index, column=name) from error
    return row


def _is_text(value: object) -> bool:
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False
