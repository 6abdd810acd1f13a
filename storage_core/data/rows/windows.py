"""Windows of event time, the rule for late rows, and the values of partition fields.

**Windows** are fixed intervals of event time, aligned with the epoch. A window's name is its start in seconds. All
divisions round down, even for times before 1970. The hour is a multiple of a window's duration, so each timestamp is in
exactly one window in any zone. Durations of several whole hours are an extension of Tidemark, and the table must allow
such durations.

**Late rows** are rows that arrive after their event time plus the table's acceptance window. Every path into a table
decides whether rows are late before it acknowledges the rows (docs/architecture/ingestion.md). A row whose age equals
the acceptance window is not late. A row with a time in the future or without a time is never late.

**Partition values** are computed from rows and written as text. `range_keys` returns the range of column values that a
text may represent. Iceberg defines the transforms and the hash of `bucket`. The hash is murmur3 (x86, 32 bits, seed 0).
The partition value of null is null.

| Transform | Column types | Value as text |
|---|---|---|
| `identity` | integer, decimal, boolean, date, timestamp, string | same text as its bound, at most 1,024 code points |
| `bucket[n]` | integer, decimal, date, timestamp, string | `(hash & 0x7fffffff) % n` |
| `truncate[w]` | integer, string | integer rounded down to a multiple of w, or first w code points (at most 1,024) |
| `year`, `month`, `day` | date, timestamp | `2015`, `2015-05`, `2015-05-17`, in UTC |
| `hour` | timestamp | `2015-05-17-10`, in UTC |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.base.errors import InvalidInput
from storage_core.base.text import alternatives, unknown_names
from storage_core.data.rows.bound_text import next_after_prefix, text_of_bound
from storage_core.data.rows.codes import bound_keys, codes
from storage_core.data.rows.hashes import iceberg_hashes
from storage_core.data.rows.keys import dense_ranks, pack
from storage_core.data.rows.vectors import type_text
from storage_core.data.settings.layout import LONGEST_TEXT, PartitionField, PartitionTransform
from storage_core.data.settings.setting import duration_text
from storage_core.data.settings.table import LateData, TableConfig

# Windows.

WINDOW_SECONDS = frozenset(60 * minutes for minutes in (1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60))
COARSE_WINDOW_SECONDS = frozenset(3600 * hours for hours in (2, 3, 4, 6, 8, 12, 24))

_TICKS_PER_SECOND: Mapping[str, int] = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def validate_duration(seconds: int, *, coarse: bool = False) -> int:
    """Return `seconds` if it is a valid window duration. `coarse` also allows 2, 3, 4, 6, 8, 12 and 24 hours.

    Raises `InvalidInput` for any other value. The error contains the valid durations.
    """
    if seconds in WINDOW_SECONDS or (coarse and seconds in COARSE_WINDOW_SECONDS):
        return seconds
    minutes = alternatives(each // 60 for each in sorted(WINDOW_SECONDS))
    if seconds in COARSE_WINDOW_SECONDS:
        raise InvalidInput(
            f"window is {duration_text(seconds)}, which is longer than an hour. Set coarse_window: true, or give "
            f"{minutes} minutes",
            window_seconds=seconds,
        )
    hours = alternatives(each // 3600 for each in sorted(COARSE_WINDOW_SECONDS))
    raise InvalidInput(
        f"window is {duration_text(seconds)}. Give {minutes} minutes. With coarse_window: true, also {hours} hours",
        window_seconds=seconds,
    )


def by_start(window: int | None) -> tuple[bool, int]:
    """Return the sort key of a window. The key sorts windows by start, with the bucket of null timestamps last."""
    return window is None, window or 0


def window_starts(array: pa.ChunkedArray | pa.Array, duration: int) -> pa.Int64Array:
    """Return the window start of every timestamp, in seconds, as one array in the same order. Null stays null.

    The timestamps may have any unit, and may have a zone. Timestamps without a zone are in UTC. Raises `InvalidInput`
    for other types.
    """
    column = array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])
    if not pa.types.is_timestamp(column.type):
        raise InvalidInput(f"windows need a timestamp column, found {column.type}. Name a column of timestamps")
    ticks_per_window = duration * _TICKS_PER_SECOND[column.type.unit]
    ticks = column.cast(pa.int64()).combine_chunks()
    if isinstance(ticks, pa.ChunkedArray):  # true for a column without chunks
        ticks = pa.concat_arrays([pa.array([], pa.int64()), *ticks.chunks])
    starts = np.floor_divide(ticks.fill_null(0).to_numpy(), ticks_per_window) * duration
    return pa.array(starts, pa.int64(), mask=ticks.is_null().to_numpy(zero_copy_only=False))


def split_by_window(table: pa.Table, time_column: str, duration: int) -> list[tuple[int | None, pa.Table]]:
    """Return the rows of each window, ascending by start. The bucket of null timestamps (None) is last.

    Rows keep their order inside a window, so windows of sorted rows are sorted. If the rows are already grouped by
    window, the function slices them and does not copy them. The result contains no window without rows, so it is empty
    for an empty table.
    """
    if table.num_rows == 0:
        return []
    starts = window_starts(table.column(time_column), duration)
    codes, windows = _window_codes(starts)
    if np.any(codes[1:] < codes[:-1]):
        order = np.argsort(codes, kind="stable")
        table, codes = table.take(pa.array(order)), codes[order]
    bounds = np.searchsorted(codes, np.arange(len(windows) + 1))
    return [
        (window, table.slice(int(begin), int(end - begin)))
        for window, begin, end in zip(windows, bounds[:-1], bounds[1:], strict=True)
    ]


def _window_codes(starts: pa.Int64Array) -> tuple[npt.NDArray[np.int64], list[int | None]]:
    """Return one dense code per row, and the window of each code. Codes are in the order of windows, with null last."""
    present: list[int] = pc.unique(starts.drop_null()).sort().to_pylist()
    windows: list[int | None] = [*present]
    codes = np.searchsorted(np.array(present, np.int64), starts.fill_null(0).to_numpy())
    if starts.null_count:
        windows.append(None)
        codes[starts.is_null().to_numpy(zero_copy_only=False)] = len(present)
    return codes.astype(np.int64), windows


# Late rows.

Arrival: TypeAlias = int | pa.Int64Array
"""The arrival time of rows, in milliseconds since the epoch: one time for all rows, or one per row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LateMetrics:
    """The numbers of late rows that were accepted, quarantined and dropped."""

    accepted: int = 0
    quarantined: int = 0
    dropped: int = 0

    @property
    def not_written(self) -> int:
        """The number of late rows that are not in the table."""
        return self.quarantined + self.dropped

    def __add__(self, other: LateMetrics) -> LateMetrics:
        """Return the sum of the two metrics."""
        return LateMetrics(
            accepted=self.accepted + other.accepted,
            quarantined=self.quarantined + other.quarantined,
            dropped=self.dropped + other.dropped,
        )

    def as_mapping(self) -> dict[str, int]:
        """Return the metrics under the names that commit metrics and reports use."""
        return {
            "rows_late_accepted": self.accepted,
            "rows_late_quarantined": self.quarantined,
            "rows_late_dropped": self.dropped,
        }


