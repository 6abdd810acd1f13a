"""INT96 timestamps of Parquet, as Spark, Hive and Impala write them: a day, and the nanosecond of that day.

Arrow reads INT96 in one unit. Nanoseconds only reach from 1677 to 2262, and other moments overflow silently. A table
has microseconds. So the values are read at microseconds, and are compared with readings in two other units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.errors import unsound
from storage_core.rows.calendar import BEYOND

Unit = Literal["s", "us", "ns"]

_INSTANT = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class Int96Columns:
    """The columns of a Parquet file. `coarse` has other types than `columns` exactly where values are INT96."""

    columns: pa.Schema
    coarse: pa.Schema

    @staticmethod
    def of(columns: Callable[[Unit], pa.Schema]) -> Int96Columns:
        """Return the columns of a file. The argument returns them with INT96 values in a unit."""
        return Int96Columns(columns("us"), columns("s"))

    @property
    def names(self) -> list[str]:
        """The columns that have INT96 values, at any depth."""
        return [each.name for each, coarse in zip(self.columns, self.coarse, strict=True) if each.type != coarse.type]

    def fitting(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns, with INT96 values as instants where a table of this schema has instants.

        INT96 is an instant for Spark and a local time for Hive. The file does not say which.
        """
        wanted = {each.name.casefold(): each.type for each in schema}
        fields = [
            each.with_type(_fitting(each.type, coarse.type, wanted.get(each.name.casefold())))
            for each, coarse in zip(self.columns, self.coarse, strict=True)
        ]
        return pa.schema(fields)


def exact_moments(
    batches: Iterator[pa.RecordBatch],
    names: Sequence[str],
    again: Callable[[Unit, Sequence[str]], Iterator[pa.RecordBatch]],
) -> Iterator[pa.RecordBatch]:
    """Yield the batches, which are read at microseconds.

    Args:
        batches: the rows of a file.
        names: its columns of INT96 values. Without any, nothing else is read.
        again: reads these columns of the same rows in another unit.

    Raises:
        Corrupt: a value has digits below the microsecond, or is beyond the range of microseconds.
    """
    readings = [again(unit, names) if names else repeat(None) for unit in ("s", "ns")]
    for batch, seconds, nanos in zip(batches, *readings, strict=False):
        if seconds is not None and nanos is not None:
            for name in names:
                for leaves in _leaves(*(each.column(name) for each in (batch, seconds, nanos))):
                    _require_exact(name, *map(_ticks, leaves))
        yield batch


def as_instants(batch: pa.RecordBatch, names: Sequence[str], columns: pa.Schema) -> pa.RecordBatch:
    """Return the batch with the types that `Int96Columns.fitting` gives the columns of these names."""
    for name in names:
        index, wanted = batch.schema.get_field_index(name), columns.field(name)
        batch = batch.set_column(index, wanted, batch.column(index).cast(wanted.type))
    return batch


def _fitting(fine: pa.DataType, coarse: pa.DataType, wanted: pa.DataType | None) -> pa.DataType:
    """The type of a column, of which values that have another `coarse` type are INT96."""
    if wanted is None or fine == coarse:
        return fine
    kinds = pa.types
    if kinds.is_timestamp(fine):
        return _INSTANT if wanted == _INSTANT else fine
    if kinds.is_struct(fine) and kinds.is_struct(wanted):
        inside: Mapping[str, pa.DataType] = {each.name: each.type for each in wanted.fields}
        pairs = zip(fine.fields, coarse.fields, strict=True)
        return pa.struct([a.with_type(_fitting(a.type, b.type, inside.get(a.name))) for a, b in pairs])
    if kinds.is_map(fine) and kinds.is_map(wanted):
        key = _fitting(fine.key_type, coarse.key_type, wanted.key_type)
        return pa.map_(key, _fitting(fine.item_type, coarse.item_type, wanted.item_type))
    if kinds.is_list(fine) and kinds.is_list(wanted):
        element = fine.value_field.with_type(_fitting(fine.value_type, coarse.value_type, wanted.value_type))
        return pa.list_(element)
    return fine


def _leaves(fine: pa.Array, coarse: pa.Array, other: pa.Array) -> Iterator[tuple[pa.Array, pa.Array, pa.Array]]:
    """Yield the INT96 values inside of a column, in three units."""
    kinds, type_ = pa.types, fine.type
    if kinds.is_timestamp(type_):
        if type_ != coarse.type:
            yield fine, coarse, other
    elif kinds.is_map(type_):
        yield from _leaves(fine.keys, coarse.keys, other.keys)
        yield from _leaves(fine.items, coarse.items, other.items)
    elif kinds.is_list(type_):
        yield from _leaves(fine.values, coarse.values, other.values)
    elif kinds.is_struct(type_):
        for index in range(type_.num_fields):
            yield from _leaves(fine.field(index), coarse.field(index), other.field(index))


def _ticks(moments: pa.Array) -> npt.NDArray[np.int64]:
    return np.asarray(moments.cast(pa.int64()).fill_null(0))


def _require_exact(
    name: str, micros: npt.NDArray[np.int64], seconds: npt.NDArray[np.int64], nanos: npt.NDArray[np.int64]
) -> None:
    if (micros // 1_000_000 != seconds).any():
        raise unsound(f"column {name!r}: an INT96 timestamp is {BEYOND}")
    if (micros * 1_000 != nanos).any():  # both overflow alike
        raise unsound(f"column {name!r}: an INT96 timestamp has digits below the microsecond, which tables do not hold")
