"""The store never accepts a truncated reply of an S3 server.

The tests include a reply with a truncated head, which no library detects.
"""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from storage_core.store.contract import Committed, IfAbsent, IfMatch, PutMode
from storage_core.store.s3 import S3Store
from storage_core.store.s3_calls import Retries
from storage_core.store.s3_location import S3Location
from tests.support.ids import SeededIds

BODY = b"the whole object"
WHOLE = {
    "get": b'HTTP/1.1 200 OK\r\nETag: "e"\r\nDate: today\r\nContent-Length: 16\r\nServer: s\r\n\r\n' + BODY,
    "get_range": b'HTTP/1.1 206 Partial\r\nContent-Range: bytes 0-15/16\r\nETag: "e"\r\nContent-Length: 16\r\n\r\n'
    + BODY,
}


@contextmanager
def serving(*answers: bytes, to_put: bytes = b"") -> Iterator[str]:
    """Reply to each request, and close the connection.

    A PUT gets `to_put`, and each other request gets the next reply of `answers`.
    """
    left = list(answers)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            requested = self.request.recv(65_536)
            self.request.sendall(to_put if requested.startswith(b"PUT ") else left.pop(0))

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.001})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("call", WHOLE)
def test_an_answer_that_is_cut_anywhere_is_asked_for_again(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    whole = WHOLE[call]
    cuts = [whole[:at] for at in range(len(whole))]
    with serving(*(answer for cut in cuts for answer in (cut, whole))) as endpoint:
        location = S3Location(bucket="bucket", endpoint=endpoint, region="eu-central-1", path_style=True)
        store = S3Store(location, retries=Retries(first_pause_ms=0))
        for cut in cuts:
            found = store.get("key").data if call == "get" else store.get_range("key", 0, len(BODY))
            assert found == BODY, cut


HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 16\r\nLast-Modified: Sun, 22 Nov 2026 10:00:00 GMT\r\n"
    b'ETag: "ours"\r\nx-amz-meta-tidemark-write-id: %b\r\nServer: s\r\n\r\n'
)


class SameId(SeededIds):
    """An ID generator that returns the same write ID for every put."""

    ID = "0b7c3a52-93f5-4d7e-8f2a-6c1d2e3f4a5b"

    def uuid(self) -> str:
        return self.ID


@pytest.mark.parametrize("mode", [IfAbsent(), IfMatch('"before"')], ids=["create", "swap"])
@pytest.mark.parametrize("lost", [b"", b"HTTP/1.1 412 No\r\nContent-Length: 0\r\n\r\n"], ids=["no answer", "412"])
def test_our_own_object_is_no_conflict_wherever_the_answer_that_tells_so_is_cut(
    mode: PutMode, lost: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    whole = HEAD % SameId.ID.encode()
    cuts = [whole[:at] for at in range(len(whole))]
    with serving(*(answer for cut in cuts for answer in (cut, whole)), to_put=lost) as endpoint:
        location = S3Location(bucket="bucket", endpoint=endpoint, region="eu-central-1", path_style=True)
        store = S3Store(location, retries=Retries(first_pause_ms=0), ids=SameId(7))
        for cut in cuts:
            assert store.put("key", BODY, mode) == Committed('"ours"'), cut


def test_metrics_of_a_head_that_is_cut_anywhere_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    whole = HEAD % b"written"
    cuts = [whole[:at] for at in range(len(whole))]
    with serving(*(answer for cut in cuts for answer in (cut, whole))) as endpoint:
        location = S3Location(bucket="bucket", endpoint=endpoint, region="eu-central-1", path_style=True)
        store = S3Store(location, retries=Retries(first_pause_ms=0))
        for cut in cuts:
            found = store.head("key")
            assert (found.size, found.etag, found.write_id) == (16, '"ours"', "written"), cut
