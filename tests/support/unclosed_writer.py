"""What a child of `multiprocessing` does with a writer: functions that every start method finds by their name."""

from __future__ import annotations

from storage_core.region.options import WriterOptions
from storage_core.region.router import TableWriter
from storage_core.table import Table

ROWS = [{"tailnum": str(number), "seats": 1} for number in range(3)]


def leave_rows(uri: str) -> None:
    """Give rows that nothing writes before the process ends, to a writer that nothing closes."""
    _opened(uri).put(ROWS, durable=False)


def close_all(uri: str) -> None:
    """Give the same rows and close the writer."""
    writer = _opened(uri)
    writer.put(ROWS, durable=False)
    writer.close()


def _opened(uri: str) -> TableWriter:
    return Table.open(uri).writer(options=WriterOptions(linger_ms=60_000))
