"""Reading the history of a keyed table page by page, each in a process that knows nothing but the token before it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.read.history_pages import HistoryPage, read_pages
from storage_core.read.view import View
from storage_core.rows import fold

WHOLE = 2**40
"""Page bytes of a history in one page."""


def view_of(log: TransactionLog) -> View:
    """Return what a process sees that opens the table now."""
    return View(log, log.snapshot())


def page_of(
    log: TransactionLog, token: str | None = None, *, page_bytes: int = WHOLE, consistency: str | None = None
) -> HistoryPage:
    """Return one page."""
    return next(read_pages(view_of(log), token=token, page_bytes=page_bytes, consistency=consistency))


def pages_of(log: TransactionLog, token: str | None = None, *, page_bytes: int = WHOLE) -> Iterator[HistoryPage]:
    """Yield this page and all that follow, each asked for with the token of the one before."""
    while True:
        page = page_of(log, token, page_bytes=page_bytes)
        yield page
        token = page.token
        if token is None:
            return


def folded(records: pa.Table, snapshot: Snapshot) -> dict[object, dict[str, object]]:
    """Return the rows that the records make, by the first column of the key."""
    key = snapshot.config.primary_key
    rows = fold.apply(snapshot.schema.empty_table(), fold.fold(records, key), key).to_pylist()
    return {row[key[0]]: row for row in rows}
