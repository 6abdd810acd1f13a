"""What a table remembers of its columns from the first change of its schema on (`docs/spec.md`, "Columns that change").

Each column then has an id, which nothing else of the table ever gets, and one that was added later may have a default:
the value that it has in rows written before. All splits have a column under one name, which is its first one unless
another column had that before: it is recorded where the column is now called otherwise. These entries are in the
metadata of the column's field, in Spark's JSON and in Arrow. Splits and records are never rewritten: they have the
columns and types of when they were written, and `of_earlier` makes those of the table of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.rows.bound_text import decode_column, has_bounds, text_of
from storage_core.rows.exact import exact_array
from storage_core.settings.json_text import column_names, json_text, json_value

COLUMN_ID: Final = "tidemark.id"
DEFAULT: Final = "tidemark.default"
STORED_NAME: Final = "tidemark.storedName"
LAST_COLUMN_ID: Final = "tidemark.lastColumnId"
"""The setting of a changed table that has the greatest id that a column of it ever had."""

FORMER_NAMES: Final = "tidemark.formerColumns"
"""The setting of a changed table that has the names, as JSON, that columns had which have them no more."""

LONGEST_DEFAULT: Final = 1024
"""Code points of the text of a default: the schema that has it is part of every split."""


def column_id(field: pa.Field) -> int | None:
    """Return the id of a column; None in a table whose schema never changed."""
    text = _entry(field, COLUMN_ID)
    return None if text is None else int(text)


def has_changed(schema: pa.Schema) -> bool:
    """Return whether the table's columns have ever changed."""
    return any(column_id(field) is not None for field in schema)


def stored_name(field: pa.Field) -> str:
    """Return the name under which splits have a column."""
    return _entry(field, STORED_NAME) or str(field.name)


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with the names that splits have for its columns."""
    if all(stored_name(field) == field.name for field in schema):
        return schema
    return pa.schema([_named(field, stored_name(field)) for field in schema])


def stored_names(schema: pa.Schema, names: Iterable[str]) -> list[str]:
    """Return the names that splits have for these columns; names that are no columns of the table are left out."""
    return [stored_name(schema.field(name)) for name in names if name in schema.names]


def stored_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows of a table as splits have them: under their names of its columns."""
    names = {field.name: stored_name(field) for field in schema}
    return rows.rename_columns([names.get(name, name) for name in rows.column_names]) if has_changed(schema) else rows


def column_ids(schema: pa.Schema) -> dict[str, int]:
    """Return the ids of columns by the names that splits have for them; none in a table that never changed."""
    ids = ((stored_name(field), column_id(field)) for field in schema)
    return {name: number for name, number in ids if number is not None}


def numbered(schema: pa.Schema) -> pa.Schema:
    """Return the schema with an id for every column; those of a table that never changed are numbered from 1."""
    if has_changed(schema):
        return schema
    return pa.schema([with_entries(field, {COLUMN_ID: str(number)}) for number, field in enumerate(schema, 1)])


def former_names(configuration: Mapping[str, str]) -> frozenset[str]:
    """Return the names that a column had, here or in splits, which has it no more. Raises `InvalidInput`."""
    text = configuration.get(FORMER_NAMES)
    return frozenset() if text is None else frozenset(column_names(FORMER_NAMES, json_value(FORMER_NAMES, text)))


def former_setting(names: Iterable[str]) -> dict[str, str]:
    """Return the setting that `former_names` reads; nothing without names."""
    found = sorted(names)
    return {FORMER_NAMES: json_text(found)} if found else {}


def with_former(names: Iterable[str], before: pa.Schema, after: pa.Schema) -> frozenset[str]:
    """Return the names with those that columns of one schema have no more in the other; both have ids."""
    own, kept = ({(column_id(field), field.name) for field in each} for each in (before, after))
    there, left = ({(column_id(field), stored_name(field)) for field in each} for each in (before, after))
    return frozenset(names) | {name for _, name in (own - kept) | (there - left)}


def _named(field: pa.Field, name: str) -> pa.Field:
    entries = entries_of(field)
    entries.pop(STORED_NAME, None)
    return with_entries(field.with_name(name), entries)


def with_entries(field: pa.Field, entries: Mapping[str, str]) -> pa.Field:
    """Return the field with exactly these of our entries in its metadata."""
    return field.with_metadata({**entries} or None)


def entries_of(field: pa.Field) -> dict[str, str]:
    """Return our entries in the metadata of a field."""
    return {name: text for name in (COLUMN_ID, DEFAULT, STORED_NAME) if (text := _entry(field, name)) is not None}


