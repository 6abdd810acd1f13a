"""Group commit: calls of many threads share a WAL entry (docs/architecture/ingestion.md, "WAL").

Durable calls need no extra thread. If no write is active, one waiting call collects the rows of all waiting calls,
including its own rows, in the order of arrival. This waiting call writes all collected rows as one entry. New calls
wait in the meantime. So a single call costs one PUT and no handover to another thread. With any number of callers, each
call waits for about two PUTs.

A timer thread writes the rows given with `durable=False`. The timer thread exists only while rows are pending or a
flush is scheduled.
"""

from __future__ import annotations

import logging
import sys
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol, TypeVar

import pyarrow as pa

from storage_core.base.clock import Clock
from storage_core.base.errors import CommitUnknown, Overloaded, TidemarkError, Unavailable
from storage_core.base.process import HomeProcess
from storage_core.base.text import counted
from storage_core.data.rows.fold import conformed
from storage_core.write.region.records import WriterOptions

# Unfinished calls of a writer. No code in this section waits or takes a lock. `GroupCommit` does both.


@dataclass(slots=True, eq=False)
class Call:
    """One call: the rows, the number of the call in this writer, and the outcome."""

    number: int
    records: pa.Table
    durable: bool
    arrived_ms: int
    size_bytes: int
    done: bool = False
    error: TidemarkError | None = None


@dataclass(slots=True)
class Backlog:
    """The unfinished calls of a writer, by state and in order.

    The list `asking` contains calls that wait until less data is pending than the limits allow. The list `queue`
    contains calls that wait for the next entry, and `writing` contains the calls of the current entry. Some rows given
    with `durable=False` may be lost. `unheard` counts the lost rows whose loss was not yet reported to a caller.
    """

    options: WriterOptions
    asking: deque[Call] = field(default_factory=deque)
    queue: deque[Call] = field(default_factory=deque)
    writing: list[Call] = field(default_factory=list)
    unheard: int = 0
    held_rows: int = 0
    held_bytes: int = 0

    @property
    def taken(self) -> list[Call]:
        """The calls that were accepted and are not done, in order."""
        return [*self.writing, *self.queue]

    @property
    def unheard_rows(self) -> int:
        """The number of pending or lost rows given with `durable=False`.

        Lost rows count until a caller gets an error.
        """
        pending: int = sum(call.records.num_rows for call in self.taken if not call.durable)
        return self.unheard + pending

    def add(self, call: Call) -> None:
        """Accept a call."""
        self.queue.append(call)
        self.held_rows += call.records.num_rows
        self.held_bytes += call.size_bytes

    def begin(self) -> None:
        """Move the next calls from the queue to `writing`: at least one call, up to the size of an entry."""
        left = self.options.entry_bytes
        while self.queue and (not self.writing or self.queue[0].size_bytes <= left):
            self.writing.append(self.queue.popleft())
            left -= self.writing[-1].size_bytes

    def entry(self, schema: pa.Schema) -> pa.Table:
        """Return the rows of the `writing` calls as records of this schema."""
        records = pa.concat_tables([conformed(call.records, schema) for call in self.writing])
        return records.combine_chunks() if len(self.writing) > 1 else records

    def end(self, error: TidemarkError | None, *, now_ms: int) -> None:
        """Set the outcome of the `writing` calls.

        After an error, calls with `durable=False` return to the queue.
        """
        written, self.writing = self.writing, []
        again = [call for call in written if error is not None and not call.durable]
        for call in written:
            if call not in again:
                self._done(call, error)
        for call in again:
            call.arrived_ms = now_ms
        self.queue.extendleft(reversed(again))

    def drop(self, error: TidemarkError) -> TidemarkError:
        """End every call in the queue with this error. Return the error with the lost rows."""
        rest = [*self.queue]
        self.queue.clear()
        named = _naming(error, [call for call in rest if not call.durable])
        self.unheard += int(str(named.context.get("lost_rows", 0)))
        for call in rest:
            self._done(call, named)
        return named

    def must_wait(self, call: Call) -> bool:
        """Return whether the limits require that the call waits."""
        return self._exceeds(self.options.wait_rows, self.options.wait_bytes, [call])

    def must_refuse(self, call: Call) -> bool:
        """Return whether the call exceeds the limit for waiting calls and must be refused."""
        return self._exceeds(self.options.refuse_rows, self.options.refuse_bytes, [*self.asking, call])

    def overloaded(self, call: Call, bound: str, *, now_ms: int) -> Overloaded:
        """Return the error for a call that exceeds a limit. `bound` is `wait` or `refuse`."""
        held, given = counted(self.held_rows, "row"), counted(call.records.num_rows, "row")
        rows, size_bytes = (getattr(self.options, f"{bound}_{unit}") for unit in ("rows", "bytes"))
        return Overloaded(
            f"the writer is overloaded, and the {given} of this call were not written. Write the rows again later. Not "
            f"durable yet: {held} ({self.held_bytes} bytes), with {len(self.asking)} waiting calls. Limits: "
            f"{bound}_rows={rows}, {bound}_bytes={size_bytes}. This call waited {now_ms - call.arrived_ms} ms "
            f"(wait_ms={self.options.wait_ms})",
            bound=bound,
            rows=call.records.num_rows,
        )

    def _exceeds(self, rows: int, size_bytes: int, more: Sequence[Call]) -> bool:
        if not self.held_rows and len(more) == 1:
            return False  # Otherwise a call above the limit could never be accepted.
        return (
            self.held_rows + sum(each.records.num_rows for each in more) > rows
            or self.held_bytes + sum(each.size_bytes for each in more) > size_bytes
        )

    def _done(self, call: Call, error: TidemarkError | None) -> None:
        call.done, call.error = True, error
        self.held_rows -= call.records.num_rows
        self.held_bytes -= call.size_bytes


