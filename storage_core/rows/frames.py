"""Data of other libraries as Arrow data: what a program that works with frames hands over.

None of these libraries is imported: what a value is, its class says.
"""

from __future__ import annotations

from typing import Any, TypeAlias, cast

import pyarrow as pa

from storage_core.errors import InvalidInput
from storage_core.rows.incoming import is_stream, reader_of

Data: TypeAlias = pa.Table | pa.RecordBatchReader
"""Its columns are known before a row is read."""


def arrow_data(value: object) -> Data:
    """Return Arrow data, a data frame of pandas or Polars, or what gives a stream of Arrow data, as Arrow data.

    A stream is not read yet; a lazy frame is. An index of pandas that has no name and only whole numbers, which count
    the rows of some frame, is left out. Raises `InvalidInput` for any other index, and for what is none of these.
    """
    library = type(value).__module__.partition(".")[0]
    if isinstance(value, pa.Table | pa.RecordBatchReader):
        return value
    if library == "pandas":
        return _of_pandas(value)
    if library == "polars" and hasattr(value, "collect"):
        value = value.collect()
    if is_stream(value):
        return reader_of(value)
    raise InvalidInput(f"rows are Arrow data or a data frame, found {type(value).__name__}")


def _of_pandas(frame: Any) -> pa.Table:
    import pandas as pd  # whose frame this is

    if not isinstance(frame, pd.DataFrame):
        raise InvalidInput(f"rows are Arrow data or a data frame, found a {type(frame).__name__} of pandas")
    if frame.index.name is not None or not pd.api.types.is_integer_dtype(frame.index.dtype):
        raise InvalidInput(
            "the data frame has an index, which is no column of a table: reset_index() makes it one, "
            "reset_index(drop=True) leaves it out"
        )
    try:
        return cast("pa.Table", pa.Table.from_pandas(frame, preserve_index=False)).replace_schema_metadata()
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise InvalidInput(f"a column of the data frame holds values of no one type: {error}") from error
