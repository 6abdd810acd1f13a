"""Progress of ingest: which landed files and Delta versions are in the table, and which files no longer exist.

The progress is recorded as transactions of the table's log:

| appId | version | meaning |
|---|---|---|
| `landed:<path>@<window>` | size of the file in bytes | the rows of this window are in the table |
| `landed:<path>@<window>+<seconds>` | size in bytes | the rows of this window, `<seconds>` s long, are in the table |
| `landed:<path>` | size of the file in bytes | all rows are in the table |
| `rejected:<path>` | size of the file in bytes | the file has no usable rows in this form, and is in quarantine |
| `content:<path>@<etag hash>` | xxh3-64 of the bytes of the file | rows were read from this content, under this ETag |
| `replaced:<path>@<etag hash>` | size in bytes | the file with this ETag has another content and is in quarantine |
| `pruned:<path>@<content>` | size in bytes | the table had all rows of this content when the file disappeared |
| `listed:<place hash>` | time in ms | the landing location was listed at this time, and a queue announces its files |

`<window>` is the start of the window in seconds, or `null`. `<etag hash>` is `landing.etag_hash(etag)`. `<content>` is
the hash of the bytes in hexadecimal. `%` and `@` in paths are percent-encoded. So a path that contains `@` is not
confused with the window of another file. `<place hash>` is the hash of the location, the suffix and the queue. So a
change of the location, the suffix or the queue needs a listing.

The records of a landed file are needed as long as the file exists. `prune_gone_files` removes the records of a file
that no longer exists, after the retention period of versions (decision 0008). One transaction remains, which records
the content of the file. All rows of this content are in the table. If a file comes back with this content, ingest adds
none of its rows again. A file with another content is a new file.

A pruning keeps all records of a file if only some of its windows are in the table, or if its content was not recorded.
Otherwise the remaining rows could not be distinguished from the ingested rows.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.base.errors import CommitConflict
from storage_core.data.formats.keys import DELTA_PREFIX, delta_commit_key, parse
from storage_core.data.formats.kinds import KeyKind
from storage_core.data.rows.windows import window_starts
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Action, RemoveTxn, Txn
from storage_core.log.conflicts import pruning
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.log.transactions import Subjects, Transactions
from storage_core.store.contract import ObjectInfo, ObjectStore
from storage_core.store.resolve import open_store
from storage_core.write.ingest.landing import (
    LIST_EVERY_MS,
    LandedFile,
    LandingSpec,
    as_hex,
    discover,
    etag_hash,
    from_hex,
)

# Rows that were ingested in windows of another duration than the current window duration (decision 0006).


Span = tuple[int, int]
"""A window that is in the table: its start and its duration in seconds."""


@dataclass(frozen=True, slots=True)
class Durations:
    """The window durations: `first` for records without a duration, `current` for the rest. None means no windows."""

    first: int | None = None
    current: int | None = None

    @staticmethod
    def of(config: TableConfig, current: int | None = None) -> Durations:
        """Return the table's window durations. `current` is the window duration that the table will get, if known."""
        seconds = config.window_seconds
        return Durations((*config.former_windows, seconds)[0], current or seconds)

    @property
    def recorded(self) -> int | None:
        """The duration to write in the record of a current window, or None if the record needs no duration."""
        return None if self.current == self.first else self.current


NO_WINDOWS: Final = Durations()


def is_outside(rows: pa.Table, time_column: str, spans: Collection[Span]) -> npt.NDArray[np.bool_]:
    """Return for each row whether it is outside all spans. Rows without a time are outside all spans."""
    if not spans or not rows.num_rows:
        return np.ones(rows.num_rows, np.bool_)
    by_duration: defaultdict[int, list[int]] = defaultdict(list)
    for start, seconds in spans:
        by_duration[seconds].append(start)
    inside = np.zeros(rows.num_rows, np.bool_)
    for seconds, starts in by_duration.items():
        found = pc.is_in(window_starts(rows.column(time_column), seconds), value_set=pa.array(starts, pa.int64()))
        inside |= found.to_numpy(zero_copy_only=False)
    return ~inside


_LANDED = "landed:"
_REJECTED = "rejected:"
_CONTENT = "content:"
_REPLACED = "replaced:"
_PRUNED = "pruned:"
FILE_KINDS = ("landed", "rejected", "content", "replaced")
"""The kinds of transactions that are pruned when their file no longer exists."""

Window = int | None


