"""Table schemas: Spark JSON in the log, Arrow in memory.

| Spark | Arrow | | Spark | Arrow |
|---|---|---|---|---|
| boolean | bool | | binary | binary |
| byte, short, integer, long | int8, int16, int32, int64 | | date | date32 |
| float, double | float32, float64 | | timestamp | timestamp[us, UTC] |
| string | string | | timestamp_ntz | timestamp[us] |
| decimal(p,s) | decimal128(p, s) | | array, struct, map | list, struct, map |
| array of float, with the metadata `tidemark.vector`: d | fixed-size list of d float32 | | | |

Only columns can contain embeddings (`rows.vectors`) or be required. Nested fields are always nullable, so that an old
split can be read with a newer schema. Arrow types that are not in this table are refused.

The module also contains the types that replace Arrow's extension types, the field ids for Parquet, and the columns of
change reads. The last parts of the module are the rules for column names and the dropped columns of a table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from storage_core.base.errors import InvalidInput
from storage_core.base.text import quoted, shortened
from storage_core.data.formats.arrow_files import DEEPEST
from storage_core.data.rows import columns
from storage_core.data.rows.columns import COLUMN_ID, column_id, stored_name, with_entries
from storage_core.data.rows.vectors import VECTOR, is_vector, listed, type_text, vector_of


def held_as(type_: pa.DataType) -> pa.DataType:
    """Return the type that a new table uses for an extension type. Return any other type unchanged."""
    if isinstance(type_, pa.UuidType | pa.Bool8Type):
        return pa.string() if isinstance(type_, pa.UuidType) else pa.bool_()
    return type_.storage_type if isinstance(type_, pa.BaseExtensionType) else type_


def table_type(type_: pa.DataType) -> pa.DataType:
    """Return the type in which a table stores these values. Unsupported types are returned unchanged."""
    kinds, type_ = pa.types, held_as(type_)
    if kinds.is_dictionary(type_):
        return table_type(type_.value_type)
    if kinds.is_large_string(type_) or kinds.is_string_view(type_):
        return pa.string()
    if kinds.is_large_binary(type_) or kinds.is_binary_view(type_) or kinds.is_fixed_size_binary(type_):
        return pa.binary()
    if kinds.is_unsigned_integer(type_):  # the read refuses a 64-bit value that does not fit into a long
        return {8: pa.int16(), 16: pa.int32()}.get(type_.bit_width, pa.int64())
    if kinds.is_float16(type_):
        return pa.float32()
    if kinds.is_timestamp(type_):
        return pa.timestamp("us", tz=None if type_.tz is None else "UTC")
    if kinds.is_decimal(type_) and type_.precision <= 38:
        return pa.decimal128(type_.precision, type_.scale)
    return _held_nested(type_)


def _held_nested(type_: pa.DataType) -> pa.DataType:
    kinds = pa.types
    if is_vector(type_):
        return type_
    if kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_):
        return pa.list_(pa.field("element", _inside(type_.value_type)))
    if kinds.is_map(type_):
        return pa.map_(_inside(type_.key_type), _inside(type_.item_type))
    if kinds.is_struct(type_):
        return pa.struct(_held_fields(type_.fields))
    return type_


def _held_fields(fields: Sequence[pa.Field]) -> list[pa.Field]:
    return [pa.field(each.name, _inside(each.type)) for each in fields]


def _inside(type_: pa.DataType) -> pa.DataType:
    """Return the type of a field inside a nested type. Inside a nested type, an embedding type becomes a list."""
    return listed(table_type(type_))


_ARROW_BY_SPARK: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_SPARK_BY_ARROW: Mapping[pa.DataType, str] = {arrow: spark for spark, arrow in _ARROW_BY_SPARK.items()}
_DECIMAL = re.compile(r"decimal\(\s*(\d{1,3})\s*,\s*(-?\d{1,3})\s*\)", re.ASCII)


def to_schema_string(schema: pa.Schema) -> str:
    """Return the schema as compact Spark JSON. Equal schemas give equal text.

    The text contains only those entries of a field's metadata that `rows.columns` writes.

    Raises:
        InvalidInput: A type is not in the table of this module's docstring. Or a name is empty, is repeated, or differs
            from another name only in case, because Spark and DuckDB cannot distinguish such names.
    """
    _check_names(schema.names)
    return json.dumps(_struct_to_spark(schema, ""), separators=(",", ":"), ensure_ascii=False)


def from_schema_string(text: str) -> pa.Schema:
    """Return the Arrow schema of a Spark schema JSON.

    This function is the inverse of `to_schema_string`. Raises `InvalidInput`.
    """
    try:
        return pa.schema(list(_fields_from_spark(_spark_struct(text), "")))
    except RecursionError as error:
        raise InvalidInput(f"the schema string is nested too deeply: {quoted(text)}") from error


def _spark_struct(text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"the schema string is not JSON: {error}") from error
    if not isinstance(parsed, dict) or parsed.get("type") != "struct":
        raise InvalidInput(f"the schema string must be a Spark struct, found {quoted(text)}")
    return parsed


def _check_names(names: list[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if not name:
            raise InvalidInput("a column has an empty name. Give every column a name")
        folded = name.casefold()
        if folded in seen:
            raise InvalidInput(
                f"the columns {seen[folded]!r} and {name!r} differ at most in case. Rename one", column=name
            )
        seen[folded] = name


def _struct_to_spark(fields: Any, where: str) -> dict[str, Any]:
    return {
        "type": "struct",
        "fields": [
            {
                "name": field.name,
                "type": _to_spark(field.type if where else listed(field.type), f"{where}{field.name}"),
                "nullable": field.nullable or bool(where),
                "metadata": {} if where else _metadata_of(field),
            }
            for field in fields
        ],
    }


def _metadata_of(field: pa.Field) -> dict[str, Any]:
    return ({VECTOR: field.type.list_size} if is_vector(field.type) else {}) | columns.to_spark(field)


def type_name(type_: pa.DataType) -> str:
    """Return the name of a type in the form that declarations use. A nested type has Arrow's name."""
    spark = _to_spark(type_, "column")
    return spark if isinstance(spark, str) else type_text(type_)


