"""Answers whose head is cut are none. Python's `http.client` takes the end of a connection for the end of a head.

Such an answer has headers that are missing or cut: without the write id, or with half of an ETag, one's own object is
somebody else's. So each response is watched for the empty line behind its headers; without it, it counts as a lost
connection, which is tried again.
"""

from __future__ import annotations

from http.client import HTTPResponse, RemoteDisconnected
from typing import Any, BinaryIO


class _Lines:
    """A stream of an answer's head that remembers the last line."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.last = b""

    def readline(self, limit: int = -1) -> bytes:
        self.last = self._stream.readline(limit)
        return self.last

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class WholeHead(HTTPResponse):
    """A response that raises `RemoteDisconnected`, as for no answer at all, when its head does not end."""

    def begin(self) -> None:
        """Read the head."""
        if getattr(self, "headers", None) is not None:
            return
        stream: Any = self.fp
        lines: Any = _Lines(stream)
        self.fp = lines
        try:
            super().begin()
        finally:
            if self.fp is lines:
                self.fp = stream
        if lines.last not in (b"\r\n", b"\n"):
            raise RemoteDisconnected("the connection ended within the head of the answer")


def require_whole_heads(client: Any) -> None:
    """Make this client of boto3 take no answer whose head is cut. Before its first request."""
    http = client._endpoint.http_session  # noqa: SLF001  # boto3 has no way in; a test notices when this one closes
    pools = {scheme: _watching(pool) for scheme, pool in http._pool_classes_by_scheme.items()}  # noqa: SLF001
    http._pool_classes_by_scheme = pools  # noqa: SLF001  # for proxies, which are made later
    http._manager.pool_classes_by_scheme = pools  # noqa: SLF001


def _watching(pool: Any) -> Any:
    connection = type(pool.ConnectionCls.__name__, (pool.ConnectionCls,), {"response_class": WholeHead})
    return type(pool.__name__, (pool,), {"ConnectionCls": connection})
