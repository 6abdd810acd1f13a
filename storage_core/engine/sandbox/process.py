"""The sandbox process and the protocol between the caller and the sandbox. A sandbox answers queries.

`Sandbox` starts and ends one process. `take_sandbox` and `keep_sandbox` manage the sandboxes that wait for the next
query. `Query` and `Relation` describe a query and the data that it reads.

Caller and sandbox send messages to each other over a socket. A message consists of a kind (one byte), a length, and the
content. Open files may be sent together with a message.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import json
import mmap
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import partial
from pathlib import Path
from socket import socketpair
from typing import IO, TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa

from storage_core.base.errors import Unavailable, typed
from storage_core.base.process import HomeProcess, scratch_folder

if TYPE_CHECKING:
    import duckdb


# A checked SELECT, the data that it reads, and the views that a DuckDB session creates over the data.

BESIDE_BYTES = 512 * 2**20
"""The memory of a query process for its threads, its heaps and the data of SQL functions.

A query may use this memory in addition to its `memory_bytes`.
"""
IDLE_SECONDS = 60
"""The time that a sandbox waits for the next query."""

# The catalog contains the types. A query on the views themselves would read the types from every file again.
_COLUMNS = (
    "SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = ? AND NOT internal ORDER BY column_index"
)


class TypesDiffer(Exception):  # noqa: N818  # a finding, which the caller takes for good or not
    """The types of a view differ from the types of the rows that it represents."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that are produced again for each reading. DuckDB reads the rows once for each scan."""

    schema: pa.Schema
    read: Callable[[], Generator[pa.RecordBatch]]

    def __arrow_c_schema__(self) -> object:
        """Return the schema, so that DuckDB can bind the query without reading rows."""
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a stream of the rows, which produces no rows until the first rows are requested."""
        return pa.RecordBatchReader.from_batches(self.schema, self.read()).__arrow_c_stream__(requested_schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """The data that a session reads: rows in memory, streams of rows, files, and views over them."""

    rows: Mapping[str, pa.Table]
    streams: Mapping[str, Rows] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    views: tuple[str, ...] = ()
    """Statements, in order, that create views over `rows`, `streams`, `files` and earlier views."""
    same_types: tuple[tuple[str, str], ...] = ()
    """Pairs of views.

    The first columns of the first view must have the same names and types as all columns of the second view.
    """
    lasting: tuple[str, ...] = ()
    """The names of those relations in `rows` whose content never changes. A DuckDB session that serves several queries
    may reuse the rows of these relations.
    """

    def bind(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Create the views. Raises `TypesDiffer`."""
        for name, rows in {**self.rows, **self.streams}.items():
            connection.from_arrow(rows).create_view(name)
        for statement in self.views:
            connection.execute(statement)
        for pair in self.same_types:
            found, wanted = (connection.execute(_COLUMNS, [view]).fetchall() for view in pair)
            if found[: len(wanted)] != wanted:
                raise TypesDiffer


