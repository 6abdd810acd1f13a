"""Vector columns. The values of a vector column are embeddings: `d` finite numbers of 32 bits, or null.

The type of embeddings is `pa.list_(pa.float32(), d)` in Arrow, `vector(d)` in a declaration, and `FLOAT[d]` in DuckDB.
Parquet contains an embedding as a list of floats, which Spark reads as `array<float>`. These types also allow
embeddings that contain a null, NaN or infinity, and embeddings of zeros. Writers refuse a null, NaN and infinity.
Writers also refuse an embedding of zeros if an index of the column compares angles. Rows of other writers may contain
all of these values.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.base.errors import InvalidInput
from storage_core.base.text import quoted

if TYPE_CHECKING:
    from storage_core.data.rows.codes import Mask

MOST_DIMENSIONS = 16_384

VECTOR = "tidemark.vector"
"""The metadata entry of a field in Spark's schema, with the number of dimensions of the field's embeddings."""

NULL_INSIDE = "a number of the vector is null"
NOT_FINITE = "a number of the vector is NaN or infinite"
ZERO = "the vector is zero, which has no direction, and an index of the column compares by cosine"

Floats = npt.NDArray[np.float32]

_TEXT = re.compile(r"vector\(\s*(\d{1,5})\s*\)", re.ASCII)
_VALUES_AT_ONCE = 2**24


def vector_type(dimensions: int) -> pa.DataType:
    """Return the type of embeddings with this many numbers."""
    return pa.list_(pa.float32(), dimensions)


def is_vector(type_: pa.DataType) -> bool:
    """Return whether values of the type are embeddings."""
    return pa.types.is_fixed_size_list(type_) and type_.value_type == pa.float32() and _is_size(type_.list_size)


def listed(type_: pa.DataType) -> pa.DataType:
    """Return the type as Parquet stores it. Embeddings are lists of floats, and other types are unchanged."""
    return pa.list_(pa.field("element", pa.float32())) if is_vector(type_) else type_


def dimensions_of(text: str) -> int | None:
    """Return the `d` of `vector(d)`. Return None if the text is not `vector(d)`, or if `d` is invalid."""
    found = _TEXT.fullmatch(text)
    return int(found[1]) if found and _is_size(int(found[1])) else None


def type_text(type_: pa.DataType) -> str:
    """Return a readable name of a type: `vector(3)`, or Arrow's own name for any other type."""
    return f"vector({type_.list_size})" if is_vector(type_) else str(type_)


def matrix(column: pa.Array | pa.ChunkedArray) -> Floats:
    """Return the numbers as a matrix of rows and dimensions. For a null embedding, the numbers are undefined.

    Cost: a single array without nulls inside is not copied.
    """
    if isinstance(column, pa.ChunkedArray):
        parts = [matrix(chunk) for chunk in column.chunks if len(chunk)]
        return (
            parts[0] if len(parts) == 1 else np.concatenate([*parts, np.zeros((0, column.type.list_size), np.float32)])
        )
    size = column.type.list_size
    inner = column.values.slice(column.offset * size, len(column) * size)
    numbers: Floats = inner.to_numpy(zero_copy_only=False)  # a null inside an embedding becomes NaN
    return numbers.reshape(-1, size)


def column_of(numbers: Floats) -> pa.FixedSizeListArray:
    """Return a matrix of floats as a column of embeddings. This function is the inverse of `matrix`."""
    return pa.FixedSizeListArray.from_arrays(pa.array(numbers.ravel()), type=vector_type(numbers.shape[1]))


def fitting(column: pa.ChunkedArray, dimensions: int) -> Mask:
    """Return a mask of the lists that are null or have this number of values."""
    import pyarrow.compute as pc  # imported here because tables without embeddings do not need this module

    lengths = pc.list_value_length(column)
    return np.asarray(pc.fill_null(pc.equal(lengths, dimensions), fill_value=True), np.bool_)


def faults(column: pa.ChunkedArray | pa.Array, *, nonzero: bool) -> Iterator[tuple[str, Mask]]:
    """Yield each reason why values of a vector column are invalid, with a mask of these values. Null is valid.

    If `nonzero` is True, an embedding of zeros is invalid. Such an embedding has no direction, so an index by cosine
    cannot contain it.
    """
    numbers, valid = matrix(column), np.asarray(column.is_valid(), np.bool_)
    finite = _finite(numbers)
    unsound = valid & ~finite
    if unsound.any():
        holes = _with_null_inside(column) & unsound
        yield from (
            (why, wrong) for why, wrong in ((NULL_INSIDE, holes), (NOT_FINITE, unsound & ~holes)) if wrong.any()
        )
    if nonzero:
        zero: Mask = valid & ~numbers.any(axis=1)
        if zero.any():
            yield ZERO, zero


