"""The data file of a generation that no WAL entries make up: an Arrow IPC stream, LZ4 (docs/architecture/ingestion.md,
"Memtable and generations").

Its xxh3-64 is in the manifest of the generation. Nothing refers to the file until that manifest is named.
"""

from __future__ import annotations

import pyarrow as pa
import xxhash

from storage_core.errors import Corrupt
from storage_core.formats.arrow_stream import read_stream

_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


def encode(records: pa.Table) -> bytes:
    """Return the bytes of the file; the records have the columns of `rows.fold.record_schema`."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, records.schema, options=_OPTIONS) as writer:
        writer.write_table(records)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def checksum(data: bytes) -> str:
    """Return the xxh3-64 of the file as hexadecimal text."""
    return xxhash.xxh3_64_hexdigest(data)


def decode(data: bytes, expected: str, where: str) -> pa.Table:
    """Return the records in order; `expected` is the checksum, `where` the key, for the error. Raises `Corrupt`."""
    found = checksum(data)
    if found != expected:
        raise Corrupt(f"{where}: damaged records of a generation: expected xxh3 {expected}, found {found}", key=where)
    return read_stream(data, "the data file of a generation", where)[0]
