"""A region writer makes rows durable before each call returns. The writer fences every earlier writer of the region.

A writer claims its region with an epoch, which is a number that grows with every claim. Only the writer with the
highest epoch can add rows. Example:

    with RegionWriter.open(store, snapshot, clock=clock, ids=ids) as writer:
        writer.put({"tailnum": "N1", "seats": 4})

`claim` takes over a region. `RegionLog` appends WAL entries and flushes generations. `RegionWriter` is the public
class. Several threads can share one `RegionWriter`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

import pyarrow as pa

from storage_core.base.arguments import checked
from storage_core.base.clock import Clock, Ids, random_pause_ms
from storage_core.base.errors import (
    CommitUnknown,
    Corrupt,
    InvalidInput,
    NotWritten,
    TidemarkError,
    Unavailable,
    WriterFenced,
)
from storage_core.data.formats.arrow_files import require_readable
from storage_core.data.formats.region_manifest import FlushedGeneration, RegionManifest
from storage_core.data.rows import fold
from storage_core.data.rows.fold import conformed, record_schema
from storage_core.data.rows.incoming import Rows
from storage_core.data.rows.windows import LateMetrics, LateRule
from storage_core.data.settings.layout import Region
from storage_core.log.snapshot import Snapshot
from storage_core.store.contract import ObjectStore
from storage_core.write.late_rows import LateRowFilter, RowOrigin
from storage_core.write.region import generation_write, wal
from storage_core.write.region.group_commit import GroupCommit
from storage_core.write.region.manifest import check_epoch, commit, fenced, read_latest
from storage_core.write.region.records import (
    Following,
    Keys,
    Memtable,
    RecordBuilder,
    WriterOptions,
    WriterSnapshot,
    matching,
)
from storage_core.write.region.spec import closed_region, only_region, register
from storage_core.write.region.wal import Logged, WalAppender

# Claims of a region. After a claim, writes of every earlier writer to the region fail (Lance MemWAL).
#
# The order of the steps matters:
# 1. Commit the manifest with the higher epoch. A writer that loads this manifest detects the claim.
# 2. Put the sentinel at the end of the WAL. The put of a writer that has not loaded the manifest fails, because the
#    sentinel already has this number.
# 3. Read the manifest once more. If another claim was made between steps 1 and 2, this claim fails before it
# acknowledges anything.
# 4. Replay the WAL. At this point, nobody can add an entry before the sentinel. A merge also claims a region if its
# writer seems to have ended (`region.idle`). The manifest then contains the epoch of the idle writer. The idle writer
# can claim the region again with its next call, if only merges have claimed the region since.


_logger = logging.getLogger(__name__)

_ATTEMPTS = 10
_FIRST_PAUSE_MS = 20
_LONGEST_PAUSE_MS = 10_240

Follow = Callable[[RegionManifest | None], RegionManifest]
"""A function that gets the newest manifest and returns the manifest of a claim. The function may raise an error.

