"""The program of a sandbox: it answers questions, and has the rights and the memory for nothing else.

It writes beneath its own folder only, reaches no TCP port (Linux: `landlock`), and has of the environment what its
libraries need. The kernel refuses it more memory than a question may have: what a function makes of a batch of rows is
outside DuckDB's own limit. It ends with the process that started it (decision 0098).
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from storage_core.engine import landlock
from storage_core.engine.question import Question
from storage_core.engine.session import session
from storage_core.engine.wire import Kind, decoded, receive, send
from storage_core.errors import Unavailable
from storage_core.settings.query import LONGEST_QUERY_SECONDS, QueryLimits

if TYPE_CHECKING:
    import duckdb

BESIDE_BYTES = 512 * 2**20
"""What a question may take beside its `memory_bytes`: threads, heaps, and what functions make of batches at work."""
IDLE_SECONDS = 60
_RETAINED_BYTES = 128 * 2**20
"""Where heaps keep more than so much after an answer, a sandbox ends: the next question has its memory for itself."""


def serve(descriptor: int, folder: Path) -> None:
    """Answer the questions that come over a socket, until its other end is closed or nothing came for a minute."""
    questions = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks, which ends this one
    threading.Thread(target=_end_with, args=(descriptor,), daemon=True).start()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    unused, confined, engine = _data_bytes(), False, _Engine(folder)
    while select.select([questions], [], [], IDLE_SECONDS)[0]:
        question = decoded(receive(questions))
        send(questions, Kind.BEGUN)
        said: dict[str, Any] = {}
        try:
            if not confined:
                _give_up_writing(folder)
                confined = True
            with engine.opened(question) as connection:
                _limit_memory(unused + question.memory_bytes + BESIDE_BYTES)
                _answer(question, connection, questions)
        except Exception as error:  # noqa: BLE001  # raised where the question was asked
            last = Kind.ERROR
            said = {"class": type(error).__name__, "text": str(error)}
            if isinstance(error, OSError):
                said["errno"] = error.errno
        else:
            last = Kind.END
        _limit_memory(resource.RLIM_INFINITY)
        said["stays"] = _data_bytes() <= unused + _RETAINED_BYTES
        send(questions, last, json.dumps(said).encode())


class _Engine:
    """A session of DuckDB, kept for questions over the same relation: opening one takes longer than most answers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._question: Question | None = None
        self._connection: duckdb.DuckDBPyConnection | None = None

    @contextmanager
    def opened(self, question: Question) -> Iterator[duckdb.DuckDBPyConnection]:
        """Yield a session in which the relation of the question is bound. After an error it is closed."""
        if self._connection is None or not _is_bound_alike(question, self._question):
            self.close()
            # The process that asks keeps the time: DuckDB's own limit counts what is waited for between batches, too.
            limits = QueryLimits(
                seconds=LONGEST_QUERY_SECONDS, memory_bytes=question.memory_bytes, spill_bytes=question.spill_bytes
            )
            spill = self._folder if question.spill_bytes else None
            self._connection = session(limits, files=question.relation.files, folder=spill)
            self._question = None
        try:
            if self._question is None:
                question.relation.bind(self._connection)
            self._question = question
            yield self._connection
        except BaseException:
            self.close()
            raise
        if any(self._folder.iterdir()):  # what was spilled ends with its session
            self.close()

    def close(self) -> None:
        """Close the session, if there is one."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._question = None


def _is_bound_alike(one: Question, other: Question | None) -> bool:
    """Whether a session for the one serves the other: the same limits, files and views, and no rows in memory."""
    if other is None or any(rows.num_rows for each in (one, other) for rows in each.relation.rows.values()):
        return False
    limits = [(each.memory_bytes, each.spill_bytes) for each in (one, other)]
    return one.relation == other.relation and limits[0] == limits[1]


def _answer(question: Question, connection: duckdb.DuckDBPyConnection, to: socket.socket) -> None:
    rows = connection.sql(question.text).to_arrow_reader(question.batch_rows)
    send(to, Kind.ROWS, rows.schema.serialize())
    for batch in rows:
        made = pa.BufferOutputStream()
        with pa.ipc.new_stream(made, batch.schema) as stream:  # whole, for columns may have dictionaries
            stream.write_batch(batch)
        send(to, Kind.ROWS, made.getvalue())


def _give_up_writing(folder: Path) -> None:
    try:
        landlock.give_up_writing(folder)
    except OSError as error:
        raise Unavailable(f"this system keeps no process from writing: {error}; see decision 0083") from error


def _limit_memory(size: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (size if hard == resource.RLIM_INFINITY else min(size, hard), hard))


def _data_bytes() -> int:
    """What counts for that limit: private memory that can be written. None is told where there is no /proc."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    except OSError:
        return 0


def _end_with(descriptor: int) -> None:
    """End this process, whatever it does, when the other end of the socket is closed."""
    closed = select.poll()
    closed.register(descriptor, 0)  # it reports that without being asked
    closed.poll()
    os._exit(0)
