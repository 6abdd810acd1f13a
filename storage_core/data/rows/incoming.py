"""The conversion of rows of callers to exact Arrow columns. The rows may have the form of any library.

Callers give Python objects, Arrow data, data frames of pandas or Polars, or any object with a stream of Arrow data.
`table_of` and `pieces_of` are the entry points. A value is either stored exactly or refused. The parts of the module:

- **NumPy**: `python_value` converts NumPy values to equal Python values. Without this conversion, Arrow reads NumPy's
  2**64 - 1 as -1.0 in a float column, and reads NumPy's booleans and durations as whole numbers.
- **DuckDB and Polars**: `reject_lossy_columns` refuses columns if these libraries change the values in their Arrow
  data.
- **Python values**: `exact_array` converts them. Arrow itself accepts values that it then changes. Arrow stores 1.9 as
  the integer 1, a timestamp as a date, 1e300 as the single float inf, and 1e-77 as the decimal 0. A decimal with an
  exponent like -999999999 even makes Arrow end the process. Therefore decimals get their scale before the conversion.
  One pass over the types of the values determines whether any of these changes is possible. The values are compared one
  by one only if a change is possible.
- **Data frames**: `collected` converts data frames of pandas and lazy frames of Polars. The module imports neither
  pandas nor Polars, because a data frame exists only if the caller has imported its library.
"""

from __future__ import annotations

import datetime as dt
import math
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Context, Decimal, Inexact, InvalidOperation
from itertools import chain
from typing import Any, Final, Protocol, TypeAlias, TypeGuard, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.base.errors import InvalidInput, TidemarkError, of_the_system, unavailable
from storage_core.base.text import quoted, repeated, shortened, unknown_names
from storage_core.data.rows.times import has_times, refuse_text, with_times
from storage_core.data.rows.values import validated
from storage_core.data.rows.vectors import is_vector, type_text
from storage_core.engine.session import reject_lossy_types

# NumPy values.

_KEPT: Final = frozenset("biufUS")
_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001  # times of NumPy have no zone
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9, "ps": 10**12, "fs": 10**15, "as": 10**18}
_SECONDS: Final = {"W": 604_800, "D": 86_400, "h": 3_600, "m": 60, "s": 1}


def has_numpy_values(kinds: Collection[type]) -> bool:
    """Return whether a column with values of these types contains NumPy values. The column is not nested."""
    return any(issubclass(kind, np.generic | np.ndarray) for kind in kinds)


def is_plain(values: npt.NDArray[Any]) -> bool:
    """Return True for a one-dimensional array of unmasked floats, which Arrow reads without changes."""
    plain = values.dtype.kind == "f" and values.dtype.itemsize <= 8  # a Python float has 8 bytes
    return plain and values.ndim == 1 and not isinstance(values, np.ma.MaskedArray)


def python_value(value: Any) -> Any:
    """Return the value with all NumPy values, at any depth, as Python values. NaT and masked values become None.

    Raises `TypeError` or `ValueError` for a value that has no equal Python value.
    """
    if isinstance(value, np.generic):
        return _scalar(value)
    if isinstance(value, np.ndarray):
        return value if is_plain(value) else _items_of_array(value)
    if isinstance(value, Mapping):
        return {python_value(key): python_value(item) for key, item in value.items()}
    if isinstance(value, Collection) and not isinstance(value, str | bytes | bytearray | memoryview):
        listed = [python_value(each) for each in value]
        return tuple(listed) if isinstance(value, tuple) else listed
    return value


def _items_of_array(values: npt.NDArray[Any]) -> Any:
    if isinstance(values, np.ma.MaskedArray):
        hidden = np.ma.getmaskarray(values)
        if not values.ndim:
            return None if hidden else python_value(values.data[()])
        return [
            _items_of_array(values[each]) if values.ndim > 1 else _unmasked(values, each) for each in range(len(values))
        ]
    return [python_value(each) for each in values] if values.ndim else python_value(values[()])


def _unmasked(values: Any, place: int) -> object:
    return None if np.ma.getmaskarray(values)[place] else python_value(values.data[place])


def _scalar(value: Any) -> object:
    if isinstance(value, np.datetime64):
        return None if np.isnat(value) else _time(value)
    if isinstance(value, np.longdouble):
        found = float(value)
        if found == value or np.isnan(value):
            return found
        raise ValueError(f"{value} does not fit into a 64-bit float. Round it")
    if value.dtype.kind in _KEPT:
        return value.item()
    raise TypeError(f"no column can store a value of the NumPy type {value.dtype}. Convert it first")


