"""Splits as data files of an Iceberg table, with the statistics that the log has of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record
from pyiceberg.types import PrimitiveType

from storage_core.log.actions import Add
from storage_core.publishing.iceberg_schema import primitive
from storage_core.rows.bound_text import decode, has_bounds
from storage_core.rows.columns import column_id, numbered, stored_name
from storage_core.rows.statistics import TRUNCATE_AT

_EXACT = Context(prec=100)


class IcebergFiles:
    """Makes data files of a table with these columns, below a location."""

    def __init__(self, schema: pa.Schema, root: str) -> None:
        self._root = root
        columns = [(stored_name(each), column_id(each) or 0, each.type) for each in numbered(schema)]
        self._columns: list[tuple[str, int, pa.DataType, PrimitiveType]] = [
            (name, number, type_, found) for name, number, type_ in columns if (found := primitive(type_)) is not None
        ]

    def file(self, add: Add) -> DataFile:
        """Return a split that hides no row. Only what is certain of its columns is said: readers count by it."""
        rows, nulls = add.numRecords or 0, add.nullCounts or {}
        known = [(number, nulls[name]) for name, number, *_ in self._columns if name in nulls]
        bounds = [*self._bounds(add)]
        return DataFile.from_args(
            _table_format_version=2,
            content=DataFileContent.DATA,
            file_path=f"{self._root}/{add.path}",
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=rows,
            file_size_in_bytes=add.size,
            column_sizes=None,
            value_counts={number: rows for number, _ in known},
            null_value_counts=dict(known),
            nan_value_counts={number: 0 for number, type_, _, _ in bounds if pa.types.is_floating(type_)},
            lower_bounds={number: least for number, _, least, _ in bounds},
            upper_bounds={number: greatest for number, _, _, greatest in bounds},
            key_metadata=None,
            split_offsets=None,
            equality_ids=None,
            sort_order_id=None,
            spec_id=0,
        )

    def _bounds(self, add: Add) -> Iterator[tuple[int, pa.DataType, bytes, bytes]]:
        """The least and the greatest value of each column that has both: uncut, and no NaN."""
        least, greatest = add.minValues or {}, add.maxValues or {}
        for name, number, type_, iceberg_type in self._columns:
            if name not in least or name not in greatest or not has_bounds(type_):
                continue
            texts = least[name], greatest[name]
            if pa.types.is_string(type_) and max(map(len, texts)) >= TRUNCATE_AT:
                continue
            low, high = _value(texts[0], type_, -1), _value(texts[1], type_, 1)
            if low == low and high == high:  # noqa: PLR0124  # no NaN
                yield number, type_, to_bytes(iceberg_type, low), to_bytes(iceberg_type, high)


def _value(text: str, type_: pa.DataType, sign: int) -> Any:
    """A bound as Iceberg has it: decimals have all their places, and a zero is -0.0 as least and 0.0 as greatest."""
    found = decode(text, type_)
    if isinstance(found, Decimal):
        return found.quantize(Decimal(1).scaleb(-type_.scale), context=_EXACT)
    return math.copysign(found, sign) if isinstance(found, float) and found == 0 else found


def without_statistics(file: DataFile) -> DataFile:
    """Return the file as an entry has it that says that the file was removed: with nothing of its values."""
    named = ("content", "file_path", "file_format", "partition", "record_count", "file_size_in_bytes")
    return DataFile.from_args(
        _table_format_version=2, **{name: getattr(file, name) for name in named}, spec_id=file.spec_id
    )
