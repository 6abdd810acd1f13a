"""Test receivers that store all alerts: a web server and a mail server on the loopback address."""

from __future__ import annotations

import json
import socketserver
import ssl
import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Web(ThreadingHTTPServer):
    """Web server that answers every POST with `status`.

    `taken` contains the received objects. `authorizations` contains the `Authorization` headers of the received
    requests.
    """

    def __init__(
        self, status: int = 204, headers: tuple[tuple[str, str], ...] = (), tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Post)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.status, self.headers, self.taken = status, headers, list[dict[str, Any]]()
        self.authorizations = list[str | None]()

    @property
    def url(self) -> str:
        """The URL to post to."""
        return f"http://127.0.0.1:{self.server_address[1]}/hook"


class _Post(BaseHTTPRequestHandler):
    server: Web

    def do_POST(self) -> None:
        self.server.taken.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.server.authorizations.append(self.headers["Authorization"])
        self.send_response(self.server.status)
        for name, value in self.server.headers:
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class Mail(socketserver.ThreadingTCPServer):
    """Mail server with only the SMTP commands that receive a message. `taken` contains the received messages.

    With `tls`, the connection is encrypted from the start. With `offers_starttls`, the connection is encrypted after
    the command STARTTLS. `logins` are the logins of clients.
    """

    daemon_threads = True

    def __init__(self, tls: ssl.SSLContext | None = None, *, offers_starttls: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), _Smtp)
        self.tls, self.offers_starttls = tls, offers_starttls
        self.taken, self.logins = list[str](), list[str]()

    @property
    def port(self) -> int:
        """The port on which the server listens."""
        return int(self.server_address[1])


class _Smtp(socketserver.StreamRequestHandler):
    server: Mail

    def handle(self) -> None:
        with suppress(OSError):  # a client that rejects the certificate closes the connection
            if self.server.tls is not None and not self.server.offers_starttls:
                self._begin_tls()
            self._say("220 test")
            self._converse()

    def finish(self) -> None:
        with suppress(OSError):
            super().finish()
        self.connection.close()

    def _begin_tls(self) -> None:
        assert self.server.tls is not None
        self.connection = self.server.tls.wrap_socket(self.connection, server_side=True)
        self.setup_files()

    def setup_files(self) -> None:
        """Open the read and write files of the current connection."""
        self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", 0)

    def _converse(self) -> None:
        while line := self.rfile.readline().decode().rstrip("\r\n"):
            match line.split(maxsplit=1)[0].upper():
                case "DATA":
                    self._say("354 go on")
                    lines = []
                    while (part := self.rfile.readline().decode()) not in (".\r\n", ""):
                        lines.append(part)
                    self.server.taken.append("".join(lines))
                    self._say("250 taken")
                case "EHLO" if self.server.tls is not None:
                    self._say("250-test")
                    if self.server.offers_starttls and not isinstance(self.connection, ssl.SSLSocket):
                        self._say("250-STARTTLS")
                    self._say("250 AUTH PLAIN")
                case "STARTTLS":
                    self._say("220 go on")
                    self._begin_tls()
                case "AUTH":
                    self.server.logins.append(b64decode(line.split()[-1]).decode())
                    self._say("235 ok")
                case "QUIT":
                    self._say("221 bye")
                    return
                case _:
                    self._say("250 ok")

    def _say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


@contextmanager
def serving(*servers: Web | Mail) -> Iterator[None]:
    """Run the servers while the block runs."""
    threads = [threading.Thread(target=each.serve_forever, args=(0.01,)) for each in servers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for each in servers:
            each.shutdown()
            each.server_close()
        for thread in threads:
            thread.join()