@dataclass(frozen=True, slots=True)
class FileProgress:
    """Progress of one file.

    - `ingested_size`: the size of the file when it was ingested. `ingested_size` is None if the file was never
      ingested.
    - `windows`: the windows that are in the table.
    - `spans`: the windows in the table whose duration is not the current window duration.
    - `rejected_size`: the size of the file when it was rejected. `rejected_size` is None if the file was never
      rejected.
    - `contents`: the contents from which rows were read, by the hash of their ETag. Empty if an early release read the
      file. Then only the size is known.
    - `replaced`: the hashes of the ETags under which the file had another content.
    - `pruned`: the contents of which the table had all rows when the file disappeared. A file that appears again with
      one of these contents has no new rows.
    """

    ingested_size: int | None = None
    whole: bool = False
    windows: frozenset[Window] = frozenset()
    spans: frozenset[Span] = frozenset()
    rejected_size: int | None = None
    contents: Mapping[str, int] = field(default_factory=dict)
    replaced: frozenset[str] = frozenset()
    pruned: frozenset[int] = frozenset()

    def is_settled(self, file: LandedFile) -> bool:
        """Return True if the current file cannot contain new rows.

        This is so if all its rows are in the table, or if the file was rejected in its current form.
        """
        if self.rejected_size == file.size or (file.etag is not None and etag_hash(file.etag) in self.replaced):
            return True
        is_known = not self.contents or (self.has_seen(file) and len(set(self.contents.values())) == 1)
        return self.whole and self.ingested_size == file.size and is_known

    def has_seen(self, file: LandedFile) -> bool:
        """Return whether the content is known without reading the file: its ETag is recorded, or it has no ETag."""
        return file.etag is None or etag_hash(file.etag) in self.contents

    def holds(self, size: int, content: str) -> bool:
        """Return whether the whole file of this size and content is, or was, in the table.

        `content` is the hash as hexadecimal digits, or empty if it is unknown.
        """
        if content and from_hex(content) in self.pruned:
            return True
        is_known = not content or not self.contents or from_hex(content) in self.contents.values()
        return self.whole and self.ingested_size == size and is_known

    def has_changed(self, size: int) -> bool:
        """Return whether rows of this file were ingested when it had another size."""
        return self.ingested_size not in (None, size)


def progress(
    txns: Mapping[str, int], files: Iterable[LandedFile], durations: Durations = NO_WINDOWS
) -> dict[str, FileProgress]:
    """Return the progress of every file by path, in one pass over the transactions that may be about these files."""
    marked: defaultdict[str, dict[str, int]] = defaultdict(dict)
    files = list(files)
    if isinstance(txns, Transactions):
        subjects = Subjects((*FILE_KINDS, "pruned"), [_escaped(file.path) for file in files])
        recorded = {app_id: txn.version for app_id, txn in txns.about(subjects).items()}
    else:
        recorded = dict(txns.items())
    for app_id, version in recorded.items():
        name, at, mark = app_id.rpartition("@")
        if at and name.startswith((_LANDED, _CONTENT, _REPLACED, _PRUNED)):
            marked[name][mark] = version
    return {file.path: _of_file(file.path, recorded, marked, durations) for file in files}


def pending(snapshot: Snapshot, files: Iterable[LandedFile]) -> list[LandedFile]:
    """Return the files that may have new rows, in the given order. No request."""
    listed = list(files)
    known = progress(snapshot.txns, listed, Durations.of(snapshot.config))
    return [file for file in listed if not known[file.path].is_settled(file)]


def file_app(path: str) -> str:
    """Return the appId of the record for a file that is completely in the table."""
    return _LANDED + _escaped(path)


def window_app(path: str, window: Window, seconds: int | None = None) -> str:
    """Return the appId of the record that a window of the file is in the table.

    `seconds` is `Durations.recorded`.
    """
    mark = "null" if window is None else f"{window}" if seconds is None else f"{window}+{seconds}"
    return f"{file_app(path)}@{mark}"


def rejected_app(path: str) -> str:
    """Return the appId of the record that the current content of a file has no usable rows."""
    return _REJECTED + _escaped(path)


def content_app(file: LandedFile) -> str:
    """Return the appId that records which content a file has under its ETag."""
    return f"{_CONTENT}{_escaped(file.path)}@{etag_hash(file.etag or '')}"


def replaced_app(file: LandedFile) -> str:
    """Return the appId of the record for a replaced file.

    The content of the file with this ETag is not in the table.
    """
    return f"{_REPLACED}{_escaped(file.path)}@{etag_hash(file.etag or '')}"


def pruned_app(path: str, content: int) -> str:
    """Return the appId of the record that a file is gone and the table has all rows of its `content`."""
    return f"{_PRUNED}{_escaped(path)}@{as_hex(content)}"


def listed_app(spec: LandingSpec) -> str:
    """Return the appId that records when a landing location with a queue was last listed."""
    return f"listed:{etag_hash(json.dumps([spec.uri, spec.suffix, spec.queue]))}"