def vector_of(kind: pa.DataType, dimensions: object, name: str) -> pa.DataType:
    """Return the vector type of a list column.

    The metadata of the column's field contains `dimensions`. Raises `InvalidInput`.
    """
    if not pa.types.is_list(kind) or kind.value_type != pa.float32():
        raise InvalidInput(
            f"column {name!r} is a vector, but has the type {kind}. Declare the type array<float>", column=name
        )
    if type(dimensions) is not int or not _is_size(dimensions):
        raise InvalidInput(
            f"column {name!r} is a vector with {quoted(dimensions)} dimensions. Give a number from 1 to "
            f"{MOST_DIMENSIONS}",
            column=name,
        )
    return vector_type(dimensions)


def require_valid_embeddings(table: pa.Table, nonzero: Collection[str] = ()) -> pa.Table:
    """Return the table if all its embeddings are valid. The table must have types that tables support.

    Args:
        table: The rows.
        nonzero: The columns in which no embedding may be zero.

    Raises:
        InvalidInput: An embedding is invalid. The error names the column and the first such row, counted from 0.
    """
    for name, column in zip(table.column_names, table.columns, strict=True):
        if not is_vector(column.type):
            continue
        for reason, wrong in faults(column, nonzero=name in nonzero):
            row = int(wrong.argmax())
            raise InvalidInput(f"column {name!r}, row {row}: {reason}. Write null for no vector", column=name, row=row)
    return table


def without_misfits(rows: pa.Table, schema: pa.Schema) -> tuple[pa.Table, list[tuple[str, Mask]]]:
    """Return the rows with null in place of each list of a wrong size.

    Also return, for each column with a list of a wrong size, a reason and a mask of the rows.
    """
    import pyarrow.compute as pc

    found: list[tuple[str, Mask]] = []
    for index, name in enumerate(rows.column_names):
        place, column = schema.get_field_index(name), rows.column(index)
        if place < 0 or not is_vector(kind := schema.field(place).type) or not _is_listed(column.type):
            continue
        wrong = ~fitting(column, kind.list_size)
        if wrong.any():
            found.append((f"column {name}: not a valid {type_text(kind)}", wrong))
            rows = rows.set_column(index, name, pc.if_else(pa.array(wrong), pa.scalar(None, column.type), column))
    return rows, found


def with_lists(rows: pa.Table, given: pa.Table) -> pa.Table:
    """Return the rows with the lists of the caller in place of the embeddings."""
    for index, field in enumerate(rows.schema):
        if is_vector(field.type) and field.name in given.column_names:
            rows = rows.set_column(index, field.name, given.column(field.name))
    return rows


def require_dimensions(column: pa.ChunkedArray, field: pa.Field) -> None:
    """Raise `InvalidInput` for a list that differs in size from the field's embeddings.

    The error contains the name of the column and the first row with a list of a wrong size.
    """
    if pa.types.is_null(column.type):
        return
    wrong = ~fitting(column, field.type.list_size)
    if wrong.any():
        row = int(wrong.argmax())
        found = len(column[row])
        raise InvalidInput(
            f"column {field.name!r}, row {row}: the vector has {found} numbers, but the column has the type "
            f"{type_text(field.type)}. Write vectors of that size",
            column=field.name,
            row=row,
        )


def with_vector_types(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows that were read from Parquet. In the vector columns of `schema`, embeddings replace the lists.

    Raises Arrow's error for a list of another size.
    """
    for index, name in enumerate(rows.column_names):
        place = schema.get_field_index(name)
        if place >= 0 and is_vector(schema.field(place).type) and pa.types.is_list(rows.schema.field(index).type):
            field = schema.field(place)
            rows = rows.set_column(index, field, rows.column(index).cast(field.type))
    return rows


def _is_listed(type_: pa.DataType) -> bool:
    kinds = pa.types
    return bool(kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_))


def _is_size(dimensions: int) -> bool:
    return 1 <= dimensions <= MOST_DIMENSIONS


def _finite(numbers: Floats) -> Mask:
    """Return a mask of the rows without NaN and infinity. The function checks a limited number of values at a time."""
    step = max(1, _VALUES_AT_ONCE // numbers.shape[1])
    found = np.zeros(len(numbers), np.bool_)
    for start in range(0, len(numbers), step):
        np.isfinite(numbers[start : start + step]).all(axis=1, out=found[start : start + step])
    return found


def _with_null_inside(column: pa.ChunkedArray | pa.Array) -> Mask:
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    size = column.type.list_size
    inner = [chunk.values.slice(chunk.offset * size, len(chunk) * size).is_null() for chunk in chunks]
    if not inner:
        return np.zeros(0, np.bool_)
    holes: Mask = np.concatenate([each.to_numpy(zero_copy_only=False).reshape(-1, size).any(axis=1) for each in inner])
    return holes
