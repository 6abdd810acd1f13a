"""One writer of a raw log: group commit into numbered chunks, acknowledged by every mandatory store.

Why a writer that met an unknown outcome is done. Its chunk may be in one store and not in another, or appear later. If
it went on, the sequence numbers behind would make that chunk's absence a gap that nobody can explain. So it stops, and
the next one has a new id: a chunk that then turns up is read as written, and its caller was told that it may.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from storage_core.clock import Clock
from storage_core.errors import CommitUnknown, InvalidInput, NotWritten, TidemarkError, Unavailable
from storage_core.formats.raw_chunk import MAX_RECORDS, LogRecord, RawChunk, encode, record_id
from storage_core.formats.raw_keys import ChunkKey, chunk_key
from storage_core.objectstore.contract import ObjectStore
from storage_core.process import HomeProcess
from storage_core.raw_log.limits import RawLimits
from storage_core.raw_log.mandatory_stores import OPEN_ANOTHER, MandatoryStores
from storage_core.raw_log.optional_store import OptionalStore
from storage_core.raw_log.records import size_of

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The records of one acknowledged call: sequence numbers `first` to `last` of the writer, not always without gaps.

    Records of other calls may lie between those of a call that took several chunks.
    """

    writer: str
    ranges: tuple[tuple[int, int], ...]

    @property
    def count(self) -> int:
        """How many records were appended."""
        return sum(last - first + 1 for first, last in self.ranges)

    @property
    def ids(self) -> list[str]:
        """The ids of the records, in the order they were given."""
        return [record_id(self.writer, each) for first, last in self.ranges for each in range(first, last + 1)]


@dataclass(slots=True, eq=False)
class _Ticket:
    """Records that belong into one chunk, and what became of them: taken by a leader, then `first` once durable.

    Or `refused`, when no store kept any of them. `call` are the tickets of the same call.
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
    """Appends records under one id; safe for any number of threads, whose calls share chunks.

    A call that finds no chunk on its way sends all that waits as one; the others wait for it. So a chunk is as large as
    the stores are slow. Chunk n + 1 is sent when every mandatory store has chunk n. In a copy of the process by fork()
    every call raises `CopiedProcess`: it would write other records under the same id and numbers.
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
        """Write under `writer_id`, which nobody has ever used. No request. At least one store is mandatory."""
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
        """How many chunks every mandatory store has acknowledged."""
        return self._number

    def require_home(self) -> None:
        """Return in the process that opened the writer. Raises `CopiedProcess` elsewhere, and takes no lock before."""
        self._home.require(f"writer {self.id} of the raw log", OPEN_ANOTHER)

    def append(self, records: Sequence[LogRecord]) -> Appended:
        """Append the records in order; they are in every mandatory store when this returns. One PUT per store.

        More PUTs for more than `chunk_bytes`. Raises `InvalidInput` after `close`. Raises `NotWritten` when every
        store says that it kept nothing, as on a full disk: the writer goes on. Raises `CommitUnknown` when a
        mandatory store did not say what it did: some of the records may be in the log, and this writer is done; and
        `Unavailable` when it was done before: nothing was written.
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
        """Stop: later appends raise `InvalidInput`. Waits for the chunk that is on its way."""
        self.require_home()
        with self._turn:
            self._turn.wait_for(lambda: (not self._leading and not self._queue) or self._stopped)
            self._stopped = self._stopped or "it is closed"
            self._turn.notify_all()
        self._mandatory.close()

    def _next_batch(self, mine: Sequence[_Ticket]) -> list[_Ticket]:
        """Return the tickets of the next chunk, which the caller must send; none when its own are durable."""
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
        """Take back what nobody has sent: a thread that was interrupted is not there to send it."""
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
            return  # the next look at the queue says so to everybody whose records they were
        except TidemarkError:
            if any(each.taken for each in mine):
                raise
            # It was others' records that failed; the next look at the queue says what that means for ours.

    def _commit(self, batch: Sequence[_Ticket]) -> None:
        """Send the batch as one chunk. Whatever interrupts this, Ctrl-C included, ends the writer."""
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
                    self._stopped = "an earlier chunk of it has no known outcome"
                    self._queue.clear()
                self._turn.notify_all()

    def _acknowledge(self, batch: Sequence[_Ticket]) -> None:
        self._number += 1
        for each in batch:
            each.first = self._sequence + 1
            self._sequence += len(each.records)

    def _hand_back(self, batch: Sequence[_Ticket], refused: NotWritten) -> None:
        """Nobody has any of the batch, so its number is free; what else its calls have waiting is not sent either."""
        for each in batch:
            each.refused = refused
        self._queue = deque(each for each in self._queue if _refusal(each.call) is None)

    def _send(self, records: Sequence[LogRecord]) -> None:
        segment, key, data = self._placed(records)
        for each in self._optional:
            each.offer(key, data)
        self._mandatory.put(key, data, alone=not self._optional)  # the optional ones may have it already
        segment.size += len(data)
        _logger.debug("raw log: %s, %d records, %d bytes", key, len(records), len(data))

    def _placed(self, records: Sequence[LogRecord]) -> tuple[_Segment, str, bytes]:
        """Return the segment that the next chunk belongs to, its key and its bytes."""
        now = self._clock.now_ms()
        segment = self._segment
        if segment is None or now - segment.began_ms >= self._limits.segment_ms:
            segment = self._begin(now)
        chunk = self._chunk(segment, records)
        data = encode(chunk)
        if segment.size and segment.size + len(data) > self._limits.segment_bytes:
            segment = self._begin(now)
            chunk = self._chunk(segment, records)
            data = encode(chunk)
        return segment, chunk_key(chunk.key), data

    def _begin(self, now: int) -> _Segment:
        # The clock may stand still or step back; segments of a writer still have different names, in their order.
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
                raise CommitUnknown(f"writer {self.id}: the first {kept} records are kept, no others: {refused.found}")
            raise refused.reworded(refused.found)
        if self._stopped is not None:
            self._refuse(self._stopped, sent=any(each.taken for each in mine))

    def _refuse(self, why: str, *, sent: bool) -> NoReturn:
        if sent:
            raise CommitUnknown(f"writer {self.id}: {why}; some of these records may be kept; {OPEN_ANOTHER}")
        if why == "it is closed":
            raise InvalidInput(f"writer {self.id}: {why}; {OPEN_ANOTHER}")
        raise Unavailable(f"writer {self.id}: {why}; none of these records was written; {OPEN_ANOTHER}")


def _refusal(mine: Sequence[_Ticket]) -> NotWritten | None:
    return next((each.refused for each in mine if each.refused is not None), None)


def _tickets(records: Sequence[LogRecord], chunk_bytes: int) -> Iterator[_Ticket]:
    """Cut the records into parts of at most `chunk_bytes`, but one record at least."""
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
