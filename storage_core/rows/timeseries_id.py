"""`timeseries_id`: one number per series of points, which clusters them before the timestamp.

A series is a metric name, a type and tags. The columns follow from their names: `metric_name` (text) and `metric_type`
(a whole number from 0 to 255; none counts as 0), and as tags all other string columns but those of the value and the
time. A tag without a value is no part of the series.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import InvalidInput
from storage_core.rows.codes import codes
from storage_core.rows.keys import dense_ranks, pack
from storage_core.rows.siphash import siphash_2_4
from storage_core.rows.sort_order import SortOrder
from storage_core.rows.sort_schema import SERIES

METRIC_NAME: Final = "metric_name"
METRIC_TYPE: Final = "metric_type"
NO_TAGS: Final = frozenset({"start_timestamp_secs", "sum", "timestamp", "timestamp_secs", "value"})

_END: Final = b"\xff"
"""Occurs in no UTF-8 text."""


def with_series(rows: pa.Table, order: SortOrder) -> pa.Table:
    """Return the rows with `timeseries_id` computed where it is null; unchanged unless the order has such a column.

    Only a column of type int64 is computed. Raises `InvalidInput` for a metric type outside 0 to 255.
    """
    at = rows.schema.get_field_index(SERIES)
    if at < 0 or SERIES not in order.described:
        return rows
    column = rows.column(at)
    if not column.null_count or not pa.types.is_int64(column.type):
        return rows
    missing = column.is_null()
    computed = pc.replace_with_mask(column.combine_chunks(), missing.combine_chunks(), _ids(rows.filter(missing)))
    return rows.set_column(at, rows.schema.field(at), pa.chunked_array([computed]))


def series_ids(series: Sequence[tuple[str, int, Mapping[str, str]]]) -> npt.NDArray[np.int64]:
    """Return the id of every series, given as metric name, type and tags."""
    return siphash_2_4([_message(name, type_, tags) for name, type_, tags in series])


def _ids(rows: pa.Table) -> pa.Array:
    """The id of every row; each series is hashed once."""
    names = _identifying(rows.schema)
    ranks = dense_ranks(pack([codes(rows.column(name)) for name in names], rows.num_rows))
    _, first = np.unique(ranks, return_index=True)
    # without columns a table has no rows to list, but its rows are one series
    distinct = rows.select(names).take(pa.array(first)).to_pylist() if names else [{}]
    return pa.array(series_ids([_series(each) for each in distinct])[ranks])


def _identifying(schema: pa.Schema) -> list[str]:
    texts = [field.name for field in schema if pa.types.is_string(field.type) and field.name not in NO_TAGS]
    return [METRIC_TYPE, *texts] if _is_typed(schema) else texts


def _is_typed(schema: pa.Schema) -> bool:
    return METRIC_TYPE in schema.names and bool(pa.types.is_integer(schema.field(METRIC_TYPE).type))


def _series(row: dict[str, Any]) -> tuple[str, int, dict[str, str]]:
    type_ = row.pop(METRIC_TYPE) if isinstance(row.get(METRIC_TYPE), int) else 0
    if not 0 <= type_ <= 0xFF:
        raise InvalidInput(f"{METRIC_TYPE} is {type_}; it is a part of {SERIES} and must be from 0 to 255")
    name = row.pop(METRIC_NAME, None) or ""
    return name, type_, {key: value for key, value in row.items() if value is not None}


def _message(name: str, type_: int, tags: Mapping[str, str]) -> bytes:
    texts = (text.encode() + _END for key in sorted(tags) for text in (key, tags[key]))
    return name.encode() + _END + bytes([type_]) + b"".join(texts)
