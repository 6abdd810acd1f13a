"""Batch ingest: landed files become splits, each row exactly once (docs/architecture/ingestion.md, "Batch ingest").

The unit of ingest is one file in one window. A run plans on a snapshot, executes its work items in any processes, and
commits the splits together with the records of `ingest.progress`. Every run records each window that it writes, even
if it ingests the whole file. So if two runs write the same rows, the second commit finds records of its own windows.
If all windows of the second run are recorded, its commit does nothing. If only some of them are recorded, the commit
raises `CommitConflict` and the run must be planned again. Splits of a run that did not commit are orphans.

Parsing turns every line of a file into a row of the table's schema, or into a rejection with a line number and a
reason. It works on whole blocks with Arrow and DuckDB, never line by line. Memory holds a few blocks for a file of any
size. A file that cannot be read to its end gives no rows, but one rejection without a line number.
"""

from __future__ import annotations

import gzip
import json
import logging
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, assert_never

import numpy as np
import pyarrow as pa

from storage_core.base.clock import Ids
from storage_core.base.errors import Corrupt, InvalidInput, NotFound, Unavailable, out_of_memory
from storage_core.data.rows.windows import LateMetrics, LateRule, by_start, window_starts
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Action, Add, Txn, read_actions, write_actions
from storage_core.log.snapshot import Snapshot
from storage_core.split.context import SplitContext
from storage_core.split.writer import sort_and_write
from storage_core.store.contract import ObjectStore
from storage_core.write.ingest.arrow_blocks import arrow_blocks
from storage_core.write.ingest.avro_blocks import avro_blocks
from storage_core.write.ingest.convert import BLOCK_BYTES, Parsed, RejectedLine, RowFormat, tally, write_quarantine
from storage_core.write.ingest.json_elements import read_elements
from storage_core.write.ingest.landing import (
    ContentHash,
    LandedFile,
    LandingSpec,
    as_hex,
    content_of,
    is_unchanged,
    open_bytes,
    open_text,
)
from storage_core.write.ingest.parquet_files import parquet_blocks
from storage_core.write.ingest.progress import (
    Durations,
    FileProgress,
    Span,
    Window,
    content_app,
    file_app,
    outside,
    pending,
    progress,
    rejected_app,
    replaced_app,
    window_app,
)
from storage_core.write.ingest.text_files import csv_blocks, ndjson_blocks, pattern_blocks
from storage_core.write.late_rows import LateRowFilter, Origin


def parse_file(
    landed: LandedFile,
    spec: LandingSpec,
    schema: pa.Schema,
    time_column: str | None,
    *,
    nonzero: Collection[str] = (),
) -> Parsed:
    """Return the whole file at once (see `parse_blocks`)."""
    blocks = list(parse_blocks(landed, spec, schema, time_column, nonzero=nonzero))
    if blocks and blocks[-1].unreadable:
        return blocks[-1]
    rows = pa.concat_tables([schema.empty_table(), *(block.rows for block in blocks)])
    return Parsed(rows, tuple(line for block in blocks for line in block.rejected))


def parse_blocks(
    landed: LandedFile,
    spec: LandingSpec,
    schema: pa.Schema,
    time_column: str | None,
    *,
    nonzero: Collection[str] = (),
    block_bytes: int = BLOCK_BYTES,
    content: ContentHash | None = None,
) -> Iterator[Parsed]:
    """Yield the file in blocks. If the last block is marked `unreadable`, all earlier blocks of the file are invalid.

    Rows keep the order of the file. These files are unreadable:

    - a truncated or damaged gzip or Parquet file
    - a file whose columns are not the columns of the table
    - a file that has changed since it was listed

    Args:
        nonzero: embedding columns. Zero embeddings in these columns are rejected.
        content: receives the hash of the file's bytes after the last block of a readable file.

    Raises:
        NotFound: the file does not exist any more.
        Unavailable: the location cannot be read, or there is not enough memory.
        InvalidInput: the spec does not fit the schema, so no file can be read with it.
    """
    import duckdb

    spec.check_time_format()
    times = spec.times_of(landed)
    target = RowFormat(schema, time_column, spec.time_format, spec.null_values, frozenset(nonzero), times)
    try:
        yield from _blocks(landed, spec, target, block_bytes=block_bytes, content=content)
    except (Corrupt, EOFError, zlib.error, gzip.BadGzipFile) as error:
        found = error.found if isinstance(error, Corrupt) else error
        reason = f"the file cannot be used: {found}. Land the whole file again under a new name"
        yield Parsed(schema.empty_table(), (RejectedLine(landed.path, None, reason, ""),), unreadable=True)
    except (OSError, MemoryError, duckdb.Error) as error:
        if out_of_memory(error):
            problem = (str(error).splitlines() or ["MemoryError"])[0]
            raise Unavailable(
                f"{landed.uri}/{landed.path}: too large for the available memory ({problem}). Give the task more "
                "memory, or land the file in pieces",
                file=landed.path,
            ) from error
        if not isinstance(error, OSError):
            raise
        raise Unavailable(f"{landed.uri}/{landed.path}: {error}", file=landed.path) from error