The caller sets the version and the writer of the manifest.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claimed region: the manifest, the WAL appender, and the entries outside all generations, in order.

    A call of `again` claims the region once more for the same writer. Since the first claim, only merges may have
    claimed the region. Requests and errors are the same as for `claim`. `again` raises `WriterFenced` if another writer
    has claimed the region. `again` is None for a merge, because a merge never claims a region again.
    """

    manifest: RegionManifest
    appender: WalAppender
    unflushed: tuple[Logged, ...]
    again: Callable[[], Claim] | None = None


def claim(store: ObjectStore, target: Region, *, record_schema: pa.Schema, clock: Clock, ids: Ids) -> Claim:
    """Claim the region, fence every earlier writer, and read the remaining entries of the earlier writer.

    Raises:
        RegionClosed: the region takes no more rows.
        WriterFenced: another writer claimed the region after this claim.
        Corrupt: a WAL entry is damaged or missing.
        CommitUnknown: the store did not report the outcome. Claim again.
        Unavailable: there are too many concurrent claims.

    Cost:
        About nine requests for a region without unflushed entries. Each unflushed entry adds one GET. A region of a
        spec with fields adds one request for the entry in the registry.
    """
    register(store, target, clock=clock, ids=ids)
    return _claim(store, target, partial(_next, target), record_schema=record_schema, clock=clock, ids=ids)


def claim_idle(store: ObjectStore, seen: RegionManifest, *, record_schema: pa.Schema, clock: Clock, ids: Ids) -> Claim:
    """Claim a region for a merge, if `seen` is still the newest manifest of the region.

    Makes the same requests as `claim`.

    Raises `WriterFenced` if the region has another manifest. Also raises every error that `claim` raises.
    """

    def follow(latest: RegionManifest | None) -> RegionManifest:
        if latest != seen:
            raise fenced(seen.region_id, seen.writer_epoch, latest)
        return replace(seen, writer_epoch=seen.writer_epoch + 1, idle_epoch=seen.idle_epoch or seen.writer_epoch)

    claimed = _raise_epoch(store, seen.region_id, follow, clock=clock, ids=ids)
    return _take(store, claimed, record_schema=record_schema, clock=clock, ids=ids)


def require_unmerged(manifest: RegionManifest, snapshot: Snapshot) -> None:
    """Raise `Corrupt` if the next generation is already merged.

    Only a lost manifest can cause this error. Readers would miss rows that are written into a merged generation.
    """
    merged = snapshot.merged_generations.get(manifest.region_id, 0)
    if manifest.current_generation <= merged:
        raise Corrupt(
            f"region {manifest.region_id}: the manifest has the current generation {manifest.current_generation}, "
            f"but generations up to {merged} are already merged",
            region=manifest.region_id,
        )


def _next(target: Region, latest: RegionManifest | None) -> RegionManifest:
    if latest is None:
        return RegionManifest(region_id=target.id, version=0, region_spec_id=target.spec_id, writer_epoch=1)
    if latest.closed_by:
        raise closed_region(target.id, target.spec_id, latest.closed_by)
    return replace(latest, writer_epoch=latest.writer_epoch + 1, idle_epoch=0)


def _again(target: Region, epoch: int, latest: RegionManifest | None) -> RegionManifest:
    if latest is None or latest.idle_epoch != epoch:
        raise fenced(target.id, epoch, latest)
    return _next(target, latest)


def _claim(
    store: ObjectStore, target: Region, follow: Follow, *, record_schema: pa.Schema, clock: Clock, ids: Ids
) -> Claim:
    """Claim the region for a writer. Claim again if a merge claimed the region in between."""
    while True:
        manifest = _raise_epoch(store, target.id, follow, clock=clock, ids=ids)
        follow = partial(_again, target, manifest.writer_epoch)
        with suppress(WriterFenced):
            claimed = _take(store, manifest, record_schema=record_schema, clock=clock, ids=ids)
            again = partial(_claim, store, target, follow, record_schema=record_schema, clock=clock, ids=ids)
            return replace(claimed, again=again)


def _take(store: ObjectStore, manifest: RegionManifest, *, record_schema: pa.Schema, clock: Clock, ids: Ids) -> Claim:
    region = manifest.region_id
    tail = wal.find_tail(store, region, after=manifest.replay_after_wal_id, seed=manifest.wal_id_last_seen)
    appender = WalAppender(
        store=store,
        clock=clock,
        ids=ids,
        region=region,
        epoch=manifest.writer_epoch,
        writer_id=manifest.writer_id,
        next_id=tail + 1,
    )
    sentinel = appender.append(record_schema.empty_table(), generation=manifest.current_generation)
    check_epoch(store, region, manifest.writer_epoch)
    unflushed = tuple(wal.replay(store, region, after=manifest.replay_after_wal_id, before=sentinel))
    _logger.info(
        "region %s: claimed with epoch %d, sentinel at WAL entry %d, %d entries to replay",
        region,
        manifest.writer_epoch,
        sentinel,
        len(unflushed),
    )
    return Claim(manifest=manifest, appender=appender, unflushed=unflushed)


def _raise_epoch(store: ObjectStore, region: str, follow: Follow, *, clock: Clock, ids: Ids) -> RegionManifest:
    writer_id = ids.uuid()
    for attempt in range(_ATTEMPTS):
        if attempt:
            clock.sleep_ms(random_pause_ms(ids, attempt, first_ms=_FIRST_PAUSE_MS, longest_ms=_LONGEST_PAUSE_MS))
        following = follow(read_latest(store, region))
        claimed = replace(following, version=following.version + 1, writer_id=writer_id)
        if commit(store, claimed, clock=clock):
            return claimed
    raise Unavailable(
        f"region {region}: other writers claimed it during each of {_ATTEMPTS} attempts. Try again later",
        region=region,
    )


# The log, the memtable and the generations of one claim. Used by one thread at a time.


T = TypeVar("T")


class RegionLog:
    """Log of a claimed region: appends WAL entries and flushes generations, strictly in order.

    `stopped` is the error that every further call raises, or None. A flush replaces `memtable` by an empty memtable as
    soon as a generation contains the records. A reader of the old memtable can continue to read it.

    A merge may claim the region because the writer seems to have ended (`region.idle`). The next call then claims the
    region again, with the same requests as a claim. This call fills a new memtable from the log, and continues.
    """

    memtable: Memtable

    def __init__(
        self,
        claimed: Claim,
        memtable: Memtable,
        *,
        options: WriterOptions,
        ids: Ids,
        following: Following,
    ) -> None:
        """Create a writer from a claimed region. `memtable` must be empty."""
        self.stopped: TidemarkError | None = None
        self._store = claimed.appender.store
        self._clock = claimed.appender.clock
        self._ids = ids
        self._options = options
        self._following = following
        self._take_over(claimed, memtable)

    @property
    def name(self) -> str:
        """The table and its region, for messages."""
        return f"{self._store.uri}, region {self.region}"

    @property
    def region(self) -> str:
        """The UUID of the region."""
        return self._appender.region

    @property
    def epoch(self) -> int:
        """The fencing token of the claim."""
        return self._appender.epoch

    @property
    def schema(self) -> pa.Schema:
        """The schema of records for the newest known table schema."""
        return self._following.known.schema

    @property
    def last_entry(self) -> int:
        """The number of the last written WAL entry."""
        return self._appender.next_id - 1

    def append(self, records: pa.Table) -> None:
        """Make the records durable as one WAL entry and add them to the memtable.

        If the flush fails, none of these records was written. If the append fails and no further write is possible,
        `stopped` is set. Raises the errors of `flush` and of `WalAppender.append`.

        Cost:
            One PUT, and before it a flush if one is due.
        """
        if self._is_full() or self.flush_due_in_ms() == 0:
            # Flush before the append. If the flush fails, no row of this call is written.
            self.flush()
        self._held(lambda: self._append(records))

    def flush_due_in_ms(self) -> int | None:
        """Return the milliseconds, at least 0, until the memtable reaches its maximum age.

        Return None if the memtable has no maximum age.
        """
        age = self._options.flush_age_ms
        if age is None or not self.memtable.rows:
            return None
        return max(0, self._oldest_ms + age - self._clock.now_ms())

    def flush(self) -> int | None:
        """Write the memtable as a generation and return its number.

        Return None if the memtable is empty or a merge has flushed its records. Later records have the columns of the
        table after the flush. If the flush fails before it commits the region's manifest, the memtable does not change.
        The next flush then writes the whole memtable to another directory. Raises `WriterFenced`, `Unavailable` or
        `CommitUnknown`.
        """
        return self._held(self._flush)

    def _append(self, records: pa.Table) -> None:
        with self._settling():
            entry = self._appender.append(records, generation=self._generation)
            self.memtable.become(self.schema)
            if not self.memtable.rows:
                self._oldest_ms = self._clock.now_ms()
            self.memtable.add(entry, records)

    def _flush(self) -> int | None:
        flushed = self.memtable
        if not flushed.rows:
            return None
        written = generation_write.write(
            self._store,
            flushed,
            region=self.region,
            generation=self._generation,
            clock=self._clock,
            ids=self._ids,
            context=self._following.known.context if flushed.rows >= self._options.segment_rows else None,
        )
        self._commit_flush(written.copied)
        _logger.info(
            "region %s: flushed generation %d, %d records of %d WAL entries",
            self.region,
            self._generation,
            written.records,
            len(written.entries),
        )
        self._following.renew()
        self.memtable = Memtable(self.schema, flushed.key)
        self._generation += 1
        return written.generation

    def _held(self, act: Callable[[], T]) -> T:
        """Return the result of `act`. After `WriterFenced`, claim the region again and repeat `act`.

        `act` must change nothing when it raises `WriterFenced`.
        """
        while True:
            try:
                return act()
            except WriterFenced as fenced:
                self._claim_again(fenced)

    def _claim_again(self, fenced: WriterFenced) -> None:
        """Claim the region again after a merge, and reload the unflushed entries.

        Raise `fenced` if another writer owns the region.
        """
        if self._again is None:
            raise fenced
        try:
            with self._settling():
                claimed = self._again()
        except WriterFenced:
            self.stopped = fenced
            raise fenced from None
        self._take_over(claimed, Memtable(self.memtable.schema, self.memtable.key))

    def _take_over(self, claimed: Claim, memtable: Memtable) -> None:
        self._appender, self._again = claimed.appender, claimed.again
        self._generation = claimed.manifest.current_generation
        self._oldest_ms = self._clock.now_ms()
        for each in claimed.unflushed:
            memtable.add(each.id, each.entry.records)
        self.memtable = memtable

    def _is_full(self) -> bool:
        held, most = self.memtable, self._options
        return held.rows > 0 and (
            held.rows >= most.flush_rows
            or held.size_bytes >= most.flush_bytes
            or len(held.entries) >= most.flush_entries
        )

    def _commit_flush(self, flushed: FlushedGeneration) -> None:
        last = self.last_entry
        while True:
            latest = self._checked_manifest()
            self._require_next(latest, flushed)
            manifest = replace(
                latest,
                version=latest.version + 1,
                writer_id=self._appender.writer_id,
                replay_after_wal_id=last,
                wal_id_last_seen=last,
                current_generation=flushed.generation + 1,
                flushed_generations=(*latest.flushed_generations, flushed),
            )
            with self._settling():
                if commit(self._store, manifest, clock=self._clock):
                    return

    def _checked_manifest(self) -> RegionManifest:
        try:
            return check_epoch(self._store, self.region, self.epoch)
        except WriterFenced as fenced:
            self.stopped = fenced
            raise

    def _require_next(self, latest: RegionManifest, flushed: FlushedGeneration) -> None:
        """Raise `WriterFenced` if another process flushed under this epoch.

        The other process is a copy of this process with other rows in memory.
        """
        if latest.current_generation != flushed.generation:
            self.stopped = WriterFenced(
                f"region {self.region}: this writer flushes generation {flushed.generation}, but the manifest "
                f"already has generation {latest.current_generation}. A copy of this process also flushed, for "
                "example after fork() or on a restored machine. Stop this writer and open a new one, which "
                "replays the acknowledged "
                "records",
                region=self.region,
                epoch=self.epoch,
            )
            raise self.stopped

    @contextmanager
    def _settling(self) -> Iterator[None]:
        """Stop the log if the block is interrupted, for example by Ctrl-C. The stored state is then unknown."""
        self.stopped = CommitUnknown(
            f"region {self.region}: the outcome of an earlier write of this writer is unknown. Open a new writer, "
            "which replays the stored records",
            region=self.region,
        )
        try:
            yield
        except WriterFenced as fenced:
            self.stopped = fenced
            raise
        except NotWritten:
            self.stopped = None
            raise
        self.stopped = None


class RegionWriter:
    """The only writer of a region of a keyed table. Threads of one process can share the writer.

    - Group commit: calls of several threads share WAL entries.
    - Atomicity: the rows of one `put`, `patch`, `reset` or `delete` are in one WAL entry. All these rows become durable
      together before the call returns. If the call fails, none of these rows is acknowledged.
    - `durable=False`: the call returns before the rows are durable, and `sync` waits for durability. Until the rows are
      durable, only `scan` and `get` of this writer return the rows, and no search finds the rows.
    - Late rows: the settings of a table can forbid a late row. The writer then quarantines the row with one more PUT,
      or drops the row (docs/architecture/ingestion.md). The writer quarantines or drops the row before the call
      returns. Deletes are never late.
    - Fencing: after another writer claims the region, the next call of this writer raises `WriterFenced`. Later rows of
      the fenced writer never become visible.
    - Merges: a merge claims a region that was idle for the table's `idle_after`. The next call of the writer then
      claims the region again, for about nine requests, and continues.
    - Unknown outcome: after `CommitUnknown` the writer refuses every call. Open a new writer, which replays the stored
      entries.
    - Lost rows: some rows given with `durable=False` may be lost. The context of `WriterFenced` and `CommitUnknown`
      contains the numbers of lost rows and calls (`lost_rows` and `lost_calls`).
    - Back pressure: calls wait, or raise `Overloaded`, while the writer holds too many rows or bytes
      (`WriterOptions`).
    """

    def __init__(
        self,
        claimed: Claim,
        *,
        following: Following,
        ids: Ids,
        options: WriterOptions,
        late: LateRule | None,
    ) -> None:
        """Take over the result of a claim. `open` makes the claim."""
        self._following = following
        self._clock = claimed.appender.clock
        self._late_filter = LateRowFilter(
            claimed.appender.store, late, RowOrigin(source="writer", by=claimed.appender.writer_id)
        )
        self._filtering = threading.Lock()
        self._durable = options.durable
        memtable = Memtable(following.known.schema, self._builder.key)
        self._log = RegionLog(claimed, memtable, options=options, ids=ids, following=following)
        self._group = GroupCommit(self._log, options=options, clock=self._clock)
        self._group.warn_when_dropped(self)

    @classmethod
    def open(
        cls,
        store: ObjectStore,
        snapshot: Snapshot,
        *,
        clock: Clock,
        ids: Ids,
        options: WriterOptions | None = None,
        region: Region | None = None,
        following: Following | None = None,
    ) -> Self:
        """Claim a region of the table, fence its earlier writer, and replay its unflushed entries.

        The writer starts with the key and the columns of the snapshot, or with newer columns in `following`. After each
        flush, the writer uses the current columns of the table.

        Args:
            region: the region to claim. The default is the only region of the table.
            following: the columns of the table, shared with the writers of other regions.

        Raises:
            InvalidInput: the table has no primary key.
            Corrupt: a WAL entry is damaged. The error names it.

        It also raises the errors of `region.writer.claim`.
        """
        key = snapshot.config.primary_key
        if not key:
            raise InvalidInput(
                f"{store.uri}: a region writer needs a table with a primary key. Append to this table instead",
                table=snapshot.table_id,
            )
        target = region or only_region(snapshot.table_id, snapshot.config.region_spec)
        claimed = claim(store, target, record_schema=record_schema(snapshot.schema), clock=clock, ids=ids)
        require_unmerged(claimed.manifest, snapshot)
        late = LateRule.of(snapshot.config)
        known = following or Following(store, clock, WriterSnapshot.of(snapshot))
        return cls(claimed, following=known, ids=ids, options=options or WriterOptions(), late=late)

    @property
    def _builder(self) -> RecordBuilder:
        return self._following.known.builder

    @property
    def region_id(self) -> str:
        """The UUID of the region."""
        return self._log.region

    @property
    def epoch(self) -> int:
        """The epoch (fencing token) of the last claim of this writer."""
        return self._log.epoch

    @property
    def last_entry(self) -> int:
        """The number of the last WAL entry of this writer.

        Right after a claim, this is the sentinel of the claim.
        """
        return self._log.last_entry

    @property
    def metrics(self) -> LateMetrics:
        """The number of late rows of this writer so far, by treatment."""
        return self._late_filter.metrics

    @checked
    def put(self, rows: Rows, *, durable: bool | None = None) -> None:
        """Write whole rows. The newest row of a key wins. The rows are durable when this returns.

        With `durable=False`, the call returns at once. The rows are written later: after 100 ms, or when 10 MB are
        pending (`WriterOptions`).

        Args:
            rows: a mapping, a sequence of mappings, or an Arrow table. An empty input makes no request.
            durable: whether to wait until the rows are durable. None means the writer's default.

        Raises:
            InvalidInput: a row does not fit the table. Nothing is written.
            Overloaded: the writer holds too much. Nothing is written.
            WriterFenced: another writer has claimed the region.
            CommitUnknown: the store did not report the outcome.

        Cost:
            One PUT, shared by concurrent calls.
        """
        self.write(self._builder.puts(rows), durable)

    @checked
    def patch(self, rows: Rows, *, durable: bool | None = None) -> None:
        """Write some fields of rows. The other fields keep their values. The rows are durable when this returns.

        One PUT. A field that a row does not contain keeps its value. A field given as null becomes null. The entries
        of a merged map are added to the existing entries and replace entries of the same key. If the row does not
        exist, the patch creates it. Raises the errors of `put`.
        """
        self.write(self._builder.patches(rows), durable)

    @checked
    def reset(self, rows: Rows, *, durable: bool | None = None) -> None:
        """Delete rows and write complete new rows with the same keys. The rows are durable when this returns. One PUT.

        Raises the errors of `put`.
        """
        self.write(self._builder.resets(rows), durable)

    @checked
    def delete(self, keys: Keys, *, durable: bool | None = None) -> None:
        """Delete rows by key. The deletes are durable when the call returns. One PUT.

        A key that does not exist is not an error.

        Args:
            keys: a key or a list of keys. A key is a value, a tuple in key order, or a mapping. An Arrow table has one
                key per row.
            durable: whether to wait until the deletes are durable. None means the writer's default.

        Raises the errors of `put`.
        """
        self.write(self._builder.deletes(keys), durable)

    def sync(self) -> None:
        """Wait until all rows of earlier calls are durable. Raise the error that prevents durability (see class)."""
        self._group.sync()

    def flush(self) -> int | None:
        """Write all unflushed records as a generation and return its number. Return None if all records are flushed.

        A flush makes rows mergeable. A failed flush loses nothing, and the next flush tries again. Generations have no
        gaps (lesson 20). Calls of other threads wait during the flush. Raises `WriterFenced`, `Unavailable` or
        `CommitUnknown`.

        Cost:
            The requests of `sync`, four PUTs, the requests for the hint, and one GET that checks for changed columns. A
            generation of `segment_rows` or more records adds one PUT per maintained index. The indexes use the columns
            from before the flush.
        """
        return self._group.flush()

    def unflushed(self) -> pa.Table:
        """Return the durable records outside all generations, in order. No request."""
        return self._group.read_unflushed(lambda _: self._log.memtable).records()

    def scan(self) -> pa.Table:
        """Return one record per key from the memory of this writer, ascending by key.

        The records may not be durable yet. No request.

        A record describes a change of the row (`rows.fold`). To get rows, capture a view of the table *after* this call
        and fold the records over the view. The result is the current rows of this process, unless another thread writes
        in between. If other threads write, use `over`.
        """
        return self._in_memory()[1]

    def over(self, view: Callable[[], T]) -> tuple[T, pa.Table]:
        """Return a view of the table, and the records to apply to the view.

        View and records describe one instant of the process. There is one record per key, as in `scan`. The records
        include every record of this region in the view that is not in a generation. So a fold never replaces a newer
        value by an older value, even if other threads write concurrently.

        Args:
            view: captures all durable rows, as `Table.scan(consistency="latest")` does. It is called again after a
                concurrent flush.
        """
        while True:
            before = self._log.memtable
            seen = view()
            memtable, records = self._in_memory()
            if memtable is before:
                return seen, records
            # Records that were flushed between the two reads may be missing in the view and in the memtable.

    def get(self, key: Keys) -> pa.Table:
        """Return the record of one key. For a list of keys, return one record per key, as in `scan`. No request.

        A key without a record has no row in the result. The call does a binary search in the memtable and one pass over
        the records that are not durable yet.
        """
        wanted = self._builder.deletes(key).select(self._builder.key)

        def find(waiting: Sequence[pa.Table]) -> list[pa.Table]:
            held = self._log.memtable
            return [held.find(wanted), *(conformed(each, held.schema) for each in waiting)]

        durable, *waiting = self._group.read_unflushed(find)
        found = [durable, *(matching(each, wanted, self._builder.key) for each in waiting)]
        return fold.fold(pa.concat_tables(found), self._builder.key)

    def close(self) -> None:
        """Make all given rows durable, and stop writing. Nothing is flushed, because durable rows are in the log.

        Raises the errors of `sync`. If rows given with `durable=False` were lost before, the first `close` raises an
        error with the lost rows.
        """
        self._group.close(InvalidInput(f"the writer of region {self.region_id} is closed. Open a new writer"))

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the writer.

        If the block raises an error, this error is raised. An error of closing then becomes a note of this error.
        """
        close_after(error, self.close)

    def _in_memory(self) -> tuple[Memtable, pa.Table]:
        """Return the current memtable.

        Also return its records together with the records that no entry contains yet, one record per key.
        """

        def take(waiting: Sequence[pa.Table]) -> tuple[Memtable, list[pa.Table]]:
            memtable = self._log.memtable  # Read only once, because a flush replaces the memtable.
            return memtable, [*memtable.parts(), *(conformed(each, memtable.schema) for each in waiting)]

        memtable, parts = self._group.read_unflushed(take)
        return memtable, fold.fold(pa.concat_tables([memtable.schema.empty_table(), *parts]), self._builder.key)

    def write(self, records: pa.Table, durable: bool | None) -> None:  # noqa: FBT001 -- as its callers were given it
        """Write records from a `RecordBuilder` of this table. Raise the errors of `put` except `InvalidInput`."""
        self._group.require_usable()
        require_readable(records)  # Calls share a WAL entry. One unreadable record makes the entry unreadable.
        with self._filtering:
            records = self._late_filter.admit_records(records, self._clock.now_ms())
        self._group.submit(records, durable=self._durable if durable is None else durable)


def close_after(error: BaseException | None, close: Callable[[], None]) -> None:
    """Call `close` at the end of a block. `error` is the error that ended the block, or None.

    If both the block and `close` fail, the error of the block is raised, and the second error becomes a note.
    """
    try:
        close()
    except TidemarkError as closing:
        if error is None:
            raise
        error.add_note(f"closing the writer: {closing.found}")
