"""Batch ingest: landed files become splits, each row exactly once (docs/architecture/ingestion.md, "Batch ingest").

The unit is one file in one window. A run plans on a snapshot, executes its work items anywhere, and commits the adds
and the records of `ingest.progress` together. Every run records each window that it writes, even when it was asked for
the whole file. So of two runs that wrote the same rows, the second commit meets a record of its own windows: it is a
no-op when all of them are in, and a `CommitConflict` (plan again) when some are. Splits of a run that did not commit
are orphans.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from storage_core.errors import InvalidInput, NotFound
from storage_core.ids import Ids
from storage_core.ingest.content import ContentHash, as_hex
from storage_core.ingest.landing import LandedFile, LandingSpec, content_of, is_unchanged
from storage_core.ingest.lines import BLOCK_BYTES
from storage_core.ingest.parse import parse_blocks
from storage_core.ingest.progress import (
    FileProgress,
    Window,
    content_app,
    file_app,
    pending,
    progress,
    rejected_app,
    replaced_app,
    window_app,
)
from storage_core.ingest.quarantine import write_quarantine
from storage_core.ingest.rejection import RejectedLine
from storage_core.ingest.spans import Durations, outside
from storage_core.ingest.tally import tally
from storage_core.ingest.work import IngestResult, IngestWork
from storage_core.late_row_filter import LateRowFilter, Origin
from storage_core.log.actions import Add, Txn
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.rows.late import LateRule
from storage_core.rows.windows import by_start, window_starts
from storage_core.settings.table import TableConfig
from storage_core.split.context import SplitContext
from storage_core.split.write import sort_and_write

_logger = logging.getLogger(__name__)


def plan(
    snapshot: Snapshot, spec: LandingSpec, files: Iterable[LandedFile], windows: Collection[Window] | None = None
) -> list[IngestWork]:
    """Return one work item per file that has something left for `windows` (None: all of them), in the order given.

    No request: files are not opened, so an item may turn out to hold nothing of these windows. Raises `InvalidInput`
    when windows are asked of a table without.
    """
    if windows is not None and snapshot.config.window_seconds is None:
        raise InvalidInput("the table has no windows; ingest its landed files whole", windows=sorted(map(str, windows)))
    listed = pending(snapshot, files)
    known = progress(snapshot.txns, listed, Durations.of(snapshot.config))
    wanted = None if windows is None else tuple(sorted(set(windows), key=by_start))
    items = [_work(file, spec, known[file.path], wanted) for file in listed]
    return [item for item in items if item.windows is None or set(item.windows) - set(item.done)]


def may_have_new_rows(work: IngestWork) -> bool:
    """Return False if the content of the file is in the table already, under another ETag.

    Copied files have other ETags. Cost: reads the whole file if only its content can decide, otherwise nothing.
    """
    is_all_in = work.whole and not work.seen and len(set(work.contents)) == 1
    known = () if work.ingested_size is not None else work.contents if is_all_in else work.pruned
    try:
        return not known or content_of(work.landed) not in known
    except NotFound:
        return True


def execute(
    store: ObjectStore,
    work: IngestWork,
    *,
    context: SplitContext,
    ids: Ids,
    now_ms: int,
    block_bytes: int = BLOCK_BYTES,
) -> IngestResult:
    """Write what is left of one file as sorted splits, quarantine what is no row, and return the actions to commit.

    Nothing is committed here. Repeating it writes other splits (the first ones become orphans) and the same quarantine
    objects: rows are judged late by when their file landed, not by when this runs. A file that is gone gives an empty
    result with a rejection that is not recorded, and so does one that changes while it is read. Memory: a few blocks of
    `block_bytes` of text; a window has a split per block. Requests: one or two per landed block, one HEAD per file, one
    PUT per split, per block with rejections, and per block and window with late rows to quarantine.
    """
    landed = work.landed
    if work.ingested_size is not None:
        was = f"was {work.ingested_size} bytes, is {landed.size}"
        return _reject_file(store, work, f"the file changed after it was ingested ({was}); land it under a new name")
    try:
        if work.contents and not work.seen:
            work = replace(work, contents=(*work.contents, content_of(landed)))
        if len(set(work.contents)) > 1:
            return _reject_replaced(store, work)
        if work.pruned and (content := content_of(landed)) in work.pruned:
            result = _came_back(landed, content, now_ms)
        else:
            run = _Run(store, work, context, now_ms)
            known = work.contents[0] if work.contents else None
            result = run.result(known) if work.whole else _read(run, store, work, ids=ids, block_bytes=block_bytes)
    except NotFound as error:
        return _not_now(landed, f"the file is gone: {error}")
    return result if is_unchanged(landed) else _not_now(landed, "the file changed while it was read")


def _read(run: _Run, store: ObjectStore, work: IngestWork, *, ids: Ids, block_bytes: int) -> IngestResult:
    """Take all blocks of a file that is still what rows of it were read from, if any were."""
    landed, context = work.landed, run.context
    content = None if work.contents else ContentHash()
    blocks = parse_blocks(
        landed,
        work.spec,
        context.schema,
        context.time_column,
        nonzero=TableConfig.from_configuration(context.configuration).nonzero_vectors,
        block_bytes=block_bytes,
        content=content,
    )
    for block in blocks:
        if block.unreadable:
            return _reject_file(store, work, block.rejected[0].reason)
        run.take(block.rows, block.rejected, ids=ids)
    result = run.result(work.contents[0] if content is None else content.value)
    _logger.info(
        "ingested %s: %d rows into %d splits, %d rejected",
        landed.path,
        result.rows_out,
        len(result.adds),
        sum(result.rejected.values()) + result.rejected_before,
    )
    return result


class _Run:
    """The blocks of one file, taken one after the other."""

    def __init__(self, store: ObjectStore, work: IngestWork, context: SplitContext, now_ms: int) -> None:
        self._store, self._work, self.context, self._now_ms = store, work, context, now_ms
        self._config = TableConfig.from_configuration(context.configuration)
        self._late_filter = LateRowFilter(
            store,
            LateRule.of(self._config),
            Origin(source=work.landed.path, by="ingest", size=work.landed.size),
            window_seconds=context.window_seconds,
        )
        self._adds: list[Add] = []
        self._windows: set[Window] = set()
        self._rejected: dict[str, int] = {}
        self._rejected_before = 0
        self._keys: list[str] = []
        self._rows_in = 0

    def take(self, rows: pa.Table, rejected: tuple[RejectedLine, ...], *, ids: Ids) -> None:
        """Write the rows of the windows that are wanted and not done, and the rejections."""
        self._rows_in += rows.num_rows + len(rejected)
        landed_ms = self._work.landed.landed_ms
        wanted = self._late_filter.admit(self._wanted(rows), self._now_ms if landed_ms is None else landed_ms)
        self._adds += sort_and_write(self._store, wanted, context=self.context, ids=ids, now_ms=self._now_ms)
        if rejected:
            landed = self._work.landed
            kept = write_quarantine(self._store, landed.path, landed.size, rejected)
            self._keys.append(kept.key)
            if kept.is_new:
                self._rejected = tally(self._rejected, Counter(line.reason for line in rejected))
            else:
                self._rejected_before += len(rejected)

    def result(self, content: int | None) -> IngestResult:
        """Return everything taken, with the records that make it exactly once."""
        work = self._work
        written = {window for window in self._windows if self._is_wanted(window)}
        complete = self._windows <= written | set(work.done)
        seconds = Durations.of(self._config).recorded
        apps = [window_app(work.landed.path, window, seconds) for window in sorted(written, key=by_start)]
        if complete and not work.whole:
            apps.append(file_app(work.landed.path))
        txns = [Txn(appId=app, version=work.landed.size, lastUpdated=self._now_ms) for app in apps]
        if content is not None and not work.seen and (txns or work.whole):
            txns.append(Txn(appId=content_app(work.landed), version=content, lastUpdated=self._now_ms))
        return IngestResult(
            file=work.landed.path,
            adds=tuple(self._adds),
            txns=tuple(txns),
            rows_in=self._rows_in,
            rows_out=sum(add.numRecords or 0 for add in self._adds),
            bytes_in=work.landed.size,
            windows=tuple(sorted(self._windows, key=by_start)),
            rejected=self._rejected,
            rejected_before=self._rejected_before,
            quarantine_keys=(*self._keys, *self._late_filter.keys),
            late=self._late_filter.metrics,
        )

    def _wanted(self, rows: pa.Table) -> pa.Table:
        context = self.context
        if context.window_seconds is None or context.time_column is None:
            return rows
        rows = outside(rows, context.time_column, self._work.spans)
        starts = window_starts(rows.column(context.time_column), context.window_seconds)
        present: set[Window] = set(starts.unique().to_pylist())
        self._windows |= present
        refused = {window for window in present if not self._is_wanted(window)}
        if not refused:
            return rows
        return rows.filter(pa.array(~_is_any_of(starts, refused)))

    def _is_wanted(self, window: Window) -> bool:
        work = self._work
        return window not in work.done and (work.windows is None or window in work.windows)


def _work(file: LandedFile, spec: LandingSpec, known: FileProgress, windows: tuple[Window, ...] | None) -> IngestWork:
    return IngestWork(
        landed=file,
        spec=spec,
        windows=windows,
        done=tuple(sorted(known.windows, key=by_start)),
        spans=tuple(sorted(known.spans)),
        ingested_size=known.ingested_size if known.has_changed(file.size) else None,
        rejected_size=known.rejected_size,
        whole=known.whole,
        contents=tuple(sorted(set(known.contents.values()))),
        seen=known.has_seen(file),
        pruned=() if known.contents else tuple(sorted(known.pruned)),
    )


def _came_back(landed: LandedFile, content: int, now_ms: int) -> IngestResult:
    """All rows of the file are in since before it went away: that is recorded again, so that nobody reads it again."""
    _logger.info("%s is back with the content whose rows are in: none of them is new", landed.path)
    records = ((file_app(landed.path), landed.size), (content_app(landed), content))
    txns = tuple(Txn(appId=app, version=version, lastUpdated=now_ms) for app, version in records)
    return IngestResult(file=landed.path, txns=txns, bytes_in=landed.size)


def _not_now(landed: LandedFile, reason: str) -> IngestResult:
    """Nothing is recorded: the next run looks again."""
    return IngestResult(file=landed.path, rejected={reason: 1})


def _reject_file(store: ObjectStore, work: IngestWork, reason: str) -> IngestResult:
    landed = work.landed
    # A record never goes back. After a rejection at a larger size, this one is looked at again by every run.
    is_new = work.rejected_size is None or work.rejected_size < landed.size
    return _rejected(store, landed, reason, (rejected_app(landed.path),) if is_new else ())


def _reject_replaced(store: ObjectStore, work: IngestWork) -> IngestResult:
    """By its ETag, not by its size: the file that was there before may come back."""
    contents = ", ".join(map(as_hex, work.contents))
    reason = f"the file changed after it was ingested (same size, contents {contents}); land it under a new name"
    return _rejected(store, work.landed, reason, (replaced_app(work.landed),))


def _rejected(store: ObjectStore, landed: LandedFile, reason: str, apps: Iterable[str]) -> IngestResult:
    kept = write_quarantine(store, landed.path, landed.size, [RejectedLine(landed.path, None, reason, "")])
    _logger.info("rejected %s: %s", landed.path, reason)
    return IngestResult(
        file=landed.path,
        txns=tuple(Txn(appId=app, version=landed.size) for app in apps),
        rows_in=1,
        bytes_in=landed.size,
        rejected=tally({reason: 1}) if kept.is_new else {},
        rejected_before=0 if kept.is_new else 1,
        quarantine_keys=(kept.key,),
    )


def _is_any_of(starts: pa.Int64Array, windows: set[Window]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    among = np.isin(starts.fill_null(0).to_numpy(), [each for each in windows if each is not None])
    is_null = np.asarray(starts.is_null())
    return np.where(is_null, None in windows, among)