def _time(value: np.datetime64) -> dt.datetime:
    """Return the time.

    The function computes the time with Python's integers, because NumPy's integers overflow silently.
    """
    unit, count = np.datetime_data(value.dtype)
    ticks = int(value.astype(np.int64)) * count
    beyond = "a time is not between the years 1 and 9999. Write a time between these years"
    if unit in ("Y", "M"):
        year, month = divmod(ticks * (12 if unit == "Y" else 1), 12)
        if not dt.MINYEAR <= 1970 + year <= dt.MAXYEAR:
            raise ValueError(beyond)
        return _EPOCH.replace(year=1970 + year, month=1 + month)
    microseconds, rest = divmod(ticks * _SECONDS.get(unit, 1) * 10**6, _PER_SECOND.get(unit, 1))
    if rest:
        raise ValueError(f"{value} has digits below the microsecond. Round it")
    try:
        return _EPOCH + dt.timedelta(microseconds=microseconds)
    except OverflowError as error:
        raise ValueError(beyond) from error


# Columns of DuckDB and Polars.

_OF_POLARS: Final = {"Int128": "Decimal(38, 0)", "UInt128": "Decimal(38, 0)", "Object": "String"}
"""The Polars types that have no Arrow type, each with the Polars type to which a column must be cast.

Without a cast, Arrow data would contain the memory address of an `Object` instead of its value.
"""


def reject_lossy_columns(rows: object) -> None:
    """Raise `InvalidInput` if a conversion to Arrow would lose values of a DuckDB or Polars column.

    The rows are a relation of DuckDB or a frame of Polars. Neither library is imported.
    """
    library, kind = type(rows).__module__.partition(".")[0], type(rows).__name__
    if library in ("duckdb", "_duckdb") and kind == "DuckDBPyRelation":
        reject_lossy_types(cast("Any", rows))
    elif library == "polars" and kind == "DataFrame":
        for name, type_ in cast("Any", rows).schema.items():
            for each in _inside(type_):
                if (found := type(each).__name__) in _OF_POLARS:
                    raise InvalidInput(
                        f"column {quoted(name)} has the Polars type {found}, which Arrow does not support. Cast "
                        f"the column first, for example to {_OF_POLARS[found]}.",
                        column=name,
                    )


def _inside(type_: Any) -> Iterator[Any]:
    """Yield a Polars type and the types inside it."""
    yield type_
    inner = [each.dtype for each in getattr(type_, "fields", ())]
    own = getattr(type_, "inner", None)
    for each in inner if own is None else [own, *inner]:
        yield from _inside(each)


# Python values.

_INTEGERS = (int, np.integer)
_NUMBERS = (*_INTEGERS, float, np.floating)
_NO_VECTORS = (bytes, bytearray, memoryview, set, frozenset, range)
"""Types that Arrow reads as lists of numbers. Values of these types are refused as embeddings.

An embedding is an ordered list of measured numbers, but bytes, sets and ranges are not.
"""


def exact_array(values: Sequence[object], type_: pa.DataType, path: str = "") -> pa.Array:
    """Return the values as an array of this type. None is null.

    Numbers must equal the stored values, except that decimal fractions are rounded to the nearest float. In a column of
    instants, a timestamp without a zone is in UTC. In a column without zones, a timestamp with a zone is refused. In a
    column of times, text is parsed (`rows.times`). NumPy values are converted to Python values (`python_value`). A
    struct may not contain a field that its type lacks.

    Args:
        values: The values.
        type_: The type of the array.
        path: The name of the values in errors.

    Raises:
        TypeError: A value has the wrong type. The error names the value.
        ValueError: A value or field does not fit. The error names the value or field.
    """
    with suppress(_NumpyFoundError):
        return _array(with_times(values, type_), type_, path)
    return _array(with_times([python_value(each) for each in values], type_), type_, path)


class _NumpyFoundError(Exception):
    """A column has NumPy values, which Arrow does not always store unchanged."""