def joined(relations: Iterable[Relation]) -> Relation:
    """Return a relation that contains all of these relations. The names in the relations must differ."""
    parts = list(relations)
    return Relation(
        rows={name: rows for each in parts for name, rows in each.rows.items()},
        streams={name: rows for each in parts for name, rows in each.streams.items()},
        files=tuple(file for each in parts for file in each.files),
        views=tuple(view for each in parts for view in each.views),
        same_types=tuple(pair for each in parts for pair in each.same_types),
        lasting=tuple(name for each in parts for name in each.lasting),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A SELECT over a relation, and the limits of its answer."""

    text: str
    relation: Relation
    seconds: float
    """The time for the whole answer. For a stream, the time limit applies to the next batch (see `Result.stream`)."""
    memory_bytes: int
    spill_bytes: int
    """The maximum disk space for data that does not fit into memory, in bytes."""
    batch_rows: int
    """The maximum number of rows in a batch of the answer."""


_HEAD = struct.Struct(">cQ")
_MOST_FILES = 16
_PLAIN_FIELDS = tuple(each.name for each in fields(Query) if each.name != "relation")


class Kind(Enum):
    """The kind of a message."""

    QUERY = b"?"
    """The result of `encoded` for a query. The message also sends open file descriptors of the files that contain the
    in-memory rows.
    """
    BEGUN = b"("
    """The sandbox has read the query, and the time limit of the query starts. No content."""
    READ = b"<"
    """A scan begins. The content is the index of the requested stream in the query, in 8 bytes."""
    READING = b">"
    """The answer to `READ`: an open socket, which sends the rows and then `END`."""
    ROWS = b"+"
    """A part of the answer, as an Arrow stream.

    The first message contains the schema, and each later message contains one batch. In the answer to `READ`, every
    message contains a batch.
    """
    ERROR = b"!"
    """The last message of a failed query: the class and text of the error, in JSON."""
    END = b")"
    """The last message of a successful query. The answer to `READ` also ends with this message, after all rows."""


_KINDS = {each.value: each for each in Kind}


class BadMessage(Exception):  # noqa: N818  # a finding, as `TypesDiffer` is
    """The received bytes are not a message, or the message is too large."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message. The receiver must close the files."""

    kind: Kind
    content: pa.Buffer
    files: tuple[int, ...] = ()


def send(to: socket.socket, kind: Kind, content: bytes | pa.Buffer = b"", files: Sequence[int] = ()) -> None:
    """Send one message.

    Raises:
        OSError: The receiver has closed its end.
        TimeoutError: The timeout of the socket has passed.
    """
    head = _HEAD.pack(kind.value, memoryview(content).nbytes)
    if files:
        socket.send_fds(to, [head], list(files))
    else:
        to.sendall(head)
    to.sendall(content)


def receive(source: socket.socket) -> Message:
    """Return the next message, with its files. Raises `EOFError` if the sender has ended."""
    head, files, _, _ = socket.recv_fds(source, _HEAD.size, _MOST_FILES)
    return replace(_received(source, head, lambda: None, most=None), files=tuple(files))


def receive_in_time(source: socket.socket, *, until: float, most: int) -> Message:
    """Return the next message of an untrusted sender. An untrusted message has no files and at most `most` bytes.

    Args:
        source: The socket.
        until: The deadline on the monotonic clock, in seconds.
        most: The largest content, in bytes.

    Raises:
        TimeoutError: The deadline has passed.
        EOFError: The sender has ended.
        BadMessage: The bytes are not a message, or the message is too large.
    """

    def wait() -> None:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        source.settimeout(left)

    return _received(source, b"", wait, most=most)


def _received(source: socket.socket, head: bytes, wait: Callable[[], None], *, most: int | None) -> Message:
    while len(head) < _HEAD.size:
        wait()
        more = source.recv(_HEAD.size - len(head))
        if not more:
            raise EOFError
        head += more
    kind, size = _HEAD.unpack(head)
    if kind not in _KINDS or (most is not None and size > most):
        raise BadMessage
    content = pa.allocate_buffer(size)
    rest = memoryview(content)
    while rest.nbytes:
        wait()
        read = source.recv_into(rest)
        if not read:
            raise EOFError
        rest = rest[read:]
    return Message(_KINDS[kind], content)


def encoded(query: Query) -> bytes:
    """Return a query as bytes.

    For rows in memory, the bytes contain only the names, because the rows are sent as files (see `file_of`). For
    streams, the bytes contain only the schemas. The sandbox requests the rows later, by the number of the stream.
    """
    relation = query.relation
    read = {
        "rows": list(relation.rows),
        "streams": {name: rows.schema.serialize().to_pybytes().hex() for name, rows in relation.streams.items()},
        "files": [os.fsdecode(path) for path in relation.files],
        "views": relation.views,
        "same_types": relation.same_types,
        "lasting": relation.lasting,
    }
    asked = {name: getattr(query, name) for name in _PLAIN_FIELDS}
    return b"\n".join(json.dumps(each).encode() for each in (asked, read))


def decoded(message: Message, read: Callable[[int], Generator[pa.RecordBatch]]) -> Query:
    """Return the query of a message, and close the message's files. The rows are mapped from the files, not copied.

    `read` is a function that begins a reading of the stream with the given number.
    """
    asked, given = message.content.to_pybytes().split(b"\n")
    names, schemas, relation = _relation(given)
    rows = {name: _mapped(file) for name, file in zip(names, message.files, strict=True)}
    streams = {name: Rows(schema, partial(read, place)) for place, (name, schema) in enumerate(schemas.items())}
    return Query(relation=replace(relation, rows=rows, streams=streams), **json.loads(asked))


@functools.lru_cache(maxsize=4)  # useful if several queries read the same large number of files
def _relation(content: bytes) -> tuple[list[str], dict[str, pa.Schema], Relation]:
    """Return the names of the relation's in-memory tables, the schemas of its streams, and its other fields."""
    given: dict[str, Any] = json.loads(content)
    schemas = {name: pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(each))) for name, each in given["streams"].items()}
    relation = Relation(
        rows={},
        files=tuple(map(Path, given["files"])),
        views=tuple(given["views"]),
        same_types=tuple((view, other) for view, other in given["same_types"]),
        lasting=tuple(given["lasting"]),
    )
    return given["rows"], schemas, relation


