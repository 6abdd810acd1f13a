"""Parquet files: typed already, so only required values and the calendar are checked row by row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from storage_core.errors import Corrupt, InvalidInput
from storage_core.ingest.rejection import Parsed, RejectedLine
from storage_core.rows.calendar import BEYOND, as_text, beyond
from storage_core.rows.schema import conform

_BATCH_ROWS = 250_000


def parquet_blocks(file: str, stream: BinaryIO, schema: pa.Schema) -> Iterator[Parsed]:
    """Yield the records of a Parquet file, numbered from 1.

    A record without a required value, or with a time beyond the calendar, is rejected. Raises `Corrupt` for a cut or
    damaged file, and for one whose columns do not convert exactly to the table's.
    """
    first_number = 1
    for batch in _batches(stream):
        yield _rows(file, batch, first_number, schema)
        first_number += batch.num_rows


def _batches(stream: BinaryIO) -> Iterator[pa.RecordBatch]:
    try:
        # In this thread, nothing ahead: one that holds the stream would abort the process where Python ends first.
        yield from pq.ParquetFile(stream, pre_buffer=False).iter_batches(batch_size=_BATCH_ROWS, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(f"it is not a whole Parquet file ({error})") from error


def _rows(file: str, batch: pa.RecordBatch, first_number: int, schema: pa.Schema) -> Parsed:
    optional = pa.schema([field.with_nullable(nullable=True) for field in schema])
    try:
        rows = conform(batch, optional)
    except InvalidInput as error:
        raise Corrupt(f"its columns are not those of the table ({error})") from error
    rejected: list[RejectedLine] = []
    complete = np.ones(rows.num_rows, np.bool_)
    for reason, found in _faults(rows, schema):
        faulty = found & complete
        complete &= ~faulty
        rejected += [
            RejectedLine(file, first_number + int(index), reason, _values(rows, int(index)))
            for index in np.flatnonzero(faulty)
        ]
    kept = rows.filter(pa.array(complete)) if rejected else rows
    return Parsed(conform(kept, schema), ()).and_rejected(rejected)


def _faults(rows: pa.Table, schema: pa.Schema) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
    """Yield why rows cannot be taken, and which, column by column."""
    for field in schema:
        column = rows.column(field.name)
        if not field.nullable and column.null_count:
            yield f"column {field.name}: a value is required", np.asarray(column.is_null())
        outside = beyond(column)
        if outside is not None:
            yield f"column {field.name}: {BEYOND}", np.asarray(outside.fill_null(fill_value=False))


def _values(rows: pa.Table, index: int) -> str:
    return json.dumps(as_text(rows.slice(index, 1)).to_pylist()[0], default=str, ensure_ascii=False)
