"""Values of NumPy as the values of Python that are equal to them.

Arrow reads 2**64 - 1 of NumPy as -1.0 in a column of floats, and takes its booleans and durations for whole numbers.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_KEPT: Final = frozenset("biufUS")
_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001  # times of NumPy have no zone
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9, "ps": 10**12, "fs": 10**15, "as": 10**18}
_SECONDS: Final = {"W": 604_800, "D": 86_400, "h": 3_600, "m": 60, "s": 1}


def has_numpy_values(kinds: Collection[type]) -> bool:
    """Return whether values of these types, of a column that is not nested, are values of NumPy."""
    return any(issubclass(kind, np.generic | np.ndarray) for kind in kinds)


def is_plain(values: npt.NDArray[Any]) -> bool:
    """Return whether Arrow reads the array as what it contains: floats of one dimension, none of them masked."""
    plain = values.dtype.kind == "f" and values.dtype.itemsize <= 8  # the bytes of a float of Python
    return plain and values.ndim == 1 and not isinstance(values, np.ma.MaskedArray)


def python_value(value: Any) -> Any:
    """Return the value with those of NumPy, at any depth, as values of Python. NaT and masked values are None.

    Raises `TypeError` or `ValueError` for a value that has no equal one.
    """
    if isinstance(value, np.generic):
        return _scalar(value)
    if isinstance(value, np.ndarray):
        return value if is_plain(value) else _array(value)
    if isinstance(value, Mapping):
        return {python_value(key): python_value(item) for key, item in value.items()}
    if isinstance(value, Collection) and not isinstance(value, str | bytes | bytearray | memoryview):
        listed = [python_value(each) for each in value]
        return tuple(listed) if isinstance(value, tuple) else listed
    return value


def _array(values: npt.NDArray[Any]) -> Any:
    if isinstance(values, np.ma.MaskedArray):
        hidden = np.ma.getmaskarray(values)
        if not values.ndim:
            return None if hidden else python_value(values.data[()])
        return [_array(values[each]) if values.ndim > 1 else _unmasked(values, each) for each in range(len(values))]
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
        raise ValueError(f"{value} has more digits than a float of 64 bits, or is greater. Round it")
    if value.dtype.kind in _KEPT:
        return value.item()
    raise TypeError(f"a value of NumPy's type {value.dtype} does not fit a column. Convert it first")


def _time(value: np.datetime64) -> dt.datetime:
    """The time, computed with whole numbers of Python: those of NumPy wrap around."""
    unit, count = np.datetime_data(value.dtype)
    ticks = int(value.astype(np.int64)) * count
    beyond = "a time is not between the years 1 and 9999. Write one that is"
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
