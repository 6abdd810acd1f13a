"""Region specs bound to a table: what a declaration means, and the region of every row (docs/architecture/ingestion.md,
"Regions").

A region is named by a UUID that follows from the table, the spec and the values of the spec's fields. So a writer, a
reader and a Spark task find the region of a key without asking anybody.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.errors import InvalidInput
from storage_core.region import expressions
from storage_core.region.manifest import region_of
from storage_core.region.transforms import Transform, apply_transform, parse_transform, result_type, widen
from storage_core.rows.codes import codes
from storage_core.rows.exact import exact_array
from storage_core.rows.keys import dense_ranks, pack
from storage_core.rows.schema import from_schema_string, to_schema_string
from storage_core.settings.region_fields import (
    BY_HAND_SPEC,
    WHOLE_TABLE,
    WHOLE_TABLE_SPEC,
    Region,
    RegionField,
    RegionSpec,
    Value,
)

DeclaredField: TypeAlias = RegionField | Mapping[str, object]

_KEYS = {"field", "transform", "expression", "source", "sources", "n", "width"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """The regions of some rows: `regions[positions[row]]` is the region of a row; each region has a row."""

    regions: tuple[Region, ...]
    positions: npt.NDArray[np.int64]


def whole_table(table_id: str) -> Region:
    """Return the one region of a table under the spec without fields."""
    return Region(id=region_of(table_id), spec_id=WHOLE_TABLE_SPEC, values=())


def only_region(table_id: str, spec: RegionSpec) -> Region:
    """Return the region of a spec without fields. Raises `InvalidInput` for any other: there are several."""
    if spec.fields:
        names = [each.field_id for each in spec.fields]
        raise InvalidInput(
            f"the table's regions are divided by {names}; say which one, or write through Table.writer()"
        )
    return region_for(table_id, spec, ())


def region_for(table_id: str, spec: RegionSpec, values: tuple[Value, ...]) -> Region:
    """Return the region of these canonical values, one per field of the spec; the same everywhere and for ever."""
    if spec.id == WHOLE_TABLE_SPEC:
        return whole_table(table_id)
    return _named(table_id, spec.id, values)


def hand_region(table_id: str, name: str) -> Region:
    """Return the region that callers make by this name. Raises `InvalidInput` for the empty text."""
    if not name:
        raise InvalidInput(f"a region made by hand has a name, a text that is not empty; found {name!r}")
    return _named(table_id, BY_HAND_SPEC, (name,))


def _named(table_id: str, spec_id: int, values: tuple[Value, ...]) -> Region:
    name = f"region:{spec_id}:{json.dumps(values, separators=(',', ':'))}"
    return Region(id=str(uuid.uuid5(uuid.UUID(table_id), name)), spec_id=spec_id, values=values)


def closing_region(table_id: str, spec: RegionSpec) -> Region:
    """Return the region that a spec with fields gets when it is closed: no row is in it, for none has no values."""
    return Region(id=region_for(table_id, spec, ()).id, spec_id=spec.id, values=None)


def route(table_id: str, spec: RegionSpec, rows: pa.Table) -> Routed:
    """Return the region of every row. `rows` holds the source columns with the table's types.

    Vectorised: only the distinct values become Python objects. Raises `InvalidInput` when an expression fails on a row.
    """
    if not spec.fields:
        return Routed(regions=(region_for(table_id, spec, ()),), positions=np.zeros(rows.num_rows, np.int64))
    if not rows.num_rows:
        return Routed(regions=(), positions=np.zeros(0, np.int64))
    values = [field_values(field, rows) for field in spec.fields]
    ranks = dense_ranks(pack([codes(pa.chunked_array([each])) for each in values], rows.num_rows))
    _, first = np.unique(ranks, return_index=True)
    distinct = zip(*(canonical(each.take(pa.array(first))) for each in values), strict=True)
    return Routed(regions=tuple(region_for(table_id, spec, each) for each in distinct), positions=ranks)


def region_of_values(table_id: str, spec: RegionSpec, values: Mapping[str, object]) -> Region:
    """Return the region with these values of the spec's fields, by field id. Raises `InvalidInput` naming the field."""
    names = [each.field_id for each in spec.fields]
    if set(values) != set(names):
        raise InvalidInput(f"a region is named by a value for each of {names}, found {values!r}", fields=names)
    return region_for(table_id, spec, tuple(_given_value(each, values[each.field_id]) for each in spec.fields))


