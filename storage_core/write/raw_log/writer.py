"""Writer of a raw log: group commit into numbered chunks, acknowledged by every mandatory store.

A writer stops after a chunk with an unknown outcome. The chunk may be in one store and not in another, or may appear
later. If the writer continued, the missing chunk would become a gap without an explanation. The next writer has a new
id. If the chunk appears later, readers return its records. The error to the caller mentions this case.

`RawLog` is the public class. `RawWriter` groups calls into chunks. `MandatoryStores` and `OptionalStore` send the
chunks.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import NoReturn, Self

import pyarrow as pa

from storage_core.base.arguments import checked
from storage_core.base.clock import Clock, Ids, SystemClock, SystemIds
from storage_core.base.errors import CommitUnknown, Fenced, InvalidInput, NotWritten, TidemarkError, Unavailable
from storage_core.base.process import HomeProcess
from storage_core.data.formats.keys import ChunkKey, probe_key, raw_chunk_key
from storage_core.data.formats.raw_chunk import MAX_RECORDS, LogRecord, Operation, RawChunk, encode_chunk, record_id
from storage_core.data.rows.incoming import Rows, read_whole, require_each_once, validated_rows
from storage_core.data.rows.times import in_microseconds
from storage_core.store.contract import ObjectStore, create_numbered
from storage_core.store.resolve import require_capable
from storage_core.write.raw_log.history import Place, RawStore, opened
from storage_core.write.raw_log.records import (
    Named,
    RawLimits,
    RawRecord,
    all_prepared,
    prepared_columns,
    record_of,
    rows_of,
    size_of,
)

# Mandatory stores of a raw log. A chunk is acknowledged when all mandatory stores have the chunk.


OPEN_ANOTHER = "Open another RawLog, which writes under a new id"


class MandatoryStores:
    """One or more stores. Each chunk goes to all stores concurrently. The calling thread writes to the first store."""

    def __init__(self, stores: Sequence[ObjectStore], *, clock: Clock) -> None:
        self._first, *self._others = stores
        self._clock = clock
        self._pool = ThreadPoolExecutor(len(self._others), thread_name_prefix="raw log") if self._others else None

    def put(self, key: str, data: bytes, *, alone: bool) -> None:
        """Write the chunk to every mandatory store, and wait until all stores have it. One PUT per store.

        Args:
            alone: whether no other store may have the chunk.

        Raises:
            NotWritten: no store kept the chunk, and no other store may have it.
            CommitUnknown: some store may have kept the chunk.
            Fenced: another chunk has the key.

        If a store fails without a known outcome, its error is raised.
        """
        sent = [self._pool.submit(self._failure, each, key, data) for each in self._others] if self._pool else []
        try:
            first = self._failure(self._first, key, data)
        finally:
            wait(sent)
        failures = [first, *(each.result() for each in sent)]
        failed = [each for each in failures if each is not None]
        if not failed:
            return
        unknown = next((each for each in failed if not isinstance(each, NotWritten)), None)
        if unknown is not None:
            raise unknown
        if len(failed) == len(failures) and alone:
            raise failed[0]
        # This store refused the chunk, but another store may have it. So the caller gets an unknown outcome.
        raise CommitUnknown(
            f"{failed[0].found}. Another store may have the chunk. {OPEN_ANOTHER}", key=key
        ) from failed[0]

    def close(self) -> None:
        """End the threads after their last chunk is sent."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)

    def _failure(self, store: ObjectStore, key: str, data: bytes) -> TidemarkError | None:
        try:
            self._put(store, key, data)
        except TidemarkError as error:
            return error
        return None

    def _put(self, store: ObjectStore, key: str, data: bytes) -> None:
        try:
            if create_numbered(store, key, data, clock=self._clock):
                return
        except CommitUnknown as error:
            raise CommitUnknown(f"{store.uri}: {error}. {OPEN_ANOTHER}", key=key, uri=store.uri) from error
        except NotWritten as error:
            raise error.reworded(f"{store.uri} did not store {key}: {error.found}") from error
        except TidemarkError as error:
            # This store refused the chunk, but another store may have it. So the caller gets an unknown outcome.
            raise CommitUnknown(f"{store.uri} did not store {key}: {error.found}. {OPEN_ANOTHER}", key=key) from error
        raise Fenced(f"{store.uri}: {key} is a chunk of another writer with the same id. {OPEN_ANOTHER}", key=key)