@dataclass(frozen=True, slots=True)
class LateRule:
    """The rule that decides which rows of a table are late. The rule uses the times in `time_column`."""

    time_column: str
    late_data: LateData

    @staticmethod
    def of(config: TableConfig) -> LateRule | None:
        """Return the rule of a table. Return None for a table in which no row is late."""
        if config.late_data is None or config.time_column is None:
            return None
        return LateRule(config.time_column, config.late_data)

    def is_late(self, rows: pa.Table, arrived_ms: Arrival) -> pa.BooleanArray:
        """Return, for each row in order, whether the row is late, as one array without nulls.

        Raises `InvalidInput` unless the time column contains timestamps in microseconds, the unit that tables use.
        """
        times = rows.column(self.time_column)
        if not pa.types.is_timestamp(times.type) or times.type.unit != "us":
            raise InvalidInput(
                f"the time column {self.time_column!r} has the type {times.type}. Late rows need timestamps in "
                "microseconds"
            )
        # A time without a zone is UTC, and a time with a zone is an instant. Timestamps in UTC and timestamps without a
        # zone have comparable ticks.
        ticks = times.cast(pa.int64())
        arrived = pa.scalar(arrived_ms, pa.int64()) if isinstance(arrived_ms, int) else arrived_ms
        bounds = pc.multiply_checked(pc.subtract_checked(arrived, self.late_data.acceptance_ms), 1000)
        found = pc.fill_null(pc.less(ticks, bounds), False)  # noqa: FBT003  # Arrow's own parameter
        return pa.array(np.asarray(found), pa.bool_())


# Partition values.

Partition = Mapping[str, str]
"""The values of one partition.

The keys are the names of the partition fields, in the order of the fields. Null values are omitted.
"""

