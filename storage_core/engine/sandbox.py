"""Processes that answer questions: what a text from outside runs in has no rights, no secrets, and an end.

A process answers one question at a time, and is kept for the next. Whatever it is within, it is killed when the time
of its question is over; and it ends when this process does, however that ends (decision 0098).
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from contextlib import ExitStack, suppress
from pathlib import Path
from socket import socketpair
from typing import IO, Any, ClassVar, Final, Self

import pyarrow as pa

from storage_core.engine.question import Question, TypesDiffer
from storage_core.engine.wire import Kind, Message, encoded, receive, send
from storage_core.errors import Unavailable
from storage_core.process import HomeProcess
from storage_core.scratch import scratch_folder
from storage_core.system_errors import typed

MOST_KEPT = 8
_KEPT_SECONDS = 30.0
_START_SECONDS = 120.0
_WAKE_SECONDS = 10.0
_PROGRAM: Final = """
import sys
_, descriptor, folder, *sys.path = sys.argv
from pathlib import Path
from storage_core.engine.sandboxed import serve
serve(int(descriptor), Path(folder))
"""
# Arrow's own heap would take a gigabyte at once, of what the kernel counts.
_SET: Final = {"ARROW_DEFAULT_MEMORY_POOL": "system"}
_PASSED_ON: Final = ("DYLD_LIBRARY_PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH")
"""What is passed on: no secret, and nothing that a query could ask for."""


class OutOfTime(Exception):  # noqa: N818  # a finding, as `TypesDiffer` is
    """No rows came within the seconds of a question."""


class SandboxEnded(Exception):  # noqa: N818  # as above
    """The process of a question ended without an answer; the text says how."""


class Answer:
    """The rows of an answer, batch by batch, as a context that ends what makes them.

    Making one asks the question. That and each batch raise what DuckDB said of it, `TypesDiffer`, `OutOfTime`,
    `SandboxEnded`, or `Unavailable` where the system gives no process. After any error, and when it is closed before
    its end, its process is killed. In a copy of this process by fork() a batch is `CopiedProcess`.
    """

    def __init__(self, question: Question) -> None:
        self._sandbox: _Sandbox | None = None
        self._sandbox = _asked(question)
        self._question = question
        self._began = time.monotonic()
        content = self._content()
        self.schema: pa.Schema = pa.ipc.read_schema(content)

    def __iter__(self) -> Self:
        """Return this."""
        return self

    def __next__(self) -> pa.RecordBatch:
        """Return the next rows."""
        content = self._content()
        if content is None:
            raise StopIteration
        return pa.ipc.open_stream(content).read_next_batch()

    def __enter__(self) -> Self:
        """Return this."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def __del__(self) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Kill the process that makes the rows, unless it has made the last."""
        sandbox, self._sandbox = self.__dict__.get("_sandbox"), None
        if sandbox is not None:
            sandbox.end()

    def _content(self) -> pa.Buffer | None:
        """What the next message brings; None after the last."""
        if self._sandbox is None:
            return None
        self._sandbox.home.require("a stream of rows", "scan the table here")
        waited = 0.0 if self._question.is_streamed else time.monotonic() - self._began
        try:
            message = self._sandbox.receive(self._question.seconds - waited)
        except BaseException:
            self.close()
            raise
        if message.kind is Kind.ROWS:
            return message.content
        said = json.loads(message.content.to_pybytes())
        if said["stays"]:
            _Kept.keep(self._sandbox)
            self._sandbox = None
        self.close()
        if message.kind is Kind.ERROR:
            raise _raised(said)
        return None


def _asked(question: Question) -> _Sandbox:
    """A sandbox that has begun to answer. One that was kept may have been killed or stopped since: then another is."""
    while True:
        sandbox = _Kept.taken()
        try:
            sandbox.ask(question)
        except (OutOfTime, SandboxEnded) as error:
            sandbox.end()
            if not sandbox.has_begun:
                found = f"the process of a query did not begin ({str(error) or 'it is stopped'})"
                advice = "look at the limits of this process (ulimit -a) and at its memory, then try again"
                raise Unavailable(f"{found}: {advice}") from error
        except BaseException:
            sandbox.end()
            raise
        else:
            return sandbox


def prepare() -> None:
    """Begin to start a process for the question that follows, unless one is kept. Raises `Unavailable`."""
    _Kept.keep(_Kept.taken())


def end_kept() -> None:
    """End the processes that are kept, where their memory is wanted sooner."""
    for each in _Kept.all_taken():
        each.end()


def _end_all() -> None:
    """End all processes, at the end of this one: also those of streams that were not read to their end."""
    for each in list(_Kept.living):
        each.end()


