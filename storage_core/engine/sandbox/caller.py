"""The process that asks, as its sandbox knows it: who is sent the answer, and gives rows that it reads as streams."""

from __future__ import annotations

import socket
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pyarrow as pa

from storage_core.engine.sandbox.messages import Kind, Message, receive, send


class Caller:
    """A socket to the process that asks. Messages of several threads come one after the other."""

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
        """Within this block, which answers a query, rows may be read."""
        self._is_waiting = True
        try:
            yield
        finally:
            with self._lock:
                self._is_waiting = False

    def read(self, number: int) -> Generator[pa.RecordBatch]:
        """Yield the rows of this number, from a socket of their own. Raises `EOFError` where they end too soon."""
        with self._lock:
            if not self._is_waiting:
                raise EOFError("the query is over")
            send(self._socket, Kind.READ, number.to_bytes(8, "big"))
            (descriptor,) = receive(self._socket).files
        with socket.socket(fileno=descriptor) as rows:
            while (message := receive(rows)).kind is Kind.ROWS:
                yield pa.ipc.open_stream(message.content).read_next_batch()
