"""Servers for the benchmarks of remote reads: python -m benchmarks.read_servers KIND [PORT].

Each server is a separate process.

- `memory` answers every GET from memory, so that a benchmark measures only the clients.
- `s3` is the S3 server of the tests.
- `slow` forwards each request to a port of this machine after 20 ms, and counts the requests.

Each server prints its address.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple, cast
from urllib.parse import parse_qs, urlsplit

DELAY_S = 0.02
COUNTS = "COUNTS"
"""A request with this method returns the counts. The slow server answers without the S3 server.

The answer contains the requests, round trips and bytes since the last request for the counts. A round trip begins with
a request that arrives while no other request is active.
"""

REGION = "eu-central-1"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test-access",
    "AWS_SECRET_ACCESS_KEY": "test-secret",
    "AWS_EC2_METADATA_DISABLED": "true",
    "NO_PROXY": "127.0.0.1",
}
"""The environment variables of processes that read from a server."""

OBJECT = bytes(range(256)) * (64 * 2**20 // 256)
SMALL_BYTES = 1024
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)
_RANGE = re.compile(rb"\r\nrange: bytes=([0-9]+)-([0-9]+)", re.IGNORECASE)
_HEAD = (
    b"HTTP/1.1 %b\r\ncontent-length: %d\r\n%bcontent-type: binary/octet-stream\r\naccept-ranges: bytes\r\n"
    b'etag: "0123456789abcdef0123456789abcdef"\r\nlast-modified: Sun, 22 Nov 2026 10:00:00 GMT\r\n'
    b"date: Sun, 22 Nov 2026 10:00:00 GMT\r\nx-amz-meta-tidemark-write-id: 0b7c3a52-93f5-4d7e-8f2a\r\n\r\n"
)


@dataclass(frozen=True, slots=True)
class Place:
    """A folder of a bucket, and the endpoint for access to the bucket."""

    bucket: str
    name: str
    endpoint: str

    @property
    def uri(self) -> str:
        """The URI of the table for Tidemark's client."""
        return f"s3://{self.bucket}/{self.name}?endpoint={self.endpoint}&region={REGION}&path_style=true"


class S3Servers(NamedTuple):
    """A bucket of the tests' S3 server, the server's endpoint, and the endpoint of the slow server before it."""

    bucket: str
    endpoint: str
    slow: str


@contextmanager
def s3_servers() -> Iterator[S3Servers]:
    """Run the S3 server of the tests, and a slow server that forwards requests to it."""
    with serving("s3") as uri:
        server = urlsplit(uri)
        endpoint = parse_qs(server.query)["endpoint"][0]
        with serving("slow", str(urlsplit(endpoint).port)) as slow:
            yield S3Servers(server.netloc, endpoint, slow)


@contextmanager
def serving(kind: str, port: str = "") -> Iterator[str]:
    """Run a server, and yield its address."""
    command = [sys.executable, "-m", "benchmarks.read_servers", kind, *([port] if port else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield next(iter(process.stdout or ())).strip()
        finally:
            process.kill()


class _Memory(asyncio.Protocol):
    """Answers a GET with a range of the same fixed object. Without a range, the answer is the object's first bytes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._got = b""

    def data_received(self, data: bytes) -> None:
        *requests, self._got = (self._got + data).split(b"\r\n\r\n")
        for request in requests:
            found = _RANGE.search(request)
            if found is None:
                self._transport.write(_HEAD % (b"200 OK", SMALL_BYTES, b"") + OBJECT[:SMALL_BYTES])
            else:
                start, end = int(found[1]), int(found[2]) + 1
                place = b"content-range: bytes %d-%d/%d\r\n" % (start, end - 1, len(OBJECT))
                self._transport.write(_HEAD % (b"206 Partial Content", end - start, place) + OBJECT[start:end])


async def _answer_from_memory() -> None:
    server = await asyncio.get_running_loop().create_server(_Memory, "127.0.0.1", 0, backlog=128)
    _say(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    await server.serve_forever()


class _Slow:
    """A proxy for a server on this machine.

    The proxy delays each request by 20 ms. The proxy counts requests and bytes, and resets the counts when a caller
    reads the counts.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._under_way = 0
        self._counts = Counter[str]()

    async def serve(self) -> None:
        server = await asyncio.start_server(self._hand_on, "127.0.0.1", 0, backlog=128)
        _say(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await server.serve_forever()

    async def _hand_on(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._port)
        with suppress(asyncio.IncompleteReadError, ConnectionError):  # one peer has closed the connection
            while True:
                method, request = await _message(from_client)
                if method == COUNTS.encode():
                    counted = json.dumps(self._counts).encode()
                    self._counts.clear()
                    to_client.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(counted), counted))
                    continue
                self._counts["requests"] += 1
                self._counts["waves"] += not self._under_way
                self._under_way += 1
                try:
                    await asyncio.sleep(DELAY_S)
                    to_server.write(request)
                    _, answer = await _message(from_server, has_body=method != b"HEAD")
                    self._counts["bytes"] += len(answer)
                    to_client.write(answer)
                    await to_client.drain()
                finally:
                    self._under_way -= 1
        to_client.close()
        to_server.close()


async def _message(source: asyncio.StreamReader, *, has_body: bool = True) -> tuple[bytes, bytes]:
    """Return the first word of a request or answer, and the bytes of the whole request or answer."""
    head = await source.readuntil(b"\r\n\r\n")
    length = _LENGTH.search(head)
    body = await source.readexactly(int(length[1])) if has_body and length else b""
    return head.partition(b" ")[0], head + body


def _serve_s3() -> None:
    from tests.support.s3_server import S3Server

    with S3Server() as server:
        _say(server.uri(""))
        threading.Event().wait()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["memory"]:
            asyncio.run(_answer_from_memory())
        case ["slow", port]:
            asyncio.run(_Slow(int(port)).serve())
        case ["s3"]:
            _serve_s3()
        case _:
            sys.exit(str(__doc__))