def until_listing_ms(txns: Mapping[str, int], spec: LandingSpec, now_ms: int) -> int:
    """Return the ms until a location with a queue must be listed. A result of 0 or less means now."""
    listed_ms = txns.get(listed_app(spec))
    every_ms = LIST_EVERY_MS if spec.list_every_ms is None else spec.list_every_ms
    return 0 if listed_ms is None else listed_ms + every_ms - now_ms


def path_of(app_id: str) -> str:
    """Return the file path in an appId. The kind of the appId must be in `FILE_KINDS`."""
    return app_id.partition(":")[2].partition("@")[0].replace("%40", "@").replace("%25", "%")


def _of_file(
    path: str, txns: Mapping[str, int], marked: Mapping[str, Mapping[str, int]], durations: Durations
) -> FileProgress:
    whole = txns.get(file_app(path))
    found = marked.get(file_app(path), {})
    spans = {_span(mark, durations.first) for mark in found if mark != "null"}
    windows: set[Window] = {start for start, seconds in spans if seconds == durations.current}
    sizes = [size for size in (whole, *found.values()) if size is not None]
    return FileProgress(
        ingested_size=sizes[0] if sizes else None,
        whole=whole is not None,
        windows=frozenset(windows | {None} if "null" in found else windows),
        spans=frozenset((start, each) for start, each in spans if each is not None and each != durations.current),
        rejected_size=txns.get(rejected_app(path)),
        contents=marked.get(_CONTENT + _escaped(path), {}),
        replaced=frozenset(marked.get(_REPLACED + _escaped(path), ())),
        pruned=frozenset(from_hex(content) for content in marked.get(_PRUNED + _escaped(path), ())),
    )


def _span(mark: str, first: int | None) -> tuple[int, int | None]:
    start, _, seconds = mark.partition("+")
    return int(start), int(seconds) if seconds else first


def _escaped(path: str) -> str:
    return path.replace("%", "%25").replace("@", "%40")


# Progress in a Delta table from which this table ingests, as recorded in the transaction log
# (docs/architecture/ingestion.md).
#
# | appId | version | meaning |
# |---|---|---|
# | `delta:<id>` | number of a version | every change of a lower version is in the table, or in a gap |
# | `delta-gap:<id>@<first>-<last>` | `last` | the changes of these versions could not be read any more |
#
# `<id>` is the id of the Delta table in its own log. A `delta:<id>` record contains the next version to read, not the
# last version that was read. So a table that has read no version differs from a table that has read version 0.


_KIND = "delta"
_GAP_KIND = "delta-gap"


@dataclass(frozen=True, slots=True, order=True)
class DeltaGap:
    """Versions `first` to `last` of a Delta table, which were deleted before they could be read."""

    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaProgress:
    """Progress of a Delta table: its id, the first version that is not in the table, and its gaps in order."""

    table_id: str
    next_version: int
    gaps: tuple[DeltaGap, ...] = ()


def delta_progress(txns: Transactions) -> DeltaProgress | None:
    """Return how far a table has read the Delta table from which it lands.

    Return None if nothing was read. The first call makes one GET per object.
    """
    found = {app: txn.version for app, txn in txns.every(_KIND).items()}
    if not found:
        return None
    app, version = max(found.items(), key=lambda each: each[1])  # a table always reads rows from the same Delta table
    table_id = app.removeprefix(f"{_KIND}:")
    gaps = sorted(_gap(each) for each in txns.every(_GAP_KIND) if each.startswith(f"{_GAP_KIND}:{table_id}@"))
    return DeltaProgress(table_id=table_id, next_version=version, gaps=tuple(gaps))


def progress_app(table_id: str) -> str:
    """Return the appId of the record for the next version of this Delta table."""
    return f"{_KIND}:{table_id}"


def progress_txns(reached: DeltaProgress, now_ms: int) -> list[Txn]:
    """Return the progress records for a commit with the rows up to `reached`.

    `reached.gaps` must contain only the new gaps.
    """
    gaps = [
        Txn(appId=f"{_GAP_KIND}:{reached.table_id}@{each.first}-{each.last}", version=each.last, lastUpdated=now_ms)
        for each in reached.gaps
    ]
    return [Txn(appId=progress_app(reached.table_id), version=reached.next_version, lastUpdated=now_ms), *gaps]


def _gap(app_id: str) -> DeltaGap:
    first, _, last = app_id.rpartition("@")[2].partition("-")
    return DeltaGap(int(first), int(last))


# The versions that have a file in the log of a Delta table.


def versions(store: ObjectStore, first: int = 0) -> dict[int, ObjectInfo]:
    """Return the log files of version `first - 1` and of all later versions, in ascending order.

    One LIST per 1,000 objects.
    """
    after = delta_commit_key(first - 1).removesuffix(".json") if first else None
    found = ((parse(info.key), info) for info in store.list(DELTA_PREFIX, after))
    commits = ((each.version, info) for each, info in found if each is not None and each.kind is KeyKind.DELTA_COMMIT)
    return {version: info for version, info in sorted(commits, key=itemgetter(0)) if version is not None}


