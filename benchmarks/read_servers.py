"""Servers of the benchmark of read clients, each a process of its own: python -m benchmarks.read_servers KIND [PORT].

`memory` answers every GET from memory, so that clients are measured and no server; `s3` is the S3 server of the tests;
`slow` hands on to a port of this machine what it gets, 20 ms later. Each prints where it listens.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

DELAY_S = 0.02
OBJECT = bytes(range(256)) * (64 * 2**20 // 256)
SMALL_BYTES = 1024
_RANGE = re.compile(rb"\r\nrange: bytes=([0-9]+)-([0-9]+)", re.IGNORECASE)
_HEAD = (
    b"HTTP/1.1 %b\r\ncontent-length: %d\r\n%bcontent-type: binary/octet-stream\r\naccept-ranges: bytes\r\n"
    b'etag: "0123456789abcdef0123456789abcdef"\r\nlast-modified: Sun, 22 Nov 2026 10:00:00 GMT\r\n'
    b"date: Sun, 22 Nov 2026 10:00:00 GMT\r\nx-amz-meta-tidemark-write-id: 0b7c3a52-93f5-4d7e-8f2a\r\n\r\n"
)


@contextmanager
def serving(kind: str, port: str = "") -> Iterator[str]:
    """The address of a server that runs meanwhile."""
    command = [sys.executable, "-m", "benchmarks.read_servers", kind, *([port] if port else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield next(iter(process.stdout or ())).strip()
        finally:
            process.kill()


class _Memory(asyncio.Protocol):
    """Answers a GET with a range of the one object, or with its first bytes."""

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


async def _hand_on(port: int) -> None:
    async def hand_on(from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_copy(from_client, to_server, DELAY_S), _copy(from_server, to_client, 0))

    server = await asyncio.start_server(hand_on, "127.0.0.1", 0, backlog=128)
    _say(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    await server.serve_forever()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter, delay_s: float) -> None:
    while data := await source.read(2**20):
        await asyncio.sleep(delay_s)
        target.write(data)
        await target.drain()
    target.close()


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
            asyncio.run(_hand_on(int(port)))
        case ["s3"]:
            _serve_s3()
        case _:
            sys.exit(str(__doc__))
