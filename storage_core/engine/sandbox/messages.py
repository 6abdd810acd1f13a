"""Messages over a socket between a process and the sandbox of its queries.

A message is a kind of one byte, a length, and so many bytes; open files may go with it.
"""

from __future__ import annotations

import functools
import json
import mmap
import os
import socket
import struct
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from storage_core.engine.sandbox.query import Query, Relation, Rows
from storage_core.scratch import scratch_folder

_HEAD = struct.Struct(">cQ")
_MOST_FILES = 16
_PLAIN_FIELDS = tuple(each.name for each in fields(Query) if each.name != "relation")


class Kind(Enum):
    """What a message is."""

    QUERY = b"?"
    """A query, as `encoded`; its rows in memory are the open files that go with it."""
    BEGUN = b"("
    """The query is read: its time begins. No content."""
    READ = b"<"
    """A scan begins: the number of a stream of the query's rows, in 8 bytes."""
    READING = b">"
    """The answer to that: an open socket, from which come the rows, and `END`."""
    ROWS = b"+"
    """First the schema of the answer, then a batch at a time, each a stream of Arrow. Of a reading batches only."""
    ERROR = b"!"
    """The last of a query that failed: the class and text of the error, in JSON."""
    END = b")"
    """The last of a query that was answered, and of a reading that has all rows."""


_KINDS = {each.value: each for each in Kind}


class BadMessage(Exception):  # noqa: N818  # a finding, as `TypesDiffer` is
    """What was received is no message, or a larger one than may be."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message. The files are the receiver's to close."""

    kind: Kind
    content: pa.Buffer
    files: tuple[int, ...] = ()


def send(to: socket.socket, kind: Kind, content: bytes | pa.Buffer = b"", files: Sequence[int] = ()) -> None:
    """Send one message. Raises `OSError` where nobody receives, `TimeoutError` after the timeout of the socket."""
    head = _HEAD.pack(kind.value, memoryview(content).nbytes)
    if files:
        socket.send_fds(to, [head], list(files))
    else:
        to.sendall(head)
    to.sendall(content)


def receive(source: socket.socket) -> Message:
    """Return the next message, with its files. Raises `EOFError` where the sender has ended."""
    head, files, _, _ = socket.recv_fds(source, _HEAD.size, _MOST_FILES)
    return replace(_received(source, head, lambda: None, most=None), files=tuple(files))


def receive_in_time(source: socket.socket, *, until: float, most: int) -> Message:
    """Return the next message of a sender that is not believed: it brings no files and at most so many bytes.

    `until` is a moment of the monotonic clock. Raises `TimeoutError` after it, `EOFError` where the sender has ended,
    `BadMessage` where it lives and sends what is no message, or a larger one.
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
    """Return a query as bytes; of its rows in memory the names, for the rows go as files: see `file_of`.

    Of its streams the schemas, for their rows are read by number.
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
    """Return the query of a message, whose files are closed then. Its rows are the bytes of those, not copies.

    `read` begins a reading of the stream of a number.
    """
    asked, given = message.content.to_pybytes().split(b"\n")
    names, schemas, relation = _relation(given)
    rows = {name: _mapped(file) for name, file in zip(names, message.files, strict=True)}
    streams = {name: Rows(schema, partial(read, place)) for place, (name, schema) in enumerate(schemas.items())}
    return Query(relation=replace(relation, rows=rows, streams=streams), **json.loads(asked))


@functools.lru_cache(maxsize=4)  # of queries over the same many files
def _relation(content: bytes) -> tuple[list[str], dict[str, pa.Schema], Relation]:
    """The names of the rows of a relation, the schemas of its streams, and the rest of it."""
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
    """Return a batch as a stream of its own, for columns may have dictionaries."""
    made = pa.BufferOutputStream()
    with pa.ipc.new_stream(made, batch.schema) as stream:
        stream.write_batch(batch)
    return made.getvalue()


def file_of(rows: pa.Table) -> IO[bytes]:
    """Return an open file without a name that holds the rows as a stream of Arrow."""
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