def _to_spark(type_: pa.DataType, where: str) -> str | dict[str, Any]:
    kinds = pa.types
    if type_ in _SPARK_BY_ARROW:
        return _SPARK_BY_ARROW[type_]
    if kinds.is_decimal128(type_) and 0 <= type_.scale <= type_.precision:
        return f"decimal({type_.precision},{type_.scale})"
    if kinds.is_struct(type_):
        return _struct_to_spark(type_.fields, f"{where}.")
    if kinds.is_map(type_):
        return {
            "type": "map",
            "keyType": _to_spark(type_.key_type, f"{where}.key"),
            "valueType": _to_spark(type_.item_type, f"{where}.value"),
            "valueContainsNull": True,
        }
    if kinds.is_list(type_):
        return {"type": "array", "elementType": _to_spark(type_.value_type, f"{where}.element"), "containsNull": True}
    supported = [*_ARROW_BY_SPARK, "decimal(p,s)", "array", "struct", "map", "a list of float32 of a fixed size"]
    raise InvalidInput(
        f"column {where!r} has the type {type_}, which tables do not support. Use one of {', '.join(supported)}",
        column=where,
    )


def _fields_from_spark(struct: Mapping[str, Any], where: str) -> Iterator[pa.Field]:
    listed = struct.get("fields", [])
    if not isinstance(listed, list):
        raise InvalidInput(f"the fields of the schema string must be a list, found {quoted(listed)}")
    seen: set[str] = set()
    for field in listed:
        try:
            name, type_, nullable = field["name"], field["type"], field.get("nullable", True)
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(
                f"the schema string has a field without name or type: {shortened(repr(field), 80)}"
            ) from error
        if not isinstance(name, str) or not _is_unicode(name) or name in seen:
            raise InvalidInput(
                f"the column name {quoted(name)} in the schema string occurs twice, or is not valid text"
            )
        seen.add(name)
        kind = _from_spark(type_, f"{where}{name}")
        metadata = {} if where else field.get("metadata") or {}
        if VECTOR in metadata:
            kind = vector_of(kind, metadata[VECTOR], name)
        entries = columns.from_spark(metadata) or None
        yield pa.field(name, kind, nullable=bool(nullable) or bool(where), metadata=entries)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _from_spark(type_: object, where: str) -> pa.DataType:
    if isinstance(type_, str):
        return _atom_from_spark(type_, where)
    match type_:
        case {"type": "struct", "fields": fields}:
            return pa.struct(list(_fields_from_spark({"fields": fields}, f"{where}.")))
        case {"type": "array", "elementType": element}:
            return pa.list_(pa.field("element", _from_spark(element, f"{where}.element")))
        case {"type": "map", "keyType": key, "valueType": value}:
            return pa.map_(_from_spark(key, f"{where}.key"), _from_spark(value, f"{where}.value"))
    raise InvalidInput(f"column {where!r} has the unknown Spark type {shortened(str(type_), 80)}", column=where)


