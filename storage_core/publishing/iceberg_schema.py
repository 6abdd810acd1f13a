"""The columns of a table as Iceberg has them, by the ids that the table gives them, and the names that splits have.

Splits that were written since the first change of the schema have these ids; of earlier ones, and of what is inside of
columns, Iceberg's name mapping says which name is which id. A name of a split is one column's for ever, so the mapping
only grows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyiceberg import types
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, NestedField, PrimitiveType

from storage_core.log.snapshot import Snapshot
from storage_core.rows.columns import column_id, numbered, stored_name
from storage_core.rows.dropped_columns import dropped_columns
from storage_core.rows.field_ids import inner_ids, inside
from storage_core.settings.json_text import json_text

MAPPING: Final = "schema.name-mapping.default"

_PRIMITIVES: Mapping[pa.DataType, PrimitiveType] = {
    pa.bool_(): types.BooleanType(),
    pa.int8(): types.IntegerType(),
    pa.int16(): types.IntegerType(),
    pa.int32(): types.IntegerType(),
    pa.int64(): types.LongType(),
    pa.float32(): types.FloatType(),
    pa.float64(): types.DoubleType(),
    pa.string(): types.StringType(),
    pa.binary(): types.BinaryType(),
    pa.date32(): types.DateType(),
}


def iceberg_schema(snapshot: Snapshot, schemas: Iterable[Schema]) -> Schema:
    """Return the schema, which is one of these where that has the same columns, else the next."""
    fields = [
        NestedField(_number(each), each.name, _type(each.type, inner_ids(_number(each))), required=not each.nullable)
        for each in numbered(snapshot.schema)
    ]
    known = [*schemas]
    found = Schema(*fields, schema_id=max((each.schema_id for each in known), default=-1) + 1)
    return next((each for each in known if each.fields == found.fields), found)


def name_mapping(snapshot: Snapshot, before: str | None) -> str:
    """Return the value of `MAPPING`: ids by the names that splits have, those of columns that went before included.

    `before` is the mapping until now. Readers refuse a split with a name that no id has.
    """
    known: dict[str, Any] = {each["names"][0]: each for each in json.loads(before or "[]")}
    dropped = dropped_columns(snapshot.metadata.configuration)
    for number, field in [*dropped.items(), *((_number(each), each) for each in numbered(snapshot.schema))]:
        known[stored_name(field)] = _mapped(stored_name(field), number, field.type, inner_ids(number))
    return json_text([*known.values()])


def primitive(type_: pa.DataType) -> PrimitiveType | None:
    """Return the type of values that are no lists, structures or maps; None for those."""
    kinds = pa.types
    if kinds.is_decimal(type_):
        return types.DecimalType(type_.precision, type_.scale)
    if kinds.is_timestamp(type_):
        return types.TimestampType() if type_.tz is None else types.TimestamptzType()
    return _PRIMITIVES.get(type_)


def _number(field: pa.Field) -> int:
    return column_id(field) or 0


def _type(type_: pa.DataType, ids: Iterator[int]) -> IcebergType:
    """The type, with an id for all that is inside of it, in the order of `_mapped`."""
    found = primitive(type_)
    if found is not None:
        return found
    inner = [(next(ids), _type(each.type, ids), each.name) for each in inside(type_)]
    if pa.types.is_struct(type_):
        return types.StructType(
            *(types.NestedField(number, name, each, required=False) for number, each, name in inner)
        )
    if pa.types.is_map(type_):
        (key_id, key, _), (value_id, value, _) = inner
        return types.MapType(key_id=key_id, key_type=key, value_id=value_id, value_type=value, value_required=False)
    ((element_id, element, _),) = inner
    return types.ListType(element_id=element_id, element=element, element_required=False)


def _mapped(name: str, number: int, type_: pa.DataType, ids: Iterator[int]) -> dict[str, Any]:
    found: dict[str, Any] = {"field-id": number, "names": [name]}
    inner = [_mapped(each.name, next(ids), each.type, ids) for each in inside(type_)]
    return {**found, "fields": inner} if inner else found
