"""A query in a thread that cannot write and does not keep its caller: the last hedge around what DuckDB runs.

DuckDB has one permission for a file, to read and to write it, and no mode in which it does not write. So a session is
opened and asked in a thread that has given up its rights (`landlock`): it can make, change or remove no file outside
the folder it spills to, and reach no TCP port, whatever text it runs. Elsewhere `statement` alone stands before it
(decision 0083).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from storage_core.engine import landlock
from storage_core.errors import Unavailable

if TYPE_CHECKING:
    import duckdb

T = TypeVar("T")

_SLICE_SECONDS = 0.25
_GRACE_SECONDS = 1.0
MOST_LEFT = 4
"""Calls that outlive their query, at which no further query is taken."""
STILL_RUNNING = "one call of a function still runs"
_RUNNING, _LEFT = "tidemark-query", "tidemark-query-left"


def run_confined(
    opened: Callable[[Path | None], AbstractContextManager[duckdb.DuckDBPyConnection]],
    ask: Callable[[duckdb.DuckDBPyConnection], T],
    *,
    folder: AbstractContextManager[Path] | None = None,
    seconds: float | None = None,
) -> T:
    """Return what `ask` returns of the session that `opened` opens, in a thread that writes beneath `folder` only.

    `opened` is given that folder. Errors of both are raised here. An exception that arrives while they run, such as
    Ctrl-C, interrupts the query, and so does the end of its time, which DuckDB's own limit does not count while it
    plans: then the error is DuckDB's of an interrupted query. The session of a query that is given up is closed.

    One call of a function over one batch of rows hears no interrupt. A second later it is left: the error says
    `STILL_RUNNING`, and when the call ends, its threads close the session, free its memory and remove `folder`. While
    `MOST_LEFT` are left, `Unavailable` refuses another query; those that have begun may become more. The end of the
    process waits for none. It loses nothing, for a query writes nothing; the folder is removed by the next process, as
    that of a killed one is.
    """
    import duckdb

    _require_few_left()
    query = _Query(opened, ask, folder)
    keeper = threading.Thread(target=query.keep, name=_RUNNING, daemon=True)
    until = time.monotonic() + (math.inf if seconds is None else seconds)
    try:
        keeper.start()  # which may be interrupted itself, before the thread has begun
        # In slices: a signal that arrives just before the wait begins does not wake it, and is only heard after it.
        while (left := until - time.monotonic()) > 0 and not query.ended.wait(min(left, _SLICE_SECONDS)):
            pass
    finally:
        query.given_up.set()
        query.woken.set()
        try:
            if keeper.ident is not None:
                query.ended.wait(_GRACE_SECONDS)
        finally:
            if not query.ended.is_set():
                keeper.name = _LEFT
    if not query.ended.is_set():
        raise duckdb.InterruptException(f"INTERRUPT Error: {STILL_RUNNING}")
    keeper.join()
    return query.done.result()


@dataclass(frozen=True, slots=True)
class _Query(Generic[T]):
    """Two threads: one asks, without rights. The other has them, so it makes and removes the folder, and interrupts.

    What has been opened is theirs alone to close, however often their caller is interrupted.
    """

    opened: Callable[[Path | None], AbstractContextManager[duckdb.DuckDBPyConnection]]
    ask: Callable[[duckdb.DuckDBPyConnection], T]
    folder: AbstractContextManager[Path] | None
    done: Future[T] = field(default_factory=Future)
    running: list[duckdb.DuckDBPyConnection] = field(default_factory=list)
    given_up: threading.Event = field(default_factory=threading.Event)
    session_closed: threading.Event = field(default_factory=threading.Event)
    """The thread that asks has closed its session."""
    woken: threading.Event = field(default_factory=threading.Event)
    """It has, or the query is given up."""
    ended: threading.Event = field(default_factory=threading.Event)
    """Nothing of the query is left."""

    def keep(self) -> None:
        """Return when the query has ended and its folder is removed."""
        try:
            with nullcontext() if self.folder is None else self.folder as writable:
                asking = threading.Thread(target=self._run, args=(writable,), name=_RUNNING, daemon=True)
                asking.start()
                self.woken.wait()
                self._interrupt()
                asking.join()
        except BaseException as error:  # noqa: BLE001  # raised again where the answer is waited for
            if not self.done.done():
                self.done.set_exception(error)
        finally:
            self.ended.set()

    def _run(self, writable: Path | None) -> None:
        try:
            try:
                landlock.give_up_writing(writable)
            except OSError as error:
                raise Unavailable(f"this system keeps no thread from writing: {error}; see decision 0083") from error
            with self.opened(writable) as connection:
                self.running.append(connection)
                try:
                    self._require_wanted()
                    found = self.ask(connection)
                    self._require_wanted()  # else the error of its caller would keep it
                    self.done.set_result(found)
                finally:
                    if self.given_up.is_set():
                        connection.close()
        except BaseException as error:  # noqa: BLE001  # as above
            self.done.set_exception(error)
        finally:
            self.session_closed.set()
            self.woken.set()

    def _interrupt(self) -> None:
        """Again and again until the session is closed: an interrupt before the query has begun says nothing to it."""
        import duckdb

        while not self.session_closed.is_set():
            for connection in self.running:
                with suppress(duckdb.ConnectionException):  # it has just ended and is closed
                    connection.interrupt()
            self.session_closed.wait(0.05)

    def _require_wanted(self) -> None:
        import duckdb

        if self.given_up.is_set():
            raise duckdb.InterruptException("INTERRUPT Error: its time was over")


def _require_few_left() -> None:
    left = sum(thread.name == _LEFT for thread in threading.enumerate())
    if left >= MOST_LEFT:
        raise Unavailable(
            f"{left} queries of this process were given up and are still within one call of a function, which hears no "
            f"interrupt; while there are {MOST_LEFT}, no other begins: try again when they have ended, or end the "
            "process"
        )
