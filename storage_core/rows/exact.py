"""Python values as Arrow columns, each value kept or refused.

Arrow itself takes 1.9 for an integer (1), a moment for a date, 1e300 for a single float (inf), and 1e-77 for a decimal
(0); a decimal of an exponent like -999999999 even ends its process, so decimals get their scale before. One pass over
the types of the values tells whether any of that can have happened; only then they are compared one by one.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from decimal import Context, Decimal, Inexact, InvalidOperation
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.foreign_text import shortened
from storage_core.rows.numpy_values import has_numpy_values, is_plain, python_value
from storage_core.rows.times import refuse_text, with_times
from storage_core.rows.vectors import is_vector

_INTEGERS = (int, np.integer)
_NUMBERS = (*_INTEGERS, float, np.floating)
_NO_VECTORS = (bytes, bytearray, memoryview, set, frozenset, range)
"""Arrow takes these for lists of numbers: bytes are other data, a set has no order, a range is no measurement."""


def exact_array(values: Sequence[object], type_: pa.DataType, path: str = "") -> pa.Array:
    """Return the values as an array of this type; None is null. `path` is what an error calls them.

    Numbers must be equal to what is stored, but that decimal fractions round to the nearest float; a moment without a
    zone is UTC in a column of instants, and one with a zone has no place in a column without. Text of a column of times
    is read (`rows.times`), and values of NumPy are those of Python (`rows.numpy_values`). A struct takes no field that
    its type lacks. Raises `TypeError`, `ValueError` (also Arrow's) or `OverflowError` naming the value or field.
    """
    with suppress(_NumpyFoundError):
        return _array(with_times(values, type_), type_, path)
    return _array(with_times([python_value(each) for each in values], type_), type_, path)


class _NumpyFoundError(Exception):
    """A column has values of NumPy, which Arrow does not keep."""


def _array(values: Sequence[object], type_: pa.DataType, path: str) -> pa.Array:
    if is_vector(type_):
        _require_lists(values)
    if pa.types.is_nested(type_):
        for name, child, below in _children(values, type_, path):
            refuse_text(below, child, f"{path}.{name}")
            _array(below, child, f"{path}.{name}")
        return pa.array(values, type_)
    if has_numpy_values({*map(type, values)}):
        raise _NumpyFoundError
    if pa.types.is_decimal(type_):
        values = _scaled(values, type_)
    array = pa.array(values, type_)
    if not _surely_kept(values, array):
        for given, kept in zip(values, array.to_pylist(), strict=True):
            if given is not None and not _is_same(given, kept, type_):
                raise ValueError(f"{given!r} would become {kept!r}")
    return array


def _require_lists(values: Sequence[object]) -> None:
    if refused := sorted(kind.__name__ for kind in {*map(type, values)} if issubclass(kind, _NO_VECTORS)):
        raise TypeError(f"a vector is a list or an array of numbers, found {refused[0]}")


def _scaled(values: Sequence[object], type_: pa.DataType) -> list[object]:
    unit = Decimal((0, (1,), -type_.scale))
    context = Context(prec=type_.precision, traps=[Inexact, InvalidOperation])
    scaled: list[object] = []
    for each in values:
        try:
            scaled.append(each.quantize(unit, context=context) if isinstance(each, Decimal) else each)
        except (Inexact, InvalidOperation) as error:
            raise ValueError(f"{shortened(str(each), 80)} has more digits than {type_} keeps") from error
    return scaled


def _surely_kept(values: Sequence[object], array: pa.Array) -> bool:
    kinds, type_ = {*map(type, values)} - {type(None)}, array.type
    if pa.types.is_integer(type_):
        return _all_among(kinds, _INTEGERS)  # Arrow checks the range, and refuses booleans
    if pa.types.is_floating(type_):
        overflown = type_ == pa.float32() and np.isinf(array.to_numpy(zero_copy_only=False)).any()
        return bool not in kinds and _all_among(kinds, _NUMBERS) and not overflown
    if pa.types.is_date(type_):
        return kinds <= {dt.date}
    if pa.types.is_timestamp(type_):
        zoned = type_.tz is None and any(getattr(each, "tzinfo", None) is not None for each in values)
        return kinds <= {dt.datetime} and not zoned
    return True  # of the other types Arrow takes nothing but what it keeps


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
    """The values inside nested ones, by name and type. What does not have the form is left to Arrow, which says so."""
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
    """The fields of a struct, given as a mapping or as pairs: Arrow drops those that it does not know."""
    given = value if isinstance(value, Mapping) else dict(value)
    if not given.keys() <= known:
        unknown = next(name for name in given if name not in known)
        raise ValueError(f"the struct has no field {f'{path}.{unknown}'.lstrip('.')!r}; it has {sorted(known)}")
    if len(given) != len(value):
        raise ValueError(f"the struct {path.lstrip('.')!r} has a field twice")
    return given


def _pairs(value: object) -> list[tuple[object, object]]:
    items = value.items() if isinstance(value, Mapping) else value
    return [(key, item) for key, item in items] if isinstance(items, list | tuple | type({}.items())) else []