def encoded_batch(batch: pa.RecordBatch) -> pa.Buffer:
    """Return a batch as a separate Arrow stream, because columns may have dictionaries."""
    made = pa.BufferOutputStream()
    with pa.ipc.new_stream(made, batch.schema) as stream:
        stream.write_batch(batch)
    return made.getvalue()


def file_of(rows: pa.Table) -> IO[bytes]:
    """Return an open file without a name. The file contains the rows as an Arrow stream."""
    if hasattr(os, "memfd_create"):
        file: IO[bytes] = os.fdopen(os.memfd_create("rows"), "wb")
    else:
        with scratch_folder("rows") as folder:
            file = (folder / "rows").open("w+b")
    try:
        with pa.ipc.new_stream(file, rows.schema) as stream:
            stream.write_table(rows)
        file.flush()
    except BaseException:
        file.close()
        raise
    return file


def _mapped(file: int) -> pa.Table:
    try:
        content = mmap.mmap(file, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(file)
    return pa.ipc.open_stream(pa.py_buffer(content)).read_all()


_KEPT_SECONDS = IDLE_SECONDS / 2  # the sandbox may end by itself after twice this time
_START_SECONDS = 120.0
_WAKE_SECONDS = 10.0  # the timeout of actions. These actions are immediate unless the process is stopped.
_PROGRAM: Final = """
import sys
_, descriptor, folder, *sys.path = sys.argv
from pathlib import Path
from storage_core.engine.sandbox.worker import serve
serve(int(descriptor), Path(folder))
"""
# Arrow's own allocator would reserve a gigabyte at once, and the kernel counts this gigabyte against the memory limit.
_SET: Final = {"ARROW_DEFAULT_MEMORY_POOL": "system"}
_PASSED_ON: Final = ("DYLD_LIBRARY_PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH")
"""Environment variables that the sandbox gets. None of these variables contains secrets or information useful to a
query.
"""
NO_MESSAGE: Final = "the process sent invalid data"


class OutOfTime(Exception):  # noqa: N818  # a finding, as `TypesDiffer` is
    """No rows arrived within the time limit of a query."""


class SandboxEnded(Exception):  # noqa: N818  # as above
    """The process of a query ended without an answer. The text of the error states how the process ended."""


class Sandbox:
    """A process that answers queries, and its own folder."""

    def __init__(self) -> None:
        self.home = HomeProcess()
        self.has_begun = False
        """Whether the process has answered a query or is answering one."""
        self._idle_since = time.monotonic()
        with ExitStack() as stack, typed("the process of a query", with_file=True):
            folder = stack.enter_context(scratch_folder("spill"))
            self._socket, made = socketpair()
            stack.enter_context(self._socket)
            with made:  # if the standard files are closed, the descriptor may have the number of one of them
                theirs = fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, 3)
            try:
                self._process = subprocess.Popen(  # the same Python executable as this process, running `_PROGRAM`
                    [_python(), "-I", "-S", "-c", _PROGRAM, str(theirs), str(folder), *_path()],
                    pass_fds=[theirs],
                    env={**_SET, **{name: os.environ[name] for name in _PASSED_ON if name in os.environ}},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            finally:
                os.close(theirs)
            stack.callback(self._process.wait)
            stack.callback(self._process.kill)
            self._stack = stack.pop_all()

    @property
    def is_ready(self) -> bool:
        """True if the process runs and will not end by itself soon. A sandbox ends by itself after a long idle time."""
        return time.monotonic() - self._idle_since < _KEPT_SECONDS and self._process.poll() is None

    def begin(self, query: Query) -> None:
        """Send the query, and wait until the sandbox has read it. The time limit of the query starts after the wait.

        Raises `OutOfTime` and `SandboxEnded`, like `receive`.
        """
        seconds = _WAKE_SECONDS if self.has_begun else _START_SECONDS
        self._socket.settimeout(seconds)
        with ExitStack() as stack:
            files = [stack.enter_context(file_of(rows)).fileno() for rows in query.relation.rows.values()]
            self._send(Kind.QUERY, encoded(query), files)
        if self.receive(query, seconds).kind is not Kind.BEGUN:
            raise SandboxEnded(NO_MESSAGE)
        self.has_begun = True

    def receive(self, query: Query, seconds: float) -> Message:
        """Return the next message of an answer.

        Raises:
            OutOfTime: No message arrives within the seconds.
            SandboxEnded: The process ended, or sent bytes that are not a message.
        """
        now, most = time.monotonic(), query.memory_bytes + BESIDE_BYTES
        self._idle_since = now
        try:
            return receive_in_time(self._socket, until=now + seconds, most=most)
        except TimeoutError as error:
            raise OutOfTime from error
        except BadMessage as error:
            raise SandboxEnded(NO_MESSAGE) from error
        except (EOFError, ConnectionError) as error:
            raise self._ended() from error

    def give(self, descriptor: int) -> None:
        """Send the sandbox the socket from which it reads the rows of the scan that it requested. Raises the errors of
        `begin`.
        """
        self._socket.settimeout(_WAKE_SECONDS)
        self._send(Kind.READING, files=[descriptor])

    def end(self) -> None:
        """Kill the process and remove its folder. In a copy of this process by fork(), do nothing."""
        if self.home.is_here:
            self._stack.close()
        else:
            self._socket.close()

    def _send(self, kind: Kind, content: bytes = b"", files: Sequence[int] = ()) -> None:
        try:
            send(self._socket, kind, content, files)
        except TimeoutError as error:
            raise OutOfTime from error
        except ConnectionError as error:
            raise self._ended() from error

    def _ended(self) -> SandboxEnded:
        try:
            code = self._process.wait(_WAKE_SECONDS)
        except subprocess.TimeoutExpired:
            return SandboxEnded("the process closed its socket")
        return SandboxEnded(f"signal {-code}" if code < 0 else f"exit status {code}")


def _python() -> str:
    if not sys.executable:
        raise Unavailable("the Python program of this process is not known, and a query needs it. Set sys.executable")
    return sys.executable


def _path() -> list[str]:
    """Return the folders in which this process finds modules.

    Tidemark's folder is first, because other folders may have the same names.
    """
    found = [str(Path(__file__).resolve().parents[3])]
    for each in sys.path:
        if "\0" not in str(each):
            with suppress(FileNotFoundError):  # the working directory no longer exists
                found.append(str(each) or str(Path.cwd()))
    return list(dict.fromkeys(found))


# The sandboxes of this process: at most one per running query, and a few that wait for the next query.

MOST_KEPT = 8


def prepare() -> None:
    """Start a sandbox for the next query in the background, unless one is already waiting. Raises `Unavailable`."""
    keep_sandbox(take_sandbox())


def take_sandbox() -> Sandbox:
    """Return a waiting sandbox or a new one. Raises `Unavailable` if the system cannot start a process."""
    with _Pool.lock:
        ready = [each for each in _Pool.waiting if each.is_ready]
        spent = [each for each in _Pool.waiting if each not in ready]
        found = ready.pop() if ready else None
        _Pool.waiting[:] = ready
    for each in spent:
        each.end()
    if found is None:
        found = Sandbox()
        with _Pool.lock:
            _Pool.living.add(found)
    return found


def keep_sandbox(sandbox: Sandbox) -> None:
    """Keep a sandbox for the next query, or end it if enough are kept."""
    with _Pool.lock:
        if len(_Pool.waiting) < MOST_KEPT:
            _Pool.waiting.append(sandbox)
            return
    sandbox.end()


def end_all() -> None:
    """End all sandboxes at the end of this process. The function also ends sandboxes whose result streams were not read
    to the end.
    """
    with _Pool.lock:
        living = list(_Pool.living)
    for each in living:
        each.end()


class _Pool:
    # The pool is mutable state at module level, because each child process belongs to the process that started the
    # child.
    lock = threading.Lock()
    waiting: ClassVar[list[Sandbox]] = []
    living: ClassVar[weakref.WeakSet[Sandbox]] = weakref.WeakSet()


def _leave() -> None:
    """After a fork, close the child's copies of parent sockets. Otherwise the parent's sandboxes would not end."""
    _Pool.lock, _Pool.waiting = threading.Lock(), []
    for each in _Pool.living:
        each.end()


os.register_at_fork(after_in_child=_leave)
atexit.register(end_all)