def _given_value(field: RegionField, value: object) -> Value:
    wanted = from_schema_string(_value_schema(field.result_type)).field(0).type
    try:
        found = canonical(widen(exact_array([value], wanted)))[0]
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(f"region field {field.field_id!r}: {value!r} is no {field.result_type}: {error}") from error
    buckets = 0 if field.transform is None else parse_transform(field.transform).buckets
    if buckets and (not isinstance(found, int) or not 0 <= found < buckets):
        raise InvalidInput(f"region field {field.field_id!r}: buckets are 0 to {buckets - 1}, found {value!r}")
    return found


def field_values(field: RegionField, rows: pa.Table) -> pa.Array:
    """Return the value of a field for every row, of the field's result type. A column that is missing is all null."""
    columns = [_column(rows, name) for name in field.source_ids]
    if field.transform is not None:
        return apply_transform(parse_transform(field.transform), columns)
    return expressions.evaluate(field.expression or "", columns)


def canonical(values: pa.Array) -> list[Value]:
    """Return the values as plain JSON, one form per value whatever its width.

    Integers and booleans as they are, text as it is, floats as the hexadecimal text of the float64, bytes as
    hexadecimal text, dates in days, timestamps in microseconds, decimals as text without trailing zeros.
    """
    kinds, type_ = pa.types, values.type
    if kinds.is_date32(type_) or kinds.is_timestamp(type_):
        plain = values.cast(pa.int32()) if kinds.is_date32(type_) else values.cast(pa.int64())
        return _plain(plain)
    return _plain(values)


def check_spec(spec: RegionSpec, schema: pa.Schema, key: Sequence[str]) -> None:
    """Return when the spec fits the table: its sources are part of the primary key, its fields have values.

    Rows of one key must meet in one region, hence the key. Raises `InvalidInput` naming field and column.
    """
    for field in spec.fields:
        outside = [name for name in field.source_ids if name not in key]
        if outside:
            raise InvalidInput(
                f"region field {field.field_id!r} is computed from {outside}, which is not part of the primary key "
                f"{list(key)}; rows of one key must share a region",
                columns=outside,
            )
        found = _type_text(_result(field, schema))
        if found != field.result_type:
            raise InvalidInput(
                f"region field {field.field_id!r}: expected values of type {field.result_type}, its "
                f"{'transform' if field.transform else 'expression'} gives {found}",
                field=field.field_id,
            )


def first_specs(regions: Sequence[DeclaredField], schema: pa.Schema) -> tuple[RegionSpec, ...]:
    """Return the specs of a new table: that without fields, or one of these fields (`declared_fields`)."""
    fields = declared_fields(regions, schema)
    return (RegionSpec(id=WHOLE_TABLE_SPEC + 1, fields=fields),) if fields else (WHOLE_TABLE,)


def declared_fields(regions: Sequence[DeclaredField], schema: pa.Schema) -> tuple[RegionField, ...]:
    """Return the fields that these mappings mean, such as `{"transform": "bucket", "source": "id", "n": 4}`.

    Keys: `transform` (with `n` buckets, or `width` to truncate to) or `expression`; `source` or `sources`; and `field`,
    the field's id, by default the transform and its sources. Raises `InvalidInput` naming what is wrong.
    """
    if not isinstance(regions, list | tuple):
        raise InvalidInput(f"regions are a list of fields, found {regions!r}")
    return tuple(_declared(each, schema) for each in regions)