_UNITS: Final[Mapping[PartitionTransform, str]] = {
    PartitionTransform.YEAR: "Y",
    PartitionTransform.MONTH: "M",
    PartitionTransform.DAY: "D",
    PartitionTransform.HOUR: "h",
}
_LEAST, _MOST = -(2**63), 2**63 - 1


def value_type(field: PartitionField, source: pa.DataType) -> pa.DataType:
    """Return the type of the field's partition values, which determines the order of their texts.

    Raises `InvalidInput` if the transform cannot be applied to the column.
    """
    kinds, transform = pa.types, field.transform
    plain = kinds.is_integer(source) or kinds.is_decimal(source) or kinds.is_string(source)
    dated = kinds.is_date32(source) or kinds.is_timestamp(source)
    match transform:
        case PartitionTransform.IDENTITY:
            fits, found = plain or dated or kinds.is_boolean(source), source
        case PartitionTransform.BUCKET:
            fits, found = plain or dated, pa.int32()
        case PartitionTransform.TRUNCATE:
            fits, found = kinds.is_integer(source) or kinds.is_string(source), source
        case PartitionTransform.HOUR:
            fits, found = kinds.is_timestamp(source), pa.string()
        case _:
            fits, found = dated, pa.string()
    if not fits:
        raise InvalidInput(
            f"partition_by {field.text}: {transform} has no value for {field.column!r} of type {type_text(source)}. "
            "Partition by another column, or by another transform",
            column=field.column,
        )
    return found


def check_partitions(fields: Sequence[PartitionField], schema: pa.Schema, primary_key: Sequence[str]) -> None:
    """Raise `InvalidInput` unless a table with this schema and key can have these partitions.

    The error names the field.
    """
    folded = {name.casefold() for name in schema.names}
    for field in fields:
        if field.column not in schema.names:
            raise InvalidInput(
                unknown_names("column", [field.column], schema.names, where="partition_by"), column=field.column
            )
        value_type(field, schema.field(field.column).type)
        if field.transform is not PartitionTransform.IDENTITY and field.name.casefold() in folded:
            raise InvalidInput(
                f"partition_by {field.text} needs the name {field.name!r}, but the table has a column of this name. "
                "Rename that column",
                column=field.name,
            )
        if primary_key and field.column not in primary_key:
            raise InvalidInput(
                f"partition_by {field.text}: {field.column!r} is not a column of the key {list(primary_key)}, "
                f"so one key could be in two partitions. Add the column to primary_key, or leave "
                "it out of partition_by",
                column=field.column,
            )


def value_schema(fields: Sequence[PartitionField], schema: pa.Schema) -> pa.Schema:
    """Return the fields as columns. The type of each column determines the order of the partition values."""
    return pa.schema([(each.name, value_type(each, schema.field(each.column).type)) for each in fields])


def by_partition(rows: pa.Table, fields: Sequence[PartitionField]) -> list[tuple[Partition, pa.Table]]:
    """Return the rows of each partition. Rows keep their order.

    Partitions are in ascending order of their values, with null last. If the rows lack a column, its value is null. For
    an empty table, the result is empty. If the rows are already grouped by partition, the function slices them and does
    not copy them.
    """
    if not rows.num_rows:
        return []
    if not fields:
        return [({}, rows)]
    values = [_values(each, _column(rows, each.column)) for each in fields]
    ranks = dense_ranks(pack([codes(pa.chunked_array([each])) for each in values], rows.num_rows)).astype(np.int64)
    if np.any(ranks[1:] < ranks[:-1]):
        order = np.argsort(ranks, kind="stable")
        rows, ranks = rows.take(pa.array(order)), ranks[order]
        values = [each.take(pa.array(order)) for each in values]
    first = np.flatnonzero(np.diff(ranks, prepend=-1))
    texts = [_texts(each, own.take(pa.array(first))) for each, own in zip(fields, values, strict=True)]
    ends = [*first[1:].tolist(), rows.num_rows]
    return [
        (
            {field.name: text for field, text in zip(fields, own, strict=True) if text is not None},
            rows.slice(start, end - start),
        )
        for start, end, *own in zip(first.tolist(), ends, *texts, strict=True)
    ]


def _column(rows: pa.Table, name: str) -> pa.Array:
    if name not in rows.column_names:
        return pa.nulls(rows.num_rows, pa.string())
    column = rows.column(name).combine_chunks()
    found = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    return found.dictionary_decode() if pa.types.is_dictionary(found.type) else found


