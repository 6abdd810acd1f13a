"""JSON objects as maps with text for keys: each value is exactly one of the map's type, or its row is named."""

from __future__ import annotations

import json
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from storage_core.ingest.convert import RowFormat, convert

Entries = tuple[tuple[str, str | None], ...]


def is_json_map(type_: pa.DataType) -> bool:
    """Return whether a JSON object can be a value of this type."""
    return bool(pa.types.is_map(type_) and pa.types.is_string(type_.key_type))


def map_column(texts: pa.ChunkedArray, field: pa.Field, target: RowFormat) -> tuple[pa.MapArray, list[str | None]]:
    """Return the texts of JSON objects as maps, and why one is none, null where it is one or there is no value.

    Values convert as those of a column of their type do (`convert`). Raises `InvalidInput` when text cannot hold them.
    """
    nulls = ("", *target.null_values)
    found = [None if text is None or text in nulls else _entries(text) for text in texts.to_pylist()]
    maps: list[Entries | None] = [None if isinstance(each, str) else each for each in found]
    entries = [*chain.from_iterable(each or () for each in maps)]
    item = pa.field(field.name, field.type.item_type)
    values = pa.table({field.name: pa.array([value for _, value in entries], pa.string())})
    items = convert(values, RowFormat(pa.schema([item]), null_values=target.null_values))
    reasons = [f"column {field.name}: {each}" if isinstance(each, str) else None for each in found]
    ends = np.cumsum([0, *(len(each or ()) for each in maps)])
    for index in np.flatnonzero(np.asarray(items.reasons.is_valid())):
        reasons[int(np.searchsorted(ends, index, side="right")) - 1] = items.reasons[int(index)].as_py()
    offsets = pa.array([*(None if each is None else end for each, end in zip(maps, ends, strict=False)), ends[-1]])
    keys = pa.array([key for key, _ in entries], pa.string())
    column = items.rows.column(0).combine_chunks().cast(item.type)
    return pa.MapArray.from_arrays(offsets.cast(pa.int32()), keys, column), reasons


def _entries(text: str) -> Entries | str:
    """Return the names and the values' texts, or what is wrong with them."""
    try:
        found = _DECODE(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, tuple) or any(isinstance(value, tuple | list) for _, value in found):
        return "not a JSON object of names and values"
    if len(dict(found)) < len(found):
        return "a name is given twice"
    return tuple((name, json.dumps(value) if isinstance(value, bool) else value) for name, value in found)


def _as_tuple(pairs: list[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
    return tuple(pairs)  # which no JSON array becomes


_DECODE = json.JSONDecoder(object_pairs_hook=_as_tuple, parse_float=str, parse_int=str, parse_constant=str).decode
