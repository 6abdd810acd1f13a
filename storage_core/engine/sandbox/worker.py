"""The program of a sandbox process, which answers queries.

The process has only the rights and the memory that queries need (decision 0024):

- The process writes only below its own folder and reaches no TCP port (Linux: `landlock`).
- The environment of the process contains only the variables that its libraries need.
- The kernel refuses more memory than a query may have. DuckDB's own limit does not count the memory that a function
  uses for a batch of rows.
- The process ends when the process that started it ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from storage_core.base.errors import Unavailable
from storage_core.base.limits import LONGEST_QUERY_SECONDS, QueryLimits
from storage_core.engine.sandbox.process import (
    BESIDE_BYTES,
    IDLE_SECONDS,
    Kind,
    Message,
    Query,
    decoded,
    encoded_batch,
    receive,
    send,
)
from storage_core.engine.session import reject_lossy_types, session

if TYPE_CHECKING:
    import duckdb

# The calling process. The calling process receives the answer and sends the rows of streams.


class Caller:
    """A socket to the calling process. Messages of several threads are sent one after the other."""

    def __init__(self, to: socket.socket) -> None:
        self._socket = to
        self._lock = threading.Lock()
        self._is_waiting = False

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._socket.fileno()

    def receive(self) -> Message:
        """Return the next query."""
        return receive(self._socket)

    def send(self, kind: Kind, content: bytes | pa.Buffer = b"") -> None:
        """Send one message."""
        with self._lock:
            send(self._socket, kind, content)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Allow calls of `read` within the block. Within the block, the worker answers one query."""
        self._is_waiting = True
        try:
            yield
        finally:
            with self._lock:
                self._is_waiting = False

    def read(self, number: int) -> Generator[pa.RecordBatch]:
        """Yield the rows of the stream with this number. The rows arrive on a separate socket.

        Raises:
            EOFError: The rows end too soon, or the query is over.
        """
        with self._lock:
            if not self._is_waiting:
                raise EOFError("the query is over")
            send(self._socket, Kind.READ, number.to_bytes(8, "big"))
            (descriptor,) = receive(self._socket).files
        with socket.socket(fileno=descriptor) as rows:
            while (message := receive(rows)).kind is Kind.ROWS:
                yield pa.ipc.open_stream(message.content).read_next_batch()


# The right to write. With Landlock, Linux can remove the right of a process to write files, regardless of the code that
# the process runs.

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # these numbers are the same on every architecture
_ASK_VERSION, _PATH_BENEATH, _NO_NEW_PRIVILEGES = 1, 1, 38
# These bits of a Landlock rule are the rights to write, to remove (folder, file), and to make (device, folder, file,
# socket, pipe, block device, link). Bits 13 and 14 are `refer` and `truncate`.
_WRITING = 1 << 1 | sum(1 << bit for bit in range(4, 13))
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_TCP = 0b11


def give_up_writing(writable: Path) -> None:
    """Give up the right to write files outside the folder `writable`.

    The change affects this thread and the threads that it starts. Raises `OSError`.

    Call this function before any other thread starts.
    """
    version = _version()
    if version < 1:
        return
    rights = _WRITING | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    # A newer kernel uses a longer record than an older kernel. The kernel accepts the length that belongs to its
    # version.
    handled = struct.pack("=QQ", rights, _TCP) if version >= 4 else struct.pack("=Q", rights)
    rules = _call(_CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), 0)
    try:
        _allow_below(rules, rights, writable)
        if _libc().prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
        _call(_RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)


def _allow_below(rules: int, rights: int, writable: Path) -> None:
    folder = os.open(writable, os.O_PATH | os.O_CLOEXEC)
    try:
        _call(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", rights, folder), 0)
    finally:
        os.close(folder)


def _version() -> int:
    """Return the kernel's version of Landlock. 0 or less means that the kernel does not support Landlock."""
    if sys.platform != "linux":
        return 0
    return int(_libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _ASK_VERSION))


def _call(number: int, *arguments: object) -> int:
    found = int(_libc().syscall(number, *arguments))
    if found < 0:
        raise OSError(ctypes.get_errno(), f"system call {number}: {os.strerror(ctypes.get_errno())}")
    return found


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


# Sessions of DuckDB that a sandbox reuses for queries over the same files. Opening a session takes longer than most
# queries.

_MOST_KEPT = 3

_Key = tuple[object, ...]


