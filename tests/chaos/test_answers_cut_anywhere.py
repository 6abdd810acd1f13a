"""An answer of an S3 server that ends too early is none, wherever it ends: also in its head, which no library minds."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from storage_core.objectstore.s3 import S3Store
from storage_core.objectstore.s3_calls import Retries
from storage_core.objectstore.s3_location import S3Location

BODY = b"the whole object"
WHOLE = {
    "get": b'HTTP/1.1 200 OK\r\nETag: "e"\r\nDate: today\r\nContent-Length: 16\r\nServer: s\r\n\r\n' + BODY,
    "get_range": b'HTTP/1.1 206 Partial\r\nContent-Range: bytes 0-15/16\r\nETag: "e"\r\nContent-Length: 16\r\n\r\n'
    + BODY,
}


@contextmanager
def serving(*answers: bytes) -> Iterator[str]:
    """A server that gives each connection the next of the answers, and closes it."""
    left = list(answers)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65_536)
            self.request.sendall(left.pop(0))

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