def _naming(error: TidemarkError, lost: Sequence[Call]) -> TidemarkError:
    """Return the error, extended by the numbers of the calls `lost` and by the number of their lost rows."""
    if not lost:
        return error
    rows, numbers = sum(call.records.num_rows for call in lost), tuple(call.number for call in lost)
    which = f"call {numbers[0]}" if len(numbers) == 1 else f"{len(numbers)} calls from {numbers[0]} to {numbers[-1]}"
    fate = "perhaps not written" if isinstance(error, CommitUnknown) else "not written"
    return error.reworded(
        f"{error.found}. {counted(rows, 'row')} given with durable=False: {fate} ({which} of this writer)",
        lost_rows=rows,
        lost_calls=numbers,
    )


# Reports of pending rows in a writer that nobody closed (docs/architecture/ingestion.md).
#
# Each loss is reported once. At the end of the process, an error goes to the log, by default to standard error. A child
# of `multiprocessing` writes the error when its function has returned. Most children skip the usual steps at exit. If a
# writer is dropped while its process continues, there is a `ResourceWarning`. The rows of the writer are still written,
# but no caller would receive an error. Without pending rows there is no report. A process made by fork() has a copy of
# the writer, and reports nothing about the copied rows (decision 0011). There is also no report if a signal ends the
# process, for example a worker of a terminated pool.


_logger = logging.getLogger(__name__)

_LAST = -(2**31)


def say_what_is_lost(group: object, backlog: Backlog, name: str, home: HomeProcess) -> None:
    """Report the pending rows of the backlog when the writing object is deleted or the process ends."""
    end = weakref.finalize(group, _say_lost, backlog, name, home)  # Runs once, even after several calls.
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and processes.parent_process() is not None:
        from multiprocessing.util import Finalize  # already loaded in every child

        Finalize(group, end, exitpriority=_LAST)


def warn_when_dropped(writer: object, backlog: Backlog, name: str, home: HomeProcess) -> None:
    """Warn if the writer is dropped while rows are pending. The end of the process does not cause this warning."""
    weakref.finalize(writer, _warn_dropped, backlog, name, home).atexit = False


# These two functions take no lock. `_say_lost` and `_warn_dropped` may run in a thread that holds the lock of the
# writer.
def _say_lost(backlog: Backlog, name: str, home: HomeProcess) -> None:
    rows = backlog.unheard_rows
    if rows and home.is_here:
        _logger.error(
            "%s: its writer ended without close(). %s given with durable=False not known to be durable, and lost "
            "unless a reader finds them. Close the writer, or use it as a context manager",
            name,
            counted(rows, "row"),
        )


def _warn_dropped(backlog: Backlog, name: str, home: HomeProcess) -> None:
    rows = backlog.unheard_rows
    if rows and home.is_here:
        warnings.warn(
            f"{name}: its writer was dropped without close(), and {counted(rows, 'row')} given with durable=False are "
            "not durable yet. The outcome of these rows is unknown. Close the writer, or use it as a context manager",
            ResourceWarning,
            stacklevel=2,
        )


T = TypeVar("T")


