"""Checks of the values inside of columns, at any depth: leaves, decimals and validity.

**Leaves.** A leaf of a nested Arrow type is a type inside its lists, structs and maps that is not itself nested. The
leaves have a fixed order. The physical columns of a Parquet file are the leaves of its columns, in the same order.
`wrong_values` applies a check to the values of a column at any depth.

**Decimals.** A decimal can have more digits than its type allows. Arrow can hold a decimal with too many digits, but
Parquet returns another number for this decimal. `find_long_decimals` finds decimals with too many digits.

**Validity.** Arrow does not check the values when a caller builds an array from buffers. Text that is not UTF-8, a
decimal beyond its precision, or an offset outside its buffer causes an error only when the value is read. Then no row
of the column can be read. `validated` checks the data with one pass of Arrow's kernels over the buffers. Only a column
that fails this check is examined value by value (decision 0009).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.base.errors import InvalidInput
from storage_core.data.rows.codes import Mask

# Leaves.

Change: TypeAlias = Callable[[pa.Array], pa.Array]
"""A function that returns an array of the same length with nulls at the same positions."""


def leaf_types(type_: pa.DataType) -> list[pa.DataType]:
    """Return the types of the leaves of a type. A type that is not nested is its own leaf."""
    kinds = pa.types
    if kinds.is_map(type_):
        return [*leaf_types(type_.key_type), *leaf_types(type_.item_type)]
    if kinds.is_struct(type_):
        return [leaf for each in type_.fields for leaf in leaf_types(each.type)]
    if _is_listed(type_):
        return leaf_types(type_.value_type)
    return [type_]


def with_changed_leaves(values: pa.Array, changes: Iterator[Change | None]) -> pa.Array:
    """Apply the functions in `changes` to the leaves, one function per leaf, and return the changed values.

    If the function of a leaf is None, the leaf does not change.

    Cost: the function copies only changed leaves.
    """
    kinds, type_ = pa.types, values.type
    if kinds.is_map(type_):
        keys, items = (with_changed_leaves(each, changes) for each in (values.keys, values.items))
        kind = pa.map_(type_.key_field.with_type(keys.type), type_.item_field.with_type(items.type))
        entries = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
        return _nested(kind, values, entries)
    if kinds.is_struct(type_):
        children = [with_changed_leaves(values.field(index), changes) for index in range(type_.num_fields)]
        fields = [
            old if old.type == new.type else old.with_type(new.type)
            for old, new in zip(type_.fields, children, strict=True)
        ]
        mask = values.is_null() if values.null_count else None
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask) if children else values
    if _is_listed(type_):
        inner = with_changed_leaves(values.values, changes)
        return _nested(_listed_of(type_, type_.value_field.with_type(inner.type)), values, inner)
    change = next(changes)
    return values if change is None else change(values)


def _nested(kind: pa.DataType, values: pa.Array, child: pa.Array) -> pa.Array:
    """Return an array like `values` with another child."""
    own = 1 if pa.types.is_fixed_size_list(kind) else 2
    return pa.Array.from_buffers(
        kind, len(values), values.buffers()[:own], values.null_count, values.offset, children=[child]
    )


def _listed_of(type_: pa.DataType, field: pa.Field) -> pa.DataType:
    if pa.types.is_large_list(type_):
        return pa.large_list(field)
    return pa.list_(field, type_.list_size if pa.types.is_fixed_size_list(type_) else -1)


def _is_listed(type_: pa.DataType) -> bool:
    kinds = pa.types
    return bool(kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_))


# Checks of values at any depth of a nested type.

Offsets = npt.NDArray[np.int64]
Check = Callable[[pa.Array], Mask | None]
"""A function that returns a mask of the wrong values, or None if no value is wrong. The argument is not nested."""


def wrong_values(column: pa.ChunkedArray | pa.Array, check: Check) -> Mask | None:
    """Return a mask of the values that are wrong or contain a wrong value.

    Return None if the column contains no wrong value.
    """
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    found = [_wrong(each, check) for each in chunks]
    if all(each is None for each in found):
        return None
    pairs = zip(chunks, found, strict=True)
    return np.concatenate([np.zeros(len(chunk), np.bool_) if each is None else each for chunk, each in pairs])


def _wrong(values: pa.Array, check: Check) -> Mask | None:
    kinds, type_ = pa.types, values.type
    if kinds.is_dictionary(type_):
        inside = _wrong(values.dictionary, check)
        return None if inside is None else _some(inside[np.asarray(values.indices.fill_null(0))], values)
    if not kinds.is_nested(type_):
        return check(values)
    children = list(_children(values))
    found = [each for each in (_of_child(values, *child, check) for child in children) if each is not None]
    return _some(np.logical_or.reduce(found), values) if found else None


def _children(values: pa.Array) -> Iterator[tuple[pa.Array, Offsets | None]]:
    """Yield the arrays inside the array, each with the offsets of the values in it.

    If an inner array has no offsets, each value of the outer array has exactly one value in the inner array.
    """
    kinds, type_ = pa.types, values.type
    if kinds.is_struct(type_):
        for index in range(type_.num_fields):
            yield values.field(index), None
    elif kinds.is_map(type_):
        yield values.keys, np.asarray(values.offsets)
        yield values.items, np.asarray(values.offsets)
    elif kinds.is_list(type_) or kinds.is_large_list(type_):
        yield values.values, np.asarray(values.offsets)
    elif kinds.is_fixed_size_list(type_):
        first = values.offset * type_.list_size
        yield values.values, first + type_.list_size * np.arange(len(values) + 1)


def _of_child(values: pa.Array, child: pa.Array, offsets: Offsets | None, check: Check) -> Mask | None:
    if offsets is None:
        return _wrong(child, check)
    if not len(values):
        return None
    inside = _wrong(child.slice(offsets[0], offsets[-1] - offsets[0]), check)
    if inside is None:
        return None
    parents = np.repeat(np.arange(len(values)), np.diff(offsets))
    found = np.zeros(len(values), np.bool_)
    found[parents[inside]] = True
    return found


def _some(found: Mask, values: pa.Array) -> Mask | None:
    """Return a mask of the wrong values that are not null, or None if every wrong value is null."""
    found = found & np.asarray(values.is_valid())
    return found if found.any() else None


# Decimals.

_WIDEST = 76  # the digits of a decimal of 256 bits. Every decimal of 128 bits fits into 256 bits.


TOO_LONG = "a decimal has more digits than its type"


def find_long_decimals(column: pa.ChunkedArray | pa.Array) -> Mask | None:
    """Return a mask of the values that contain a decimal with more digits than its type allows.

    Return None if no value contains a decimal with too many digits.
    """
    return wrong_values(column, _too_long)


def _too_long(values: pa.Array) -> Mask | None:
    type_ = values.type
    if not pa.types.is_decimal128(type_):
        return None
    most = Decimal(f"{10**type_.precision - 1}E{-type_.scale}")  # a decimal from text is exact in any context
    least, greatest = pc.min_max(values).values()
    if not least.is_valid or (least.as_py() >= -most and greatest.as_py() <= most):
        return None
    wide = values.cast(pa.decimal256(_WIDEST, type_.scale))
    return np.asarray(pc.greater(pc.abs(wide), pa.scalar(most, wide.type)).fill_null(False))  # noqa: FBT003  # which has no other name


# Validity.

TYPED_KEYS = "Cast the map, for example to MAP(VARCHAR, VARCHAR)."
Verdict = dict[tuple[str, str], Mask]
"""A mapping from each pair of reason and advice to a mask of the invalid values."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The reason why values of a column are invalid, their rows, and the advice."""

    column: str
    reason: str
    advice: str
    rows: Mask


