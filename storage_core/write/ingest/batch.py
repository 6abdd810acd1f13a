"""Batch ingest writes each row of the landed files exactly once (docs/architecture/ingestion.md, "Batch ingest").

The unit of ingest is the rows of one file in one window. A run plans on a snapshot and executes its work items in any
processes. The run then commits the splits together with the records of `ingest.progress`. Every run records each window
that it writes, even if it ingests the whole file. Two runs may write the same rows. The second commit then finds that
some of its windows are already recorded. If all windows of the second run are recorded, its commit does nothing. If
only some of the windows are recorded, the commit raises `CommitConflict` and the run must be planned again. Splits of a
run that did not commit are orphans.

A task takes a batch of files. The task collects the rows of these files by window, and writes each window once. So a
few rows from each of many files can share a split. In a keyed table, a task collects records by region instead
(`ingest.landed_regions`). A task first reads the whole file and checks that the file did not change. Only then does the
task collect the rows.

Parsing converts every line of a file to a row of the table's schema, or rejects the line. A rejection has a line number
and a reason. Parsing works on whole blocks with Arrow and DuckDB. Only lines with new fields are decoded one by one.
Memory is bounded for files of any size. If a file cannot be read to its end, the result has no rows of the file. The
result then has one rejection without a line number.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any, BinaryIO, Literal, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.base.clock import Ids
from storage_core.base.errors import (
    Corrupt,
    InvalidInput,
    NotFound,
    TidemarkError,
    Unavailable,
    out_of_memory,
    unavailable,
)
from storage_core.data.formats.arrow_files import QuarantinedRows, RejectedLines
from storage_core.data.rows.times import row_text
from storage_core.data.rows.windows import LateMetrics, LateRule, by_start, split_by_window, window_starts
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Action, Add, Txn, read_actions, write_actions
from storage_core.log.snapshot import Snapshot
from storage_core.split.context import SplitContext
from storage_core.split.writer import sort_and_write
from storage_core.store.contract import ObjectStore
from storage_core.write.ingest.arrow_blocks import arrow_blocks
from storage_core.write.ingest.avro_blocks import avro_blocks
from storage_core.write.ingest.changes import ChangeFormat, order_path
from storage_core.write.ingest.convert import (
    BLOCK_BYTES,
    LineBlock,
    Parsed,
    RejectedLine,
    RowFormat,
    read_lines,
    shared_session,
    tally,
)
from storage_core.write.ingest.drift import NO_DRIFT, Drift
from storage_core.write.ingest.envelopes import debezium_blocks
from storage_core.write.ingest.json_elements import read_elements
from storage_core.write.ingest.landed_regions import CollectedRecords, LandedPart
from storage_core.write.ingest.landing import (
    ContentHash,
    LandedFile,
    LandingSpec,
    as_hex,
    content_of,
    etag_hash,
    fetched_ahead,
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
    is_outside,
    progress,
    rejected_app,
    replaced_app,
    window_app,
)
from storage_core.write.ingest.text_files import Reader, csv_blocks, json_rows, ndjson_blocks, pattern_blocks
from storage_core.write.late_rows import (
    LATE,
    LateRowFilter,
    RowOrigin,
    SharedEntries,
    commit_app,
    write_quarantine_entry,
)


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
    numbers = np.concatenate([np.zeros(0, np.int64), *(block.numbers for block in blocks)])
    header = blocks[0].header if blocks else None
    return Parsed(rows, tuple(line for block in blocks for line in block.rejected), numbers, header=header)


def parse_blocks(
    landed: LandedFile,
    spec: LandingSpec,
    schema: pa.Schema,
    time_column: str | None,
    *,
    nonzero: Collection[str] = (),
    block_bytes: int = BLOCK_BYTES,
    content: ContentHash | None = None,
    settled: Mapping[str, str] | None = None,
    changes: ChangeFormat | None = None,
) -> Iterator[Parsed]:
    """Yield the file in blocks. If the last block is marked `unreadable`, all earlier blocks of the file are invalid.

    Rows keep the order of the file. These files are unreadable:

    - a truncated or damaged file
    - a file whose columns are not the columns of the table
    - a file that has changed since it was listed

    Args:
        nonzero: embedding columns. Zero embeddings in these columns are rejected.
        content: receives the hash of the file's bytes after the last block of a readable file.
        settled: the fields that could not become columns, each with the reason. The schema is then final, so the file
            adds and widens no columns. None if the schema is not final.
        changes: how the records change a keyed table. The blocks then have records (`rows.fold`) in place of rows.

    Raises:
        NotFound: the file does not exist any more.
        Unavailable: the location cannot be read, or there is not enough memory.
        InvalidInput: the spec does not fit the schema, so no file can be read with it.
    """
    import duckdb

    target = _row_format(landed, spec, schema, time_column, nonzero=nonzero, settled=settled, changes=changes)
    try:
        blocks = _blocks(landed, spec, target, block_bytes=block_bytes, content=content)
        yield from blocks if changes is None else (as_records(each, changes) for each in blocks)
    except Corrupt as error:
        reason = f"the file cannot be used: {error.found}. Land the whole file again under a new name"
        yield Parsed(schema.empty_table(), (RejectedLine(landed.path, None, reason, ""),), unreadable=True)
    except (OSError, MemoryError, duckdb.Error) as error:
        if out_of_memory(error):
            raise Unavailable(
                f"{landed.uri}/{landed.path}: too large for the available memory. Give the task more memory, or land "
                "the file in pieces",
                file=landed.path,
            ) from error
        if not isinstance(error, OSError):
            raise
        raise unavailable(f"{landed.uri}/{landed.path}", error) from error


def _row_format(
    landed: LandedFile,
    spec: LandingSpec,
    schema: pa.Schema,
    time_column: str | None,
    *,
    nonzero: Collection[str],
    settled: Mapping[str, str] | None,
    changes: ChangeFormat | None = None,
) -> RowFormat:
    spec.check_time_format()
    fields = schema if changes is None else changes.fields
    times = spec.times_of(landed)
    drift = spec.drift if settled is None else spec.drift.settled(settled)
    return RowFormat(
        fields, time_column, spec.time_format, spec.null_values, frozenset(nonzero), times, drift=drift, changes=changes
    )


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
            form = {"nonzero": target.nonzero, "times": target.times, "drift": target.drift}
            blocks = read(landed.path, stream, target.schema, **form)
            yield from blocks if target.changes is None else (_checked(each, target) for each in blocks)
        return
    with open_text(landed, content, spec.encoding) as stream:
        yield from text_blocks(landed.path, stream, spec, target, block_bytes=block_bytes)


def as_records(block: Parsed, changes: ChangeFormat) -> Parsed:
    """Return the block after its rows are converted to records with an operation."""
    return replace(block, rows=changes.records_of(block.rows, block.given), given=None)


def _checked(block: Parsed, target: RowFormat) -> Parsed:
    """Return a block of typed values with only the rows that are valid changes. The other rows are rejected."""
    if target.changes is None or not block.rows.num_rows:
        return block
    reasons = target.changes.faults(block.rows)
    fits = np.asarray(reasons.is_null())
    refused = [
        RejectedLine("", int(block.numbers[row]), reasons[int(row)].as_py(), row_text(block.rows, int(row)))
        for row in np.flatnonzero(~fits)
    ]
    kept = replace(block, rows=block.rows.filter(pa.array(fits)), numbers=block.numbers[fits])
    return kept.and_rejected(refused)


def text_blocks(
    path: str, stream: BinaryIO, spec: LandingSpec, target: RowFormat, *, block_bytes: int
) -> Iterator[Parsed]:
    """Yield the records of expanded UTF-8 text in the format of the spec.

    Raises:
        InvalidInput: files of the format are not text.
        Corrupt: the text cannot be read in the format (see the reader of the format).
    """
    match spec.format:
        case "pattern":
            yield from pattern_blocks(path, stream, target, pattern=spec.pattern or "", block_bytes=block_bytes)
        case "ndjson" | "json":
            read: Reader = read_lines if spec.format == "ndjson" else read_elements
            if spec.envelope is None:
                yield from ndjson_blocks(path, stream, target, block_bytes=block_bytes, read=read)
            else:
                order = order_path(spec)
                yield from debezium_blocks(path, stream, target, block_bytes=block_bytes, read=read, order=order)
        case "csv":
            yield from csv_blocks(path, stream, target, block_bytes=block_bytes, dialect=spec.dialect)
        case "parquet" | "avro" | "arrow":
            raise InvalidInput(f"{path}: a file of the format {spec.format} cannot be read as text")
        case "delta":
            raise InvalidInput(f"{path}: a Delta table is read by its versions, not by file")
        case _:
            assert_never(spec.format)


# Work items and results for the ingest of a batch of files. Between the driver and the tasks, work and results are
# JSON.


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestWork:
    """One file to ingest. The driver sends an `IngestWork` to a task as JSON.

    - `windows`: the windows to ingest. None means every window.
    - `done`: windows that are already in the table.
    - `spans`: windows of other durations whose rows are already in the table.
    - `ingested_size`: set if the file was ingested with another size. The file is then rejected without reading.
    - `rejected_size`: the size with which the file was rejected before. None if the file was never rejected.
    - `contents`: the hashes of the contents from which earlier runs read rows of the file. Unless `seen` is set, the
      task reads the file and checks whether the hash of its content is in `contents`.
    - `whole`: all rows of the file are already in the table. The content of the file may still have to be recorded.
    - `pruned`: the hashes of earlier contents of this path that were completely in the table when the file disappeared.
      This list is used only if no newer content is recorded for the file.
    - `settled`: the fields that could not become columns, each with the reason. The schema is then final, because the
      columns for new fields and wider values were already decided. None if the schema is not final.
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
    settled: Mapping[str, str] | None = None

    def to_json(self) -> str:
        """Return this work item as JSON text for `from_json`."""
        settled = None if self.settled is None else dict(self.settled)
        return json.dumps(asdict(replace(self, settled=settled)), sort_keys=True)

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


