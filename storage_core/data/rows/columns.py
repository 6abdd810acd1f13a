"""The ids, defaults and stored names of changed columns (`docs/spec.md`, "Columns that change").

After the first change of a table's schema, each column has an id. The table never reuses an id. A column that was added
later may have a default. The default is the value of the column in older rows.

All splits contain a column under the same stored name. The stored name is the first name of the column, unless another
column had this name earlier. If the stored name differs from the current name, the field of the column contains the
stored name.

The schema stores these entries as metadata of the column's field, both in Spark's JSON and in Arrow. Splits and records
are never rewritten after a schema change. Splits and records contain the columns and types that the table had when the
split or record was written. `of_earlier` converts earlier rows to the current columns of the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from storage_core.base.errors import InvalidInput
from storage_core.base.text import quoted
from storage_core.data.rows.bound_text import decode_column, has_bounds, text_of_bound
from storage_core.data.settings.setting import column_names, json_text, json_value

COLUMN_ID: Final = "tidemark.id"
DEFAULT: Final = "tidemark.default"
STORED_NAME: Final = "tidemark.storedName"
LAST_COLUMN_ID: Final = "tidemark.lastColumnId"
"""The setting that contains the greatest column id so far. Only a table with a changed schema has this setting."""

FORMER_NAMES: Final = "tidemark.formerColumns"
"""The setting with the former names of columns, as JSON. Only a table with a changed schema has this setting."""

LONGEST_DEFAULT: Final = 1024
"""The maximum number of code points in the text of a default. This text is part of the schema in every split."""


def column_id(field: pa.Field) -> int | None:
    """Return the id of a column. Return None if the schema of the table never changed."""
    text = _entry(field, COLUMN_ID)
    return None if text is None else int(text)


def has_changed(schema: pa.Schema) -> bool:
    """Return whether the table's columns have ever changed."""
    return any(column_id(field) is not None for field in schema)


def stored_name(field: pa.Field) -> str:
    """Return the name under which splits contain a column."""
    return _entry(field, STORED_NAME) or str(field.name)


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with the stored names of its columns."""
    if all(stored_name(field) == field.name for field in schema):
        return schema
    return pa.schema([_named(field, stored_name(field)) for field in schema])


def stored_names(schema: pa.Schema, names: Iterable[str]) -> list[str]:
    """Return the stored names of these columns. Names that are not columns of the table are omitted."""
    return [stored_name(schema.field(name)) for name in names if name in schema.names]


def stored_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows of a table with the stored names of its columns."""
    names = {field.name: stored_name(field) for field in schema}
    return rows.rename_columns([names.get(name, name) for name in rows.column_names]) if has_changed(schema) else rows


def column_ids(schema: pa.Schema) -> dict[str, int]:
    """Return the ids of columns by their stored names. The result is empty if the schema of the table never changed."""
    ids = ((stored_name(field), column_id(field)) for field in schema)
    return {name: number for name, number in ids if number is not None}


def numbered(schema: pa.Schema) -> pa.Schema:
    """Return the schema with an id for every column.

    If the schema of the table never changed, the columns are numbered from 1.
    """
    if has_changed(schema):
        return schema
    return pa.schema([with_entries(field, {COLUMN_ID: str(number)}) for number, field in enumerate(schema, 1)])


def former_names(configuration: Mapping[str, str]) -> frozenset[str]:
    """Return the names that columns of the table or of its splits formerly had. Raises `InvalidInput`."""
    text = configuration.get(FORMER_NAMES)
    return frozenset() if text is None else frozenset(column_names(FORMER_NAMES, json_value(FORMER_NAMES, text)))


def former_setting(names: Iterable[str]) -> dict[str, str]:
    """Return the setting that `former_names` reads. Empty without names."""
    found = sorted(names)
    return {FORMER_NAMES: json_text(found)} if found else {}


def with_former(names: Iterable[str], before: pa.Schema, after: pa.Schema) -> frozenset[str]:
    """Return `names`, plus every name in `before` that the same column does not have in `after`.

    The schemas `before` and `after` must have ids.
    """
    own, kept = ({(column_id(field), field.name) for field in each} for each in (before, after))
    there, left = ({(column_id(field), stored_name(field)) for field in each} for each in (before, after))
    return frozenset(names) | {name for _, name in (own - kept) | (there - left)}


def _named(field: pa.Field, name: str) -> pa.Field:
    entries = entries_of(field)
    entries.pop(STORED_NAME, None)
    return with_entries(field.with_name(name), entries)


def with_entries(field: pa.Field, entries: Mapping[str, str]) -> pa.Field:
    """Return the field with exactly these entries in its metadata."""
    return field.with_metadata({**entries} or None)


def entries_of(field: pa.Field) -> dict[str, str]:
    """Return the entries of this module in the metadata of a field."""
    return {name: text for name in (COLUMN_ID, DEFAULT, STORED_NAME) if (text := _entry(field, name)) is not None}


def without_metadata(schema: pa.Schema) -> pa.Schema:
    """Return the schema with names, types and nullability only."""
    return pa.schema([field.remove_metadata() for field in schema])