# Optional stores of a raw log. The writer sends chunks to an optional store without a guarantee, and no caller waits
# for an optional store. A separate thread sends the offered chunks in order. The bytes of pending chunks are limited. A
# chunk above the limit is counted but not sent to this store. A reader gets missing chunks of one store from another
# store (`raw_log.history`).


_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReport:
    """The number of chunks that one writer sent to one store, by outcome. The count begins when the writer is opened.

    `failed` counts the chunks that an optional store did not keep. The failed chunks are refused chunks, chunks without
    an answer, and chunks above the limit of pending bytes. `pending` counts the chunks that are not sent yet. For a
    mandatory store, `failed` and `pending` are 0, because the writer ends if a mandatory store does not keep a chunk.
    """

    uri: str
    mandatory: bool
    acknowledged: int
    failed: int = 0
    pending: int = 0
    last_error: str | None = None


class OptionalStore:
    """Background sender to one store. `offer` never waits for the store, and never raises an error of the store."""

    def __init__(self, store: ObjectStore, *, clock: Clock, backlog_bytes: int, probe_key: Callable[[], str]) -> None:
        self._store = store
        self._clock = clock
        self._backlog_bytes = backlog_bytes
        self._probe_key = probe_key
        self._turn = threading.Condition()
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._waiting_bytes = 0
        self._thread: threading.Thread | None = None
        self._closed = False
        self._acknowledged = self._failed = 0
        self._last_error: str | None = None

    def offer(self, key: str, data: bytes) -> None:
        """Accept the chunk, or drop it for this store if too many bytes are pending. No request in this thread."""
        with self._turn:
            if self._waiting and self._waiting_bytes + len(data) > self._backlog_bytes:
                self._note_failure(f"{key}: {self._waiting_bytes} bytes wait for this store already")
                return
            self._waiting.append((key, data))
            self._waiting_bytes += len(data)
            if self._thread is None:
                # A daemon thread, because a hanging store must not prevent the end of the process.
                self._thread = threading.Thread(
                    target=self._send_all, name=f"raw log to {self._store.uri}", daemon=True
                )
                self._thread.start()
            self._turn.notify_all()

    def drain(self, wait_ms: int) -> bool:
        """Wait at most `wait_ms` of real time until nothing is pending. Return whether nothing is pending."""
        with self._turn:
            return self._turn.wait_for(lambda: not self._waiting, wait_ms / 1000)

    def close(self, wait_ms: int) -> None:
        """Send the pending chunks for at most `wait_ms`.

        After this time, the remaining chunks are dropped for this store.
        """
        self.drain(wait_ms)
        with self._turn:
            self._closed = True
            self._turn.notify_all()

    def report(self) -> StoreReport:
        """Return the metrics of this store so far."""
        with self._turn:
            return StoreReport(
                uri=self._store.uri,
                mandatory=False,
                acknowledged=self._acknowledged,
                failed=self._failed,
                pending=len(self._waiting),
                last_error=self._last_error,
            )

    def _send_all(self) -> None:
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                key, data = self._waiting[0]  # a chunk stays queued until it is sent, so `drain` waits
            error = self._attempt(key, data)
            with self._turn:
                self._waiting.popleft()
                self._waiting_bytes -= len(data)
                if error is None:
                    self._acknowledged += 1
                    self._last_error = None
                else:
                    self._note_failure(error)
                self._turn.notify_all()

    def _attempt(self, key: str, data: bytes) -> str | None:
        try:
            require_capable(self._store, self._probe_key)
            kept = create_numbered(self._store, key, data, clock=self._clock)
        except BaseException as error:  # noqa: BLE001  # no error may stop the other stores or the next chunk
            return f"{type(error).__name__}: {error}"
        return None if kept else f"{key}: is a chunk of another writer with the same id"

    def _note_failure(self, error: str) -> None:
        if self._last_error is None:
            # One log line per outage. The next line can come only after a success.
            _logger.warning("raw log: the optional store %s misses a chunk: %s", self._store.uri, error)
        self._failed += 1
        self._last_error = error


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The records of one acknowledged call: ranges of sequence numbers of the writer, `first` to `last`.

    If a call is in several chunks, records of other calls may be between the ranges of the call.
    """

    writer: str
    ranges: tuple[tuple[int, int], ...]

    @property
    def count(self) -> int:
        """The number of records that were appended."""
        return sum(last - first + 1 for first, last in self.ranges)

    @property
    def ids(self) -> list[str]:
        """The ids of the records, in the given order."""
        return [record_id(self.writer, each) for first, last in self.ranges for each in range(first, last + 1)]


@dataclass(slots=True, eq=False)
class _Ticket:
    """The records for one chunk, and their state.

    A leader sets `taken` when it sends the records. `first` is set when the records are durable. `refused` is set if no
    store kept the records. `call` contains all tickets for the records of one call.
    """

    records: Sequence[LogRecord]
    size: int
    taken: bool = False
    first: int | None = None
    refused: NotWritten | None = None
    call: Sequence[_Ticket] = ()


@dataclass(slots=True)
class _Segment:
    began_ms: int
    size: int = 0


class RawWriter:
    """Writer of records under one id, safe for any number of threads. The calls of these threads share chunks.

    If no chunk is in flight, a call sends all waiting records as one chunk. The other calls wait for this chunk.
    So slower stores lead to larger chunks. Chunk n + 1 is sent when every mandatory store has chunk n. In a child
    process made by fork(), every call raises `CopiedProcess`. Otherwise the child and its parent could write different
    records under the same writer id and the same numbers.
    """

    def __init__(
        self,
        mandatory: Sequence[ObjectStore],
        optional: Sequence[OptionalStore],
        *,
        writer_id: str,
        clock: Clock,
        limits: RawLimits,
    ) -> None:
        """Open a writer with the new id `writer_id`. At least one store must be mandatory. No request."""
        self.id = writer_id
        self._mandatory = MandatoryStores(mandatory, clock=clock)
        self._optional = optional
        self._clock = clock
        self._limits = limits
        self._home = HomeProcess()
        self._turn = threading.Condition()
        self._queue: deque[_Ticket] = deque()
        self._leading = False
        self._stopped: str | None = None
        self._segment: _Segment | None = None
        self._number = self._sequence = 0

    @property
    def chunks(self) -> int:
        """The number of chunks that every mandatory store has acknowledged."""
        return self._number

    def require_home(self) -> None:
        """Raise `CopiedProcess` in any process except the process that opened the writer. No lock is taken."""
        self._home.require(f"writer {self.id} of the raw log", OPEN_ANOTHER)

    def append(self, records: Sequence[LogRecord]) -> Appended:
        """Append the records in order. Every mandatory store has the records when the function returns.

        Raises:
            InvalidInput: the writer is closed.
            NotWritten: every store reported that it kept nothing, as on a full disk. The writer can continue.
            CommitUnknown: a mandatory store did not report its outcome. Some of the records may be in the log, and
                this writer has ended.
            Unavailable: the writer had ended before. Nothing was written.

        Cost:
            One PUT per store. More PUTs for more than `chunk_bytes`.
        """
        self.require_home()
        tickets = [*_tickets(records, self._limits.chunk_bytes)]
        for each in tickets:
            each.call = tickets
        if tickets:
            try:
                with self._turn:
                    self._require_usable(tickets)
                    self._queue.extend(tickets)
                while batch := self._next_batch(tickets):
                    self._lead(batch, tickets)
            finally:
                self._withdraw(tickets)
        firsts = ((each.first, each) for each in tickets)
        ranges = tuple((first, first + len(each.records) - 1) for first, each in firsts if first is not None)
        return Appended(writer=self.id, ranges=ranges)

    def close(self) -> None:
        """Stop the writer. Later appends raise `InvalidInput`. Waits until the current chunk is stored."""
        self.require_home()
        with self._turn:
            self._turn.wait_for(lambda: (not self._leading and not self._queue) or self._stopped)
            self._stopped = self._stopped or "it is closed"
            self._turn.notify_all()
        self._mandatory.close()

    def _next_batch(self, mine: Sequence[_Ticket]) -> list[_Ticket]:
        """Return the calls (tickets) whose records form the next chunk. The caller must send this chunk.

        Return no tickets if the tickets of the caller are durable.
        """
        with self._turn:
            self._turn.wait_for(
                lambda: mine[-1].first is not None or self._stopped or _refusal(mine) or not self._leading
            )
            if mine[-1].first is not None:
                return []
            self._require_usable(mine)
            self._leading = True
            batch = [*self._take()]
            for each in batch:
                each.taken = True
            return batch

    def _withdraw(self, mine: Sequence[_Ticket]) -> None:
        """Remove unsent tickets from the queue, because an interrupted thread cannot send them."""
        with self._turn:
            if any(each.first is None for each in mine):
                self._queue = deque(each for each in self._queue if each not in mine)
                self._turn.notify_all()

    def _take(self) -> Iterator[_Ticket]:
        size = count = 0
        while self._queue:
            size += self._queue[0].size
            count += len(self._queue[0].records)
            if count > len(self._queue[0].records) and (size > self._limits.chunk_bytes or count > MAX_RECORDS):
                return
            yield self._queue.popleft()

    def _lead(self, batch: Sequence[_Ticket], mine: Sequence[_Ticket]) -> None:
        try:
            self._commit(batch)
        except NotWritten:
            return  # The callers get the error at the next check of the queue.
        except TidemarkError:
            if any(each.taken for each in mine):
                raise
            # The error concerns records of other calls, and not the records of the call that sends the chunk. This call
            # learns its result when it checks the queue again.

    def _commit(self, batch: Sequence[_Ticket]) -> None:
        """Send the batch as one chunk. Any interruption, such as Ctrl-C, ends the writer."""
        done = False
        refused: NotWritten | None = None
        try:
            self._send([record for each in batch for record in each.records])
            done = True
        except NotWritten as error:
            refused = error
            raise
        finally:
            with self._turn:
                self._leading = False
                if done:
                    self._acknowledge(batch)
                elif refused is not None:
                    self._hand_back(batch, refused)
                else:
                    self._stopped = "the outcome of an earlier chunk is unknown"
                    self._queue.clear()
                self._turn.notify_all()

    def _acknowledge(self, batch: Sequence[_Ticket]) -> None:
        self._number += 1
        for each in batch:
            each.first = self._sequence + 1
            self._sequence += len(each.records)

    def _hand_back(self, batch: Sequence[_Ticket], refused: NotWritten) -> None:
        """Mark the batch as refused. The chunk number of the batch is free again.

        Waiting tickets of the same calls are not sent either.
        """
        for each in batch:
            each.refused = refused
        self._queue = deque(each for each in self._queue if _refusal(each.call) is None)

    def _send(self, records: Sequence[LogRecord]) -> None:
        segment, key, data = self._placed(records)
        for each in self._optional:
            each.offer(key, data)
        self._mandatory.put(key, data, alone=not self._optional)  # The optional stores may already have the chunk.
        segment.size += len(data)
        _logger.debug("raw log: %s, %d records, %d bytes", key, len(records), len(data))

    def _placed(self, records: Sequence[LogRecord]) -> tuple[_Segment, str, bytes]:
        """Return the segment, the key and the bytes of the next chunk."""
        now = self._clock.now_ms()
        segment = self._segment
        if segment is None or now - segment.began_ms >= self._limits.segment_ms:
            segment = self._begin(now)
        chunk = self._chunk(segment, records)
        data = encode_chunk(chunk)
        if segment.size and segment.size + len(data) > self._limits.segment_bytes:
            segment = self._begin(now)
            chunk = self._chunk(segment, records)
            data = encode_chunk(chunk)
        return segment, raw_chunk_key(chunk.key), data

    def _begin(self, now: int) -> _Segment:
        # The clock may stop or move backwards. Even with an unreliable clock, the segments of a writer must have
        # distinct names in ascending order.
        began = now if self._segment is None else max(now, self._segment.began_ms + 1)
        self._segment = _Segment(began)
        return self._segment

    def _chunk(self, segment: _Segment, records: Sequence[LogRecord]) -> RawChunk:
        key = ChunkKey(segment_ms=segment.began_ms, writer=self.id, number=self._number + 1)
        return RawChunk(key=key, first=self._sequence + 1, records=tuple(records))

    def _require_usable(self, mine: Sequence[_Ticket]) -> None:
        refused = _refusal(mine)
        if refused is not None:
            kept = sum(len(each.records) for each in mine if each.first is not None)
            if kept:
                raise CommitUnknown(f"writer {self.id}: only the first {kept} records are stored: {refused.found}")
            raise refused.reworded(refused.found)
        if self._stopped is not None:
            self._refuse(self._stopped, sent=any(each.taken for each in mine))

    def _refuse(self, why: str, *, sent: bool) -> NoReturn:
        if sent:
            raise CommitUnknown(f"writer {self.id}: {why}. Some of these records may be stored. {OPEN_ANOTHER}")
        if why == "it is closed":
            raise InvalidInput(f"writer {self.id}: {why}. {OPEN_ANOTHER}")
        raise Unavailable(f"writer {self.id}: {why}. None of these records was written. {OPEN_ANOTHER}")


def _refusal(mine: Sequence[_Ticket]) -> NotWritten | None:
    return next((each.refused for each in mine if each.refused is not None), None)


def _tickets(records: Sequence[LogRecord], chunk_bytes: int) -> Iterator[_Ticket]:
    """Divide the records into parts of at most `chunk_bytes`. Each part has at least one record."""
    part: list[LogRecord] = []
    total = 0
    for record in records:
        size = size_of(record)
        if part and (total + size > chunk_bytes or len(part) >= MAX_RECORDS):
            yield _Ticket(part, total)
            part, total = [], 0
        part.append(record)
        total += size
    if part:
        yield _Ticket(part, total)


class RawLog:
    """One writer of a raw log, with its own id that is never used again. A `RawLog` is safe for any number of threads.

    An append is acknowledged when every mandatory store has the records. Optional stores get all records in the
    background. `report` returns the progress of all stores. Producers do not depend on each other or on the tables. A
    distribution decides whether a record fits its table.

    Example:
        with RawLog(["s3://here/raw", RawStore("s3://elsewhere/raw", mandatory=False)]) as log:
            log.append("users", {"id": 1, "name": "Ada"})
    """

    @checked
    def __init__(
        self,
        stores: Sequence[Place | RawStore],
        *,
        clock: Clock | None = None,
        ids: Ids | None = None,
        limits: RawLimits | None = None,
    ) -> None:
        """Open a writer on stores. A store is mandatory unless its `RawStore` has `mandatory=False`.

        Raises:
            InvalidInput: there is no mandatory store, or a store is given twice.
            Unsupported: a mandatory store lacks a required capability.
            Unavailable: a mandatory store does not answer.

        Cost:
            One probe of each mandatory S3 store, once per process.
        """
        clock, ids, limits = clock or SystemClock(), ids or SystemIds(), limits or RawLimits()
        places = opened(stores)
        new_key = partial(_probe_key, ids)
        self._mandatory = [store for store, mandatory in places if mandatory]
        if not self._mandatory:
            raise InvalidInput(
                "a raw log needs a mandatory store: without one nothing would be durable. "
                "Give a store without mandatory=False"
            )
        for each in self._mandatory:
            require_capable(each, new_key)
        self._optional = [
            OptionalStore(store, clock=clock, backlog_bytes=limits.backlog_bytes, probe_key=new_key)
            for store, mandatory in places
            if not mandatory
        ]
        self._limits = limits
        self._clock = clock
        self._writer = RawWriter(self._mandatory, self._optional, writer_id=ids.uuid(), clock=clock, limits=limits)
        _logger.info("raw log: writer %s on %s", self.writer_id, ", ".join(store.uri for store, _ in places))

    @property
    def writer_id(self) -> str:
        """The id of this writer. The ids of the writer's records begin with this id."""
        return self._writer.id

    @checked
    def append(
        self,
        table: str,
        rows: Rows,
        *,
        operation: Operation = "put",
        key: str | None = None,
        unique_by: str | None = None,
    ) -> Appended:
        """Append one operation per row for one table. The rows are durable in every mandatory store when this returns.

        Args:
            rows: as for `Table.append`. A stream is read as a whole. A delete needs only the key columns.
            key: the field with the key of the record.
            unique_by: the field with the id of the record. If several records have the same id, a table takes only one
                of them. So a repeated append after `CommitUnknown` creates no duplicates.

        Raises:
            InvalidInput: a row cannot be represented in the log, a stream ends early, or Arrow data has a column
                twice. The error names the row or the column. Nothing is written.

        It also raises the errors of `append_many`.

        Cost:
            One PUT per store, shared with concurrent calls. No request for no rows.
        """
        held, named = read_whole(rows), Named(key=key, id=unique_by)
        if isinstance(held, pa.Table | pa.RecordBatch):
            given = RawRecord(table=table, fields={}, operation=operation)
            require_each_once(held.schema.names)
            held = in_microseconds(validated_rows(held))
            records = prepared_columns(held, given, named=named, now_ms=self._clock.now_ms())
            if records is not None:
                return self._writer.append(records)
        return self.append_many(record_of(table, row, operation=operation, named=named) for row in rows_of(held))

    def append_many(self, records: Iterable[RawRecord]) -> Appended:
        """Append records for any tables, in order. The call returns when every mandatory store has the records.

        Raises:
            InvalidInput: no table could have this table name, operation or value. Nothing is written.
            CommitUnknown: a mandatory store did not report its outcome. Some of the records may be in the log. This
                writer has ended. Open another.
            Unavailable: the writer had ended before. Nothing was written. Open another.

        Cost:
            One PUT per store. More PUTs for more than `RawLimits.chunk_bytes`.
        """
        return self._writer.append([*all_prepared(records, now_ms=self._clock.now_ms())])

    def report(self) -> list[StoreReport]:
        """Return the metrics of every store, mandatory stores first. No request."""
        self._writer.require_home()
        chunks = self._writer.chunks
        kept = [StoreReport(uri=each.uri, mandatory=True, acknowledged=chunks) for each in self._mandatory]
        return [*kept, *(each.report() for each in self._optional)]

    @checked
    def drain(self, wait_ms: int) -> bool:
        """Wait for the optional stores, each for at most `wait_ms`.

        Return whether nothing is pending for any of them.
        """
        self._writer.require_home()
        drained = [each.drain(wait_ms) for each in self._optional]
        return all(drained)

    def close(self) -> None:
        """End the writer. Wait up to `close_wait_ms` for chunks of optional stores. Closing again does nothing."""
        self._writer.close()
        for each in self._optional:
            each.close(self._limits.close_wait_ms)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _probe_key(ids: Ids) -> str:
    return probe_key(ids.uuid())