def _atom_from_spark(text: str, where: str) -> pa.DataType:
    if text in _ARROW_BY_SPARK:
        return _ARROW_BY_SPARK[text]
    decimal = _DECIMAL.fullmatch(text)
    if decimal and 1 <= int(decimal[1]) <= 38 and 0 <= int(decimal[2]) <= int(decimal[1]):
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    raise InvalidInput(f"column {where!r} has the unknown Spark type {quoted(text)}", column=where)


# Field ids.

FIELD_ID: Final = "PARQUET:field_id"

_INNER_IDS: Final = 2**30
"""The least id of a field inside a column. The ids of columns are smaller than the ids of fields inside columns."""

_INNER_BITS: Final = 12


def inner_ids(column: int) -> Iterator[int]:
    """Yield the ids of the fields inside a column.

    The ids have the order in which the fields occur in the text of the column's type.
    """
    first = _INNER_IDS + (column << _INNER_BITS)
    return iter(range(first, first + (1 << _INNER_BITS)))


def inside(type_: pa.DataType) -> list[pa.Field]:
    """Return the fields inside a type, with their Parquet names. A type that is not nested has no such fields."""
    kinds = pa.types
    if kinds.is_map(type_):
        return [type_.key_field.with_name("key"), type_.item_field.with_name("value")]
    if kinds.is_struct(type_):
        return [type_.field(place) for place in range(type_.num_fields)]
    is_list = kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_)
    return [type_.value_field.with_name("element")] if is_list else []


def identified(field: pa.Field, column: int) -> pa.Field:
    """Return the field with a column's id, and with ids for all fields inside it."""
    return _with_id(field, column, inner_ids(column))


def lacks_ids(field: pa.Field) -> bool:
    """Return whether a field of a file has an id although a field inside it has no id."""
    return _has_id(field) and not all(_have_ids(each) for each in inside(field.type))


def _has_id(field: pa.Field) -> bool:
    return FIELD_ID.encode() in (field.metadata or {})


def _have_ids(field: pa.Field) -> bool:
    return _has_id(field) and all(map(_have_ids, inside(field.type)))


def _with_id(field: pa.Field, number: int, ids: Iterator[int]) -> pa.Field:
    inner = [_with_id(each, next(ids), ids) for each in inside(field.type)]
    return field.with_type(_of(field.type, inner)).with_metadata({FIELD_ID: str(number)})


def _of(type_: pa.DataType, inner: list[pa.Field]) -> pa.DataType:
    kinds = pa.types
    if kinds.is_map(type_):
        return pa.map_(*inner)
    if kinds.is_struct(type_):
        return pa.struct(inner)
    if kinds.is_fixed_size_list(type_):
        return pa.list_(*inner, type_.list_size)
    if kinds.is_large_list(type_):
        return pa.large_list(*inner)
    return pa.list_(*inner) if inner else type_


# The columns that a read of changes adds, and the rules for names of columns.

CHANGE_TYPE: Final = "_change_type"
COMMIT_VERSION: Final = "_commit_version"
COMMIT_TIMESTAMP: Final = "_commit_timestamp"

CHANGE_COLUMNS: Final = frozenset({CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP})


