"""Arrow data whose values are valid for their types: what a reader of the stored rows can read.

Arrow checks nothing when somebody wraps buffers in an array. Text that is not UTF-8, a decimal beyond its precision or
an offset outside of its buffer is found only by whoever reads the value, and then no row of the column can be read.
The check is one pass of Arrow's kernels over the buffers. Only a column that fails it is looked at value by value
(decision 0175).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.errors import InvalidInput
from storage_core.rows.vectors import Mask

TYPED_KEYS = "Cast the map, for example to MAP(VARCHAR, VARCHAR)."
Verdict = dict[tuple[str, str], Mask]
"""Which values are at fault, by reason and advice."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why values of a column are not valid, in which rows, and what to do about them."""

    column: str
    reason: str
    advice: str
    rows: Mask


def validated(rows: pa.Table, first: int = 0) -> pa.Table:
    """Return the rows, all of whose values are valid for their types.

    Values that no row has, such as those below a null struct, are left out where one of them is not valid. Raises
    `InvalidInput` that names the column and the first row, counted from `first`.
    """
    rows, faults = examined(rows)
    for each in faults:
        row = first + int(each.rows.argmax())
        raise InvalidInput(
            f"column {each.column!r}, row {row}: {each.reason}. {each.advice}", column=each.column, row=row
        )
    return rows


def examined(rows: pa.Table) -> tuple[pa.Table, list[Fault]]:
    """Return the rows, and the faults of their values: none means that every value can be read.

    Raises `InvalidInput` for a column whose buffers do not fit together, of which no value can be told.
    """
    _require_names(list(rows.schema))
    _require_typed_keys(rows.schema)
    faults: list[Fault] = []
    all_valid = is_valid(rows)
    for index, name in enumerate(rows.column_names):
        column = rows.column(index)
        has_maps = _has_maps(column.type)
        if (all_valid or is_valid(column)) and not has_maps:
            continue
        chunks = column.chunks
        if not all_valid and not is_valid(column):
            chunks = [_reachable(_sound(chunk, name)) for chunk in chunks]
            rows = rows.set_column(index, rows.schema.field(index), _of_type(chunks, column.type, name))
        found = [_judged(chunk, _wrong) or (_judged(chunk, _doubled) if has_maps else {}) for chunk in chunks]
        for reason, advice in {key: None for each in found for key in each}:
            masks = [
                each.get((reason, advice), np.zeros(len(chunk), np.bool_))
                for each, chunk in zip(found, chunks, strict=True)
            ]
            faults.append(Fault(name, reason, advice, np.concatenate(masks)))
    return rows, faults


def _require_names(fields: Sequence[pa.Field]) -> None:
    try:
        for field in fields:
            _, type_ = field.name, field.type  # Arrow decodes a name when it is asked for
            if pa.types.is_nested(type_):
                _require_names([type_.field(number) for number in range(type_.num_fields)])
    except UnicodeDecodeError as error:
        raise InvalidInput("the name of a column or field is not valid UTF-8. Rename it") from error
    except RecursionError as error:
        raise InvalidInput("a column nests more types than a table can hold. Use fewer levels") from error


def has_untyped_keys(type_: pa.DataType) -> bool:
    """Return whether the type is or contains a map whose keys have no type, such as DuckDB's `map{}`."""
    if pa.types.is_map(type_) and pa.types.is_null(type_.key_type):
        return True
    return pa.types.is_nested(type_) and any(
        has_untyped_keys(type_.field(number).type) for number in range(type_.num_fields)
    )


def _require_typed_keys(schema: pa.Schema) -> None:
    """Raise `InvalidInput` for a map of maps whose keys have no type: Arrow ends the process that reads its entries."""
    for field in schema:
        if any(has_untyped_keys(entries) for entries in _entries(field.type)):
            raise InvalidInput(
                f"column {field.name!r} contains a map of maps whose keys have no type. {TYPED_KEYS}", column=field.name
            )


def _entries(type_: pa.DataType) -> Iterable[pa.DataType]:
    """Yield the types of the keys and values of all maps in the type."""
    if pa.types.is_map(type_):
        yield from (type_.key_type, type_.item_type)
    if pa.types.is_nested(type_):
        for number in range(type_.num_fields):
            yield from _entries(type_.field(number).type)


def is_valid(data: pa.Table | pa.RecordBatch | pa.Array | pa.ChunkedArray) -> bool:
    """Return whether every value can be read: one pass over the buffers, also over values that no row has."""
    try:
        data.validate(full=True)
    except pa.ArrowException:
        return False
    return True