def _declared(declared: object, schema: pa.Schema) -> RegionField:
    if isinstance(declared, RegionField):
        return declared
    if not isinstance(declared, Mapping) or set(declared) - _KEYS:
        raise InvalidInput(f"a region field is a mapping with some of {sorted(_KEYS)}, found {declared!r}")
    sources = _sources(declared)
    for name in sources:
        if name not in schema.names:
            raise InvalidInput(f"regions name the column {name!r}; the table has {schema.names}", column=name)
    transform = _transform(declared)
    expression = declared.get("expression")
    name = declared.get("field") or "_".join([str(transform.kind) if transform else "expression", *sources])
    unfinished = RegionField(
        field_id=str(name),
        source_ids=sources,
        result_type="",
        transform=None if transform is None else transform.text,
        expression=None if expression is None else str(expression),
    )
    return RegionField(
        field_id=unfinished.field_id,
        source_ids=sources,
        result_type=_type_text(_result(unfinished, schema)),
        transform=unfinished.transform,
        expression=unfinished.expression,
    )


def _sources(declared: Mapping[str, object]) -> tuple[str, ...]:
    one, several = declared.get("source"), declared.get("sources", ())
    if (one is None) == (not several) or not isinstance(several, list | tuple):
        raise InvalidInput(f"the region field {dict(declared)} needs a `source`, or a list of `sources`")
    return (str(one),) if one is not None else tuple(str(each) for each in several)


def _transform(declared: Mapping[str, object]) -> Transform | None:
    name = declared.get("transform")
    parameter = declared.get("width" if name == "truncate" else "n")
    given = {"n", "width"} & set(declared)
    if name is None or len(given) != (parameter is not None):
        if name is None and not given:
            return None
        raise InvalidInput(f"the region field {dict(declared)}: `n` goes with a bucket, `width` with truncate")
    return parse_transform(str(name) if parameter is None else f"{name}({parameter})")


def _result(field: RegionField, schema: pa.Schema) -> pa.DataType:
    types = [schema.field(name).type for name in field.source_ids]
    if field.transform is not None:
        return result_type(parse_transform(field.transform), types)
    text = field.expression or ""
    expressions.check_expression(text, len(types))
    return _tried(text, [expressions.sample(each) for each in types])


def _tried(text: str, columns: list[pa.Array]) -> pa.DataType:
    """The type of an expression's values. It must have a value for nulls, and give the same ones when asked again."""
    nulls = expressions.evaluate(text, [each.slice(0, 1) for each in columns])
    try:
        first, second = (expressions.evaluate(text, columns) for _ in range(2))
    except InvalidInput:
        return nulls.type  # it does not take every value of the type: then a write of such a row is refused
    if canonical(first) != canonical(second):
        raise InvalidInput(f"the region expression {text!r} gives other values when asked again", expression=text)
    return nulls.type


def _column(rows: pa.Table, name: str) -> pa.Array:
    if name not in rows.column_names:
        return pa.nulls(rows.num_rows, pa.int64())
    column = rows.column(name)
    plain = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
    return plain.combine_chunks()


def _plain(values: pa.Array) -> list[Value]:
    kinds, type_ = pa.types, values.type
    objects: list[Any] = values.to_pylist()
    if kinds.is_floating(type_):
        return [None if each is None else float(each).hex() for each in objects]
    if kinds.is_binary(type_):
        return [None if each is None else each.hex() for each in objects]
    if kinds.is_decimal(type_):
        return [None if each is None else _shortest(f"{each:f}") for each in objects]
    return objects


def _shortest(decimal: str) -> str:
    text = decimal.rstrip("0").rstrip(".") if "." in decimal else decimal
    return "0" if text == "-0" else text


def _value_schema(spark_type: str) -> str:
    field = {"name": "value", "type": spark_type, "nullable": True, "metadata": {}}
    return json.dumps({"type": "struct", "fields": [field]})


def _type_text(type_: pa.DataType) -> str:
    text = json.loads(to_schema_string(pa.schema([("value", type_)])))["fields"][0]["type"]
    return str(text)