Unread = Literal["gone", "changed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestResult:
    """Output of one work item. Without `actions` there is nothing to commit.

    - `adds`: the splits that have rows of this file only. Splits with rows of several files are in `BatchResult`.
    - `actions`: these splits, the progress records and the names of the quarantine objects, to be committed together.
    - `rows_in`: the rows and rejected lines of the whole file.
    - `rows_out`: the rows that were written.
    - `windows`: all windows in which the file has rows.
    - `rejected`: the lines that this run quarantined, by reason (`tally`).
    - `rejected_before`: the lines that an earlier committed run already quarantined.
    - `rows_rejected`: the rejected lines that the commit of this run adds to the quarantine. If the whole file is
      rejected, this is the number of lines that were read, at least 1.
    - `quarantine_keys`: the quarantine objects of this file only. Objects with entries of several files are in
      `BatchResult`.
    - `late`: the late rows in the windows of this item. Quarantined or dropped late rows are counted only in `rows_in`.
    - `drift`: the new fields. If the file needs new or wider columns, the result contains only `drift`. The driver then
      changes the columns, and the file is ingested again with `settled`.
    - `parts`: for a keyed table, the parts that have records of this file only.
    - `content`: the hash of the content, if the file was read to its end.
    - `skipped`: the records that have no effect (`Parsed.skipped`).
    - `unread`: the reason why this run did not read the file. The run records nothing for the file.
    """

    file: str
    unread: Unread | None = None
    adds: tuple[Add, ...] = ()
    txns: tuple[Txn, ...] = ()
    rows_in: int = 0
    rows_out: int = 0
    bytes_in: int = 0
    windows: tuple[Window, ...] = ()
    rejected: Mapping[str, int] = field(default_factory=dict)
    rejected_before: int = 0
    rows_rejected: int = 0
    quarantine_keys: tuple[str, ...] = ()
    late: LateMetrics = field(default_factory=LateMetrics)
    drift: Drift = NO_DRIFT
    parts: tuple[LandedPart, ...] = ()
    content: int | None = None
    skipped: int = 0

    @property
    def actions(self) -> list[Action]:
        """The actions that one commit must contain together."""
        return [*self.adds, *self.txns, *_names_of(self.quarantine_keys)]

    @property
    def bytes_out(self) -> int:
        """The bytes of the splits and parts that were written."""
        return sum(add.size for add in self.adds) + sum(each.part.size_bytes for each in self.parts)

    def to_json(self) -> str:
        """Return this result as JSON text for `from_json`."""
        body: dict[str, Any] = {name: getattr(self, name) for name in _PLAIN_FIELDS}
        body |= {"rejected": dict(self.rejected), "late": asdict(self.late), "drift": self.drift.to_json()}
        body |= {"adds": write_actions(self.adds), "txns": write_actions(self.txns)}
        body |= {"parts": [each.to_json() for each in self.parts]}
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
            drift=Drift.from_json(body.pop("drift")),
            parts=tuple(map(LandedPart.from_json, body.pop("parts"))),
            **body,
        )