def waiting_versions(uri: str, snapshot: Snapshot | None) -> range:
    """Return the versions of the Delta table at `uri` that are not in the table yet.

    The result is empty if there is no Delta table at `uri`.
    """
    reached = None if snapshot is None else delta_progress(snapshot.txns)
    first = 0 if reached is None else reached.next_version
    return range(first, max(versions(open_store(uri), first), default=first - 1) + 1)


OPERATION = "PRUNE FILES"
MOST_PLANS = 10
FILES_PER_COMMIT = 20_000

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedFiles:
    """The number of pruned files and the number of removed transactions. In a dry run, nothing is pruned or removed."""

    files: int = 0
    transactions: int = 0


def prune_gone_files(
    log: TransactionLog,
    spec: LandingSpec,
    *,
    dry_run: bool = False,
    require_held: Callable[[], None] = lambda: None,
) -> PrunedFiles:
    """Prune the landed files that no longer exist, in several commits. Checkpoint the last version.

    The call can be repeated after an interruption at any point. The landing location is listed before the log is read.
    So a file that lands between the two reads may be pruned, too. A later run then reads the file again, and finds that
    its content is in the table. A file counts as deleted if its newest transaction is older than the table's retention
    of versions.

    Args:
        require_held: called before each commit. It raises if the caller has lost its lease.

    Raises:
        CommitConflict: other commits were first for 10 plans.

    Cost:
        One LIST per 1,000 files, the requests to open the table and to read all transactions, and one commit per
        20,000 files.
    """
    there = {file.path for file in discover(spec)}
    head = log.snapshot()
    done = PrunedFiles()
    overtaken = 0
    while True:
        planned = gone_files(head.txns, there, before_ms=log.clock.now_ms() - head.config.version_retention_ms)
        if dry_run:
            found = list(planned)
            return PrunedFiles(files=len(found), transactions=sum(map(len, found)))
        batch = list(islice(planned, FILES_PER_COMMIT))
        if not batch:
            break
        require_held()
        try:
            head = log.commit(head, _actions(head, batch, log.clock.now_ms()), operation=OPERATION).snapshot
        except CommitConflict:
            overtaken += 1
            if overtaken == MOST_PLANS:
                raise
            head = log.snapshot()
            continue
        done = PrunedFiles(files=done.files + len(batch), transactions=done.transactions + sum(map(len, batch)))
    if done.files:
        log.checkpoint(head)  # without a checkpoint, each opening would read these transactions
        _logger.info("%s: pruned %d landed files that are gone", log.store.uri, done.files)
    return done


def gone_files(txns: Transactions, there: Iterable[str], *, before_ms: int) -> Iterator[Mapping[str, Txn]]:
    """Yield the transactions of each file that may be pruned.

    A file may be pruned if `there` does not contain the file and all its transactions were recorded before `before_ms`.
    """
    of_file: dict[str, dict[str, Txn]] = {}
    for kind in FILE_KINDS:
        for app_id, txn in txns.every(kind).items():
            of_file.setdefault(path_of(app_id), {})[app_id] = txn
    for path in sorted(of_file.keys() - set(there)):
        recorded = of_file[path]
        is_old = all(txn.lastUpdated is not None and txn.lastUpdated < before_ms for txn in recorded.values())
        if is_old and _may_be_pruned(path, recorded):
            yield recorded


def _may_be_pruned(path: str, recorded: Mapping[str, Txn]) -> bool:
    """Return True if the table contains no row of the file.

    Also return True if rows were read from only one content of the file, and the table contains all these rows.
    """
    if not any(app_id.startswith("landed:") for app_id in recorded):
        return not _contents(recorded)
    return file_app(path) in recorded and len(_contents(recorded)) == 1


def _contents(recorded: Mapping[str, Txn]) -> set[int]:
    return {txn.version for app_id, txn in recorded.items() if app_id.startswith("content:")}


def _actions(head: Snapshot, batch: Iterable[Mapping[str, Txn]], now_ms: int) -> list[Action]:
    actions: list[Action] = []
    for recorded in batch:
        actions += [RemoveTxn(appId=app_id) for app_id in recorded]
        for content in _contents(recorded):
            path = path_of(next(iter(recorded)))
            stays = pruned_app(path, content)
            if stays not in head.txns:  # skip a content that an earlier pruning recorded
                actions.append(Txn(appId=stays, version=recorded[file_app(path)].version, lastUpdated=now_ms))
    return [*actions, pruning(head)]
