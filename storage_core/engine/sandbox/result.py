"""The rows of a query, which a separate process computes.

SQL from outside runs in a sandbox. A sandbox is a process with a time limit, without rights and without secrets. A
sandbox answers one query at a time and is kept for the next query. When the time of its query is over, the sandbox is
killed, regardless of its state. When this process ends for any reason, the sandbox ends, too (decision 0024).
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from socket import SHUT_RD, SHUT_RDWR, socket, socketpair
from typing import Any, Final, Self

import pyarrow as pa

from storage_core.base.errors import InvalidInput, Unavailable, typed
from storage_core.base.process import HomeProcess
from storage_core.engine.sandbox import process
from storage_core.engine.sandbox.process import (
    NO_MESSAGE,
    Kind,
    Message,
    OutOfTime,
    Query,
    Rows,
    Sandbox,
    SandboxEnded,
    TypesDiffer,
    encoded_batch,
    send,
)

# Rows that a query reads as streams. The sandbox requests these rows, and each reading has its own socket.
#
# A reading is one pass over the rows of a relation. DuckDB begins one reading for each scan, and may begin a reading
# again. For each reading, the calling process produces the rows in a separate thread. The socket blocks the thread
# while the sandbox does not read, so memory does not grow with the rows (decision 0025).


MOST_READINGS: Final = 64
"""The maximum number of scans of one query that may read rows at the same time."""

HELD_BYTES: Final = 32 * 2**20
"""If the rows of a relation have at most this number of bytes, they are produced once and kept for other readings."""

_PART_BYTES: Final = 4 * 2**20
"""The approximate number of bytes of rows in a message. A message never contains a part of a row."""


class Feeds:
    """Threads that send rows to the scans of one query. After `close`, each thread ends as soon as its current fetch
    returns.
    """

    def __init__(self, rows: Sequence[Rows]) -> None:
        self.error: Exception | None = None
        """The first error while rows were produced. The reading then ended without an `END`."""
        self._made = [_HeldWhileSmall(Rows(each.schema, partial(self._until_closed, each))) for each in rows]
        self._home = HomeProcess()
        # The lock is reentrant, because a thread with the lock may run a garbage collection, which may call `close`.
        self._lock = threading.RLock()
        self._open = set[socket]()
        self._is_closed = False

    def opened(self, number: int) -> socket:
        """Start one pass over the stream with the index `number`. Return the socket that receives the rows.

        The caller closes the socket.

        Raises:
            Unavailable: Too many readings are open, or the system has no socket or thread left.
            IndexError: The query has no rows with this number.
        """
        if not 0 <= number < len(self._made):
            raise IndexError(number)
        with self._lock:
            if len(self._open) >= MOST_READINGS:
                found = f"the query reads tables in more than {MOST_READINGS} places at a time"
                raise Unavailable(f"{found}. Divide it into several queries")
        with typed("the rows of a query"):
            ours, theirs = socketpair()
            try:
                ours.shutdown(SHUT_RD)  # this end only sends
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
        """End all readings. In a fork() copy of this process, close only the sockets of the copy."""
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
            _shut_down(ours)  # a copy of this process may still have the socket open
            ours.close()


class _HeldWhileSmall:
    """The rows of a relation. If a relation is small, its rows are produced only once and then sent to every scan."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._first = threading.Lock()
        self._held: list[pa.RecordBatch] | None = None
        self._is_large = False

    def read(self) -> Generator[pa.RecordBatch]:
        """Yield all rows.

        A reading may wait for the first rows of another reading, but never for the consumer of the other reading.
        """
        with closing(self._rows.read()) as rows:
            begun: list[pa.RecordBatch] = []
            with self._first:
                if self._held is None and not self._is_large:
                    begun = self._begun(rows)
            if self._held is not None:
                yield from self._held
                return
            begun.reverse()
            while begun:  # each batch is released as soon as it was yielded
                yield begun.pop()
            yield from rows

    def _begun(self, rows: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Return the first rows. If all rows together are small enough, return and keep all of them."""
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
    """Return whether the receiver still existed and received the message."""
    try:
        send(to, kind, content)
    except OSError:
        return False
    return True


def _shut_down(ours: socket) -> None:
    with suppress(OSError):  # the socket or its other end may be closed
        ours.shutdown(SHUT_RDWR)


class Result:
    """The rows of a query, batch by batch.

    Use `Result` as a context manager, so that the computation ends with the block.

    Creating an instance runs the query. The constructor and each batch may raise DuckDB's error, `TypesDiffer`,
    `OutOfTime`, `SandboxEnded`, or `Unavailable` if the system cannot start a process. The sandbox is killed after any
    error, and if the result is closed before its end. In a copy of this process by fork(), reading a batch raises
    `CopiedProcess`.
    """

    def __init__(self, query: Query) -> None:
        self._sandbox: Sandbox | None = None
        self._feeds = Feeds(list(query.relation.streams.values()))
        self._sandbox = _begun(query)
        self._query = query
        self._is_streamed = False
        self._began = time.monotonic()
        content = self._content()
        self.schema: pa.Schema = pa.ipc.read_schema(content)

    def __iter__(self) -> Self:
        """Return this result."""
        return self

    def __next__(self) -> pa.RecordBatch:
        """Return the next rows."""
        content = self._content()
        if content is None:
            raise StopIteration
        batch = pa.ipc.open_stream(content).read_next_batch()
        batch.validate()
        return batch

    def __enter__(self) -> Self:
        """Return this result."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the result."""
        self.close()

    def __del__(self) -> None:
        """Close the result."""
        self.close()

    def stream(self) -> None:
        """From now on, apply the time limit to each batch, because the caller may pause between batches."""
        self._is_streamed = True

    def close(self) -> None:
        """Kill the process that produces the rows, unless it has already produced the last rows."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            sandbox.end()
            self._feeds.close()

    def _content(self) -> pa.Buffer | None:
        """Return the content of the next message. Return None after the last message."""
        if self._sandbox is None:
            return None
        self._sandbox.home.require("a stream of rows", "scan the table here")
        began = time.monotonic() if self._is_streamed else self._began
        try:
            message = self._message(self._sandbox, until=began + self._query.seconds)
        except BaseException as error:
            self.close()
            if self._feeds.error is not None and isinstance(error, (OutOfTime, SandboxEnded)):
                raise self._feeds.error from error
            raise
        if message.kind is Kind.ROWS:
            return message.content
        said = json.loads(message.content.to_pybytes())
        sandbox, self._sandbox = self._sandbox, None
        self._feeds.close()
        if said["stays"]:
            process.keep_sandbox(sandbox)
        else:
            sandbox.end()
        if message.kind is Kind.ERROR:
            raise self._feeds.error or _raised(said)
        return None

    def _message(self, sandbox: Sandbox, *, until: float) -> Message:
        """Return the next message of the answer. Meanwhile, start the readings that the sandbox requests."""
        while (message := sandbox.receive(self._query, until - time.monotonic())).kind is Kind.READ:
            try:
                theirs = self._feeds.opened(int.from_bytes(message.content.to_pybytes()[:8], "big"))
            except IndexError as error:
                raise SandboxEnded(NO_MESSAGE) from error
            with theirs:
                sandbox.give(theirs.fileno())
        if message.kind not in (Kind.ROWS, Kind.ERROR, Kind.END):
            raise SandboxEnded(NO_MESSAGE)
        return message


def _begun(query: Query) -> Sandbox:
    """Return a sandbox that has begun to answer.

    If a kept sandbox was killed or stopped meanwhile, another sandbox is used.
    """
    while True:
        sandbox = process.take_sandbox()
        try:
            sandbox.begin(query)
        except (OutOfTime, SandboxEnded) as error:
            sandbox.end()
            if not sandbox.has_begun:
                found = f"the process of a query did not start ({str(error) or 'it is stopped'})"
                advice = "check the limits (ulimit -a) and the memory of this process, then try again"
                raise Unavailable(f"{found}: {advice}") from error
        except BaseException:
            sandbox.end()
            raise
        else:
            return sandbox


def _raised(said: dict[str, Any]) -> Exception:
    """Return the error that a sandbox reports, with the class that the error would have in this process."""
    import duckdb

    name, text = said["class"], said["text"]
    if name == TypesDiffer.__name__:
        return TypesDiffer()
    if name == InvalidInput.__name__:
        return InvalidInput(text)
    if name == Unavailable.__name__:
        return Unavailable(text)
    if name.startswith("Arrow") and "Memory" not in name:
        return duckdb.InvalidInputException(f"Invalid Input Error: {text}")
    if "MemoryError" in name:  # Python or Arrow raised the error
        return duckdb.OutOfMemoryException(f"Out of Memory Error: {text}")
    if "errno" in said:
        return OSError(text) if said["errno"] is None else OSError(said["errno"], text)
    known = getattr(duckdb, name, None)
    if isinstance(known, type) and issubclass(known, duckdb.Error):  # this name may belong to another object
        return known(text)
    return RuntimeError(f"{name}: {text}")