def with_bytes(rows: pa.Table, faults: Iterable[Fault]) -> pa.Table:
    """Return the rows with the bytes of the columns that have faults, which Python can hold."""
    for name in {each.column for each in faults}:
        index = rows.schema.get_field_index(name)
        if is_valid(rows.column(index)):
            continue
        plain = _physical(rows.schema.field(index).type)
        rows = rows.set_column(index, name, pa.chunked_array([each.view(plain) for each in rows.column(index).chunks]))
    return rows


def row_text(rows: pa.Table, index: int) -> str:
    """Return a row as JSON for a person, also with a time that Python cannot hold."""
    from storage_core.rows.calendar import as_text  # whose kernels opening a table does not need

    return json.dumps(as_text(rows.slice(index, 1)).to_pylist()[0], default=str, ensure_ascii=False)


def _sound(chunk: pa.Array, name: str) -> pa.Array:
    """The array, whose offsets, indices and lengths lie within its values, so that kernels may run over them."""
    try:
        is_sound = is_valid(chunk.view(_physical(chunk.type)))
    except pa.ArrowException:
        is_sound = False
    if is_sound:
        return chunk
    raise InvalidInput(
        f"column {name!r} is not valid Arrow data: its offsets, indices, lengths or values do not fit its type "
        f"{chunk.type}. Build the array again",
        column=name,
    )


def _of_type(chunks: list[pa.Array], type_: pa.DataType, name: str) -> pa.ChunkedArray:
    """The column, of its own type again."""
    column = pa.chunked_array(chunks)
    try:
        return column if column.type.equals(type_) else column.cast(type_)
    except pa.ArrowException as error:
        raise InvalidInput(
            f"column {name!r} holds values outside of its rows that are not valid for {type_}. Copy the rows that you "
            "write into arrays of their own",
            column=name,
        ) from error


