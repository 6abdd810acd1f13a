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
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

from storage_core.engine import landlock
from storage_core.engine.question import BESIDE_BYTES, IDLE_SECONDS, Question, Relation
from storage_core.engine.session import session
from storage_core.engine.wire import Kind, decoded, receive, send
from storage_core.errors import Unavailable
from storage_core.settings.query import LONGEST_QUERY_SECONDS, QueryLimits

if TYPE_CHECKING:
    import duckdb

_MOST_SESSIONS = 3
_RETAINED_BYTES = 512 * 2**20
"""Where sessions and heaps keep more than so much after an answer, a sandbox ends."""


def serve(descriptor: int, folder: Path) -> None:
    """Answer the questions that come over a socket, until its other end is closed or nothing came for a minute."""
    refusal = _give_up_writing(folder)  # before a thread begins that could keep the right
    import duckdb  # noqa: F401  # while the question is still made

    questions = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks, which ends this one
    threading.Thread(target=_end_with, args=(descriptor,), daemon=True).start()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    own = resource.getrlimit(resource.RLIMIT_DATA)
    unused, engines = _data_bytes(), list[_Engine]()
    while select.select([questions], [], [], IDLE_SECONDS)[0]:
        question = decoded(receive(questions))
        send(questions, Kind.BEGUN)
        said: dict[str, Any] = {}
        try:
            if refusal is not None:
                _refuse(refusal)
            engine = _engine_for(question, engines, folder)
            with engine.opened(question) as connection:
                _limit_memory(_data_bytes() + question.memory_bytes + BESIDE_BYTES, own)
                engine.bind(question)
                _answer(question, connection, questions)
        except Exception as error:  # noqa: BLE001  # raised where the question was asked
            last = Kind.ERROR
            said = {"class": type(error).__name__, "text": str(error)}
            if isinstance(error, OSError):
                said["errno"] = error.errno
        else:
            last = Kind.END
        resource.setrlimit(resource.RLIMIT_DATA, own)
        said["stays"] = _data_bytes() <= unused + _RETAINED_BYTES
        send(questions, last, json.dumps(said).encode())


def _refuse(refusal: Unavailable) -> NoReturn:
    raise refusal


def _engine_for(question: Question, engines: list[_Engine], folder: Path) -> _Engine:
    """The engine that serves the question, or a new one; as the last of those that are kept."""
    found = next((each for each in engines if each.serves(question)), None)
    if found is not None:
        engines.remove(found)
    elif len(engines) >= _MOST_SESSIONS:
        engines.pop(0).close()
    engines.append(found or _Engine(folder))
    return engines[-1]


class _Engine:
    """A session of DuckDB, kept for questions over the same relation: opening one takes longer than most answers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._question: Question | None = None
        self._connection: duckdb.DuckDBPyConnection | None = None

    def serves(self, question: Question) -> bool:
        """Whether the session that is open would be opened for this question, too."""
        return self._connection is not None and _is_bound_alike(question, self._question)

    @contextmanager
    def opened(self, question: Question) -> Iterator[duckdb.DuckDBPyConnection]:
        """Yield a session for the question; what is not bound yet is `bind`'s to do. After an error it is closed."""
        connection = self._connection
        if connection is None or not self.serves(question):
            self.close()
            # The process that asks keeps the time: DuckDB's own limit counts what is waited for between batches, too.
            limits = QueryLimits(
                seconds=LONGEST_QUERY_SECONDS, memory_bytes=question.memory_bytes, spill_bytes=question.spill_bytes
            )
            spill = self._folder if question.spill_bytes else None
            connection = self._connection = session(limits, files=question.relation.files, folder=spill)
            self._question = None
        try:
            yield connection
        except BaseException:
            self.close()
            raise
        if any(self._folder.iterdir()):  # what was spilled ends with its session
            self.close()

    def bind(self, question: Question) -> None:
        """Create the views of the question in the session that is open for it, unless they are there."""
        if self._question is None and self._connection is not None:
            question.relation.bind(self._connection)
        self._question = question

    def close(self) -> None:
        """Close the session, if there is one."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._question = None


def _is_bound_alike(one: Question, other: Question | None) -> bool:
    """Whether a session for the one serves the other: the same limits, files and views, and no rows in memory."""
    if other is None or any(rows.num_rows for each in (one, other) for rows in each.relation.rows.values()):
        return False
    return _session_of(one) == _session_of(other)


def _session_of(question: Question) -> tuple[Relation, int, int]:
    return question.relation, question.memory_bytes, question.spill_bytes


def _answer(question: Question, connection: duckdb.DuckDBPyConnection, to: socket.socket) -> None:
    rows = connection.sql(question.text).to_arrow_reader(question.batch_rows)
    send(to, Kind.ROWS, rows.schema.serialize())
    for batch in rows:
        made = pa.BufferOutputStream()
        with pa.ipc.new_stream(made, batch.schema) as stream:  # whole, for columns may have dictionaries
            stream.write_batch(batch)
        send(to, Kind.ROWS, made.getvalue())


def _give_up_writing(folder: Path) -> Unavailable | None:
    """Why this process could not give up writing; None where it has, or the system knows no way."""
    try:
        landlock.give_up_writing(folder)
    except OSError as error:
        return Unavailable(f"this system keeps no process from writing: {error}; see decision 0098")
    return None


def _limit_memory(size: int, own: tuple[int, int]) -> None:
    bounds = [each for each in own if each != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([size, *bounds]), own[1]))


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
