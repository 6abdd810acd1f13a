"""The history of a keyed table, read page by page. Each page is read by a process that has only the last token."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from storage_core.data.rows import fold
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.read.history import HistoryPage, read_pages
from storage_core.read.view import View

WHOLE = 2**40
"""A page size in bytes that makes the whole history one page."""


def view_of(log: TransactionLog) -> View:
    """Return the view that a process gets when it opens the table now."""
    return View(log, log.snapshot())


def page_of(
    log: TransactionLog, token: str | None = None, *, page_bytes: int = WHOLE, consistency: str | None = None
) -> HistoryPage:
    """Return one page."""
    return next(read_pages(view_of(log), token=token, page_bytes=page_bytes, consistency=consistency))


def pages_of(log: TransactionLog, token: str | None = None, *, page_bytes: int = WHOLE) -> Iterator[HistoryPage]:
    """Yield this page and all later pages. Each page is requested with the token of the previous page."""
    while True:
        page = page_of(log, token, page_bytes=page_bytes)
        yield page
        token = page.token
        if token is None:
            return


def folded(records: pa.Table, snapshot: Snapshot) -> dict[object, dict[str, object]]:
    """Apply the records to an empty table. Return a dictionary from the first key column to the row."""
    key = snapshot.config.primary_key
    rows = fold.apply(snapshot.schema.empty_table(), fold.fold(records, key), key).to_pylist()
    return {row[key[0]]: row for row in rows}
