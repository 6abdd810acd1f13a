"""Table schemas: Spark JSON in the log, Arrow in memory, and the only door through which rows enter.

| Spark | Arrow | | Spark | Arrow |
|---|---|---|---|---|
| boolean | bool | | binary | binary |
| byte, short, integer, long | int8, int16, int32, int64 | | date | date32 |
| float, double | float32, float64 | | timestamp | timestamp[us, UTC] |
| string | string | | timestamp_ntz | timestamp[us] |
| decimal(p,s) | decimal128(p, s) | | array, struct, map | list, struct, map |
| array of float, with the metadata `tidemark.vector`: d | fixed-size list of d float32 | | | |

Only columns can be vectors (`rows.vectors`) or required; the fields inside lists, structs and maps are always nullable,
so that an old split can be read under a newer schema. Everything else is refused rather than approximated. More than
300 lines: the table above, in both directions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted, shortened
from storage_core.rows import columns, times
from storage_core.rows.extension_types import without_extension_types
from storage_core.rows.incoming import require_each_once
from storage_core.rows.vectors import VECTOR, is_vector, listed, require_dimensions, type_text, vector_of
from storage_core.wording import counted

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
    """Return the schema as compact Spark JSON; equal schemas give equal text.

    Of the metadata of fields what `rows.columns` puts there is part of it, and nothing else.

    Raises `InvalidInput` for a type outside the table above, and for names that are empty, repeated, or differ only
    in case (Spark and DuckDB could not tell them apart).
    """
    _check_names(schema.names)
    return json.dumps(_struct_to_spark(schema, ""), separators=(",", ":"), ensure_ascii=False)


def from_schema_string(text: str) -> pa.Schema:
    """Return the Arrow schema of a Spark schema JSON; the inverse of `to_schema_string`. Raises `InvalidInput`."""
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


def conform(table: pa.Table | pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """Return the same rows under exactly `schema`: its columns, order and types, every value unchanged.

    Missing nullable columns become null. Conversions are exact or refused: other text, binary and list layouts,
    dictionaries, integers and decimals that fit, integers as floats that represent them, timestamps of other units
    and zones, and times without a zone or as text (`rows.times`). Raises `InvalidInput` for an unknown or repeated
    column, a type that would need interpretation, a value that does not fit, and a null in a required column (naming
    the column and the first row, counted from 0).
    """
    rows = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
    _check_columns(rows.schema.names, schema)
    columns = [_conform_column(rows, field) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _check_names(names: list[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if not name:
            raise InvalidInput("a column has an empty name; give every column a name")
        folded = name.casefold()
        if folded in seen:
            raise InvalidInput(
                f"the columns {seen[folded]!r} and {name!r} differ at most in case; rename one", column=name
            )
        seen[folded] = name


def _check_columns(names: list[str], schema: pa.Schema) -> None:
    unknown = sorted(set(names) - set(schema.names))
    if unknown:
        raise InvalidInput(f"unknown columns {unknown}; the table has {schema.names}", columns=unknown)
    require_each_once(names)


def _conform_column(rows: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    if field.name not in rows.schema.names:
        column = pa.chunked_array([pa.nulls(rows.num_rows, field.type)])
    else:
        column = _cast(rows.column(field.name), field)
    if not field.nullable and column.null_count:
        row = column.is_null().index(True).as_py()
        raise InvalidInput(
            f"column {field.name!r} is required, but row {row} has no value "
            f"({counted(column.null_count, 'row')} in all); fill it or leave the rows out",
            column=field.name,
            row=row,
        )
    return column


def _cast(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    # Lists and maps are equal whatever their inner fields are called; the cast renames them without a copy.
    if column.type.equals(field.type) and not pa.types.is_nested(field.type):
        return column
    column = times.conformed(without_extension_types(column, field.type), field)
    if not _is_exact(column.type, field.type) and not columns.is_of_earlier(column.type, field):
        hint = _hint(column.type, field.type)
        raise InvalidInput(
            f"column {field.name!r} has type {type_text(column.type)}, the table has {type_text(field.type)}; {hint}",
            column=field.name,
        )
    if is_vector(field.type):
        require_dimensions(column, field)
    try:
        return _decoded(column, field.type).cast(field.type, safe=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        if column.type == pa.timestamp("ns", column.type.tz if pa.types.is_timestamp(column.type) else None):
            raise InvalidInput(
                f"column {field.name!r}: a value of type {type_text(column.type)} does not fit {type_text(field.type)} "
                "exactly: it has digits below the microsecond. Round it. If it is INT96 of a Parquet file, read the "
                "file with coerce_int96_timestamp_unit='us'.",
                column=field.name,
            ) from error
        raise InvalidInput(
            f"column {field.name!r}: a value of type {type_text(column.type)} does not fit {type_text(field.type)} "
            f"exactly: {error}",
            column=field.name,
        ) from error


def _decoded(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """The values of a dictionary that holds another type than the target. Arrow decodes no views: they are cast."""
    if not pa.types.is_dictionary(column.type) or column.type.value_type.equals(target):
        return column
    held = column.type.value_type
    if pa.types.is_string_view(held) or pa.types.is_binary_view(held):
        return pa.chunked_array([each.dictionary.cast(target).take(each.indices) for each in column.chunks], target)
    return column.cast(held)


def _hint(source: pa.DataType, target: pa.DataType) -> str:
    if pa.types.is_timestamp(source) and pa.types.is_timestamp(target):
        return "only one of them names an instant: drop the time zone yourself"
    return "convert it before writing"


def _is_exact(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a checked Arrow cast keeps every value that it accepts; the cast itself refuses what does not fit."""
    kinds = pa.types
    if source.equals(target) or kinds.is_null(source):
        return True
    if kinds.is_dictionary(source):
        return _is_exact(source.value_type, target)
    if kinds.is_string(target):
        return bool(kinds.is_large_string(source) or kinds.is_string_view(source))
    if kinds.is_binary(target):
        variants = (kinds.is_large_binary, kinds.is_binary_view, kinds.is_fixed_size_binary)
        return any(is_variant(source) for is_variant in variants)
    if kinds.is_integer(target):
        return bool(kinds.is_integer(source))
    if kinds.is_floating(target):
        return bool(kinds.is_integer(source)) or 0 < _float_width(source) <= target.bit_width
    if kinds.is_decimal(target):
        return bool(kinds.is_decimal(source))
    if kinds.is_timestamp(target):
        return bool(kinds.is_timestamp(source)) and (source.tz is None) == (target.tz is None)
    return _is_exact_nested(source, target)


def _float_width(source: pa.DataType) -> int:
    return int(source.bit_width) if pa.types.is_floating(source) else 0


def _is_exact_nested(source: pa.DataType, target: pa.DataType) -> bool:
    kinds = pa.types
    if kinds.is_map(target):
        return (
            kinds.is_map(source)
            and _is_exact(source.key_type, target.key_type)
            and _is_exact(source.item_type, target.item_type)
        )
    if kinds.is_list(target) or is_vector(target):
        listed = kinds.is_list(source) or kinds.is_large_list(source) or kinds.is_fixed_size_list(source)
        return listed and _is_exact(source.value_type, target.value_type)
    if kinds.is_struct(target) and kinds.is_struct(source):
        theirs, ours = list(source.fields), list(target.fields)
        return [field.name for field in theirs] == [field.name for field in ours] and all(
            _is_exact(a.type, b.type) for a, b in zip(theirs, ours, strict=True)
        )
    return False


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
        f"column {where!r} has the type {type_}, which tables do not hold; use one of {', '.join(supported)}",
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
            raise InvalidInput(f"the schema string names a column {quoted(name)}: twice, or no valid text")
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