_TYPED_BLOCKS: Mapping[str, Callable[..., Iterator[Parsed]]] = {
    "parquet": parquet_blocks,
    "avro": avro_blocks,
    "arrow": arrow_blocks,
}


def _blocks(
    landed: LandedFile, spec: LandingSpec, target: RowFormat, *, block_bytes: int, content: ContentHash | None
) -> Iterator[Parsed]:
    if spec.format in _TYPED_BLOCKS:
        read = _TYPED_BLOCKS[spec.format]
        with open_bytes(landed, content) as stream:
            yield from read(landed.path, stream, target.schema, nonzero=target.nonzero, times=target.times)
        return
    with open_text(landed, content, spec.encoding) as stream:
        match spec.format:
            case "pattern":
                pattern = spec.pattern or ""
                yield from pattern_blocks(landed.path, stream, target, pattern=pattern, block_bytes=block_bytes)
            case "ndjson":
                yield from ndjson_blocks(landed.path, stream, target, block_bytes=block_bytes)
            case "json":
                blocks = ndjson_blocks(landed.path, stream, target, block_bytes=block_bytes, read=read_elements)
                yield from blocks
            case "csv":
                yield from csv_blocks(landed.path, stream, target, block_bytes=block_bytes, dialect=spec.dialect)
            case "delta" | "parquet" | "avro" | "arrow":
                raise InvalidInput(f"{landed.path}: a Delta table is read by its versions, not by file")
            case _:
                assert_never(spec.format)


# Work and result of a batch ingest. Both travel between driver and tasks as JSON.


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestWork:
    """One file to ingest. Travels to a task as JSON.

    - `windows`: the windows to ingest. None means every window.
    - `done`: windows that are already in the table.
    - `spans`: windows of other durations whose rows are already in the table.
    - `ingested_size`: set if the file was ingested with another size. The file is then rejected without reading.
    - `rejected_size`: the size with which the file was rejected before. None if the file was never rejected.
    - `contents`: the contents from which rows of the file were read. Unless `seen` is set, the file is read to check
      whether it still has one of these contents.
    - `whole`: all rows of the file are already in the table. The content of the file may still have to be recorded.
    - `pruned`: contents that were completely in the table when a file of this path disappeared. This list is used only
      while nothing newer is recorded for the file.
    """

    landed: LandedFile
    spec: LandingSpec
    windows: tuple[Window, ...] | None = None
    done: tuple[Window, ...] = ()
    spans: tuple[Span, ...] = ()
    ingested_size: int | None = None
    rejected_size: int | None = None
    whole: bool = False
    contents: tuple[int, ...] = ()
    seen: bool = False
    pruned: tuple[int, ...] = ()

    def to_json(self) -> str:
        """Return the text that `from_json` turns into an equal work item."""
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
            spans=tuple((start, seconds) for start, seconds in body.pop("spans")),
            contents=tuple(body.pop("contents")),
            pruned=tuple(body.pop("pruned")),
            **body,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestResult:
    """Output of one work item. Without `actions` there is nothing to commit.

    - `actions`: the splits and the progress records, to be committed together.
    - `rows_in`: the rows and rejected lines of the whole file.
    - `rows_out`: the rows that were written.
    - `windows`: all windows in which the file has rows.
    - `rejected`: the lines that were quarantined now, by reason (`tally`).
    - `rejected_before`: the lines that another run or attempt had already quarantined.
    - `late`: the late rows in the windows of this item. Those that were quarantined or dropped are counted in
      `rows_in` only.
    """

    file: str
    adds: tuple[Add, ...] = ()
    txns: tuple[Txn, ...] = ()
    rows_in: int = 0
    rows_out: int = 0
    bytes_in: int = 0
    windows: tuple[Window, ...] = ()
    rejected: Mapping[str, int] = field(default_factory=dict)
    rejected_before: int = 0
    quarantine_keys: tuple[str, ...] = ()
    late: LateMetrics = field(default_factory=LateMetrics)

    @property
    def actions(self) -> list[Action]:
        """The actions that one commit must contain together."""
        return [*self.adds, *self.txns]

    @property
    def bytes_out(self) -> int:
        """The bytes of the splits that were written."""
        return sum(add.size for add in self.adds)

    def to_json(self) -> str:
        """Return the text that `from_json` turns into an equal result."""
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
            late=LateMetrics(**body.pop("late")),
            **body,
        )


