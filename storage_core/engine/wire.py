"""Messages over a socket between a process and the sandbox of its queries.

A message is a kind of one byte, a length, and so many bytes; open files may go with it.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pyarrow as pa

from storage_core.engine.question import Question, Relation

_HEAD = struct.Struct(">cQ")
_MOST_FILES = 16
_PLAIN_FIELDS = ("text", "seconds", "memory_bytes", "spill_bytes", "batch_rows", "is_streamed")


class Kind(Enum):
    """What a message is: a question and its files; or that its time begins, a stream of Arrow, an error, the end."""

    QUESTION = b"?"
    BEGUN = b"("
    ROWS = b"+"
    ERROR = b"!"
    END = b")"


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
    """Return the next message. Raises `EOFError` where the sender has ended, `TimeoutError` as `send` does."""
    head, files, _, _ = socket.recv_fds(source, _HEAD.size, _MOST_FILES)
    while 0 < len(head) < _HEAD.size and (more := source.recv(_HEAD.size - len(head))):
        head += more
    if len(head) < _HEAD.size:
        raise EOFError
    kind, size = _HEAD.unpack(head)
    content = pa.allocate_buffer(size)
    rest = memoryview(content)
    while rest.nbytes:
        read = source.recv_into(rest)
        if not read:
            raise EOFError
        rest = rest[read:]
    return Message(Kind(kind), content, tuple(files))


def encoded(question: Question) -> bytes:
    """Return a question as bytes; of its rows in memory the names, for they go as files: see `stored`."""
    relation = question.relation
    fields = {
        **{name: getattr(question, name) for name in _PLAIN_FIELDS},
        "rows": list(relation.rows),
        "files": [os.fsdecode(path) for path in relation.files],
        "views": relation.views,
        "same_types": relation.same_types,
    }
    return json.dumps(fields).encode()


def decoded(message: Message) -> Question:
    """Return the question of a message, whose files are closed then. Its rows are the bytes of those, not copies."""
    fields: dict[str, Any] = json.loads(message.content.to_pybytes())
    relation = Relation(
        rows={name: _mapped(file) for name, file in zip(fields.pop("rows"), message.files, strict=True)},
        files=tuple(map(Path, fields.pop("files"))),
        views=tuple(fields.pop("views")),
        same_types=tuple(fields.pop("same_types") or ()) or None,
    )
    return Question(relation=relation, **fields)


def _mapped(file: int) -> pa.Table:
    try:
        content = mmap.mmap(file, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(file)
    return pa.ipc.open_stream(pa.py_buffer(content)).read_all()
