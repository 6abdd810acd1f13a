"""Group commit: calls of many threads share a WAL entry (docs/architecture/ingestion.md, "WAL"; decision 0044).

There is no thread that writes. A call that waits for its rows while nobody writes takes what has gathered, its own
calls and those of others, in the order of their arrival, and writes that as one entry; meanwhile the next calls gather.
So a call that is alone pays for one put and no hand-over, and any number of callers pay for about two puts each.

Rows that nobody waits for are written by a thread that lives only as long as there are some.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Protocol, TypeVar

import pyarrow as pa

from storage_core.clock import Clock
from storage_core.errors import TidemarkError, Unavailable
from storage_core.process import HomeProcess
from storage_core.region.backlog import Backlog, Call
from storage_core.region.options import WriterOptions
from storage_core.region.unclosed import say_what_is_lost, warn_when_dropped

_logger = logging.getLogger(__name__)

T = TypeVar("T")


class Log(Protocol):
    """Where entries go; used by one thread at a time."""

    @property
    def name(self) -> str:
        """What it is the log of, for messages."""
        ...

    @property
    def stopped(self) -> TidemarkError | None:
        """The error that every further write would end in; None while writing is possible."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """The schema that records of an entry have."""
        ...

    def append(self, records: pa.Table) -> None:
        """Make the records durable as one entry. Raises when it could not; `stopped` tells whether that is final."""
        ...

    def flush_due_in_ms(self) -> int | None:
        """Return after how many milliseconds a flush is due, None when none will be."""
        ...

    def flush(self) -> int | None:
        """Make a generation of what was appended."""
        ...


class GroupCommit:
    """Writes what any threads give it, in the order of arrival, many calls at a time.

    Every call succeeds or fails for itself: one that is refused leaves the others as they are, and what becomes of an
    entry every call in it learns. In a copy of the process every call raises `CopiedProcess`, before it takes a lock:
    the thread that holds it, or that writes, may be in the other process only.
    """

    def __init__(self, log: Log, *, options: WriterOptions, clock: Clock) -> None:
        """Write to `log`, which nobody else uses."""
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
        """Warn when `writer`, through which everything is given, is dropped while rows are pending."""
        warn_when_dropped(writer, self._backlog, self._log.name, self._home)

    def require_usable(self) -> None:
        """Return when the writer takes calls. Raises what stopped it."""
        self._require_home()
        with self._lock:
            self._require_usable()

    def submit(self, records: pa.Table, *, durable: bool) -> None:
        """Take the rows of a call; return when they are durable, or at once when `durable` is false.

        Waits while the writer holds too much. Raises `Overloaded` when it holds far too much or that lasts too long,
        and nothing of the call is written then; or what the log raises.
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
        """Return when every call that was taken before is durable. Raises what keeps the first of them from it."""
        self._require_home()
        with self._lock:
            self._require_usable()
            calls = self._backlog.taken
        self._finish(calls)

    def flush(self) -> int | None:
        """Make everything that was given durable, then a generation of it. Raises what the log raises."""
        self.sync()
        with self._alone():
            return self._log.flush()

    def close(self, closed: TidemarkError) -> None:
        """Make everything that was given durable; from now on calls raise `closed`. Raises what `sync` raises.

        Closing again does nothing, and a writer that was stopped closes silently unless rows were lost by that.
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
        finally:  # also when this is interrupted: no thread may be left behind
            with self._lock:
                if self._stopped is None:
                    self._stop(failed or closed)
                stopped, timer = self._stopped or closed, self._timer
            if timer is not None:
                timer.join()
        if failed is not None or "lost_rows" in stopped.context:
            raise self._for_caller(stopped)

    def look(self, read: Callable[[Sequence[pa.Table]], T]) -> T:
        """Return what `read` makes of the rows that are not durable yet, in order, while nothing becomes durable."""
        self._require_home()
        with self._lock:
            return read([call.records for call in self._backlog.taken])

    def _require_home(self) -> None:
        self._home.require(
            f"the writer of {self._log.name}",
            "rows that it was given before are written there; open a writer of this process",
        )

    def _require_usable(self) -> None:
        """Raise a copy of the error that stopped the writer, if one did: several threads may raise it."""
        error = self._stopped or self._closing
        if error is not None:
            raise self._for_caller(error)

    def _for_caller(self, error: TidemarkError) -> TidemarkError:
        """A copy of the error that stopped the writer, for a caller who hears by it what was lost."""
        self._backlog.unheard = 0
        return error.reworded(error.found)

    def _admit(self, call: Call) -> None:
        """Wait for room, in the order of arrival."""
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
        """Wait until these calls are done, writing whenever nobody else does. Raises the first error of one."""
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
                raise failed  # the rows wait for another try, and their caller is told

    def _write_next(self) -> BaseException | None:
        """Write the calls that come next as one entry, unless somebody else writes. Return what went wrong."""
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
        """Let the next one write; nobody when the log takes no more."""
        self._busy = False
        if self._stopped is None and self._log.stopped is not None:
            self._stop(self._log.stopped)
        self._wake_timer_for_flush()
        self._changed.notify_all()
        self._tick.notify_all()

    def _stop(self, error: TidemarkError) -> None:
        """Take nothing any more; what was taken and cannot be written learns this error."""
        self._stopped = self._backlog.drop(error)
        self._changed.notify_all()
        self._tick.notify_all()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep everybody else from writing."""
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
        """Write what nobody waits for, and flush what is too old, each when it is due; end when nothing will be."""
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
        """Return True when something is due, or False, and then no thread is there any more."""
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
        """How long the oldest call may still wait for others; None when there is none."""
        backlog = self._backlog
        if not backlog.queue:
            return None
        if backlog.asking or backlog.held_bytes >= self._options.entry_bytes:
            return 0
        return max(0, backlog.queue[0].arrived_ms + self._options.linger_ms - self._clock.now_ms())


def _interrupted(error: BaseException) -> TidemarkError:
    return Unavailable(
        f"the thread that wrote for this call was interrupted ({error!r}) before it wrote anything; write it again"
    )
