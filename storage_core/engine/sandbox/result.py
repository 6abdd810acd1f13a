"""The rows of a query, from a process of its own: what a text from outside runs in has no rights, no secrets, an end.

A sandbox answers one query at a time, and is kept for the next. Whatever it is within, it is killed when the time of
its query is over; and it ends when this process does, however that ends (decision 0098).
"""

from __future__ import annotations

import json
import time
from typing import Any, Self

import pyarrow as pa

from storage_core.engine.sandbox import pool
from storage_core.engine.sandbox.feeds import Feeds
from storage_core.engine.sandbox.messages import Kind, Message
from storage_core.engine.sandbox.process import NO_MESSAGE, OutOfTime, Sandbox, SandboxEnded
from storage_core.engine.sandbox.query import Query, TypesDiffer
from storage_core.errors import InvalidInput, Unavailable


class Result:
    """The rows of a query, batch by batch, as a context that ends what makes them.

    Making one runs the query. That and each batch raise what DuckDB said of it, `TypesDiffer`, `OutOfTime`,
    `SandboxEnded`, or `Unavailable` where the system gives no process. After any error, and when it is closed before
    its end, its process is killed. In a copy of this process by fork() a batch is `CopiedProcess`.
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

    def stream(self) -> None:
        """From now on the caller may take their time between batches: the time of the query is that to the next."""
        self._is_streamed = True

    def close(self) -> None:
        """Kill the process that makes the rows, unless it has made the last."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            sandbox.end()
            self._feeds.close()

    def _content(self) -> pa.Buffer | None:
        """What the next message brings; None after the last."""
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
            pool.keep(sandbox)
        else:
            sandbox.end()
        if message.kind is Kind.ERROR:
            raise self._feeds.error or _raised(said)
        return None

    def _message(self, sandbox: Sandbox, *, until: float) -> Message:
        """The next message of the answer; meanwhile what is asked for is given."""
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
    """A sandbox that has begun to answer. One that was kept may have been killed or stopped since: then another is."""
    while True:
        sandbox = pool.taken()
        try:
            sandbox.begin(query)
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


def _raised(said: dict[str, Any]) -> Exception:
    """The error that a sandbox reports, as it would be raised here."""
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
    if "MemoryError" in name:  # of Python or Arrow
        return duckdb.OutOfMemoryException(f"Out of Memory Error: {text}")
    if "errno" in said:
        return OSError(text) if said["errno"] is None else OSError(said["errno"], text)
    known = getattr(duckdb, name, None)
    if isinstance(known, type) and issubclass(known, duckdb.Error):  # and nothing else that has a name there
        return known(text)
    return RuntimeError(f"{name}: {text}")
