"""A TCP proxy in front of an HTTP server. The proxy causes the faults of networks and gateways.

A connection carries one request. A seed chooses the fault of the request. The request may pass unchanged or be
delivered twice. The request or its reply may be lost or cut. The server may also get a request late, or a second time,
long after the client has continued.
"""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Self

FAULTS = ["request lost", "request cut", "answer lost", "answer cut", "twice", "again later", "only later"]
LONGEST_DELAY_S = 1.5
HEAD_END = b"\r\n\r\n"
PIECE = 65_536


class Proxy:
    """A proxy that listens on a free port of this machine.

    A context manager. `rate` is the share of requests with a fault.

    The proxy calls `under_way` with the start of the oldest open request. A request is open while it runs or waits for
    late delivery. The start is a time of the machine's clock in ms, or None if no request is open.
    """

    def __init__(self, target: tuple[str, int], *, seed: int, under_way: Callable[[int | None], None]) -> None:
        self.met: Counter[str] = Counter()
        self.rate = 0.0
        self._target = target
        self._random = Random(seed)
        self._under_way = under_way
        self._changed = threading.Condition()
        self._begun: list[int] = []
        proxy = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with suppress(OSError):
                    proxy._serve(self.request)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 128

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        """Start to listen."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop listening when no request is left."""
        self.settle()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def endpoint(self) -> str:
        """The URL on which the proxy listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def settle(self) -> None:
        """Stop faults, and return when all delayed requests are delivered."""
        self.rate = 0.0
        with self._changed:
            self._changed.wait_for(lambda: not self._begun)

    def _serve(self, client: socket.socket) -> None:
        request = _received(client)
        if request is None:
            return
        begun = self._began()
        try:
            later = self._meet(client, request, self._fault())
        finally:
            self._ended(begun)
        if later:
            self._deliver_later(request, begun)

    def _fault(self) -> str:
        with self._changed:
            fault = self._random.choice(FAULTS) if self._random.random() < self.rate else "none"
            self.met[fault] += 1
        return fault

    def _meet(self, client: socket.socket, request: bytes, fault: str) -> bool:
        """Apply the fault to the request. Return True if the request must be delivered later."""
        match fault:
            case "request lost":
                return False
            case "only later":
                return True
            case "request cut":  # cut only the body, because the server accepts a cut header as complete
                head, end, body = request.partition(HEAD_END)
                if body:
                    self._forward(head + end + body[: self._part(body)])
                return False
            case "twice":
                self._forward(request)
        answer = self._forward(request)
        match fault:
            case "answer lost":
                return False
            case "answer cut":
                if not request.startswith(b"HEAD"):  # a cut reply to a HEAD looks like a complete reply
                    client.sendall(answer[: self._part(answer)])
                return False
        client.sendall(answer)
        return fault == "again later"

    def _deliver_later(self, request: bytes, begun: int) -> None:
        """Deliver the request from a thread. The request keeps its original start time."""
        with self._changed:
            self._begun.append(begun)
            delay = self._random.uniform(0.0, LONGEST_DELAY_S)
        self._tell()

        def deliver() -> None:
            try:
                time.sleep(delay)
                with suppress(OSError):
                    self._forward(request)
            finally:
                self._ended(begun)

        threading.Thread(target=deliver, daemon=True).start()

    def _part(self, data: bytes) -> int:
        with self._changed:
            return self._random.randrange(len(data)) if data else 0

    def _forward(self, data: bytes) -> bytes:
        """Send the request to the server. Return all that the server replies before it closes the connection."""
        answer = b""
        with socket.create_connection(self._target) as server:
            server.sendall(data)
            server.shutdown(socket.SHUT_WR)
            while piece := server.recv(PIECE):
                answer += piece
        return answer

    def _began(self) -> int:
        with self._changed:
            begun = time.time_ns() // 1_000_000
            self._begun.append(begun)
        self._tell()
        return begun

    def _ended(self, begun: int) -> None:
        with self._changed:
            self._begun.remove(begun)
            self._changed.notify_all()
        self._tell()

    def _tell(self) -> None:
        with self._changed:
            self._under_way(min(self._begun, default=None))


def _received(client: socket.socket) -> bytes | None:
    """Return the only request of a connection, with a `Connection: close` header.

    Return None if the client sends no request.
    """
    data = b""
    while HEAD_END not in data:
        piece = client.recv(PIECE)
        if not piece:
            return None
        data += piece
    head, _, body = data.partition(HEAD_END)
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith((b"connection:", b"expect:"))]
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])}
    if b"transfer-encoding" in headers:
        raise NotImplementedError("a body of unknown length")
    if b"expect:" in head.lower():
        client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    length = int(headers.get(b"content-length", b"0"))
    while len(body) < length:
        piece = client.recv(PIECE)
        if not piece:
            return None
        body += piece
    return b"\r\n".join([*lines, b"Connection: close"]) + HEAD_END + body
