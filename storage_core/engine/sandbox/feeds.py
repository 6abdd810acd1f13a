"""Rows that a query reads as streams: handed to its process as it asks for them, each reading by a socket of its own.

A reading is one pass over the rows of a relation: DuckDB begins one for each scan, and may begin it again. The process
that asks makes the rows in a thread per reading, and the socket holds the thread up while nobody takes them. So memory
does not grow with the rows (decision 0106).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from socket import SHUT_RD, SHUT_RDWR, socket, socketpair
from typing import Final

import pyarrow as pa

from storage_core.engine.sandbox.messages import Kind, encoded_batch, send
from storage_core.engine.sandbox.query import Rows
from storage_core.errors import Unavailable
from storage_core.process import HomeProcess
from storage_core.system_errors import typed

MOST_READINGS: Final = 64
"""At a time, of one query."""

HELD_BYTES: Final = 32 * 2**20
"""Rows of a relation that are no more are made once, and held for its other readings."""

_PART_BYTES: Final = 4 * 2**20
"""Of rows that are sent at once, about; a row is not cut."""


class Feeds:
    """The readings of one query. Closing them ends the threads, each when what it is fetching has come."""

    def __init__(self, rows: Sequence[Rows]) -> None:
        self.error: Exception | None = None
        """The first error of the rows; the reading that it ended was told no end."""
        self._made = [_HeldWhileSmall(Rows(each.schema, partial(self._until_closed, each))) for each in rows]
        self._home = HomeProcess()
        self._lock = threading.RLock()  # whatever holds it may run a collection of garbage, which may close
        self._open = set[socket]()
        self._is_closed = False

    def opened(self, number: int) -> socket:
        """Begin to read the rows of this number, and return the socket they come from, which is the caller's to close.

        Raises `Unavailable` where too many readings are open, or the system gives no socket or thread. Raises
        `IndexError` for a number that no rows have.
        """
        if not 0 <= number < len(self._made):
            raise IndexError(number)
        with self._lock:
            if len(self._open) >= MOST_READINGS:
                found = f"a query reads tables at {MOST_READINGS} places at a time, and this one at more"
                raise Unavailable(f"{found}: ask in parts")
        with typed("the rows of a query"):
            ours, theirs = socketpair()
            try:
                ours.shutdown(SHUT_RD)  # nothing is heard from there
                with self._lock:
                    self._open.add(ours)
                arguments = (self._made[number], ours)
                threading.Thread(target=self._feed, args=arguments, name="tidemark-rows", daemon=True).start()
            except BaseException:
                self._end(ours)
                theirs.close()
                raise
        return theirs

    def close(self) -> None:
        """End all readings. In a copy of this process by fork(), leave them to the one that began them."""
        if not self._home.is_here:
            for each in self._open:
                each.close()
            return
        if sys.is_finalizing():  # the lock may be held by a thread that will not run again
            return
        with self._lock:
            self._is_closed = True
            for each in [*self._open]:
                _shut_down(each)

    def _feed(self, rows: _HeldWhileSmall, to: socket) -> None:
        try:
            with closing(rows.read()) as batches:
                for part in _parts(batches):
                    if not _sent(to, Kind.ROWS, encoded_batch(part)):
                        return
            _sent(to, Kind.END)
        except Exception as error:  # noqa: BLE001  # raised where the answer is awaited
            with self._lock:
                if self.error is None and not self._is_closed:
                    self.error = error
        finally:
            self._end(to)

    def _until_closed(self, rows: Rows) -> Generator[pa.RecordBatch]:
        with closing(rows.read()) as batches:
            for batch in batches:
                if self._is_closed:
                    raise EOFError
                yield batch

    def _end(self, ours: socket) -> None:
        with self._lock:
            self._open.discard(ours)
            _shut_down(ours)  # a copy of this process may hold it open
            ours.close()


class _HeldWhileSmall:
    """The rows of a relation: while they are few they are made once, for all readings."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._first = threading.Lock()
        self._held: list[pa.RecordBatch] | None = None
        self._is_large = False

    def read(self) -> Generator[pa.RecordBatch]:
        """Yield all rows. A reading waits for the first rows of another, and never for their consumer."""
        with closing(self._rows.read()) as rows:
            begun: list[pa.RecordBatch] = []
            with self._first:
                if self._held is None and not self._is_large:
                    begun = self._begun(rows)
            if self._held is not None:
                yield from self._held
                return
            begun.reverse()
            while begun:  # which is not held longer than it is needed
                yield begun.pop()
            yield from rows

    def _begun(self, rows: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """The first of the rows; all of them, and held, where they are small."""
        found, size = list[pa.RecordBatch](), 0
        for batch in rows:
            found.append(batch)
            size += batch.nbytes
            if size > HELD_BYTES:
                self._is_large = True
                return found
        self._held = found
        return found


def _parts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        most = max(1, batch.num_rows * _PART_BYTES // max(1, batch.nbytes))
        for first in range(0, batch.num_rows, most):
            yield batch.slice(first, most)


def _sent(to: socket, kind: Kind, content: bytes | pa.Buffer = b"") -> bool:
    """Whether somebody was there to take it."""
    try:
        send(to, kind, content)
    except OSError:
        return False
    return True


def _shut_down(ours: socket) -> None:
    with suppress(OSError):  # its other end is closed, or it is
        ours.shutdown(SHUT_RDWR)