def _array(values: Sequence[object], type_: pa.DataType, path: str) -> pa.Array:
    if is_vector(type_):
        _require_lists(values)
    if pa.types.is_nested(type_):
        for name, child, below in _children(values, type_, path):
            refuse_text(below, child, f"{path}.{name}")
            _array(below, child, f"{path}.{name}")
        return _in_arrow(values, type_)
    if has_numpy_values({*map(type, values)}):
        raise _NumpyFoundError
    if pa.types.is_decimal(type_):
        values = _scaled(values, type_)
    array = _in_arrow(values, type_)
    if not _surely_kept(values, array):
        for given, kept in zip(values, array.to_pylist(), strict=True):
            if given is not None and not _is_same(given, kept, type_):
                raise ValueError(f"{given!r} would become {kept!r}. Convert it first")
    return array


def _in_arrow(values: Sequence[object], type_: pa.DataType) -> pa.Array:
    """Return Arrow's array of the values. Raises `ValueError` with the first value that Arrow refuses."""
    try:
        return pa.array(values, type_)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        if of_the_system(error):
            raise
        raise ValueError(_refusal(values, type_)) from error


def _refusal(values: Sequence[object], type_: pa.DataType) -> str:
    for each in values:
        try:
            pa.array([each], type_)
        except UnicodeEncodeError:
            return f"{quoted(each)} has characters that UTF-8 does not have. Leave them out"
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            if (
                isinstance(each, _NUMBERS)
                and not isinstance(each, bool)
                and (pa.types.is_integer(type_) or pa.types.is_floating(type_))
            ):
                return f"{quoted(each)} is out of its range. Use a column of a larger type"
            if is_vector(type_) and isinstance(each, list | tuple | np.ndarray) and len(each) != type_.list_size:
                return f"{quoted(each)} has the wrong length. Give {type_.list_size} numbers"
            return f"{quoted(each)} has the type {type(each).__name__}. Convert it first"
    return "the values are of several types. Convert them to one type first"


def _require_lists(values: Sequence[object]) -> None:
    if refused := sorted(kind.__name__ for kind in {*map(type, values)} if issubclass(kind, _NO_VECTORS)):
        raise TypeError(f"a vector has the type {refused[0]}. Give a list or an array of numbers")


def _scaled(values: Sequence[object], type_: pa.DataType) -> list[object]:
    unit = Decimal((0, (1,), -type_.scale))
    context = Context(prec=type_.precision, traps=[Inexact, InvalidOperation])
    scaled: list[object] = []
    for each in values:
        try:
            scaled.append(each.quantize(unit, context=context) if isinstance(each, Decimal) else each)
        except (Inexact, InvalidOperation) as error:
            raise ValueError(f"{shortened(str(each), 80)} has more digits than {type_} keeps. Round it") from error
    return scaled


def _surely_kept(values: Sequence[object], array: pa.Array) -> bool:
    kinds, type_ = {*map(type, values)} - {type(None)}, array.type
    if pa.types.is_integer(type_):
        return _all_among(kinds, _INTEGERS)  # Arrow checks the range and refuses booleans
    if pa.types.is_floating(type_):
        overflown = type_ == pa.float32() and np.isinf(array.to_numpy(zero_copy_only=False)).any()
        return bool not in kinds and _all_among(kinds, _NUMBERS) and not overflown
    if pa.types.is_date(type_):
        return kinds <= {dt.date}
    if pa.types.is_timestamp(type_):
        zoned = type_.tz is None and any(getattr(each, "tzinfo", None) is not None for each in values)
        return kinds <= {dt.datetime} and not zoned
    return True  # for all other types, Arrow accepts only values that it stores unchanged


def _all_among(kinds: set[type], allowed: tuple[type, ...]) -> bool:
    return all(issubclass(kind, allowed) for kind in kinds)


def _is_same(given: object, kept: Any, type_: pa.DataType) -> bool:
    if isinstance(given, bool):
        return False
    if isinstance(given, dt.datetime) and isinstance(kept, dt.datetime):
        zoned = given.tzinfo is not None
        return (given if zoned or type_.tz is None else given.replace(tzinfo=dt.UTC)) == kept
    if isinstance(given, dt.datetime):
        return isinstance(kept, dt.date) and given == dt.datetime.combine(kept, dt.time())
    if type_ == pa.float32() and isinstance(given, int | float | np.number):
        return math.isinf(kept) == math.isinf(given)
    return given == kept or (given != given and kept != kept)  # noqa: PLR0124  # NaN is not equal to itself