def default_text(value: object, field: pa.Field) -> str:
    """Return the text of the default of a column. `value` is a value of the column's type or a text.

    Raises `InvalidInput` for a value that cannot be a default.
    """
    if not has_bounds(field.type):
        raise InvalidInput(
            f"column {field.name!r} is {field.type}, which cannot have a default. Add the column without a default",
            column=field.name,
        )
    from storage_core.data.rows.incoming import exact_array  # only a column with a default needs this import

    try:
        is_text = isinstance(value, str) and not pa.types.is_string(field.type)
        found = value_of(str(value), field.type) if is_text else exact_array([value], field.type)[0]
    except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
        raise InvalidInput(
            f"the default of column {field.name!r} does not fit {field.type}: {error}", column=field.name
        ) from error
    text = text_of_bound(found)
    if text is None or len(text) > LONGEST_DEFAULT:
        raise InvalidInput(
            f"the default of column {field.name!r} is {quoted(str(value))}, which is too long or not a valid value. "
            f"Give at most {LONGEST_DEFAULT} characters, and a time between the years 1 and 9999",
            column=field.name,
        )
    return text


def value_of(text: str, type_: pa.DataType) -> pa.Scalar:
    """Return the value of the text. The log must support bounds of the type. Raises `ValueError`, or Arrow's error."""
    found = decode_column(pa.array([text]), type_).cast(type_)[0]
    if not found.is_valid:
        raise ValueError(f"{quoted(text)} is not a valid value of this type. Give another default")
    return found


def default_of(field: pa.Field) -> str | None:
    """Return the text of a column's default for rows that are older than the column. Return None for null."""
    return _entry(field, DEFAULT)


def defaults(field: pa.Field, rows: int) -> pa.Array:
    """Return the default of a column as an array for this number of rows. The rows precede the column's creation."""
    text = default_of(field)
    return pa.nulls(rows, field.type) if text is None else pa.repeat(value_of(text, field.type), rows)


def may_widen(type_: pa.DataType, wider: pa.DataType) -> bool:
    """Return whether every value of a type is also a value of another type.

    Then a column can change its type without a rewrite. Integers may become wider integers, and `float` may become
    `double`. A decimal type may become a decimal type with more digits before the point. A date may become the
    timestamp of its midnight.
    """
    kinds = pa.types
    if kinds.is_signed_integer(type_) and kinds.is_signed_integer(wider):
        return bool(type_.bit_width < wider.bit_width)
    if kinds.is_float32(type_):
        return bool(kinds.is_float64(wider))
    if kinds.is_decimal128(type_) and kinds.is_decimal128(wider):
        return bool(type_.scale == wider.scale and type_.precision < wider.precision)
    return bool(kinds.is_date32(type_) and kinds.is_timestamp(wider))


def is_of_earlier(found: pa.DataType, field: pa.Field) -> bool:
    """Return whether a file or record may have the type `found` for this column.

    The file or record has an earlier schema.
    """
    return column_id(field) is not None and may_widen(found, field.type)


def of_earlier(rows: pa.Table, schema: pa.Schema, names: Mapping[str, str] | None = None) -> Iterator[pa.ChunkedArray]:
    """Yield the columns of `schema` for rows that were written under an earlier schema of the table.

    The rows have the columns under their stored names, or under the names in `names`. A column that was added later
    gets its default or null. If the rows have a narrower type than the column of `schema`, the function casts the
    values to the wider type. All other columns are not changed.
    """
    known = set(rows.column_names)
    for field in schema:
        name = stored_name(field) if names is None else names.get(field.name)
        if name is None or name not in known:
            yield pa.chunked_array([defaults(field, rows.num_rows)])
            continue
        column = rows.column(name)
        yield column.cast(field.type) if is_of_earlier(column.type, field) else column


def follows(later: pa.Schema, earlier: pa.Schema) -> bool:
    """Return whether `of_earlier` can convert rows of the earlier schema of a table to the later schema.

    If the conversion is possible, a change planned under the earlier schema may be committed under the later schema.
    Dropped columns are ignored.
    """
    if not has_changed(later):
        return bool(later.equals(earlier))
    known = {stored_name(field): field for field in earlier}
    for field in later:
        found = known.get(stored_name(field))
        if found is None:
            if not field.nullable:
                return False
        elif (found.type != field.type and not is_of_earlier(found.type, field)) or found.nullable > field.nullable:
            return False
    return True


def as_wide(tables: Sequence[pa.Table], names: Sequence[str]) -> list[pa.Table]:
    """Return these columns, converted to the widest of their types.

    The rows may come from several schemas of a table.
    """
    types: dict[str, pa.DataType] = {}
    for table in tables:
        for name in names:
            type_ = table.schema.field(name).type
            if name not in types or may_widen(types[name], type_):
                types[name] = type_
    return [
        pa.table({name: table.column(name).cast(types[name]) for name in names})  # columns of equal type are not copied
        for table in tables
    ]


def from_spark(metadata: object) -> dict[str, str]:
    """Return the entries of this module in the metadata of a Spark field.

    Raises `InvalidInput` for an invalid entry.
    """
    found: dict[str, str] = {}
    if not isinstance(metadata, dict):
        return found
    if COLUMN_ID in metadata:
        number = metadata[COLUMN_ID]
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise InvalidInput(f"{COLUMN_ID} is {quoted(number)}. Expected a number from 1")
        found[COLUMN_ID] = str(number)
    for name in (DEFAULT, STORED_NAME):
        if name in metadata:
            if not isinstance(metadata[name], str):
                raise InvalidInput(f"{name} is {quoted(metadata[name])}. Expected text")
            found[name] = metadata[name]
    return found


def to_spark(field: pa.Field) -> dict[str, Any]:
    """Return the entries of a field for the metadata of a Spark field. `from_spark` reads them."""
    found: dict[str, Any] = dict(entries_of(field))
    return found | ({COLUMN_ID: int(found[COLUMN_ID])} if COLUMN_ID in found else {})


def _entry(field: pa.Field, name: str) -> str | None:
    entries = field.metadata
    found = None if entries is None else entries.get(name.encode())
    return None if found is None else found.decode()
