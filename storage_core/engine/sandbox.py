"""Processes that answer questions: what a text from outside runs in has no rights, no secrets, and an end.

A process answers one question at a time, and is kept for the next. Whatever it is within, it is killed when the time
of its question is over; and it ends when this process does, however that ends (decision 0098).
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
import weakref
from typing import Any, ClassVar, Self

import pyarrow as pa

from storage_core.engine.question import Question, TypesDiffer
from storage_core.engine.sandbox_process import OutOfTime, Sandbox, SandboxEnded
from storage_core.engine.wire import Kind
from storage_core.errors import Unavailable

MOST_KEPT = 8


class Answer:
    """The rows of an answer, batch by batch, as a context that ends what makes them.

    Making one asks the question. That and each batch raise what DuckDB said of it, `TypesDiffer`, `OutOfTime`,
    `SandboxEnded`, or `Unavailable` where the system gives no process. After any error, and when it is closed before
    its end, its process is killed. In a copy of this process by fork() a batch is `CopiedProcess`.
    """

    def __init__(self, question: Question) -> None:
        self._sandbox: Sandbox | None = None
        self._sandbox = _begun(question)
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
        batch = pa.ipc.open_stream(content).read_next_batch()
        batch.validate()
        return batch

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
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            sandbox.end()

    def _content(self) -> pa.Buffer | None:
        """What the next message brings; None after the last."""
        if self._sandbox is None:
            return None
        self._sandbox.home.require("a stream of rows", "scan the table here")
        waited = 0.0 if self._question.is_streamed else time.monotonic() - self._began
        try:
            message = self._sandbox.receive(self._question, self._question.seconds - waited)
        except BaseException:
            self.close()
            raise
        if message.kind is Kind.ROWS:
            return message.content
        said = json.loads(message.content.to_pybytes())
        sandbox, self._sandbox = self._sandbox, None
        if said["stays"]:
            _Kept.keep(sandbox)
        else:
            sandbox.end()
        if message.kind is Kind.ERROR:
            raise _raised(said)
        return None


def _begun(question: Question) -> Sandbox:
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


def end_all() -> None:
    """End all processes of questions, at the end of this one: also those of streams that are not read to their end."""
    with _Kept.lock:
        living = list(_Kept.living)
    for each in living:
        each.end()


class _Kept:
    """The sandboxes of this process that wait for a question."""

    # Mutable state at module level: the processes that a process has started are of the process.
    lock = threading.Lock()
    waiting: ClassVar[list[Sandbox]] = []
    living: ClassVar[weakref.WeakSet[Sandbox]] = weakref.WeakSet()

    @classmethod
    def taken(cls) -> Sandbox:
        """Return one that waits, or a new one."""
        with cls.lock:
            ready = [each for each in cls.waiting if each.is_ready]
            spent = [each for each in cls.waiting if each not in ready]
            found = ready.pop() if ready else None
            cls.waiting[:] = ready
        for each in spent:
            each.end()
        if found is None:
            found = Sandbox()
            with cls.lock:
                cls.living.add(found)
        return found

    @classmethod
    def keep(cls, sandbox: Sandbox) -> None:
        """Keep one for the next question, or end it where enough are kept."""
        with cls.lock:
            if len(cls.waiting) < MOST_KEPT:
                cls.waiting.append(sandbox)
                return
        sandbox.end()

    @classmethod
    def leave(cls) -> None:
        """In a copy of the process, hold none of its sockets open: they would keep its sandboxes alive."""
        cls.lock, cls.waiting = threading.Lock(), []
        for each in cls.living:
            each.end()


os.register_at_fork(after_in_child=_Kept.leave)
atexit.register(end_all)


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
    known = getattr(duckdb, name, None)
    if isinstance(known, type) and issubclass(known, duckdb.Error):  # and nothing else that has a name there
        return known(text)
    return RuntimeError(f"{name}: {text}")
