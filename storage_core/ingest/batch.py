"""Batch ingest: landed files become splits, each row exactly once (design page 03, "batch ingest").

The unit is one file in one window. A run plans on a snapshot, executes its work items anywhere, and commits the adds
and the records of `ingest.progress` together. Every run records each window that it writes, even when it was asked for
the whole file. So of two runs that wrote the same rows, the second commit meets a record of its own windows: it is a
no-op when all of them are in, and a `CommitConflict` (plan again) when some are. Splits of a run that did not commit
are orphans.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from storage_core.config import TableConfig
from storage_core.errors import InvalidInput, NotFound
from storage_core.ids import Ids
from storage_core.ingest.landing import LandedFile, LandingSpec
from storage_core.ingest.lines import BLOCK_BYTES
from storage_core.ingest.parse import RejectedLine, parse_blocks
from storage_core.ingest.progress import (
    FileProgress,
    Window,
    file_app,
    pending,
    progress,
    rejected_app,
    window_app,
)
from storage_core.ingest.quarantine import write_quarantine
from storage_core.ingest.tally import tally
from storage_core.log.action_json import read_actions, write_actions
from storage_core.log.actions import Action, Add, Txn
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.quarantine import LateDoor, Origin
from storage_core.rows.late import LateFigures, LateRule
from storage_core.rows.windows import window_starts
from storage_core.split.write import SplitContext, sort_and_write

__all__ = ["IngestResult", "IngestWork", "execute", "pending", "plan"]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestWork:
    """One file to ingest; travels to a task as JSON.

    `windows` None means every window, `done` those that are in already. `ingested_size` is set when the file was
    ingested at another size: it is rejected unread. `rejected_size` is the size it was rejected at before, if ever.
    """

    landed: LandedFile
    spec: LandingSpec
    windows: tuple[Window, ...] | None = None
    done: tuple[Window, ...] = ()
    ingested_size: int | None = None
    rejected_size: int | None = None

    def to_json(self) -> str:
        """Return the text from which `from_json` makes an equal work item."""
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> IngestWork:
        """Return the work item that `to_json` wrote."""
        body = json.loads(text)
        windows = body.pop("windows")
        return IngestWork(
            landed=LandedFile(**body.pop("landed")),
            spec=LandingSpec.from_json(json.dumps(body.pop("spec"))),
            windows=None if windows is None else tuple(windows),
            done=tuple(body.pop("done")),
            **body,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestResult:
    """What one work item gives to the commit: `actions` are its adds and its records, to be committed together.

    `rows_in` counts the rows and rejected lines of the whole file, `rows_out` the rows written, `windows` all windows
    in which the file has rows; `rejected` counts lines by reason (`tally`), `late` the late rows of the windows that
    this item settles: those set aside are in `rows_in` only. Without actions there is nothing to commit.
    """

    file: str
    adds: tuple[Add, ...] = ()
    txns: tuple[Txn, ...] = ()
    rows_in: int = 0
    rows_out: int = 0
    bytes_in: int = 0
    windows: tuple[Window, ...] = ()
    rejected: Mapping[str, int] = field(default_factory=dict)
    quarantine_keys: tuple[str, ...] = ()
    late: LateFigures = field(default_factory=LateFigures)

    @property
    def actions(self) -> list[Action]:
        """The actions that must go into one commit."""
        return [*self.adds, *self.txns]

    @property
    def bytes_out(self) -> int:
        """Bytes of the splits written."""
        return sum(add.size for add in self.adds)

    def to_json(self) -> str:
        """Return the text from which `from_json` makes an equal result."""
        body: dict[str, Any] = {name: getattr(self, name) for name in _PLAIN_FIELDS}
        body |= {"rejected": dict(self.rejected), "late": asdict(self.late)}
        body |= {"adds": write_actions(self.adds), "txns": write_actions(self.txns)}
        return json.dumps(body, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> IngestResult:
        """Return the result that `to_json` wrote."""
        body = json.loads(text)
        windows, keys = tuple(body.pop("windows")), tuple(body.pop("quarantine_keys"))
        return IngestResult(
            adds=read_actions(body.pop("adds"), Add, "ingest result"),
            txns=read_actions(body.pop("txns"), Txn, "ingest result"),
            windows=windows,
            quarantine_keys=keys,
            late=LateFigures(**body.pop("late")),
            **body,
        )


_PLAIN_FIELDS = ("file", "rows_in", "rows_out", "bytes_in", "windows", "quarantine_keys")


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
    known = progress(snapshot.txns, listed)
    wanted = None if windows is None else tuple(sorted(set(windows), key=_by_time))
    items = [_work(file, spec, known[file.path], wanted) for file in listed]
    return [item for item in items if item.windows is None or set(item.windows) - set(item.done)]


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
    result with a rejection that is not recorded. Memory: a few blocks of `block_bytes` of text; a window has a split
    per block. Requests: one or two per landed block, one PUT per split, per block with rejections, and per block and
    window with late rows to quarantine.
    """
    landed = work.landed
    if work.ingested_size is not None:
        return _reject_file(
            store,
            work,
            f"the file changed after it was ingested (was {work.ingested_size} bytes, is {landed.size}); "
            "land it under a new name",
        )
    run = _Run(store, work, context, now_ms)
    blocks = parse_blocks(landed, work.spec, context.schema, context.time_column, block_bytes=block_bytes)
    try:
        for block in blocks:
            if block.unreadable:
                return _reject_file(store, work, block.rejected[0].reason)
            run.take(block.rows, block.rejected, ids=ids)
    except NotFound as error:
        return IngestResult(file=landed.path, rejected={f"the file is gone: {error}": 1})
    result = run.result()
    _logger.info(
        "ingested %s: %d rows into %d splits, %d rejected",
        landed.path,
        result.rows_out,
        len(result.adds),
        sum(result.rejected.values()),
    )
    return result