def without_metadata(schema: pa.Schema) -> pa.Schema:
    """Return the names, types and nullability alone."""
    return pa.schema([field.remove_metadata() for field in schema])


def default_text(value: object, field: pa.Field) -> str:
    """Return the text of a value that is to be the default of a column, given as such or as text.

    Raises `InvalidInput` for one that cannot be.
    """
    if not has_bounds(field.type):
        raise InvalidInput(
            f"column {field.name!r} is {field.type}, which has no default; add it without one", column=field.name
        )
    try:
        is_text = isinstance(value, str) and not pa.types.is_string(field.type)
        found = value_of(str(value), field.type) if is_text else exact_array([value], field.type)[0]
    except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
        raise InvalidInput(
            f"the default of column {field.name!r} does not fit {field.type}: {error}", column=field.name
        ) from error
    text = text_of(found)
    if text is None or len(text) > LONGEST_DEFAULT:
        raise InvalidInput(
            f"the default of column {field.name!r} is {quoted(str(value))}; it must be a value, a time between the "
            f"years 1 and 9999, or at most {LONGEST_DEFAULT} characters",
            column=field.name,
        )
    return text


def value_of(text: str, type_: pa.DataType) -> pa.Scalar:
    """Return a value of a type that has bounds from its text. Raises `ValueError`, or what Arrow raises."""
    found = decode_column(pa.array([text]), type_).cast(type_)[0]
    if not found.is_valid:
        raise ValueError(f"{quoted(text)} is none")
    return found


def default_of(field: pa.Field) -> str | None:
    """Return the text of the value that a column has in rows written before it was added; None for null."""
    return _entry(field, DEFAULT)


def defaults(field: pa.Field, rows: int) -> pa.Array:
    """Return the values of a column in so many rows that were written before it was added."""
    text = default_of(field)
    return pa.nulls(rows, field.type) if text is None else pa.repeat(value_of(text, field.type), rows)


def may_widen(type_: pa.DataType, wider: pa.DataType) -> bool:
    """Return whether every value of a type is one of another, so that a column may become of it without a rewrite.

    Integers become wider ones, `float` becomes `double`, decimals of more digits before the point, a date the midnight
    that it begins with.
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
    """Return whether a file or record of an earlier schema of the table may have this type for the column."""
    return column_id(field) is not None and may_widen(found, field.type)


def of_earlier(rows: pa.Table, schema: pa.Schema, names: Mapping[str, str] | None = None) -> Iterator[pa.ChunkedArray]:
    """Yield the columns of `schema` for rows that were written under an earlier schema of the table.

    They have the columns under their stored names, or those of `names`. Columns that were added since have their
    default or are null, narrower ones are widened, others come as they are.
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
    """Return whether rows that fit the earlier schema of a table are rows of the later one, as `of_earlier` makes them.

    So what was planned under the earlier one may be committed under the later. Columns that were dropped are ignored.
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
    """Return these columns of rows of several schemas of a table, each as wide as it is in the widest of them."""
    types: dict[str, pa.DataType] = {}
    for table in tables:
        for name in names:
            type_ = table.schema.field(name).type
            if name not in types or may_widen(types[name], type_):
                types[name] = type_
    return [
        pa.table({name: table.column(name).cast(types[name]) for name in names})  # no copy of what is as wide
        for table in tables
    ]


def from_spark(metadata: object) -> dict[str, str]:
    """Return our entries in the metadata of a field of Spark's schema. Raises `InvalidInput` for one that is none."""
    found: dict[str, str] = {}
    if not isinstance(metadata, dict):
        return found
    if COLUMN_ID in metadata:
        number = metadata[COLUMN_ID]
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise InvalidInput(f"{COLUMN_ID} is {quoted(number)}; expected a number from 1")
        found[COLUMN_ID] = str(number)
    for name in (DEFAULT, STORED_NAME):
        if name in metadata:
            if not isinstance(metadata[name], str):
                raise InvalidInput(f"{name} is {quoted(metadata[name])}; expected text")
            found[name] = metadata[name]
    return found


def to_spark(field: pa.Field) -> dict[str, Any]:
    """Return our entries for the metadata of a field of Spark's schema; `from_spark` reads them."""
    found: dict[str, Any] = dict(entries_of(field))
    return found | ({COLUMN_ID: int(found[COLUMN_ID])} if COLUMN_ID in found else {})


def _entry(field: pa.Field, name: str) -> str | None:
    entries = field.metadata
    found = None if entries is None else entries.get(name.encode())
    return None if found is None else found.decode()
