"""The program of a sandbox: it answers queries, and has the rights and the memory for nothing else.

It writes beneath its own folder only, reaches no TCP port (Linux: `landlock`), and has of the environment what its
libraries need. The kernel refuses it more memory than a query may have: what a function makes of a batch of rows is
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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage_core.engine.answer_types import reject_lossy_types
from storage_core.engine.sandbox import landlock
from storage_core.engine.sandbox.caller import Caller
from storage_core.engine.sandbox.messages import Kind, decoded, encoded_batch
from storage_core.engine.sandbox.query import BESIDE_BYTES, IDLE_SECONDS, Query
from storage_core.engine.sandbox.sessions import Sessions
from storage_core.errors import Unavailable

if TYPE_CHECKING:
    import duckdb

_RETAINED_BYTES = 512 * 2**20
"""Where sessions and heaps keep more than so much after a query, a sandbox ends."""


def serve(descriptor: int, folder: Path) -> None:
    """Answer the queries that come over a socket, until its other end is closed or nothing came for a minute."""
    refusal = _give_up_writing(folder)  # before a thread begins that could keep the right
    import duckdb  # noqa: F401  # while the query is still made

    caller = Caller(socket.socket(fileno=descriptor))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks, which ends this one
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
    """Send the rows of a query within its memory. Return what is told of its error, nothing where there is none."""
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