def validated(rows: pa.Table, first: int = 0) -> pa.Table:
    """Return the rows if all their values are valid for their types.

    Some values belong to no row, for example values inside a null struct. If one of these values is invalid, all of
    them are removed.

    Args:
        rows: The rows.
        first: The number of the first row, for the error.

    Raises:
        InvalidInput: A value is invalid. The error names the column and the first such row.
    """
    rows, faults = examined(rows)
    for each in faults:
        row = first + int(each.rows.argmax())
        raise InvalidInput(
            f"column {each.column!r}, row {row}: {each.reason}. {each.advice}", column=each.column, row=row
        )
    return rows


def examined(rows: pa.Table) -> tuple[pa.Table, list[Fault]]:
    """Return the rows and the faults of their values. If there are no faults, every value can be read.

    Raises `InvalidInput` for a column with contradictory buffers, because then no value can be read.
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
        found = [_judged(chunk, _invalid) or (_judged(chunk, _doubled) if has_maps else {}) for chunk in chunks]
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
            _, type_ = field.name, field.type  # Arrow decodes the name on access
            if pa.types.is_nested(type_):
                _require_names([type_.field(number) for number in range(type_.num_fields)])
    except UnicodeDecodeError as error:
        raise InvalidInput("the name of a column or field is not valid UTF-8. Rename it") from error
    except RecursionError as error:
        raise InvalidInput("a column nests more types than a table can hold. Use fewer levels") from error


def has_untyped_keys(type_: pa.DataType) -> bool:
    """Return whether the type is or contains a map with untyped keys, such as DuckDB's `map{}`."""
    if pa.types.is_map(type_) and pa.types.is_null(type_.key_type):
        return True
    return pa.types.is_nested(type_) and any(
        has_untyped_keys(type_.field(number).type) for number in range(type_.num_fields)
    )


