"""Vector columns: every value is `d` finite numbers of 32 bits, or null.

In Arrow `pa.list_(pa.float32(), d)`, in a declaration `vector(d)`, in DuckDB `FLOAT[d]`, in Parquet a list of floats,
which Spark reads as `array<float>`. What the types let through and no vector is (a null inside, NaN, infinity, and
zero where an index of the column compares angles) is refused at the door, and may be in rows of other writers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted

MOST_DIMENSIONS = 16_384

VECTOR = "tidemark.vector"
"""The entry in the metadata of a field of Spark's schema that has the dimensions of its vectors."""

NULL_INSIDE = "a number of the vector is null"
NOT_FINITE = "a number of the vector is NaN or infinite"
ZERO = "the vector is zero, which has no direction, and an index of the column compares by cosine"

Floats = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]

_TEXT = re.compile(r"vector\(\s*(\d{1,5})\s*\)", re.ASCII)
_VALUES_AT_ONCE = 2**24


def vector_type(dimensions: int) -> pa.DataType:
    """Return the type of vectors of so many numbers."""
    return pa.list_(pa.float32(), dimensions)


def is_vector(type_: pa.DataType) -> bool:
    """Return whether values of the type are vectors."""
    return pa.types.is_fixed_size_list(type_) and type_.value_type == pa.float32() and _is_size(type_.list_size)


def listed(type_: pa.DataType) -> pa.DataType:
    """Return the type as Parquet has it: a vector as a list of floats, any other as it is."""
    return pa.list_(pa.field("element", pa.float32())) if is_vector(type_) else type_


def dimensions_of(text: str) -> int | None:
    """Return the `d` of `vector(d)`; None for other text, also for a `d` that no vector has."""
    found = _TEXT.fullmatch(text)
    return int(found[1]) if found and _is_size(int(found[1])) else None


def type_text(type_: pa.DataType) -> str:
    """Return how a type is named to a person: `vector(3)`, and Arrow's own name for any other."""
    return f"vector({type_.list_size})" if is_vector(type_) else str(type_)


def matrix(column: pa.Array | pa.ChunkedArray) -> Floats:
    """Return the numbers as rows by dimensions; those of a null are any. No copy of one array without inner nulls."""
    if isinstance(column, pa.ChunkedArray):
        parts = [matrix(chunk) for chunk in column.chunks if len(chunk)]
        return (
            parts[0] if len(parts) == 1 else np.concatenate([*parts, np.zeros((0, column.type.list_size), np.float32)])
        )
    size = column.type.list_size
    inner = column.values.slice(column.offset * size, len(column) * size)
    numbers: Floats = inner.to_numpy(zero_copy_only=False)  # NaN for a null inside
    return numbers.reshape(-1, size)


def column_of(numbers: Floats) -> pa.FixedSizeListArray:
    """Return the column of which `matrix` gives these numbers, rows by dimensions."""
    return pa.FixedSizeListArray.from_arrays(pa.array(numbers.ravel()), type=vector_type(numbers.shape[1]))


def fitting(column: pa.ChunkedArray, dimensions: int) -> Mask:
    """Return which lists have so many values, or are null."""
    import pyarrow.compute as pc  # which tables without vectors do not need

    lengths = pc.list_value_length(column)
    return np.asarray(pc.fill_null(pc.equal(lengths, dimensions), fill_value=True), np.bool_)


def faults(column: pa.ChunkedArray | pa.Array, *, nonzero: bool) -> Iterator[tuple[str, Mask]]:
    """Yield why values of a vector column are no vectors, and which; nothing where all are. Null is one.

    `nonzero`: a vector of zeros has no direction, so an index by cosine cannot hold it.
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
    """Return the type of the vectors that a list is by the metadata of its field. Raises `InvalidInput`."""
    if not pa.types.is_list(kind) or kind.value_type != pa.float32():
        raise InvalidInput(f"column {name!r} is a vector and has the type {kind}, expected array<float>", column=name)
    if type(dimensions) is not int or not _is_size(dimensions):
        raise InvalidInput(
            f"column {name!r} is a vector of {quoted(dimensions)} numbers, expected 1 to {MOST_DIMENSIONS}", column=name
        )
    return vector_type(dimensions)


def require_sound(table: pa.Table, nonzero: Collection[str] = ()) -> pa.Table:
    """Return the table, whose types are a table's, if all its vectors are some; those of the columns `nonzero` not 0.

    Raises `InvalidInput` naming the column and the first row, counted from 0.
    """
    for name, column in zip(table.column_names, table.columns, strict=True):
        if not is_vector(column.type):
            continue
        for reason, wrong in faults(column, nonzero=name in nonzero):
            row = int(wrong.argmax())
            raise InvalidInput(f"column {name!r}, row {row}: {reason}; write null for no vector", column=name, row=row)
    return table


def without_misfits(rows: pa.Table, schema: pa.Schema) -> tuple[pa.Table, list[tuple[str, Mask]]]:
    """Return the rows with null for each list of another size than its column has, and why these are no vectors."""
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
    """Return the rows with the lists that were given for their vectors."""
    for index, field in enumerate(rows.schema):
        if is_vector(field.type) and field.name in given.column_names:
            rows = rows.set_column(index, field.name, given.column(field.name))
    return rows


def require_dimensions(column: pa.ChunkedArray, field: pa.Field) -> None:
    """Raise `InvalidInput` naming the column and the first row whose list is not of the dimensions of the field."""
    if pa.types.is_null(column.type):
        return
    wrong = ~fitting(column, field.type.list_size)
    if wrong.any():
        row = int(wrong.argmax())
        found = len(column[row])
        raise InvalidInput(
            f"column {field.name!r}, row {row}: a vector of {found} numbers, the table has {type_text(field.type)}; "
            "write vectors of that size",
            column=field.name,
            row=row,
        )


def typed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows as Parquet gives them, lists where `schema` has vectors, with these as vectors.

    Raises what Arrow raises for a list of another size.
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
    """Which rows have no NaN and no infinity, looking at a bounded number of values at a time."""
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