def _physical(type_: pa.DataType) -> pa.DataType:
    """The type of the same layout that takes any value."""
    kinds, inner = pa.types, _physical
    for is_kind, plain in _PLAIN.items():
        if is_kind(type_):
            return plain
    if kinds.is_decimal(type_):
        return pa.binary(type_.bit_width // 8)
    if kinds.is_dictionary(type_):
        return pa.dictionary(type_.index_type, inner(type_.value_type), type_.ordered)
    if kinds.is_struct(type_):
        return pa.struct([field.with_type(inner(field.type)) for field in type_.fields])
    if kinds.is_map(type_):
        return pa.map_(inner(type_.key_type), inner(type_.item_type))
    if kinds.is_list(type_):
        return pa.list_(inner(type_.value_type))
    if kinds.is_large_list(type_):
        return pa.large_list(inner(type_.value_type))
    if kinds.is_fixed_size_list(type_):
        return pa.list_(inner(type_.value_type), type_.list_size)
    return type_


def _reachable(array: pa.Array) -> pa.Array:
    """The same values, of a dictionary decoded, without what no row has: below nulls, and outside of a slice."""
    kinds, type_, missing = pa.types, array.type, array.is_null()
    if kinds.is_dictionary(type_):
        return _reachable(_decoded(array))
    if kinds.is_struct(type_) and type_.num_fields:
        children = [_reachable(each) for each in array.flatten()]
        fields = [pa.field(field.name, each.type) for field, each in zip(type_.fields, children, strict=True)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=missing)
    if not _is_list(type_):
        return array
    lists, lengths = _flat(array)
    inner = _reachable(lists)
    offsets = pa.array(np.append(0, np.cumsum(lengths)), pa.int32())
    if kinds.is_map(type_):
        return pa.MapArray.from_arrays(offsets, inner.field(0), inner.field(1), mask=missing)
    return pa.ListArray.from_arrays(offsets, inner, mask=missing)


def _decoded(array: pa.DictionaryArray) -> pa.Array:
    """The values of the rows. Arrow decodes no views, which are binary or text here as well."""
    held = array.dictionary
    for is_kind, plain in ((pa.types.is_string_view, pa.string()), (pa.types.is_binary_view, pa.binary())):
        if is_kind(held.type):
            held = held.view(pa.binary_view()).cast(pa.binary()).view(plain)
    return held.take(array.indices)


def _judged(array: pa.Array, judge: Callable[[pa.Array], Verdict]) -> Verdict:
    """Which rows have a value, however far inside, that `judge` finds at fault."""
    below = [*judge(array).items()]
    if pa.types.is_struct(array.type):
        below += [item for child in array.flatten() for item in _judged(child, judge).items()]
    elif _is_list(array.type):
        values, lengths = _flat(array)
        parents = np.repeat(np.arange(len(array)), lengths)
        for key, inner in _judged(values, judge).items():
            mask = np.zeros(len(array), np.bool_)
            mask[parents[inner]] = True
            below.append((key, mask))
    found: Verdict = {}
    for key, mask in below:
        found[key] = found[key] | mask if key in found else mask
    return found


def _wrong(array: pa.Array) -> Verdict:
    """Which values are not valid for the type, of one without types inside."""
    if pa.types.is_nested(array.type) or is_valid(array):
        return {}
    return {_reason(array.type): _wrong_values(array)}


def _doubled(array: pa.Array) -> Verdict:
    """Which maps have a key twice: Arrow allows it, and a reader that makes a map of them does not."""
    if not pa.types.is_map(array.type):
        return {}
    entries, lengths = _flat(array)
    parents, codes = np.repeat(np.arange(len(array)), lengths), _codes(entries.flatten()[0])
    pairs = parents * (codes.max(initial=0) + 1) + codes
    order = np.argsort(pairs, kind="stable")
    again = order[1:][pairs[order[1:]] == pairs[order[:-1]]]
    if not len(again):
        return {}
    mask = np.zeros(len(array), np.bool_)
    mask[parents[again]] = True
    return {("the map has a key twice", "Write each key once"): mask}


def _codes(keys: pa.Array) -> npt.NDArray[np.int64]:
    """A number for each key, the same for equal ones."""
    if pa.types.is_dictionary(keys.type):
        keys = _decoded(keys)
    if pa.types.is_nested(keys.type):  # which Arrow does not encode
        keys = pa.array([repr(each) for each in keys.to_pylist()], pa.string())
    codes: npt.NDArray[np.int32] = keys.dictionary_encode().indices.fill_null(-1).to_numpy()
    return codes.astype(np.int64)


def _wrong_values(array: pa.Array) -> Mask:
    """Which values are not valid, by halves: most of an array are."""
    wrong = np.zeros(len(array), np.bool_)
    waiting = [(0, len(array))]
    while waiting:
        start, end = waiting.pop()
        if is_valid(array.slice(start, end - start)):
            continue
        if end - start == 1:
            wrong[start] = True
        else:
            middle = (start + end) // 2
            waiting += [(start, middle), (middle, end)]
    return wrong


def _has_maps(type_: pa.DataType) -> bool:
    kinds = pa.types
    if kinds.is_map(type_):
        return True
    return kinds.is_nested(type_) and any(_has_maps(type_.field(number).type) for number in range(type_.num_fields))


def _is_list(type_: pa.DataType) -> bool:
    kinds = pa.types
    return bool(
        kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_) or kinds.is_map(type_)
    )


def _flat(array: pa.Array) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """The values of lists, or the entries of maps, that rows have, and how many are of each row."""
    import pyarrow.compute as pc

    if pa.types.is_map(array.type):
        entry = [pa.field("key", array.type.key_type), pa.field("value", array.type.item_type)]
        array = array.view(pa.list_(pa.struct(entry)))
    lengths = pc.list_value_length(array).fill_null(0).to_numpy()
    return array.flatten(), lengths.astype(np.int64)


def _reason(type_: pa.DataType) -> tuple[str, str]:
    kinds = pa.types
    if kinds.is_decimal(type_):
        return f"the number has more digits than {type_}", "Use a type that holds the number"
    if kinds.is_time(type_):
        return "the time is not within a day", "Write a time from 00:00 to 23:59:59.999999999"
    if kinds.is_date64(type_):
        return "the date is not a whole day", "Write a number of milliseconds that is a multiple of a day"
    return "the text is not valid UTF-8", "Encode the text as UTF-8, or store it in a binary column"


_PLAIN: Mapping[Callable[[pa.DataType], bool], pa.DataType] = {
    pa.types.is_string: pa.binary(),
    pa.types.is_large_string: pa.large_binary(),
    pa.types.is_string_view: pa.binary_view(),
    pa.types.is_time32: pa.int32(),
    pa.types.is_time64: pa.int64(),
    pa.types.is_date64: pa.int64(),
}
