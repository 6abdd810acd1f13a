"""Records as producers give them, checked and made text before anything is written (docs/architecture/ingestion.md,
"Records").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.formats.keys import validate_table_name
from storage_core.formats.raw_chunk import OPERATIONS, LogRecord, Operation
from storage_core.formats.raw_field_columns import NOT_IN_PYTHON, encode_rows
from storage_core.formats.raw_fields import encode_fields
from storage_core.raw_log.limits import MAX_ID_BYTES, MAX_RECORD_BYTES
from storage_core.rows.incoming import InMemory
from storage_core.rows.key_limit import MAX_KEY_BYTES, size_of_key


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRecord:
    """One record as a producer gives it: an operation on one row of a table.

    `fields` are the row's values by column: all of them for a put and a reset, those that change and the key for a
    patch, the key for a delete. `key` is what the producer calls the row, for people who read the log. A table takes
    one of the records with one `id`, of whatever writer, however often it is appended (decision 0135).
    """

    table: str
    fields: Mapping[str, object]
    operation: Operation = "put"
    key: str | None = None
    id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """The fields whose value, a text or an integer, is the record's key, and its id; None: it has none."""

    key: str | None = None
    id: str | None = None


UNNAMED = Named()


def record_of(
    table: str, row: Mapping[str, object], *, operation: Operation = "put", named: Named = UNNAMED
) -> RawRecord:
    """Return the record of a row. Raises `InvalidInput` when a field that is named holds neither text nor integer."""
    key, given = _value(row, named.key, "key"), _value(row, named.id, "id")
    return RawRecord(table=table, fields=row, operation=operation, key=key, id=given)


def _value(row: Mapping[str, object], name: str | None, what: str) -> str | None:
    if name is None:
        return None
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InvalidInput(f"the {what} field {name!r} holds a text or an integer, found {value!r}", column=name)
    return str(value)


def prepared(given: RawRecord, *, now_ms: int) -> LogRecord:
    """Return the record as it is written, taken at `now_ms`.

    Raises `InvalidInput` for a name that no table has, an unknown operation, a key that is no valid text or too long
    (`rows.key_limit`), an id that is no valid text, empty or beyond `MAX_ID_BYTES`, a value that has no form
    (`formats.raw_fields`), and more than `MAX_RECORD_BYTES`.
    """
    validate_table_name(given.table)
    if given.operation not in OPERATIONS:
        raise InvalidInput(f"expected one of {', '.join(OPERATIONS)}, found {given.operation!r}")
    if given.key is not None and not _is_text(given.key):
        raise InvalidInput(f"a key is valid text, found {given.key!r}")
    if given.key is not None and given.operation != "delete" and size_of_key(given.key) > MAX_KEY_BYTES:
        raise InvalidInput(f"a key of {size_of_key(given.key)} bytes; at most {MAX_KEY_BYTES} are kept")
    if given.id is not None and not _is_id(given.id):
        raise InvalidInput(f"an id is valid text of 1 to {MAX_ID_BYTES} bytes, found {quoted(given.id)}")
    record = LogRecord(
        timestamp_ms=now_ms,
        table=given.table,
        operation=given.operation,
        fields=encode_fields(given.fields),
        key=given.key,
        unique_id=given.id,
    )
    if size_of(record) > MAX_RECORD_BYTES:
        raise InvalidInput(f"the record has {size_of(record)} bytes; at most {MAX_RECORD_BYTES} are kept")
    return record


def all_prepared(records: Iterable[RawRecord], *, now_ms: int) -> Iterator[LogRecord]:
    """Yield each record as it is written. Raises `InvalidInput` that says which one cannot be, counted from 0."""
    if not isinstance(records, Iterable):
        raise InvalidInput(f"records is {quoted(records)}. Give a list of RawRecord.")
    for index, each in enumerate(records):
        if not isinstance(each, RawRecord):
            raise InvalidInput(f"record {index} is {quoted(each)}. Give a RawRecord. Nothing was appended.", row=index)
        try:
            yield prepared(each, now_ms=now_ms)
        except InvalidInput as error:
            raise InvalidInput(f"record {index}: {error}; nothing was appended", row=index, **error.context) from error


def prepared_columns(rows: pa.Table, given: RawRecord, *, named: Named, now_ms: int) -> list[LogRecord] | None:
    """Return a record of each row, as `record_of` and `prepared` do; None where these would refuse one, and say why.

    `given` has the table and the operation; `named` is as for `record_of`. Memory: the texts, and a batch of columns.
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
    """Return about how many bytes the record takes before compression."""
    return _bytes(record.fields) + len(record.table) + _bytes(record.key or "") + _bytes(record.unique_id or "") + 64


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def rows_of(rows: InMemory) -> Sequence[Mapping[str, object]]:
    """Return the rows one by one.

    Raises `InvalidInput` for anything but mappings and Arrow data, and naming the row of Arrow data, counted from 0,
    with a value that Python does not have: a date beyond the year 9999, text that is no UTF-8, an unknown time zone.
    """
    if isinstance(rows, pa.Table | pa.RecordBatch):
        return _rows_of_arrow(rows)
    listed = [rows] if isinstance(rows, Mapping) else [*rows] if isinstance(rows, Iterable) else [rows]
    if not all(isinstance(each, Mapping) for each in listed):
        raise InvalidInput(f"rows are mappings of column to value, or Arrow data, found {type(rows).__name__}")
    return listed


def _rows_of_arrow(rows: pa.Table | pa.RecordBatch) -> list[Mapping[str, object]]:
    try:
        found: list[Mapping[str, object]] = rows.to_pylist()
    except NOT_IN_PYTHON:  # it does not say where
        return [_row_of_arrow(rows, index) for index in range(rows.num_rows)]
    return found


def _row_of_arrow(rows: pa.Table | pa.RecordBatch, index: int) -> Mapping[str, object]:
    row: dict[str, object] = {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        try:
            row[name] = column[index].as_py()
        except NOT_IN_PYTHON as error:
            why = f"field {name!r}: no value of Python for this one of {column.type}: {error}"
            raise InvalidInput(f"record {index}: {why}; nothing was appended", row=index, column=name) from error
    return row


def _is_text(value: object) -> bool:
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False