class Sessions:
    """The sessions of the last three relations, with their views. The sessions spill to `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: dict[_Key, duckdb.DuckDBPyConnection] = {}

    @contextmanager
    def opened(self, query: Query) -> Iterator[tuple[duckdb.DuckDBPyConnection, bool]]:
        """Yield a session for the query, and whether its views exist. The caller creates missing views.

        After the query, the session is closed if there was an error, if it has spilled, or if it contains rows in
        memory that are not `lasting`. Otherwise the session is kept.
        """
        key = _key(query)
        kept = self._kept.pop(key, None)
        connection = self._new(query) if kept is None else kept
        try:
            yield connection, kept is not None
        except BaseException:
            connection.close()
            raise
        relation = query.relation
        passing = (rows for name, rows in relation.rows.items() if name not in relation.lasting)
        if any(rows.num_rows for rows in passing) or any(self._folder.iterdir()):
            connection.close()
            return
        self._kept[key] = connection
        if len(self._kept) > _MOST_KEPT:
            self._kept.pop(next(iter(self._kept))).close()

    def _new(self, query: Query) -> duckdb.DuckDBPyConnection:
        # The calling process measures the time. DuckDB's own limit would also count the waiting time between batches.
        limits = QueryLimits(
            seconds=LONGEST_QUERY_SECONDS, memory_bytes=query.memory_bytes, spill_bytes=query.spill_bytes
        )
        return session(limits, files=query.relation.files, folder=self._folder if query.spill_bytes else None)


def _key(query: Query) -> _Key:
    """Return a key that is equal for queries with the same views and limits.

    For rows in memory, the key contains only the names, row counts and schemas of the tables. The key needs no other
    data, because a session is kept only if its rows never change.
    """
    relation = query.relation
    rows = tuple((name, each.num_rows, each.schema.serialize().to_pybytes()) for name, each in relation.rows.items())
    streams = tuple((name, each.schema.serialize().to_pybytes()) for name, each in relation.streams.items())
    return (rows, streams, relation.files, relation.views, relation.same_types, query.memory_bytes, query.spill_bytes)


_RETAINED_BYTES = 512 * 2**20
"""A sandbox ends if its sessions and heaps keep more than this many bytes after a query."""


def serve(descriptor: int, folder: Path) -> None:
    """Answer the queries that arrive at a socket.

    Return when the other end of the socket is closed, or when no query arrives for `IDLE_SECONDS`.
    """
    refusal = _give_up_writing(folder)  # A thread that already runs would keep the right to write.
    import duckdb  # noqa: F401  # while the query is still made

    caller = Caller(socket.socket(fileno=descriptor))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C must end only the caller, and the caller ends this process
    threading.Thread(target=_end_with, args=(descriptor,), daemon=True).start()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    unused, sessions = _data_bytes(), Sessions(folder)
    while select.select([caller], [], [], IDLE_SECONDS)[0]:
        query = decoded(caller.receive(), caller.read)
        caller.send(Kind.BEGUN)
        failed = _answered(query, sessions, caller) if refusal is None else _reported(refusal)
        said = {**failed, "stays": _data_bytes() <= unused + _RETAINED_BYTES}
        caller.send(Kind.ERROR if failed else Kind.END, json.dumps(said).encode())


def _answered(query: Query, sessions: Sessions, caller: Caller) -> dict[str, Any]:
    """Send the rows of a query, within its memory limit. Return the report of an error, or an empty dict."""
    own = resource.getrlimit(resource.RLIMIT_DATA)
    try:
        with caller.waiting(), sessions.opened(query) as (connection, has_views):
            _limit_memory(_data_bytes() + query.memory_bytes + BESIDE_BYTES, own)
            if not has_views:
                query.relation.bind(connection)
            _send_rows(query, connection, caller)
    except Exception as error:  # noqa: BLE001  # raised where the query comes from
        return _reported(error)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, own)
    return {}


def _reported(error: Exception) -> dict[str, Any]:
    said: dict[str, Any] = {"class": type(error).__name__, "text": str(error)}
    return said | {"errno": error.errno} if isinstance(error, OSError) else said


def _send_rows(query: Query, connection: duckdb.DuckDBPyConnection, caller: Caller) -> None:
    found = connection.sql(query.text)
    reject_lossy_types(found)
    rows = found.to_arrow_reader(query.batch_rows)
    caller.send(Kind.ROWS, rows.schema.serialize())
    for batch in rows:
        caller.send(Kind.ROWS, encoded_batch(batch))


def _give_up_writing(folder: Path) -> Unavailable | None:
    """Give up writing.

    Return an error if the process cannot give up the right to write, and None otherwise. On a system without Landlock,
    do nothing.
    """
    try:
        give_up_writing(folder)
    except OSError as error:
        return Unavailable(f"this system cannot prevent a process from writing: {error}. See decision 0024")
    return None


def _limit_memory(size: int, own: tuple[int, int]) -> None:
    bounds = [each for each in own if each != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([size, *bounds]), own[1]))


def _data_bytes() -> int:
    """Return the bytes of private writable memory, which the limit counts. Return 0 on a system without /proc."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    except OSError:
        return 0


def _end_with(descriptor: int) -> None:
    """End this process when the other end of the socket is closed, regardless of what it is doing."""
    closed = select.poll()
    closed.register(descriptor, 0)  # `poll` reports a closed connection even if no event is requested
    closed.poll()
    os._exit(0)