def _require_typed_keys(schema: pa.Schema) -> None:
    """Raise `InvalidInput` for a map of maps with untyped keys.

    Arrow ends the process when it reads the entries of a map of maps with untyped keys.
    """
    for field in schema:
        if any(has_untyped_keys(entries) for entries in _entries(field.type)):
            raise InvalidInput(
                f"column {field.name!r} contains a map of maps with untyped keys. {TYPED_KEYS}", column=field.name
            )


def _entries(type_: pa.DataType) -> Iterable[pa.DataType]:
    """Yield the types of the keys and values of all maps in the type."""
    if pa.types.is_map(type_):
        yield from (type_.key_type, type_.item_type)
    if pa.types.is_nested(type_):
        for number in range(type_.num_fields):
            yield from _entries(type_.field(number).type)


def is_valid(data: pa.Table | pa.RecordBatch | pa.Array | pa.ChunkedArray) -> bool:
    """Return whether every value can be read.

    Cost: one pass over the buffers, including values that belong to no row.
    """
    try:
        data.validate(full=True)
    except pa.ArrowException:
        return False
    return True


def with_bytes(rows: pa.Table, faults: Iterable[Fault]) -> pa.Table:
    """Return the rows, with each invalid column as plain bytes. Python can represent plain bytes."""
    for name in {each.column for each in faults}:
        index = rows.schema.get_field_index(name)
        if is_valid(rows.column(index)):
            continue
        plain = _physical(rows.schema.field(index).type)
        rows = rows.set_column(index, name, pa.chunked_array([each.view(plain) for each in rows.column(index).chunks]))
    return rows


def _sound(chunk: pa.Array, name: str) -> pa.Array:
    """Return the array if its offsets, indices and lengths match its values, so that kernels may process it.

    If the offsets, indices or lengths do not match, raise `InvalidInput`.
    """
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
    """Return the column, cast back to its own type."""
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
    """Return a type with the same layout that accepts any value."""
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
    """Return only the values that belong to a row. A value that belongs to no row is in a null or outside a slice.

    Dictionaries are decoded.
    """
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
    """Return the values of the rows. Arrow cannot decode views, so views become binary or text."""
    held = array.dictionary
    for is_kind, plain in ((pa.types.is_string_view, pa.string()), (pa.types.is_binary_view, pa.binary())):
        if is_kind(held.type):
            held = held.view(pa.binary_view()).cast(pa.binary()).view(plain)
    return held.take(array.indices)


def _judged(array: pa.Array, judge: Callable[[pa.Array], Verdict]) -> Verdict:
    """Return, for each reason, a mask of the rows with an invalid value at any depth.

    `judge` finds the invalid values.
    """
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


def _invalid(array: pa.Array) -> Verdict:
    """Return, for each reason, a mask of the values that are not valid for the type.

    For a nested type, the result is empty, because the children are checked instead.
    """
    if pa.types.is_nested(array.type) or is_valid(array):
        return {}
    return {_reason(array.type): _wrong_values(array)}


def _doubled(array: pa.Array) -> Verdict:
    """Return the reason and a mask for the maps that contain a key twice.

    Arrow allows maps with repeated keys, but readers that build a map do not.
    """
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
    """Return a number for each key. Equal keys have equal numbers."""
    if pa.types.is_dictionary(keys.type):
        keys = _decoded(keys)
    if pa.types.is_nested(keys.type):  # Arrow does not encode nested values
        keys = pa.array([repr(each) for each in keys.to_pylist()], pa.string())
    codes: npt.NDArray[np.int32] = keys.dictionary_encode().indices.fill_null(-1).to_numpy()
    return codes.astype(np.int64)


def _wrong_values(array: pa.Array) -> Mask:
    """Return a mask of the invalid values. The search halves the array repeatedly, because most values are valid."""
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
    """Return the list values or map entries of all rows, and the number of values or entries in each row."""
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