def require_new_columns(fields: Iterable[pa.Field]) -> None:
    """Raise `InvalidInput` unless new columns can have these names and can hold values of their types.

    Two column names must not differ only in case. Two field names of one struct must also not differ only in case.
    Existing columns of tables are not checked.
    """
    for field in fields:
        try:
            require_names([field.name])
            _require_type(field.type, field.name, 1)
        except UnicodeDecodeError as error:
            raise InvalidInput("the name of a column or field is not valid UTF-8. Choose another name") from error


def _require_type(type_: pa.DataType, path: str, level: int) -> None:
    if level > DEEPEST:
        raise InvalidInput(
            f"column {path.partition('.')[0]!r} nests deeper than {DEEPEST} types. Use fewer levels",
            column=path.partition(".")[0],
        )
    if pa.types.is_struct(type_):
        _require_fields(list(type_.fields), path)
        children = [(field.name, field.type) for field in type_.fields]
    elif pa.types.is_map(type_):
        children = [("key", type_.key_type), ("value", type_.item_type)]
    elif pa.types.is_nested(type_) and type_.num_fields == 1:
        children = [("element", type_.field(0).type)]
    else:
        return
    for name, child in children:
        _require_type(child, f"{path}.{name}", level + 1)


def _require_fields(fields: Sequence[pa.Field], path: str) -> None:
    column = path.partition(".")[0]
    if not fields:
        raise InvalidInput(
            f"the struct {path!r} has no fields. Give the struct a field, or leave the column out", column=column
        )
    seen: dict[str, str] = {}
    for field in fields:
        if not field.name.isprintable() or not field.name.strip():
            raise InvalidInput(
                f"{field.name!r} cannot name a field of {path!r}: the name is blank or unprintable. Choose "
                "another name",
                column=column,
            )
        folded = field.name.casefold()
        if folded in seen:
            raise InvalidInput(
                f"the fields {seen[folded]!r} and {field.name!r} of {path!r} differ at most in case. Rename one",
                column=column,
            )
        seen[folded] = field.name


def require_names(names: Sequence[object]) -> None:
    """Raise `InvalidInput` unless new columns can have these names.

    Existing columns of tables keep their names, even invalid ones. A declaration refuses every name that starts with
    `_`. This function refuses only the names of the columns that a change read adds to the rows.
    """
    for name in names:
        why = None
        if not isinstance(name, str):
            why = "the name is not a text"
        elif not name.isprintable() or not name.strip():
            why = "the name is blank or unprintable"
        elif name.casefold() in CHANGE_COLUMNS:
            why = "change reads add a column of this name"
        if why:
            raise InvalidInput(f"{name!r} cannot name a column: {why}. Choose another name", column=name)


# Dropped columns.

DROPPED: Final = "tidemark.droppedColumns"
"""The setting that contains the dropped columns of a table.

The value of this setting is a schema string, in which the columns have their stored names.
"""


def dropped_columns(configuration: Mapping[str, str]) -> dict[int, pa.Field]:
    """Return the dropped columns of the table by their ids, each in its last form. Raises `InvalidInput`."""
    text = configuration.get(DROPPED)
    fields = () if text is None else from_schema_string(text)
    return {number: field for field in fields if (number := column_id(field)) is not None}


def with_dropped(configuration: Mapping[str, str], before: pa.Schema, after: pa.Schema) -> dict[str, str]:
    """Return the settings with all dropped columns: the earlier ones, and the columns of `before` that `after` lacks.

    `before` has ids. A column that `after` contains does not count as dropped, even if an earlier change dropped this
    column.
    """
    kept = {column_id(field) for field in after}
    lost: dict[int | None, pa.Field] = dict(dropped_columns(configuration).items())
    lost |= {column_id(field): _as_stored(field) for field in before}
    gone = [field for number, field in lost.items() if number not in kept]
    others = {name: value for name, value in configuration.items() if name != DROPPED}
    return others | ({DROPPED: to_schema_string(pa.schema(gone))} if gone else {})


def _as_stored(field: pa.Field) -> pa.Field:
    return with_entries(field.with_name(stored_name(field)), {COLUMN_ID: str(column_id(field))})
