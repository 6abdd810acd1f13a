"""The writer of a region: rows are durable when a call returns, and theirs is the only epoch (design page 03).

with RegionWriter.open(store, snapshot, clock=clock, ids=ids) as writer:
    writer.put({"tailnum": "N1", "seats": 4})
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Self

import pyarrow as pa

from storage_core.clock import Clock
from storage_core.errors import SEE_CORRUPT, CommitUnknown, Corrupt, InvalidInput, TidemarkError, WriterFenced
from storage_core.formats.region_manifest import FlushedGeneration, RegionManifest
from storage_core.ids import Ids
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.region import generation
from storage_core.region.claim import Claim, claim
from storage_core.region.manifest import check_epoch, commit, region_of
from storage_core.region.memtable import Memtable
from storage_core.region.records import Keys, RecordBuilder
from storage_core.rows.fold import record_schema
from storage_core.rows.incoming import Rows

_logger = logging.getLogger(__name__)

FLUSH_ROWS = 100_000
FLUSH_BYTES = 256 * 2**20


class RegionWriter:
    """The one writer of a keyed table's region. Use it from any thread of one process; calls run one after the other.

    Every `put`, `patch` and `delete` is one WAL entry: all of its rows become durable together, before the call
    returns, or none was acknowledged. Another claim of the region fences this writer: its next call raises
    `WriterFenced`, and none of its later rows is ever visible. After `CommitUnknown` the writer refuses every call;
    open a new one, which finds out by replaying what is there.
    """

    def __init__(self, claimed: Claim, *, builder: RecordBuilder, ids: Ids) -> None:
        """Take over what a claim found; `open` makes the claim."""
        self._appender = claimed.appender
        self._store = claimed.appender.store
        self._clock = claimed.appender.clock
        self._ids = ids
        self._builder = builder
        self._generation = claimed.manifest.current_generation
        self._memtable = Memtable(record_schema(builder.schema), builder.key)
        self._lock = threading.Lock()
        self._stopped: TidemarkError | None = None
        for each in claimed.unflushed:
            self._memtable.add(each.id, each.entry.records)

    @classmethod
    def open(cls, store: ObjectStore, snapshot: Snapshot, *, clock: Clock, ids: Ids) -> Self:
        """Claim the region of the table, fence whoever wrote before, and replay what is in no generation yet.

        Schema and key are those of the snapshot. Raises `InvalidInput` on a table without a primary key, `Corrupt` that
        names a damaged WAL entry, and what `region.claim.claim` raises.
        """
        key = snapshot.config.primary_key
        if not key:
            raise InvalidInput(
                f"{store.uri}: a region writer needs a table with a primary key; append to this one instead",
                table=snapshot.table_id,
            )
        region = region_of(snapshot.table_id)
        claimed = claim(store, region, record_schema=record_schema(snapshot.schema), clock=clock, ids=ids)
        merged = snapshot.merged_generations.get(region, 0)
        if claimed.manifest.current_generation <= merged:
            # Only a manifest that was lost can leave this behind; what is written into it would never be seen.
            raise Corrupt(
                f"region {region}: its manifest goes on with generation {claimed.manifest.current_generation}, but "
                f"{merged} is merged; {SEE_CORRUPT}",
                region=region,
            )
        builder = RecordBuilder(snapshot.schema, key, merged_maps=snapshot.config.merged_maps)
        return cls(claimed, builder=builder, ids=ids)

    @property
    def region_id(self) -> str:
        """The UUID of the region."""
        return self._appender.region

    @property
    def epoch(self) -> int:
        """The fencing token that this writer's claim took."""
        return self._appender.epoch

    def put(self, rows: Rows) -> None:
        """Write whole rows, newest wins per key; durable when this returns. One PUT; none for no rows.

        `rows` is a mapping, a sequence of mappings, or an Arrow table. Raises `InvalidInput` when a row does not fit
        the table (nothing is written then), `WriterFenced`, or `CommitUnknown`.
        """
        self._write(self._builder.puts(rows))

    def patch(self, rows: Rows) -> None:
        """Write some fields of rows, the others keep their value; durable when this returns. One PUT.

        Fields that a row does not name are left alone, those named with null become null. Where there is no such row
        the patch makes it. Raises what `put` raises.
        """
        self._write(self._builder.patches(rows))

    def reset(self, rows: Rows) -> None:
        """Delete the rows, then write them whole: what is there of a key goes, also where this is replayed over it.

        Durable when this returns. One PUT. Raises what `put` raises.
        """
        self._write(self._builder.resets(rows))

    def delete(self, keys: Keys) -> None:
        """Delete rows by key; durable when this returns. One PUT. Deleting what does not exist succeeds.

        `keys` is a key or a list of keys; a key is a value, a tuple in key order, or a mapping. An Arrow table holds
        one key per row. Raises what `put` raises.
        """
        self._write(self._builder.deletes(keys))

    def flush(self) -> int | None:
        """Make a generation of everything written so far and return its number; None when there is nothing.

        Three PUTs and the hint. Rows were durable before; a flush makes them mergeable. A flush that fails loses
        nothing and is tried again by the next one: generations have no gaps (lesson 20). Raises `WriterFenced`,
        `Unavailable`, or `CommitUnknown`.
        """
        with self._lock:
            self._require_usable()
            return self._flush()

    def unflushed(self) -> pa.Table:
        """Return the records that are in no generation yet, in order. No request."""
        with self._lock:
            return self._memtable.records()

    def close(self) -> None:
        """Stop writing. Flushes nothing: every row that was acknowledged is durable in the log already."""
        with self._lock:
            if self._stopped is None:
                self._stopped = InvalidInput(f"the writer of region {self.region_id} is closed; open a new one")

    def __enter__(self) -> Self:
        """Return the writer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the writer."""
        self.close()

    def _write(self, records: pa.Table) -> None:
        with self._lock:
            self._require_usable()
            if records.num_rows == 0:
                return
            if self._memtable.rows >= FLUSH_ROWS or self._memtable.size_bytes >= FLUSH_BYTES:
                # Before the append, so that a flush that fails fails a call of which nothing is written yet.
                self._flush()
            with self._settling():
                entry = self._appender.append(records, generation=self._generation)
                self._memtable.add(entry, records)

    def _flush(self) -> int | None:
        if not self._memtable.rows:
            return None
        written = generation.write(
            self._store,
            self._memtable,
            region=self.region_id,
            generation=self._generation,
            clock=self._clock,
            ids=self._ids,
        )
        self._commit_flush(FlushedGeneration(generation=self._generation, path=written.path))
        _logger.info(
            "region %s: flushed generation %d, %d records of %d WAL entries",
            self.region_id,
            self._generation,
            written.records,
            len(written.entries),
        )
        self._memtable.clear()
        self._generation += 1
        return written.generation

    def _commit_flush(self, flushed: FlushedGeneration) -> None:
        last = self._appender.next_id - 1
        while True:
            latest = self._checked_manifest()
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
            return check_epoch(self._store, self.region_id, self.epoch)
        except WriterFenced as fenced:
            self._stopped = fenced
            raise

    @contextmanager
    def _settling(self) -> Iterator[None]:
        """Whatever interrupts the block, Ctrl-C included, leaves open what is stored: then the writer stops."""
        self._stopped = CommitUnknown(
            f"region {self.region_id}: an earlier write of this writer has no known outcome; open a new writer, which "
            "replays what is stored",
            region=self.region_id,
        )
        try:
            yield
        except WriterFenced as fenced:
            self._stopped = fenced
            raise
        self._stopped = None

    def _require_usable(self) -> None:
        if self._stopped is not None:
            raise type(self._stopped)(str(self._stopped), **self._stopped.context)