def _children(values: Sequence[object], type_: pa.DataType, path: str) -> list[tuple[str, pa.DataType, list[object]]]:
    """Return the inner values of nested values, with their name and type.

    The result omits a value that does not have the form of its nested type, because Arrow refuses the value later.
    """
    if pa.types.is_struct(type_):
        known = {field.name for field in type_.fields}
        given = [_fields(each, known, path) for each in values if isinstance(each, Mapping | list)]
        return [(field.name, field.type, [each.get(field.name) for each in given]) for field in type_.fields]
    if pa.types.is_map(type_):
        pairs = [pair for each in values for pair in _pairs(each)]
        keys, items = [key for key, _ in pairs], [item for _, item in pairs]
        return [("key", type_.key_type, keys), ("value", type_.item_type, items)]
    listed = (
        _numbers(each) if isinstance(each, np.ndarray) else each
        for each in values
        if isinstance(each, Collection | np.ndarray) and not isinstance(each, str | bytes | Mapping)
    )
    return [("element", type_.value_type, [*chain.from_iterable(listed)])]


def _numbers(values: npt.NDArray[Any]) -> list[object]:
    if not is_plain(values):
        raise _NumpyFoundError
    return [*values.tolist()]


def _fields(value: Mapping[object, object] | list[Any], known: set[str], path: str) -> Mapping[object, object]:
    """Return the fields of a struct that is given as a mapping or as pairs.

    Arrow would drop unknown fields silently.
    """
    try:
        given = value if isinstance(value, Mapping) else dict(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{quoted(value)} is not a mapping of fields to values") from error
    if not given.keys() <= known:
        unknown = next(name for name in given if name not in known)
        raise ValueError(f"the struct has no field {f'{path}.{unknown}'.lstrip('.')!r}. It has {sorted(known)}")
    if len(given) != len(value):
        raise ValueError(f"the struct {path.lstrip('.')!r} has a field twice")
    return given


def _pairs(value: object) -> list[tuple[object, object]]:
    items: Any = value.items() if isinstance(value, Mapping) else value
    pairs = [*items] if isinstance(items, list | tuple | type({}.items())) else []
    return [(each[0], each[1]) for each in pairs if isinstance(each, list | tuple) and len(each) == 2]


# Data frames.

_NO_ONE_TYPE = (
    "contains values of several types, or of a type that a table does not support. Convert the column to one type"
)


def is_frame(rows: object) -> bool:
    """Return whether the rows are a data frame of pandas or a lazy frame of Polars."""
    return _is_a(rows, "pandas", "DataFrame") or _is_a(rows, "polars", "LazyFrame")


def collected(rows: Any) -> Any:
    """Return a pandas data frame as a table, and a Polars lazy frame as a data frame.

    Other rows are returned unchanged. If a pandas index has no name and contains only whole numbers, it is omitted,
    because it only numbers the rows. Missing values of pandas become null.

    Raises:
        InvalidInput: The pandas index has a name or contains other values. Or the values of a column, which the error
            names, have several types or cannot be kept exactly.
    """
    if _is_a(rows, "polars", "LazyFrame"):
        return rows.collect()
    return _of_pandas(rows) if _is_a(rows, "pandas", "DataFrame") else rows


def _is_a(rows: object, library: str, kind: str) -> bool:
    found = getattr(sys.modules.get(library), kind, None)
    return isinstance(found, type) and isinstance(rows, found)


def _of_pandas(frame: Any) -> pa.Table:
    if frame.index.name is not None or frame.index.nlevels > 1 or frame.index.dtype.kind not in "iu":
        raise InvalidInput(
            "the data frame has an index, which a table cannot store. To store the index as a column, use "
            "reset_index(). To leave the index out, use reset_index(drop=True)"
        )
    names = [str(each) for each in frame.columns]
    if twice := sorted(repeated(names)):
        raise InvalidInput(f"the columns {twice} occur more than once. Pass each column once", columns=twice)
    columns = [_column_of_series(frame.iloc[:, index], name) for index, name in enumerate(names)]
    return pa.Table.from_arrays(columns, names=names)


def _column_of_series(series: Any, name: str) -> pa.Array | pa.ChunkedArray:
    try:
        column = pa.array(series, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(f"column {quoted(name)} of the data frame {_NO_ONE_TYPE}.", column=name) from error
    if series.dtype.kind != "O" or not has_times(column.type):
        return column
    # Arrow derives the time unit of a column from the first time in the column, and cuts digits that this unit lacks.
    values = [None if missing is True else each for each, missing in zip(series, series.isna(), strict=True)]
    try:
        return exact_array(values, _type_of(values, column.type), name)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(f"column {quoted(name)} of the data frame: {error}.", column=name) from error


def _type_of(values: Sequence[object], type_: pa.DataType) -> pa.DataType:
    """Return the type for these times. The type has a zone if one of the times has a zone."""
    if not pa.types.is_timestamp(type_):
        return type_
    zoned = any(getattr(each, "tzinfo", None) is not None for each in values)
    return cast("pa.DataType", pa.timestamp("us", "UTC" if zoned else None))


# Rows of callers.

PIECE_BYTES = 64 * 2**20
"""The size of the pieces of a stream, in bytes. A piece consists of batches up to this size, or of one larger batch."""


class ArrowStream(Protocol):
    """An object with Arrow's PyCapsule interface: a reader of record batches, a relation of DuckDB, a Polars frame."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a capsule with a stream of record batches."""
        ...


InMemory: TypeAlias = Mapping[str, object] | Sequence[Mapping[str, object]] | pa.Table | pa.RecordBatch
Rows: TypeAlias = InMemory | ArrowStream


def table_of(rows: Rows, schema: pa.Schema) -> pa.Table:
    """Return the rows as an Arrow table. A single mapping is one row.

    Mappings become columns with the table's types, in the table's order. A column that occurs in no row is omitted. If
    a row lacks a column, its value is null. Arrow data is not changed, because `rows.conform` checks its types. A
    stream is read to its end.

    Raises:
        InvalidInput: The table lacks a column, the values of a column cannot be kept exactly, or a value is not valid
            for its type (`data.rows.values`). The error names the column. Also raised if a stream breaks off.
    """
    given = read_whole(rows)
    if isinstance(given, pa.Table | pa.RecordBatch):
        return given if is_stream(rows) else validated_rows(given)
    listed = [given] if isinstance(given, Mapping) else _listed(given)
    if not listed:
        return schema.empty_table()
    names: set[str] = set().union(*listed)
    unknown = sorted(names - set(schema.names))
    if unknown:
        raise InvalidInput(unknown_names("column", unknown, schema.names), columns=unknown)
    fields = [each for each in schema if each.name in names] or [schema.field(0)]  # a table without columns has no rows
    columns = [_column(listed, each) for each in fields]
    return validated(pa.Table.from_arrays(columns, names=[each.name for each in fields]))


def validated_rows(given: pa.Table | pa.RecordBatch) -> pa.Table:
    """Return Arrow data as a table. Raises `InvalidInput` for a value that is not valid for its type."""
    return validated(pa.Table.from_batches([given]) if isinstance(given, pa.RecordBatch) else given)


def is_stream(rows: object) -> TypeGuard[ArrowStream]:
    """Return whether the rows arrive as a stream of batches. All data frames are streams."""
    if isinstance(rows, Mapping | pa.Table | pa.RecordBatch):
        return False
    is_part = type(rows).__module__.partition(".")[0] == "pandas"  # for example a Series, which is a column
    return is_frame(rows) or (hasattr(rows, "__arrow_c_stream__") and not is_part)


def read_whole(rows: Rows) -> InMemory:
    """Return a stream as a table, and everything else unchanged.

    Raises `InvalidInput` for a stream that breaks off, and for an invalid value in the stream.
    """
    if not is_stream(rows):
        return cast("InMemory", rows)  # a later step refuses objects that are not rows
    reader = reader_of(rows)
    return _joined(reader, _batches(reader))


def pieces_of(rows: ArrowStream) -> Iterator[pa.Table]:
    """Yield the stream as tables of about `PIECE_BYTES`. There is at least one table.

    Raises `InvalidInput` if the stream breaks off.
    """
    reader = reader_of(rows)
    piece: list[pa.Table] = []
    size = 0
    for batch in _batches(reader):
        piece.append(batch)
        size += batch.nbytes
        if size >= PIECE_BYTES:
            yield _joined(reader, piece)
            piece, size = [], 0
    yield _joined(reader, piece)


def reader_of(rows: ArrowStream) -> pa.RecordBatchReader:
    """Return the stream as a reader of batches. A lazy frame is computed now, but all other rows are read later.

    Raises:
        InvalidInput: The rows are not a stream. Or Arrow data does not keep the values of a column of DuckDB, Polars or
            pandas.
    """
    rows = _collected(rows)
    if isinstance(rows, pa.Table):
        return rows.to_reader()
    reject_lossy_columns(rows)
    # If `rows` is a reader or has a reader, the function returns this reader. If the function converted the reader to a
    # stream, only the text of the reader's errors would remain.
    own = getattr(rows, "to_reader", None)  # scans have the method `to_reader`
    try:
        given = rows if own is None else own()
        return given if isinstance(given, pa.RecordBatchReader) else pa.RecordBatchReader.from_stream(rows)
    except Exception as error:  # the library that produces the rows may raise any class of error
        raise _broken(rows, error) from error


def _collected(rows: ArrowStream) -> Any:
    try:
        return collected(rows)
    except InvalidInput:
        raise
    except Exception as error:  # the library of this lazy frame may raise any error
        raise _broken(rows, error) from error


def _batches(reader: pa.RecordBatchReader) -> Iterator[pa.Table]:
    """Yield the batches. If a value is invalid, the error contains the number of its row in the whole stream."""
    first = 0
    while (batch := _next_batch(reader)) is not None:
        yield validated(pa.Table.from_batches([batch]), first)
        first += batch.num_rows


def _next_batch(reader: pa.RecordBatchReader) -> pa.RecordBatch | None:
    try:
        return next(reader, None)
    except Exception as error:  # the generator behind the reader may raise any error
        raise _broken(reader, error) from error


def _joined(reader: pa.RecordBatchReader, batches: Iterable[pa.Table]) -> pa.Table:
    return pa.concat_tables([reader.schema.empty_table(), *batches])


_LIBRARIES: Final = frozenset({"_duckdb", "duckdb", "polars", "pyarrow", "pandas", "numpy", "deltalake"})
"""The packages whose error texts are not shown. Error texts of the caller's own code are shown."""


def _broken(rows: object, error: Exception) -> TidemarkError:
    """Return the error for a broken stream.

    If the cause is an error of Tidemark, return that error. If the system refused a request, return the error for this
    refusal. Otherwise return `InvalidInput`.
    """
    what = f"the stream of Arrow data of a {type(rows).__name__}"
    chain: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in chain:
        chain.append(each)
        each = each.__cause__ or each.__context__
    for each in chain:
        if isinstance(each, TidemarkError):
            return each.reworded(each.found)  # a copy of the error, so that the caller can set its cause
    if of_the_system(error):
        return unavailable(what, error)
    is_own = type(error).__module__.partition(".")[0] not in _LIBRARIES
    said = f": {shortened(str(error))}" if is_own and str(error) else ""
    return InvalidInput(f"{what} failed with {type(error).__name__}{said}. Correct the source of the rows")


def require_each_once(names: Sequence[str]) -> None:
    """Raise `InvalidInput` if a column name occurs more than once. Only one column per name would be stored."""
    if twice := sorted(repeated(names)):
        raise InvalidInput(f"the columns {twice} occur more than once. Pass each column once", columns=twice)


def _listed(rows: object) -> list[Mapping[str, object]]:
    listed = list(rows) if isinstance(rows, Iterable) else []
    other = next((row for row, each in enumerate(listed) if not isinstance(each, Mapping)), None)
    if isinstance(rows, Iterable) and other is None:
        return listed
    found = f"the rows are of the type {type(rows).__name__}"
    if isinstance(rows, list | tuple) and other is not None:
        found = f"row {other} is of the type {type(rows[other]).__name__}"
    raise InvalidInput(f"{found}. Give mappings of columns to values, Arrow data or a data frame")


def _column(rows: Sequence[Mapping[str, object]], field: pa.Field) -> pa.Array:
    values = [row.get(field.name) for row in rows]
    try:
        return exact_array(values, field.type, field.name)
    except (TypeError, ValueError, OverflowError) as error:
        row, found = _first_misfit(values, field) or (None, error)
        where = "" if row is None else f" (row {row})"
        raise InvalidInput(
            f"column {field.name!r}: a value does not fit the type {type_text(field.type)}{where}: {found}",
            column=field.name,
            row=row,
        ) from error


def _first_misfit(values: Sequence[object], field: pa.Field) -> tuple[int, Exception] | None:
    """Return the first value that is invalid by itself, with its row and its error."""
    for row, each in enumerate(values):
        try:
            exact_array([each], field.type, field.name)
        except (TypeError, ValueError, OverflowError) as error:
            return row, error
    return None
