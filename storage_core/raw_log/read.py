"""Records of a raw log as typed records of a table: each fits the table's schema or is rejected with its reason.

Nothing that a producer wrote raises here: one bad record never stops the others (docs/architecture/README.md, rule 7).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from storage_core.errors import InvalidInput
from storage_core.formats.raw_fields import Digits, decode_fields
from storage_core.raw_log.plain_records import plain_records
from storage_core.rows.calendar import BEYOND, beyond
from storage_core.rows.exact import exact_array
from storage_core.rows.fold import FIELDS, OPERATION, Operation, merging, record_schema
from storage_core.rows.key_limit import MAX_KEY_BYTES, beyond_limit, size_of_key, too_long
from storage_core.rows.keys import Positions
from storage_core.rows.vectors import faults, is_vector, type_text
from storage_core.system_errors import raise_refused

FEW = 128
"""Of fewer records, making the columns costs more than looking at each."""

_DECIMAL = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?", re.ASCII)
_CODES: Mapping[str, Operation] = {each.name.lower(): each for each in Operation}


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedRecord:
    """A record that no table takes as it is: all of it, and why."""

    record_id: str
    table: str
    operation: str
    key: str | None
    fields: str
    reason: str

    @classmethod
    def of(cls, record: Mapping[str, Any], reason: str) -> RejectedRecord:
        """Return the record, given as a row of `RECORD_COLUMNS`, as rejected for that reason."""
        return cls(reason=reason, **{name: value for name, value in record.items() if name != "timestamp_ms"})


@dataclass(frozen=True, slots=True)
class TypedRecords:
    """Records that fit, with the columns of `rows.fold.record_schema`, and those that do not fit.

    `ids` and `written_ms`, when it was written, are those of each record that fits.
    """

    records: pa.Table
    ids: pa.StringArray
    written_ms: pa.Int64Array
    rejected: tuple[RejectedRecord, ...]


def typed_records(
    records: pa.Table,
    schema: pa.Schema,
    *,
    key: Sequence[str] = (),
    merged_maps: Sequence[str] = (),
    nonzero: Collection[str] = (),
) -> TypedRecords:
    """Return records (`RECORD_COLUMNS`) of one table under its schema, every value kept exactly or rejected.

    Values are exact by `rows.exact`, which reads the text of a date or time; text is taken for a decimal when it is one
    in digits, for JSON has none. A record is rejected when its fields are
    not those of the raw log, when it names a column that the schema lacks, when a value does not fit, when it lacks a
    column of `key`, and when anything but a delete lacks a required column or has a key beyond `MAX_KEY_BYTES`; of the
    columns `nonzero`, also when the vector is zero. The
    entries that a patch gives for a column of `merged_maps` are laid over those that are there (`rows.fold.merging`);
    given as null it becomes null.
    """
    if records.num_rows < FEW:
        return one_by_one(records, schema, key=key, merged_maps=merged_maps, nonzero=nonzero).all
    plain = plain_records(records, schema, key, nonzero)
    if any(beyond_limit(plain.records, name).any() for name in key):
        return one_by_one(records, schema, key=key, merged_maps=merged_maps, nonzero=nonzero).all
    others = np.delete(np.arange(records.num_rows), plain.positions)
    if not len(others):
        return _of_all(records, plain.positions, plain.records, ())
    rest = one_by_one(records.take(pa.array(others)), schema, key=key, merged_maps=merged_maps, nonzero=nonzero)
    positions = np.concatenate([plain.positions, others[rest.positions]])
    order = np.argsort(positions)
    rows = pa.concat_tables([plain.records, rest.all.records]).take(pa.array(order))
    return _of_all(records, positions[order], rows, rest.all.rejected)


@dataclass(frozen=True, slots=True)
class OneByOne:
    """Records that were looked at one by one, and the positions of those that fit."""

    all: TypedRecords
    positions: Positions


def one_by_one(
    records: pa.Table,
    schema: pa.Schema,
    *,
    key: Sequence[str] = (),
    merged_maps: Sequence[str] = (),
    nonzero: Collection[str] = (),
) -> OneByOne:
    """Return what `typed_records` does: this says what it means, for every record there may be."""
    given = records.to_pylist()
    rows: list[dict[str, Any] | str] = [_row(each, schema, key) for each in given]
    for field in schema:
        _check(rows, field, nonzero=field.name in nonzero)
    _check_keys(given, rows, key)
    fitting = [(one, row) for one, row in zip(given, rows, strict=True) if isinstance(row, dict)]
    rejected = tuple(RejectedRecord.of(one, row) for one, row in zip(given, rows, strict=True) if isinstance(row, str))
    positions = np.array([index for index, row in enumerate(rows) if isinstance(row, dict)], np.int64)
    return OneByOne(_of_all(records, positions, _records(fitting, schema, merged_maps), rejected), positions)


def _of_all(
    records: pa.Table, positions: Positions, rows: pa.Table, rejected: tuple[RejectedRecord, ...]
) -> TypedRecords:
    fitting = records.select(["record_id", "timestamp_ms"]).take(pa.array(positions))
    ids, written_ms = (column.combine_chunks() for column in fitting.columns)
    return TypedRecords(rows, ids, written_ms, rejected)


def _row(record: Mapping[str, Any], schema: pa.Schema, key: Sequence[str]) -> dict[str, Any] | str:
    """Return the fields, text made values where the schema wants it; or why the record does not fit."""
    try:
        fields = decode_fields(record["fields"])
    except InvalidInput as error:
        return str(error)
    if unknown := sorted(set(fields) - set(schema.names)):
        return f"{', '.join(map(repr, unknown))}: not a column of the table"
    if absent := [name for name in key if fields.get(name) is None]:
        return f"column {absent[0]!r}: a value is required, it is in the key"
    # A patch may be the first record of its key and then makes the row.
    makes = record["operation"] != "delete"
    for field in schema:
        if not field.nullable and fields.get(field.name) is None and (makes or field.name in fields):
            return f"column {field.name!r}: a value is required"
    return {name: _valued(value, schema.field(name).type) for name, value in fields.items()}


def _valued(value: Any, type_: pa.DataType) -> Any:
    """Return a value at the top as `_from_text` does, and each number, at any depth, as its column takes numbers."""
    return _from_text(_numbered(value, type_), type_)


def _numbered(value: Any, type_: pa.DataType) -> Any:
    """Return the value, its `Digits` exact where the type is decimal and otherwise the nearest float."""
    match value:
        case Digits():
            return value.as_decimal() if pa.types.is_decimal(type_) else value.as_float()
        case dict():
            return {name: _numbered(each, _type_within(type_, name)) for name, each in value.items()}
        case list():
            return [_numbered(each, _type_within(type_, None)) for each in value]
        case (key, item):  # of a map, which may have keys that are no text
            key_type, item_type = (
                (type_.key_type, type_.item_type) if pa.types.is_map(type_) else (pa.null(), pa.null())
            )
            return _numbered(key, key_type), _numbered(item, item_type)
        case _:
            return value


def _from_text(value: Any, type_: pa.DataType) -> Any:
    """Return the decimal that a text spells; every other value, and other text, as it is."""
    is_decimal = isinstance(value, str) and pa.types.is_decimal(type_) and _DECIMAL.fullmatch(value)
    return Decimal(value) if is_decimal else value


def _type_within(type_: pa.DataType, name: str | None) -> pa.DataType:
    """Return the type of what an object has under a name, or an array without one; the pairs of a map have its own."""
    if pa.types.is_map(type_):
        return type_ if name is None else type_.item_type
    if pa.types.is_struct(type_) and name in [field.name for field in type_.fields]:
        return type_.field(name).type
    return type_.value_type if name is None and (pa.types.is_list(type_) or is_vector(type_)) else pa.null()


def _check(rows: list[dict[str, Any] | str], field: pa.Field, *, nonzero: bool) -> None:
    """Replace each row whose value does not fit the column by the reason. The column is tried as a whole first."""
    present = [
        (index, row[field.name]) for index, row in enumerate(rows) if isinstance(row, dict) and field.name in row
    ]
    if _problem([value for _, value in present], field, nonzero=nonzero) is None:
        return
    for index, value in present:
        problem = _problem([value], field, nonzero=nonzero)
        if problem is not None:
            rows[index] = problem


def _check_keys(given: Sequence[Mapping[str, Any]], rows: list[dict[str, Any] | str], key: Sequence[str]) -> None:
    """Replace each row whose key is too long by the reason; a delete of it stays."""
    for index, (record, row) in enumerate(zip(given, rows, strict=True)):
        if isinstance(row, dict) and record["operation"] != "delete":
            sizes = ((name, size_of_key(row[name])) for name in key)
            rows[index] = next((too_long(name, size) for name, size in sizes if size > MAX_KEY_BYTES), row)


def _problem(values: Sequence[Any], field: pa.Field, *, nonzero: bool = False) -> str | None:
    try:
        array = exact_array(values, field.type, field.name)
        outside = beyond(array)
    except (TypeError, ValueError, OverflowError, RecursionError, pa.ArrowException) as error:
        raise_refused(f"records of a raw log: column {field.name!r}", error)
        return f"column {field.name!r}: a value does not fit the type {type_text(field.type)}: {error}"
    if is_vector(field.type):
        return next((f"column {field.name!r}: {why}" for why, _ in faults(array, nonzero=nonzero)), None)
    return None if outside is None else f"column {field.name!r}: a value is {BEYOND}"


def _records(
    fitting: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], schema: pa.Schema, merged_maps: Sequence[str]
) -> pa.Table:
    target = record_schema(schema)
    rows = [row for _, row in fitting]
    columns = [
        pa.array([_CODES[one["operation"]] for one, _ in fitting], target.field(OPERATION).type),
        pa.array([_given(*each, schema, merged_maps) for each in fitting], target.field(FIELDS).type),
        *(exact_array([row.get(field.name) for row in rows], field.type, field.name) for field in schema),
    ]
    return pa.Table.from_arrays(columns, schema=target)


def _given(
    record: Mapping[str, Any], row: Mapping[str, Any], schema: pa.Schema, merged_maps: Sequence[str]
) -> list[str] | None:
    """What a patch gives; the others stand for the whole row."""
    if record["operation"] != "patch":
        return None
    given = [name for name in schema.names if name in row]
    return [merging(name) if name in merged_maps and row[name] is not None else name for name in given]