_PLAIN_FIELDS = (
    *("file", "unread", "rows_in", "rows_out", "bytes_in", "windows"),
    *("rejected_before", "rows_rejected", "quarantine_keys", "content", "skipped"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """The output of a batch: one result per file, and the splits or parts that combine rows of several files.

    All actions of a batch must be in the same commit. `shared_keys` contains the keys of the quarantine objects with
    lines or rows of several files.
    """

    files: tuple[IngestResult, ...]
    shared: tuple[Add, ...] = ()
    shared_keys: tuple[str, ...] = ()
    shared_parts: tuple[LandedPart, ...] = ()

    @property
    def actions(self) -> list[Action]:
        """The actions that one commit must contain together."""
        files = (action for file in self.files for action in file.actions)
        return [*self.shared, *files, *_names_of(self.shared_keys)]

    @property
    def adds(self) -> list[Add]:
        """All splits of the batch."""
        return [*self.shared, *(add for file in self.files for add in file.adds)]

    @property
    def parts(self) -> list[LandedPart]:
        """All parts of the batch. Parts with records of one file come before parts with records of several files."""
        return [*(part for file in self.files for part in file.parts), *self.shared_parts]

    @property
    def quarantine_keys(self) -> list[str]:
        """All quarantine objects of the batch."""
        return [*self.shared_keys, *(key for file in self.files for key in file.quarantine_keys)]

    @property
    def rows_in(self) -> int:
        """The rows and rejected lines of all files."""
        return sum(file.rows_in for file in self.files)

    @property
    def rows_out(self) -> int:
        """The rows that were written."""
        return sum(file.rows_out for file in self.files)

    @property
    def rows_rejected(self) -> int:
        """The rejected lines that the commit adds to the quarantine."""
        return sum(file.rows_rejected for file in self.files)

    @property
    def bytes_in(self) -> int:
        """The bytes of all files."""
        return sum(file.bytes_in for file in self.files)

    @property
    def bytes_out(self) -> int:
        """The bytes of the splits and parts that were written."""
        return sum(add.size for add in self.adds) + sum(each.part.size_bytes for each in self.parts)

    def to_json(self) -> str:
        """Return this result as JSON text for `from_json`."""
        body = {"files": [each.to_json() for each in self.files], "shared": write_actions(self.shared)}
        parts = [each.to_json() for each in self.shared_parts]
        return json.dumps({**body, "shared_keys": self.shared_keys, "shared_parts": parts})

    @staticmethod
    def from_json(text: str) -> BatchResult:
        """Return the result that `to_json` wrote."""
        body = json.loads(text)
        files = tuple(map(IngestResult.from_json, body["files"]))
        shared = read_actions(body["shared"], Add, "ingest result")
        parts = tuple(map(LandedPart.from_json, body["shared_parts"]))
        return BatchResult(files=files, shared=shared, shared_keys=tuple(body["shared_keys"]), shared_parts=parts)


def reasons_of(results: Iterable[BatchResult]) -> dict[str, int]:
    """Return the number of rejected lines by reason (`tally`). Omit lines that an earlier commit counted."""
    return tally(*(file.rejected for result in results for file in result.files if file.rows_rejected))


def _names_of(keys: Sequence[str]) -> list[Txn]:
    """Return the transactions that make the quarantine objects of a batch valid."""
    return [Txn(appId=app, version=1) for key in keys if (app := commit_app(key)) is not None]


_logger = logging.getLogger(__name__)


def plan(
    snapshot: Snapshot, spec: LandingSpec, files: Iterable[LandedFile], windows: Collection[Window] | None = None
) -> list[IngestWork]:
    """Return one work item per file that may have new rows in `windows`, in the given order.

    `windows=None` means all windows. No request is made. Files are not opened, so an item may have no rows of these
    windows.
    Raises `InvalidInput` if windows are given for a table without windows.
    """
    if windows is not None and snapshot.config.window_seconds is None:
        raise InvalidInput(
            "the table has no windows. Ingest the landed files of the table as a whole",
            windows=sorted(map(str, windows)),
        )
    listed = list(files)
    known = progress(snapshot.txns, listed, Durations.of(snapshot.config))
    listed = [file for file in listed if not known[file.path].is_settled(file)]
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


BATCH_BYTES = (128 * 2**20, 512 * 2**20)
"""The minimum and maximum landed bytes of a batch.

A batch is smaller than the minimum if the whole input is smaller than the minimum. A file above the maximum is a batch
of its own.
"""

MOST_COLLECTED_BYTES = 256 * 2**20
"""The maximum bytes of rows that a batch collects.

Above this size, the batch writes the windows with the most bytes.
"""

MOST_HELD_BYTES = 16 * 2**20
"""The maximum bytes of rejected lines and late rows of one file in memory.

Above this size, the lines and rows are added to the quarantine entries of the batch.
"""

MOST_TOGETHER = 1_000
"""The maximum number of small files that are read together."""

MOST_TOGETHER_BYTES = 32 * 2**20
"""The maximum total bytes of small files that are read together.

This is also the maximum size of the text of each file.
"""

MOST_PENDING_BYTES = 64 * 2**20
"""The maximum bytes of rows that wait in memory until the whole file is read.

If the waiting rows of a file exceed this size, the rows are written as splits of only this file.
"""


def batches(works: Sequence[IngestWork], tasks: int) -> list[list[IngestWork]]:
    """Divide the work into batches of consecutive files, about one per task. The size of a batch is in `BATCH_BYTES`.

    Each batch writes each of its windows. So a small number of large batches writes fewer splits.
    """
    least, most = BATCH_BYTES
    size = min(max(-(-sum(work.landed.size for work in works) // tasks), least), most)
    found: list[list[IngestWork]] = []
    room = 0
    for work in works:
        if not found or work.landed.size > room:
            found.append([])
            room = min(max(room, 0) + size, most)  # the next batch gets unused bytes, so the last batch is not small
        found[-1].append(work)
        room -= work.landed.size
    return found


def execute(
    store: ObjectStore,
    work: IngestWork,
    *,
    context: SplitContext,
    ids: Ids,
    now_ms: int,
    block_bytes: int = BLOCK_BYTES,
) -> IngestResult:
    """Ingest one file, as a batch of its own (see `execute_batch`)."""
    batch = execute_batch(store, [work], context=context, ids=ids, now_ms=now_ms, block_bytes=block_bytes)
    return batch.files[0]


def execute_batch(
    store: ObjectStore,
    works: Sequence[IngestWork],
    *,
    context: SplitContext,
    ids: Ids,
    now_ms: int,
    block_bytes: int = BLOCK_BYTES,
) -> BatchResult:
    """Write the remaining rows of the files as sorted splits, and quarantine the invalid lines.

    Return the actions to commit. Nothing is committed here. A second execution writes new splits, and the earlier
    splits become orphans. A second execution writes the same quarantine objects. The reason is that the file's landing
    time decides whether a row is late. The time of the run does not matter. If a file no longer exists or changes
    during the read, the result is empty. The rejection in this result is not recorded.

    Cost:
        Memory: a few blocks of `block_bytes` of text, and the bytes of rows in `MOST_COLLECTED_BYTES` and
        `MOST_PENDING_BYTES`. Requests: one GET per small file (`fetched_ahead`). For other files, one or two per
        landed block and two HEADs per file. One PUT per split. A window gets one split, and more if its rows exceed
        the size of a split or the memory. Quarantine adds one PUT for all rejected lines of the batch, and one for all
        late rows. Above 16 MiB, it adds more PUTs.
    """
    is_keyed = TableConfig.from_configuration(context.configuration).kind == "keyed"
    collected = (CollectedRecords if is_keyed else CollectedRows)(store, context, ids, now_ms)
    with shared_session():
        groups = consecutive(works, most_files=MOST_TOGETHER, most_bytes=MOST_TOGETHER_BYTES)
        files = [each for group in groups for each in _executed_group(collected, group, block_bytes)]
    collected.write_all()
    collected.quarantine.write_all()
    keys = tuple(collected.quarantine.keys)
    if len(files) == 1:
        only = files[0]
        only = replace(
            only,
            adds=(*only.adds, *collected.adds),
            parts=(*only.parts, *collected.parts),
            quarantine_keys=(*only.quarantine_keys, *keys),
        )
        return BatchResult(files=(only,))
    shared, parts = tuple(collected.adds), tuple(collected.parts)
    return BatchResult(files=tuple(files), shared=shared, shared_keys=keys, shared_parts=parts)


Ahead = tuple[Sequence[Parsed], ContentHash]
"""The blocks and the content hash of a file that was read together with other files."""


def consecutive(works: Sequence[IngestWork], *, most_files: int, most_bytes: int) -> list[list[IngestWork]]:
    """Divide the work into groups of consecutive files, limited in number and total size.

    A file with more than `most_bytes` is a group of its own.
    """
    found: list[list[IngestWork]] = []
    room = 0
    for work in works:
        if not found or work.landed.size > room or len(found[-1]) == most_files:
            found.append([])
            room = most_bytes
        found[-1].append(work)
        room -= work.landed.size
    return found


def landed_bytes(works: Iterable[IngestWork]) -> int:
    """Return the total size of the landed files."""
    return sum(work.landed.size for work in works)


def _executed_group(
    collected: CollectedRows | CollectedRecords, works: Sequence[IngestWork], block_bytes: int
) -> list[IngestResult]:
    with fetched_ahead([work.landed for work in works]):
        ahead = (
            _read_together(collected.context, works) if isinstance(collected, CollectedRows) and len(works) > 1 else {}
        )
        return [_executed(collected, work, block_bytes, ahead.pop(work.landed.path, None)) for work in works]


def _read_together(context: SplitContext, works: Sequence[IngestWork]) -> dict[str, Ahead]:
    """Read new and small files of JSON lines. Lines that need exact conversion are converted together.

    The result omits the files that must be read separately. These files are read again, so an error message contains
    the correct file.
    """
    import duckdb

    spec = works[0].spec
    if spec.format != "ndjson" or spec.year is not None or any(work.spec != spec for work in works):
        return {}
    read: dict[str, tuple[list[LineBlock], ContentHash]] = {}
    for work in works:
        is_new = work.ingested_size is None and not (work.contents or work.pruned or work.whole)
        content = ContentHash()
        if is_new and (found := _lines_of(work, content)) is not None:
            read[work.landed.path] = found, content
    nonzero = TableConfig.from_configuration(context.configuration).nonzero_vectors
    try:
        first, time_column = works[0], context.time_column
        target = _row_format(first.landed, spec, context.schema, time_column, nonzero=nonzero, settled=first.settled)
        rows = json_rows([(path, block) for path, (blocks, _) in read.items() for block in blocks], target)
    except (TidemarkError, MemoryError, duckdb.Error):
        return {}
    left = iter(rows)
    return {path: ([*islice(left, len(blocks))], content) for path, (blocks, content) in read.items()}


def _lines_of(work: IngestWork, content: ContentHash) -> list[LineBlock] | None:
    """Return all lines of a file. Return None if the file cannot be read or its text is too long."""
    found, room = [], MOST_TOGETHER_BYTES
    try:
        with open_text(work.landed, content, work.spec.encoding) as stream:
            for block in read_lines(stream, MOST_TOGETHER_BYTES):
                found.append(block)
                room -= block.text.nbytes
                if room < 0:
                    return None
    except (TidemarkError, OSError, MemoryError):
        return None
    return found


def _executed(
    collected: CollectedRows | CollectedRecords, work: IngestWork, block_bytes: int, ahead: Ahead | None
) -> IngestResult:
    landed = work.landed
    if work.ingested_size is not None:
        was = f"was {work.ingested_size} bytes, is {landed.size}"
        reason = f"the file changed after it was ingested ({was}). Land the file under a new name"
        return _reject_file(collected, work, reason)
    run = _Run(collected, work)
    try:
        if work.contents and not work.seen:
            work = replace(work, contents=(*work.contents, content_of(landed)))
        if len(set(work.contents)) > 1:
            return _reject_replaced(collected, work)
        if work.pruned and (content := content_of(landed)) in work.pruned:
            result = _came_back(landed, content, collected.now_ms)
        else:
            known = work.contents[0] if work.contents else None
            result = run.result(known) if work.whole else _read(run, work, ahead, block_bytes=block_bytes)
    except NotFound as error:
        return _not_now(landed, "gone", f"the file is gone: {error}")
    if not is_unchanged(landed):
        return _not_now(landed, "changed", "the file changed while it was read")
    run.hand_over()
    return result


def _read(run: _Run, work: IngestWork, ahead: Ahead | None, *, block_bytes: int) -> IngestResult:
    """Read all blocks of a file, unless they were read ahead.

    If rows of the file were ingested before, the file must still have the same content.
    """
    landed, context = work.landed, run.context
    content = None if work.contents else ContentHash()
    blocks: Iterable[Parsed] = parse_blocks(
        landed,
        work.spec,
        context.schema,
        context.time_column,
        nonzero=run.collected.config.nonzero_vectors,
        block_bytes=block_bytes,
        content=content,
        settled=work.settled,
        changes=run.changes,
    )
    drift = NO_DRIFT
    if ahead is not None:
        blocks, content = ahead
    for block in blocks:
        if block.unreadable:
            run.forget()
            return _reject_file(run.collected, work, block.rejected[0].reason, lines=run.rows_in)
        drift |= block.drift
        if not drift.changes_columns:
            run.take(block)
    if drift.changes_columns:
        run.forget()
        return IngestResult(file=landed.path, drift=drift)
    run.content = work.contents[0] if content is None else content.value
    result = replace(run.result(run.content), drift=NO_DRIFT if work.contents else drift)
    _logger.info(
        "ingested %s: %d rows, %d rejected",
        landed.path,
        result.rows_out,
        sum(result.rejected.values()) + result.rejected_before,
    )
    return result


class CollectedRows:
    """The collected rows of a batch, by window. The object also contains the splits that were written from its rows.

    `quarantine` collects the rejected lines and late rows of the files. If the rows take more memory than
    `MOST_COLLECTED_BYTES`, the windows with the most rows are written. So a window with few rows from many files is
    still written only once.
    """

    def __init__(self, store: ObjectStore, context: SplitContext, ids: Ids, now_ms: int) -> None:
        self.store, self.context, self.ids, self.now_ms = store, context, ids, now_ms
        self.config = TableConfig.from_configuration(context.configuration)
        self.adds: list[Add] = []
        self.parts: list[LandedPart] = []
        self.quarantine = SharedEntries(store)
        self._parts: dict[Window, list[pa.Table]] = {}
        self._bytes: Counter[Window] = Counter()

    def add(self, rows: pa.Table, source: str = "") -> None:  # noqa: ARG002  # as `CollectedRecords` has it
        """Collect rows, and write windows if the rows take too much memory."""
        for window, part in self._by_window(rows):
            self._parts.setdefault(window, []).append(part)
            self._bytes[window] += part.nbytes
        total = self._bytes.total()
        if total > MOST_COLLECTED_BYTES:
            for window, size in self._bytes.most_common():
                if total <= MOST_COLLECTED_BYTES // 2:
                    break
                self._write(window)
                total -= size

    def write_all(self) -> None:
        """Write the rows that are still in memory."""
        for window in sorted(self._parts, key=by_start):
            self._write(window)

    def write(self, rows: pa.Table, source: str = "") -> list[Add]:  # noqa: ARG002  # as `CollectedRecords` has it
        """Write rows as splits, and return the splits."""
        return sort_and_write(self.store, rows, context=self.context, ids=self.ids, now_ms=self.now_ms)

    def _by_window(self, rows: pa.Table) -> Iterable[tuple[Window, pa.Table]]:
        context = self.context
        if context.window_seconds is None or context.time_column is None:
            return [(None, rows)] if rows.num_rows else []
        return split_by_window(rows, context.time_column, context.window_seconds)

    def _write(self, window: Window) -> None:
        self.adds += self.write(pa.concat_tables(self._parts.pop(window)))
        del self._bytes[window]


class _Run:
    """Ingest of the blocks of one file, one after the other."""

    def __init__(self, collected: CollectedRows | CollectedRecords, work: IngestWork) -> None:
        self.collected, self._work, self.context = collected, work, collected.context
        self._config = collected.config
        self.changes = ChangeFormat.of(work.spec, self.context.schema, self._config)
        self._late_filter = LateRowFilter(
            collected.store,
            LateRule.of(self._config),
            RowOrigin(source=work.landed.path, by="ingest", size=work.landed.size),
            hold=self._hold,
        )
        self.pending: list[pa.Table] = []
        self._pending_bytes = 0
        self._written: list[Add | LandedPart] = []
        self._skipped = 0
        self._windows: set[Window] = set()
        self._rejected: dict[str, int] = {}
        self._rejected_before = 0
        self.rows_in = self._rows_out = 0
        self._lines: list[RejectedLine] = []
        self._late: list[tuple[pa.Table, npt.NDArray[np.int64], int]] = []
        self._held_bytes = 0
        self._block = (self.context.schema.empty_table(), np.zeros(0, np.int64))
        self._header: str | None = None
        self.content: int | None = None

    def take(self, block: Parsed) -> None:
        """Take the rows of the requested windows that are not in the table yet, and the rejections."""
        rejected = block.rejected
        self.rows_in += block.rows.num_rows + len(rejected)
        self._header = block.header
        landed_ms = self._work.landed.landed_ms
        now_ms = self.collected.now_ms
        self._block = self._wanted(block)
        admit = self._late_filter.admit if self.changes is None else self._late_filter.admit_records
        wanted = admit(self._block[0], now_ms if landed_ms is None else landed_ms)
        self._skipped += block.skipped
        self._rows_out += wanted.num_rows
        self.pending.append(wanted)
        self._pending_bytes += wanted.nbytes
        if self._pending_bytes > MOST_PENDING_BYTES:
            self._written += self.collected.write(pa.concat_tables(self.pending), file_app(self._work.landed.path))
            self.pending.clear()
            self._pending_bytes = 0
        if self._work.contents:  # an earlier run quarantined the lines, before its commit recorded the file content
            self._rejected_before += len(rejected)
        elif rejected:
            self._rejected = tally(self._rejected, Counter(line.reason for line in rejected))
            self._lines += rejected
            self._held_bytes += sum(len(line.text) for line in rejected)
        if self._held_bytes > MOST_HELD_BYTES:
            self.quarantine(self._work.contents[0] if self._work.contents else content_of(self._work.landed))

    def quarantine(self, content: int | None) -> None:
        """Add the rejected lines and late rows to the entries of the batch. `content` is the content of the file."""
        landed, shared = self._work.landed, self.collected.quarantine
        known = as_hex(content or 0)
        if self._lines:
            shared.add(_entry_of(self._lines, landed, content=known, header=self._header))
        if self._late:
            rows = pa.concat_tables([rows for rows, _, _ in self._late])
            shared.add(
                QuarantinedRows(
                    source=landed.path,
                    size=landed.size,
                    reason=LATE,
                    by="ingest",
                    arrived_ms=max(arrived for _, _, arrived in self._late),
                    rows=rows,
                    content=known,
                    lines=tuple(np.concatenate([lines for _, lines, _ in self._late]).tolist()),
                )
            )
        self._lines.clear()
        self._late.clear()
        self._held_bytes = 0

    def forget(self) -> None:
        """Drop the rows and lines in memory, because no row of the file may be used."""
        self.pending.clear()
        self._lines.clear()
        self._late.clear()

    def _hold(self, is_late: pa.BooleanArray, arrived_ms: int) -> None:
        rows, numbers = self._block
        late = rows.filter(is_late)
        self._late.append((late, numbers[np.asarray(is_late)], arrived_ms))
        self._held_bytes += late.nbytes

    def hand_over(self) -> None:
        """Add the pending rows and lines to the rows and lines of the batch.

        Call this after the whole file was read.
        """
        self.quarantine(self.content)
        if self.pending:
            self.collected.add(pa.concat_tables(self.pending), file_app(self._work.landed.path))
            self.pending.clear()

    def result(self, content: int | None) -> IngestResult:
        """Return the result for all blocks, with progress records that ensure exactly-once ingest."""
        work, now_ms = self._work, self.collected.now_ms
        written = {window for window in self._windows if self._is_wanted(window)}
        complete = self._windows <= written | set(work.done)
        seconds = Durations.of(self._config).recorded
        apps = [window_app(work.landed.path, window, seconds) for window in sorted(written, key=by_start)]
        if complete and not work.whole:
            apps.append(file_app(work.landed.path))
        txns = [Txn(appId=app, version=work.landed.size, lastUpdated=now_ms) for app in apps]
        if content is not None and not work.seen and (txns or work.whole or self._rejected):
            txns.append(Txn(appId=content_app(work.landed), version=content, lastUpdated=now_ms))
        return IngestResult(
            file=work.landed.path,
            adds=tuple(each for each in self._written if isinstance(each, Add)),
            parts=tuple(each for each in self._written if isinstance(each, LandedPart)),
            content=self.content,
            skipped=self._skipped,
            txns=tuple(txns),
            rows_in=self.rows_in,
            rows_out=self._rows_out,
            bytes_in=work.landed.size,
            windows=tuple(sorted(self._windows, key=by_start)),
            rejected=self._rejected,
            rejected_before=self._rejected_before,
            rows_rejected=sum(self._rejected.values()),
            late=self._late_filter.metrics,
        )

    def _wanted(self, block: Parsed) -> tuple[pa.Table, npt.NDArray[np.int64]]:
        """Return the rows of the requested windows that are not in the table yet, and their line numbers."""
        context, rows = self.context, block.rows
        if self.changes is not None or context.window_seconds is None or context.time_column is None:
            return rows, block.numbers
        outer = is_outside(rows, context.time_column, self._work.spans)
        starts = window_starts(rows.column(context.time_column), context.window_seconds)
        present: set[Window] = set((starts if outer.all() else starts.filter(pa.array(outer))).unique().to_pylist())
        self._windows |= present
        refused = {window for window in present if not self._is_wanted(window)}
        if refused:
            outer &= ~_is_any_of(starts, refused)
        if outer.all():
            return rows, block.numbers
        return rows.filter(pa.array(outer)), block.numbers[outer]

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
    """Record again that all rows of the file are in the table. The file had disappeared and came back.

    So no later run reads the file again.
    """
    _logger.info("%s is back with the content whose rows are in: none of them is new", landed.path)
    records = ((file_app(landed.path), landed.size), (content_app(landed), content))
    txns = tuple(Txn(appId=app, version=version, lastUpdated=now_ms) for app, version in records)
    return IngestResult(file=landed.path, txns=txns, bytes_in=landed.size)


def _not_now(landed: LandedFile, unread: Unread, reason: str) -> IngestResult:
    """Return an empty result that records nothing, so the next run checks the file again."""
    return IngestResult(file=landed.path, unread=unread, rejected={reason: 1})


def _reject_file(
    collected: CollectedRows | CollectedRecords, work: IngestWork, reason: str, *, lines: int = 0
) -> IngestResult:
    landed = work.landed
    # A recorded size never decreases. So if a file was rejected at a larger size, every run checks the file again.
    is_new = work.rejected_size is None or work.rejected_size < landed.size
    result = _rejected(collected, landed, reason, (rejected_app(landed.path),) if is_new else ())
    lines = max(1, lines)
    return replace(result, rows_in=lines, rows_rejected=lines if result.rejected else 0)


def _reject_replaced(collected: CollectedRows | CollectedRecords, work: IngestWork) -> IngestResult:
    """Reject the file, and record the file's ETag instead of its size.

    The reason is that the earlier file may come back.
    """
    contents = ", ".join(map(as_hex, work.contents))
    reason = f"the file changed after it was ingested (same size, contents {contents}). Land the file under a new name"
    return _rejected(collected, work.landed, reason, (replaced_app(work.landed),))


def _rejected(
    collected: CollectedRows | CollectedRecords, landed: LandedFile, reason: str, apps: tuple[str, ...]
) -> IngestResult:
    """Reject a whole file.

    If the rejection is not recorded, every run rejects the file again. So each rejected file has its own quarantine
    object, and every run writes the object with the same key and content.
    """
    _logger.info("rejected %s: %s", landed.path, reason)
    whole = [RejectedLine(landed.path, None, reason, "")]
    entry = _entry_of(whole, landed, content=f"etag:{etag_hash(landed.etag or '')}")
    keys: tuple[str, ...] = ()
    is_new = True
    if apps:
        collected.quarantine.add(entry)
    else:
        kept = write_quarantine_entry(collected.store, replace(entry, content=None, landed_ms=None))
        keys, is_new = (kept.key,), kept.is_new
    return IngestResult(
        file=landed.path,
        txns=tuple(Txn(appId=app, version=landed.size) for app in apps),
        rows_in=1,
        bytes_in=landed.size,
        rejected=tally({reason: 1}) if is_new else {},
        rejected_before=0 if is_new else 1,
        rows_rejected=1 if is_new else 0,
        quarantine_keys=keys,
    )


def _entry_of(
    rejected: Sequence[RejectedLine], landed: LandedFile, *, content: str, header: str | None = None
) -> RejectedLines:
    lines = tuple(each.to_object() for each in rejected)
    return RejectedLines(
        source=landed.path,
        size=landed.size,
        rejected=lines,
        content=content,
        landed_ms=landed.landed_ms,
        header=header,
    )


def _is_any_of(starts: pa.Int64Array, windows: set[Window]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    among = np.isin(starts.fill_null(0).to_numpy(), [each for each in windows if each is not None])
    is_null = np.asarray(starts.is_null())
    return np.where(is_null, None in windows, among)
