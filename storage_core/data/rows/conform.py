"""The conversion of rows to exactly the types of a table. The conversion changes no value."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.base.errors import InvalidInput
from storage_core.base.text import counted, quoted, unknown_names
from storage_core.data.rows import columns, times
from storage_core.data.rows.incoming import require_each_once
from storage_core.data.rows.values import Change, leaf_types, with_changed_leaves
from storage_core.data.rows.vectors import is_vector, require_dimensions, type_text

_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)
_HYPHENS = (8, 13, 18, 23)
_UUID_CHARACTERS = 36


def without_extension_types(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """Return the column without extension types, at any depth. UUIDs become text if the target type is text."""
    leaves = leaf_types(column.type)
    if not any(isinstance(each, pa.BaseExtensionType) for each in leaves):
        return column
    wanted = leaf_types(target)
    if len(wanted) != len(leaves):
        wanted = leaves  # a later step refuses types with a different number of leaves
    changes = [_change(leaf, to) for leaf, to in zip(leaves, wanted, strict=True)]
    kind = with_changed_leaves(pa.nulls(0, column.type), iter(changes)).type
    return pa.chunked_array([with_changed_leaves(each, iter(changes)) for each in column.chunks], kind)


def uuid_text(values: pa.Array) -> pa.Array:
    """Return UUIDs of 16 bytes as text: 8-4-4-4-12 hexadecimal digits in lower case."""
    count = len(values)
    data = np.frombuffer(values.buffers()[1] or b"", np.uint8)[values.offset * 16 : (values.offset + count) * 16]
    text = np.full((count, _UUID_CHARACTERS), ord("-"), np.uint8)
    digits = np.stack([_DIGITS[data >> 4], _DIGITS[data & 15]], axis=-1).reshape(count, 32)
    text[:, [place for place in range(_UUID_CHARACTERS) if place not in _HYPHENS]] = digits
    offsets = np.arange(count + 1, dtype=np.int32) * _UUID_CHARACTERS
    nulls = None if not values.null_count else pa.array(np.asarray(values.is_valid(), np.bool_)).buffers()[1]
    return pa.Array.from_buffers(pa.string(), count, [nulls, pa.py_buffer(offsets), pa.py_buffer(text)])


def _change(leaf: pa.DataType, wanted: pa.DataType) -> Change | None:
    if isinstance(leaf, pa.UuidType) and pa.types.is_string(wanted):
        return lambda values: uuid_text(values.storage)
    if isinstance(leaf, pa.Bool8Type) and pa.types.is_boolean(wanted):
        return lambda values: values.storage.cast(wanted)
    return (lambda values: values.storage) if isinstance(leaf, pa.BaseExtensionType) else None


def conform(table: pa.Table | pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """Return the same rows with exactly `schema`: its columns, order and types. Every value is unchanged.

    A missing nullable column becomes null. These conversions are exact, and the function refuses all other conversions:

    - text, binary values and lists with other layouts, and dictionaries
    - integers and decimals that fit into the target type
    - integers to floats that represent the integers exactly
    - timestamps of other units and zones
    - times without a zone or as text (`rows.times`)

    Raises:
        InvalidInput: A column is unknown or given twice, a type cannot be converted exactly, a value does not fit, or a
            required column has a null. The error names the column. For a null, it also names the first row, counted
            from 0.
    """
    rows = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
    _check_columns(rows.schema.names, schema)
    columns = [_conform_column(rows, field) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _check_columns(names: list[str], schema: pa.Schema) -> None:
    unknown = sorted(set(names) - set(schema.names))
    if unknown:
        raise InvalidInput(unknown_names("column", unknown, schema.names), columns=unknown)
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
            f"({counted(column.null_count, 'row')} in all). Add a value, or leave these rows out",
            column=field.name,
            row=row,
        )
    return column


def _cast(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    # Lists and maps are equal regardless of the names of their inner fields. The cast renames the fields without a
    # copy.
    if column.type.equals(field.type) and not pa.types.is_nested(field.type):
        return column
    column = times.conformed(without_extension_types(column, field.type), field)
    if not _is_exact(column.type, field.type) and not columns.is_of_earlier(column.type, field):
        hint = _hint(column.type, field.type)
        raise InvalidInput(
            f"column {field.name!r} has type {type_text(column.type)}, but the table has {type_text(field.type)}. "
            f"{hint}",
            column=field.name,
        )
    if is_vector(field.type):
        require_dimensions(column, field)
    try:
        return _decoded(column, field.type).cast(field.type, safe=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        if column.type == pa.timestamp("ns", column.type.tz if pa.types.is_timestamp(column.type) else None):
            raise InvalidInput(
                f"column {field.name!r}: a value of type {type_text(column.type)} does not fit "
                f"{type_text(field.type)} exactly, because it has digits below the microsecond. Round it. For INT96 "
                "values of a Parquet file, read the file with coerce_int96_timestamp_unit='us'",
                column=field.name,
            ) from error
        raise InvalidInput(
            f"column {field.name!r}: a value of type {type_text(column.type)} does not fit {type_text(field.type)} "
            f"exactly{_first_unfit(column, field.type)}. Convert the values before writing",
            column=field.name,
        ) from error


def _first_unfit(column: pa.ChunkedArray, type_: pa.DataType) -> str:
    """Return the first value that Arrow does not cast, as text for a message.

    The text is empty if no single value is the cause.
    """
    if pa.types.is_nested(column.type):
        return ""
    distinct = pc.unique(column)
    for place, value in enumerate(distinct):
        try:
            value.cast(type_)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            beyond = times.first_beyond(distinct.slice(place, 1))  # Python has only the years 1 to 9999
            return f": {quoted(beyond or str(value))}"
    return ""


def _decoded(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """Return the values of a dictionary if its type differs from the target.

    Arrow cannot decode a dictionary of views, so the function casts the views.
    """
    if not pa.types.is_dictionary(column.type) or column.type.value_type.equals(target):
        return column
    held = column.type.value_type
    if pa.types.is_string_view(held) or pa.types.is_binary_view(held):
        return pa.chunked_array([each.dictionary.cast(target).take(each.indices) for each in column.chunks], target)
    return column.cast(held)


def _hint(source: pa.DataType, target: pa.DataType) -> str:
    if pa.types.is_timestamp(source) and pa.types.is_timestamp(target):
        return "Only one of these types has a time zone. Convert the values to the other type before writing"
    return "Convert the values before writing"


def _is_exact(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether an Arrow cast with checks never changes a value.

    A cast with checks refuses values that do not fit the target type.
    """
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
