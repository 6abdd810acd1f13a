"""Nested JSON values of landed files as lists, structs and maps.

The values of a column are decoded once, and divided into their leaves. `convert` then converts all leaves of one type
at once, by the rules for columns of this type. Fields inside of a column are never required. A leaf that does not fit
rejects its record, and the reason has the path of the leaf.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.base.text import fitted
from storage_core.data.rows.vectors import is_vector
from storage_core.write.ingest.convert import RowFormat, convert
from storage_core.write.ingest.landed_times import LandedTimes

_LONGEST_NAME = 100
_EXPONENT = r"\A[+-]?[0-9]+(?:\.[0-9]+)?[eE][+-]?[0-9]+\z"
_MOST_ZEROS = 100
_LEAF = "value"
_WRONG = object()
_UNREAD = "a nested value is not valid JSON, or the value nests too deeply"

Faults = dict[int, tuple[str, str]]
"""A map from the position of each faulty value to the path of the fault in the value and the reason."""


def is_nested_json(type_: pa.DataType) -> bool:
    """Return whether values of this type are JSON arrays or objects. Maps must have text keys."""
    kinds = pa.types
    if kinds.is_map(type_):
        return bool(kinds.is_string(type_.key_type))
    return bool((kinds.is_list(type_) and not is_vector(type_)) or kinds.is_struct(type_))


def nested_column(texts: pa.ChunkedArray, field: pa.Field, target: RowFormat) -> tuple[pa.Array, list[str | None]]:
    """Return the JSON texts, converted to the field's type, and for each row a fault or null.

    A row without a value has no fault. Raises `InvalidInput` if text cannot represent a type inside of the column.
    """
    nulls = ("", *target.null_values)
    written = texts.to_pylist()
    values = [None if text is None or text in nulls else _decoded(text) for text in written]
    inner = replace(target, time_column=None, time_format=None, times=LandedTimes(truncates=target.times.truncates))
    column, faults = _build(values, field.type, inner)
    reasons: list[str | None] = [None] * len(values)
    for row, (path, why) in faults.items():
        is_unread = values[row] is _WRONG and written[row].startswith(("[", "{"))
        reasons[row] = f"column {field.name}{path}: {_UNREAD if is_unread else why}"
    return column, reasons


def _decoded(text: str) -> Any:
    try:
        return _DECODE(text)
    except (ValueError, RecursionError):
        return _WRONG


def _as_tuple(pairs: list[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
    return tuple(pairs)  # a tuple, because a JSON array becomes a list


_DECODE = json.JSONDecoder(object_pairs_hook=_as_tuple, parse_float=str, parse_int=str, parse_constant=str).decode


def _build(values: Sequence[Any], type_: pa.DataType, target: RowFormat) -> tuple[pa.Array, Faults]:
    if is_nested_json(type_):
        build = _struct if pa.types.is_struct(type_) else _map if pa.types.is_map(type_) else _list
        return build(values, type_, target)
    return _leaves(values, type_, target)


def _leaves(values: Sequence[Any], type_: pa.DataType, target: RowFormat) -> tuple[pa.Array, Faults]:
    faults: Faults = {}
    texts: list[str | None] = []
    for index, each in enumerate(values):
        if isinstance(each, list | tuple) or each is _WRONG:
            faults[index] = ("", f"not a valid {type_}")
            texts.append(None)
        else:
            texts.append(json.dumps(each) if isinstance(each, bool) else each)
    column = pa.chunked_array([pa.array(texts, pa.string())])
    column = without_exponent(column) if pa.types.is_decimal(type_) else column
    schema = pa.schema([pa.field(_LEAF, type_)])
    found = convert(pa.table({_LEAF: column}), replace(target, schema=schema, nonzero=frozenset()))
    for place in np.flatnonzero(np.asarray(found.reasons.is_valid())):
        faults[int(place)] = ("", found.reasons[int(place)].as_py().removeprefix(f"column {_LEAF}: "))
    return found.rows.column(0).combine_chunks().cast(type_), faults


def _list(values: Sequence[Any], type_: pa.ListType, target: RowFormat) -> tuple[pa.Array, Faults]:
    faults: Faults = {
        index: ("", "not a JSON array") for index, each in enumerate(values) if each is not None and not _is_list(each)
    }
    lists = [each if _is_list(each) else None for each in values]
    items = [item for each in lists for item in each or ()]
    column, inner = _build(items, type_.value_type, target)
    owners = [(row, position) for row, each in enumerate(lists) for position in range(len(each or ()))]
    for index, (path, why) in inner.items():
        row, position = owners[index]
        faults.setdefault(row, (f"[{position}]{path}", why))
    return pa.ListArray.from_arrays(_offsets(lists), column, type=type_), faults


def _map(values: Sequence[Any], type_: pa.MapType, target: RowFormat) -> tuple[pa.Array, Faults]:
    faults: Faults = {}
    maps: list[tuple[tuple[str, Any], ...] | None] = []
    for index, each in enumerate(values):
        wrong = _object_fault(each)
        if wrong is not None:
            faults[index] = ("", wrong)
        maps.append(None if wrong is not None else each)
    entries = [(row, name, value) for row, each in enumerate(maps) for name, value in each or ()]
    items = [value for _, _, value in entries]
    column, inner = _build(items, type_.item_type, target)
    for index, (path, why) in inner.items():
        row, name, _ = entries[index]
        faults.setdefault(row, (f"[{json.dumps(fitted(name, _LONGEST_NAME), ensure_ascii=False)}]{path}", why))
    keys = pa.array([name for _, name, _ in entries], pa.string())
    return pa.MapArray.from_arrays(_offsets(maps), keys, column).cast(type_), faults


def _struct(values: Sequence[Any], type_: pa.StructType, target: RowFormat) -> tuple[pa.Array, Faults]:
    faults: Faults = {}
    objects: list[Mapping[str, Any] | None] = []
    names = {each.name for each in type_.fields}
    for index, each in enumerate(values):
        wrong = _object_fault(each)
        unknown = next((name for name, _ in each or () if name not in names), None) if wrong is None else None
        if unknown is not None:
            wrong = f"the field {fitted(unknown, _LONGEST_NAME)} is not a field of the struct"
        if wrong is not None:
            faults[index] = ("", wrong)
        objects.append(None if wrong is not None or each is None else dict(each))
    columns = []
    for field in type_.fields:
        inside = [None if each is None else each.get(field.name) for each in objects]
        column, inner = _build(inside, field.type, target)
        for index, (path, why) in inner.items():
            faults.setdefault(index, (f".{field.name}{path}", why))
        columns.append(column)
    mask = pa.array([each is None for each in objects], pa.bool_())
    return pa.StructArray.from_arrays(columns, fields=type_.fields, mask=mask), faults


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _object_fault(value: Any) -> str | None:
    """Return the reason why a value is not an object with unique names. Return None for a valid object or null."""
    if value is None:
        return None
    if not isinstance(value, tuple):
        return "not a JSON object"
    return "a name is given twice" if len({name for name, _ in value}) < len(value) else None


def _offsets(values: Sequence[Sequence[Any] | None]) -> pa.Array:
    ends = np.cumsum([0, *(len(each or ()) for each in values)])
    starts = [None if each is None else int(end) for each, end in zip(values, ends, strict=False)]
    return pa.array([*starts, int(ends[-1])], pa.int32())


# Numbers with an exponent.


def without_exponent(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the texts. In numbers with an exponent, all digits are written out."""
    found = pc.match_substring_regex(texts, _EXPONENT)
    if not pc.any(found).as_py():
        return texts
    return pa.chunked_array([pa.array([_without_exponent(each) for each in texts.to_pylist()], pa.string())])


def _without_exponent(text: str | None) -> str | None:
    if text is None or "e" not in text.lower():
        return text
    try:
        number = Decimal(text)
    except InvalidOperation:
        return text
    # No decimal column has more digits than `_MOST_ZEROS` allows. Written out, a short text with a large exponent would
    # become very long.
    return f"{number:f}" if number.is_finite() and abs(number.adjusted()) <= _MOST_ZEROS else text