class Log(Protocol):
    """Destination of entries. Only one thread at a time uses the log."""

    @property
    def name(self) -> str:
        """The name of the log, for messages."""
        ...

    @property
    def stopped(self) -> TidemarkError | None:
        """The error of every further write, or None if writes are possible."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """The schema of the records of an entry."""
        ...

    def append(self, records: pa.Table) -> None:
        """Make the records durable as one entry. After an error, `stopped` is set if the error is final."""
        ...

    def flush_due_in_ms(self) -> int | None:
        """Return the milliseconds until the next flush, or None if no flush is scheduled."""
        ...

    def flush(self) -> int | None:
        """Write the appended records as a generation."""
        ...


class GroupCommit:
    """A writer that many threads can use. Calls are written in the order of arrival, with many calls per entry.

    A refused call does not affect other calls. All calls whose rows are in one entry have the same result as the entry.
    In a copy of the process, every call raises `CopiedProcess` before it takes a lock. The thread that holds the lock
    may exist only in the original process.
    """

    def __init__(self, log: Log, *, options: WriterOptions, clock: Clock) -> None:
        """Write to `log`. Nobody else may use `log`."""
        self._log = log
        self._options = options
        self._clock = clock
        self._home = HomeProcess()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._tick = threading.Condition(self._lock)
        self._numbers = count(1)
        self._backlog = Backlog(options)
        self._busy = False
        self._timer: threading.Thread | None = None
        self._closing: TidemarkError | None = None
        self._stopped: TidemarkError | None = None
        say_what_is_lost(self, self._backlog, log.name, self._home)
        with self._lock:
            self._wake_timer_for_flush()

    def warn_when_dropped(self, writer: object) -> None:
        """Warn if `writer` is dropped while rows are pending. `writer` is the object that users call."""
        warn_when_dropped(writer, self._backlog, self._log.name, self._home)

    def require_usable(self) -> None:
        """Raise the error of a stopped writer."""
        self._require_home()
        with self._lock:
            self._require_usable()

    def submit(self, records: pa.Table, *, durable: bool) -> None:
        """Accept the rows of a call. Return when the rows are durable, or immediately if `durable` is false.

        The call waits while the writer holds more rows or bytes than the limits for waiting. It raises `Overloaded`
        above the limits for refusing, or if the wait takes too long. In this case, no row of the call is written. It
        also raises the errors of the log.
        """
        self._require_home()
        with self._lock:
            self._require_usable()
            if records.num_rows == 0:
                return
            call = Call(next(self._numbers), records, durable, self._clock.now_ms(), records.nbytes)
            self._admit(call)
            self._backlog.add(call)
            if not durable:
                self._wake_timer()
                return
        self._finish([call])

    def sync(self) -> None:
        """Wait until every earlier call is durable. Raise the error of the first call that cannot become durable."""
        self._require_home()
        with self._lock:
            self._require_usable()
            calls = self._backlog.taken
        self._finish(calls)

    def flush(self) -> int | None:
        """Make all given rows durable and write them as a generation. Raise the errors of the log."""
        self.sync()
        with self._alone():
            return self._log.flush()

    def close(self, closed: TidemarkError) -> None:
        """Make all given rows durable. Later calls raise `closed`. Raise the errors of `sync`.

        Closing again does nothing. A stopped writer closes without an error, unless rows were lost when it stopped.
        """
        self._require_home()
        with self._lock:
            if self._closing is not None:
                return
            self._closing = closed
            calls = self._backlog.taken
        failed: TidemarkError | None = None
        try:
            if self._stopped is None:
                self._finish(calls)
        except TidemarkError as error:
            failed = error
        finally:  # The cleanup also runs after an interruption, because no thread may remain.
            with self._lock:
                if self._stopped is None:
                    self._stop(failed or closed)
                stopped, timer = self._stopped or closed, self._timer
            if timer is not None:
                timer.join()
        if failed is not None or "lost_rows" in stopped.context:
            raise self._for_caller(stopped)

    def read_unflushed(self, read: Callable[[Sequence[pa.Table]], T]) -> T:
        """Return the result of `read` for the rows that are not durable yet, in order.

        No row becomes durable during the call.
        """
        self._require_home()
        with self._lock:
            return read([call.records for call in self._backlog.taken])

    def _require_home(self) -> None:
        self._home.require(
            f"the writer of {self._log.name}",
            "the other process writes the earlier rows. Open a writer in this process",
        )

    def _require_usable(self) -> None:
        """Raise a copy of the error that stopped the writer, if any.

        Several threads may raise the error, so each needs a copy.
        """
        error = self._stopped or self._closing
        if error is not None:
            raise self._for_caller(error)

    def _for_caller(self, error: TidemarkError) -> TidemarkError:
        """Return a copy of the error that stopped the writer.

        The error reports the lost rows, so they count as reported.
        """
        self._backlog.unheard = 0
        return error.reworded(error.found)

    def _admit(self, call: Call) -> None:
        """Wait in the order of arrival until the limits allow the call."""
        backlog = self._backlog
        if backlog.must_refuse(call):
            raise backlog.overloaded(call, "refuse", now_ms=self._clock.now_ms())
        backlog.asking.append(call)
        try:
            while backlog.asking[0] is not call or backlog.must_wait(call):
                now_ms = self._clock.now_ms()
                left_ms = call.arrived_ms + self._options.wait_ms - now_ms
                if left_ms <= 0:
                    raise backlog.overloaded(call, "wait", now_ms=now_ms)
                self._wake_timer()
                self._changed.wait(left_ms / 1000)
                self._require_usable()
        finally:
            backlog.asking.remove(call)
            self._changed.notify_all()

    def _finish(self, calls: Sequence[Call]) -> None:
        """Wait until these calls are done. Write if no other thread writes. Raise the first error of a call."""
        for call in calls:
            self._wait_for(call)
            if call.error is not None:
                raise self._for_caller(call.error) from call.error

    def _wait_for(self, call: Call) -> None:
        while True:
            with self._lock:
                while self._busy and not call.done:
                    self._changed.wait()
                if call.done:
                    return
            failed = self._write_next()
            if failed is not None and not isinstance(failed, TidemarkError):
                raise failed
            if failed is not None and not call.durable and not call.done:
                raise failed  # The rows wait for another attempt, and the caller gets the error.

    def _write_next(self) -> BaseException | None:
        """Write the next calls as one entry, unless another thread writes. Return the error, or None."""
        with self._lock:
            if self._busy or not self._backlog.queue:
                return None
            self._busy = True
            self._backlog.begin()
        error: BaseException | None = None
        try:
            self._log.append(self._backlog.entry(self._log.schema))
        except BaseException as failure:  # noqa: BLE001 -- every call in the entry has to learn of it, whatever it is
            error = failure
        failed = (
            error if error is None or isinstance(error, TidemarkError) else self._log.stopped or _interrupted(error)
        )
        with self._lock:
            self._backlog.end(failed, now_ms=self._clock.now_ms())
            self._idle()
        return error

    def _idle(self) -> None:
        """Let the next thread write. If the log is stopped, stop this writer."""
        self._busy = False
        if self._stopped is None and self._log.stopped is not None:
            self._stop(self._log.stopped)
        self._wake_timer_for_flush()
        self._changed.notify_all()
        self._tick.notify_all()

    def _stop(self, error: TidemarkError) -> None:
        """Accept no more calls. Accepted calls that are not written yet get this error."""
        self._stopped = self._backlog.drop(error)
        self._changed.notify_all()
        self._tick.notify_all()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Prevent writes of other threads during the block."""
        with self._lock:
            while self._busy:
                self._changed.wait()
            self._require_usable()
            self._busy = True
        try:
            yield
        finally:
            with self._lock:
                self._idle()

    def _wake_timer_for_flush(self) -> None:
        if self._stopped is None and self._log.flush_due_in_ms() is not None:
            self._wake_timer()

    def _wake_timer(self) -> None:
        if self._timer is None:
            self._timer = threading.Thread(target=self._run_timer, name="tidemark-writer", daemon=True)
            self._timer.start()
        self._tick.notify_all()

    def _run_timer(self) -> None:
        """Write rows for which no call waits, and flush an old memtable. End when no write or flush is scheduled."""
        while self._wait_until_due():
            try:
                with self._lock:
                    flush = self._linger_ms() != 0
                if flush:
                    with self._alone():
                        self._log.flush()
                    failed = None
                else:
                    failed = self._write_next()
            except BaseException as error:  # noqa: BLE001 -- there is no caller; `_idle` has kept what is final
                failed = error
            if failed is not None:
                _logger.warning("a write without a caller failed: %s", failed)
                with self._lock:
                    self._tick.wait(self._options.linger_ms / 1000)

    def _wait_until_due(self) -> bool:
        """Wait until a write or a flush must start, and return True.

        Return False if no write or flush will be due. The timer thread then ends.
        """
        with self._lock:
            while self._stopped is None and self._closing is None:
                if self._busy:
                    self._tick.wait()
                    continue
                due_ms = [each for each in (self._linger_ms(), self._log.flush_due_in_ms()) if each is not None]
                if not due_ms:
                    break
                if min(due_ms) <= 0:
                    return True
                self._tick.wait(min(due_ms) / 1000)
            self._timer = None
            return False

    def _linger_ms(self) -> int | None:
        """Return the remaining time in ms that the oldest call can wait for more calls, or None if no call waits."""
        backlog = self._backlog
        if not backlog.queue:
            return None
        if backlog.asking or backlog.held_bytes >= self._options.entry_bytes:
            return 0
        return max(0, backlog.queue[0].arrived_ms + self._options.linger_ms - self._clock.now_ms())


def _interrupted(error: BaseException) -> TidemarkError:
    return Unavailable(
        f"the thread that wrote for this call was interrupted ({error!r}) before it wrote anything. Write it again"
    )
