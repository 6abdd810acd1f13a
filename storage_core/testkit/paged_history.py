"""Reading the history of a keyed table page by page, each in a process that knows nothing but the token before it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.read.as_of import snapshot_at
from storage_core.read.history_pages import HistoryPage, Views, read_pages
from storage_core.rows import fold

WHOLE = 2**40
"""Page bytes of a history in one page."""


def views(log: TransactionLog) -> Views:
    """Return what a process sees that opens the table now and refreshes it when it is asked for the newest."""
    opened: list[Snapshot] = [log.snapshot()]

    def newest() -> Snapshot:
        opened.append(log.refresh(opened[-1]))
        return opened[-1]

    def reopened() -> Snapshot:
        opened.append(log.snapshot())
        return opened[-1]

    def at(version: int) -> Snapshot:
        return opened[-1] if opened[-1].version == version else snapshot_at(log, version)

    return Views(store=log.store, current=lambda: opened[-1], newest=newest, reopened=reopened, at=at)


def page_of(
    log: TransactionLog, token: str | None = None, *, page_bytes: int = WHOLE, consistency: str | None = None
) -> HistoryPage:
    """Return one page."""
    return next(read_pages(views(log), token=token, page_bytes=page_bytes, consistency=consistency))


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