class _Run:
    """The blocks of one file, taken one after the other."""

    def __init__(self, store: ObjectStore, work: IngestWork, context: SplitContext, now_ms: int) -> None:
        self._store, self._work, self._context, self._now_ms = store, work, context, now_ms
        self._door = LateDoor(
            store,
            LateRule.of(TableConfig.from_configuration(context.configuration)),
            Origin(source=work.landed.path, by="ingest", size=work.landed.size),
            window_seconds=context.window_seconds,
        )
        self._adds: list[Add] = []
        self._windows: set[Window] = set()
        self._rejected: dict[str, int] = {}
        self._keys: list[str] = []
        self._rows_in = 0

    def take(self, rows: pa.Table, rejected: tuple[RejectedLine, ...], *, ids: Ids) -> None:
        """Write the rows of the windows that are wanted and not done, and the rejections."""
        self._rows_in += rows.num_rows + len(rejected)
        landed_ms = self._work.landed.landed_ms
        wanted = self._door.admit(self._wanted(rows), self._now_ms if landed_ms is None else landed_ms)
        self._adds += sort_and_write(self._store, wanted, context=self._context, ids=ids, now_ms=self._now_ms)
        if rejected:
            self._rejected = tally(self._rejected, Counter(line.reason for line in rejected))
            landed = self._work.landed
            self._keys.append(write_quarantine(self._store, landed.path, landed.size, rejected))

    def result(self) -> IngestResult:
        """Return everything taken, with the records that make it exactly once."""
        work = self._work
        written = {window for window in self._windows if self._is_wanted(window)}
        complete = self._windows <= written | set(work.done)
        apps = [window_app(work.landed.path, window) for window in sorted(written, key=_by_time)]
        if complete:
            apps.append(file_app(work.landed.path))
        return IngestResult(
            file=work.landed.path,
            adds=tuple(self._adds),
            txns=tuple(Txn(appId=app, version=work.landed.size, lastUpdated=self._now_ms) for app in apps),
            rows_in=self._rows_in,
            rows_out=sum(add.numRecords or 0 for add in self._adds),
            bytes_in=work.landed.size,
            windows=tuple(sorted(self._windows, key=_by_time)),
            rejected=self._rejected,
            quarantine_keys=(*self._keys, *self._door.keys),
            late=self._door.figures,
        )

    def _wanted(self, rows: pa.Table) -> pa.Table:
        context = self._context
        if context.window_seconds is None or context.time_column is None:
            return rows
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
        done=tuple(sorted(known.windows, key=_by_time)),
        ingested_size=known.ingested_size if known.has_changed(file.size) else None,
        rejected_size=known.rejected_size,
    )


def _reject_file(store: ObjectStore, work: IngestWork, reason: str) -> IngestResult:
    landed = work.landed
    key = write_quarantine(store, landed.path, landed.size, [RejectedLine(landed.path, None, reason, "")])
    _logger.info("rejected %s: %s", landed.path, reason)
    # A record never goes back. After a rejection at a larger size, this one is looked at again by every run.
    is_new = work.rejected_size is None or work.rejected_size < landed.size
    txns = (Txn(appId=rejected_app(landed.path), version=landed.size),) if is_new else ()
    return IngestResult(
        file=landed.path,
        txns=txns,
        rows_in=1,
        bytes_in=landed.size,
        rejected=tally({reason: 1}),
        quarantine_keys=(key,),
    )


def _is_any_of(starts: pa.Int64Array, windows: set[Window]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    among = np.isin(starts.fill_null(0).to_numpy(), [each for each in windows if each is not None])
    is_null = np.asarray(starts.is_null())
    return np.where(is_null, None in windows, among)


def _by_time(window: Window) -> tuple[bool, int]:
    return window is None, window or 0