class _Sandbox:
    """A process that answers questions, and the folder that is its own."""

    def __init__(self) -> None:
        self.home = HomeProcess()
        self.has_begun = False
        """It has answered, or is answering."""
        self.idle_since = time.monotonic()
        with ExitStack() as stack, typed("the process of a query", with_file=True):
            folder = stack.enter_context(scratch_folder("tidemark-spill-"))
            self._socket, made = socketpair()
            stack.enter_context(self._socket)
            with made:  # whose number may be that of a standard file, where those are closed
                theirs = fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, 3)
            try:
                self._process = subprocess.Popen(  # this Python, with the program above
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
        """Whether it runs, and has not been idle for so long that it may end by itself."""
        return time.monotonic() - self.idle_since < _KEPT_SECONDS and self._process.poll() is None

    def ask(self, question: Question) -> None:
        """Send the question, and return when its time begins."""
        seconds = _WAKE_SECONDS if self.has_begun else _START_SECONDS
        self._socket.settimeout(seconds)
        with ExitStack() as stack:
            files = [stack.enter_context(_file_of(rows)).fileno() for rows in question.relation.rows.values()]
            try:
                send(self._socket, Kind.QUESTION, encoded(question), files)
            except ConnectionError as error:
                raise self._ended() from error
        self.receive(seconds)
        self.has_begun = True

    def receive(self, seconds: float) -> Message:
        """Return the next message, if there is time for it."""
        if seconds <= 0:
            raise OutOfTime
        self._socket.settimeout(seconds)
        try:
            return receive(self._socket)
        except TimeoutError as error:
            raise OutOfTime from error
        except (EOFError, ConnectionError) as error:
            raise self._ended() from error

    def end(self) -> None:
        """Kill the process and remove its folder. In a copy of this process by fork(), leave both alone."""
        if self.home.is_here:
            self._stack.close()
        else:
            self._socket.close()

    def _ended(self) -> SandboxEnded:
        code = self._process.wait()
        return SandboxEnded(f"signal {-code}" if code < 0 else f"exit status {code}")


class _Kept:
    """The sandboxes of this process that wait for a question."""

    # Mutable state at module level: the processes that a process has started are of the process.
    lock = threading.Lock()
    waiting: ClassVar[list[_Sandbox]] = []
    living: ClassVar[weakref.WeakSet[_Sandbox]] = weakref.WeakSet()

    @classmethod
    def taken(cls) -> _Sandbox:
        """Return one that waits, or a new one."""
        with cls.lock:
            ready = [each for each in cls.waiting if each.is_ready]
            spent = [each for each in cls.waiting if each not in ready]
            found = ready.pop() if ready else None
            cls.waiting[:] = ready
        for each in spent:
            each.end()
        if found is None:
            found = _Sandbox()
            cls.living.add(found)
        return found

    @classmethod
    def keep(cls, sandbox: _Sandbox) -> None:
        """Keep one for the next question, or end it where enough are kept."""
        sandbox.idle_since = time.monotonic()
        with cls.lock:
            if len(cls.waiting) < MOST_KEPT:
                cls.waiting.append(sandbox)
                return
        sandbox.end()

    @classmethod
    def all_taken(cls) -> list[_Sandbox]:
        """Return those that wait, and keep none."""
        with cls.lock:
            found, cls.waiting = cls.waiting, []
        return found

    @classmethod
    def leave(cls) -> None:
        """In a copy of the process, hold none of its sockets open: they would keep its sandboxes alive."""
        cls.lock, cls.waiting = threading.Lock(), []
        for each in cls.living:
            each.end()


os.register_at_fork(after_in_child=_Kept.leave)
atexit.register(_end_all)


def _python() -> str:
    if not sys.executable:
        raise Unavailable("a query needs a Python to run, and this process does not know its own: set sys.executable")
    return sys.executable


def _path() -> list[str]:
    """Where this process finds modules, ours first: the folder of a user may hold others of the same names."""
    found = [str(Path(__file__).resolve().parents[2])]
    for each in sys.path:
        if "\0" not in str(each):
            with suppress(FileNotFoundError):  # the working directory is gone
                found.append(str(each) or str(Path.cwd()))
    return list(dict.fromkeys(found))


def _file_of(rows: pa.Table) -> IO[bytes]:
    """An open file without a name that holds the rows as a stream of Arrow."""
    file = os.fdopen(os.memfd_create("rows"), "wb") if hasattr(os, "memfd_create") else tempfile.TemporaryFile()  # noqa: SIM115
    try:
        with pa.ipc.new_stream(file, rows.schema) as stream:
            stream.write_table(rows)
        file.flush()
    except BaseException:
        file.close()
        raise
    return file


def _raised(said: dict[str, Any]) -> Exception:
    """The error that a sandbox reports, as it would be raised here."""
    import duckdb

    name, text = said["class"], said["text"]
    if name == TypesDiffer.__name__:
        return TypesDiffer()
    if name == Unavailable.__name__:
        return Unavailable(text)
    if name.startswith("Arrow") and "Memory" not in name:
        return duckdb.InvalidInputException(f"Invalid Input Error: {text}")
    if "MemoryError" in name:  # of Python or Arrow
        return duckdb.OutOfMemoryException(f"Out of Memory Error: {text}")
    if "errno" in said:
        return OSError(text) if said["errno"] is None else OSError(said["errno"], text)
    of_duckdb = getattr(duckdb, name, RuntimeError)
    return of_duckdb(text) if of_duckdb is not RuntimeError else RuntimeError(f"{name}: {text}")
