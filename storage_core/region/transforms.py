"""Transforms of region fields: one value per row, the same whatever batch it comes in.

| Transform | Of | Value |
|---|---|---|
| `identity` | any key type | the value; integers as 64-bit, floats as float64 with one zero and one NaN |
| `year`, `month`, `day` | date, timestamp | the part of the calendar date in UTC (`date_part`): month 1-12, day 1-31 |
| `hour` | timestamp | hour of the day in UTC, 0-23 |
| `bucket(n)` | one column | `(murmur3(value) & 0x7fffffff) % n`; null is bucket 0 |
| `multi_bucket(n)` | any columns | the same over all; null fields are left out, all null is bucket 0 |
| `truncate(w)` | integer, string | the multiple of w at or below the value, at least -2**63; the first w characters |

Parts are floored, also before 1970. But for buckets, null gives null. The parts follow Lance MemWAL (`date_part`),
which the source leaves open.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import InvalidInput
from storage_core.rows.murmur3 import is_hashable, murmur3

_TEXT = re.compile(r"([a-z_]+)(?:\(([1-9][0-9]{0,9})\))?", re.ASCII)
_HASH_MASK = 0x7FFFFFFF
_LEAST = -(2**63)
_MOST_PARAMETER = 2**31 - 1


class TransformKind(StrEnum):
    """The transforms by name."""

    IDENTITY = "identity"
    YEAR = "year"
    MONTH = "month"
    DAY = "day"
    HOUR = "hour"
    BUCKET = "bucket"
    MULTI_BUCKET = "multi_bucket"
    TRUNCATE = "truncate"


_WITH_PARAMETER = {TransformKind.BUCKET, TransformKind.MULTI_BUCKET, TransformKind.TRUNCATE}


@dataclass(frozen=True, slots=True)
class Transform:
    """A transform; `parameter` is the number of buckets or the width, 0 for those that have none."""

    kind: TransformKind
    parameter: int = 0

    @property
    def text(self) -> str:
        """The form that is stored: `bucket(4)`, `year`."""
        return f"{self.kind}({self.parameter})" if self.parameter else str(self.kind)

    @property
    def buckets(self) -> int:
        """The number of buckets; 0 for other transforms."""
        return self.parameter if self.kind in (TransformKind.BUCKET, TransformKind.MULTI_BUCKET) else 0


def parse_transform(text: str) -> Transform:
    """Return the transform of this text. Raises `InvalidInput` naming those there are."""
    found = _TEXT.fullmatch(text)
    if found is not None and found[1] in set(TransformKind):
        kind, parameter = TransformKind(found[1]), int(found[2] or 0)
        if (kind in _WITH_PARAMETER) == (parameter > 0) and parameter <= _MOST_PARAMETER:
            return Transform(kind, parameter)
    known = ", ".join(f"{each}(n)" if each in _WITH_PARAMETER else str(each) for each in TransformKind)
    raise InvalidInput(f"no region transform: {text!r}; use one of {known}, n from 1 to 2**31 - 1", transform=text)


def result_type(transform: Transform, sources: Sequence[pa.DataType]) -> pa.DataType:
    """Return the type of a transform's values over columns of these types. Raises `InvalidInput` if it has none."""
    if transform.kind is not TransformKind.MULTI_BUCKET and len(sources) != 1:
        raise InvalidInput(f"{transform.text} takes one source column, found {len(sources)}")
    source, kinds = sources[0], pa.types
    match transform.kind:
        case TransformKind.IDENTITY:
            fits, result = is_hashable(source), widened(source)
        case TransformKind.YEAR | TransformKind.MONTH | TransformKind.DAY:
            fits, result = kinds.is_date32(source) or kinds.is_timestamp(source), pa.int32()
        case TransformKind.HOUR:
            fits, result = kinds.is_timestamp(source), pa.int32()
        case TransformKind.BUCKET | TransformKind.MULTI_BUCKET:
            fits, result = all(is_hashable(each) for each in sources), pa.int32()
        case TransformKind.TRUNCATE:
            fits, result = kinds.is_integer(source) or kinds.is_string(source), widened(source)
        case _:
            assert_never(transform.kind)
    if not fits:
        raise InvalidInput(f"{transform.text} has no value for columns of type {', '.join(map(str, sources))}")
    return result


def apply_transform(transform: Transform, columns: Sequence[pa.Array]) -> pa.Array:
    """Return one value per row, of type `result_type`. The columns have types that the transform takes."""
    column = columns[0]
    match transform.kind:
        case TransformKind.IDENTITY:
            return widen(column)
        case TransformKind.YEAR:
            return pc.year(_calendar(column)).cast(pa.int32())
        case TransformKind.MONTH:
            return pc.month(_calendar(column)).cast(pa.int32())
        case TransformKind.DAY:
            return pc.day(_calendar(column)).cast(pa.int32())
        case TransformKind.HOUR:
            return pc.hour(_calendar(column)).cast(pa.int32())
        case TransformKind.BUCKET | TransformKind.MULTI_BUCKET:
            return pa.array((murmur3(columns) & np.int32(_HASH_MASK)) % np.int32(transform.parameter))
        case TransformKind.TRUNCATE:
            return _truncated(widen(column), transform.parameter)
        case _:
            assert_never(transform.kind)


def widened(type_: pa.DataType) -> pa.DataType:
    """Return the type that a promotion cannot change: 64-bit integers and floats; every other type is its own."""
    if pa.types.is_integer(type_):
        return pa.int64()
    return pa.float64() if pa.types.is_floating(type_) else type_


def widen(column: pa.Array) -> pa.Array:
    """Return the column as its `widened` type, with one zero and one NaN."""
    wide = column.cast(widened(column.type))
    if not pa.types.is_floating(wide.type):
        return wide
    wide = pc.add(wide, 0.0)  # turns -0.0 into 0.0
    return pc.if_else(pc.is_nan(wide), float("nan"), wide)


def _calendar(column: pa.Array) -> pa.Array:
    """Dates as they are, instants as their time in UTC without a zone."""
    if pa.types.is_date32(column.type):
        return column
    return column.cast(pa.int64()).cast(pa.timestamp(column.type.unit))


def _truncated(column: pa.Array, width: int) -> pa.Array:
    if not pa.types.is_integer(column.type):
        return pc.utf8_slice_codeunits(column, 0, width)
    values = column.fill_null(0).to_numpy()
    remainder = np.mod(values, np.int64(width))  # never negative, so this is the floor
    # The lowest multiples lie below 64 bits: those values share the least one.
    floors = np.where(values < _LEAST + remainder, np.int64(_LEAST), values - remainder)
    return pa.array(floors, mask=column.is_null().to_numpy(zero_copy_only=False))
