"""What a claim owns: the log it appends to, the memtable it fills, the generations it flushes. One thread at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa

from storage_core.errors import CommitUnknown, NotWritten, TidemarkError, WriterFenced
from storage_core.formats.region_manifest import FlushedGeneration, RegionManifest
from storage_core.ids import Ids
from storage_core.region import generation_write
from storage_core.region.claim import Claim
from storage_core.region.following import Following
from storage_core.region.manifest import check_epoch, commit
from storage_core.region.memtable import Memtable
from storage_core.region.options import WriterOptions

_logger = logging.getLogger(__name__)

T = TypeVar("T")


class RegionLog:
    """Appends entries and flushes generations, strictly in order.

    `stopped` is the error that every further call would end in, once there is one. `memtable` is replaced by an empty
    one when a generation holds its records: a reader that has it may go on reading. So it is when a merge took
    the region, believing that its writer had ended (`region.idle`): then the next call claims the region again, for the
    requests of a claim, and goes on with what the log holds.
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
        """Take over what a claim found; `memtable` is empty."""
        self.stopped: TidemarkError | None = None
        self._store = claimed.appender.store
        self._clock = claimed.appender.clock
        self._ids = ids
        self._options = options
        self._following = following
        self._take_over(claimed, memtable)

    @property
    def name(self) -> str:
        """The table and its region."""
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
        """The schema of records, as the table has it now as far as is known."""
        return self._following.known.schema

    @property
    def last_entry(self) -> int:
        """The number of the last entry that was put."""
        return self._appender.next_id - 1

    def append(self, records: pa.Table) -> None:
        """Make the records durable as one entry and put them into the memtable. One PUT; before it a flush that is due.

        Raises what `WalAppender.append` raises, and `stopped` says then that nothing more can be written; or what
        `flush` raises, and then nothing of these records was written.
        """
        if self._is_full() or self.flush_due_in_ms() == 0:
            # Before the append, so that a flush that fails fails a call of which nothing is written yet.
            self.flush()
        self._held(lambda: self._append(records))

    def flush_due_in_ms(self) -> int | None:
        """Return after how many milliseconds the memtable is too old, at least 0; None when it never is."""
        age = self._options.flush_age_ms
        if age is None or not self.memtable.rows:
            return None
        return max(0, self._oldest_ms + age - self._clock.now_ms())

    def flush(self) -> int | None:
        """Make a generation of the memtable and return its number; None when it is empty, or a merge has flushed it.

        What is written from then on has the columns that the table has by then.

        Whatever fails before the region's manifest is committed leaves the memtable as it is, and the next flush takes
        all of it into another directory. Raises `WriterFenced`, `Unavailable`, or `CommitUnknown`.
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
        """What comes of `act`, which changes nothing when it raises `WriterFenced`, holding the region."""
        while True:
            try:
                return act()
            except WriterFenced as fenced:
                self._claim_again(fenced)

    def _claim_again(self, fenced: WriterFenced) -> None:
        """Take the region back from a merge, and what is in no generation yet. Raises `fenced` when a writer has it."""
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
        """Return when nobody flushed under our epoch but us: a copy of this process has other rows in its memory."""
        if latest.current_generation != flushed.generation:
            self.stopped = WriterFenced(
                f"region {self.region}: this writer flushes generation {flushed.generation}, the manifest goes on with "
                f"{latest.current_generation}: a copy of this process, by fork() or a restored machine, flushed, too; "
                "stop using this writer and open a new one, which replays what is acknowledged",
                region=self.region,
                epoch=self.epoch,
            )
            raise self.stopped

    @contextmanager
    def _settling(self) -> Iterator[None]:
        """Whatever interrupts the block, Ctrl-C included, leaves open what is stored: then nothing more is written."""
        self.stopped = CommitUnknown(
            f"region {self.region}: an earlier write of this writer has no known outcome; open a new writer, which "
            "replays what is stored",
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
