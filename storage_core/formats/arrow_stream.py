"""Reading Arrow IPC streams that somebody else may have made: whatever is in the bytes, a table or `Corrupt`."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from storage_core.errors import Corrupt

# A stream of ours has the first kind only; Arrow raises each of the others for some bytes it has never seen.
_REFUSALS = (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError, TypeError, KeyError, RecursionError)
_DEEPEST = 64
"""Nesting of a column's type, to which Spark's and Parquet's readers do not come near."""


def read_stream(data: bytes | memoryview, what: str, where: str) -> tuple[pa.Table, Mapping[bytes, bytes]]:
    """Return the rows of the stream, every value of which may be looked at, and the metadata of its schema.

    `what` and `where`, the key, are for the error. Raises `Corrupt` for bytes that are no such stream: claims of
    lengths that do not hold, offsets outside of their values, text that is no UTF-8. Memory: what the rows take.
    """
    try:
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            _require_shallow(reader.schema)
            records = reader.read_all()
        records.validate(full=True)
    except _REFUSALS as error:
        raise Corrupt(f"{where}: {what} is no Arrow stream: {str(error)[:500]}", key=where) from error
    return records, records.schema.metadata or {}


def _require_shallow(schema: pa.Schema) -> None:
    level, kinds = 0, [field.type for field in schema]
    while kinds:
        level += 1
        if level > _DEEPEST:
            raise ValueError(f"a column nests deeper than {_DEEPEST} types")
        kinds = [kind.field(number).type for kind in kinds for number in range(kind.num_fields)]
