"""Functions in which a child process uses a writer.

Every start method of `multiprocessing` can find these functions by name.
"""

from __future__ import annotations

from storage_core.table import Table
from storage_core.write.region.records import WriterOptions
from storage_core.write.region.router import TableWriter

ROWS = [{"tailnum": str(number), "seats": 1} for number in range(3)]


def leave_rows(uri: str) -> None:
    """Put rows with a writer that is never closed. Nothing writes the rows before the process ends."""
    _opened(uri).put(ROWS, durable=False)


def close_all(uri: str) -> None:
    """Put the same rows and close the writer."""
    writer = _opened(uri)
    writer.put(ROWS, durable=False)
    writer.close()


def _opened(uri: str) -> TableWriter:
    return Table.open(uri).writer(options=WriterOptions(linger_ms=60_000))