def _values(field: PartitionField, column: pa.Array) -> pa.Array:
    """Return the values before their conversion to text. Times are numbers of units since 1970."""
    match field.transform:
        case PartitionTransform.IDENTITY:
            is_text = pa.types.is_string(column.type)
            return pc.utf8_slice_codeunits(column, 0, LONGEST_TEXT) if is_text else column
        case PartitionTransform.BUCKET:
            return buckets(column, field.parameter)
        case PartitionTransform.TRUNCATE if pa.types.is_string(column.type):
            return pc.utf8_slice_codeunits(column, 0, min(field.parameter, LONGEST_TEXT))
        case PartitionTransform.TRUNCATE:
            return _multiples(column, field.parameter)
        case _:
            return _like(column, _microseconds(column).astype(f"datetime64[{_UNITS[field.transform]}]").view(np.int64))


def buckets(column: pa.Array, count: int) -> pa.Array:
    """Return the number of the bucket of each value. Null stays null."""
    return _like(column, (iceberg_hashes(column) & np.uint32(0x7FFFFFFF)).astype(np.int64) % count)


def _multiples(column: pa.Array, width: int) -> pa.Array:
    values = column.cast(pa.int64()).fill_null(0).to_numpy()
    remainder = np.mod(values, np.int64(width))  # the remainder is never negative, so the result is rounded down
    # The smallest multiples do not fit into 64 bits. Values below the smallest multiple that fits into 64 bits are
    # changed to the smallest 64-bit number.
    return _like(column, np.where(values < _LEAST + remainder, np.int64(_LEAST), values - remainder))


def _microseconds(column: pa.Array) -> npt.NDArray[np.datetime64]:
    zone = getattr(column.type, "tz", None)
    ticks = column.cast(pa.timestamp("us", tz=zone)).cast(pa.int64()).fill_null(0).to_numpy()
    found: npt.NDArray[np.datetime64] = ticks.view("datetime64[us]")
    return found


def _like(column: pa.Array, values: npt.NDArray[np.int64]) -> pa.Array:
    return pa.array(values, pa.int64(), mask=column.is_null().to_numpy(zero_copy_only=False))


def _texts(field: PartitionField, values: pa.Array) -> list[str | None]:
    unit = _UNITS.get(field.transform)
    if unit is None:
        return [text_of_bound(each) for each in values]
    times = np.datetime_as_string(values.fill_null(0).to_numpy().view(f"datetime64[{unit}]"))
    return [
        str(text).replace("T", "-") if known else None for text, known in zip(times, values.is_valid(), strict=True)
    ]


def range_keys(field: PartitionField, texts: pa.Array, type_: pa.DataType) -> tuple[pa.Array, pa.Array] | None:
    """Return two keys for each text (`data.rows.codes`).

    The first array contains the key of the smallest column value of each partition value. The second array contains the
    key of the greatest column value.

    An unknown key is null. The result is None for buckets, because a bucket may contain values of the whole range.
    """
    unit = _UNITS.get(field.transform)
    if unit is not None:
        return _of_times(texts, unit)
    if field.transform is PartitionTransform.BUCKET:
        return None
    low = bound_keys(texts, type_)
    if pa.types.is_string(type_):
        width = min(field.parameter or LONGEST_TEXT, LONGEST_TEXT)
        return low, _mapped(texts, lambda text: text if len(text) < width else next_after_prefix(text), pa.string())
    if field.transform is PartitionTransform.TRUNCATE:
        most = pc.min_element_wise(low, pa.scalar(_MOST - field.parameter + 1))
        return low, pc.add(most, field.parameter - 1)
    return low, low


def _of_times(texts: pa.Array, unit: str) -> tuple[pa.Array, pa.Array]:
    def start(text: str, step: int) -> int | None:
        try:
            first = np.array([f"{text[:10]}T{text[11:]}" if unit == "h" else text], f"datetime64[{unit}]")
        except ValueError:
            return None
        return int((first + step).astype("datetime64[us]").view(np.int64)[0]) - step

    first, last = (_mapped(texts, partial(start, step=step), pa.int64()) for step in (0, 1))
    return first, last


def _mapped(texts: pa.Array, make: Callable[[str], object], type_: pa.DataType) -> pa.Array:
    """Return the result of `make` for each text. Each distinct text is converted once."""
    coded = texts.dictionary_encode()
    found = pa.array([make(text) for text in coded.dictionary.to_pylist()], type_)
    return found.take(coded.indices)