_PLAIN_FIELDS = ("file", "rows_in", "rows_out", "bytes_in", "windows", "rejected_before", "quarantine_keys")


_logger = logging.getLogger(__name__)


def plan(
    snapshot: Snapshot, spec: LandingSpec, files: Iterable[LandedFile], windows: Collection[Window] | None = None
) -> list[IngestWork]:
    """Return one work item per file that may have something left for `windows`, in the given order.

    `windows=None` means all windows. No request is made. Files are not opened, so an item may have no rows of these
    windows.
    Raises `InvalidInput` if windows are given for a table without windows.
    """
    if windows is not None and snapshot.config.window_seconds is None:
        raise InvalidInput(
            "the table has no windows. Ingest its landed files as a whole", windows=sorted(map(str, windows))
        )
    listed = pending(snapshot, files)
    known = progress(snapshot.txns, listed, Durations.of(snapshot.config))
    wanted = None if windows is None else tuple(sorted(set(windows), key=by_start))
    items = [_work(file, spec, known[file.path], wanted) for file in listed]
    return [item for item in items if item.windows is None or set(item.windows) - set(item.done)]


def may_have_new_rows(work: IngestWork) -> bool:
    """Return False if the content of the file is already in the table, under another ETag.

    A copy of a file has another ETag than the file.

    Cost:
        Reads the whole file if the recorded data does not decide the question. Otherwise reads nothing.
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
    """Write the remaining rows of one file as sorted splits, and quarantine the invalid lines.

    Return the actions to commit. Nothing is committed here. A repetition writes new splits (the earlier splits become
    orphans) and the same quarantine objects. The quarantine objects are the same because the time when the file landed
    decides whether a row is late, not the time of the run. A file that no longer exists, or that changes during the
    read, gives an empty result with a rejection that is not recorded.

    Cost:
        Memory: a few blocks of `block_bytes` of text. A window gets one split per block. Requests: one or two per
        landed block, one HEAD per file, and one PUT per split. Quarantine adds one PUT per block with rejections, and
        one per block and window with late rows.
    """
    landed = work.landed
    if work.ingested_size is not None:
        was = f"was {work.ingested_size} bytes, is {landed.size}"
        return _reject_file(store, work, f"the file changed after it was ingested ({was}). Land it under a new name")
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
    """Read all blocks of a file.

    If rows of the file were ingested before, the file must still have the same content.
    """
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
    """Ingest of the blocks of one file, one after the other."""

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
        """Write the rows of the requested windows that are not in the table yet, and quarantine the rejections."""
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
        """Return the result for all blocks, with the records that make the ingest exactly-once."""
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
    """Record again that all rows of a file that disappeared and came back are in the table.

    So no later run reads the file again.
    """
    _logger.info("%s is back with the content whose rows are in: none of them is new", landed.path)
    records = ((file_app(landed.path), landed.size), (content_app(landed), content))
    txns = tuple(Txn(appId=app, version=version, lastUpdated=now_ms) for app, version in records)
    return IngestResult(file=landed.path, txns=txns, bytes_in=landed.size)


def _not_now(landed: LandedFile, reason: str) -> IngestResult:
    """Return an empty result that records nothing, so the next run checks the file again."""
    return IngestResult(file=landed.path, rejected={reason: 1})


def _reject_file(store: ObjectStore, work: IngestWork, reason: str) -> IngestResult:
    landed = work.landed
    # A recorded size never decreases. So after a rejection at a larger size, every run checks this file again.
    is_new = work.rejected_size is None or work.rejected_size < landed.size
    return _rejected(store, landed, reason, (rejected_app(landed.path),) if is_new else ())


def _reject_replaced(store: ObjectStore, work: IngestWork) -> IngestResult:
    """Reject the file and record its ETag instead of its size, because the earlier file may come back."""
    contents = ", ".join(map(as_hex, work.contents))
    reason = f"the file changed after it was ingested (same size, contents {contents}). Land it under a new name"
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
